/* wtype_block.h - the definition of every type of weights that comes in blocks.
 *
 * kvl_<type>_eight(y, block, i): elements i .. i + 7 of a block, i a multiple of 8 - what a thread of a GPU takes,
 * and a scale is never shared by fewer.  For ref, cpu and cuda alike, bit for bit: a product that is rounded
 * stands alone or is exact, so that fusing it with a sum changes nothing.
 *
 * Source of the layouts: ggml, whose halves and integers lie in little-endian order. */
#ifndef KVL_WTYPE_BLOCK_H
#define KVL_WTYPE_BLOCK_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define KVL_BLOCK static __host__ __device__ inline
#else
#define KVL_BLOCK static inline
#endif

KVL_BLOCK uint32_t kvl_block_u16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

KVL_BLOCK float kvl_block_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* A half; infinities stay what they are, NaNs are NaNs. */
KVL_BLOCK float kvl_block_half(const uint8_t *p)
{
    uint32_t h = kvl_block_u16(p), size = h & 0x7fffu, sign = (h & 0x8000u) << 16;
    if (size < 0x400u) return kvl_block_bits(sign | 0x3f800000u) * ((float)size * 0x1p-24f);
    return kvl_block_bits(sign | ((size << 13) + (size >= 0x7c00u ? 224u << 23 : 112u << 23)));
}

/* Here and below element i + j, i a multiple of 8, j < 8, so that loops over j vectorise.  Of 32 nibbles in 16 bytes,
 * of which the low ones are the first 16. */
KVL_BLOCK int32_t kvl_block_nibble(const uint8_t *q, int32_t i, int32_t j)
{
    return q[i % 16 + j] >> i / 16 * 4 & 15;
}

/* Q8_0: scale, 32 signed bytes. */
KVL_BLOCK void kvl_q8_0_eight(float *y, const uint8_t *block, int32_t i)
{
    float d = kvl_block_half(block);
    for (int32_t j = 0; j < 8; j++) y[j] = d * (float)(int8_t)block[2 + i + j];
}

/* Q4_0: scale, 32 nibbles of which 8 is zero. */
KVL_BLOCK void kvl_q4_0_eight(float *y, const uint8_t *block, int32_t i)
{
    float d = kvl_block_half(block);
    for (int32_t j = 0; j < 8; j++) y[j] = d * (float)(kvl_block_nibble(block + 2, i, j) - 8);
}

/* Of 32: nibbles, whose fifth bits come first. */
KVL_BLOCK int32_t kvl_block_five(const uint8_t *high, int32_t i, int32_t j)
{
    return kvl_block_nibble(high + 4, i, j) | (high[i / 8] >> j & 1) << 4;
}

/* Q5_0: scale, 32 numbers of five bits of which 16 is zero. */
KVL_BLOCK void kvl_q5_0_eight(float *y, const uint8_t *block, int32_t i)
{
    float d = kvl_block_half(block);
    for (int32_t j = 0; j < 8; j++) y[j] = d * (float)(kvl_block_five(block + 2, i, j) - 16);
}

/* Q4_1, Q5_1: scale, smallest value, 32 numbers of four or five bits. */
KVL_BLOCK void kvl_q4_1_eight(float *y, const uint8_t *block, int32_t i)
{
    float d = kvl_block_half(block), least = kvl_block_half(block + 2);
    for (int32_t j = 0; j < 8; j++) y[j] = d * (float)kvl_block_nibble(block + 4, i, j) + least;
}

KVL_BLOCK void kvl_q5_1_eight(float *y, const uint8_t *block, int32_t i)
{
    float d = kvl_block_half(block), least = kvl_block_half(block + 2);
    for (int32_t j = 0; j < 8; j++) y[j] = d * (float)kvl_block_five(block + 4, i, j) + least;
}

/* Two bits of 256 elements in 64 bytes: each half of the block has its 32 bytes, whose lowest bits are the first
 * 32 elements. */
KVL_BLOCK int32_t kvl_block_two(const uint8_t *q, int32_t i, int32_t j)
{
    return q[i / 128 * 32 + i % 32 + j] >> i % 128 / 32 * 2 & 3;
}

