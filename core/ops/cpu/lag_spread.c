#include "cpu.h"

#include <assert.h>
#include <math.h>
#include <omp.h>

/* Per channel of a block: its minimum, and 1 / (maximum - minimum), or 0. */
static void lag_range(const float *x, int32_t lag, int32_t dim, float *lo, float *inverse)
{
    for (int32_t c = 0; c < dim; c++) lo[c] = inverse[c] = x[c];
    for (int32_t i = 1; i < lag; i++)
        for (int32_t c = 0; c < dim; c++) {
            float v = x[(size_t)i * (size_t)dim + (size_t)c];
            lo[c] = v < lo[c] ? v : lo[c];
            inverse[c] = v > inverse[c] ? v : inverse[c];
        }
    for (int32_t c = 0; c < dim; c++)
        inverse[c] = inverse[c] > lo[c] ? 1 / (inverse[c] - lo[c]) : 0;
}

static float lag_deviation(const float *x, const float *lo, const float *inverse, int32_t dim)
{
    double sum = 0, squares = 0;
    for (int32_t c = 0; c < dim; c++) sum += (double)((x[c] - lo[c]) * inverse[c]);
    for (int32_t c = 0; c < dim; c++) {
        double d = (double)((x[c] - lo[c]) * inverse[c]) - sum / dim;
        squares += d * d;
    }
    return (float)sqrt(squares / (dim - 1));
}

static void lag_block(const struct kvl_lag_spread_args *a, int32_t block, float *scratch)
{
    size_t dim = (size_t)a->dim, lag = (size_t)a->lag;
    const float *x = a->x + (size_t)block * lag * dim;
    float *y = a->y + (size_t)block * lag, top = 0;
    double sum = 0;
    lag_range(x + lag * dim, a->lag, a->dim, scratch, scratch + dim);
    for (size_t i = 0; i < lag; i++) {
        y[i] = lag_deviation(x + i * dim, scratch, scratch + dim, a->dim);
        top = y[i] > top ? y[i] : top;
    }
    kvl_kern()->exp_shift(y, top, lag);
    for (size_t i = 0; i < lag; i++) sum += (double)y[i];
    for (size_t i = 0; i < lag; i++) y[i] = (float)((double)y[i] / sum);
}

int kvl_cpu_lag_spread(const struct kvl_lag_spread_args *a)
{
    int threads = kvl_team((double)a->n_blocks * a->lag * a->dim * 2);
    float *scratch = kvl_cpu_scratch((size_t)threads * 2 * (size_t)a->dim * sizeof *scratch);
    assert(a->dim > 1);
    if (!scratch) return KVL_ENOMEM;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t b = 0; b < a->n_blocks; b++)
        lag_block(a, b, scratch + (size_t)omp_get_thread_num() * 2 * (size_t)a->dim);
    return KVL_OK;
}
