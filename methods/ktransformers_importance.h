/* ktransformers_importance.h - how important the tokens of a context are: what the last queries attend
 * to, per query head; and blocks of them. */
#ifndef KVL_KTRANSFORMERS_IMPORTANCE_H
#define KVL_KTRANSFORMERS_IMPORTANCE_H

#include "ktransformers_options.h"

#include <math.h>

/* Queries that count: published, those of the last prefill chunk only. */
static inline int32_t kt_queries(const struct kt_opts *o, int32_t n_tok)
{
    int32_t chunk = o->compat ? (n_tok - 1) % KT_CHUNK_TOK + 1 : n_tok;
    return KVL_MIN(o->importance_window, chunk);
}

static inline double kt_dot(const float *a, const float *b, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* What the query `back` before the newest, of one head, adds when it also sees the keys behind it:
 * probs [n_tok] are its causal weights, ahead [back][head_dim] those keys. */
static void kt_add_without_mask(const struct kvl_pctx *ctx, const float *q, const float *ahead,
                                int32_t back, double lse, const float *probs, int32_t n_tok,
                                float *sum)
{
    int32_t dim = ctx->shape->head_dim, first = n_tok - back;
    double total = 1, scale = 1 / sqrt((double)dim);
    for (int32_t i = 0; i < back; i++)
        total += exp(kt_dot(q, ahead + (size_t)i * (size_t)dim, dim) * scale - lse);
    for (int32_t t = 0; t < first; t++) sum[t] += (float)((double)probs[t] / total);
    for (int32_t i = 0; i < back; i++)
        sum[first + i] +=
            (float)(exp(kt_dot(q, ahead + (size_t)i * (size_t)dim, dim) * scale - lse) / total);
}

/* Log-sum-exp of a causal row, from its largest weight. */
static int kt_row_lse(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, const float *q,
                      const float *probs, int32_t n, float *key, double *out)
{
    int32_t top = 0, dim = ctx->shape->head_dim;
    for (int32_t t = 1; t < n; t++)
        if (probs[t] > probs[top]) top = t;
    KVL_TRY(kvl_read_keys(ctx, layer, kv_head, &top, 1, false, key));
    *out = kt_dot(q, key, dim) / sqrt((double)dim) - log((double)probs[top]);
    return KVL_OK;
}

struct kt_unmasked {
    float *q, *probs, *keys, *key, *sum;
    int32_t *pos;
};

static int kt_unmasked_query(const struct kvl_pctx *ctx, int32_t layer, int32_t back, int32_t n_tok,
                             int32_t window, const struct kt_unmasked *u)
{
    size_t dim = (size_t)ctx->shape->head_dim, n = (size_t)n_tok;
    int32_t group = ctx->shape->n_heads / ctx->shape->n_kv_heads;
    KVL_TRY(kvl_obs_window_query(ctx, layer, back, u->q));
    KVL_TRY(kvl_obs_window_probs(ctx, layer, back, u->probs, n_tok));
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        const float *q = u->q + (size_t)h * dim, *probs = u->probs + (size_t)h * n;
        const float *ahead =
            u->keys + ((size_t)(h / group) * (size_t)window + (size_t)(window - back)) * dim;
        double lse;
        KVL_TRY(kt_row_lse(ctx, layer, h / group, q, probs, n_tok - back, u->key, &lse));
        kt_add_without_mask(ctx, q, ahead, back, lse, probs, n_tok, u->sum + (size_t)h * n);
    }
    return KVL_OK;
}

