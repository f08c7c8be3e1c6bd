/* A block per row; the second and third pass over x come from the cache. */
#include "rows.cuh"

enum { LAYERNORM_MAX_THREADS = 1024 };

static __global__ void __launch_bounds__(LAYERNORM_MAX_THREADS)
    layernorm_row(float *y, const float *x, const float *w, const float *b, int32_t dim, float eps)
{
    __shared__ float room[KVL_WARP];
    float sum = 0, square = 0;
    x += (size_t)blockIdx.x * (size_t)dim;
    y += (size_t)blockIdx.x * (size_t)dim;
    for (int32_t c = (int32_t)threadIdx.x; c < dim; c += (int32_t)blockDim.x) sum += x[c];
    float mean = kvl_block_sum(sum, room) / (float)dim;
    for (int32_t c = (int32_t)threadIdx.x; c < dim; c += (int32_t)blockDim.x)
        square = fmaf(x[c] - mean, x[c] - mean, square);
    float scale = 1.0f / sqrtf(kvl_block_sum(square, room) / (float)dim + eps);
    for (int32_t c = (int32_t)threadIdx.x; c < dim; c += (int32_t)blockDim.x)
        y[c] = (x[c] - mean) * scale * w[c] + b[c];
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_layernorm(const struct kvl_layernorm_args *a)
{
    struct kvl_cuda_call c;
    size_t n = (size_t)a->n * (size_t)a->dim, dim = (size_t)a->dim;
    if (n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    const float *x = kvl_cuda_in(&c, a->x, n);
    const float *w = kvl_cuda_in(&c, a->w, dim), *b = kvl_cuda_in(&c, a->b, dim);
    float *y = kvl_cuda_out(&c, a->y, n);
    int32_t threads = kvl_ceil_div(a->dim, 4 * KVL_WARP) * KVL_WARP;
    threads = KVL_MIN(threads, (int32_t)LAYERNORM_MAX_THREADS);
    if (c.rc == KVL_OK)
        KVL_LAUNCH(layernorm_row, (unsigned)a->n, (unsigned)threads, 0, y, x, w, b, a->dim, a->eps);
    return kvl_cuda_end(&c);
}