/* Q2_K: per 16 elements a nibble for the scale and one for what is taken off; 64 bytes of two bits; the factors of
 * both. */
KVL_BLOCK void kvl_q2_k_eight(float *y, const uint8_t *block, int32_t i)
{
    int32_t s = block[i / 16];
    float d = kvl_block_half(block + 80) * (float)(s & 15);
    float less = kvl_block_half(block + 82) * (float)(s >> 4);
    for (int32_t j = 0; j < 8; j++) y[j] = d * (float)kvl_block_two(block + 16, i, j) - less;
}

/* Q3_K: 32 bytes of third bits (0: 4 is taken off), 64 bytes of two bits, 12 bytes with a scale of six bits per 16
 * elements, of which 32 is zero, and their factor. */
KVL_BLOCK void kvl_q3_k_eight(float *y, const uint8_t *block, int32_t i)
{
    const uint8_t *s = block + 96;
    int32_t g = i / 16, low = g < 8 ? s[g] & 15 : s[g - 8] >> 4;
    int32_t scale = low | (s[8 + g % 4] >> g / 4 * 2 & 3) << 4;
    float d = kvl_block_half(block + 108) * (float)(scale - 32);
    for (int32_t j = 0; j < 8; j++) {
        int32_t high = block[i % 32 + j] >> i / 32 & 1;
        y[j] = d * (float)(kvl_block_two(block + 32, i, j) - (high ? 0 : 4));
    }
}

/* Q4_K, Q5_K: two factors, then twelve bytes with six bits of scale and six of what is taken off for each 32
 * elements g.  Fills both, multiplied. */
