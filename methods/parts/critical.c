/* Norms of projected values, and the two stages. */
#include "critical.h"

#include <math.h>

int kvl_projected_norms(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, int32_t first,
                        int32_t n, float *norm)
{
    int32_t group = ctx->shape->group;
    float *value, *each;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * (size_t)ctx->shape->head_dim, &value));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * (size_t)group, &each));
    KVL_TRY(kvl_read_value_span(ctx, layer, kv_head, first, n, value));
    KVL_TRY(kvl_output_norms(ctx, layer, kv_head, value, n, 1, each));
    return kvl_layer_scores(ctx, each, group, n, KVL_REDUCE_MEAN, norm);
}

int kvl_critical_stages(const struct kvl_pctx *ctx, float *score, const float *norm, int32_t n,
                        int32_t k, float epsilon)
{
    int32_t *best, n_best = KVL_MAX(0, KVL_MIN(k, n));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_best + 1, &best));
    if (n_best > 0) KVL_TRY(kvl_topk(ctx, score, 1, n, n_best, best));
    for (int32_t i = 0; i < n; i++) score[i] = (score[i] + epsilon) * norm[i];
    for (int32_t i = 0; i < n_best; i++) score[best[i]] = INFINITY;
    return KVL_OK;
}
