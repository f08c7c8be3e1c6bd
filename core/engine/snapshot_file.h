/* snapshot_file.h - the file of a snapshot: a key, then compressed bytes in the order written.
 *
 * Layout, little-endian:
 *   "KVLSNAP\n"  uint32 format  uint32 bytes of the key  the key  uint64 XXH3-64 of all before
 *   pieces: uint32 bytes of content (1 MiB at most)  uint32 of an element  uint32 of the frame
 *           one zstd frame: the first byte of every element, then the second of every element ...
 *   a piece of no bytes with no frame
 *   the XXH3-128 of all pieces as they lie in the file
 * and nothing after it.  Exponents lie together that way: stored floats take a tenth less room and
 * decode almost twice as fast.  Pieces do not depend on each other.  A reader believes no size: it
 * takes what the frames really give.
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
/* n bytes; `width` is that of an element (1, 2 or 4) and divides n. */
int kvl_snapshot_put(struct kvl_snapshot_writer *w, const void *data, size_t n, size_t width,
                     struct kvl_err *err);
/* The file is complete, on disk and at its path. */
int kvl_snapshot_commit(struct kvl_snapshot_writer *w, struct kvl_err *err);
/* After commit, or to give up: what is not committed is removed.  NULL is fine. */
void kvl_snapshot_close_writer(struct kvl_snapshot_writer *w);

struct kvl_snapshot_reader;

/* *out = NULL: there is no such file. */
int kvl_snapshot_open(const char *path, const char *key, struct kvl_snapshot_reader **out,
                      struct kvl_err *err);
/* The next n bytes of the content: whole elements. */
int kvl_snapshot_get(struct kvl_snapshot_reader *r, void *data, size_t n, struct kvl_err *err);
/* The content ends here, and all checksums agree. */
int kvl_snapshot_end(struct kvl_snapshot_reader *r, struct kvl_err *err);
void kvl_snapshot_close_reader(struct kvl_snapshot_reader *r);
/* For what the caller finds in the body: returns KVL_EIO, and says that the file is damaged. */
int kvl_snapshot_damaged(const struct kvl_snapshot_reader *r, const char *what,
                         struct kvl_err *err);

#endif
