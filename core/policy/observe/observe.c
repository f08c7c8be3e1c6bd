/* Observers: what a dense prefill keeps so that any policy can be scored afterwards.
 *
 * KVL_OBS_WINDOW keeps only the last W queries of each layer and their log-sum-exp.  The W x n strip
 * of probabilities is computed when a policy asks, from these and the stored keys, and kept: policies
 * and budgets that start from the same prefill share it.  Extending the context by the question moves
 * the window on.
 *
 * KVL_OBS_COLUMNS and KVL_OBS_LOGITS need every query, so their sums grow with the prefill: after the
 * attention of a chunk, whose log-sum-exp is kept, a second pass adds what its queries give to every
 * token.  A fork that goes on gets its own copy.
 *
 * KVL_OBS_MOMENTS: observe_moments.c.  KVL_OBS_INPUTS: observe_inputs.c.  KVL_OBS_REPLAY: repeat.c. */
#include "policy_impl.h"

#include <math.h>
#include <string.h>

/* For all layers of the model, those of a window too, so that a layer's place follows from its
 * number. */
static size_t ring_floats(const struct kvl_engine *e, int32_t window)
{
    const struct kvl_shape *sh = &e->model->shape;
    return (size_t)sh->n_layers * (size_t)window * (size_t)sh->n_heads * (size_t)sh->head_dim;
}

static size_t ring_lses(const struct kvl_engine *e, int32_t window)
{
    return ring_floats(e, window) / (size_t)e->model->shape.head_dim;
}

static size_t column_floats(const struct kvl_engine *e, int32_t n_tok)
{
    const struct kvl_shape *sh = &e->model->shape;
    return (size_t)sh->n_layers * (size_t)sh->n_heads * (size_t)n_tok;
}

/* A head and channel each, as a column is a head and token each. */
static size_t moment_sums(const struct kvl_engine *e)
{
    return column_floats(e, e->model->shape.head_dim);
}

/* The upper triangle: a covariance is symmetric. */
static size_t moment_products(const struct kvl_engine *e)
{
    return moment_sums(e) * ((size_t)e->model->shape.head_dim + 1) / 2;
}

static void columns_free(struct kvl_observers *o)
{
    for (int32_t i = 0; i < KVL_MAX_COLUMNS; i++) {
        o->dev->free(KVL_PLACE_TABLE, o->columns[i].sum);
        o->dev->free(KVL_PLACE_TABLE, o->columns[i].carry);
        o->dev->free(KVL_PLACE_TABLE, o->moments[i].sum);
        o->dev->free(KVL_PLACE_TABLE, o->moments[i].product);
        o->columns[i] = (struct kvl_column_sums){ 0 };
        o->moments[i] = (struct kvl_moment_sums){ 0 };
    }
}

static void *observer_alloc(const struct kvl_observers *o, size_t n, size_t item)
{
    return o->dev->alloc(KVL_PLACE_TABLE, n, item);
}

/* Sums of n_tok tokens, zero; exactly as many as the prefill will have, so that rows of a layer lie
 * one after the other. */
static int columns_alloc(const struct kvl_engine *e, struct kvl_observers *o, int32_t n_tok)
{
    o->n_tok = n_tok;
    for (int32_t i = 0; i < o->set.n_columns; i++) {
        if (o->set.column[i].what == KVL_OBS_MOMENTS) {
            o->moments[i].sum = observer_alloc(o, moment_sums(e), sizeof(double));
            o->moments[i].product = observer_alloc(o, moment_products(e), sizeof(double));
            if (!o->moments[i].sum || !o->moments[i].product) return KVL_ENOMEM;
        }
        if (!kvl_observes_columns(o->set.column[i].what)) continue;
        bool carries = kvl_observes_sums(o->set.column[i].what);
        size_t n = column_floats(e, n_tok);
        o->columns[i].sum = observer_alloc(o, n, sizeof(float));
        if (carries) o->columns[i].carry = observer_alloc(o, n, sizeof(float));
        if (!o->columns[i].sum || (carries && !o->columns[i].carry)) return KVL_ENOMEM;
    }
    return KVL_OK;
}

