/* kvl/kvstore.h - the block KV store that all policies share.
 *
 * Vocabulary
 *   lane      one (layer, kv head) pair: the unit of block tables, budgets and selections
 *   slot      one token's place in a lane: its key, its value and its original position
 *   block     `block_tok` consecutive slots of one lane, reference-counted
 *   sequence  one token sequence: a block table per lane.  A fork shares its parent's blocks until
 *             one side writes (copy on write)
 *
 * Every lane has its own block table, so per-head evictions need no special case.  After an
 * eviction slot index != position; positions are unique in a lane, slot order is free.  Evicting
 * frees: whole blocks return to the pool.  How a block is laid out inside belongs to core/kv and
 * core/ops alone.
 *
 * Lifecycle: store create -> sequences create / fork / destroy -> store destroy.  Sequences must be
 * destroyed before their store.
 * Errors: KVL_ENOMEM when the byte limit is reached or memory is short; the sequence is then as
 * before the call.  KVL_EINVAL for arguments out of range.
 * Thread-safe: no.  One store and its sequences belong to one thread.
 */
#ifndef KVL_KVSTORE_H
#define KVL_KVSTORE_H

#include "kvl/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What keys and values are stored as, the rows of kvl/kvtypes.def.  A value that is none of these is a pair of them
 * (kvl_kv_pair): keys and values apart. */
enum kvl_kv_type {
#define KVL_KV_TYPE(name, number, ...) KVL_KV_##name = (number),
#include "kvl/kvtypes.def"
    KVL_KV_PAIRS = 0xffff, /* the largest of all values */
};
enum { KVL_KV_BLOCK = 32, KVL_KV_BLOCK_BYTES = 34 }; /* of Q8_0, as in a GGUF file */
enum { KVL_KV_GROUP = 32 }; /* keys of neighbouring tokens that share scales, in types that seal */

static inline enum kvl_kv_type kvl_kv_pair(enum kvl_kv_type k, enum kvl_kv_type v)
{
    return k == v ? k : (enum kvl_kv_type)((int)k | ((int)v + 1) << 8);
}
/* What keys and what values are stored as: of a pair, and of any type. */
static inline enum kvl_kv_type kvl_kv_keys(enum kvl_kv_type type)
{
    return (enum kvl_kv_type)((int)type & 255);
}
static inline enum kvl_kv_type kvl_kv_values(enum kvl_kv_type type)
{
    return (int)type < 256 ? type : (enum kvl_kv_type)(((int)type >> 8) - 1);
}

enum kvl_kv_turn { KVL_TURN_NONE = 0, KVL_TURN_PLAIN, KVL_TURN_SIGNED };

/* A row of the table.  NULL: there is no such type; a pair is none. */
struct kvl_kv_facts {
    const char *name;
    int32_t unit, unit_bytes, head_bytes;
    enum kvl_kv_turn turn;
    float most;
    int32_t open_tok; /* of a type that seals: newest tokens that are f16; else 0 */
};
const struct kvl_kv_facts *kvl_kv_facts(enum kvl_kv_type type);

/* The name of a type; of a pair, keys and values with a slash between. */
struct kvl_kv_name {
    char text[40];
};
struct kvl_kv_name kvl_kv_name(enum kvl_kv_type type);
/* The type of this name; false: there is none. */
bool kvl_kv_find(const char *name, enum kvl_kv_type *out);
/* "f32, f16, ...": all of them but pairs. */
const char *kvl_kv_list(void);

/* What rows are stored as at first: f16 of a type that seals, else the type itself; of a pair too.  And whether it, or
 * one of the pair, seals. */
enum kvl_kv_type kvl_kv_open(enum kvl_kv_type type);
bool kvl_kv_seals(enum kvl_kv_type type);

/* Of a key and a value, and of a key before RoPE where it is kept; of one row, of a type that is no pair.  Of a type that
 * seals: once sealed, a key with its share of the scales of its group. */
