#include "cpu.h"

#include <math.h>

static void softmax_row(float *x, int32_t n)
{
    float top = -INFINITY;
    double sum = 0;
    for (int32_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
    kvl_kern()->exp_shift(x, top, (size_t)n);
    for (int32_t i = 0; i < n; i++) sum += (double)x[i];
    for (int32_t i = 0; i < n; i++) x[i] = (float)((double)x[i] / sum);
}

int kvl_cpu_softmax(const struct kvl_softmax_args *a)
{
    int threads = kvl_team((double)a->n_rows * a->n * 2);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t r = 0; r < a->n_rows; r++) softmax_row(a->x + (size_t)r * a->stride, a->n);
    return KVL_OK;
}
