/* Lanes in the host tier: which units the device has, and what attention sees of them. */
#include "tier_impl.h"

#include <assert.h>
#include <string.h>

/* ---- lifecycle ----------------------------------------------------------------------- */

/* Units begin at the origin and go on without a gap, so the first host position is the first unit that does not begin
 * among those that the device keeps. */
int kvl_tier_create(struct kvl_store *store, const struct kvl_tier_desc *desc,
                    struct kvl_tier **out, struct kvl_err *err)
{
    const struct kvl_store_desc *d = &store->desc;
    if (store->layout.sealed)
        return kvl_fail(
            err, KVL_EINVAL,
            "a host tier of %s, which has blocks of two sizes; want a type whose rows stand "
            "alone (f16, q8_0, q4_0 ...)",
            kvl_kv_name(d->type).text);
    struct kvl_tier *t = kvl_alloc(1, sizeof *t);
    if (!t) return kvl_fail(err, KVL_ENOMEM, "no memory for the host tier");
    *t = (struct kvl_tier){ .store = store,
                            .desc = *desc,
                            .limit = INT32_MAX,
                            .n_lanes = d->n_layers * d->n_kv_heads,
                            .n_kv_heads = d->n_kv_heads };
    t->desc.layers = NULL;
    t->lanes = kvl_alloc((size_t)t->n_lanes, sizeof *t->lanes);
    if (!t->lanes) {
        kvl_tier_destroy(t);
        return kvl_fail(err, KVL_ENOMEM, "no memory for the host tier");
    }
    int32_t u = desc->unit_tok, inside = KVL_MAX(desc->keep_first - desc->origin, 0);
    int32_t first = desc->origin + (inside + u - 1) / u * u;
    for (int32_t i = 0; i < t->n_lanes; i++)
        t->lanes[i] =
            (struct kvl_tier_lane){ .on = !desc->layers || desc->layers[i / d->n_kv_heads] != 0,
                                    .first = first,
                                    .end = first,
                                    .guess = -1 };
    *out = t;
    return KVL_OK;
}

uint8_t *kvl_tier_block(struct kvl_tier *t)
{
    uint8_t *block;
    return kvl_pool_take(&t->store->places, 1, &block, NULL) == KVL_OK ? block : NULL;
}

static void rows_free(struct tier_rows *r)
{
    for (int32_t i = 0; i < r->n_blocks; i++) kvl_block_unref(r->block[i]);
    kvl_free(r->place);
    kvl_free(r->block);
}

void kvl_tier_destroy(struct kvl_tier *t)
{
    if (!t) return;
    /* Copies under way write to places that are given back below: what MAIN does with that memory
     * next has to come after them. */
    (void)kvl_tier_await(t);
    kvl_free(t->gather);
    for (int32_t i = 0; t->lanes && i < t->n_lanes; i++) {
        struct kvl_tier_lane *a = &t->lanes[i];
        rows_free(&a->cache);
        rows_free(&a->stage);
        kvl_free(a->place);
        kvl_free(a->score);
        kvl_free(a->wanted);
        kvl_free(a->table);
        kvl_free(a->sent);
        if (a->links) t->store->device->free(KVL_PLACE_DEVICE, a->links);
    }
    for (int32_t i = 0; i < t->n_spare; i++) kvl_block_unref(t->spare[i]);
    kvl_free(t->spare);
    kvl_free(t->victims);
    kvl_free(t->lanes);
    kvl_free(t);
}

bool kvl_tier_has(const struct kvl_tier *t, int32_t layer)
{
    return tier_lane(t, layer, 0)->on;
}

void kvl_tier_layers(struct kvl_tier *t, const uint8_t *layers)
{
    for (int32_t i = 0; i < t->n_lanes; i++) {
        /* Layers can only be named while nothing has aged: what moved would have to come back. */
        assert(t->lanes[i].end == t->lanes[i].first);
        t->lanes[i].on = t->lanes[i].on && layers[i / t->n_kv_heads];
    }
}

static void *copied(const void *from, int32_t n, size_t item)
{
    void *to = kvl_alloc((size_t)KVL_MAX(n, 1), item);
    if (to && n > 0) memcpy(to, from, (size_t)n * item);
    return to;
}

