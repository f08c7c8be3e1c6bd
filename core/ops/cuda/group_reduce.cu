/* A thread per score of a kv head adds its group's in the order of the definition: equal to it bit for bit.
 *
 * Limit: the scores of all query heads once, 4 bytes each, and those of kv heads written.  Not timed yet. */
#include "cuda.cuh"

enum { REDUCE_THREADS = 256 };

static __global__ void reduce_scores(struct kvl_group_reduce_args a)
{
    int32_t i = (int32_t)(blockIdx.x * REDUCE_THREADS + threadIdx.x), kv = (int32_t)blockIdx.y;
    int32_t group = a.reduce == KVL_REDUCE_FIRST ? 1 : a.n_heads / a.n_kv_heads;
    if (i >= a.n) return;
    const float *x = a.x + (size_t)(kv * (a.n_heads / a.n_kv_heads)) * a.x_stride + i;
    float y = *x;
    for (int32_t g = 1; g < group; g++) {
        float b = x[(size_t)g * a.x_stride];
        y = a.reduce != KVL_REDUCE_MAX ? y + b : b > y ? b : y;
    }
    a.y[(size_t)kv * (size_t)a.n + (size_t)i] = a.reduce == KVL_REDUCE_MEAN ? y / (float)group : y;
}

int kvl_cuda_group_reduce(const struct kvl_group_reduce_args *a)
{
    struct kvl_cuda_call c;
    struct kvl_group_reduce_args d = *a;
    size_t n = (size_t)a->n;
    if (a->reduce < KVL_REDUCE_SUM || a->reduce > KVL_REDUCE_FIRST) return KVL_EINVAL;
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    d.x = kvl_cuda_in(&c, a->x, (size_t)(a->n_heads - 1) * a->x_stride + n);
    d.y = kvl_cuda_out(&c, a->y, (size_t)a->n_kv_heads * n);
    dim3 grid((unsigned)kvl_ceil_div(a->n, REDUCE_THREADS), (unsigned)a->n_kv_heads);
    if (c.rc == KVL_OK) KVL_LAUNCH(reduce_scores, grid, dim3(REDUCE_THREADS), 0, d);
    return kvl_cuda_end(&c);
}
