/* Policies whose keys and values lie in the host tier: what plan asked for, requests of selections,
 * guesses, and what is counted.  The mechanism, replacement and copies are core/kv/tier.c's.
 *
 * Every list of a kv head goes through the cache of its lane: named, dense or everything.  On a device that
 * attends_host nothing is fetched, and there is no cache: attend_host.c.  On the CPU, whose tiers are one memory, all is
 * decided and counted, and nothing is copied: a copy from memory to itself would be time that no such machine needs.  The
 * masked oracle has no tiers: answers do not depend on them.  Keys that a hook reads itself (kvl_read_keys, kvl_attn_weights) are read
 * where they are: it computes on the host.
 *
 * A call, as h2d_calls counts them, is what one layer of one step, or one hook, brings: one gather, from
 * however many lanes.  A hook's is on its way when the hook returns, beside what MAIN is given from then on;
 * attention waits for it where it reads. */

#include "place.h"

#include "head_lists.h"
#include <math.h>

#include <string.h>

/* ---- plan ------------------------------------------------------------------------------- */

int kvl_plan_offload(struct kvl_plan *plan, const struct kvl_offload *o)
{
    struct kvl_plan_private *p = plan->p;
    if (p->offloads) return kvl_fail(plan->err, KVL_EPOLICY, "offloaded twice, want one plan");
    /* Differences of them, and a unit more, stay in 32 bits. */
    enum { MOST = 1 << 30 };
    if (o->keep_first < 0 || o->keep_first > MOST || o->keep_last < !o->context_only ||
        o->keep_last > MOST)
        return kvl_fail(plan->err, KVL_EPOLICY,
                        "keeps the first %d and the last %d on the device, want 0 or more, and at "
                        "least 1, the current token (at most 2^30)",
                        o->keep_first, o->keep_last);
    if (o->origin < 0 || o->origin > MOST)
        return kvl_fail(plan->err, KVL_EPOLICY, "units from position %d on, want 0 to 2^30",
                        o->origin);
    if (o->unit_tok < 1 || o->unit_tok > 1 << 20 || o->cache_tok < 0)
        return kvl_fail(plan->err, KVL_EPOLICY,
                        "units of %d tokens, cache of %d: want 1 to 1048576, and 0 or more",
                        o->unit_tok, o->cache_tok);
    if (o->cache_tok > 0 && o->cache_tok < o->unit_tok)
        return kvl_fail(plan->err, KVL_EPOLICY,
                        "a cache of %d tokens holds no unit of %d, want 0, or %d or more",
                        o->cache_tok, o->unit_tok, o->unit_tok);
    if (o->replace < KVL_REPLACE_LRU || o->replace > KVL_REPLACE_SCORE)
        return kvl_fail(plan->err, KVL_EPOLICY, "replacement %d, want 0 to %d", (int)o->replace,
                        KVL_REPLACE_SCORE);
    p->offload = *o;
    p->offload.layers = NULL;
    if (o->layers) {
        size_t n = (size_t)plan->shape->n_layers;
        /* A copy: the mask of a method is its own, and may be on its stack. */
        p->offload_layers = kvl_alloc(n, 1);
        if (!p->offload_layers) return kvl_fail(plan->err, KVL_ENOMEM, "out of memory for layers");
        memcpy(p->offload_layers, o->layers, n);
        p->offload.layers = p->offload_layers;
    }
    p->offloads = true;
    return KVL_OK;
}

/* ---- sessions ------------------------------------------------------------------------------ */

_Static_assert((int)KVL_REPLACE_LRU == KVL_TIER_LRU && (int)KVL_REPLACE_LFU == KVL_TIER_LFU &&
                   (int)KVL_REPLACE_SCORE == KVL_TIER_SCORE,
               "orders of replacement have the same values");

bool kvl_offloads(const struct kvl_session *s, int32_t layer)
{
    return s->tier && kvl_tier_has(s->tier, layer);
}

bool kvl_fetches(const struct kvl_session *s, int32_t layer)
{
    return kvl_offloads(s, layer) && !s->engine->hosted;
}

