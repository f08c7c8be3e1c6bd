/* A warp per row.  Limit: reading x. */
#include "rows.cuh"

enum { NORM_THREADS = 256, NORM_WARPS = NORM_THREADS / KVL_WARP };

template <int NORM>
static __global__ void __launch_bounds__(NORM_THREADS)
    norm_rows(float *y, const float *x, int32_t n, int32_t dim)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP;
    int32_t i = (int32_t)blockIdx.x * NORM_WARPS + (int32_t)threadIdx.x / KVL_WARP;
    float sum = 0;
    for (int32_t c = lane; i < n && c < dim; c += KVL_WARP) {
        float v = x[(size_t)i * (size_t)dim + (size_t)c];
        sum = NORM == 1 ? sum + fabsf(v) : fmaf(v, v, sum);
    }
    sum = kvl_warp_sum(sum);
    if (lane == 0 && i < n) y[i] = NORM == 1 ? sum : sqrtf(sum);
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_row_norms(const struct kvl_row_norms_args *a)
{
    struct kvl_cuda_call c;
    if (a->norm != 1 && a->norm != 2) return KVL_EINVAL;
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    unsigned blocks = (unsigned)kvl_ceil_div(a->n, NORM_WARPS);
    const float *x = kvl_cuda_in(&c, a->x, (size_t)a->n * (size_t)a->dim);
    float *y = kvl_cuda_out(&c, a->y, (size_t)a->n);
    if (c.rc == KVL_OK && a->norm == 1)
        KVL_LAUNCH(norm_rows<1>, blocks, NORM_THREADS, 0, y, x, a->n, a->dim);
    else if (c.rc == KVL_OK)
        KVL_LAUNCH(norm_rows<2>, blocks, NORM_THREADS, 0, y, x, a->n, a->dim);
    return kvl_cuda_end(&c);
}