KVL_BLOCK void kvl_block_scales(float *d, float *less, const uint8_t *block, int32_t g)
{
    const uint8_t *s = block + 4;
    int32_t scale = s[g] & 63, least = s[g + 4] & 63;
    if (g >= 4) {
        scale = (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
        least = s[g + 4] >> 4 | s[g] >> 6 << 4;
    }
    *d = kvl_block_half(block) * (float)scale;
    *less = kvl_block_half(block + 2) * (float)least;
}

/* Of 256 nibbles in 128 bytes: 64 elements in 32 bytes, the low ones first. */
KVL_BLOCK int32_t kvl_block_k_nibble(const uint8_t *q, int32_t i, int32_t j)
{
    return q[i / 64 * 32 + i % 32 + j] >> i % 64 / 32 * 4 & 15;
}

KVL_BLOCK void kvl_q4_k_eight(float *y, const uint8_t *block, int32_t i)
{
    float d, less;
    kvl_block_scales(&d, &less, block, i / 32);
    for (int32_t j = 0; j < 8; j++) y[j] = d * (float)kvl_block_k_nibble(block + 16, i, j) - less;
}

/* After the scales 32 bytes of fifth bits: bit g of each is of the g-th 32 elements. */
KVL_BLOCK void kvl_q5_k_eight(float *y, const uint8_t *block, int32_t i)
{
    float d, less;
    kvl_block_scales(&d, &less, block, i / 32);
    for (int32_t j = 0; j < 8; j++) {
        int32_t high = block[16 + i % 32 + j] >> i / 32 & 1;
        y[j] = d * (float)(kvl_block_k_nibble(block + 48, i, j) | high << 4) - less;
    }
}

/* Q6_K: 128 bytes of four bits, of which each 64 are half of the elements, the low ones the first 64 of them; 64
 * bytes of two more bits; a signed scale per 16 elements; their factor.  32 is zero. */
KVL_BLOCK void kvl_q6_k_eight(float *y, const uint8_t *block, int32_t i)
{
    const uint8_t *low = block + i / 128 * 64 + i % 64;
    float d = kvl_block_half(block + 208) * (float)(int8_t)block[192 + i / 16];
    for (int32_t j = 0; j < 8; j++) {
        int32_t four = low[j] >> i % 128 / 64 * 4 & 15;
        y[j] = d * (float)((four | kvl_block_two(block + 128, i, j) << 4) - 32);
    }
}

/* Byte `i` of sixteen signed ones: in words, since a GPU keeps an array that is indexed in memory. */
KVL_BLOCK float kvl_block_signed(uint64_t low, uint64_t high, int32_t i)
{
    return (float)(int8_t)((i < 8 ? low : high) >> 8 * (i & 7));
}

/* The sixteen values of the IQ4 types, by steps that grow with their size: -127 -104 -83 -65 -49 -35 -22 -10
 * 1 13 25 38 53 69 89 113. */
KVL_BLOCK float kvl_block_iq4(int32_t nibble)
{
    return kvl_block_signed(0xf6eaddcfbfad9881u, 0x7159453526190d01u, nibble);
}

/* IQ4_NL: as Q4_0, through the table. */
KVL_BLOCK void kvl_iq4_nl_eight(float *y, const uint8_t *block, int32_t i)
{
    float d = kvl_block_half(block);
    for (int32_t j = 0; j < 8; j++) y[j] = d * kvl_block_iq4(kvl_block_nibble(block + 2, i, j));
}

/* IQ4_XS: factor; two bytes with the high two bits and four with the low four of a scale per 32 elements, of which 32
 * is zero; nibbles as those of eight IQ4_NL blocks. */
KVL_BLOCK void kvl_iq4_xs_eight(float *y, const uint8_t *block, int32_t i)
{
    int32_t g = i / 32, low = block[4 + g / 2] >> g % 2 * 4 & 15;
    int32_t scale = low | (int32_t)(kvl_block_u16(block + 2) >> 2 * g & 3u) << 4;
    float d = kvl_block_half(block) * (float)(scale - 32);
    for (int32_t j = 0; j < 8; j++)
        y[j] = d * kvl_block_iq4(kvl_block_nibble(block + 8 + g * 16, i % 32, j));
}

/* Element i of TQ1_0, 0 to 2.  A byte is a fraction of 256 whose digits in base 3 are five elements; times 3^n, less
 * what is above a byte, it begins with digit n. */
KVL_BLOCK int32_t kvl_block_three(const uint8_t *q, int32_t i)
{
    const uint64_t powers = 0x511b090301u; /* 1 3 9 27 81 */
    int32_t first = i < 160 ? 0 : i < 240 ? 160 : 240, wide = i < 160 ? 32 : i < 240 ? 16 : 4;
    int32_t power = (int32_t)(powers >> (i - first) / wide * 8 & 255);
    return (q[first / 5 + (i - first) % wide] * power & 255) * 3 >> 8;
}

/* TQ1_0: 32 bytes, whose first digits are the first 32 elements, the second ones the next; 16 more such bytes; four of
 * four digits each; and the scale.  1 is zero. */
KVL_BLOCK void kvl_tq1_0_eight(float *y, const uint8_t *block, int32_t i)
{
    float d = kvl_block_half(block + 52);
    for (int32_t j = 0; j < 8; j++) y[j] = d * (float)(kvl_block_three(block, i + j) - 1);
}

/* TQ2_0: 64 bytes of two bits, of which 1 is zero, and the scale.  What quantises writes 0 to 2; 3 is twice the
 * scale. */
KVL_BLOCK void kvl_tq2_0_eight(float *y, const uint8_t *block, int32_t i)
{
    float d = kvl_block_half(block + 64);
    for (int32_t j = 0; j < 8; j++) y[j] = d * (float)(kvl_block_two(block, i, j) - 1);
}

/* MXFP4: one byte, the power of two of the scale (with half the unit of the values), then nibbles: a sign, two bits
 * of exponent, one of mantissa. */
KVL_BLOCK void kvl_mxfp4_eight(float *y, const uint8_t *block, int32_t i)
{
    const uint64_t plus = 0x0c08060403020100u, minus = 0xf4f8fafcfdfeff00u; /* 0 1 2 3 4 6 8 12 */
    uint32_t e = block[0]; /* 2^(e - 128), of which the first two are subnormal */
    float d = kvl_block_bits(e < 2 ? 0x200000u << e : (e - 1) << 23);
    for (int32_t j = 0; j < 8; j++)
        y[j] = d * kvl_block_signed(plus, minus, kvl_block_nibble(block + 1, i, j));
}

#endif
