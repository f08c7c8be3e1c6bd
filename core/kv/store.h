/* store.h - what the files of core/kv share: the store, its sequences, their block tables.
 *
 * A lane whose positions do not ascend with the slots (evictions fill holes from the end) carries an
 * index: its positions in ascending order and the slot of each.  The place of a position in that
 * order is its rank; in a sorted lane rank and slot are the same.
 */
#ifndef KVL_STORE_H
#define KVL_STORE_H

#include "kv/lane.h"
#include "kv/pool.h"

struct kvl_table {
    uint8_t **blocks; /* [kvl_table_blocks] */
    int32_t cap_blocks;
    int32_t n_slots;
    int32_t max_pos; /* -1 in an empty lane */
    bool sorted;
    /* Only where not sorted: positions ascending, and the slot of each, [n_slots] both. */
    int32_t *rank_pos, *rank_slot;
    int32_t cap_ranks;
};

struct kvl_seq {
    struct kvl_store *store;
    struct kvl_seq *prev, *next;
    struct kvl_table *tables; /* [n_layers][n_kv_heads] */
};

/* Grows to its high-water mark, so that decode does not allocate. */
struct kvl_scratch {
    uint8_t **blocks; /* taken from the pool, not in a table yet */
    int32_t cap_blocks;
    int32_t *ranks; /* [2 * cap_slots]: ranks that go, then room to renumber or sort */
    uint8_t *dead;  /* [cap_slots]: slots that go; all zero between calls */
    int32_t cap_slots;
};

struct kvl_store {
    struct kvl_store_desc desc;
    struct kvl_layout layout;
    struct kvl_pool pool;
    struct kvl_seq *seqs;
    int64_t n_seqs;
    struct kvl_scratch scratch;
};

/* Room for n blocks (never NULL after) / n slots; KVL_ENOMEM leaves the old room. */
int kvl_scratch_blocks(struct kvl_scratch *s, int32_t n, struct kvl_err *err);
int kvl_scratch_slots(struct kvl_scratch *s, int32_t n, struct kvl_err *err);
/* Grows an array of n items of `item` bytes to hold `need`, by half of itself at least. */
int kvl_grow(void **data, int32_t *cap, int32_t n, int32_t need, size_t item, struct kvl_err *err);

static inline struct kvl_table *kvl_seq_table(const struct kvl_seq *seq, int32_t layer,
                                              int32_t kv_head)
{
    return &seq->tables[layer * seq->store->desc.n_kv_heads + kv_head];
}

static inline int32_t kvl_blocks_for(const struct kvl_layout *l, int32_t n_slots)
{
    return (int32_t)(((int64_t)n_slots + l->block_tok - 1) >> l->block_shift);
}

static inline int32_t *kvl_block_pos(const struct kvl_layout *l, uint8_t *block)
{
    return (int32_t *)(void *)(block + l->pos_off);
}

static inline int32_t kvl_table_pos(const struct kvl_layout *l, const struct kvl_table *t,
                                    int32_t slot)
{
    return kvl_block_pos(l, t->blocks[slot >> l->block_shift])[slot & (l->block_tok - 1)];
}

/* Elements of the store's type from and to floats; narrowing rounds to nearest even. */
void kvl_elems_narrow(enum kvl_kv_type type, void *dst, const float *src, size_t n);
void kvl_elems_widen(enum kvl_kv_type type, float *dst, const void *src, size_t n);

/* Copies n slots: parts and positions. */
void kvl_block_copy(const struct kvl_layout *l, uint8_t *dst, int32_t dst_slot, uint8_t *src,
                    int32_t src_slot, int32_t n);

/* Positions in ascending order, as long as they lie together in memory: at least the one of `rank`.
 * The result holds *n positions; the slot of rank r is kvl_rank_slot(t, r). */
const int32_t *kvl_ranks_at(const struct kvl_layout *l, const struct kvl_table *t, int32_t rank,
                            int32_t *n);
static inline int32_t kvl_rank_slot(const struct kvl_table *t, int32_t rank)
{
    return t->sorted ? rank : t->rank_slot[rank];
}
/* Number of live positions below `pos`. */
int32_t kvl_ranks_below(const struct kvl_layout *l, const struct kvl_table *t, int32_t pos);
/* Room for n ranks; writes the index of a lane that is still sorted when it has none. */
int kvl_ranks_prepare(const struct kvl_layout *l, struct kvl_table *t, int32_t n,
                      struct kvl_err *err);

#endif
