/* What the last queries of a context attend to when they see each other's keys and those after them: from their causal
 * weights, and the keys that these leave out. */
#include "policy_impl.h"

#include <math.h>
#include <string.h>

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

int kvl_obs_window_unmasked(const struct kvl_pctx *ctx, int32_t layer, int32_t window,
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