/* Exactly what the set asks for: a sweep without observers keeps nothing. */
static int observers_alloc(const struct kvl_engine *e, const struct kvl_observer_set *set,
                           int32_t n_tok, struct kvl_observers **out)
{
    struct kvl_observers *o = kvl_alloc(1, sizeof *o);
    if (!o) return KVL_ENOMEM;
    o->n_refs = 1;
    o->dev = e->dev;
    o->set = *set;
    o->ring = observer_alloc(o, ring_floats(e, set->window), sizeof *o->ring);
    o->ring_lse = observer_alloc(o, ring_lses(e, set->window), sizeof *o->ring_lse);
    if (!o->ring || !o->ring_lse || columns_alloc(e, o, n_tok) != KVL_OK) {
        kvl_observers_unref(o);
        return KVL_ENOMEM;
    }
    *out = o;
    return KVL_OK;
}

int kvl_observers_create(const struct kvl_engine *e, struct kvl_observers **out)
{
    return observers_alloc(e, &e->desc.observers, 0, out);
}

/* A fork shares them until one side prefills on; most forks never do. */
struct kvl_observers *kvl_observers_ref(struct kvl_observers *o)
{
    if (o) o->n_refs++;
    return o;
}

/* What was computed from the observers as they were. */
static void computed_free(struct kvl_observers *o)
{
    while (o->repeats) {
        struct kvl_repeated *next = o->repeats->next;
        o->dev->free(KVL_PLACE_SHARED, o->repeats->score);
        kvl_free(o->repeats);
        o->repeats = next;
    }
    while (o->masses) {
        struct kvl_mass *next = o->masses->next;
        o->dev->free(KVL_PLACE_SHARED, o->masses->mass);
        kvl_free(o->masses);
        o->masses = next;
    }
}

/* The last session that reads them lets them go, a fork as well as the one that made them. */
void kvl_observers_unref(struct kvl_observers *o)
{
    if (!o || --o->n_refs > 0) return;
    computed_free(o);
    columns_free(o);
    o->dev->free(KVL_PLACE_TABLE, o->ring);
    o->dev->free(KVL_PLACE_TABLE, o->ring_lse);
    kvl_free(o);
}

static int observer_copy(const struct kvl_observers *o, void *to, const void *from, size_t bytes)
{
    return o->dev->copy(to, from, bytes, KVL_STREAM_MAIN);
}

/* Row by row, for the copy has rows of another length. */
static int columns_copy(const struct kvl_engine *e, struct kvl_observers *to,
                        const struct kvl_observers *from)
{
    size_t rows = column_floats(e, 1), n = (size_t)KVL_MIN(to->n_tok, from->n_tok);
    for (int32_t i = 0; n > 0 && i < to->set.n_columns; i++)
        for (size_t r = 0; to->columns[i].sum && r < rows; r++) {
            size_t at = r * (size_t)to->n_tok, was = r * (size_t)from->n_tok;
            KVL_TRY(observer_copy(to, to->columns[i].sum + at, from->columns[i].sum + was,
                                  n * sizeof(float)));
            if (!to->columns[i].carry) continue;
            KVL_TRY(observer_copy(to, to->columns[i].carry + at, from->columns[i].carry + was,
                                  n * sizeof(float)));
        }
    for (int32_t i = 0; i < to->set.n_columns; i++) {
        if (!to->moments[i].sum) continue;
        KVL_TRY(observer_copy(to, to->moments[i].sum, from->moments[i].sum,
                              moment_sums(e) * sizeof(double)));
        KVL_TRY(observer_copy(to, to->moments[i].product, from->moments[i].product,
                              moment_products(e) * sizeof(double)));
    }
    return KVL_OK;
}

/* Sums have a place per token, which the ring and the moments do not. */
static bool has_columns(const struct kvl_observer_set *set)
{
    for (int32_t i = 0; i < set->n_columns; i++)
        if (kvl_observes_columns(set->column[i].what)) return true;
    return false;
}

