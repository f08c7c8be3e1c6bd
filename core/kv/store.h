/* store.h - what the files of core/kv share: the store, its sequences, their block tables.
 *
 * A lane whose positions do not ascend with the slots (evictions fill holes from the end) carries an
 * index: its positions in ascending order and the slot of each.  The place of a position in that
 * order is its rank; in a sorted lane rank and slot are the same.
 */
#ifndef KVL_STORE_H
#define KVL_STORE_H

#include "lane.h"
#include "pool.h"

enum { KVL_BLOCK_TOK_MAX = 256 };

struct kvl_table {
    uint8_t **blocks; /* [cap_blocks], of which those up to n_slots are there */
    int32_t cap_blocks;
    int32_t link_lo, link_hi; /* blocks that the device's table does not know of yet */
    int32_t n_slots;
    int32_t n_sealed; /* blocks, the first ones: kvl_sealed_of(n_slots) */
    int32_t max_pos;  /* -1 in an empty lane */
    bool sorted;
    /* Only where not sorted: positions ascending, and the slot of each, [n_slots] both. */
    int32_t *rank_pos, *rank_slot;
    int32_t cap_ranks;
};

struct kvl_seq {
    struct kvl_store *store;
    struct kvl_seq *prev, *next;
    struct kvl_table *tables; /* [n_layers][n_kv_heads] */
    /* In memory of the device: where the parts of each block lie, [n_layers][n_kv_heads][cap_links].  NULL
     * where blocks have one piece. */
    const uint8_t **links;
    int32_t cap_links;
};

/* Grows to its high-water mark, so that decode does not allocate. */
struct kvl_scratch {
    uint8_t **blocks; /* taken from the pool, not in a table yet */
    int32_t cap_blocks;
    int32_t *ranks; /* [2 * cap_slots]: ranks that go, then room to renumber or sort */
    uint8_t *dead;  /* [cap_slots]: slots that go; all zero between calls */
    int32_t cap_slots;
};

enum kvl_moves_kind { KVL_MOVES_OWN = 0, KVL_MOVES_SLOTS, KVL_MOVES_KINDS };

/* Slots of blocks in two pieces that wait to be moved: copies of whole blocks first, then slots, so that a
 * copy may be written to in the same batch. */
struct kvl_moves {
    struct kvl_kv_move *move; /* [KVL_MOVES_MAX] */
    int32_t n, n_slots;
};

struct kvl_store {
    struct kvl_store_desc desc;
    const struct kvl_device *device; /* NULL: blocks have one piece */
    struct kvl_layout layout;
    struct kvl_moves moves[KVL_MOVES_KINDS];
    void *stage; /* on the device: through which they move */
    size_t stage_bytes;
    int moves_rc;
    bool held;      /* moves wait for kvl_store_release, and blocks that are let go for the moves */
    uint8_t **gone; /* [n_gone] these */
    int32_t n_gone, cap_gone;
    struct kvl_kv_span *spans; /* of an append */
    int32_t cap_spans;
    /* Of a type that seals: what blocks become, the full ones that stay open, and room for a group of rows. */
    struct kvl_layout sealed_layout;
    int32_t open_blocks;
    float *group;
    struct kvl_pool sealed;
    struct kvl_pool pool;
    /* On a device: blocks in pinned memory (place.c), and room on the device for copies of them (tier.c). */
    struct kvl_pool host, places;
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

/* Copies n slots: parts and positions. */
void kvl_block_copy(const struct kvl_layout *l, uint8_t *dst, int32_t dst_slot, uint8_t *src,
                    int32_t src_slot, int32_t n);

/* Blocks first .. end - 1 of a table move to a pool of the store, but for those that are there (place.c). */
int kvl_table_move(struct kvl_store *store, struct kvl_table *t, int32_t first, int32_t end,
                   struct kvl_pool *to, struct kvl_err *err);

int kvl_moves_open(struct kvl_store *store, struct kvl_err *err);
void kvl_moves_close(struct kvl_store *store);
/* The same for blocks of a store: at once, or on a device with the next kvl_moves_run.  No slot is
 * written by two moves of a kind until then. */
void kvl_moves_add(struct kvl_store *store, enum kvl_moves_kind kind, uint8_t *dst,
                   int32_t dst_slot, uint8_t *src, int32_t src_slot, int32_t n);
/* The stream of copies may still read blocks, to fill places of a tier: MAIN writes to them after it. */
void kvl_store_settle(const struct kvl_store *store);
/* Gives what waits to the device: before a block that it reads is let go. */
void kvl_moves_run(struct kvl_store *store);
/* Lets a block go once what moves has run. */
void kvl_moves_unref(struct kvl_store *store, uint8_t *block);
/* The same, and whether all went well; KVL_EDEVICE. */
int kvl_moves_end(struct kvl_store *store, struct kvl_err *err);

/* Room for tables of n blocks on the device, for all lanes. */
int kvl_links_reserve(struct kvl_seq *seq, int32_t n_blocks, struct kvl_err *err);
/* The fork knows what the other knows. */
int kvl_links_fork(const struct kvl_seq *from, struct kvl_seq *to, struct kvl_err *err);
/* The device's table of a lane, up to date for work that MAIN is given from now on; NULL without one. */
const uint8_t *const *kvl_links_view(const struct kvl_seq *seq, int32_t lane);

/* Blocks first .. end - 1 of a table are others now. */
static inline void kvl_table_changed(struct kvl_table *t, int32_t first, int32_t end)
{
    bool none = t->link_lo == t->link_hi;
    if (first == end) return;
    t->link_lo = none ? first : KVL_MIN(t->link_lo, first);
    t->link_hi = none ? end : KVL_MAX(t->link_hi, end);
}

static inline int kvl_device_fail(const struct kvl_store *store, int rc, struct kvl_err *err)
{
    return kvl_fail(err, rc, "KV store: %s",
                    rc == KVL_EDEVICE ? store->device->error() : "no memory on the device");
}

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
