#include "cpu.h"

#include <math.h>

static void layernorm_row(float *y, const float *x, const struct kvl_layernorm_args *a)
{
    double sum = 0, square = 0;
    for (int32_t c = 0; c < a->dim; c++) sum += (double)x[c];
    double mean = sum / a->dim;
    for (int32_t c = 0; c < a->dim; c++) square += ((double)x[c] - mean) * ((double)x[c] - mean);
    float middle = (float)mean, scale = (float)(1 / sqrt(square / a->dim + (double)a->eps));
    for (int32_t c = 0; c < a->dim; c++) y[c] = (x[c] - middle) * scale * a->w[c] + a->b[c];
}

int kvl_cpu_layernorm(const struct kvl_layernorm_args *a)
{
    int threads = kvl_team((double)a->n * a->dim);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < a->n; i++) {
        size_t off = (size_t)i * (size_t)a->dim;
        layernorm_row(a->y + off, a->x + off, a);
    }
    return KVL_OK;
}