/* Masses and repetitions were computed from the context as it was, so they go in any case. */
int kvl_observers_own(struct kvl_engine *e, struct kvl_observers **o, int32_t n_tok)
{
    bool fits = !has_columns(&(*o)->set) || (*o)->n_tok == n_tok;
    if ((*o)->n_refs == 1 && fits) {
        computed_free(*o);
        return KVL_OK;
    }
    struct kvl_observers *copy;
    KVL_TRY(observers_alloc(e, &(*o)->set, n_tok, &copy));
    copy->n_seen = (*o)->n_seen;
    /* Given to the device, while the old memory is freed below: what a device frees it keeps until
     * the next sync. */
    int rc = observer_copy(copy, copy->ring, (*o)->ring,
                           ring_floats(e, copy->set.window) * sizeof *copy->ring);
    if (rc == KVL_OK)
        rc = observer_copy(copy, copy->ring_lse, (*o)->ring_lse,
                           ring_lses(e, copy->set.window) * sizeof *copy->ring_lse);
    if (rc == KVL_OK) rc = columns_copy(e, copy, *o);
    e->pending = true;
    kvl_observers_unref(rc == KVL_OK ? *o : copy);
    if (rc == KVL_OK) *o = copy;
    return rc;
}

/* With the log-sum-exp that attention stored, the second pass needs no maximum and no sum of its own. */
int kvl_observers_sum(const struct kvl_engine *e, struct kvl_observers *o, int32_t layer,
                      const float *q, const float *lse, int32_t n)
{
    const struct kvl_shape *sh = &e->model->shape;
    size_t at = (size_t)layer * (size_t)sh->n_heads * (size_t)o->n_tok;
    for (int32_t i = 0; i < o->set.n_columns; i++) {
        bool logits = o->set.column[i].what == KVL_OBS_LOGITS;
        if (o->set.column[i].what == KVL_OBS_BLOCKS)
            KVL_TRY(kvl_observers_blocks(e, o, i, layer, q, n));
        if (!kvl_observes_sums(o->set.column[i].what)) continue;
        KVL_TRY(e->ops->attn_columns(&(struct kvl_attn_columns_args){
            .sums = o->columns[i].sum + at,
            .carry = o->columns[i].carry + at,
            .stride = (size_t)o->n_tok,
            .q = q,
            .lse = lse,
            .lanes = e->lanes,
            .n = n,
            .n_heads = sh->n_heads,
            .n_kv_heads = sh->n_kv_heads,
            .head_dim = sh->head_dim,
            .scale = e->scale,
            .cap = e->cap,
            .kind = logits ? KVL_COLUMNS_LOGITS : KVL_COLUMNS_PROBS,
            .next = o->set.column[i].param,
            .bf16 = kvl_prefills_bf16(e) }));
    }
    return KVL_OK;
}

/* Rows from .. from + n - 1 of a chunk to a layer's ring, which begins again at most once. */
static int ring_put(const struct kvl_observers *o, float *ring, size_t row, int64_t token,
                    const float *from, int32_t n)
{
    int32_t at = (int32_t)(token % o->set.window), first = KVL_MIN(n, o->set.window - at);
    KVL_TRY(observer_copy(o, ring + (size_t)at * row, from, (size_t)first * row * sizeof *from));
    if (first == n) return KVL_OK;
    return observer_copy(o, ring, from + (size_t)first * row,
                         (size_t)(n - first) * row * sizeof *from);
}

/* NaN says that a log-sum-exp is not known: of a chunk under a mask, or of a cache that was
 * filled. */
static int ring_unknown(const struct kvl_engine *e, const struct kvl_observers *o, float *ring,
                        size_t row, int64_t token, int32_t n)
{
    KVL_TRY(kvl_engine_host(e, ring, (size_t)o->set.window * row * sizeof *ring, true));
    for (int32_t i = 0; i < n; i++)
        for (size_t h = 0; h < row; h++)
            ring[(size_t)((token + i) % o->set.window) * row + h] = NAN;
    return KVL_OK;
}

