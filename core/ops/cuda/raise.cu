/* A thread per element.  Limit: 12 bytes an element, two read and one written.  Not timed yet. */
#include "cuda.cuh"

enum { RAISE_THREADS = 256 };

static __global__ void raise_to(struct kvl_raise_args a)
{
    size_t i = (size_t)blockIdx.x * RAISE_THREADS + threadIdx.x;
    if (i >= a.n) return;
    float x = a.factor * a.x[i];
    if (x > a.y[i]) a.y[i] = x;
}

int kvl_cuda_raise(const struct kvl_raise_args *a)
{
    struct kvl_cuda_call c;
    struct kvl_raise_args d = *a;
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    d.x = kvl_cuda_in(&c, a->x, a->n);
    d.y = kvl_cuda_inout(&c, a->y, a->n);
    dim3 grid((unsigned)kvl_ceil_div((int64_t)a->n, RAISE_THREADS));
    if (c.rc == KVL_OK) KVL_LAUNCH(raise_to, grid, dim3(RAISE_THREADS), 0, d);
    return kvl_cuda_end(&c);
}