/* compat: the published code has no causal mask among the last queries. */
static int kt_importance_without_mask(const struct kvl_pctx *ctx, int32_t layer, int32_t n_tok,
                                      int32_t window, const float **out)
{
    size_t dim = (size_t)ctx->shape->head_dim, n = (size_t)n_tok, w = (size_t)window;
    size_t heads = (size_t)ctx->shape->n_heads, kv_heads = (size_t)ctx->shape->n_kv_heads;
    struct kt_unmasked u = { .q = kvl_scratch(ctx, heads * dim),
                             .probs = kvl_scratch(ctx, heads * n),
                             .keys = kvl_scratch(ctx, kv_heads * w * dim),
                             .key = kvl_scratch(ctx, dim),
                             .sum = kvl_scratch(ctx, heads * n),
                             .pos = (int32_t *)(void *)kvl_scratch(ctx, w) };
    if (!u.q || !u.probs || !u.keys || !u.key || !u.sum || !u.pos)
        return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %d weights", n_tok);
    memset(u.sum, 0, heads * n * sizeof *u.sum);
    for (int32_t i = 0; i < window; i++) u.pos[i] = n_tok - window + i;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(kvl_read_keys(ctx, layer, h, u.pos, window, false, u.keys + (size_t)h * w * dim));
    for (int32_t back = 0; back < window; back++)
        KVL_TRY(kt_unmasked_query(ctx, layer, back, n_tok, window, &u));
    *out = u.sum;
    return KVL_OK;
}

/* importance [n_heads][n_tok]. */
static int kt_importance(const struct kvl_pctx *ctx, int32_t layer, const float **importance,
                         int32_t *n_tok)
{
    const struct kt_opts *o = ctx->opts;
    int32_t window = kt_queries(o, ctx->context_tok);
    *n_tok = ctx->context_tok;
    if (o->compat) return kt_importance_without_mask(ctx, layer, *n_tok, window, importance);
    return kvl_obs_window_mass(ctx, layer, window, importance, n_tok);
}

/* Lists that choose blocks, and what their heads' importance of tokens is on average: [lists][n_tok]. */
static int32_t kt_lists(const struct kvl_pctx *ctx)
{
    const struct kt_opts *o = ctx->opts;
    return o->head_select_mode == KT_SHARED ? 1 : ctx->shape->n_kv_heads;
}

/* Mean importance of a block and a quarter of a block on either side. */
static float kt_block_mean(const struct kt_opts *o, const float *token, int32_t n_tok,
                           int32_t block)
{
    int32_t margin = o->block_size / 4;
    int32_t first = KVL_MAX(0, block * o->block_size - margin);
    int32_t last = KVL_MIN(n_tok, (block + 1) * o->block_size + margin);
    if (last - first == 1) return token[first];
    double sum = 0;
    for (int32_t t = first; t < last; t++) sum += (double)token[t];
    return (float)(sum / (last - first));
}

/* out [lists][n_blocks] of the first n_blocks blocks, in scratch. */
static int kt_block_importance(const struct kvl_pctx *ctx, int32_t layer, int32_t n_blocks,
                               float **out)
{
    const struct kt_opts *o = ctx->opts;
    int32_t n_lists = kt_lists(ctx), n_tok;
    const float *importance;
    KVL_TRY(kt_importance(ctx, layer, &importance, &n_tok));
    float *token = kvl_scratch(ctx, (size_t)n_lists * (size_t)n_tok);
    *out = kvl_scratch(ctx, (size_t)n_lists * (size_t)n_blocks);
    if (!token || !*out) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %d blocks", n_blocks);
    struct kvl_group_reduce_args mean = { .y = token,
                                          .x = importance,
                                          .x_stride = (size_t)n_tok,
                                          .n = n_tok,
                                          .n_heads = ctx->shape->n_heads,
                                          .n_kv_heads = n_lists,
                                          .reduce = KVL_REDUCE_MEAN };
    KVL_TRY(ctx->ops->group_reduce(&mean));
    for (int32_t i = 0; i < n_lists; i++)
        for (int32_t b = 0; b < n_blocks; b++)
            (*out)[(size_t)i * (size_t)n_blocks + (size_t)b] =
                kt_block_mean(o, token + (size_t)i * (size_t)n_tok, n_tok, b);
    return KVL_OK;
}

#endif
