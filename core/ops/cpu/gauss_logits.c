#include "cpu.h"

enum { GAUSS_ROWS = 1024 }; /* rows whose products with a covariance are kept at a time */

static double row_dot(const float *x, const float *y, int32_t dim)
{
    double sum = 0;
    for (int32_t c = 0; c < dim; c++) sum += (double)x[c] * (double)y[c];
    return sum;
}

/* Rows row0 and up of one head; product: room for their x cov. */
static int gauss_rows(const struct kvl_gauss_logits_args *a, int32_t head, int32_t row0,
                      float *product)
{
    size_t dim = (size_t)a->dim;
    int32_t n = KVL_MIN(GAUSS_ROWS, a->n - row0);
    const float *x = a->x + (size_t)row0 * dim, *mean = a->mean + (size_t)head * dim;
    float *y = a->y + (size_t)head * (size_t)a->n + (size_t)row0;
    double scale = (double)a->scale;
    if (a->cov) {
        struct kvl_weight cov = { .data = a->cov + (size_t)head * dim * dim,
                                  .type = KVL_W_F32,
                                  .n_rows = a->dim,
                                  .n_cols = a->dim,
                                  .row_bytes = dim * sizeof(float) };
        KVL_TRY(kvl_cpu_gemm(&(struct kvl_gemm_args){ .y = product, .x = x, .w = &cov, .n = n }));
    }
    int threads = kvl_team((double)n * a->dim);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < n; i++) {
        const float *row = x + (size_t)i * dim;
        double logit = scale * row_dot(row, mean, a->dim);
        if (a->cov) logit += scale * scale / 2 * row_dot(row, product + (size_t)i * dim, a->dim);
        y[i] = (float)logit;
    }
    return KVL_OK;
}

/* Multiplying by the covariance is nearly all of it: d^2 for every row and head. */
int kvl_cpu_gauss_logits(const struct kvl_gauss_logits_args *a)
{
    float *product = kvl_alloc((size_t)GAUSS_ROWS * (size_t)a->dim, sizeof *product);
    int rc = product ? KVL_OK : KVL_ENOMEM;
    for (int32_t h = 0; h < a->n_heads; h++)
        for (int32_t row0 = 0; rc == KVL_OK && row0 < a->n; row0 += GAUSS_ROWS)
            rc = gauss_rows(a, h, row0, product);
    kvl_free(product);
    return rc;
}
