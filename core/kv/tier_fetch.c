/* Requests to the host tier: which units come to the device, in whose place, and their copies. */
#include "tier_impl.h"

#include <assert.h>
#include <string.h>

/* ---- requests ---------------------------------------------------------------------------- */

static struct tier_place *place_at(const struct kvl_tier_lane *a, int32_t place)
{
    return place < TIER_STAGED ? &a->cache.place[place] : &a->stage.place[place - TIER_STAGED];
}

void kvl_tier_begin(struct kvl_tier *t, int32_t layer, int32_t kv_head)
{
    struct kvl_tier_lane *a = tier_lane(t, layer, kv_head);
    a->clock++;
    a->ahead = false;
    a->guess = -1;
}

bool kvl_tier_guess(struct kvl_tier *t, int32_t layer, int32_t kv_head, int32_t pos)
{
    struct kvl_tier_lane *a = tier_lane(t, layer, kv_head);
    if (a->guess >= 0 && a->guess != pos) return false;
    a->clock++;
    a->ahead = true;
    a->guess = pos;
    return true;
}

/* What is here already is a hit of the request that names it; of a guess it is none, since nothing reads it yet.  Both
 * renew the stamp: a unit of this clock is no victim of the units that come beside it.  A unit that is not here is
 * marked as wanted, so that a list that names it twice brings it once. */
static int want_unit(struct kvl_tier *t, struct kvl_tier_lane *a, int32_t unit)
{
    int32_t place = a->place[unit];
    if (place == TIER_WANTED) return KVL_OK;
    if (place != TIER_ABSENT) {
        struct tier_place *p = place_at(a, place);
        if (p->stamp == a->clock) return KVL_OK;
        p->stamp = a->clock;
        if (a->ahead) return KVL_OK;
        p->uses++;
        t->count.hits++;
        return KVL_OK;
    }
    if (a->n_wanted == a->cap_wanted) {
        void *wanted = a->wanted;
        KVL_TRY(kvl_grow(&wanted, &a->cap_wanted, a->n_wanted, a->n_wanted + 1, sizeof *a->wanted,
                         NULL));
        a->wanted = wanted;
    }
    a->wanted[a->n_wanted++] = unit;
    a->place[unit] = TIER_WANTED;
    return KVL_OK;
}

int kvl_tier_want(struct kvl_tier *t, int32_t layer, int32_t kv_head, int32_t first, int32_t n)
{
    struct kvl_tier_lane *a = tier_lane(t, layer, kv_head);
    int32_t u = t->desc.unit_tok, origin = t->desc.origin, last = KVL_MIN(first + n, a->end);
    first = KVL_MAX(first, a->first) - origin;
    last -= origin;
    for (int32_t unit = first / u; first < last && unit <= (last - 1) / u; unit++)
        KVL_TRY(want_unit(t, a, unit));
    return KVL_OK;
}

int kvl_tier_scores(struct kvl_tier *t, int32_t layer, int32_t kv_head, const float *score,
                    int32_t n)
{
    struct kvl_tier_lane *a = tier_lane(t, layer, kv_head);
    if (t->desc.order != KVL_TIER_SCORE || n == 0) return KVL_OK;
    KVL_TRY(kvl_tier_units(t, a, n));
    memcpy(a->score, score, (size_t)n * sizeof *score);
    return KVL_OK;
}

/* Guesses that the request did not name were wrong, whatever becomes of them. */
static void judge_guesses(struct kvl_tier *t, struct kvl_tier_lane *a)
{
    struct tier_rows *rows[] = { &a->cache, &a->stage };
    for (int i = 0; i < 2 && a->n_ahead > 0; i++)
        for (int32_t j = 0; j < rows[i]->n; j++) {
            struct tier_place *p = &rows[i]->place[j];
            if (p->ahead && p->stamp != a->clock)
                t->count.wrong_bytes += p->n_slots * tier_slot_bytes(t);
            p->ahead = false;
        }
    a->n_ahead = 0;
}

/* ---- replacement --------------------------------------------------------------------------- */

