/* Eviction: which ranks go, how the rest closes up.
 *
 * Blocks of which nothing stays leave the table as they are.  For the rest there are two ways.  When
 * few slots go, slots from the end fill the holes: the cost is that of the evicted slots, whatever
 * the length of the lane, and blocks shared with a fork stay shared but for those that had a hole.
 * Otherwise the rest moves down in order.  Both touch a block only after they own it, and take every
 * block they need before they change anything. */
#include "seal.h"

#include <assert.h>
#include <string.h>

enum { EVICT_FILL_SHARE = 8 }; /* holes are filled when at most 1 slot of 8 goes */

/* The eviction of `n_gone` ranks, ascending, from one lane. */
struct evict {
    struct kvl_store *store;
    const struct kvl_layout *l;
    struct kvl_table *t;
    const int32_t *ranks;
    int32_t n_gone, n_new;
    int32_t first; /* lowest slot that goes; n_slots when none does */
};

/* Marks the slots that go, so that the walks below ask a byte and not a list. */
static struct evict evict_begin(struct kvl_store *store, struct kvl_table *t, int32_t n_gone)
{
    struct kvl_scratch *s = &store->scratch;
    struct evict e = { .store = store,
                       .l = &store->layout,
                       .t = t,
                       .ranks = s->ranks,
                       .n_gone = n_gone,
                       .n_new = t->n_slots - n_gone,
                       .first = t->n_slots };
    for (int32_t i = 0; i < n_gone; i++) {
        int32_t slot = kvl_rank_slot(t, s->ranks[i]);
        s->dead[slot] = 1;
        e.first = KVL_MIN(e.first, slot);
    }
    return e;
}

/* By the ranks and not by clearing all: a step evicts one slot of a lane of a million. */
static void evict_unmark(const struct evict *e)
{
    for (int32_t i = 0; i < e->n_gone; i++)
        e->store->scratch.dead[kvl_rank_slot(e->t, e->ranks[i])] = 0;
}

/* Everything that goes lies at the end: then the lane is cut, and nothing moves. */
static bool evict_moves(const struct evict *e)
{
    return e->first < e->n_new;
}

/* Filling costs an index from then on, compacting a pass over the lane. */
static bool evict_fills(const struct evict *e)
{
    return e->n_gone <= e->t->n_slots / EVICT_FILL_SHARE;
}

/* Shared blocks that filling or compacting writes to. */
static int32_t evict_need(const struct evict *e)
{
    const struct kvl_table *t = e->t;
    int32_t shift = e->l->block_shift, need = 0;
    if (!evict_moves(e)) return 0;
    if (!evict_fills(e)) {
        for (int32_t b = e->first >> shift; b < kvl_blocks_for(e->l, e->n_new); b++)
            need += kvl_block_shared(t->blocks[b]);
        return need;
    }
    /* Ranks do not come block by block: `seen` tells the first visit. */
    for (int32_t i = 0; i < e->n_gone; i++) {
        int32_t slot = kvl_rank_slot(t, e->ranks[i]);
        struct kvl_block *block = kvl_block_head(t->blocks[slot >> shift]);
        need += slot < e->n_new && block->refs > 1 && !block->seen;
        if (slot < e->n_new) block->seen = 1;
    }
    for (int32_t i = 0; i < e->n_gone; i++)
        kvl_block_head(t->blocks[kvl_rank_slot(t, e->ranks[i]) >> shift])->seen = 0;
    return need;
}

/* Drops the ranks that go from the index; `renumber`, where given, maps old slots to new. */
static void evict_index(const struct evict *e, const int32_t *renumber)
{
    struct kvl_table *t = e->t;
    int32_t to = e->n_gone > 0 ? e->ranks[0] : t->n_slots;
    for (int32_t i = 0; i < e->n_gone; i++) {
        int32_t from = e->ranks[i] + 1, end = i + 1 < e->n_gone ? e->ranks[i + 1] : t->n_slots;
        size_t bytes = (size_t)(end - from) * sizeof(int32_t);
        memmove(t->rank_pos + to, t->rank_pos + from, bytes);
        memmove(t->rank_slot + to, t->rank_slot + from, bytes);
        to += end - from;
    }
    if (!renumber) return;
    bool sorted = true;
    for (int32_t r = 0; r < e->n_new; r++) {
        t->rank_slot[r] = renumber[t->rank_slot[r]];
        sorted = sorted && t->rank_slot[r] == r;
    }
    t->sorted = sorted;
}

