/* A block of threads per block of rows: the ranges of its channels in the block behind it, a thread a channel;
 * the spread of its rows, a warp a row; softmax of these.  Limit: reading x twice, the second time from the
 * cache. */
#include "rows.cuh"

enum { LAG_THREADS = 256, LAG_WARPS = LAG_THREADS / KVL_WARP, LAG_MAX_DIM = 4096 };

/* lo, inverse [dim]: minimum, and 1 / (maximum - minimum), or 0. */
static __device__ inline void lag_ranges(float *lo, float *inverse, const float *next, int32_t lag,
                                         int32_t dim)
{
    for (int32_t c = (int32_t)threadIdx.x; c < dim; c += LAG_THREADS) {
        float low = next[c], high = next[c];
        for (int32_t i = 1; i < lag; i++) {
            float v = next[(size_t)i * (size_t)dim + (size_t)c];
            low = v < low ? v : low;
            high = v > high ? v : high;
        }
        lo[c] = low;
        inverse[c] = high > low ? 1.0f / (high - low) : 0;
    }
}

/* The same in all lanes of the warp. */
static __device__ inline float lag_deviation(const float *row, const float *lo,
                                             const float *inverse, int32_t dim)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP;
    float sum = 0, squares = 0;
    for (int32_t c = lane; c < dim; c += KVL_WARP) sum += (row[c] - lo[c]) * inverse[c];
    float mean = kvl_warp_sum(sum) / (float)dim;
    for (int32_t c = lane; c < dim; c += KVL_WARP) {
        float d = (row[c] - lo[c]) * inverse[c] - mean;
        squares = fmaf(d, d, squares);
    }
    return sqrtf(kvl_warp_sum(squares) / (float)(dim - 1));
}

static __device__ inline void lag_softmax(float *y, int32_t n, float *room)
{
    float top = 0, sum = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += LAG_THREADS) top = fmaxf(top, y[i]);
    top = kvl_block_max(top, room);
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += LAG_THREADS) sum += expf(y[i] - top);
    sum = kvl_block_sum(sum, room);
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += LAG_THREADS) y[i] = expf(y[i] - top) / sum;
}

static __global__ void __launch_bounds__(LAG_THREADS)
    lag_blocks(float *y, const float *x, int32_t lag, int32_t dim)
{
    __shared__ float room[KVL_WARP];
    KVL_SHARED(float, lo); /* [2][dim] */
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    const float *own = x + (size_t)blockIdx.x * (size_t)lag * (size_t)dim;
    y += (size_t)blockIdx.x * (size_t)lag;
    lag_ranges(lo, lo + dim, own + (size_t)lag * (size_t)dim, lag, dim);
    __syncthreads();
    for (int32_t i = warp; i < lag; i += LAG_WARPS) {
        float d = lag_deviation(own + (size_t)i * (size_t)dim, lo, lo + dim, dim);
        if (lane == 0) y[i] = d;
    }
    __syncthreads();
    lag_softmax(y, lag, room);
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_lag_spread(const struct kvl_lag_spread_args *a)
{
    struct kvl_cuda_call c;
    size_t dim = (size_t)a->dim, lag = (size_t)a->lag, n = (size_t)a->n_blocks;
    assert(a->dim > 1 && a->dim <= LAG_MAX_DIM);
    if (n == 0 || lag == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    const float *x = kvl_cuda_in(&c, a->x, (n + 1) * lag * dim);
    float *y = kvl_cuda_out(&c, a->y, n * lag);
    if (c.rc == KVL_OK)
        KVL_LAUNCH(lag_blocks, (unsigned)n, LAG_THREADS, 2 * dim * sizeof(float), y, x, a->lag,
                   a->dim);
    return kvl_cuda_end(&c);
}
