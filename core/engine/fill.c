/* A session that looks as if it had been prefilled, at the price of writing the cache: benchmarks
 * measure at depths whose prefill would take hours.
 *
 * One buffer of random numbers serves everything.  Each chunk of each layer, and each part of it,
 * reads the buffer from its own random place, and chunks begin at different places of a row, so that no
 * two tokens have the same key (of as many chunks as a row has numbers): equal keys would make ties of
 * every score, and of a method's choice something that no prompt gives. */
#include "forward.h"
#include "local.h"

#include "place.h"

enum { FILL_CHUNK = 512, FILL_SLACK = 1 << 16 };

struct fill {
    struct kvl_session *s;
    float *random; /* [FILL_CHUNK * the widest row + FILL_SLACK], -1 to 1 */
    int32_t *pos;  /* [FILL_CHUNK]; for a moment the ids of a chunk */
    struct kvl_rng rng;
    struct kvl_rng ids; /* of their own: what keys are does not depend on them */
};

static int fill_check(const struct kvl_session *s, int32_t n, struct kvl_err *err)
{
    if (s->planned) return kvl_fail(err, KVL_EINTERNAL, "fill of a session under a policy");
    return kvl_session_has_room(s, n, err);
}

/* Where this chunk's rows of n_heads heads begin. */
static const float *fill_next(struct fill *f, int32_t n_heads)
{
    uint32_t row = (uint32_t)n_heads * (uint32_t)f->s->engine->model->shape.head_dim;
    uint32_t chunk = (uint32_t)(f->s->n_pos / FILL_CHUNK) % KVL_MIN(row, FILL_SLACK / 2);
    uint32_t places = KVL_MAX(FILL_SLACK / row, 2) - 1;
    return f->random + kvl_rng_below(&f->rng, places) * row + chunk;
}

/* A token's sums of probabilities are not negative; logits may as well be positive. */
static int fill_columns(struct fill *f, int32_t layer, int32_t n)
{
    const struct kvl_observers *o = f->s->obs;
    size_t heads = (size_t)f->s->engine->model->shape.n_heads;
    for (int32_t c = 0; c < o->set.n_columns; c++)
        for (size_t h = 0; o->columns[c].sum && h < heads; h++) {
            const float *from = fill_next(f, 1);
            float *sum = o->columns[c].sum + ((size_t)layer * heads + h) * (size_t)o->n_tok +
                         (size_t)f->s->n_pos;
            KVL_TRY(kvl_engine_host(f->s->engine, sum, (size_t)n * sizeof *sum, true));
            for (int32_t i = 0; i < n; i++) sum[i] = 1.0f + from[i];
        }
    return KVL_OK;
}

/* Layers of a window forget as in a prefill, or a filled session would hold more than a real one. */
static int fill_layer(struct fill *f, int32_t layer, int32_t n, struct kvl_err *err)
{
    struct kvl_engine *e = f->s->engine;
    int32_t n_heads = e->model->shape.n_heads, n_kv = e->model->shape.n_kv_heads;
    const float *k = fill_next(f, n_kv), *v = fill_next(f, n_kv), *raw = NULL;
    if (e->desc.raw_keys) raw = fill_next(f, n_kv);
    if (e->stop && *e->stop) return kvl_fail(err, KVL_ESTOP, "stopped by a signal");
    KVL_TRY(kvl_seq_append(f->s->seq, layer, n, f->pos, k, raw, v, err));
    e->pending = true;
    if (kvl_window_of(e, layer) > 0) {
        kvl_local_forget(f->s, layer, f->pos[n - 1] + 1, true);
        kvl_observers_pass(f->s, layer, n);
        return KVL_OK;
    }
    if (!f->s->obs) return KVL_OK;
    KVL_TRY(kvl_engine_failed(e, "column sums", fill_columns(f, layer, n), err));
    KVL_TRY(kvl_observers_moments(e, f->s->obs, layer, fill_next(f, n_heads), n));
    int rc = kvl_observers_add(e, f->s->obs, layer, fill_next(f, n_heads), NULL, n);
    return kvl_engine_failed(e, "observers", rc, err);
}

/* Chunks cost little: they go to the host one by one, as what a prefill does layer by layer. */
static int fill_place(struct kvl_session *s, struct kvl_err *err)
{
    for (int32_t l = 0; l < s->engine->model->shape.n_layers; l++)
        if (kvl_window_of(s->engine, l) == 0) KVL_TRY(kvl_seq_to_host(s->seq, l, err));
    return KVL_OK;
}

/* Ids are noted for methods that look at tokens; the array of positions lends its room for that. */
static int fill_chunk(struct fill *f, int32_t n, struct kvl_err *err)
{
    uint32_t n_vocab = (uint32_t)f->s->engine->model->shape.n_vocab;
    for (int32_t i = 0; i < n; i++) f->pos[i] = (int32_t)kvl_rng_below(&f->ids, n_vocab);
    KVL_TRY(kvl_session_note(f->s, f->pos, n, err));
    for (int32_t i = 0; i < n; i++) f->pos[i] = f->s->n_pos + i;
    for (int32_t l = 0; l < f->s->engine->model->shape.n_layers; l++)
        KVL_TRY(fill_layer(f, l, n, err));
    f->s->n_pos += n;
    return f->s->engine->desc.prefill_kv_host ? fill_place(f->s, err) : KVL_OK;
}

/* By an operator whose numbers do not depend on the device, so that all devices measure the same cache. */
static int fill_memory(struct fill *f, uint64_t seed)
{
    const struct kvl_engine *e = f->s->engine;
    size_t row = (size_t)e->model->shape.n_heads * (size_t)e->model->shape.head_dim;
    size_t n = FILL_CHUNK * row + FILL_SLACK;
    f->pos = kvl_alloc(FILL_CHUNK, sizeof *f->pos);
    f->random = kvl_alloc(n, sizeof *f->random);
    if (!f->pos || !f->random) return KVL_ENOMEM;
    KVL_TRY(e->now->random_fill(
        &(struct kvl_random_fill_args){ .y = f->random, .n = n, .seed = seed }));
    for (size_t i = 0; i < n; i++) f->random[i] = 2.0f * f->random[i] - 1.0f;
    kvl_rng_seed(&f->rng, seed);
    kvl_rng_seed(&f->ids, ~seed);
    return KVL_OK;
}

/* The session counts as failed until all layers have all tokens. */
int kvl_session_fill(struct kvl_session *s, int32_t n, uint64_t seed, struct kvl_err *err)
{
    struct fill f = { .s = s };
    KVL_TRY(fill_check(s, n, err));
    if (s->obs && kvl_observers_own(s->engine, &s->obs, s->n_pos + n) != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "out of memory for observers");
    s->failed = true;
    int rc = fill_memory(&f, seed);
    if (rc == KVL_ENOMEM) kvl_fail(err, rc, "out of memory to fill %d tokens", n);
    kvl_engine_failed(s->engine, "random numbers", rc, err);
    for (int32_t at = 0; rc == KVL_OK && at < n; at += FILL_CHUNK)
        rc = fill_chunk(&f, KVL_MIN(FILL_CHUNK, n - at), err);
    if (rc == KVL_OK) rc = kvl_engine_wait(s->engine, err);
    if (rc == KVL_OK && s->engine->desc.prefill_kv_host) kvl_host_count(s);
    kvl_free(f.random);
    kvl_free(f.pos);
    s->failed = rc != KVL_OK;
    return kvl_engine_memory(s->engine, rc, err);
}