/* The counter moves on with the last layer, so that all layers of a chunk write the same places. */
int kvl_observers_add(struct kvl_engine *e, struct kvl_observers *o, int32_t layer, const float *q,
                      const float *lse, int32_t n)
{
    const struct kvl_shape *sh = &e->model->shape;
    size_t heads = (size_t)sh->n_heads, row = heads * (size_t)sh->head_dim;
    size_t first = (size_t)layer * (size_t)o->set.window;
    /* A chunk longer than the window leaves only its end. */
    int32_t skip = KVL_MAX(0, n - o->set.window), m = n - skip;
    int64_t token = o->n_seen + skip;
    float *ring = o->ring + first * row, *ring_lse = o->ring_lse + first * heads;
    if (layer == sh->n_layers - 1) o->n_seen += n;
    if (m == 0) return KVL_OK;
    KVL_TRY(ring_put(o, ring, row, token, q + (size_t)skip * row, m));
    e->pending = true;
    if (!lse) return ring_unknown(e, o, ring_lse, heads, token, m);
    return ring_put(o, ring_lse, heads, token, lse + (size_t)skip * heads, m);
}

/* The tokens count as seen: positions in the ring are those of the sequence. */
void kvl_observers_pass(struct kvl_session *s, int32_t layer, int32_t n)
{
    /* As kvl_prefill_run decides it: else a layer of a window would move the counter of observers
     * that see nothing. */
    bool observes = s->planned ? s->planned->p.observers.window > 0 : !s->repeat;
    if (s->obs && observes && layer == s->engine->model->shape.n_layers - 1) s->obs->n_seen += n;
}

/* The newest `window` rows of `row` floats that a layer's ring holds, oldest first, in the arena
 * of results. */
static int window_rows(struct kvl_engine *e, const struct kvl_observers *o, const float *ring,
                       size_t row, int32_t layer, int32_t window, const float **out)
{
    float *to = kvl_arena_get(&e->results, (size_t)window * row, sizeof *to);
    if (!to) return KVL_ENOMEM;
    *out = to;
    ring += (size_t)layer * (size_t)o->set.window * row;
    int32_t at = (int32_t)((o->n_seen - window) % o->set.window);
    int32_t first = KVL_MIN(window, o->set.window - at);
    KVL_TRY(kvl_engine_copy(e, to, ring + (size_t)at * row, (size_t)first * row * sizeof *to));
    if (first == window) return KVL_OK;
    return kvl_engine_copy(e, to + (size_t)first * row, ring,
                           (size_t)(window - first) * row * sizeof *to);
}

/* Without the log-sum-exps of all of the window's queries (a cache that was filled, or a prefill
 * under a mask) the operator makes its own. */
static int window_compute(struct kvl_session *s, int32_t layer, int32_t window, float *mass)
{
    struct kvl_engine *e = s->engine;
    const struct kvl_shape *sh = &e->model->shape;
    size_t heads = (size_t)sh->n_heads, dim = (size_t)sh->head_dim;
    const float *q, *lse;
    KVL_TRY(window_rows(e, s->obs, s->obs->ring, heads * dim, layer, window, &q));
    KVL_TRY(window_rows(e, s->obs, s->obs->ring_lse, heads, layer, window, &lse));
    KVL_TRY(kvl_engine_sync(e));
    for (size_t i = 0; lse && i < (size_t)window * heads; i++)
        if (isnan(lse[i])) lse = NULL;
    /* e->lanes is the engine's own array: whatever attends next fills it again. */
    for (int32_t h = 0; h < sh->n_kv_heads; h++) e->lanes[h] = kvl_seq_lane(s->seq, layer, h);
    return e->now->attn_window(&(struct kvl_attn_window_args){ .mass = mass,
                                                               .q = q,
                                                               .lse = lse,
                                                               .lanes = e->lanes,
                                                               .n_window = window,
                                                               .n_slots = s->n_pos,
                                                               .n_heads = sh->n_heads,
                                                               .n_kv_heads = sh->n_kv_heads,
                                                               .head_dim = sh->head_dim,
                                                               .scale = e->scale,
                                                               .cap = e->cap,
                                                               .bf16 = kvl_prefills_bf16(e) });
}