/* Room is made when a block is taken, so that giving one back cannot fail. */
int kvl_tier_spare(struct kvl_tier *t, int32_t n)
{
    void *spare = t->spare;
    KVL_TRY(kvl_grow(&spare, &t->cap_spare, t->n_spare, n, sizeof *t->spare, NULL));
    t->spare = spare;
    return KVL_OK;
}

static int place_copy(const struct kvl_tier *t, uint8_t *to, uint8_t *from)
{
    const struct kvl_layout *l = &t->store->layout;
    const struct kvl_device *device = t->store->device;
    memcpy(kvl_block_pos(l, to), kvl_block_pos(l, from), (size_t)l->block_tok * sizeof(int32_t));
    return device->copy(kvl_block_head(to)->data, kvl_block_head(from)->data, l->data_bytes,
                        KVL_STREAM_MAIN);
}

static int rows_fork(struct kvl_tier *t, const struct tier_rows *from, struct tier_rows *to)
{
    to->place = copied(from->place, from->n, sizeof *to->place);
    to->block = kvl_alloc((size_t)from->n_blocks + 1, sizeof *to->block);
    if (!to->place || !to->block) return KVL_ENOMEM;
    to->n = to->cap = from->n;
    to->cap_blocks = from->n_blocks;
    for (int32_t i = 0; i < from->n_blocks; i++, to->n_blocks++) {
        to->block[i] = kvl_tier_block(t);
        if (!to->block[i]) return KVL_ENOMEM;
        int rc = place_copy(t, to->block[i], from->block[i]);
        if (rc != KVL_OK) {
            to->n_blocks++;
            return rc;
        }
    }
    return KVL_OK;
}

/* Guesses at the next step wait in the cache or in staging, whose blocks are given back one day. */
static int lane_fork(struct kvl_tier *t, const struct kvl_tier_lane *from, struct kvl_tier_lane *to)
{
    assert(from->n_wanted == 0);
    *to = (struct kvl_tier_lane){ .on = from->on,
                                  .first = from->first,
                                  .end = from->end,
                                  .cap_units = from->cap_units,
                                  .n_ahead = from->n_ahead,
                                  .guess = from->guess,
                                  .clock = from->clock };
    to->place = copied(from->place, from->cap_units, sizeof *to->place);
    if (!to->place) return KVL_ENOMEM;
    if (from->score) {
        to->score = copied(from->score, from->cap_units, sizeof *to->score);
        if (!to->score) return KVL_ENOMEM;
    }
    KVL_TRY(rows_fork(t, &from->cache, &to->cache));
    t->n_blocks += from->stage.n_blocks;
    return rows_fork(t, &from->stage, &to->stage);
}

int kvl_tier_await(struct kvl_tier *t)
{
    if (!t->copying) return KVL_OK;
    t->copying = false;
    t->n_sends = 0;
    return t->store->device->order(KVL_STREAM_COPY, KVL_STREAM_MAIN);
}

/* A fork has places of its own: cached copies are part of what a step finds, and two sessions that shared them would
 * count each other's hits.  Copies that are still under way on the copy stream must have landed before they are copied
 * again. */
int kvl_tier_fork(const struct kvl_tier *from, struct kvl_tier **out)
{
    struct kvl_tier *t;
    KVL_TRY(kvl_tier_create(from->store, &from->desc, &t, NULL));
    assert(from->n_gather == 0);
    int rc = from->copying ? from->store->device->order(KVL_STREAM_COPY, KVL_STREAM_MAIN) : KVL_OK;
    for (int32_t i = 0; rc == KVL_OK && i < t->n_lanes; i++)
        rc = lane_fork(t, &from->lanes[i], &t->lanes[i]);
    if (rc == KVL_OK) rc = kvl_tier_spare(t, t->n_blocks);
    if (rc != KVL_OK) {
        kvl_tier_destroy(t);
        return rc;
    }
    t->complete = from->complete;
    t->limit = from->limit;
    t->count = from->count;
    t->n_places = t->peak_places = from->n_places;
    *out = t;
    return KVL_OK;
}

/* ---- ages ------------------------------------------------------------------------------ */

