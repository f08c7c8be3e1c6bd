/* What a prefill mask is guessed from. */
#include "mask_estimates.h"

#include <string.h>

/* mean [dim] of n rows of x, `stride` elements apart. */
static void read_mean(const float *x, size_t stride, int32_t n, size_t dim, float *mean)
{
    memset(mean, 0, dim * sizeof *mean);
    for (int32_t i = 0; i < n; i++)
        for (size_t c = 0; c < dim; c++) mean[c] += x[(size_t)i * stride + c];
    for (size_t c = 0; c < dim; c++) mean[c] /= (float)n;
}

/* Room for means of n rows. */
static int read_means(const struct kvl_pctx *ctx, int32_t n, int32_t block_tok, float **mean)
{
    if (n < 0 || block_tok < 1)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "means of %d rows in blocks of %d, want 0 and 1 or more", n, block_tok);
    return kvl_scratch_get(ctx, ((size_t)n / (size_t)block_tok + 1) * (size_t)ctx->shape->head_dim,
                           mean);
}

int kvl_key_means(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, int32_t n,
                  int32_t block_tok, float **mean)
{
    size_t dim = (size_t)ctx->shape->head_dim;
    float *key;
    KVL_TRY(read_means(ctx, n, block_tok, mean));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)block_tok * dim, &key));
    for (int32_t at = 0; at < n; at += block_tok) {
        int32_t rows = KVL_MIN(block_tok, n - at);
        KVL_TRY(kvl_read_key_span(ctx, layer, kv_head, at, rows, false, key));
        read_mean(key, dim, rows, dim, *mean + (size_t)(at / block_tok) * dim);
    }
    return KVL_OK;
}

int kvl_query_means(const struct kvl_pctx *ctx, const struct kvl_step *step,
                    const struct kvl_query *q, int32_t head, int32_t block_tok, float **mean)
{
    size_t dim = (size_t)ctx->shape->head_dim, stride = (size_t)ctx->shape->n_heads * dim;
    if (head < 0 || head >= ctx->shape->n_heads)
        return kvl_fail(ctx->err, KVL_EPOLICY, "means of query head %d, want 0 to %d", head,
                        ctx->shape->n_heads - 1);
    KVL_TRY(read_means(ctx, step->n_tok, block_tok, mean));
    for (int32_t at = 0; at < step->n_tok; at += block_tok)
        read_mean(q->q + (size_t)at * stride + (size_t)head * dim, stride,
                  KVL_MIN(block_tok, step->n_tok - at), dim,
                  *mean + (size_t)(at / block_tok) * dim);
    return KVL_OK;
}

/* Adds what one query, which stands behind n - 1 keys, put on columns and diagonals: p [n]. */
static void mask_sum_row(const float *p, int32_t n, float *column, float *diagonal)
{
    for (int32_t j = 0; j < n; j++) column[j] += p[j];
    for (int32_t d = 0; d < n; d++) diagonal[d] += p[n - 1 - d];
}

int kvl_mask_sums(const struct kvl_pctx *ctx, const struct kvl_step *step,
                  const struct kvl_query *q, int32_t last, float **column, float **diagonal)
{
    size_t heads = (size_t)ctx->shape->n_heads, row = (size_t)(step->pos + step->n_tok);
    float *probs;
    KVL_TRY(kvl_scratch_get(ctx, heads * row, column));
    KVL_TRY(kvl_scratch_get(ctx, heads * row, diagonal));
    KVL_TRY(kvl_scratch_get(ctx, heads * row, &probs));
    memset(*column, 0, heads * row * sizeof **column);
    memset(*diagonal, 0, heads * row * sizeof **diagonal);
    for (int32_t i = KVL_MAX(0, step->n_tok - last); i < step->n_tok; i++) {
        int32_t n = step->pos + i + 1;
        KVL_TRY(kvl_mask_weights(ctx, step, q, i, probs, n));
        for (size_t h = 0; h < heads; h++)
            mask_sum_row(probs + h * (size_t)n, n, *column + h * row, *diagonal + h * row);
    }
    return KVL_OK;
}
