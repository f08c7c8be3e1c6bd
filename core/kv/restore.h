/* restore.h - blocks that come back as they were stored: for snapshots (core/engine).
 *
 * What lies between a block's head and its positions is all of its keys and values, in whatever
 * layout the store has; it is copied as it is. */
#ifndef KVL_RESTORE_H
#define KVL_RESTORE_H

#include "lane.h"

/* The keys and values of a block: offset and bytes. */
size_t kvl_layout_data(const struct kvl_layout *l, size_t *bytes);

/* Appends n slots to every lane of `layer`, whose positions are `pos` and up; the keys and values are undefined until
 * the caller has written them.  out [n_kv_heads][blocks of n slots].  Lanes hold whole blocks of the same number
 * before, which end before `pos`.  Of a type that seals blocks are those that a lane of n_all slots has.  KVL_ENOMEM:
 * nothing was appended. */
int kvl_seq_restore(struct kvl_seq *seq, int32_t layer, int32_t pos, int32_t n, int32_t n_all,
                    uint8_t **out, struct kvl_err *err);

/* Where a device has memory of its own: what n blocks hold, to or from host memory (best PINNED), one after
 * the other.  Given to MAIN; `bytes` is the device's until a sync. */
int kvl_blocks_write(struct kvl_store *store, uint8_t *const *block, int32_t n,
                     const uint8_t *bytes, struct kvl_err *err);
int kvl_blocks_read(struct kvl_store *store, const uint8_t *const *block, int32_t n, uint8_t *bytes,
                    struct kvl_err *err);

#endif