/* Computed once for all policies and budgets of a sweep; there are few, so a list will do. */
static const struct kvl_mass *mass_find(const struct kvl_observers *o, int32_t layer,
                                        int32_t window, int32_t n_tok)
{
    for (const struct kvl_mass *m = o->masses; m; m = m->next)
        if (m->layer == layer && m->window == window && m->n_tok == n_tok) return m;
    return NULL;
}

/* What follows takes the model's number. */
int kvl_obs_check_layer(const struct kvl_pctx *ctx, int32_t *layer)
{
    if (*layer < 0 || *layer >= ctx->shape->n_layers)
        return kvl_fail(ctx->err, KVL_EPOLICY, "observers of layer %d, want 0 to %d", *layer,
                        ctx->shape->n_layers - 1);
    *layer = kvl_layer_of(ctx, *layer);
    return KVL_OK;
}

/* Observers tell about the context: its keys are all there while it is judged, and it was prefilled
 * from its first token to its last. */
int kvl_obs_check_time(const struct kvl_pctx *ctx, int32_t layer)
{
    struct kvl_session *s = ctx->host->session;
    if (ctx->host->asked)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "observers of the context, while a wrapper asks about single tokens");
    if (ctx->host->phase != HOOK_CONTEXT && ctx->host->phase != HOOK_MASK)
        return kvl_fail(ctx->err, KVL_EPOLICY, "observers are there in prefilled and score only");
    if (ctx->host->phase == HOOK_MASK && ctx->host->mask_layer >= 0 &&
        layer != ctx->host->mask_layer)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "observers of layer %d in the mask of layer %d: the context comes layer by "
                        "layer, as the plan allowed",
                        layer, ctx->host->mask_layer);
    if (s->obs->n_seen != s->n_pos)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "observers have seen %lld of %d tokens: the others were not prefilled",
                        (long long)s->obs->n_seen, s->n_pos);
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        if (!s->dead && !kvl_lane_is_whole(s, layer, h))
            return kvl_fail(ctx->err, KVL_EPOLICY,
                            "observers of layer %d, which has been evicted from already", layer);
    return KVL_OK;
}

/* What plan did not ask for may be there for another policy: it is refused all the same, or answers would
 * depend on the sweep. */
int kvl_obs_check_window(const struct kvl_pctx *ctx, int32_t layer, int32_t window)
{
    struct kvl_session *s = ctx->host->session;
    if (!s->obs || window < 1 || window > s->planned->p.observers.window)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "window of %d queries in layer %d was not asked for in plan", window,
                        layer);
    if (window > s->obs->n_seen)
        return kvl_fail(ctx->err, KVL_EINVAL,
                        "window of %d queries, the context has only %lld tokens", window,
                        (long long)s->obs->n_seen);
    return kvl_obs_check_time(ctx, layer);
}

/* Computed when it is first asked for, for most policies of a sweep ask for none. */
int kvl_obs_window_mass(const struct kvl_pctx *ctx, int32_t layer, int32_t window,
                        const float **mass, int32_t *n_tok)
{
    struct kvl_session *s = ctx->host->session;
    const struct kvl_shape *sh = ctx->shape;
    if (ctx->host->asked) return kvl_asked_mass(ctx, layer, window, mass, n_tok);
    KVL_TRY(kvl_obs_check_layer(ctx, &layer));
    KVL_TRY(kvl_obs_check_window(ctx, layer, window));
    const struct kvl_mass *m = mass_find(s->obs, layer, window, s->n_pos);
    if (!m) {
        struct kvl_mass *fresh = kvl_alloc(1, sizeof *fresh);
        float *data = s->obs->dev->alloc(KVL_PLACE_SHARED, (size_t)sh->n_heads * (size_t)s->n_pos,
                                         sizeof *data);
        int rc = fresh && data ? window_compute(s, layer, window, data) : KVL_ENOMEM;
        if (rc != KVL_OK) {
            kvl_free(fresh);
            s->obs->dev->free(KVL_PLACE_SHARED, data);
            return kvl_fail(ctx->err, rc, "cannot compute the window mass of layer %d: %s", layer,
                            kvl_status_name(rc));
        }
        /* Kept with the observers and not with the session: forks share them, so one policy's work
         * serves the next. */
        *fresh = (struct kvl_mass){ s->obs->masses, layer, window, s->n_pos, data };
        s->obs->masses = fresh;
        m = fresh;
    }
    *mass = m->mass;
    *n_tok = m->n_tok;
    return KVL_OK;
}