int kvl_tier_units(const struct kvl_tier *t, struct kvl_tier_lane *a, int32_t n)
{
    if (n <= a->cap_units) return KVL_OK;
    int32_t have = a->cap_units, cap = have, cap_score = have;
    void *place = a->place, *score = a->score;
    KVL_TRY(kvl_grow(&place, &cap, have, n, sizeof *a->place, NULL));
    a->place = place;
    if (t->desc.order == KVL_TIER_SCORE) {
        KVL_TRY(kvl_grow(&score, &cap_score, have, n, sizeof *a->score, NULL));
        a->score = score;
        memset(a->score + have, 0, (size_t)(cap_score - have) * sizeof *a->score);
    }
    for (int32_t i = have; i < cap; i++) a->place[i] = TIER_ABSENT;
    a->cap_units = cap;
    return KVL_OK;
}

/* Blocks *low .. *end - 1 of a lane in order hold host units alone; none of another. */
static void host_blocks(const struct kvl_tier *t, const struct kvl_tier_lane *a,
                        const struct kvl_table *table, int32_t *low, int32_t *end)
{
    const struct kvl_layout *l = &t->store->layout;
    *low = *end = 0;
    if (!table->sorted || a->first == a->end) return;
    *low = kvl_blocks_for(l, kvl_ranks_below(l, table, a->first));
    *end = kvl_ranks_below(l, table, a->end) >> l->block_shift;
}

/* From the youngest block on to those that moved before. */
static int age_lane(struct kvl_tier *t, const struct kvl_tier_lane *a, struct kvl_table *table)
{
    int32_t low, end;
    if (!t->store->device) return KVL_OK;
    host_blocks(t, a, table, &low, &end);
    int32_t first = end;
    while (first > low && !kvl_block_of(&t->store->host, table->blocks[first - 1])) first--;
    return kvl_table_move(t->store, table, first, end, &t->store->host, NULL);
}

/* Blocks are counted as moved when their positions age, whether or not they share a block with younger ones: bytes
 * are those of the policy's plan, not of the layout. */
int kvl_tier_age(struct kvl_tier *t, const struct kvl_seq *seq, int32_t layer, int32_t n_pos)
{
    const struct kvl_layout *l = &t->store->layout;
    int32_t u = t->desc.unit_tok, origin = t->desc.origin;
    int32_t n_units = KVL_MAX(KVL_MIN(n_pos, t->limit) - t->desc.keep_last - origin, 0) / u;
    int32_t end = origin + n_units * u;
    for (int32_t h = 0; h < t->n_kv_heads; h++) {
        struct kvl_tier_lane *a = tier_lane(t, layer, h);
        if (!a->on || end <= a->end) continue;
        KVL_TRY(kvl_tier_units(t, a, n_units));
        struct kvl_table *table = kvl_seq_table(seq, layer, h);
        int32_t n = kvl_ranks_below(l, table, end) - kvl_ranks_below(l, table, a->end);
        t->count.d2h_bytes += n * tier_slot_bytes(t);
        a->end = end;
        KVL_TRY(age_lane(t, a, table));
    }
    return KVL_OK;
}

/* Blocks from low to end hold host units alone and stay: the rest of the lane comes to the device, where attention of
 * the tier expects it. */
int kvl_tier_bring(struct kvl_tier *t, const struct kvl_seq *seq, int32_t layer)
{
    struct kvl_store *store = t->store;
    const struct kvl_layout *l = &store->layout;
    for (int32_t h = 0; store->device && h < t->n_kv_heads; h++) {
        const struct kvl_tier_lane *a = tier_lane(t, layer, h);
        struct kvl_table *table = kvl_seq_table(seq, layer, h);
        int32_t low = kvl_blocks_for(l, kvl_ranks_below(l, table, a->first));
        int32_t end = KVL_MAX(low, kvl_ranks_below(l, table, a->end) >> l->block_shift);
        int32_t n = kvl_blocks_for(l, table->n_slots);
        KVL_TRY(kvl_table_move(store, table, 0, low, &store->pool, NULL));
        KVL_TRY(kvl_table_move(store, table, end, n, &store->pool, NULL));
    }
    return KVL_OK;
}

int32_t kvl_tier_host_slots(const struct kvl_tier *t, const struct kvl_seq *seq, int32_t layer,
                            int32_t kv_head)
{
    const struct kvl_layout *l = &t->store->layout;
    const struct kvl_tier_lane *a = tier_lane(t, layer, kv_head);
    const struct kvl_table *table = kvl_seq_table(seq, layer, kv_head);
    if (!a->on || a->end == a->first) return 0;
    return kvl_ranks_below(l, table, a->end) - kvl_ranks_below(l, table, a->first);
}

