/* A thread per token takes its window in the order of the definition: equal to it bit for bit.  Windows of
 * neighbours overlap, so all but one of a window's reads come from L1.
 *
 * Limit: 8 bytes a score for the short kernels that methods use (5, 7); with long ones the loads of a window,
 * `kernel` per score.  Not timed yet. */
#include "cuda.cuh"

enum { POOL_THREADS = 256 };

static __global__ void pool_row(struct kvl_pool1d_args a)
{
    int32_t i = (int32_t)(blockIdx.x * POOL_THREADS + threadIdx.x), half = a.kernel / 2;
    if (i >= a.n) return;
    const float *x = a.x + (size_t)blockIdx.y * a.x_stride;
    int32_t from = i > half ? i - half : 0, to = KVL_MIN(half, a.n - 1 - i) + i;
    float sum = 0, max = -INFINITY;
    for (int32_t j = from; j <= to; j++) {
        sum += x[j];
        max = x[j] > max ? x[j] : max;
    }
    a.y[(size_t)blockIdx.y * (size_t)a.n + (size_t)i] = a.average ? sum / (float)a.kernel : max;
}

int kvl_cuda_pool1d(const struct kvl_pool1d_args *a)
{
    struct kvl_cuda_call c;
    struct kvl_pool1d_args d = *a;
    size_t n = (size_t)a->n, rows = (size_t)a->n_rows;
    assert(a->kernel % 2 == 1 && a->n_rows <= 65535);
    if (a->n == 0 || a->n_rows == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    d.x = kvl_cuda_in(&c, a->x, (rows - 1) * a->x_stride + n);
    d.y = kvl_cuda_out(&c, a->y, rows * n);
    dim3 grid((unsigned)kvl_ceil_div(a->n, POOL_THREADS), (unsigned)a->n_rows);
    if (c.rc == KVL_OK) KVL_LAUNCH(pool_row, grid, dim3(POOL_THREADS), 0, d);
    return kvl_cuda_end(&c);
}