size_t kvl_kv_slot_bytes(enum kvl_kv_type type, int32_t head_dim, bool raw_keys);
size_t kvl_kv_row_bytes(enum kvl_kv_type type, int32_t head_dim);
/* KVL_EINVAL: heads of this size cannot be stored like this, and which types take them. */
int kvl_kv_check(enum kvl_kv_type type, int32_t head_dim, struct kvl_err *err);

/* Of a type whose elements stand alone: F32, F16, BF16. */
static inline int32_t kvl_kv_elem_bytes(enum kvl_kv_type type)
{
    return type == KVL_KV_F32 ? 4 : 2;
}
/* The type of a table of what keys hold: that of the keys where elements stand alone, else f16, which rounds. */
static inline enum kvl_kv_type kvl_kv_table_type(enum kvl_kv_type type)
{
    enum kvl_kv_type keys = kvl_kv_keys(type);
    return keys > KVL_KV_BF16 ? KVL_KV_F16 : keys;
}

/* What of a slot: key after RoPE, value, key before RoPE (only where the store keeps it). */
enum kvl_kv_part {
    KVL_PART_K = 0,
    KVL_PART_V = 1,
    KVL_PART_K_RAW = 2,
};

struct kvl_device;

struct kvl_store_desc {
    int32_t n_layers, n_kv_heads, head_dim;
    int32_t block_tok;               /* slots per block, a power of two from 8 to 256; 0 = 16; of a
                                      * type that seals KVL_KV_GROUP at least */
    enum kvl_kv_type type;           /* of keys and values; kvl_kv_check: it takes head_dim */
    bool raw_keys;                   /* keep keys before RoPE beside those after it */
    size_t limit_bytes;              /* of all blocks in use; 0 = none */
    const struct kvl_device *device; /* where keys and values lie; NULL = cpu */
};

struct kvl_store_stats {
    int64_t n_blocks;          /* in use (referenced by at least one lane) */
    int64_t n_refs;            /* live block-table entries of all sequences */
    int64_t n_sequences;       /* alive */
    size_t block_bytes;        /* of one block, positions and padding included */
    size_t sealed_block_bytes; /* of a sealed one; 0: the type does not seal */
    size_t bytes;              /* of all of them */
    size_t peak_bytes; /* the largest `bytes` since the store was made or the peak was reset */
    size_t limit_bytes;
};

struct kvl_seq_stats {
    int64_t n_slots;  /* live slots, summed over lanes */
    int64_t n_blocks; /* block-table entries, summed over lanes */
    int64_t n_shared; /* of these, blocks that another sequence references too */
    /* Of these, in sealed blocks; such blocks; those that are shared, too. */
    int64_t n_sealed_slots, n_sealed, n_sealed_shared;
    size_t logical_bytes;  /* of every slot's stored K (all forms) and V */
    size_t physical_bytes; /* of the blocks, shared ones counted in full */
};

struct kvl_store;
struct kvl_seq;

int kvl_store_create(const struct kvl_store_desc *desc, struct kvl_store **out,
                     struct kvl_err *err);
void kvl_store_destroy(struct kvl_store *store);
const struct kvl_store_desc *kvl_store_desc(const struct kvl_store *store);
void kvl_store_stats(const struct kvl_store *store, struct kvl_store_stats *out);
void kvl_store_reset_peak(struct kvl_store *store);

int kvl_seq_create(struct kvl_store *store, struct kvl_seq **out, struct kvl_err *err);
/* An equal sequence that shares every block; neither side sees the other's later writes. */
int kvl_seq_fork(const struct kvl_seq *seq, struct kvl_seq **out, struct kvl_err *err);
void kvl_seq_destroy(struct kvl_seq *seq);

/* Appends n slots to every lane of `layer`.
 *   pos    [n]                        original positions, not present in the layer's lanes yet; in a
 *                                     store that seals ascending, behind those of the lanes
 *   k, v   [n][n_kv_heads][head_dim]  key after RoPE, value
 *   k_raw  same shape; required iff the store has raw_keys, else NULL */
