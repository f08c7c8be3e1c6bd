/* Observers: what a dense prefill keeps so that any policy can be scored afterwards.
 *
 * KVL_OBS_WINDOW keeps only the last W queries of each layer.  The W x n strip of probabilities is
 * computed when a policy asks, from these queries and the stored keys, and kept: policies and
 * budgets that start from the same prefill share it.  Extending the context by the question moves
 * the window on. */
#include "model/host.h"

#include <string.h>

static size_t ring_floats(const struct kvl_engine *e, int32_t window)
{
    const struct kvl_shape *sh = &e->model->shape;
    return (size_t)sh->n_layers * (size_t)window * (size_t)sh->n_heads * (size_t)sh->head_dim;
}

int kvl_observers_create(const struct kvl_engine *e, struct kvl_observers **out)
{
    struct kvl_observers *o = kvl_alloc(1, sizeof *o);
    float *ring = kvl_alloc(ring_floats(e, e->desc.observers.window), sizeof *ring);
    if (!o || !ring) {
        kvl_free(o);
        kvl_free(ring);
        return KVL_ENOMEM;
    }
    *o = (struct kvl_observers){ .n_refs = 1, .window = e->desc.observers.window, .ring = ring };
    *out = o;
    return KVL_OK;
}

struct kvl_observers *kvl_observers_ref(struct kvl_observers *o)
{
    if (o) o->n_refs++;
    return o;
}

static void masses_free(struct kvl_observers *o)
{
    while (o->masses) {
        struct kvl_mass *next = o->masses->next;
        kvl_free(o->masses->mass);
        kvl_free(o->masses);
        o->masses = next;
    }
}

void kvl_observers_unref(struct kvl_observers *o)
{
    if (!o || --o->n_refs > 0) return;
    masses_free(o);
    kvl_free(o->ring);
    kvl_free(o);
}

int kvl_observers_own(const struct kvl_engine *e, struct kvl_observers **o)
{
    if ((*o)->n_refs == 1) {
        masses_free(*o);
        return KVL_OK;
    }
    struct kvl_observers *copy;
    KVL_TRY(kvl_observers_create(e, &copy));
    copy->n_seen = (*o)->n_seen;
    memcpy(copy->ring, (*o)->ring, ring_floats(e, copy->window) * sizeof *copy->ring);
    kvl_observers_unref(*o);
    *o = copy;
    return KVL_OK;
}

void kvl_observers_add(const struct kvl_engine *e, struct kvl_observers *o, int32_t layer,
                       const float *q, int32_t n)
{
    const struct kvl_shape *sh = &e->model->shape;
    size_t row = (size_t)sh->n_heads * (size_t)sh->head_dim;
    float *ring = o->ring + (size_t)layer * (size_t)o->window * row;
    for (int32_t i = KVL_MAX(0, n - o->window); i < n; i++) {
        size_t at = (size_t)((o->n_seen + i) % o->window);
        memcpy(ring + at * row, q + (size_t)i * row, row * sizeof *q);
    }
    if (layer == sh->n_layers - 1) o->n_seen += n;
}

/* The last `window` queries of a layer, oldest first, in the step arena. */
static const float *window_queries(struct kvl_engine *e, const struct kvl_observers *o,
                                   int32_t layer, int32_t window)
{
    const struct kvl_shape *sh = &e->model->shape;
    size_t row = (size_t)sh->n_heads * (size_t)sh->head_dim;
    float *q = kvl_arena_get(&e->step, (size_t)window * row, sizeof *q);
    if (!q) return NULL;
    const float *ring = o->ring + (size_t)layer * (size_t)o->window * row;
    for (int32_t i = 0; i < window; i++) {
        size_t at = (size_t)((o->n_seen - window + i) % o->window);
        memcpy(q + (size_t)i * row, ring + at * row, row * sizeof *q);
    }
    return q;
}

static int window_compute(struct kvl_session *s, int32_t layer, int32_t window, float *mass)
{
    struct kvl_engine *e = s->engine;
    const struct kvl_shape *sh = &e->model->shape;
    const float *q = window_queries(e, s->obs, layer, window);
    if (!q) return KVL_ENOMEM;
    for (int32_t h = 0; h < sh->n_kv_heads; h++) e->lanes[h] = kvl_seq_lane(s->seq, layer, h);
    return e->ops->attn_window(&(struct kvl_attn_window_args){ .mass = mass,
                                                               .q = q,
                                                               .lanes = e->lanes,
                                                               .n_window = window,
                                                               .n_slots = s->n_pos,
                                                               .n_heads = sh->n_heads,
                                                               .n_kv_heads = sh->n_kv_heads,
                                                               .head_dim = sh->head_dim,
                                                               .scale = e->scale });
}

static const struct kvl_mass *mass_find(const struct kvl_observers *o, int32_t layer,
                                        int32_t window, int32_t n_tok)
{
    for (const struct kvl_mass *m = o->masses; m; m = m->next)
        if (m->layer == layer && m->window == window && m->n_tok == n_tok) return m;
    return NULL;
}

int kvl_obs_window_mass(const struct kvl_pctx *ctx, int32_t layer, int32_t window,
                        const float **mass, int32_t *n_tok)
{
    struct kvl_session *s = ctx->host->session;
    const struct kvl_shape *sh = ctx->shape;
    if (layer < 0 || layer >= sh->n_layers || !s->obs || window < 1 ||
        window > s->planned->p.observers.window)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "window of %d queries in layer %d was not asked for in plan", window,
                        layer);
    if (window > s->obs->n_seen)
        return kvl_fail(ctx->err, KVL_EINVAL,
                        "window of %d queries, the context has only %lld tokens", window,
                        (long long)s->obs->n_seen);
    if (!ctx->host->scoring)
        return kvl_fail(ctx->err, KVL_EPOLICY, "the window is there in prefilled and score only");
    for (int32_t h = 0; h < sh->n_kv_heads; h++)
        if (!s->dead && !kvl_lane_is_whole(s, layer, h))
            return kvl_fail(ctx->err, KVL_EPOLICY,
                            "the window of layer %d, which has been evicted from already", layer);
    const struct kvl_mass *m = mass_find(s->obs, layer, window, s->n_pos);
    if (!m) {
        struct kvl_mass *fresh = kvl_alloc(1, sizeof *fresh);
        float *data = kvl_alloc((size_t)sh->n_heads * (size_t)s->n_pos, sizeof *data);
        int rc = fresh && data ? window_compute(s, layer, window, data) : KVL_ENOMEM;
        if (rc != KVL_OK) {
            kvl_free(fresh);
            kvl_free(data);
            return kvl_fail(ctx->err, rc, "cannot compute the window mass of layer %d: %s", layer,
                            kvl_status_name(rc));
        }
        *fresh = (struct kvl_mass){ s->obs->masses, layer, window, s->n_pos, data };
        s->obs->masses = fresh;
        m = fresh;
    }
    *mass = m->mass;
    *n_tok = m->n_tok;
    return KVL_OK;
}
