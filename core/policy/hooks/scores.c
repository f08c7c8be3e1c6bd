/* Scores of policies: the best of rows, softmax, products, one list of several. */
#include "policy_impl.h"

/* Errors of operators have no text: here is what was asked. */
int kvl_topk(const struct kvl_pctx *ctx, const float *x, int32_t n_rows, int32_t n, int32_t k,
             int32_t *index)
{
    if (n_rows < 0 || k < 0 || k > n)
        return kvl_fail(ctx->err, KVL_EPOLICY, "the %d best of %d scores in %d rows", k, n, n_rows);
    int rc = ctx->ops->topk(&(struct kvl_topk_args){
        .index = index, .x = x, .x_stride = (size_t)n, .n_rows = n_rows, .n = n, .k = k });
    if (rc == KVL_ENUMERIC) return kvl_fail(ctx->err, rc, "a score is not a number (NaN)");
    return rc == KVL_OK ? KVL_OK : kvl_fail(ctx->err, rc, "the %d best of %d scores", k, n);
}

/* Before softmax or sums of estimates: the model caps its logits, and weights of uncapped ones would not be
 * comparable. */
int kvl_cap(const struct kvl_pctx *ctx, float *x, size_t n)
{
    if (!(ctx->shape->cap > 0)) return KVL_OK;
    return ctx->ops->scale(
        &(struct kvl_scale_args){ .y = x, .n = n, .factor = 1, .cap = ctx->shape->cap });
}

/* Rows lie one after the other, as all scores of policies do. */
int kvl_softmax(const struct kvl_pctx *ctx, float *x, int32_t n_rows, int32_t n)
{
    if (n_rows < 0 || n < 1)
        return kvl_fail(ctx->err, KVL_EPOLICY, "softmax of %d rows of %d, want 0 and 1 or more",
                        n_rows, n);
    return ctx->ops->softmax(
        &(struct kvl_softmax_args){ .x = x, .stride = (size_t)n, .n_rows = n_rows, .n = n });
}

/* With the rows of a plain matrix, as the operators want a weight. */
int kvl_product(const struct kvl_pctx *ctx, const float *x, int32_t n, const float *w,
                int32_t n_rows, int32_t n_cols, float *y)
{
    if (n < 0 || n_rows < 0 || n_cols < 1)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "products of %d vectors with %d rows of %d, want 0, 0 and 1 or more", n,
                        n_rows, n_cols);
    if (n == 0 || n_rows == 0) return KVL_OK;
    struct kvl_weight rows = { .data = w,
                               .type = KVL_W_F32,
                               .n_rows = n_rows,
                               .n_cols = n_cols,
                               .row_bytes = (size_t)n_cols * sizeof *w };
    return ctx->ops->gemm(&(struct kvl_gemm_args){ .y = y, .x = x, .w = &rows, .n = n });
}

/* MEAN_Q is of another operator; a sum over no list is nothing. */
static int scores_reduce(const struct kvl_pctx *ctx, const float *x, int32_t n_lists, int32_t n_out,
                         int32_t n, enum kvl_reduce reduce, float *score)
{
    if (reduce < KVL_REDUCE_SUM || reduce > KVL_REDUCE_FIRST)
        return kvl_fail(ctx->err, KVL_EPOLICY, "reduction %d, want sum, max, mean or first",
                        (int)reduce);
    if (n < 0 || n_lists < 1)
        return kvl_fail(ctx->err, KVL_EPOLICY, "%d lists of %d scores, want 1 and 0 or more",
                        n_lists, n);
    return ctx->ops->group_reduce(&(struct kvl_group_reduce_args){ .y = score,
                                                                   .x = x,
                                                                   .x_stride = (size_t)n,
                                                                   .n = n,
                                                                   .n_heads = n_lists,
                                                                   .n_kv_heads = n_out,
                                                                   .reduce = reduce });
}

int kvl_group_scores(const struct kvl_pctx *ctx, const float *x, int32_t n, enum kvl_reduce reduce,
                     float *score)
{
    return scores_reduce(ctx, x, ctx->shape->n_heads, ctx->shape->n_kv_heads, n, reduce, score);
}

int kvl_layer_scores(const struct kvl_pctx *ctx, const float *x, int32_t n_lists, int32_t n,
                     enum kvl_reduce reduce, float *score)
{
    return scores_reduce(ctx, x, n_lists, 1, n, reduce, score);
}
