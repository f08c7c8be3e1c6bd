#include "ref.h"

#include "half.h"

static double gemm_factor(const struct kvl_gemm_args *a, float x)
{
    return (double)(a->bf16 ? kvl_bf16_to_f32(kvl_f32_to_bf16(x)) : x);
}

int kvl_ref_gemm(const struct kvl_gemm_args *a)
{
    size_t n_cols = (size_t)a->w->n_cols, n_rows = (size_t)a->w->n_rows;
    float *w = kvl_alloc(n_cols, sizeof *w);
    if (!w) return KVL_ENOMEM;
    for (int32_t r = 0; r < a->w->n_rows; r++) {
        kvl_ref_row(a->w, r, w);
        for (int32_t i = 0; i < a->n; i++) {
            double sum = 0;
            for (size_t c = 0; c < n_cols; c++)
                sum += gemm_factor(a, a->x[(size_t)i * n_cols + c]) * gemm_factor(a, w[c]);
            a->y[(size_t)i * n_rows + (size_t)r] = (float)sum;
        }
    }
    kvl_free(w);
    return KVL_OK;
}
