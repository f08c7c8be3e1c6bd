/* One lane seen from outside: its positions, their slots, their values. */
#include "lane.h"

#include "kv_rows.h"
#include "seal.h"
#include <assert.h>
#include <string.h>

/* Lanes are named by the engine, not by a method: a wrong one is our own mistake. */
static const struct kvl_table *lane_table(const struct kvl_seq *seq, int32_t layer, int32_t kv_head)
{
    assert(layer >= 0 && layer < seq->store->desc.n_layers);
    assert(kv_head >= 0 && kv_head < seq->store->desc.n_kv_heads);
    return kvl_seq_table(seq, layer, kv_head);
}

/* A view, not a copy: it holds until the sequence is written, which may move the table of blocks. */
struct kvl_lane kvl_seq_lane(const struct kvl_seq *seq, int32_t layer, int32_t kv_head)
{
    const struct kvl_table *t = lane_table(seq, layer, kv_head);
    return (struct kvl_lane){ .layout = &seq->store->layout,
                              .blocks = (const uint8_t *const *)t->blocks,
                              .data = kvl_links_view(seq,
                                                     layer * seq->store->desc.n_kv_heads + kv_head),
                              .n_slots = t->n_slots,
                              .sorted = t->sorted,
                              .n_sealed = t->n_sealed };
}

int32_t kvl_seq_len(const struct kvl_seq *seq, int32_t layer, int32_t kv_head)
{
    return lane_table(seq, layer, kv_head)->n_slots;
}

void kvl_seq_positions(const struct kvl_seq *seq, int32_t layer, int32_t kv_head, int32_t *pos)
{
    const struct kvl_layout *l = &seq->store->layout;
    const struct kvl_table *t = lane_table(seq, layer, kv_head);
    for (int32_t s = 0; s < t->n_slots; s += l->block_tok)
        memcpy(pos + s, kvl_block_pos(l, t->blocks[s >> l->block_shift]),
               (size_t)KVL_MIN(l->block_tok, t->n_slots - s) * sizeof *pos);
}

/* Callers sort nothing: a lane with holes filled from its end has its order in the index. */
void kvl_seq_ranks(const struct kvl_seq *seq, int32_t layer, int32_t kv_head, int32_t *pos,
                   int32_t *slot)
{
    const struct kvl_table *t = lane_table(seq, layer, kv_head);
    if (t->sorted) {
        kvl_seq_positions(seq, layer, kv_head, pos);
        for (int32_t s = 0; s < t->n_slots; s++) slot[s] = s;
        return;
    }
    memcpy(pos, t->rank_pos, (size_t)t->n_slots * sizeof *pos);
    memcpy(slot, t->rank_slot, (size_t)t->n_slots * sizeof *slot);
}

const int32_t *kvl_seq_order(const struct kvl_seq *seq, int32_t layer, int32_t kv_head)
{
    const struct kvl_table *t = lane_table(seq, layer, kv_head);
    return t->sorted ? NULL : t->rank_pos;
}

const int32_t *kvl_ranks_at(const struct kvl_layout *l, const struct kvl_table *t, int32_t rank,
                            int32_t *n)
{
    assert(rank >= 0 && rank < t->n_slots);
    *n = t->n_slots - rank;
    if (!t->sorted) return t->rank_pos + rank;
    int32_t in_block = rank & (l->block_tok - 1);
    *n = KVL_MIN(*n, l->block_tok - in_block);
    return kvl_block_pos(l, t->blocks[rank >> l->block_shift]) + in_block;
}

/* In a sorted lane the index is not kept, and the blocks have the positions. */
static int32_t lane_rank_pos(const struct kvl_layout *l, const struct kvl_table *t, int32_t rank)
{
    return t->sorted ? kvl_table_pos(l, t, rank) : t->rank_pos[rank];
}

/* Positions are unique and not negative: when the largest is n - 1, they are 0 .. n - 1. */
static bool lane_complete(const struct kvl_table *t)
{
    return t->max_pos == t->n_slots - 1;
}

