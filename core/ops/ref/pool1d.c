#include "ref.h"

#include <assert.h>
#include <math.h>

/* Sums in float, tokens ascending: part of the definition, so that every device ties alike. */
static float pool_one(const struct kvl_pool1d_args *a, const float *x, int32_t i)
{
    float sum = 0, max = -INFINITY;
    for (int32_t j = i - a->kernel / 2; j <= i + a->kernel / 2; j++) {
        if (j < 0 || j >= a->n) continue;
        sum += x[j];
        max = x[j] > max ? x[j] : max;
    }
    return a->average ? sum / (float)a->kernel : max;
}

int kvl_ref_pool1d(const struct kvl_pool1d_args *a)
{
    assert(a->kernel % 2 == 1);
    for (int32_t r = 0; r < a->n_rows; r++)
        for (int32_t i = 0; i < a->n; i++)
            a->y[(size_t)r * (size_t)a->n + (size_t)i] =
                pool_one(a, a->x + (size_t)r * a->x_stride, i);
    return KVL_OK;
}