/* Place x goes before place y. */
static bool leaves_before(const struct kvl_tier *t, const struct kvl_tier_lane *a, int32_t x,
                          int32_t y)
{
    const struct tier_place *p = &a->cache.place[x], *q = &a->cache.place[y];
    if (t->desc.order == KVL_TIER_LFU && p->uses != q->uses) return p->uses < q->uses;
    if (t->desc.order == KVL_TIER_SCORE && a->score[p->unit] != a->score[q->unit])
        return a->score[p->unit] < a->score[q->unit];
    return p->stamp != q->stamp ? p->stamp < q->stamp : p->unit < q->unit;
}

/* The victims are a heap; the next one is at its root. */
static void victims_sift(struct kvl_tier *t, const struct kvl_tier_lane *a, int32_t i)
{
    for (;;) {
        int32_t child = 2 * i + 1, *v = t->victims;
        if (child >= t->n_victims) return;
        if (child + 1 < t->n_victims && leaves_before(t, a, v[child + 1], v[child])) child++;
        if (!leaves_before(t, a, v[child], v[i])) return;
        int32_t x = v[i];
        v[i] = v[child];
        v[child] = x;
        i = child;
    }
}

/* Places of the cache that the request does not name, and no guess waits in while another comes.  n_come units come:
 * where they take all of these, the order decides nothing, and places that follow each other make long copies. */
static int victims_find(struct kvl_tier *t, const struct kvl_tier_lane *a, int32_t n_come)
{
    void *victims = t->victims;
    KVL_TRY(kvl_grow(&victims, &t->cap_victims, 0, a->cache.n, sizeof *t->victims, NULL));
    t->victims = victims;
    t->n_victims = 0;
    for (int32_t i = a->cache.n - 1; i >= 0; i--)
        if (a->cache.place[i].stamp != a->clock && !a->cache.place[i].ahead)
            t->victims[t->n_victims++] = i;
    t->ordered = t->n_victims > n_come;
    for (int32_t i = t->n_victims / 2 - 1; t->ordered && i >= 0; i--) victims_sift(t, a, i);
    return KVL_OK;
}

static int32_t victims_pop(struct kvl_tier *t, const struct kvl_tier_lane *a)
{
    if (!t->ordered) return t->victims[--t->n_victims];
    int32_t first = t->victims[0];
    t->victims[0] = t->victims[--t->n_victims];
    victims_sift(t, a, 0);
    return first;
}

/* ---- room ------------------------------------------------------------------------------------ */

/* There is always room to give a block back. */
static uint8_t *block_take(struct kvl_tier *t)
{
    if (t->n_spare > 0) return t->spare[--t->n_spare];
    if (kvl_tier_spare(t, t->n_blocks + 1) != KVL_OK) return NULL;
    uint8_t *block = kvl_tier_block(t);
    t->n_blocks += block != NULL;
    return block;
}

/* Room for one more place, with its blocks where there are any. */
static int rows_room(struct kvl_tier *t, struct tier_rows *r)
{
    int64_t slots = ((int64_t)r->n + 1) * t->desc.unit_tok;
    if (slots > INT32_MAX / 4) return KVL_ENOMEM;
    int32_t need = t->store->device ? kvl_blocks_for(&t->store->layout, (int32_t)slots) : 0;
    void *place = r->place, *block = r->block;
    if (r->n < r->cap && r->n_blocks >= need) return KVL_OK;
    KVL_TRY(kvl_grow(&place, &r->cap, r->n, r->n + 1, sizeof *r->place, NULL));
    r->place = place;
    KVL_TRY(kvl_grow(&block, &r->cap_blocks, r->n_blocks, need, sizeof *r->block, NULL));
    r->block = block;
    for (; r->n_blocks < need; r->n_blocks++) {
        r->block[r->n_blocks] = block_take(t);
        if (!r->block[r->n_blocks]) return KVL_ENOMEM;
    }
    return KVL_OK;
}

static int rows_add(struct kvl_tier *t, struct tier_rows *r, int32_t *out)
{
    KVL_TRY(rows_room(t, r));
    *out = r->n++;
    t->n_places++;
    t->peak_places = KVL_MAX(t->peak_places, t->n_places);
    return KVL_OK;
}