bool kvl_reads_copies(const struct kvl_session *s, int32_t layer)
{
    return kvl_fetches(s, layer) && s->engine->dev->discrete;
}

int kvl_offload_attach(struct kvl_session *s, struct kvl_err *err)
{
    const struct kvl_plan_private *p = &s->planned->p;
    if (!p->offloads || s->exec == KVL_EXEC_MASKED) return KVL_OK;
    const struct kvl_offload *o = &p->offload;
    return kvl_tier_create(s->engine->store,
                           &(struct kvl_tier_desc){ .keep_first = o->keep_first,
                                                    .keep_last = o->keep_last,
                                                    .unit_tok = o->unit_tok,
                                                    .origin = o->origin,
                                                    .cache_tok = o->cache_tok,
                                                    .order = (enum kvl_tier_order)o->replace,
                                                    .layers = o->layers },
                           &s->tier, err);
}

/* What the tier counted becomes the session's. */
static void offload_count(struct kvl_session *s)
{
    struct kvl_tier_count *t = &s->tier->count;
    struct kvl_counters *c = &s->count;
    c->h2d_bytes += t->h2d_bytes;
    c->d2h_bytes += t->d2h_bytes;
    /* Lanes of a layer age together, so what one ageing sent counts as one call. */
    c->d2h_calls += t->d2h_bytes > 0;
    c->cache_hits += t->hits;
    c->cache_misses += t->misses;
    c->prefetch_bytes += t->ahead_bytes;
    c->prefetch_wrong_bytes += t->wrong_bytes;
    *t = (struct kvl_tier_count){ 0 };
}

int kvl_offload_age(struct kvl_session *s, int32_t layer, int32_t n_pos, struct kvl_err *err)
{
    if (!kvl_offloads(s, layer)) return KVL_OK;
    int rc = kvl_tier_age(s->tier, s->seq, layer, n_pos);
    offload_count(s);
    return kvl_engine_failed(s->engine, "host tier", rc, err);
}

/* What a prefill left in pinned memory comes back where the policy says what the host has and this is not it, and
 * where the policy evicts: what it keeps is read at every step.  A policy that only selects reads little of a layer,
 * which may stay where it is. */
static int offload_bring(struct kvl_session *s, int32_t layer, struct kvl_err *err)
{
    const struct kvl_policy *p = s->planned->policy;
    if (s->exec == KVL_EXEC_MASKED) return KVL_OK;
    if (kvl_offloads(s, layer))
        return kvl_engine_failed(s->engine, "host tier", kvl_tier_bring(s->tier, s->seq, layer),
                                 err);
    return s->tier || p->score || p->evict ? kvl_seq_to_device(s->seq, layer, err) : KVL_OK;
}

void kvl_host_count(struct kvl_session *s)
{
    s->n_host = 0;
    for (int32_t l = 0; l < s->engine->model->shape.n_layers; l++)
        if (!kvl_offloads(s, l)) s->n_host += kvl_seq_host_slots(s->seq, l);
}

int kvl_offload_begin(struct kvl_session *s, struct kvl_err *err)
{
    bool placed = s->engine->desc.prefill_kv_host;
    if (s->tier && s->planned->p.offload.context_only) s->tier->limit = s->ctx.context_tok;
    for (int32_t l = 0; l < s->engine->model->shape.n_layers; l++) {
        KVL_TRY(kvl_offload_age(s, l, s->n_pos, err));
        if (placed) KVL_TRY(offload_bring(s, l, err));
    }
    if (placed) kvl_host_count(s);
    /* From here on guesses are served and layers can no longer be named. */
    if (s->tier) s->tier->complete = true;
    kvl_offload_account(s);
    return KVL_OK;
}

/* Keys and values of a lane, as they lie. */
static int64_t lane_held(const struct kvl_session *s, int32_t layer, int32_t kv_head)
{
    const struct kvl_lane lane = kvl_seq_lane(s->seq, layer, kv_head);
    const struct kvl_layout *l = lane.layout, *sealed = l->sealed ? l->sealed : l;
    int64_t n_sealed = (int64_t)lane.n_sealed * l->block_tok, n_open = lane.n_slots - n_sealed;
    return n_open * (int64_t)(l->row_bytes[KVL_PART_K] + l->row_bytes[KVL_PART_V]) +
           n_sealed * (int64_t)(sealed->row_bytes[KVL_PART_K] + sealed->row_bytes[KVL_PART_V]);
}

