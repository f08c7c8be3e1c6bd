#include "ref.h"

#include <assert.h>
#include <math.h>

/* x between the minimum and the maximum of its channel in the block `next`. */
static double lag_relative(const struct kvl_lag_spread_args *a, const float *next, double x,
                           int32_t c)
{
    double lo = HUGE_VAL, hi = -HUGE_VAL;
    for (int32_t i = 0; i < a->lag; i++) {
        double y = (double)next[(size_t)i * (size_t)a->dim + (size_t)c];
        lo = fmin(lo, y);
        hi = fmax(hi, y);
    }
    return hi > lo ? (x - lo) / (hi - lo) : 0;
}

static double lag_deviation(const struct kvl_lag_spread_args *a, const float *row,
                            const float *next)
{
    double sum = 0, squares = 0;
    for (int32_t c = 0; c < a->dim; c++) sum += lag_relative(a, next, (double)row[c], c);
    for (int32_t c = 0; c < a->dim; c++) {
        double d = lag_relative(a, next, (double)row[c], c) - sum / a->dim;
        squares += d * d;
    }
    return sqrt(squares / (a->dim - 1));
}

/* LagKV (Liang et al. 2025), Eq. 4 to 7. */
int kvl_ref_lag_spread(const struct kvl_lag_spread_args *a)
{
    size_t dim = (size_t)a->dim, lag = (size_t)a->lag;
    assert(a->dim > 1);
    for (size_t b = 0; b < (size_t)a->n_blocks; b++) {
        const float *x = a->x + b * lag * dim;
        float *y = a->y + b * lag;
        double top = -HUGE_VAL, sum = 0;
        for (size_t i = 0; i < lag; i++) {
            y[i] = (float)lag_deviation(a, x + i * dim, x + lag * dim);
            top = fmax(top, (double)y[i]);
        }
        for (size_t i = 0; i < lag; i++) sum += exp((double)y[i] - top);
        for (size_t i = 0; i < lag; i++) y[i] = (float)(exp((double)y[i] - top) / sum);
    }
    return KVL_OK;
}
