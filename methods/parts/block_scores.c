/* Block sums to scores of kv heads. */
#include "block_scores.h"

int kvl_block_scores(const struct kvl_pctx *ctx, int32_t layer, int32_t first, int32_t last,
                     int32_t size, int32_t n_tok, float *score, size_t stride)
{
    int32_t n = n_tok - first - last, n_sums, dim = ctx->shape->head_dim, group = ctx->shape->group;
    const float *sums;
    float *value, *norm, *mass;
    KVL_TRY(
        kvl_obs_columns(ctx, layer, KVL_OBS_BLOCKS, KVL_BLOCKS(first, last, size), &sums, &n_sums));
    if (n_sums != n_tok || n < 1)
        return kvl_fail(ctx->err, KVL_EPOLICY, "sums of blocks of %d tokens, want %d", n_sums,
                        n_tok);
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * (size_t)dim, &value));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &norm));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &mass));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        KVL_TRY(ctx->ops->group_reduce(&(struct kvl_group_reduce_args){
            .y = mass,
            .x = sums + (size_t)h * (size_t)group * (size_t)n_tok + first,
            .x_stride = (size_t)n_tok,
            .n = n,
            .n_heads = group,
            .n_kv_heads = 1,
            .reduce = KVL_REDUCE_MEAN }));
        KVL_TRY(kvl_read_value_span(ctx, layer, h, first, n, value));
        KVL_TRY(ctx->ops->row_norms(
            &(struct kvl_row_norms_args){ .y = norm, .x = value, .n = n, .dim = dim, .norm = 2 }));
        for (int32_t i = 0; i < n; i++) mass[i] *= norm[i];
        KVL_TRY(ctx->ops->pool1d(&(struct kvl_pool1d_args){ .y = score + (size_t)h * stride,
                                                            .x = mass,
                                                            .x_stride = (size_t)n,
                                                            .n_rows = 1,
                                                            .n = n,
                                                            .kernel = 3,
                                                            .average = true }));
    }
    return KVL_OK;
}