void kvl_offload_account(struct kvl_session *s)
{
    const struct kvl_store_desc *d = kvl_store_desc(s->engine->store);
    struct kvl_counters *c = &s->count;
    int64_t slot = kvl_slot_bytes(s->engine);
    int64_t all = 0, host = s->n_host, places = 0, peak = 0, bytes = 0;
    const bool seals = kvl_kv_seals(d->type);
    for (int32_t l = 0; l < d->n_layers; l++)
        for (int32_t h = 0; h < d->n_kv_heads; h++) {
            all += kvl_seq_len(s->seq, l, h);
            if (seals) bytes += lane_held(s, l, h);
            if (s->tier) host += kvl_tier_host_slots(s->tier, s->seq, l, h);
        }
    if (s->tier) {
        places = s->tier->n_places * (int64_t)kvl_tier_place_bytes(s->tier);
        peak = s->tier->peak_places * (int64_t)kvl_tier_place_bytes(s->tier);
        /* Staging places come and go within a step, so the tier keeps their peak since the last
         * account. */
        s->tier->peak_places = s->tier->n_places;
    }
    c->host_bytes = host * slot;
    if (!seals) bytes = all * slot;
    c->device_bytes = bytes - host * slot + places;
    c->device_peak_bytes = KVL_MAX(c->device_peak_bytes, bytes - host * slot + peak);
}

/* ---- requests --------------------------------------------------------------------------------- */

/* Brings what was wanted; t0 is when the request began. */
static int offload_fetch(struct kvl_session *s, int32_t layer, int32_t kv_head, uint64_t t0)
{
    int32_t n = 0;
    KVL_TRY(kvl_tier_fetch(s->tier, s->seq, layer, kv_head, &n));
    /* The first lane that brings something makes the call; the others of the layer or hook travel
     * with it. */
    if (n > 0 && !s->host.fetched) s->count.h2d_calls++;
    s->host.fetched = s->host.fetched || n > 0;
    offload_count(s);
    uint64_t spent = kvl_now_ns() - t0;
    s->count.fetch_ns += spent;
    /* Taken off the hook's or the selection's time by lap (engine/forward.c). */
    s->engine->fetch_ns += spent;
    return KVL_OK;
}

static int want_list(const struct kvl_head *h, const struct kvl_head_list *it)
{
    struct kvl_tier *t = h->s->tier;
    if (it->run) {
        for (int32_t i = 0; i < it->n_runs; i++)
            KVL_TRY(kvl_tier_want(t, h->layer, h->kv_head, it->run[i].slot, it->run[i].n));
        return KVL_OK;
    }
    if (!it->pos && h->whole) return kvl_tier_want(t, h->layer, h->kv_head, 0, h->live);
    const int32_t *pos;
    int32_t n;
    KVL_TRY(kvl_head_list_expand(h, it, &pos, &n));
    for (int32_t i = 0; i < n; i++) KVL_TRY(kvl_tier_want(t, h->layer, h->kv_head, pos[i], 1));
    return KVL_OK;
}

/* Attention reads the blocks where they lie: the view says where, for the lists that are split. */
static int offload_view(const struct kvl_head *h)
{
    struct kvl_lane view;
    int rc = kvl_tier_host_view(h->s->tier, h->s->seq, h->layer, h->kv_head, &view);
    return rc == KVL_OK ? KVL_OK : kvl_head_list_no_memory(h);
}

/* One request per kv head and step, whatever number of lists it has: a unit that two lists name is one hit or one
 * miss. */