/* Block b, owned: a shared one is replaced by a fresh copy of its first n slots. */
static uint8_t *evict_own(const struct evict *e, int32_t b, int32_t n, uint8_t ***fresh)
{
    uint8_t *old = e->t->blocks[b];
    if (!kvl_block_shared(old)) return old;
    uint8_t *own = *(*fresh)++;
    kvl_moves_add(e->store, KVL_MOVES_OWN, own, 0, old, 0, n);
    e->t->blocks[b] = own;
    kvl_table_changed(e->t, b, b + 1);
    kvl_block_unref(old);
    return own;
}

/* The tail walks up over live slots after the new end and never meets a hole twice: both lists are as long as
 * each other. */
static void evict_fill(const struct evict *e, uint8_t ***fresh)
{
    struct kvl_table *t = e->t;
    const struct kvl_layout *l = e->l;
    const uint8_t *dead = e->store->scratch.dead;
    int32_t tail = e->n_new, mask = l->block_tok - 1;
    t->sorted = false;
    for (int32_t i = 0; i < e->n_gone; i++) {
        int32_t hole = t->rank_slot[e->ranks[i]];
        if (hole >= e->n_new) continue;
        while (dead[tail]) tail++;
        int32_t b = hole >> l->block_shift, live = t->n_slots - (b << l->block_shift);
        uint8_t *dst = evict_own(e, b, KVL_MIN(l->block_tok, live), fresh);
        t->rank_slot[kvl_ranks_below(l, t, kvl_table_pos(l, t, tail))] = hole;
        kvl_moves_add(e->store, KVL_MOVES_SLOTS, dst, hole & mask,
                      t->blocks[tail >> l->block_shift], tail & mask, 1);
        tail++;
    }
}

/* Moves live slots from *src on down into `out` from slot `to` of it until it is full or none is
 * left; returns the end of what was written. */
static int32_t evict_refill(const struct evict *e, uint8_t *out, int32_t to, int32_t *src)
{
    const struct kvl_layout *l = e->l;
    const uint8_t *dead = e->store->scratch.dead;
    int32_t n_slots = e->t->n_slots, mask = l->block_tok - 1;
    while (to < l->block_tok) {
        while (*src < n_slots && dead[*src]) ++*src;
        if (*src >= n_slots) break;
        int32_t room = KVL_MIN(l->block_tok - to, l->block_tok - (*src & mask)), n = 1;
        while (n < room && *src + n < n_slots && !dead[*src + n]) n++;
        kvl_moves_add(e->store, KVL_MOVES_SLOTS, out, to, e->t->blocks[*src >> l->block_shift],
                      *src & mask, n);
        *src += n;
        to += n;
    }
    return to;
}

/* Slots below `first` stay.  A block is written once all that it held has moved to it or below, so
 * that a shared one can be let go right after. */
static void evict_compact(const struct evict *e, uint8_t ***fresh)
{
    struct kvl_table *t = e->t;
    int32_t mask = e->l->block_tok - 1, src = e->first, to = e->first & mask;
    for (int32_t b = e->first >> e->l->block_shift; b < kvl_blocks_for(e->l, e->n_new); b++) {
        uint8_t *old = t->blocks[b], *out = old;
        if (kvl_block_shared(old)) {
            out = *(*fresh)++;
            if (to > 0) kvl_moves_add(e->store, KVL_MOVES_OWN, out, 0, old, 0, to);
        }
        evict_refill(e, out, to, &src);
        to = 0;
        if (out == old) continue;
        t->blocks[b] = out;
        kvl_table_changed(t, b, b + 1);
        kvl_block_unref(old);
    }
}

/* Old slot -> new slot of what an order-preserving compaction leaves, in the upper scratch half. */
static const int32_t *evict_renumber(const struct evict *e)
{
    const struct kvl_scratch *s = &e->store->scratch;
    int32_t *renumber = s->ranks + s->cap_slots, next = 0;
    for (int32_t slot = 0; slot < e->t->n_slots; slot++) {
        renumber[slot] = next;
        next += !s->dead[slot];
    }
    return renumber;
}

/* Blocks go after the moves that still read them. */
static void evict_shrink(const struct evict *e)
{
    struct kvl_table *t = e->t;
    int32_t n_blocks = kvl_blocks_for(e->l, t->n_slots);
    for (int32_t b = kvl_blocks_for(e->l, e->n_new); b < n_blocks; b++)
        kvl_moves_unref(e->store, t->blocks[b]);
    t->n_slots = e->n_new;
    assert(t->n_slots > 0 || t->sorted);
    int32_t last = t->n_slots - 1;
    if (last < 0)
        t->max_pos = -1;
    else
        t->max_pos = t->sorted ? kvl_table_pos(e->l, t, last) : t->rank_pos[last];
}

