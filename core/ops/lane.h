/* lane.h - the inside of a block, shared by the folders of core.
 *
 * One block holds block_tok slots of one lane.  Each part is block_tok rows of head_dim elements of its
 * type, row_bytes apart, at its own offset; positions are int32_t [block_tok].  Every offset is
 * a multiple of 16 bytes.  This layout will change for speed: go through these functions.
 *
 * A store whose type seals (kvtypes.def) has blocks of two sizes.  Blocks are open at first, with rows of 16 bits.  When a
 * new block begins, those are sealed that have as many newer tokens as the type wants open: they become
 * blocks of `sealed`, which have the same positions.  Keys of a sealed block are groups of KVL_KV_GROUP tokens with scales in
 * common.  Sealed blocks are the first n_sealed of a lane, always.
 */
#ifndef KVL_LANE_H
#define KVL_LANE_H

#include "kvl/kvstore.h"

/* A block is one piece of host memory; where a device has memory of its own, it is two: the host's, with the
 * head and the positions, and the device's, with the parts.  Offsets in bytes from the start of the piece. */
struct kvl_layout {
    int32_t head_dim, block_tok, block_shift; /* block_tok == 1 << block_shift */
    /* By enum kvl_kv_part; keys before RoPE are stored like those after it. */
    enum kvl_kv_type type[3];
    size_t row_bytes[3]; /* of one slot: a multiple of 2 */
    size_t part_off[3];  /* SIZE_MAX where the part is not stored */
    size_t pos_off;
    size_t host_bytes, data_bytes; /* of the two pieces; data 0: there is one */
    size_t bytes;
    const struct kvl_layout *sealed; /* of blocks that are sealed; NULL: there are none */
    bool grouped;                    /* this is that of a sealed block */
};

/* A read-only view of one lane.  Borrowed: valid until the sequence is written or destroyed. */
struct kvl_lane {
    const struct kvl_layout *layout;
    const uint8_t *const *blocks; /* [ceil(n_slots / block_tok)] */
    /* On a device with memory of its own: where the parts of each block lie, an array on the device;
     * `blocks` has positions alone then.  Else NULL. */
    const uint8_t *const *data;
    int32_t n_slots;
    bool sorted;      /* positions ascend with the slots */
    int32_t n_sealed; /* blocks, the first ones */
};

struct kvl_lane kvl_seq_lane(const struct kvl_seq *seq, int32_t layer, int32_t kv_head);

/* Positions of a lane in ascending order and the slot of each: pos, slot [n_slots]. */
void kvl_seq_ranks(const struct kvl_seq *seq, int32_t layer, int32_t kv_head, int32_t *pos,
                   int32_t *slot);

/* Positions of a lane whose slots are not in order, ascending, where the sequence has them: until it is written.  NULL:
 * slots are in order. */
const int32_t *kvl_seq_order(const struct kvl_seq *seq, int32_t layer, int32_t kv_head);

/* Whether keys of a part lie in groups. */
static inline bool kvl_layout_groups(const struct kvl_layout *l, enum kvl_kv_part part)
{
    return l->grouped && part != KVL_PART_V && kvl_kv_facts(l->type[part])->open_tok > 0;
}

/* What a slot takes in all the parts that are stored. */
static inline size_t kvl_layout_slot(const struct kvl_layout *l)
{
    size_t n = 0;
    for (int part = 0; part < 3; part++)
        n += l->part_off[part] == SIZE_MAX ? 0 : l->row_bytes[part];
    return n;
}

static inline const struct kvl_layout *kvl_lane_layout(const struct kvl_lane *lane, int32_t b)
{
    return b < lane->n_sealed ? lane->layout->sealed : lane->layout;
}

/* What is stored of one slot: a row, or the group in which it is number `token`; -1: a row. */
struct kvl_kept {
    const uint8_t *at;
    enum kvl_kv_type type;
    int32_t token;
};

static inline struct kvl_kept kvl_block_kept(const struct kvl_layout *l, enum kvl_kv_part part,
                                             const uint8_t *block, int32_t in_block)
{
    bool groups = l->grouped && kvl_layout_groups(l, part);
    int32_t first = groups ? in_block / KVL_KV_GROUP * KVL_KV_GROUP : in_block;
    return (struct kvl_kept){ .at = block + l->part_off[part] + (size_t)first * l->row_bytes[part],
                              .type = l->type[part],
                              .token = groups ? in_block - first : -1 };
}

static inline struct kvl_kept kvl_lane_kept(const struct kvl_lane *lane, enum kvl_kv_part part,
                                            int32_t slot)
{
    int32_t b = slot >> lane->layout->block_shift;
    return kvl_block_kept(kvl_lane_layout(lane, b), part, lane->blocks[b],
                          slot & (lane->layout->block_tok - 1));
}

/* Where it begins. */
static inline const uint8_t *kvl_lane_slot(const struct kvl_lane *lane, enum kvl_kv_part part,
                                           int32_t slot)
{
    return kvl_lane_kept(lane, part, slot).at;
}

static inline const int32_t *kvl_lane_pos(const struct kvl_lane *lane, int32_t b)
{
    return (const int32_t *)(const void *)(lane->blocks[b] + lane->layout->pos_off);
}

/* Bytes that attention reads of slots slot .. slot + n - 1: rows, and the scales of every group that it touches. */
size_t kvl_lane_bytes(const struct kvl_lane *lane, enum kvl_kv_part part, int32_t slot, int32_t n);

/* Slots slot .. slot + n - 1: what a selection becomes once positions are looked up. */
struct kvl_run {
    int32_t slot, n;
};

#endif
