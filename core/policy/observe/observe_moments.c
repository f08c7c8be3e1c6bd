/* Observers beside sums over the keys: single queries of the window, moments of all queries, and what a
 * projection makes of values.
 *
 * KVL_OBS_MOMENTS: sums of the queries before RoPE and of their products, in double and token by token,
 * so that they do not depend on the chunks of the prefill. */
#include "policy_impl.h"

#include <math.h>
#include <string.h>

enum { NORM_VALUES = 256 }; /* values projected at a time */

/* The first `param` queries are left out: methods take the first tokens for sinks. */
int kvl_observers_moments(const struct kvl_engine *e, struct kvl_observers *o, int32_t layer,
                          const float *q_raw, int32_t n)
{
    const struct kvl_shape *sh = &e->model->shape;
    size_t dim = (size_t)sh->head_dim, heads = (size_t)sh->n_heads, first = (size_t)layer * heads;
    for (int32_t i = 0; i < o->set.n_columns; i++) {
        if (!o->moments[i].sum) continue;
        int64_t skip = KVL_MIN(KVL_MAX(0, o->set.column[i].param - o->n_seen), n);
        KVL_TRY(e->ops->moments(&(struct kvl_moments_args){
            .sum = o->moments[i].sum + first * dim,
            .product = o->moments[i].product + first * (dim * (dim + 1) / 2),
            .x = q_raw + (size_t)skip * heads * dim,
            .n = n - (int32_t)skip,
            .n_heads = sh->n_heads,
            .dim = sh->head_dim }));
    }
    return KVL_OK;
}

/* Mean and covariance of one head from its sums. */
static void moments_of(const double *sum, const double *product, size_t dim, double n, float *mean,
                       float *cov)
{
    for (size_t r = 0; r < dim; r++) {
        mean[r] = (float)(sum[r] / n);
        for (size_t c = r; c < dim; c++) {
            double x = *product++ / n - sum[r] / n * (sum[c] / n);
            cov[r * dim + c] = cov[c * dim + r] = (float)x;
        }
    }
}

/* Into scratch, from sums in double: subtracting squares of floats would leave nothing of a small variance. */
int kvl_obs_moments(const struct kvl_pctx *ctx, int32_t layer, int32_t param, const float **mean,
                    const float **cov, int32_t *n)
{
    struct kvl_session *s = ctx->host->session;
    size_t dim = (size_t)ctx->shape->head_dim, heads = (size_t)ctx->shape->n_heads;
    if (ctx->host->asked) return kvl_asked_moments(ctx, mean, cov, n);
    KVL_TRY(kvl_obs_check_layer(ctx, &layer));
    if (!kvl_observer_set_has(&s->planned->p.observers, KVL_OBS_MOMENTS, param))
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "moments of queries from %d on were not asked for in plan", param);
    KVL_TRY(kvl_obs_check_time(ctx, layer));
    if (s->obs->n_seen <= param)
        return kvl_fail(ctx->err, KVL_EINVAL,
                        "moments of queries from %d on, the context has only %lld tokens", param,
                        (long long)s->obs->n_seen);
    int32_t i = 0; /* attach has made sure that it is there */
    while (s->obs->set.column[i].what != KVL_OBS_MOMENTS || s->obs->set.column[i].param != param)
        i++;
    float *to = kvl_arena_get(&s->engine->scratch, heads * dim * (dim + 1), sizeof *to);
    if (!to) return kvl_fail(ctx->err, KVL_ENOMEM, "out of memory for moments");
    size_t first = (size_t)layer * heads, half = dim * (dim + 1) / 2;
    double *sum = s->obs->moments[i].sum + first * dim;
    double *product = s->obs->moments[i].product + first * half;
    int rc = kvl_engine_host(s->engine, sum, heads * dim * sizeof *sum, false);
    if (rc == KVL_OK) rc = kvl_engine_host(s->engine, product, heads * half * sizeof *sum, false);
    KVL_TRY(kvl_engine_failed(s->engine, "moments", rc, ctx->err));
    for (size_t h = 0; h < heads; h++) {
        moments_of(sum + h * dim, product + h * half, dim, (double)(s->obs->n_seen - param),
                   to + h * dim, to + heads * dim + h * dim * dim);
    }
    *mean = to;
    *cov = to + heads * dim;
    *n = (int32_t)(s->obs->n_seen - param);
    return KVL_OK;
}

/* A copy, since the ring goes on with the next prefill. */
int kvl_obs_window_query(const struct kvl_pctx *ctx, int32_t layer, int32_t back, float *q)
{
    struct kvl_session *s = ctx->host->session;
    size_t row = (size_t)ctx->shape->n_heads * (size_t)ctx->shape->head_dim;
    if (back < 0 || back == INT32_MAX)
        return kvl_fail(ctx->err, KVL_EPOLICY, "query %d before the newest, want 0 or more", back);
    if (ctx->host->asked) return kvl_asked_query(ctx, back, q);
    KVL_TRY(kvl_obs_check_layer(ctx, &layer));
    KVL_TRY(kvl_obs_check_window(ctx, layer, back + 1));
    size_t window = (size_t)s->obs->set.window, at = (size_t)(s->obs->n_seen - 1 - back) % window;
    float *kept = s->obs->ring + ((size_t)layer * window + at) * row;
    int rc = kvl_engine_host(s->engine, kept, row * sizeof *q, false);
    KVL_TRY(kvl_engine_failed(s->engine, "a query of the window", rc, ctx->err));
    memcpy(q, kept, row * sizeof *q);
    return KVL_OK;
}

