#include "ref.h"

#include "gemv_x.h"
#include "half.h"

static double gemm_factor(const struct kvl_gemm_args *a, float x)
{
    return (double)(a->bf16 ? kvl_bf16_to_f32(kvl_f32_to_bf16(x)) : x);
}

/* to [n_cols]: a row of x as it is multiplied. */
static void gemm_x(const struct kvl_gemm_args *a, const float *x, double *to)
{
    bool rounds = a->int16 && kvl_wtype_find((uint32_t)a->w->type)->x_int16;
    if (rounds) {
        kvl_ref_rounded(to, x, a->w->n_cols, KVL_GEMM_MOST);
        return;
    }
    for (int32_t c = 0; c < a->w->n_cols; c++) to[c] = gemm_factor(a, x[c]);
}

/* x [n][n_cols], w [n_cols]: room. */
static void gemm_rows(const struct kvl_gemm_args *a, double *x, float *w)
{
    size_t n_cols = (size_t)a->w->n_cols, n_rows = (size_t)a->w->n_rows;
    for (int32_t i = 0; i < a->n; i++) gemm_x(a, a->x + (size_t)i * n_cols, x + (size_t)i * n_cols);
    for (int32_t r = 0; r < a->w->n_rows; r++) {
        kvl_ref_row(a->w, r, w);
        for (int32_t i = 0; i < a->n; i++) {
            double sum = 0;
            for (size_t c = 0; c < n_cols; c++)
                sum += x[(size_t)i * n_cols + c] * gemm_factor(a, w[c]);
            a->y[(size_t)i * n_rows + (size_t)r] = (float)sum;
        }
    }
}

int kvl_ref_gemm(const struct kvl_gemm_args *a)
{
    double *x = kvl_alloc((size_t)a->n * (size_t)a->w->n_cols, sizeof *x);
    float *w = kvl_alloc((size_t)a->w->n_cols, sizeof *w);
    bool ok = x && w;
    if (ok) gemm_rows(a, x, w);
    kvl_free(x);
    kvl_free(w);
    return ok ? KVL_OK : KVL_ENOMEM;
}
