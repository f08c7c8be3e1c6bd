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
        kvl_ref_rounded(to, x, a->w->n_cols, 32, KVL_GEMM_MOST);
        return;
    }
    for (int32_t c = 0; c < a->w->n_cols; c++) to[c] = gemm_factor(a, x[c]);
}

/* sum [n]: every row of x times w; x [n_cols][n].  They grow together, each in the order of the columns. */
static void gemm_sums(const struct kvl_gemm_args *a, const double *x, const float *w,
                      double *restrict sum)
{
    size_t n = (size_t)a->n, n_cols = (size_t)a->w->n_cols;
    for (size_t i = 0; i < n; i++) sum[i] = 0;
    for (size_t c = 0; c < n_cols; c++) {
        double factor = gemm_factor(a, w[c]);
        for (size_t i = 0; i < n; i++) sum[i] += x[c * n + i] * factor;
    }
}

/* x [n_cols][n], row [max(n, n_cols)], w [n_cols]: room. */
static void gemm_rows(const struct kvl_gemm_args *a, double *x, double *row, float *w)
{
    size_t n = (size_t)a->n, n_cols = (size_t)a->w->n_cols, n_rows = (size_t)a->w->n_rows;
    for (size_t i = 0; i < n; i++) {
        gemm_x(a, a->x + i * n_cols, row);
        for (size_t c = 0; c < n_cols; c++) x[c * n + i] = row[c];
    }
    for (size_t r = 0; r < n_rows; r++) {
        kvl_ref_row(a->w, (int32_t)r, w);
        gemm_sums(a, x, w, row);
        for (size_t i = 0; i < n; i++) a->y[i * n_rows + r] = (float)row[i];
    }
}

int kvl_ref_gemm(const struct kvl_gemm_args *a)
{
    size_t n = (size_t)a->n, n_cols = (size_t)a->w->n_cols;
    double *x = kvl_alloc(n * n_cols, sizeof *x);
    double *row = kvl_alloc(KVL_MAX(n, n_cols), sizeof *row);
    float *w = kvl_alloc(n_cols, sizeof *w);
    bool ok = x && row && w;
    if (ok) gemm_rows(a, x, row, w);
    kvl_free(x);
    kvl_free(row);
    kvl_free(w);
    return ok ? KVL_OK : KVL_ENOMEM;
}
