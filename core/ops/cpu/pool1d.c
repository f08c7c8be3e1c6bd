#include "cpu.h"

#include <assert.h>
#include <math.h>

/* Shifted copies are combined in ascending order of tokens: each output sees its inputs in the order
 * of the definition, and equals it bit for bit. */
static void pool_row(const struct kvl_pool1d_args *a, const float *x, float *y)
{
    const struct kvl_kern *kern = kvl_kern();
    int32_t half = a->kernel / 2;
    for (int32_t i = 0; i < a->n; i++) y[i] = a->average ? 0 : -INFINITY;
    for (int32_t d = -half; d <= half; d++) {
        int32_t i0 = KVL_MAX(0, -d), i1 = KVL_MIN(a->n, a->n - d);
        if (i0 >= i1) continue;
        if (a->average)
            kern->add(y + i0, x + i0 + d, (size_t)(i1 - i0));
        else
            kern->max_into(y + i0, x + i0 + d, (size_t)(i1 - i0));
    }
    if (a->average) kern->scale(y, (float)a->kernel, (size_t)a->n);
}

int kvl_cpu_pool1d(const struct kvl_pool1d_args *a)
{
    int threads = kvl_team((double)a->n_rows * a->n * a->kernel * 0.1);
    assert(a->kernel % 2 == 1);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t r = 0; r < a->n_rows; r++)
        pool_row(a, a->x + (size_t)r * a->x_stride, a->y + (size_t)r * (size_t)a->n);
    return KVL_OK;
}
