#include "ref.h"

#include "gemv_x.h"

/* x as quantised weights see it: integers times the scale of their block. */
static void gemv_rounded(double *to, const float *x, int32_t n_cols)
{
    for (int32_t b = 0; b < n_cols; b += 32) {
        float top = 0, times;
        for (int32_t i = b; i < b + 32; i++) top = fmaxf(top, fabsf(x[i]));
        float scale = kvl_gemv_scale(top, &times);
        for (int32_t i = b; i < b + 32; i++)
            to[i] = (double)kvl_gemv_round(x[i], times) * (double)scale;
    }
}

/* x, w: room for a row. */
static void gemv_row(const struct kvl_gemv_args *a, int32_t i, double *x, float *w)
{
    const float *from = a->x + (size_t)i * (size_t)a->w->n_cols;
    for (int32_t c = 0; c < a->w->n_cols; c++) x[c] = (double)from[c];
    if (kvl_wtype_find((uint32_t)a->w->type)->x_int16) gemv_rounded(x, from, a->w->n_cols);
    for (int32_t r = 0; r < a->w->n_rows; r++) {
        double sum = 0;
        kvl_ref_row(a->w, r, w);
        for (int32_t c = 0; c < a->w->n_cols; c++) sum += x[c] * (double)w[c];
        a->y[(size_t)i * (size_t)a->w->n_rows + (size_t)r] = (float)sum;
    }
}

int kvl_ref_gemv(const struct kvl_gemv_args *a)
{
    for (; a; a = a->next) {
        double *x = kvl_alloc((size_t)a->w->n_cols, sizeof *x);
        float *w = kvl_alloc((size_t)a->w->n_cols, sizeof *w);
        for (int32_t i = 0; x && w && i < a->n; i++) gemv_row(a, i, x, w);
        bool ok = x && w;
        kvl_free(x);
        kvl_free(w);
        if (!ok) return KVL_ENOMEM;
    }
    return KVL_OK;
}
