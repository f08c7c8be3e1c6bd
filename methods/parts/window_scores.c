/* Scores of a context by what its last queries attend to, and what they would attend to without a mask. */
#include "window_scores.h"

#include <math.h>
#include <string.h>

/* ---- scores (SnapKV) ------------------------------------------------------------------------------ */

static int window_pool(const struct kvl_pctx *ctx, const struct kvl_window_scores *w, float *y,
                       const float *x, size_t x_stride, int32_t n_rows, int32_t n)
{
    return ctx->ops->pool1d(&(struct kvl_pool1d_args){ .y = y,
                                                       .x = x,
                                                       .x_stride = x_stride,
                                                       .n_rows = n_rows,
                                                       .n = n,
                                                       .kernel = w->kernel,
                                                       .average = w->average });
}

static int window_reduce(const struct kvl_pctx *ctx, const struct kvl_window_scores *w, float *y,
                         const float *x, size_t x_stride, int32_t n)
{
    return ctx->ops->group_reduce(&(struct kvl_group_reduce_args){ .y = y,
                                                                   .x = x,
                                                                   .x_stride = x_stride,
                                                                   .n = n,
                                                                   .n_heads = ctx->shape->group,
                                                                   .n_kv_heads = 1,
                                                                   .reduce = w->reduce });
}

/* mass: rows of the group's query heads, n_tok apart; score [n] gets the kv head's scores. */
static int window_lane(const struct kvl_pctx *ctx, const struct kvl_window_scores *w, float *score,
                       const float *mass, int32_t n_tok, int32_t n, float *scratch)
{
    if (w->pool_first) {
        KVL_TRY(window_pool(ctx, w, scratch, mass, (size_t)n_tok, ctx->shape->group, n));
        return window_reduce(ctx, w, score, scratch, (size_t)n, n);
    }
    KVL_TRY(window_reduce(ctx, w, scratch, mass, (size_t)n_tok, n));
    return window_pool(ctx, w, score, scratch, (size_t)n, 1, n);
}

int kvl_window_scores(const struct kvl_pctx *ctx, int32_t layer, const struct kvl_window_scores *w,
                      float *score, int32_t n_tok)
{
    size_t group = (size_t)ctx->shape->group;
    int32_t n_mass, n = n_tok - w->window;
    const float *mass;
    float *scratch;
    KVL_TRY(kvl_obs_window_mass(ctx, layer, w->window, &mass, &n_mass));
    if (n < 0 || n_tok > n_mass)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "scores of %d tokens by a window of %d, want %d to %d tokens", n_tok,
                        w->window, w->window, n_mass);
    KVL_TRY(kvl_scratch_get(ctx, group * (size_t)n, &scratch));
    for (size_t h = 0; h < (size_t)ctx->shape->n_kv_heads; h++)
        KVL_TRY(window_lane(ctx, w, score + h * (size_t)n_tok, mass + h * group * (size_t)n_mass,
                            n_mass, n, scratch));
    return KVL_OK;
}

/* ---- without a causal mask --------------------------------------------------------------------------
 * Queries see each other's keys and those after them: from their causal weights, and the keys that these leave out. */

/* One head of the query that lies `back` tokens before the newest. */
struct unmasked_row {
    const float *q, *probs; /* probs [n_tok]: its causal weights */
    const float *ahead;     /* [back][head_dim] the keys after it */
    int32_t kv_head, back;
};

static double unmasked_logit(const struct kvl_shape *shape, const float *q, const float *key)
{
    double sum = 0, scale = (double)shape->scale, cap = (double)shape->cap;
    for (int32_t i = 0; i < shape->head_dim; i++) sum += (double)q[i] * (double)key[i];
    return cap > 0 ? cap * tanh(sum * scale / cap) : sum * scale;
}

/* Adds its weights when it also sees the keys after it; key: room for one.  The log-sum-exp of the causal
 * row follows from its largest weight. */
static int unmasked_add(const struct kvl_pctx *ctx, int32_t layer, const struct unmasked_row *r,
                        float *key, float *sum)
{
    int32_t dim = ctx->shape->head_dim, n = ctx->context_tok - r->back, top = 0;
    double total = 1;
    for (int32_t t = 1; t < n; t++)
        if (r->probs[t] > r->probs[top]) top = t;
    KVL_TRY(kvl_read_key_span(ctx, layer, r->kv_head, top, 1, false, key));
    double lse = unmasked_logit(ctx->shape, r->q, key) - log((double)r->probs[top]);
    for (int32_t i = 0; i < r->back; i++)
        total += exp(unmasked_logit(ctx->shape, r->q, r->ahead + i * dim) - lse);
    for (int32_t t = 0; t < n; t++) sum[t] += (float)((double)r->probs[t] / total);
    for (int32_t i = 0; i < r->back; i++)
        sum[n + i] +=
            (float)(exp(unmasked_logit(ctx->shape, r->q, r->ahead + i * dim) - lse) / total);
    return KVL_OK;
}

int kvl_window_unmasked(const struct kvl_pctx *ctx, int32_t layer, int32_t window,
                        const float **mass)
{
    const struct kvl_shape *sh = ctx->shape;
    if (window < 1 || window > ctx->context_tok)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "a window of %d queries without a mask, want 1 to %d", window,
                        ctx->context_tok);
    size_t dim = (size_t)sh->head_dim, n = (size_t)ctx->context_tok, w = (size_t)window;
    size_t heads = (size_t)sh->n_heads;
    float *q, *probs, *keys, *key, *sum;
    KVL_TRY(kvl_scratch_get(ctx, heads * dim, &q));
    KVL_TRY(kvl_scratch_get(ctx, heads * n, &probs));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)sh->n_kv_heads * w * dim, &keys));
    KVL_TRY(kvl_scratch_get(ctx, dim, &key));
    KVL_TRY(kvl_scratch_get(ctx, heads * n, &sum));
    memset(sum, 0, heads * n * sizeof *sum);
    for (int32_t h = 0; h < sh->n_kv_heads; h++)
        KVL_TRY(kvl_read_key_span(ctx, layer, h, ctx->context_tok - window, window, false,
                                  keys + (size_t)h * w * dim));
    for (int32_t back = 0; back < window; back++) {
        KVL_TRY(kvl_obs_window_query(ctx, layer, back, q));
        KVL_TRY(kvl_obs_window_probs(ctx, layer, back, probs, ctx->context_tok));
        for (size_t h = 0; h < heads; h++) {
            size_t kv_head = h / (size_t)sh->group;
            struct unmasked_row row = { .q = q + h * dim,
                                        .probs = probs + h * n,
                                        .ahead =
                                            keys + (kv_head * w + (size_t)(window - back)) * dim,
                                        .kv_head = (int32_t)kv_head,
                                        .back = back };
            KVL_TRY(unmasked_add(ctx, layer, &row, key, sum + h * n));
        }
    }
    *mass = sum;
    return KVL_OK;
}
