/* half.h - conversions of 16-bit floats, for core/ops, core/kv and core/model.
 *
 * Bit for bit what the processors' own instructions do (F16C, NEON): widening is exact, narrowing
 * rounds to nearest even, a signalling NaN becomes quiet.
 */
#ifndef KVL_HALF_H
#define KVL_HALF_H

#include <stdint.h>
#include <string.h>

static inline float kvl_f32_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t kvl_f32_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float kvl_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exp = (h >> 10) & 0x1fu, frac = h & 0x3ffu;
    if (exp == 0x1f)
        return kvl_f32_from_bits(sign | 0x7f800000u | (frac ? 0x400000u : 0) | frac << 13);
    if (exp) return kvl_f32_from_bits(sign | (exp + 112) << 23 | frac << 13);
    float tiny = (float)frac * 0x1p-24f; /* zero and subnormal: exact */
    return sign ? -tiny : tiny;
}

static inline uint16_t kvl_f32_to_f16(float f)
{
    uint32_t bits = kvl_f32_bits(f);
    uint32_t sign = bits >> 16 & 0x8000u, mag = bits & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (mag >> 13 & 0x3ffu));
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and more */
    if (mag < 0x38800000u) {                                   /* below 2^-14: subnormal */
        /* Adding 0.5 puts the last kept bit, 2^-24, at the end of the fraction: the addition rounds. */
        uint32_t r = kvl_f32_bits(kvl_f32_from_bits(mag) + 0.5f);
        return (uint16_t)(sign | (r - 0x3f000000u));
    }
    uint32_t odd = mag >> 13 & 1u;
    return (uint16_t)(sign | (mag - 0x38000000u + 0xfffu + odd) >> 13);
}

static inline float kvl_bf16_to_f32(uint16_t h)
{
    return kvl_f32_from_bits((uint32_t)h << 16);
}

#endif