/* Query `back` before the newest sees n_pos - back slots: weights come packed and are then spread
 * to rows of n_tok, the last row first. */
int kvl_obs_window_probs(const struct kvl_pctx *ctx, int32_t layer, int32_t back, float *probs,
                         int32_t n_tok)
{
    struct kvl_session *s = ctx->host->session;
    struct kvl_engine *e = s->engine;
    const struct kvl_shape *sh = ctx->shape;
    if (back < 0 || back == INT32_MAX)
        return kvl_fail(ctx->err, KVL_EPOLICY, "query %d before the newest, want 0 or more", back);
    if (ctx->host->asked) return kvl_asked_probs(ctx, layer, back, probs, n_tok);
    KVL_TRY(kvl_obs_check_layer(ctx, &layer));
    KVL_TRY(kvl_obs_check_window(ctx, layer, back + 1));
    if (n_tok != s->n_pos)
        return kvl_fail(ctx->err, KVL_EPOLICY, "room for the weights of %d tokens, want %d", n_tok,
                        s->n_pos);
    size_t row = (size_t)sh->n_heads * (size_t)sh->head_dim;
    size_t at = (size_t)layer * (size_t)s->obs->set.window +
                (size_t)((s->obs->n_seen - 1 - back) % s->obs->set.window);
    size_t n = (size_t)(n_tok - back), stride = (size_t)n_tok;
    for (int32_t h = 0; h < sh->n_kv_heads; h++) e->lanes[h] = kvl_seq_lane(s->seq, layer, h);
    KVL_TRY(kvl_lane_probs(e, e->now, layer, s->obs->ring + at * row, probs, n_tok - back));
    for (size_t h = (size_t)sh->n_heads; back > 0 && h-- > 0;) {
        memmove(probs + h * stride, probs + h * n, n * sizeof *probs);
        memset(probs + h * stride + n, 0, (size_t)back * sizeof *probs);
    }
    return KVL_OK;
}

/* Brought to the host as a whole layer: methods read it there. */
int kvl_obs_columns(const struct kvl_pctx *ctx, int32_t layer, enum kvl_observer what,
                    int32_t param, const float **sums, int32_t *n_tok)
{
    struct kvl_session *s = ctx->host->session;
    KVL_TRY(kvl_obs_check_layer(ctx, &layer));
    if (!kvl_observes_columns(what) || !kvl_observer_set_has(&s->planned->p.observers, what, param))
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "column sums (observer %d) of %d queries were not asked for in plan",
                        (int)what, param);
    KVL_TRY(kvl_obs_check_time(ctx, layer));
    const struct kvl_observer_set *set = &s->obs->set;
    int32_t i = 0; /* attach has made sure that it is there */
    while (set->column[i].what != what || set->column[i].param != param) i++;
    size_t n = (size_t)ctx->shape->n_heads * (size_t)s->obs->n_tok;
    if (what == KVL_OBS_BLOCKS) {
        float *of_blocks;
        KVL_TRY(kvl_scratch_get(ctx, n, &of_blocks));
        KVL_TRY(kvl_engine_failed(s->engine, "sums of blocks",
                                  kvl_observed_blocks(s, i, layer, of_blocks), ctx->err));
        *sums = of_blocks;
        *n_tok = s->obs->n_tok;
        return KVL_OK;
    }
    float *of_layer = s->obs->columns[i].sum + (size_t)layer * n;
    *sums = of_layer;
    *n_tok = s->obs->n_tok;
    int rc = kvl_engine_host(s->engine, of_layer, n * sizeof *of_layer, false);
    return kvl_engine_failed(s->engine, "column sums", rc, ctx->err);
}