int kvl_offload_request(const struct kvl_head *h)
{
    const struct kvl_sel *sel = h->r->sel;
    int32_t group = kvl_group(&h->e->model->shape);
    if (!kvl_fetches(h->s, h->layer)) return offload_view(h);
    uint64_t t0 = kvl_now_ns();
    int rc = KVL_OK;
    kvl_tier_begin(h->s->tier, h->layer, h->kv_head);
    for (int32_t i = 0; i < sel->n_seg; i++)
        for (int32_t j = 0; rc == KVL_OK && j < (kvl_head_list_split(&sel->seg[i]) ? group : 1);
             j++)
            rc = want_list(h, &h->lists[i][j]);
    if (rc == KVL_OK) rc = offload_fetch(h->s, h->layer, h->kv_head, t0);
    /* What goes wrong here is memory, or a device that is lost: kvl_engine_memory tells them
     * apart. */
    return rc == KVL_OK ? KVL_OK : kvl_head_list_no_memory(h);
}

int kvl_offload_send(struct kvl_session *s)
{
    return s->host.fetched ? kvl_tier_send(s->tier) : KVL_OK;
}

int kvl_offload_await(const struct kvl_head *h)
{
    if (!kvl_fetches(h->s, h->layer)) return KVL_OK;
    int rc = kvl_tier_send(h->s->tier);
    if (rc == KVL_OK) rc = kvl_tier_await(h->s->tier);
    return kvl_engine_failed(h->e, "host tier", rc, h->r->sel->err);
}

/* Slots of n positions; of everything, in the order of the slots. */
static const int32_t *list_slots(const struct kvl_head *h, const struct kvl_head_list *it,
                                 const int32_t **pos)
{
    *pos = it->pos;
    if (it->slot) return it->slot;
    int32_t *found = kvl_arena_get(&h->e->step, 2 * ((size_t)it->n + 1), sizeof *found);
    if (!found) return NULL;
    if (it->pos) {
        kvl_seq_find(h->s->seq, h->layer, h->kv_head, it->pos, it->n, found);
        return found;
    }
    int32_t *at = found + it->n + 1;
    kvl_seq_positions(h->s->seq, h->layer, h->kv_head, at);
    for (int32_t i = 0; i < it->n; i++) found[i] = i;
    *pos = at;
    return found;
}

/* In the order of the list, not of the view: attention weights come back in the order in which the policy named its
 * tokens. */
int kvl_offload_runs(const struct kvl_head *h, const struct kvl_head_list *it,
                     const struct kvl_run **runs, int32_t *n_runs)
{
    const struct kvl_run all = { 0, it->n }, *from = it->run;
    const int32_t *pos = NULL, *slot = NULL;
    int32_t n_from = it->n_runs, unit = h->s->planned->p.offload.unit_tok, m = 0;
    if (!from && !it->pos && h->whole) {
        from = &all;
        n_from = 1;
    }
    if (!from) {
        slot = list_slots(h, it, &pos);
        if (!slot) return kvl_head_list_no_memory(h);
        n_from = it->n;
    }
    /* kvl_tier_map adds n / unit + 3 runs at most for each that it is given. */
    size_t room = (size_t)(it->n / unit) + 3 * (size_t)n_from + 1;
    struct kvl_run *out = kvl_arena_get(&h->e->step, room, sizeof *out);
    if (!out) return kvl_head_list_no_memory(h);
    for (int32_t i = 0; i < n_from; i++) {
        struct kvl_run r = from ? from[i] : (struct kvl_run){ slot[i], 1 };
        m = kvl_tier_map(h->s->tier, h->layer, h->kv_head, from ? r.slot : pos[i], r.slot, r.n, out,
                         m);
    }
    *runs = out;
    *n_runs = m;
    return KVL_OK;
}

/* ---- calls of policies -------------------------------------------------------------------------- */

static int check_lane(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head)
{
    if (layer >= 0 && layer < ctx->shape->n_layers && kv_head >= 0 &&
        kv_head < ctx->shape->n_kv_heads)
        return KVL_OK;
    return kvl_fail(ctx->err, KVL_EPOLICY, "lane (%d, %d), the model has %d x %d", layer, kv_head,
                    ctx->shape->n_layers, ctx->shape->n_kv_heads);
}

