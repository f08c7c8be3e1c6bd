#include "cpu.h"

#include <math.h>

/* Rows whose directions are summed up together: the pieces of the mean do not depend on the threads. */
enum { COSINE_ROWS = 1024 };

static double row_dot(const float *x, const float *y, int32_t dim)
{
    double sum = 0;
    for (int32_t c = 0; c < dim; c++) sum += (double)x[c] * (double)y[c];
    return sum;
}

static void add_directions(const struct kvl_mean_cosine_args *a, int32_t row0, double *sum)
{
    size_t dim = (size_t)a->dim;
    for (int32_t i = row0; i < KVL_MIN(a->n, row0 + COSINE_ROWS); i++) {
        const float *x = a->x + (size_t)i * dim;
        double norm = sqrt(row_dot(x, x, a->dim));
        if (norm <= 0) continue;
        for (size_t c = 0; c < dim; c++) sum[c] += (double)x[c] / norm;
    }
}

int kvl_cpu_mean_cosine(const struct kvl_mean_cosine_args *a)
{
    size_t dim = (size_t)a->dim;
    int32_t n_parts = (a->n + COSINE_ROWS - 1) / COSINE_ROWS;
    int threads = kvl_team((double)a->n * a->dim);
    double *part = kvl_cpu_scratch(((size_t)n_parts + 1) * dim * sizeof *part);
    if (!part) return KVL_ENOMEM;
    for (size_t i = 0; i < ((size_t)n_parts + 1) * dim; i++) part[i] = 0;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t p = 0; p < n_parts; p++)
        add_directions(a, p * COSINE_ROWS, part + ((size_t)p + 1) * dim);
    float *anchor = (float *)(void *)part; /* in the room before the parts */
    for (size_t c = 0; c < dim; c++) {
        double sum = 0;
        for (size_t p = 0; p < (size_t)n_parts; p++) sum += part[(p + 1) * dim + c];
        anchor[c] = (float)(sum / a->n);
    }
    double length = row_dot(anchor, anchor, a->dim);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < a->n; i++) {
        const float *x = a->x + (size_t)i * dim;
        double norms = sqrt(length * row_dot(x, x, a->dim));
        a->y[i] = norms > 0 ? (float)(row_dot(x, anchor, a->dim) / norms) : 0;
    }
    return KVL_OK;
}