/* The first rank in lo..hi whose position is not below `pos`; hi when all are. */
static int32_t lane_bisect(const struct kvl_layout *l, const struct kvl_table *t, int32_t lo,
                           int32_t hi, int32_t pos)
{
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (lane_rank_pos(l, t, mid) < pos)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int32_t kvl_ranks_below(const struct kvl_layout *l, const struct kvl_table *t, int32_t pos)
{
    if (pos > t->max_pos) return t->n_slots;
    if (lane_complete(t)) return KVL_MAX(pos, 0);
    return lane_bisect(l, t, 0, t->n_slots, pos);
}

/* As kvl_ranks_below for a position whose rank is `from` or a little more: steps that double. */
static int32_t lane_gallop(const struct kvl_layout *l, const struct kvl_table *t, int32_t from,
                           int32_t pos)
{
    int64_t lo = from, step = 1;
    while (lo + step <= t->n_slots && lane_rank_pos(l, t, (int32_t)(lo + step - 1)) < pos) {
        lo += step;
        step *= 2;
    }
    return lane_bisect(l, t, (int32_t)lo, (int32_t)KVL_MIN(lo + step, t->n_slots), pos);
}

/* Positions that are asked for mostly ascend, so the search goes on from the last hit and doubles its steps:
 * O(n log gap) instead of O(n log slots). A lane that holds everything needs no search. */
int32_t kvl_seq_find(const struct kvl_seq *seq, int32_t layer, int32_t kv_head, const int32_t *pos,
                     int32_t n, int32_t *slot)
{
    const struct kvl_layout *l = &seq->store->layout;
    const struct kvl_table *t = lane_table(seq, layer, kv_head);
    bool identity = t->sorted && lane_complete(t);
    int32_t rank = 0, n_live = 0;
    for (int32_t i = 0; i < n; i++) {
        bool live = pos[i] >= 0 && pos[i] <= t->max_pos;
        if (live && !identity) {
            /* A position below the one before starts over, so any order is served, only slower. */
            rank = lane_gallop(l, t, i > 0 && pos[i] < pos[i - 1] ? 0 : rank, pos[i]);
            live = lane_rank_pos(l, t, rank) == pos[i];
        }
        slot[i] = !live ? -1 : identity ? pos[i] : kvl_rank_slot(t, rank);
        n_live += live;
    }
    return n_live;
}

int kvl_ranks_prepare(const struct kvl_layout *l, struct kvl_table *t, int32_t n,
                      struct kvl_err *err)
{
    int32_t have = t->sorted ? 0 : t->n_slots, cap = t->cap_ranks;
    void *pos = t->rank_pos, *slot = t->rank_slot;
    if (n > cap) {
        /* Both or none: the capacity is theirs together. */
        int32_t cap_pos = cap, cap_slot = cap;
        KVL_TRY(kvl_grow(&pos, &cap_pos, have, n, sizeof(int32_t), err));
        t->rank_pos = pos;
        KVL_TRY(kvl_grow(&slot, &cap_slot, have, n, sizeof(int32_t), err));
        t->rank_slot = slot;
        t->cap_ranks = KVL_MIN(cap_pos, cap_slot);
    }
    if (!t->sorted) return KVL_OK;
    for (int32_t r = 0; r < t->n_slots; r++) {
        t->rank_pos[r] = kvl_table_pos(l, t, r);
        t->rank_slot[r] = r;
    }
    return KVL_OK;
}

/* Through the operator on a device, where the parts lie; by hand otherwise. Rows are widened one by one, since
 * a block has them in the type of the store. */
int kvl_seq_read(const struct kvl_seq *seq, int32_t layer, int32_t kv_head, enum kvl_kv_part part,
                 int32_t slot, int32_t n, float *out, struct kvl_err *err)
{
    const struct kvl_store_desc *d = &seq->store->desc;
    const struct kvl_layout *l = &seq->store->layout;
    if (layer < 0 || layer >= d->n_layers || kv_head < 0 || kv_head >= d->n_kv_heads)
        return kvl_fail(err, KVL_EINVAL, "KV read: lane (%d, %d), want below (%d, %d)", layer,
                        kv_head, d->n_layers, d->n_kv_heads);
    if ((unsigned)part > KVL_PART_K_RAW || l->part_off[part] == SIZE_MAX)
        return kvl_fail(err, KVL_EINVAL, "KV read: part %d is not stored", (int)part);
    const struct kvl_table *t = kvl_seq_table(seq, layer, kv_head);
    if (slot < 0 || n < 0 || slot > t->n_slots - n)
        return kvl_fail(err, KVL_EINVAL, "KV read: %d slots from %d, but layer %d head %d has %d",
                        n, slot, layer, kv_head, t->n_slots);
    if (n == 0) return KVL_OK;
    size_t dim = (size_t)l->head_dim;
    if (seq->store->device) {
        struct kvl_lane lane = kvl_seq_lane(seq, layer, kv_head);
        int rc = seq->store->device->ops_now->lane_read(&(struct kvl_lane_read_args){
            .out = out, .stride = dim, .lane = &lane, .part = part, .slot0 = slot, .n = n });
        return rc == KVL_OK ? rc : kvl_device_fail(seq->store, rc, err);
    }
    for (int32_t s = slot; s < slot + n; s++, out += dim) {
        const struct kvl_kept kept = kvl_table_kept(l, t, part, s);
        kvl_kept_get(&kept, out, l->head_dim);
    }
    return KVL_OK;
}
