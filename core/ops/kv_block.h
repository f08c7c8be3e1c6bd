/* kv_block.h - keys and values in blocks of 32: the type q8_0 of a store.
 *
 * The layout is that of GGUF's Q8_0, which wtype_block.h defines: a scale d in half precision, 32 signed bytes q; an
 * element is d q.  Of x the scale is max |x| / 127, q the nearest integer to x over the scale before that is rounded
 * (ties to even).  An element is then off by at most 0.57 scales; scales below 2^-14 have fewer digits, of those below
 * 2^-25 the whole block is zero.  One q is 127 in size, so that a block that is read and written again is the same.  A
 * block with an element that is infinite or NaN, or above 127 times the largest half, is NaN throughout.
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

/* The bits of a positive number as a half. */
KVL_BLOCK uint16_t kvl_block_to_half(float x)
{
#ifdef __CUDACC__
    return __half_as_ushort(__float2half_rn(x));
#else
    return kvl_f32_to_f16(x);
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
        float q = (finite ? x[i] : 0) * times;
        block[2 + i] = (uint8_t)(int8_t)((q + magic) - magic);
    }
}

KVL_BLOCK void kvl_q8_0_get(float *y, const uint8_t *block)
{
    for (int32_t i = 0; i < KVL_KV_BLOCK; i += 8) kvl_q8_0_eight(y + i, block, i);
}

#endif
