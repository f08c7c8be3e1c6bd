/* Sequences: creation, forks, appending, statistics. */
#include "kv_rows.h"
#include "seal.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

static int32_t seq_lanes(const struct kvl_store *store)
{
    return store->desc.n_layers * store->desc.n_kv_heads;
}

/* The store knows its sequences so that kvl_store_check can recount all references from their tables. */
static void seq_link(struct kvl_store *store, struct kvl_seq *seq)
{
    seq->next = store->seqs;
    if (seq->next) seq->next->prev = seq;
    store->seqs = seq;
    store->n_seqs++;
}

static void seq_unlink(struct kvl_store *store, struct kvl_seq *seq)
{
    if (seq->prev)
        seq->prev->next = seq->next;
    else
        store->seqs = seq->next;
    if (seq->next) seq->next->prev = seq->prev;
    store->n_seqs--;
}

int kvl_seq_create(struct kvl_store *store, struct kvl_seq **out, struct kvl_err *err)
{
    int32_t n_lanes = seq_lanes(store);
    struct kvl_seq *seq = kvl_alloc(1, sizeof *seq);
    struct kvl_table *tables = kvl_alloc((size_t)n_lanes, sizeof *tables);
    if (!seq || !tables) {
        kvl_free(seq);
        kvl_free(tables);
        return kvl_fail(err, KVL_ENOMEM, "KV store: no memory for a sequence of %d lanes", n_lanes);
    }
    for (int32_t i = 0; i < n_lanes; i++)
        tables[i] = (struct kvl_table){ .max_pos = -1, .sorted = true };
    seq->store = store;
    seq->tables = tables;
    seq_link(store, seq);
    *out = seq;
    return KVL_OK;
}

/* Blocks without another reference go back to the pool; those that a fork shares stay. */
static void table_clear(struct kvl_store *store, struct kvl_table *t)
{
    int32_t n_blocks = kvl_blocks_for(&store->layout, t->n_slots);
    for (int32_t b = 0; b < n_blocks; b++) kvl_block_unref(t->blocks[b]);
    kvl_free(t->blocks);
    kvl_free(t->rank_pos);
    kvl_free(t->rank_slot);
}

void kvl_seq_destroy(struct kvl_seq *seq)
{
    if (!seq) return;
    struct kvl_store *store = seq->store;
    for (int32_t i = 0; i < seq_lanes(store); i++) table_clear(store, &seq->tables[i]);
    seq_unlink(store, seq);
    if (seq->links) store->device->free(KVL_PLACE_DEVICE, seq->links);
    kvl_free(seq->tables);
    kvl_free(seq);
}

static int table_reserve(struct kvl_table *t, int32_t n_have, int32_t n_blocks, struct kvl_err *err)
{
    void *blocks = t->blocks;
    int rc = kvl_grow(&blocks, &t->cap_blocks, n_have, n_blocks, sizeof *t->blocks, err);
    t->blocks = blocks;
    return rc;
}

/* `to` is empty; on failure it may hold memory but still no slot. */
static int table_share(struct kvl_store *store, const struct kvl_table *from, struct kvl_table *to,
                       struct kvl_err *err)
{
    const struct kvl_layout *l = &store->layout;
    int32_t n_blocks = kvl_blocks_for(l, from->n_slots);
    KVL_TRY(table_reserve(to, 0, n_blocks, err));
    if (!from->sorted) {
        KVL_TRY(kvl_ranks_prepare(l, to, from->n_slots, err));
        memcpy(to->rank_pos, from->rank_pos, (size_t)from->n_slots * sizeof *to->rank_pos);
        memcpy(to->rank_slot, from->rank_slot, (size_t)from->n_slots * sizeof *to->rank_slot);
    }
    for (int32_t b = 0; b < n_blocks; b++) {
        to->blocks[b] = from->blocks[b];
        kvl_block_ref(from->blocks[b]);
    }
    to->n_slots = from->n_slots;
    to->n_sealed = from->n_sealed;
    to->max_pos = from->max_pos;
    to->sorted = from->sorted;
    /* kvl_links_fork copies the device's table as it is, so what that does not know yet it does not
     * know of the fork either. */
    to->link_lo = from->link_lo;
    to->link_hi = from->link_hi;
    return KVL_OK;
}

