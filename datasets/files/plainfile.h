/* plainfile.h - a file of the user's as one range of bytes: plain, or packed by gzip or zstd.
 *
 * A plain file is mapped; a packed one is unpacked into a file without a name first, so that neither has to
 * fit into memory.
 *
 * Thread-safe: yes; an open file may be read by several threads and by processes forked later.
 */
#ifndef KVL_PLAINFILE_H
#define KVL_PLAINFILE_H

#include "kvl/base.h"

struct kvl_plainfile {
    const char *data; /* "" when it is empty */
    size_t len;
    void *map;
    char *path; /* as it was found */
};

/* Whether a message of kvl_plainfile_open says that the file is not there. */
bool kvl_plainfile_absent(const char *msg);
/* The file `path`, else that with .gz or .zst behind it.  KVL_EIO: there is none, or it cannot be read. */
int kvl_plainfile_open(const char *path, struct kvl_plainfile *out, struct kvl_err *err);
void kvl_plainfile_close(struct kvl_plainfile *f);

#endif
