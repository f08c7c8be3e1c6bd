#include "ops/cpu/cpu.h"

#include <assert.h>
#include <string.h>

/* Heads ascending, as the definition says: equal to it bit for bit. */
static void reduce_group(const struct kvl_group_reduce_args *a, int32_t kv)
{
    const struct kvl_kern *kern = kvl_kern();
    int32_t group = a->n_heads / a->n_kv_heads;
    size_t n = (size_t)a->n;
    const float *x = a->x + (size_t)(kv * group) * a->x_stride;
    float *y = a->y + (size_t)kv * n;
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
    int threads = kvl_team((double)a->n * a->n_heads * 0.2);
    assert(a->reduce != KVL_REDUCE_NONE && a->reduce != KVL_REDUCE_MEAN_Q);
    if (a->n == 0) return KVL_OK;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t kv = 0; kv < a->n_kv_heads; kv++) reduce_group(a, kv);
    return KVL_OK;
}