/* Uses evict_need() blocks from *fresh on; clears the marks. */
static void evict_apply(const struct evict *e, uint8_t ***fresh)
{
    const int32_t *renumber = NULL;
    bool moves = evict_moves(e);
    if (moves && evict_fills(e)) {
        evict_fill(e, fresh);
    } else {
        if (!e->t->sorted) renumber = evict_renumber(e);
        if (moves) evict_compact(e, fresh);
    }
    if (!e->store->held) kvl_moves_run(e->store);
    evict_unmark(e);
    if (!e->t->sorted) evict_index(e, renumber);
    evict_shrink(e);
}

/* Length of the common start of a and b. */
static int32_t keep_equal(const int32_t *a, const int32_t *b, int32_t n)
{
    int32_t i = 0;
    enum { STEP = 32 };
    while (i + STEP <= n && memcmp(a + i, b + i, STEP * sizeof *a) == 0) i += STEP;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

/* Compares live positions with those to keep: writes the ranks that go, returns the number of
 * leading entries of `pos` that are ascending and live.  An entry that is not matches nothing, and
 * the walk stays at it to the end. */
static int32_t keep_diff(const struct kvl_layout *l, const struct kvl_table *t, const int32_t *pos,
                         int32_t n, int32_t *ranks, int32_t *n_gone)
{
    int32_t j = 0, gone = 0, len;
    for (int32_t rank = 0; rank < t->n_slots; rank += len) {
        const int32_t *live = kvl_ranks_at(l, t, rank, &len);
        for (int32_t i = 0; i < len; i++) {
            int32_t same = j < n ? keep_equal(live + i, pos + j, KVL_MIN(len - i, n - j)) : 0;
            i += same;
            j += same;
            if (i == len) break;
            ranks[gone++] = rank + i;
        }
    }
    *n_gone = gone;
    return j;
}

/* The walk stopped at entry i, which says what is wrong with it. */
static int keep_refuse(const struct kvl_table *t, int32_t layer, int32_t kv_head,
                       const int32_t *pos, int32_t i, struct kvl_err *err)
{
    if (i > 0 && pos[i] <= pos[i - 1])
        return kvl_fail(err, KVL_EINVAL,
                        "keep, layer %d head %d: entry %d is position %d after %d, want ascending "
                        "positions without repeats",
                        layer, kv_head, i, pos[i], pos[i - 1]);
    return kvl_fail(err, KVL_EINVAL,
                    "keep, layer %d head %d: entry %d is position %d, which is not live (%d live, "
                    "up to %d)",
                    layer, kv_head, i, pos[i], t->n_slots, t->max_pos);
}

/* Evicts the ranks in scratch; blocks it needs pass through the scratch array from `at` on.  Room first, marks taken
 * back where there is none: a lane that could not be cut is as it was. */
static int keep_evict(struct kvl_store *store, struct kvl_table *t, int32_t n_gone, int32_t at,
                      struct kvl_err *err)
{
    struct evict e = evict_begin(store, t, n_gone);
    int32_t need = evict_need(&e);
    int rc = kvl_scratch_blocks(&store->scratch, at + need, err);
    if (rc == KVL_OK && evict_moves(&e) && evict_fills(&e))
        rc = kvl_ranks_prepare(e.l, t, t->n_slots, err);
    uint8_t **fresh = store->scratch.blocks + at;
    if (rc == KVL_OK) rc = kvl_pool_take(&store->pool, need, fresh, err);
    if (rc != KVL_OK) {
        evict_unmark(&e);
        return rc;
    }
    evict_apply(&e, &fresh);
    assert(fresh == store->scratch.blocks + at + need);
    return KVL_OK;
}

/* Fills `to` with the blocks of a sorted lane, those that go as a whole last, and renumbers the
 * ranks of the others; returns how many of these go. */
static int32_t keep_splice(const struct kvl_layout *l, const struct kvl_table *t, int32_t *ranks,
                           int32_t n_gone, struct kvl_table *to)
{
    int32_t n_blocks = kvl_blocks_for(l, t->n_slots), n_live = 0, n_dead = 0, n_left = 0, i = 0;
    for (int32_t b = 0; b < n_blocks; b++) {
        int32_t first = b << l->block_shift, n = KVL_MIN(l->block_tok, t->n_slots - first);
        if (i + n <= n_gone && ranks[i + n - 1] == first + n - 1 && ranks[i] == first) {
            to->blocks[n_blocks - ++n_dead] = t->blocks[b];
            to->n_slots -= n;
            i += n;
            continue;
        }
        for (; i < n_gone && ranks[i] < first + n; i++)
            ranks[n_left++] = ranks[i] - (n_dead << l->block_shift);
        to->blocks[n_live++] = t->blocks[b];
    }
    return n_left;
}

/* Whole blocks leave first, without a copy: what a method keeps in long stretches stays shared with
 * the sequence it was forked from.  Works on a second table, so that a failure changes nothing. */
static int keep_spliced(struct kvl_store *store, struct kvl_table *t, int32_t n_gone,
                        struct kvl_err *err)
{
    const struct kvl_layout *l = &store->layout;
    int32_t n_blocks = kvl_blocks_for(l, t->n_slots);
    if (n_blocks > INT32_MAX / 2) return kvl_fail(err, KVL_ENOMEM, "keep: %d blocks", n_blocks);
    KVL_TRY(kvl_scratch_blocks(&store->scratch, 2 * n_blocks, err));
    struct kvl_table next = *t;
    next.blocks = store->scratch.blocks;
    n_gone = keep_splice(l, t, store->scratch.ranks, n_gone, &next);
    int32_t n_live = kvl_blocks_for(l, next.n_slots);
    int rc = keep_evict(store, &next, n_gone, n_blocks, err);
    t->rank_pos = next.rank_pos; /* may have grown in any case */
    t->rank_slot = next.rank_slot;
    t->cap_ranks = next.cap_ranks;
    if (rc != KVL_OK) return rc;
    for (int32_t b = n_live; b < n_blocks; b++) kvl_block_unref(next.blocks[b]);
    int32_t end = kvl_blocks_for(l, next.n_slots), first = 0;
    while (first < end && t->blocks[first] == next.blocks[first]) first++;
    memcpy(t->blocks, next.blocks, (size_t)end * sizeof *t->blocks);
    kvl_table_changed(t, first, end);
    t->n_slots = next.n_slots;
    t->max_pos = next.max_pos;
    t->sorted = next.sorted;
    return KVL_OK;
}

/* Evicts n_gone ranks, which are in scratch. */
static int keep_drop(struct kvl_store *store, struct kvl_table *t, int32_t n_gone,
                     struct kvl_err *err)
{
    if (n_gone == 0) return KVL_OK;
    if (store->layout.sealed) return kvl_seal_keep(store, t, n_gone, err);
    /* A sorted lane only: slots change their numbers, and an index would have to follow. */
    bool whole_blocks = t->sorted && n_gone >= store->desc.block_tok;
    KVL_TRY(whole_blocks ? keep_spliced(store, t, n_gone, err)
                         : keep_evict(store, t, n_gone, 0, err));
    return kvl_moves_end(store, err);
}

int kvl_seq_drop(struct kvl_seq *seq, int32_t layer, int32_t kv_head, const int32_t *rank,
                 int32_t n, struct kvl_err *err)
{
    struct kvl_store *store = seq->store;
    const struct kvl_store_desc *d = &store->desc;
    if (layer < 0 || layer >= d->n_layers || kv_head < 0 || kv_head >= d->n_kv_heads || n < 0)
        return kvl_fail(err, KVL_EINVAL, "drop: %d ranks of lane (%d, %d), want below (%d, %d)", n,
                        layer, kv_head, d->n_layers, d->n_kv_heads);
    struct kvl_table *t = kvl_seq_table(seq, layer, kv_head);
    KVL_TRY(kvl_scratch_slots(&store->scratch, t->n_slots, err));
    for (int32_t i = 0; i < n; i++) {
        if (rank[i] < (i > 0 ? rank[i - 1] + 1 : 0) || rank[i] >= t->n_slots)
            return kvl_fail(err, KVL_EINVAL,
                            "drop, layer %d head %d: entry %d is rank %d of %d, want ascending "
                            "ranks without repeats",
                            layer, kv_head, i, rank[i], t->n_slots);
        store->scratch.ranks[i] = rank[i];
    }
    return keep_drop(store, t, n, err);
}

/* Nothing is evicted before every entry was found: a method that names a dead position loses no other. */
int kvl_seq_keep(struct kvl_seq *seq, int32_t layer, int32_t kv_head, const int32_t *pos, int32_t n,
                 struct kvl_err *err)
{
    struct kvl_store *store = seq->store;
    const struct kvl_store_desc *d = &store->desc;
    if (layer < 0 || layer >= d->n_layers || kv_head < 0 || kv_head >= d->n_kv_heads || n < 0)
        return kvl_fail(err, KVL_EINVAL, "keep: %d positions of lane (%d, %d), want below (%d, %d)",
                        n, layer, kv_head, d->n_layers, d->n_kv_heads);
    struct kvl_table *t = kvl_seq_table(seq, layer, kv_head);
    KVL_TRY(kvl_scratch_slots(&store->scratch, t->n_slots, err));
    int32_t n_gone = 0;
    int32_t n_good = keep_diff(&store->layout, t, pos, n, store->scratch.ranks, &n_gone);
    if (n_good < n) return keep_refuse(t, layer, kv_head, pos, n_good, err);
    return keep_drop(store, t, n_gone, err);
}

/* Whole blocks go from the front of a lane that is in order, so that nothing moves: slots keep the distance from each
 * other that attention of a window counts on. */
void kvl_seq_forget(struct kvl_seq *seq, int32_t layer, int32_t pos, int32_t unit)
{
    const struct kvl_layout *l = &seq->store->layout;
    assert(unit > 0 && unit % l->block_tok == 0);
    for (int32_t h = 0; h < seq->store->desc.n_kv_heads; h++) {
        struct kvl_table *t = kvl_seq_table(seq, layer, h);
        int32_t first = t->max_pos - t->n_slots + 1;
        assert(t->sorted && (t->n_slots == 0 || kvl_table_pos(l, t, 0) == first));
        int32_t n_gone = KVL_MAX(0, KVL_MIN(pos - first, t->n_slots)) / unit * unit;
        int32_t n = n_gone >> l->block_shift, n_left = kvl_blocks_for(l, t->n_slots) - n;
        if (n == 0) continue;
        for (int32_t b = 0; b < n; b++) kvl_block_unref(t->blocks[b]);
        memmove(t->blocks, t->blocks + n, (size_t)n_left * sizeof *t->blocks);
        t->n_slots -= n_gone;
        t->n_sealed = KVL_MAX(0, t->n_sealed - n);
        if (t->n_slots == 0) t->max_pos = -1;
        kvl_table_changed(t, 0, n_left);
    }
}

/* The ranks from the first position >= pos_end on go. */
static struct evict truncate_begin(struct kvl_store *store, struct kvl_table *t, int32_t pos_end)
{
    int32_t n_new = kvl_ranks_below(&store->layout, t, pos_end), n_gone = t->n_slots - n_new;
    for (int32_t i = 0; i < n_gone; i++) store->scratch.ranks[i] = n_new + i;
    return evict_begin(store, t, n_gone);
}

/* Lanes are counted first and cut then: all of them are cut, or none is. */
int kvl_seq_truncate(struct kvl_seq *seq, int32_t pos_end, struct kvl_err *err)
{
    struct kvl_store *store = seq->store;
    int32_t n_lanes = store->desc.n_layers * store->desc.n_kv_heads;
    if (pos_end < 0) return kvl_fail(err, KVL_EINVAL, "truncate to %d, want 0 or more", pos_end);
    if (store->layout.sealed)
        return kvl_fail(err, KVL_EINVAL, "truncate of %s, whose blocks are sealed",
                        kvl_kv_name(store->desc.type).text);
    int32_t need = 0;
    for (int32_t i = 0; i < n_lanes; i++) {
        KVL_TRY(kvl_scratch_slots(&store->scratch, seq->tables[i].n_slots, err));
        struct evict e = truncate_begin(store, &seq->tables[i], pos_end);
        need += evict_need(&e);
        evict_unmark(&e);
    }
    KVL_TRY(kvl_scratch_blocks(&store->scratch, need, err));
    KVL_TRY(kvl_pool_take(&store->pool, need, store->scratch.blocks, err));
    uint8_t **fresh = store->scratch.blocks;
    for (int32_t i = 0; i < n_lanes; i++) {
        struct evict e = truncate_begin(store, &seq->tables[i], pos_end);
        if (e.n_gone > 0) evict_apply(&e, &fresh);
    }
    assert(fresh == store->scratch.blocks + need);
    return kvl_moves_end(store, err);
}
