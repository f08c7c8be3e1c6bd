#include "ref.h"

#include "half.h"

static double gemm_factor(const struct kvl_gemm_args *a, float x)
{
    return (double)(a->bf16 ? kvl_bf16_to_f32(kvl_f32_to_bf16(x)) : x);
}

int kvl_ref_gemm(const struct kvl_gemm_args *a)
{
    size_t n_cols = (size_t)a->w->n_cols, n_rows = (size_t)a->w->n_rows;
    for (int32_t i = 0; i < a->n; i++) {
        for (int32_t r = 0; r < a->w->n_rows; r++) {
            double sum = 0;
            for (int32_t c = 0; c < a->w->n_cols; c++)
                sum += gemm_factor(a, a->x[(size_t)i * n_cols + (size_t)c]) *
                       gemm_factor(a, kvl_ref_weight(a->w, r, c));
            a->y[(size_t)i * n_rows + (size_t)r] = (float)sum;
        }
    }
    return KVL_OK;
}
