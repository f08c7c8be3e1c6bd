/* filemap.h - the bytes of a file that a model lies in.
 *
 * They are mapped: nothing is held twice, and what was read stays with the system for the next program.
 * Files of 64 MiB together, or less, are read: who changes such a file does not change a model that is open.
 * KVL_WEIGHTS=copy in the environment reads larger ones too, into huge pages.  A decoded token reads all weights
 * once, and in small pages a core reads them at two thirds of the speed; where Linux keeps a file in huge pages
 * itself (ext4 from 6.16 on), that gains nothing.
 *
 * Errors: KVL_EMODEL, KVL_EIO and KVL_ENOMEM, with the path in front.
 * Thread-safe: yes.
 */
#ifndef KVL_FILEMAP_H
#define KVL_FILEMAP_H

#include "kvl/base.h"

struct kvl_filemap {
    const uint8_t *data; /* aligned to 64 bytes */
    size_t size;
    void *owned;   /* the content of a small file that was read, else NULL */
    void *map;     /* of the file, or huge pages with a copy of it */
    size_t mapped; /* bytes there, 0 = none */
    bool copied;   /* `data` is ours, not the page cache's */
};

/* Whether files of so many bytes in all are read. */
bool kvl_filemap_reads(size_t total);
/* 0 where there is no such regular file. */
size_t kvl_filemap_size(const char *path);
int kvl_filemap_open(const char *path, bool read, struct kvl_filemap *out, struct kvl_err *err);
void kvl_filemap_close(struct kvl_filemap *f);

#endif
