/* outfile.h - a file that is written whole or not at all.
 *
 * A regular file, or one that is not there yet, is written beside its name, under a name that nobody can foresee, and
 * renamed when it is whole.  What is no regular file (a link, a pipe, a device) is written to and stays what it is.
 */
#ifndef KVL_OUTFILE_H
#define KVL_OUTFILE_H

#include "kvl/base.h"

#include <stdio.h>

struct kvl_outfile {
    FILE *f;
    char *path, *part; /* part: its name until it is whole; NULL: `path` itself is written */
};

/* KVL_EIO: cannot be created. */
int kvl_outfile_open(struct kvl_outfile *o, const char *path, struct kvl_err *err);
/* Ends it: rc KVL_OK and all written: it is there; else it is as it was before, where it is a regular file.
 * Returns rc, or KVL_EIO. */
int kvl_outfile_close(struct kvl_outfile *o, int rc, struct kvl_err *err);
/* Of a file for nobody else: created, with a name that nobody can foresee, in the folder of `beside`.  The name is
 * malloc'ed; NULL: errno says why. */
char *kvl_outfile_temp(const char *beside, int mode, int *fd);
/* Gives the whole file `part` the name `path` unless somebody has it already (*placed); `part` is gone then.  Two that
 * do so at once: one of them has it, on NFS too.  KVL_EIO. */
int kvl_outfile_place(const char *part, const char *path, bool *placed, struct kvl_err *err);

#endif