int kvl_seq_append(struct kvl_seq *seq, int32_t layer, int32_t n, const int32_t *pos,
                   const float *k, const float *k_raw, const float *v, struct kvl_err *err);
/* The same, and k and v become what is stored of them (kvl_store_round), on a device in the same pass. */
int kvl_seq_append_rounding(struct kvl_seq *seq, int32_t layer, int32_t n, const int32_t *pos,
                            float *k, const float *k_raw, float *v, struct kvl_err *err);

/* Whether that would seal a block: what reads the lanes as they are must have run before. */
bool kvl_seq_seals(const struct kvl_seq *seq, int32_t layer, int32_t n);

/* Drops every slot whose position is >= pos_end, in all lanes.  KVL_EINVAL in a store that seals. */
int kvl_seq_truncate(struct kvl_seq *seq, int32_t pos_end, struct kvl_err *err);

/* Evicts from one lane all slots but those at `pos` [n]: ascending, unique, live (KVL_EINVAL names
 * the first that is not, nothing changed), and compacts, so that ceil(n / block_tok) blocks remain.
 * Blocks of which nothing stays leave without a copy.  When few slots of the others go, slots from
 * the end fill the holes; otherwise slot order is preserved.
 * In a store that seals order is always preserved; sealed slots that move are quantised once more. */
int kvl_seq_keep(struct kvl_seq *seq, int32_t layer, int32_t kv_head, const int32_t *pos, int32_t n,
                 struct kvl_err *err);
/* The same by what goes: n ranks, ascending and unique, of the lane's positions in ascending order.  What one step drops is
 * little, and nothing that stays is looked at. */
int kvl_seq_drop(struct kvl_seq *seq, int32_t layer, int32_t kv_head, const int32_t *rank,
                 int32_t n, struct kvl_err *err);

/* What kvl_seq_keep moves in memory of a device goes together from here on, when it is released; nothing is read or
 * appended before that. */
void kvl_store_hold(struct kvl_store *store);
int kvl_store_release(struct kvl_store *store, struct kvl_err *err);

/* Frees the blocks of a layer at whose start everything lies before position `pos`, `unit` slots (a multiple
 * of block_tok) at a time; all lanes must hold neighbouring positions in the order of their slots.  Nothing
 * moves, and nothing can fail. */
void kvl_seq_forget(struct kvl_seq *seq, int32_t layer, int32_t pos, int32_t unit);

/* Live slots of a lane. */
int32_t kvl_seq_len(const struct kvl_seq *seq, int32_t layer, int32_t kv_head);
/* Positions in slot order, [kvl_seq_len]. */
void kvl_seq_positions(const struct kvl_seq *seq, int32_t layer, int32_t kv_head, int32_t *pos);
/* Slots of n ascending positions; -1 where a position is not live.  Returns how many are live. */
int32_t kvl_seq_find(const struct kvl_seq *seq, int32_t layer, int32_t kv_head, const int32_t *pos,
                     int32_t n, int32_t *slot);
/* Stored values of n slots from `slot` on, widened to float: out [n][head_dim]. */
int kvl_seq_read(const struct kvl_seq *seq, int32_t layer, int32_t kv_head, enum kvl_kv_part part,
                 int32_t slot, int32_t n, float *out, struct kvl_err *err);
void kvl_seq_stats(const struct kvl_seq *seq, struct kvl_seq_stats *out);

/* Rounds rows of a part through what the store keeps and back, in place: what `append` will have stored.  n:
 * elements of whole rows. */
void kvl_store_round(const struct kvl_store *store, enum kvl_kv_part part, float *x, size_t n);

/* Checks the invariants (references, bytes, unique positions); KVL_EINTERNAL names the broken one.
 * For tests and debug builds: O(everything). */
int kvl_store_check(const struct kvl_store *store, struct kvl_err *err);

#ifdef __cplusplus
}
#endif

#endif
