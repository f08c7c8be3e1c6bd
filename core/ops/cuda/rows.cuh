/* rows.cuh - sums over a warp or a block, and where four neighbouring floats lie. */
#ifndef KVL_CUDA_ROWS_CUH
#define KVL_CUDA_ROWS_CUH

#include "cuda.cuh"

static __device__ inline double kvl_warp_sum_f64(double x)
{
    for (int o = KVL_WARP / 2; o > 0; o /= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}

/* Over a block of whole warps, the same in all threads, in one fixed order; room [32] in shared memory.  Every
 * thread of the block calls it. */
static __device__ inline float kvl_block_sum(float x, float *room)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    x = kvl_warp_sum(x);
    if (lane == 0) room[warp] = x;
    __syncthreads();
    x = kvl_warp_sum(lane < (int32_t)blockDim.x / KVL_WARP ? room[lane] : 0);
    __syncthreads(); /* room may be written again */
    return x;
}
static __device__ inline float kvl_block_max(float x, float *room)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    x = kvl_warp_max(x);
    if (lane == 0) room[warp] = x;
    __syncthreads();
    x = kvl_warp_max(lane < (int32_t)blockDim.x / KVL_WARP ? room[lane] : room[0]);
    __syncthreads();
    return x;
}

/* Elements 4 i to 4 i + 3 of x [n], 0 beyond the end; WIDE: x lies at a multiple of 16 bytes. */
template <bool WIDE>
static __device__ inline void kvl_four(float *v, const float *x, size_t i, size_t n)
{
    if (WIDE && 4 * i + 4 <= n) {
        float4 f = *reinterpret_cast<const float4 *>(x + 4 * i);
        v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    } else {
        for (size_t j = 0; j < 4; j++) v[j] = 4 * i + j < n ? x[4 * i + j] : 0;
    }
}
template <bool WIDE>
static __device__ inline void kvl_put_four(float *y, size_t i, size_t n, const float *v)
{
    if (WIDE && 4 * i + 4 <= n) {
        *reinterpret_cast<float4 *>(y + 4 * i) = make_float4(v[0], v[1], v[2], v[3]);
    } else {
        for (size_t j = 0; j < 4 && 4 * i + j < n; j++) y[4 * i + j] = v[j];
    }
}

static inline bool kvl_aligned16(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

/* Blocks of 256 threads for n items; a kernel's threads stride over the rest. */
enum { KVL_LINEAR_THREADS = 256, KVL_LINEAR_BLOCKS = 132 * 16 };
static inline unsigned kvl_linear_blocks(size_t n)
{
    size_t blocks = (n + KVL_LINEAR_THREADS - 1) / KVL_LINEAR_THREADS;
    return (unsigned)KVL_MIN(blocks, (size_t)KVL_LINEAR_BLOCKS);
}
static __device__ inline size_t kvl_linear_first(void)
{
    return (size_t)blockIdx.x * KVL_LINEAR_THREADS + threadIdx.x;
}
static __device__ inline size_t kvl_linear_step(void)
{
    return (size_t)gridDim.x * KVL_LINEAR_THREADS;
}

#endif
