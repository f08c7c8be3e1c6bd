/* seal.h - lanes with blocks of two sizes; core/kv only.  seal.c says what they are. */
#ifndef KVL_SEAL_H
#define KVL_SEAL_H

#include "store.h"

/* Sealed blocks of a lane of n slots: the first ones. */
int32_t kvl_sealed_of(const struct kvl_store *store, int32_t n_slots);
/* Blocks of the pool `sealed` that a lane wants when n slots are appended. */
int32_t kvl_seal_need(const struct kvl_store *store, const struct kvl_table *t, int32_t n);
/* Seals what has become too old, into so many blocks from *fresh on.  Cannot fail. */
void kvl_seal_lane(struct kvl_store *store, struct kvl_table *t, uint8_t ***fresh);
/* Evicts the n_gone > 0 slots whose ranks are in scratch.  KVL_ENOMEM: the lane is as it was. */
int kvl_seal_keep(struct kvl_store *store, struct kvl_table *t, int32_t n_gone,
                  struct kvl_err *err);

/* x [n]: what is kept, widened. */
void kvl_kept_get(const struct kvl_kept *k, float *x, int32_t n);

static inline struct kvl_kept kvl_table_kept(const struct kvl_layout *l, const struct kvl_table *t,
                                             enum kvl_kv_part part, int32_t slot)
{
    int32_t b = slot >> l->block_shift;
    return kvl_block_kept(b < t->n_sealed ? l->sealed : l, part, t->blocks[b],
                          slot & (l->block_tok - 1));
}

#endif
