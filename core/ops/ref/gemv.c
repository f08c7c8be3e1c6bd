#include "ref.h"

#include "gemv_x.h"

/* x, w: room for a row. */
static void gemv_row(const struct kvl_gemv_args *a, int32_t i, double *x, float *w)
{
    const float *from = a->x + (size_t)i * (size_t)a->w->n_cols;
    for (int32_t c = 0; c < a->w->n_cols; c++) x[c] = (double)from[c];
    const struct kvl_wtype_row *t = kvl_wtype_find((uint32_t)a->w->type);
    if (t->x_int16)
        kvl_ref_rounded(x, from, a->w->n_cols, a->q8 ? t->block : 32,
                        a->q8 ? KVL_GEMV_MOST8 : KVL_GEMV_MOST);
    for (int32_t r = 0; r < a->w->n_rows; r++) {
        double sum = 0;
        kvl_ref_row(a->w, r, w);
        for (int32_t c = 0; c < a->w->n_cols; c++) sum += x[c] * (double)w[c];
        a->y[(size_t)i * (size_t)a->w->n_rows + (size_t)r] = (float)sum;
    }
}

/* y = w x, and nothing made of it. */
static int gemv_plain(const struct kvl_gemv_args *a, const struct kvl_weight *w, float *y)
{
    const struct kvl_gemv_args plain = { .y = y, .x = a->x, .w = w, .n = a->n, .q8 = a->q8 };
    double *x = kvl_alloc((size_t)w->n_cols, sizeof *x);
    float *row = kvl_alloc((size_t)w->n_cols, sizeof *row);
    for (int32_t i = 0; x && row && i < a->n; i++) gemv_row(&plain, i, x, row);
    bool ok = x && row;
    kvl_free(x);
    kvl_free(row);
    return ok ? KVL_OK : KVL_ENOMEM;
}

static void gemv_bias(const struct kvl_gemv_args *a, float *y, const float *bias, size_t n)
{
    for (size_t i = 0; bias && i < n; i++) y[i] += bias[i % (size_t)a->w->n_rows];
}

/* p, u [n]: the product, and room. */
static int gemv_made(const struct kvl_gemv_args *a, float *p, float *u, size_t n)
{
    KVL_TRY(gemv_plain(a, a->w, p));
    gemv_bias(a, p, a->bias, n);
    if (a->up) {
        KVL_TRY(gemv_plain(a, a->up, u));
        gemv_bias(a, u, a->up_bias, n);
        KVL_TRY(kvl_ref_glu(
            &(struct kvl_glu_args){ .y = p, .gate = p, .up = u, .n = n, .act = a->act }));
    }
    for (size_t i = 0; i < n; i++) a->y[i] = a->add ? a->y[i] + p[i] : p[i];
    return KVL_OK;
}

int kvl_ref_gemv(const struct kvl_gemv_args *a)
{
    int rc = KVL_OK;
    for (; a && rc == KVL_OK; a = a->next) {
        size_t n = (size_t)a->n * (size_t)a->w->n_rows;
        float *p = kvl_alloc(2 * n + 1, sizeof *p);
        rc = p ? gemv_made(a, p, p + n, n) : KVL_ENOMEM;
        kvl_free(p);
    }
    return rc;
}