/* ---- values after the output projection ---------------------------------------------------------- */

/* The projection of a layer, widened: [n_embd][n_heads * head_dim] in the scratch arena. */
static int widened_output(const struct kvl_pctx *ctx, int32_t layer, const float **out)
{
    struct kvl_engine *e = ctx->host->session->engine;
    const struct kvl_weight *w = &e->model->w.layer[layer].attn_output;
    float *to = kvl_arena_get(&e->scratch, (size_t)w->n_rows * (size_t)w->n_cols, sizeof *to);
    int32_t *row = kvl_arena_get(&e->scratch, (size_t)w->n_rows, sizeof *row);
    if (!to || !row) return kvl_fail(ctx->err, KVL_ENOMEM, "out of memory for a projection");
    for (int32_t i = 0; i < w->n_rows; i++) row[i] = i;
    *out = to;
    return e->now->embed(&(struct kvl_embed_args){ .y = to, .w = w, .id = row, .n = w->n_rows });
}

/* A part of the values at a time: a whole context, projected, would be larger than the cache. */
int kvl_output_norms(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                     const float *values, int32_t n, int32_t norm, float *out)
{
    struct kvl_engine *e = ctx->host->session->engine;
    const struct kvl_shape *sh = ctx->shape;
    size_t dim = (size_t)sh->head_dim, group = (size_t)kvl_group(sh);
    const float *wide = NULL;
    KVL_TRY(kvl_obs_check_layer(ctx, &layer));
    if (kv_head < 0 || kv_head >= sh->n_kv_heads || n < 0 || (norm != 1 && norm != 2))
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "norm %d of %d values of kv head %d, want 1 or 2, 0 or more, 0 to %d", norm,
                        n, kv_head, sh->n_kv_heads - 1);
    KVL_TRY(widened_output(ctx, layer, &wide));
    /* One part's room for all parts and heads: each is reduced to norms before the next comes. */
    float *y = kvl_arena_get(&e->scratch, NORM_VALUES * (size_t)sh->n_embd, sizeof *y);
    if (!y) return kvl_fail(ctx->err, KVL_ENOMEM, "out of memory for projected values");
    for (size_t g = 0; g < group; g++) {
        /* The columns of this query head: rows of the whole matrix lie as far apart as before. */
        struct kvl_weight w = { .data = wide + ((size_t)kv_head * group + g) * dim,
                                .type = KVL_W_F32,
                                .n_rows = sh->n_embd,
                                .n_cols = sh->head_dim,
                                .row_bytes = (size_t)sh->n_heads * dim * sizeof(float) };
        for (int32_t i = 0; i < n; i += NORM_VALUES) {
            int32_t m = KVL_MIN(NORM_VALUES, n - i);
            KVL_TRY(e->now->gemm(
                &(struct kvl_gemm_args){ .y = y, .x = values + (size_t)i * dim, .w = &w, .n = m }));
            KVL_TRY(e->now->row_norms(&(struct kvl_row_norms_args){
                .y = out + g * (size_t)n + i, .x = y, .n = m, .dim = sh->n_embd, .norm = norm }));
        }
    }
    return KVL_OK;
}

/* ---- repetitions -------------------------------------------------------------------------------- */

const struct kvl_repeated *kvl_observers_repeated(const struct kvl_session *s,
                                                  enum kvl_observer what, int32_t param)
{
    for (const struct kvl_repeated *r = s->obs ? s->obs->repeats : NULL; r; r = r->next)
        if (r->what == what && r->param == param && r->n_tok == s->n_pos) return r;
    return NULL;
}

/* Made before the policy was attached (engine/repeat.c); attach refused the policy where it was not. */
int kvl_obs_replay(const struct kvl_pctx *ctx, int32_t layer, enum kvl_observer what, int32_t param,
                   const float **score, int32_t *n_tok)
{
    const struct kvl_session *s = ctx->host->session;
    KVL_TRY(kvl_obs_check_layer(ctx, &layer));
    size_t rows = (size_t)layer * (size_t)kvl_replay_rows(ctx->shape, what);
    if (!kvl_observes_replay(what) || !kvl_observer_set_has(&s->planned->p.observers, what, param))
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "repetition (observer %d) in chunks of %d was not asked for in plan",
                        (int)what, param);
    if (ctx->host->phase != HOOK_CONTEXT)
        return kvl_fail(ctx->err, KVL_EPOLICY, "observers are there in prefilled and score only");
    const struct kvl_repeated *r = kvl_observers_repeated(s, what, param);
    *score = r->score + rows * (size_t)r->n_tok;
    *n_tok = r->n_tok;
    return KVL_OK;
}
