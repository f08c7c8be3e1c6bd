/* kv_block.h - keys and values in blocks of 32, as GGUF has them (wtype_block.h): a scale in half precision, then
 * integers, which the scale makes elements.
 *
 * q8_0  The scale d of x is max |x| / 127, q the nearest integer to x over the scale before that is rounded (ties to
 *       even).  An element is then off by at most 0.57 scales.  One q is 127 in size.
 * q4_0  The scale is the element of the largest size, with its sign, over -8; q, from -8 to 7, is x over the scale
 *       before that is rounded, plus 8.5, cut off, less 8.  The largest element is -8, so that one as large with the other
 *       sign is off by a whole scale, others by at most half of one and what rounding the scale adds.
 *
 * A block that is read and written again is the same.  Scales below 2^-14 have fewer digits; of those below 2^-25 the whole
 * block is zero.  A block with an element that is infinite or NaN, or whose scale no half holds, is NaN throughout.
 * In all else blocks are those that llama.cpp writes.
 *
 * For the host and for cuda alike, bit for bit. */
#ifndef KVL_KV_BLOCK_H
#define KVL_KV_BLOCK_H

#include "half.h"
#include "kvl/kvstore.h"
#include "wtype_block.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

/* The bits of a number as a half. */
KVL_BLOCK uint16_t kvl_block_to_half(float x)
{
#ifdef __CUDACC__
    return __half_as_ushort(__float2half_rn(x));
#else
    return kvl_f32_to_f16(x);
#endif
}

/* A product that nothing is fused with. */
KVL_BLOCK float kvl_block_times(float x, float y)
{
#ifdef __CUDA_ARCH__
    return __fmul_rn(x, y);
#else
    return x * y;
#endif
}

KVL_BLOCK void kvl_q8_0_put(uint8_t *block, const float *x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    int32_t top = 0;
    for (int32_t i = 0; i < KVL_KV_BLOCK; i++) {
        int32_t size;
        memcpy(&size, x + i, sizeof size);
        size &= 0x7fffffff;
        top = size > top ? size : top;
    }
    float d = kvl_block_bits((uint32_t)top) / 127;
    uint16_t scale = kvl_block_to_half(d);
    bool finite = scale < 0x7c00;
    float times = scale == 0 || !finite ? 0 : 1 / d;
    if (!finite) scale = 0x7e00;
    block[0] = (uint8_t)(scale & 0xff);
    block[1] = (uint8_t)(scale >> 8);
    for (int32_t i = 0; i < KVL_KV_BLOCK; i++) {
        float q = kvl_block_times(finite ? x[i] : 0, times);
        block[2 + i] = (uint8_t)(int8_t)((q + magic) - magic);
    }
}

/* One of 32 numbers in four bits, 8 being zero. */
KVL_BLOCK uint8_t kvl_q4_0_nibble(float x, float times)
{
    int32_t q = (int32_t)(kvl_block_times(x, times) + 8.5f);
    return (uint8_t)(q < 15 ? q : 15);
}

KVL_BLOCK void kvl_q4_0_put(uint8_t *block, const float *x)
{
    int32_t top = 0;
    float far = 0;
    for (int32_t i = 0; i < KVL_KV_BLOCK; i++) {
        int32_t size;
        memcpy(&size, x + i, sizeof size);
        size &= 0x7fffffff;
        if (size > top) far = x[i];
        top = size > top ? size : top;
    }
    float d = far / -8;
    uint16_t scale = kvl_block_to_half(d), size = (uint16_t)(scale & 0x7fff);
    bool finite = top < 0x7f800000 && size < 0x7c00;
    float times = size == 0 || !finite ? 0 : 1 / d;
    if (!finite) scale = 0x7e00;
    block[0] = (uint8_t)(scale & 0xff);
    block[1] = (uint8_t)(scale >> 8);
    for (int32_t i = 0; i < KVL_KV_BLOCK / 2; i++) {
        uint8_t low = kvl_q4_0_nibble(finite ? x[i] : 0, times);
        uint8_t high = kvl_q4_0_nibble(finite ? x[i + KVL_KV_BLOCK / 2] : 0, times);
        block[2 + i] = (uint8_t)(low | high << 4);
    }
}

#endif