int kvl_offload_layers(const struct kvl_pctx *ctx, const uint8_t *layers)
{
    const struct kvl_session *s = ctx->host->session;
    if (!s->planned->p.offloads)
        return kvl_fail(ctx->err, KVL_EPOLICY, "layers for the host tier, but the plan has none");
    if (!s->tier) return KVL_OK;
    if (s->tier->complete)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "layers for the host tier after the context, want open or prefilled");
    const struct kvl_planned *p = s->planned;
    if (!p->seen_as) {
        kvl_tier_layers(s->tier, layers);
        return KVL_OK;
    }
    uint8_t *all;
    /* The tier counts the model's layers; those of a window are never in it. */
    KVL_TRY(kvl_scratch_get(ctx, (size_t)s->engine->model->shape.n_layers, &all));
    for (int32_t l = 0; l < s->engine->model->shape.n_layers; l++)
        all[l] = p->seen_as[l] >= 0 && layers[p->seen_as[l]];
    kvl_tier_layers(s->tier, all);
    return KVL_OK;
}

int kvl_prefetch(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, const int32_t *pos,
                 int32_t n)
{
    struct kvl_session *s = ctx->host->session;
    KVL_TRY(check_lane(ctx, layer, kv_head));
    KVL_TRY(kvl_session_look_at(s, pos, n, sizeof *pos, ctx->err));
    for (int32_t i = 0; i < n; i++)
        if (pos[i] < 0 || pos[i] >= ctx->host->n_visible)
            return kvl_fail(ctx->err, KVL_EPOLICY, "position %d fetched ahead, want 0 to %d",
                            pos[i], ctx->host->n_visible - 1);
    layer = kvl_layer_of(ctx, layer);
    if (!kvl_fetches(s, layer) || !s->tier->complete || n < 1) return KVL_OK;
    uint64_t t0 = kvl_now_ns();
    /* As old as it will be when its turn comes: a layer after this one has no token of a block yet. */
    int32_t n_pos = KVL_MIN(ctx->host->n_visible, s->n_pos + 1);
    int rc = kvl_tier_age(s->tier, s->seq, layer, n_pos);
    /* Refused while the guess of an earlier token waits; the method need not know. */
    if (rc == KVL_OK && !kvl_tier_guess(s->tier, layer, kv_head, ctx->host->n_visible - 1))
        return KVL_OK;
    for (int32_t i = 0; rc == KVL_OK && i < n; i++)
        rc = kvl_tier_want(s->tier, layer, kv_head, pos[i], 1);
    if (rc == KVL_OK) rc = offload_fetch(s, layer, kv_head, t0);
    return rc == KVL_OK ? KVL_OK
                        : kvl_fail(ctx->err, rc, "out of memory to fetch %d tokens ahead", n);
}

int kvl_offload_scores(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                       const float *score, int32_t n)
{
    const struct kvl_session *s = ctx->host->session;
    const struct kvl_plan_private *p = &s->planned->p;
    KVL_TRY(check_lane(ctx, layer, kv_head));
    if (!p->offloads || p->offload.replace != KVL_REPLACE_SCORE)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "scores of units, but the plan has no replacement by score");
    int32_t last = KVL_MAX(ctx->host->n_visible - 1 - p->offload.origin, 0);
    int32_t units = last / p->offload.unit_tok + 1;
    if (n < 0 || n > units)
        return kvl_fail(ctx->err, KVL_EPOLICY, "scores of %d units, want 0 to %d", n, units);
    KVL_TRY(kvl_session_look_at(ctx->host->session, score, n, sizeof *score, ctx->err));
    for (int32_t i = 0; i < n; i++)
        if (!isfinite(score[i]))
            return kvl_fail(ctx->err, KVL_EPOLICY, "score %g of unit %d, want a finite number",
                            (double)score[i], i);
    layer = kvl_layer_of(ctx, layer);
    if (!kvl_offloads(s, layer)) return KVL_OK;
    int rc = kvl_tier_scores(s->tier, layer, kv_head, score, n);
    return rc == KVL_OK ? KVL_OK : kvl_fail(ctx->err, rc, "out of memory for scores of units");
}
