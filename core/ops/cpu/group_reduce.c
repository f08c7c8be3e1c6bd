#include "cpu.h"

#include <string.h>

enum { REDUCE_STEP = 4096 }; /* what is summed up stays in L1 */

/* Heads ascending, as the definition says: equal to it bit for bit. */
static void reduce_group(const struct kvl_group_reduce_args *a, int32_t kv, int32_t i0)
{
    const struct kvl_kern *kern = kvl_kern();
    int32_t group = a->n_heads / a->n_kv_heads;
    size_t n = (size_t)KVL_MIN(REDUCE_STEP, a->n - i0);
    const float *x = a->x + (size_t)(kv * group) * a->x_stride + i0;
    float *y = a->y + (size_t)kv * (size_t)a->n + i0;
    memcpy(y, x, n * sizeof *y);
    if (a->reduce == KVL_REDUCE_FIRST) return;
    for (int32_t g = 1; g < group; g++) {
        if (a->reduce == KVL_REDUCE_MAX)
            kern->max_into(y, x + (size_t)g * a->x_stride, n);
        else
            kern->add(y, x + (size_t)g * a->x_stride, n);
    }
    if (a->reduce == KVL_REDUCE_MEAN) kern->scale(y, (float)group, n);
}

int kvl_cpu_group_reduce(const struct kvl_group_reduce_args *a)
{
    int32_t steps = (a->n + REDUCE_STEP - 1) / REDUCE_STEP;
    int threads = kvl_team((double)a->n * a->n_heads * 0.2);
    if (a->reduce < KVL_REDUCE_SUM || a->reduce > KVL_REDUCE_FIRST) return KVL_EINVAL;
    if (a->n == 0) return KVL_OK;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < steps * a->n_kv_heads; i++)
        reduce_group(a, i / steps, i % steps * REDUCE_STEP);
    return KVL_OK;
}
