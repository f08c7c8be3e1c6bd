/* Waiting for the device, and what is given to it for one query. */
#include "session_impl.h"

#include <math.h>

enum { STEP_WAIT = 64 << 20 }; /* bytes of results that are worth waiting for */

int kvl_engine_sync(struct kvl_engine *e)
{
    if (!e->pending && !e->unread) return KVL_OK;
    e->pending = e->unread = false;
    return e->dev->sync();
}

int kvl_engine_rest(struct kvl_engine *e)
{
    if (!e->pending) return KVL_OK;
    e->pending = false;
    e->unread = true;
    return e->dev->rest();
}

int kvl_engine_host(const struct kvl_engine *e, void *p, size_t bytes, bool writes)
{
    const struct kvl_pieces one = { .data = p, .bytes = bytes, .n = 1, .writes = writes };
    return e->dev->host ? e->dev->host(&one, 1) : KVL_OK;
}

int kvl_engine_failed(const struct kvl_engine *e, const char *what, int rc, struct kvl_err *err)
{
    if (rc == KVL_OK) return KVL_OK;
    return kvl_fail(err, rc, "%s: %s", what,
                    rc == KVL_EDEVICE ? e->dev->error() : kvl_status_name(rc));
}

int kvl_engine_wait(struct kvl_engine *e, struct kvl_err *err)
{
    return kvl_engine_failed(e, "waiting for the device", kvl_engine_sync(e), err);
}

int kvl_engine_copy(struct kvl_engine *e, void *to, const void *from, size_t bytes)
{
    e->pending = true;
    return e->dev->copy(to, from, bytes, KVL_STREAM_MAIN);
}

int kvl_step_reset(struct kvl_engine *e, struct kvl_err *err)
{
    kvl_arena_reset(&e->step);
    if (e->dev->discrete && e->pending && e->results.used < STEP_WAIT) return KVL_OK;
    KVL_TRY(kvl_engine_failed(e, "waiting for the device", kvl_engine_rest(e), err));
    kvl_arena_reset(&e->results);
    return KVL_OK;
}

void kvl_sinks_take(const struct kvl_engine *e, int32_t layer, const float *lse, float *probs,
                    int32_t n)
{
    const float *sinks = kvl_layer_sinks(e, layer);
    for (int32_t h = 0; h < e->model->shape.n_heads; h++) {
        float left = 1 / (1 + expf(sinks[h] - lse[h]));
        for (int32_t i = 0; i < n; i++) *probs++ *= left;
    }
}

int kvl_lane_probs(const struct kvl_engine *e, const struct kvl_ops *ops, int32_t layer,
                   const float *q, float *probs, int32_t n)
{
    const struct kvl_shape *sh = &e->model->shape;
    struct kvl_attn_probs_args a = { .probs = probs,
                                     .q = q,
                                     .lanes = e->lanes,
                                     .n_slots = n,
                                     .n_heads = sh->n_heads,
                                     .n_kv_heads = sh->n_kv_heads,
                                     .head_dim = sh->head_dim,
                                     .scale = e->scale,
                                     .cap = e->cap };
    if (!e->sinks) return ops->attn_probs(&a);
    a.lse = kvl_alloc((size_t)sh->n_heads, sizeof *a.lse);
    int rc = a.lse ? e->now->attn_probs(&a) : KVL_ENOMEM;
    if (rc == KVL_OK) kvl_sinks_take(e, layer, a.lse, probs, n);
    kvl_free(a.lse);
    return rc;
}