/* Whole blocks are shared by reference; the one that may still grow is copied by the first side that writes to it. */
int kvl_seq_fork(const struct kvl_seq *seq, struct kvl_seq **out, struct kvl_err *err)
{
    struct kvl_seq *fork;
    KVL_TRY(kvl_seq_create(seq->store, &fork, err));
    for (int32_t i = 0; i < seq_lanes(seq->store); i++) {
        int rc = table_share(seq->store, &seq->tables[i], &fork->tables[i], err);
        if (rc != KVL_OK) {
            kvl_seq_destroy(fork);
            return rc;
        }
    }
    int rc = kvl_links_fork(seq, fork, err);
    if (rc != KVL_OK) {
        kvl_seq_destroy(fork);
        return rc;
    }
    *out = fork;
    return KVL_OK;
}

/* What kvl_seq_append got, and what its checks found out. */
struct append {
    int32_t n;
    const int32_t *pos;
    const float *part[3]; /* by enum kvl_kv_part */
    bool rounds;          /* where they lie */
    bool ascending;
    int32_t n_fresh; /* blocks taken for it; behind them come those for what it seals */
};

/* Not by subtraction: the difference of two keys may not fit an int. */
static int append_compare(const void *a, const void *b)
{
    int64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* New positions with their slots, ascending by position; `keys` [n]. */
static void append_sort(const struct append *a, int32_t first_slot, int64_t *keys)
{
    /* Position above, slot below: one comparison sorts both. */
    for (int32_t i = 0; i < a->n; i++) keys[i] = (int64_t)a->pos[i] << 32 | (first_slot + i);
    if (!a->ascending) qsort(keys, (size_t)a->n, sizeof *keys, append_compare);
}

/* The scratch array of ranks holds as many keys as it has slots. */
static int64_t *append_keys(struct kvl_scratch *s)
{
    return (int64_t *)(void *)s->ranks;
}

/* Positions follow those of the lane: the usual case, unique without a look. */
static bool append_extends(const struct append *a, const struct kvl_table *t)
{
    return a->ascending && a->pos[0] > t->max_pos;
}

/* Positions that do not extend the lane: of a snapshot or a test, and so rare that a search for each of them is
 * cheap enough. */
static int append_check_unique(struct kvl_seq *seq, int32_t layer, const struct append *a,
                               struct kvl_err *err)
{
    struct kvl_store *store = seq->store;
    KVL_TRY(kvl_scratch_slots(&store->scratch, a->n, err));
    int64_t *keys = append_keys(&store->scratch);
    append_sort(a, 0, keys);
    for (int32_t i = 1; i < a->n; i++)
        if (keys[i] >> 32 == keys[i - 1] >> 32)
            return kvl_fail(err, KVL_EINVAL,
                            "append, layer %d: position %d twice, want unique ones", layer,
                            (int32_t)(keys[i] >> 32));
    for (int32_t h = 0; h < store->desc.n_kv_heads; h++) {
        for (int32_t i = 0; i < a->n; i++) {
            int32_t slot;
            if (kvl_seq_find(seq, layer, h, &a->pos[i], 1, &slot) > 0)
                return kvl_fail(err, KVL_EINVAL,
                                "append, layer %d: position %d is live in head %d already, want "
                                "new ones",
                                layer, a->pos[i], h);
        }
    }
    return KVL_OK;
}

/* The usual append goes on after what every lane holds; that alone needs no look at stored positions. Any other must be
 * looked up, for a position that a lane had twice would be read twice. */
static int append_check(struct kvl_seq *seq, int32_t layer, struct append *a, struct kvl_err *err)
{
    const struct kvl_store_desc *d = &seq->store->desc;
    if (layer < 0 || layer >= d->n_layers || a->n < 0)
        return kvl_fail(err, KVL_EINVAL, "append: %d slots to layer %d, want a layer below %d",
                        a->n, layer, d->n_layers);
    if (d->raw_keys != (a->part[KVL_PART_K_RAW] != NULL))
        return kvl_fail(err, KVL_EINVAL, "append: keys before RoPE are %s, but the store keeps %s",
                        d->raw_keys ? "missing" : "given", d->raw_keys ? "them" : "none");
    a->ascending = true;
    for (int32_t i = 0; i < a->n; i++) {
        if (a->pos[i] < 0)
            return kvl_fail(err, KVL_EINVAL, "append: position %d, want 0 or more", a->pos[i]);
        a->ascending = a->ascending && (i == 0 || a->pos[i] > a->pos[i - 1]);
    }
    bool extends = true;
    for (int32_t h = 0; h < d->n_kv_heads; h++) {
        const struct kvl_table *t = kvl_seq_table(seq, layer, h);
        if (a->n > INT32_MAX - t->n_slots)
            return kvl_fail(err, KVL_EINVAL, "append: %d slots after %d, want at most %d in a lane",
                            a->n, t->n_slots, INT32_MAX);
        extends = extends && (a->n == 0 || append_extends(a, t));
    }
    if (!extends && seq->store->layout.sealed)
        return kvl_fail(err, KVL_EINVAL,
                        "append: positions from %d on do not ascend behind those of layer %d, want "
                        "that of %s",
                        a->pos[0], layer, kvl_kv_name(d->type).text);
    return extends ? KVL_OK : append_check_unique(seq, layer, a, err);
}

/* The last block is not full and another sequence has it, too: writing to it would change what that one reads. */
static bool append_copies(const struct kvl_layout *l, const struct kvl_table *t)
{
    return (t->n_slots & (l->block_tok - 1)) != 0 &&
           kvl_block_shared(t->blocks[t->n_slots >> l->block_shift]);
}

/* Everything that can run short: tables, indexes, blocks. */
static int append_reserve(struct kvl_seq *seq, int32_t layer, struct append *a, struct kvl_err *err)
{
    struct kvl_store *store = seq->store;
    const struct kvl_layout *l = &store->layout;
    int64_t need = 0, seals = 0;
    for (int32_t h = 0; h < store->desc.n_kv_heads; h++) {
        struct kvl_table *t = kvl_seq_table(seq, layer, h);
        int32_t have = kvl_blocks_for(l, t->n_slots), want = kvl_blocks_for(l, t->n_slots + a->n);
        /* One block more where the last one is shared: it is copied before it is written. */
        need += want - have + append_copies(l, t);
        seals += kvl_seal_need(store, t, a->n);
        KVL_TRY(table_reserve(t, have, want, err));
        KVL_TRY(kvl_links_reserve(seq, want, err));
        if (t->sorted && append_extends(a, t)) continue;
        KVL_TRY(kvl_scratch_slots(&store->scratch, a->n, err));
        KVL_TRY(kvl_ranks_prepare(l, t, t->n_slots + a->n, err));
    }
    if (need + seals > INT32_MAX)
        return kvl_fail(err, KVL_ENOMEM, "append: %d slots are too many", a->n);
    KVL_TRY(kvl_scratch_blocks(&store->scratch, (int32_t)(need + seals), err));
    uint8_t **fresh = store->scratch.blocks;
    a->n_fresh = (int32_t)need;
    KVL_TRY(kvl_pool_take(&store->pool, a->n_fresh, fresh, err));
    if (seals == 0) return KVL_OK;
    int rc = kvl_pool_take(&store->sealed, (int32_t)seals, fresh + need, err);
    for (int32_t i = 0; rc != KVL_OK && i < a->n_fresh; i++) kvl_block_unref(fresh[i]);
    return rc;
}

/* Merges the new positions into the index from its end. */
static void append_index(struct kvl_store *store, struct kvl_table *t, const struct append *a)
{
    int64_t *keys = append_keys(&store->scratch);
    append_sort(a, t->n_slots, keys);
    int32_t old = t->n_slots - 1, add = a->n - 1;
    for (int32_t to = old + a->n; add >= 0; to--) {
        bool from_old = old >= 0 && t->rank_pos[old] > (int32_t)(keys[add] >> 32);
        t->rank_pos[to] = from_old ? t->rank_pos[old] : (int32_t)(keys[add] >> 32);
        t->rank_slot[to] = from_old ? t->rank_slot[old] : (int32_t)(keys[add] & INT32_MAX);
        old -= from_old;
        add -= !from_old;
    }
    t->sorted = false;
}

/* What the appended rows of a lane do to the device: a copy of the last block where it is shared, and a span per
 * block, which puts a new one into the lane's table there.  Nothing of the table here changes. */
static void append_spans(struct kvl_seq *seq, int32_t lane, const struct append *a,
                         uint8_t ***fresh, struct kvl_kv_span **span)
{
    struct kvl_store *store = seq->store;
    const struct kvl_layout *l = &store->layout;
    const struct kvl_table *t = &seq->tables[lane];
    const uint8_t **links = seq->links + (size_t)lane * (size_t)seq->cap_links;
    int32_t at = t->n_slots, mask = l->block_tok - 1;
    uint8_t *block = at & mask ? t->blocks[at >> l->block_shift] : NULL;
    if (append_copies(l, t)) {
        kvl_moves_add(store, KVL_MOVES_OWN, **fresh, 0, block, 0, at & mask);
        block = *(*fresh)++;
    }
    for (int32_t i = 0, n; i < a->n; i += n, at += n) {
        int32_t slot = at & mask;
        n = KVL_MIN(l->block_tok - slot, a->n - i);
        if (slot == 0) block = *(*fresh)++;
        *(*span)++ =
            (struct kvl_kv_span){ .data = kvl_block_head(block)->data,
                                  .link = slot == 0 ? links + (at >> l->block_shift) : NULL,
                                  .slot = slot,
                                  .n = n,
                                  .row = i,
                                  .kv_head = lane % store->desc.n_kv_heads };
    }
}

/* Spans of an append: one per block that it touches, and one more where it begins within one. */
static int append_room(struct kvl_store *store, const struct append *a, struct kvl_err *err)
{
    int64_t n = store->desc.n_kv_heads * ((int64_t)kvl_blocks_for(&store->layout, a->n) + 1);
    void *spans = store->spans;
    if (n > INT32_MAX) return kvl_fail(err, KVL_ENOMEM, "append: %d slots are too many", a->n);
    int rc = kvl_grow(&spans, &store->cap_spans, 0, (int32_t)n, sizeof *store->spans, err);
    store->spans = spans;
    return rc;
}

/* Everything that can run short on the device, and all that it writes. */
static int append_put(struct kvl_seq *seq, int32_t layer, const struct append *a,
                      struct kvl_err *err)
{
    struct kvl_store *store = seq->store;
    uint8_t **fresh = store->scratch.blocks;
    KVL_TRY(append_room(store, a, err));
    struct kvl_kv_span *span = store->spans;
    for (int32_t h = 0; h < store->desc.n_kv_heads; h++)
        append_spans(seq, layer * store->desc.n_kv_heads + h, a, &fresh, &span);
    KVL_TRY(kvl_moves_end(store, err));
    int rc = store->device->kv_put(
        &(struct kvl_kv_put_args){ .layout = &store->layout,
                                   .part = { a->part[0], a->part[1], a->part[2] },
                                   .span = store->spans,
                                   .n_spans = (int32_t)(span - store->spans),
                                   .n_kv_heads = store->desc.n_kv_heads,
                                   .rounds = a->rounds });
    return rc == KVL_OK ? rc : kvl_device_fail(store, rc, err);
}

/* Rows i .. i + n - 1 of kv head h into a block from `slot` on. */
static void append_rows(const struct kvl_store *store, const struct append *a, int32_t h, int32_t i,
                        uint8_t *block, int32_t slot, int32_t n)
{
    const struct kvl_layout *l = &store->layout;
    size_t dim = (size_t)l->head_dim, stride = dim * (size_t)store->desc.n_kv_heads;
    for (int part = 0; part < 3 && !store->device; part++) {
        if (l->part_off[part] == SIZE_MAX) continue;
        const float *src = a->part[part] + (size_t)i * stride + (size_t)h * dim;
        uint8_t *dst = block + l->part_off[part] + (size_t)slot * l->row_bytes[part];
        for (int32_t r = 0; r < n; r++, src += stride, dst += l->row_bytes[part])
            kvl_row_put(l->type[part], dst, src, l->head_dim);
    }
    memcpy(kvl_block_pos(l, block) + slot, a->pos + i, (size_t)n * sizeof *a->pos);
}

/* Nothing here can fail: append_reserve has taken all that it needs, so that lanes never differ in length. */
static void append_lane(struct kvl_store *store, struct kvl_table *t, int32_t h,
                        const struct append *a, uint8_t ***fresh)
{
    const struct kvl_layout *l = &store->layout;
    if (!t->sorted || !append_extends(a, t)) append_index(store, t, a);
    if (append_copies(l, t)) {
        int32_t b = t->n_slots >> l->block_shift;
        if (!store->device)
            kvl_block_copy(l, **fresh, 0, t->blocks[b], 0, t->n_slots & (l->block_tok - 1));
        kvl_block_unref(t->blocks[b]);
        t->blocks[b] = *(*fresh)++;
        kvl_table_changed(t, b, b + 1);
    }
    for (int32_t i = 0; i < a->n;) {
        int32_t b = t->n_slots >> l->block_shift, slot = t->n_slots & (l->block_tok - 1);
        int32_t n = KVL_MIN(l->block_tok - slot, a->n - i);
        if (slot == 0) t->blocks[b] = *(*fresh)++; /* as append_spans told the device */
        append_rows(store, a, h, i, t->blocks[b], slot, n);
        t->n_slots += n;
        i += n;
    }
    for (int32_t i = 0; i < a->n; i++) t->max_pos = KVL_MAX(t->max_pos, a->pos[i]);
}

/* In three steps - checks, reservations, writes - of which only the first two may fail: a sequence is either as
 * it was or has all of the rows. */
static int append_run(struct kvl_seq *seq, int32_t layer, struct append *a, struct kvl_err *err)
{
    struct kvl_store *store = seq->store;
    KVL_TRY(append_check(seq, layer, a, err));
    if (a->n == 0) return KVL_OK;
    KVL_TRY(append_reserve(seq, layer, a, err));
    int rc = store->device ? append_put(seq, layer, a, err) : KVL_OK;
    if (rc != KVL_OK) {
        for (int32_t i = 0; i < a->n_fresh; i++) kvl_block_unref(store->scratch.blocks[i]);
        return rc;
    }
    uint8_t **fresh = store->scratch.blocks;
    for (int32_t h = 0; h < store->desc.n_kv_heads; h++)
        append_lane(store, kvl_seq_table(seq, layer, h), h, a, &fresh);
    for (int32_t h = 0; store->layout.sealed && h < store->desc.n_kv_heads; h++)
        kvl_seal_lane(store, kvl_seq_table(seq, layer, h), &fresh);
    return KVL_OK;
}

int kvl_seq_append(struct kvl_seq *seq, int32_t layer, int32_t n, const int32_t *pos,
                   const float *k, const float *k_raw, const float *v, struct kvl_err *err)
{
    struct append a = { .n = n,
                        .pos = pos,
                        .part = { [KVL_PART_K] = k, [KVL_PART_V] = v, [KVL_PART_K_RAW] = k_raw } };
    return append_run(seq, layer, &a, err);
}

int kvl_seq_append_rounding(struct kvl_seq *seq, int32_t layer, int32_t n, const int32_t *pos,
                            float *k, const float *k_raw, float *v, struct kvl_err *err)
{
    const struct kvl_store *store = seq->store;
    struct append a = { .n = n,
                        .pos = pos,
                        .part = { [KVL_PART_K] = k, [KVL_PART_V] = v, [KVL_PART_K_RAW] = k_raw },
                        .rounds = true };
    KVL_TRY(append_run(seq, layer, &a, err));
    if (store->device) return KVL_OK;
    size_t floats = (size_t)n * (size_t)store->desc.n_kv_heads * (size_t)store->desc.head_dim;
    kvl_store_round(store, KVL_PART_K, k, floats);
    kvl_store_round(store, KVL_PART_V, v, floats);
    return KVL_OK;
}

/* Logical bytes are those of live slots, physical ones those of blocks: shared ones count for every sequence
 * that has them, whole ones even where slots are free. */
void kvl_seq_stats(const struct kvl_seq *seq, struct kvl_seq_stats *out)
{
    const struct kvl_store *store = seq->store;
    const struct kvl_layout *l = &store->layout;
    struct kvl_seq_stats s = { 0 };
    for (int32_t i = 0; i < seq_lanes(store); i++) {
        const struct kvl_table *t = &seq->tables[i];
        int32_t n_blocks = kvl_blocks_for(l, t->n_slots);
        for (int32_t b = 0; b < n_blocks; b++) {
            s.n_shared += kvl_block_shared(t->blocks[b]);
            s.physical_bytes += kvl_block_bytes(t->blocks[b]);
        }
        for (int32_t b = 0; b < t->n_sealed; b++)
            s.n_sealed_shared += kvl_block_shared(t->blocks[b]);
        s.n_blocks += n_blocks;
        s.n_sealed += t->n_sealed;
        s.n_slots += t->n_slots;
    }
    s.n_sealed_slots = s.n_sealed * l->block_tok;
    s.logical_bytes = (size_t)(s.n_slots - s.n_sealed_slots) * kvl_layout_slot(l);
    if (l->sealed) s.logical_bytes += (size_t)s.n_sealed_slots * kvl_layout_slot(l->sealed);
    *out = s;
}