size_t kvl_tier_place_bytes(const struct kvl_tier *t)
{
    return (size_t)t->desc.unit_tok * (size_t)tier_slot_bytes(t);
}

/* ---- what attention sees ------------------------------------------------------------------------ */

static void table_add(struct kvl_tier_lane *a, uint8_t *const *block, int32_t n)
{
    if (n > 0) memcpy(a->table + a->n_table, block, (size_t)n * sizeof *block);
    a->n_table += n;
}

/* In a lane that holds everything, slots are positions, and the blocks of the host stay out. */
static int view_build(const struct kvl_tier *t, const struct kvl_seq *seq, int32_t lane)
{
    struct kvl_tier_lane *a = &t->lanes[lane];
    const struct kvl_layout *l = &t->store->layout;
    const struct kvl_table *table = &seq->tables[lane];
    int32_t n = kvl_blocks_for(l, table->n_slots), head = n, tail = n;
    if (a->end > a->first && table->sorted && table->max_pos == table->n_slots - 1) {
        head = KVL_MIN(n, kvl_blocks_for(l, a->first));
        tail = KVL_MIN(n, a->end >> l->block_shift);
    }
    void *room = a->table;
    int32_t need = a->cache.n_blocks + a->stage.n_blocks + head + n - tail;
    KVL_TRY(kvl_grow(&room, &a->cap_table, 0, need, sizeof *a->table, NULL));
    a->table = room;
    a->n_table = 0;
    table_add(a, a->cache.block, a->cache.n_blocks);
    table_add(a, a->stage.block, a->stage.n_blocks);
    /* Slots before the host's part keep their distance from each other, and so do those after it:
     * one shift serves each side. */
    a->shift[0] = a->n_table << l->block_shift;
    table_add(a, table->blocks, head);
    a->shift[1] = (a->n_table - tail) * l->block_tok;
    table_add(a, table->blocks + tail, n - tail);
    return KVL_OK;
}

/* New memory knows no block: with n_sent 0 all of them are sent again. */
static int links_room(const struct kvl_tier *t, struct kvl_tier_lane *a)
{
    const struct kvl_device *device = t->store->device;
    if (a->n_table <= a->cap_links) return KVL_OK;
    int32_t cap = a->cap_table;
    const uint8_t **links = device->alloc(KVL_PLACE_DEVICE, (size_t)cap, sizeof *links);
    if (!links) return device->error()[0] ? KVL_EDEVICE : KVL_ENOMEM;
    if (a->links) device->free(KVL_PLACE_DEVICE, a->links);
    a->links = links;
    a->cap_links = cap;
    a->n_sent = 0;
    return KVL_OK;
}

static int sent_room(struct kvl_tier_lane *a)
{
    void *sent = a->sent;
    KVL_TRY(kvl_grow(&sent, &a->cap_sent, a->n_sent, a->n_table, sizeof *a->sent, NULL));
    a->sent = sent;
    return KVL_OK;
}

/* From the first block to the last one that are others than before: places seldom are. */
static int view_send(struct kvl_tier *t, int32_t lane)
{
    struct kvl_tier_lane *a = &t->lanes[lane];
    int32_t first = a->n_table, end = 0;
    KVL_TRY(sent_room(a));
    KVL_TRY(links_room(t, a));
    for (int32_t b = 0; b < a->n_table; b++) {
        const uint8_t *data = kvl_block_head(a->table[b])->data;
        if (b < a->n_sent && a->sent[b] == data) continue;
        a->sent[b] = data;
        first = KVL_MIN(first, b);
        end = b + 1;
    }
    a->n_sent = KVL_MAX(a->n_sent, a->n_table);
    if (first >= end) return KVL_OK;
    return t->store->device->copy(a->links + first, a->sent + first,
                                  (size_t)(end - first) * sizeof *a->sent, KVL_STREAM_MAIN);
}

int kvl_tier_show(struct kvl_tier *t, const struct kvl_seq *seq, int32_t lane)
{
    KVL_TRY(view_build(t, seq, lane));
    return view_send(t, lane);
}