/* Where the next of n_come units of a request goes: *found says that victims_find has run. */
static int room_find(struct kvl_tier *t, struct kvl_tier_lane *a, int32_t n_come, bool *found,
                     int32_t *out)
{
    if (a->cache.n < t->desc.cache_tok / t->desc.unit_tok) return rows_add(t, &a->cache, out);
    if (!*found) KVL_TRY(victims_find(t, a, n_come));
    *found = true;
    if (t->n_victims > 0) {
        *out = victims_pop(t, a);
        a->place[a->cache.place[*out].unit] = TIER_ABSENT;
        return KVL_OK;
    }
    KVL_TRY(rows_add(t, &a->stage, out));
    *out += TIER_STAGED;
    return KVL_OK;
}

/* ---- copies ----------------------------------------------------------------------------------- */

/* The stream of copies may not write to places that attention still reads. */
int kvl_tier_send(struct kvl_tier *t)
{
    const struct kvl_device *device = t->store->device;
    if (t->n_gather == 0) return KVL_OK;
    int32_t n = t->n_gather;
    t->n_gather = t->n_gather_slots = 0;
    t->n_sends++;
    t->copying = true;
    KVL_TRY(device->order(KVL_STREAM_MAIN, KVL_STREAM_COPY));
    return device->kv_gather(
        &(struct kvl_kv_move_args){ .layout = &t->store->layout, .move = t->gather, .n_moves = n });
}

static int gather_room(struct kvl_tier *t)
{
    void *gather = t->gather;
    if (t->n_gather == TIER_GATHER) KVL_TRY(kvl_tier_send(t));
    KVL_TRY(
        kvl_grow(&gather, &t->cap_gather, t->n_gather, t->n_gather + 1, sizeof *t->gather, NULL));
    t->gather = gather;
    return KVL_OK;
}

/* The move before goes on. */
static bool gather_extends(const struct kvl_tier *t, const struct kvl_kv_move *m)
{
    if (t->n_gather == 0) return false;
    const struct kvl_kv_move *last = &t->gather[t->n_gather - 1];
    return last->to == m->to && last->from == m->from && last->to_slot + last->n == m->to_slot &&
           last->from_slot + last->n == m->from_slot;
}

/* Only the head of a block of the host is touched, which is far away: it has positions pos .. pos +
 * n - 1. */
static int copy_run(struct kvl_tier *t, uint8_t *dst, int32_t to, uint8_t *src, int32_t from,
                    int32_t pos, int32_t n)
{
    const struct kvl_layout *l = &t->store->layout;
    for (int32_t i = 0; i < n; i++) kvl_block_pos(l, dst)[to + i] = pos + i;
    const struct kvl_kv_move move = { .to = kvl_block_head(dst)->data,
                                      .from = kvl_block_head(src)->data,
                                      .to_slot = to,
                                      .from_slot = from,
                                      .n = n,
                                      .at = t->n_gather_slots };
    if (gather_extends(t, &move)) {
        t->gather[t->n_gather - 1].n += n;
    } else {
        KVL_TRY(gather_room(t));
        t->gather[t->n_gather++] = move;
    }
    t->n_gather_slots += n;
    return KVL_OK;
}

/* Slots from .. from + n - 1 of a sequence, with positions pos and up.  On the CPU they are where attention reads them. */
static int copy_slots(struct kvl_tier *t, uint8_t *const *dst, int32_t to, uint8_t *const *src,
                      int32_t from, int32_t pos, int32_t n)
{
    const struct kvl_layout *l = &t->store->layout;
    int32_t mask = l->block_tok - 1;
    if (!t->store->device) return KVL_OK;
    for (int32_t m; n > 0; to += m, from += m, pos += m, n -= m) {
        m = KVL_MIN(n, l->block_tok - KVL_MAX(to & mask, from & mask));
        KVL_TRY(copy_run(t, dst[to >> l->block_shift], to & mask, src[from >> l->block_shift],
                         from & mask, pos, m));
    }
    return KVL_OK;
}

