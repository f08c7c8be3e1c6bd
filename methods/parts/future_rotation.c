/* The mean of rotations, by turning unit vectors. */
#include "future_rotation.h"

#include <string.h>

/* What becomes of the j-th unit vector is column j. */
int kvl_future_rotation(const struct kvl_pctx *ctx, int32_t layer, int32_t first, int32_t n,
                        float *mean)
{
    size_t dim = (size_t)ctx->shape->head_dim;
    float *unit, *turned;
    KVL_TRY(kvl_scratch_get(ctx, dim * dim, &unit));
    KVL_TRY(kvl_scratch_get(ctx, dim * dim, &turned));
    memset(mean, 0, dim * dim * sizeof *mean);
    memset(unit, 0, dim * dim * sizeof *unit);
    for (size_t j = 0; j < dim; j++) unit[j * dim + j] = 1;
    for (int32_t p = first; p < first + n; p++) {
        KVL_TRY(kvl_rotate(ctx, layer, unit, ctx->shape->head_dim, p, turned));
        for (size_t j = 0; j < dim; j++)
            for (size_t c = 0; c < dim; c++) mean[c * dim + j] += turned[j * dim + c];
    }
    for (size_t i = 0; i < dim * dim; i++) mean[i] /= (float)n;
    return KVL_OK;
}
