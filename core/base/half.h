/* half.h - 16-bit floats: conversions to and from float, pure C, inline.
 *
 * Half floats are stored as uint16_t.  Narrowing rounds to nearest even and results match the F16C
 * instructions bit for bit: overflow gives infinity, subnormals are kept, a NaN stays a NaN (quiet,
 * with the top bits of its payload).  The functions select instead of branching, so that loops over
 * them vectorise.
 *
 * Thread-safe: yes.  The caller leaves the rounding mode at its default and subnormals on.
 */
#ifndef KVL_HALF_H
#define KVL_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t kvl_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float kvl_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float kvl_f16_to_f32(uint16_t h)
{
    uint32_t em = h & 0x7fffu, sign = (uint32_t)(h & 0x8000u) << 16;
    /* Exponent bias 15 -> 127; infinities and NaNs go to the top exponent. */
    uint32_t normal = (em << 13) + (112u << 23);
    uint32_t top = (em << 13) + (224u << 23);
    top |= em > 0x7c00u ? 0x400000u : 0u; /* a signalling NaN turns quiet */
    uint32_t tiny = kvl_f32_bits((float)em * 0x1p-24f);
    uint32_t out = em < 0x400u ? tiny : normal;
    return kvl_bits_f32(sign | (em >= 0x7c00u ? top : out));
}

static inline uint16_t kvl_f32_to_f16(float f)
{
    uint32_t bits = kvl_f32_bits(f), sign = bits >> 16 & 0x8000u, em = bits & 0x7fffffffu;
    /* Half a unit of the 13 dropped bits, less one where the kept part is even. */
    uint32_t normal = (em - (112u << 23) + 0xfffu + (em >> 13 & 1u)) >> 13;
    /* 0.5 has units of 2^-24, those of a half subnormal: the addition itself rounds. */
    uint32_t tiny = kvl_f32_bits(kvl_bits_f32(em) + 0.5f) - 0x3f000000u;
    uint32_t nan = 0x7e00u | (em >> 13 & 0x3ffu);
    uint32_t out = em < 0x38800000u ? tiny : normal;
    out = em >= 0x47800000u ? 0x7c00u : out;
    return (uint16_t)(sign | (em > 0x7f800000u ? nan : out));
}

static inline float kvl_bf16_to_f32(uint16_t b)
{
    return kvl_bits_f32((uint32_t)b << 16);
}

static inline uint16_t kvl_f32_to_bf16(float f)
{
    uint32_t bits = kvl_f32_bits(f);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    uint32_t nan = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

#endif
