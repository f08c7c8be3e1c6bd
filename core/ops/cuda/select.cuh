/* select.cuh - what operators of selection share: floats as ordered integers, stored elements eight at a
 * time, sums and maxima over a block.  For blocks of whole warps, all of whose threads call. */
#ifndef KVL_CUDA_SELECT_CUH
#define KVL_CUDA_SELECT_CUH

#include "cuda.cuh"

#include <string.h>

static __device__ inline uint32_t kvl_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static __device__ inline float kvl_bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Larger floats have larger keys, both zeros the same.  No number has key 0: kvl_key_none has. */
static __device__ inline uint32_t kvl_float_key(float x)
{
    uint32_t bits = kvl_float_bits(x);
    if (bits == 0x80000000u) bits = 0;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Below -inf in the order of keys; not a number. */
static __device__ inline float kvl_key_none(void)
{
    return kvl_bits_float(0xffffffffu);
}

/* ---- stored elements ------------------------------------------------------------------------------ */

static __device__ inline float kvl_to_float(float x)
{
    return x;
}
static __device__ inline float kvl_to_float(__half x)
{
    return __half2float(x);
}
static __device__ inline float kvl_to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
static __device__ inline void kvl_from_float(float *p, float x)
{
    *p = x;
}
static __device__ inline void kvl_from_float(__half *p, float x)
{
    *p = __float2half(x);
}
static __device__ inline void kvl_from_float(__nv_bfloat16 *p, float x)
{
    *p = __float2bfloat16(x);
}

enum {
    KVL_OCTET = 8
}; /* elements that a thread takes at a time: one load of a 16-bit type, two of floats */

/* 16 bytes, one load. */
template <class T> struct alignas(16) kvl_vec16 {
    T v[16 / sizeof(T)];
};

/* out [KVL_OCTET] = p[0 .. n - 1], then zeros; `whole`: n is 8 and p a multiple of 16 bytes. */
template <class T>
static __device__ inline void kvl_load_octet(float *out, const T *p, int32_t n, bool whole)
{
    enum { PER_LOAD = 16 / sizeof(T) };
    if (whole) {
#pragma unroll
        for (int i = 0; i < KVL_OCTET; i += PER_LOAD) {
            kvl_vec16<T> x = *reinterpret_cast<const kvl_vec16<T> *>(p + i);
#pragma unroll
            for (int j = 0; j < PER_LOAD; j++) out[i + j] = kvl_to_float(x.v[j]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < KVL_OCTET; i++) out[i] = i < n ? kvl_to_float(p[i]) : 0.0f;
}

/* Whether rows of `stride` elements at p all begin at multiples of 16 bytes. */
static inline bool kvl_rows_aligned(const void *p, size_t stride, size_t elem_bytes)
{
    return (reinterpret_cast<uintptr_t>(p) | stride * elem_bytes) % 16 == 0;
}

/* ---- over a block --------------------------------------------------------------------------------- */

/* The sum of v of the threads before this one; *total: of all.  Integers.  room [KVL_WARP]. */
template <class T> static __device__ inline T kvl_block_before(T v, T *room, T *total)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    int32_t n_warps = (int32_t)blockDim.x / KVL_WARP;
    T sum = v;
    for (int o = 1; o < KVL_WARP; o *= 2) {
        T y = __shfl_up_sync(0xffffffffu, sum, o);
        if (lane >= o) sum += y;
    }
    if (lane == KVL_WARP - 1) room[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        T all = lane < n_warps ? room[lane] : 0;
        for (int o = 1; o < KVL_WARP; o *= 2) {
            T y = __shfl_up_sync(0xffffffffu, all, o);
            if (lane >= o) all += y;
        }
        room[lane] = all;
    }
    __syncthreads();
    T before = warp > 0 ? room[warp - 1] : 0;
    *total = room[KVL_WARP - 1];
    __syncthreads(); /* room is free again */
    return before + sum - v;
}

/* The largest v of a block, in all its threads.  room [KVL_WARP]. */
template <class T> static __device__ inline T kvl_block_most(T v, T *room)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    for (int o = KVL_WARP / 2; o > 0; o /= 2) {
        T y = __shfl_xor_sync(0xffffffffu, v, o);
        if (y > v) v = y;
    }
    if (lane == 0) room[warp] = v;
    __syncthreads();
    v = room[0];
    for (int32_t w = 1; w < (int32_t)blockDim.x / KVL_WARP; w++)
        if (room[w] > v) v = room[w];
    __syncthreads();
    return v;
}

#endif
