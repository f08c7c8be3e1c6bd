/* snapshot_file.h - the file of a snapshot: a key, then compressed bytes in the order written.
 *
 * Layout, little-endian:
 *   "KVLSNAP\n"  uint32 format  uint32 bytes of the key  the key  uint64 XXH3-64 of all before
 *   one zstd frame with content checksum: the body, then the XXH3-128 of the body (16 bytes)
 * and nothing behind.  A reader believes no size: it takes what the frame really gives.
 *
 * Errors: KVL_EIO with the path and what to do; KVL_ENOMEM.
 */
#ifndef KVL_SNAPSHOT_FILE_H
#define KVL_SNAPSHOT_FILE_H

#include "kvl/base.h"

#define KVL_SNAPSHOT_KEY_BYTES 65536 /* longest key */

struct kvl_snapshot_writer;

/* Writes go to a temporary file in the folder of `path`. */
int kvl_snapshot_create(const char *path, const char *key, struct kvl_snapshot_writer **out,
                        struct kvl_err *err);
int kvl_snapshot_put(struct kvl_snapshot_writer *w, const void *data, size_t n,
                     struct kvl_err *err);
/* The file is complete, on disk and at its path. */
int kvl_snapshot_commit(struct kvl_snapshot_writer *w, struct kvl_err *err);
/* After commit, or to give up: what is not committed is removed.  NULL is fine. */
void kvl_snapshot_close_writer(struct kvl_snapshot_writer *w);

struct kvl_snapshot_reader;

/* *out = NULL: there is no such file. */
int kvl_snapshot_open(const char *path, const char *key, struct kvl_snapshot_reader **out,
                      struct kvl_err *err);
/* The next n bytes of the body. */
int kvl_snapshot_get(struct kvl_snapshot_reader *r, void *data, size_t n, struct kvl_err *err);
/* The body ends here, and all checksums agree. */
int kvl_snapshot_end(struct kvl_snapshot_reader *r, struct kvl_err *err);
void kvl_snapshot_close_reader(struct kvl_snapshot_reader *r);
/* For what the caller finds in the body: returns KVL_EIO, and says that the file is damaged. */
int kvl_snapshot_damaged(const struct kvl_snapshot_reader *r, const char *what,
                         struct kvl_err *err);

#endif
