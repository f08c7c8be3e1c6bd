/* gemv_x.h - how gemv and gemm round a row of x for quantised weights, for ref, cpu and cuda alike, bit for bit.
 *
 * A block of 32 columns (of 256, where gemv is asked for 8 bits and the weights lie in blocks of 256) becomes integers
 * from -most to most and one scale; the largest of the block is exact to float.  A block with infinities or NaN has a NaN for scale. */
#ifndef KVL_GEMV_X_H
#define KVL_GEMV_X_H

#include <float.h>
#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define KVL_GEMV_X static __host__ __device__ inline
#else
#define KVL_GEMV_X static inline
#endif

/* `most`.  gemm multiplies the weights of Q6_K with their scales first, up to 4096: 32 such products are a sum
 * of 32 bits with 15 bits of x, not with 16. */
enum { KVL_GEMV_MOST = 32767, KVL_GEMV_MOST8 = 127, KVL_GEMM_MOST = 16383 };

/* The scale of a block whose largest absolute value is `top`; *times = what to multiply by. */
KVL_GEMV_X float kvl_gemv_scale(float top, int32_t most, float *times)
{
    *times = 0;
    if (!(top <= FLT_MAX)) return NAN;
    if (top < 1e-30f) return 0; /* most / top would overflow for a subnormal */
    *times = (float)most / top;
    return top * (1.0f / (float)most);
}

KVL_GEMV_X int16_t kvl_gemv_round(float x, float times)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float v = x * times;
    float n = (v + magic) - magic;
    return (int16_t)(n == n ? n : 0);
}

#endif
