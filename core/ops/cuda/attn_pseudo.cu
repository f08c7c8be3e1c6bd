/* A block per head and 32 columns: its warps share the entries, its lanes the columns.  Every block finds the
 * maximum and the sum of its head again, so that one launch does.
 *
 * Limit: the values, once from memory; the other heads of a call find them in L2.  Not timed on a GPU yet. */
#include "cuda.cuh"

enum { PSEUDO_THREADS = 256, PSEUDO_WARPS = PSEUDO_THREADS / KVL_WARP };

struct pseudo_params {
    float *out, *lse;
    const float *logit, *value;
    int32_t n, head_dim;
};

/* The same in all threads. */
static __device__ inline float pseudo_block_max(float x, float *warp)
{
    x = kvl_warp_max(x);
    if (threadIdx.x % KVL_WARP == 0) warp[threadIdx.x / KVL_WARP] = x;
    __syncthreads();
    for (int32_t w = 0; w < PSEUDO_WARPS; w++) x = fmaxf(x, warp[w]);
    __syncthreads();
    return x;
}

static __device__ inline float pseudo_block_sum(float x, float *warp)
{
    x = kvl_warp_sum(x);
    if (threadIdx.x % KVL_WARP == 0) warp[threadIdx.x / KVL_WARP] = x;
    __syncthreads();
    x = 0;
    for (int32_t w = 0; w < PSEUDO_WARPS; w++) x += warp[w];
    __syncthreads();
    return x;
}

static __global__ void __launch_bounds__(PSEUDO_THREADS) pseudo_kernel(struct pseudo_params a)
{
    __shared__ float part[PSEUDO_WARPS][KVL_WARP];
    int32_t h = (int32_t)blockIdx.y;
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    int32_t c = (int32_t)blockIdx.x * KVL_WARP + lane;
    const float *logit = a.logit + (size_t)h * (size_t)a.n;
    float max = -INFINITY, sum = 0, acc = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < a.n; i += PSEUDO_THREADS) max = fmaxf(max, logit[i]);
    max = pseudo_block_max(max, part[0]);
    float shift = max == -INFINITY ? 0 : max;
    for (int32_t i = (int32_t)threadIdx.x; i < a.n; i += PSEUDO_THREADS)
        sum += expf(logit[i] - shift);
    sum = pseudo_block_sum(sum, part[0]);
    if (blockIdx.x == 0 && threadIdx.x == 0) a.lse[h] = sum == 0 ? -INFINITY : shift + logf(sum);
#pragma unroll 4
    for (int32_t i = warp; i < a.n; i += PSEUDO_WARPS) {
        float w = expf(logit[i] - shift);
        float v = c < a.head_dim ? a.value[(size_t)i * (size_t)a.head_dim + (size_t)c] : 0;
        acc = fmaf(w, v, acc);
    }
    part[warp][lane] = acc;
    __syncthreads();
    if (warp > 0 || c >= a.head_dim) return;
    acc = 0;
    for (int32_t w = 0; w < PSEUDO_WARPS; w++) acc += part[w][lane];
    a.out[(size_t)h * (size_t)a.head_dim + (size_t)c] = sum == 0 ? 0 : acc / sum;
}

int kvl_cuda_attn_pseudo(const struct kvl_attn_pseudo_args *a)
{
    struct kvl_cuda_call c;
    struct pseudo_params p = {};
    size_t heads = (size_t)a->n_heads, n = (size_t)a->n, dim = (size_t)a->head_dim;
    assert(a->n >= 0 && a->n_heads <= 65535);
    if (a->n_heads == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    if (a->n > 0) p.logit = kvl_cuda_in(&c, a->logit, heads * n);
    if (a->n > 0) p.value = kvl_cuda_in(&c, a->value, n * dim);
    p.out = kvl_cuda_out(&c, a->out, heads * dim);
    p.lse = kvl_cuda_out(&c, a->lse, heads);
    p.n = a->n;
    p.head_dim = a->head_dim;
    dim3 grid((unsigned)kvl_ceil_div(a->head_dim, KVL_WARP), (unsigned)a->n_heads);
    if (c.rc == KVL_OK) KVL_LAUNCH(pseudo_kernel, grid, PSEUDO_THREADS, 0, p);
    return kvl_cuda_end(&c);
}