/* Live slots of a unit go to dst, from slot `to` on, each at its distance from the unit's first
 * position.  *n_live: how many there are. */
static int tier_copy(struct kvl_tier *t, const struct kvl_seq *seq, int32_t lane, int32_t unit,
                     uint8_t *const *dst, int32_t to, int32_t *n_live)
{
    enum { STEP = 64 };
    const struct kvl_table *table = &seq->tables[lane];
    int32_t u = t->desc.unit_tok, total = 0, pos[STEP], slot[STEP];
    int32_t first = t->desc.origin + unit * u;
    if (table->sorted && table->max_pos == table->n_slots - 1) { /* slots are positions */
        *n_live = KVL_MIN(u, table->n_slots - first);
        return copy_slots(t, dst, to, table->blocks, first, first, *n_live);
    }
    for (int32_t at = 0; at < u; at += STEP) {
        int32_t n = KVL_MIN(STEP, u - at);
        for (int32_t i = 0; i < n; i++) pos[i] = first + at + i;
        total += kvl_seq_find(seq, lane / t->n_kv_heads, lane % t->n_kv_heads, pos, n, slot);
        for (int32_t i = 0, m; i < n; i += m) {
            for (m = 1; slot[i] >= 0 && i + m < n && slot[i + m] == slot[i] + m;) m++;
            if (slot[i] >= 0)
                KVL_TRY(copy_slots(t, dst, to + at + i, table->blocks, slot[i], pos[i], m));
        }
    }
    *n_live = total;
    return KVL_OK;
}

/* A guess leaves its mark on the place (`ahead`) until the lane's next request says whether it was right. */
static int bring_unit(struct kvl_tier *t, const struct kvl_seq *seq, int32_t lane, int32_t unit,
                      int32_t place)
{
    struct kvl_tier_lane *a = &t->lanes[lane];
    struct tier_rows *r = place < TIER_STAGED ? &a->cache : &a->stage;
    int32_t i = place < TIER_STAGED ? place : place - TIER_STAGED;
    int32_t n;
    KVL_TRY(tier_copy(t, seq, lane, unit, r->block, i * t->desc.unit_tok, &n));
    r->place[i] = (struct tier_place){
        .unit = unit, .n_slots = n, .ahead = a->ahead, .stamp = a->clock, .uses = !a->ahead
    };
    a->place[unit] = place;
    a->n_ahead += a->ahead;
    t->count.h2d_bytes += n * tier_slot_bytes(t);
    if (a->ahead)
        t->count.ahead_bytes += n * tier_slot_bytes(t);
    else
        t->count.misses++;
    return KVL_OK;
}

/* ---- fetching ------------------------------------------------------------------------------- */

/* All of a request is wanted before its first unit is fetched: only then is it known which places of the cache the
 * request itself does not need.  A gather costs some microseconds however little it moves: what is little waits for
 * the lanes that follow, up to a bound that doubles with every send. */
int kvl_tier_fetch(struct kvl_tier *t, const struct kvl_seq *seq, int32_t layer, int32_t kv_head,
                   int32_t *n_units)
{
    struct kvl_tier_lane *a = tier_lane(t, layer, kv_head);
    int32_t lane = layer * t->n_kv_heads + kv_head, place;
    bool found = false;
    if (!a->ahead) judge_guesses(t, a);
    for (int32_t i = 0; i < a->n_wanted; i++) {
        KVL_TRY(room_find(t, a, a->n_wanted - i, &found, &place));
        KVL_TRY(bring_unit(t, seq, lane, a->wanted[i], place));
    }
    *n_units = a->n_wanted;
    a->n_wanted = 0;
    if (a->ahead) return KVL_OK;
    if (!t->store->device) return KVL_OK;
    KVL_TRY(kvl_tier_show(t, seq, lane));
    int64_t enough = (int64_t)TIER_SEND << KVL_MIN(t->n_sends, 8);
    return t->n_gather_slots * tier_slot_bytes(t) < enough ? KVL_OK : kvl_tier_send(t);
}