/* In the view, places of the cache come first, then those of staging, then the sequence's own blocks with the host's cut
 * out: below `first` and from `end` on slots are only shifted, in between they are where the unit's copy lies.  Runs that
 * meet are joined, since attention takes runs. */
int32_t kvl_tier_map(const struct kvl_tier *t, int32_t layer, int32_t kv_head, int32_t pos,
                     int32_t slot, int32_t n, struct kvl_run *out, int32_t m)
{
    const struct kvl_tier_lane *a = tier_lane(t, layer, kv_head);
    const struct kvl_layout *l = &t->store->layout;
    int32_t u = t->desc.unit_tok;
    for (int32_t len; n > 0; pos += len, slot += len, n -= len) {
        int32_t to;
        if (pos < a->first || pos >= a->end) {
            len = pos < a->first ? KVL_MIN(n, a->first - pos) : n;
            to = slot + a->shift[pos >= a->end];
        } else {
            int32_t unit = (pos - t->desc.origin) / u, in_unit = (pos - t->desc.origin) % u;
            int32_t place = a->place[unit];
            assert(place >= 0);
            len = KVL_MIN(n, u - in_unit);
            to = place < TIER_STAGED
                     ? place * u
                     : (a->cache.n_blocks << l->block_shift) + (place - TIER_STAGED) * u;
            to += in_unit;
        }
        if (m > 0 && out[m - 1].slot + out[m - 1].n == to)
            out[m - 1].n += len;
        else
            out[m++] = (struct kvl_run){ to, len };
    }
    return m;
}

struct kvl_lane kvl_tier_view(const struct kvl_tier *t, int32_t layer, int32_t kv_head)
{
    const struct kvl_tier_lane *a = tier_lane(t, layer, kv_head);
    const struct kvl_layout *l = &t->store->layout;
    return (struct kvl_lane){ .layout = l,
                              .blocks = (const uint8_t *const *)a->table,
                              .data = a->links,
                              .n_slots = a->n_table << l->block_shift };
}

int kvl_tier_host_view(struct kvl_tier *t, const struct kvl_seq *seq, int32_t layer,
                       int32_t kv_head, struct kvl_lane *out)
{
    struct kvl_tier_lane *a = tier_lane(t, layer, kv_head);
    const struct kvl_store *store = t->store;
    const struct kvl_table *table = kvl_seq_table(seq, layer, kv_head);
    int32_t n = kvl_blocks_for(&store->layout, table->n_slots);
    void *room = a->table;
    KVL_TRY(kvl_grow(&room, &a->cap_table, 0, n, sizeof *a->table, NULL));
    a->table = room;
    a->n_table = n;
    /* On the CPU all blocks lie alike, so which ones would be the host's is worked out once per
     * request. */
    if (!store->device) host_blocks(t, a, table, &a->host_low, &a->host_end);
    *out = (struct kvl_lane){ .layout = &store->layout,
                              .blocks = (const uint8_t *const *)a->table,
                              .n_slots = table->n_slots,
                              .sorted = table->sorted };
    return KVL_OK;
}

/* On a device where blocks are; elsewhere where they would be. */
bool kvl_tier_host_block(struct kvl_tier *t, const struct kvl_seq *seq, int32_t layer,
                         int32_t kv_head, int32_t b)
{
    struct kvl_tier_lane *a = tier_lane(t, layer, kv_head);
    uint8_t *block = kvl_seq_table(seq, layer, kv_head)->blocks[b];
    bool host = t->store->device ? kvl_block_of(&t->store->host, block)
                                 : b >= a->host_low && b < a->host_end;
    if (host) a->table[b] = kvl_block_head(block)->data;
    return host;
}

void kvl_tier_settle(struct kvl_tier *t, int32_t layer)
{
    for (int32_t h = 0; h < t->n_kv_heads; h++) {
        struct kvl_tier_lane *a = tier_lane(t, layer, h);
        struct tier_rows *r = &a->stage;
        for (int32_t i = 0; i < r->n; i++) a->place[r->place[i].unit] = TIER_ABSENT;
        /* The last one is taken first. */
        for (int32_t i = r->n_blocks; i-- > 0;) t->spare[t->n_spare++] = r->block[i];
        t->n_places -= r->n;
        r->n = r->n_blocks = 0;
    }
}
