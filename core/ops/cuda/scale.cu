/* An element a thread.  Limit: 8 bytes an element. */
#include "rows.cuh"

static __global__ void __launch_bounds__(KVL_LINEAR_THREADS)
    scale_all(float *y, size_t n, float factor, float cap)
{
    for (size_t i = kvl_linear_first(); i < n; i += kvl_linear_step()) {
        float x = y[i] * factor;
        y[i] = cap > 0 ? cap * tanhf(x / cap) : x;
    }
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_scale(const struct kvl_scale_args *a)
{
    struct kvl_cuda_call c;
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    float *y = kvl_cuda_inout(&c, a->y, a->n);
    if (c.rc == KVL_OK)
        KVL_LAUNCH(scale_all, kvl_linear_blocks(a->n), KVL_LINEAR_THREADS, 0, y, a->n, a->factor,
                   a->cap);
    return kvl_cuda_end(&c);
}
