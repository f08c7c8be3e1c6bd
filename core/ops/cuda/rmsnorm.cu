/* A block per row, four neighbouring elements a thread; the second pass over x comes from the cache.  In decode
 * one row of some thousand floats: what it takes is the launch and one trip to memory and back, so that a row
 * has as many threads as it has use for. */
#include "rows.cuh"

enum { RMSNORM_MAX_THREADS = 1024 };

template <bool WIDE>
static __global__ void __launch_bounds__(RMSNORM_MAX_THREADS)
    rmsnorm_row(float *y, const float *x, const float *w, int32_t dim, float eps)
{
    __shared__ float room[KVL_WARP];
    size_t n = (size_t)dim, n_fours = (n + 3) / 4;
    float sum = 0, v[4], f[4];
    x += (size_t)blockIdx.x * n;
    y += (size_t)blockIdx.x * n;
    for (size_t i = threadIdx.x; i < n_fours; i += blockDim.x) {
        kvl_four<WIDE>(v, x, i, n);
        for (int j = 0; j < 4; j++) sum = fmaf(v[j], v[j], sum);
    }
    sum = kvl_block_sum(sum, room);
    float scale = 1.0f / sqrtf(sum / (float)dim + eps);
    for (size_t i = threadIdx.x; i < n_fours; i += blockDim.x) {
        kvl_four<WIDE>(v, x, i, n);
        kvl_four<WIDE>(f, w, i, n);
        for (int j = 0; j < 4; j++) v[j] = v[j] * scale * f[j];
        kvl_put_four<WIDE>(y, i, n, v);
    }
}

/* ---- launch ---------------------------------------------------------------------------------------- */

static void rmsnorm_launch(float *y, const float *x, const float *w,
                           const struct kvl_rmsnorm_args *a)
{
    bool wide = a->dim % 4 == 0 && kvl_aligned16(x) && kvl_aligned16(y) && kvl_aligned16(w);
    int32_t threads = kvl_ceil_div(a->dim, 4 * KVL_WARP) * KVL_WARP;
    threads = KVL_MIN(threads, (int32_t)RMSNORM_MAX_THREADS);
    if (wide)
        KVL_LAUNCH(rmsnorm_row<true>, (unsigned)a->n, (unsigned)threads, 0, y, x, w, a->dim,
                   a->eps);
    else
        KVL_LAUNCH(rmsnorm_row<false>, (unsigned)a->n, (unsigned)threads, 0, y, x, w, a->dim,
                   a->eps);
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_rmsnorm(const struct kvl_rmsnorm_args *a)
{
    struct kvl_cuda_call c;
    size_t n = (size_t)a->n * (size_t)a->dim;
    if (n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    const float *x = kvl_cuda_in(&c, a->x, n), *w = kvl_cuda_in(&c, a->w, (size_t)a->dim);
    float *y = kvl_cuda_out(&c, a->y, n);
    if (c.rc == KVL_OK) rmsnorm_launch(y, x, w, a);
    return kvl_cuda_end(&c);
}
