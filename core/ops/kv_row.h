/* kv_row.h - rows of keys and values as they are stored: the definition of every family of kvl/kvtypes.def.
 *
 *   kvl_<family>_row_put(row, x, n)   n elements to a row
 *   kvl_<family>_at(row, i)           element i of a row
 *
 * fp8_e4m3     A scale as bf16, max |x| / 448, then a byte each: x over the scale as rounded, to the nearest number of
 *              three bits behind the point and an exponent of four (1.75 2^8 is the largest, ties to even).
 * turboquant   TurboQuant without its second stage (Zandieh et al. 2504.19874, algorithm 1): the row is turned, its
 *              norm kept, each coordinate the nearest of the 2^bits values that fit a normal distribution best
 *              (Lloyd, Max).  The scale, a half, is the norm of x over that of the values, so that what is read
 *              has the norm of x.
 *
 * kivi         KIVI (Liu et al. 2402.02750): 32 numbers as codes of four or two bits from the least to the greatest of them:
 *              min and scale, (max - min) / (2^bits - 1), as halves, then the codes from the lowest bit of the first
 *              byte on, (x - min) / scale to the nearest (ties to even).  32 numbers are 32 channels of a token where a
 *              row stands alone: values.  Keys of 32 tokens are a group (kvl_kivi_group_put), with a min and a scale for
 *              each channel over the tokens: the mins, the scales, then the codes of each token.
 *
 * Turns.  A row of n is cut in pieces of p, the largest power of two that divides n (of 96: three of 32; types that turn
 * have n a multiple of 32).  Each becomes H x / sqrt(p), H Hadamard's matrix in its natural order, by log2 p steps from
 * neighbours to halves: x, y become x + y, x - y.  H is its own inverse.  KVL_TURN_SIGNED changes signs before, at
 * places that kvl_turn_sign tells.
 *
 * For the host and for cuda alike, bit for bit.  Products with what is turned alike are the same as before, but for
 * rounding: attention turns its queries, and what it sums of values back, instead of every row. */
#ifndef KVL_KV_ROW_H
#define KVL_KV_ROW_H

#include "kv_block.h"

#include <math.h>

/* ---- families: f32, f16, bf16, q8_0, q4_0 ------------------------------------------------------------ */

KVL_BLOCK void kvl_row_put_u16(uint8_t *p, uint16_t x)
{
    p[0] = (uint8_t)(x & 0xff);
    p[1] = (uint8_t)(x >> 8);
}

KVL_BLOCK uint32_t kvl_row_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

KVL_BLOCK void kvl_f32_row_put(uint8_t *row, const float *x, int32_t n)
{
    memcpy(row, x, (size_t)n * sizeof *x);
}
KVL_BLOCK float kvl_f32_at(const uint8_t *row, int32_t i)
{
    return kvl_block_bits(kvl_block_u16(row + 4 * i) | kvl_block_u16(row + 4 * i + 2) << 16);
}

KVL_BLOCK void kvl_f16_row_put(uint8_t *row, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) kvl_row_put_u16(row + 2 * i, kvl_block_to_half(x[i]));
}
KVL_BLOCK float kvl_f16_at(const uint8_t *row, int32_t i)
{
    return kvl_block_half(row + 2 * i);
}

/* To the nearest, ties to even; a NaN stays one. */
KVL_BLOCK uint16_t kvl_row_bf16(float x)
{
    uint32_t bits = kvl_row_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

KVL_BLOCK void kvl_bf16_row_put(uint8_t *row, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) kvl_row_put_u16(row + 2 * i, kvl_row_bf16(x[i]));
}
KVL_BLOCK float kvl_bf16_at(const uint8_t *row, int32_t i)
{
    return kvl_block_bits(kvl_block_u16(row + 2 * i) << 16);
}

KVL_BLOCK void kvl_q8_0_row_put(uint8_t *row, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i += 32, row += 34) kvl_q8_0_put(row, x + i);
}
KVL_BLOCK float kvl_q8_0_at(const uint8_t *row, int32_t i)
{
    const uint8_t *block = row + i / 32 * 34;
    return kvl_block_half(block) * (float)(int8_t)block[2 + i % 32];
}

KVL_BLOCK void kvl_q4_0_row_put(uint8_t *row, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i += 32, row += 18) kvl_q4_0_put(row, x + i);
}
KVL_BLOCK float kvl_q4_0_at(const uint8_t *row, int32_t i)
{
    const uint8_t *block = row + i / 32 * 18;
    return kvl_block_half(block) * (float)(kvl_block_nibble(block + 2, i % 32, 0) - 8);
}

/* ---- fp8_e4m3 ---------------------------------------------------------------------------------------- */

/* |x| is at most 464. */
KVL_BLOCK uint8_t kvl_fp8_of(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    uint32_t bits = kvl_row_bits(x), sign = bits >> 24 & 0x80u;
    float size = kvl_block_bits(bits & 0x7fffffffu);
    bits &= 0x7fffffffu;
    if (size < 0x1p-6f) return (uint8_t)(sign | (uint32_t)(size * 0x1p9f + magic - magic));
    bits += 0x7ffffu + (bits >> 20 & 1u);
    return (uint8_t)(sign | ((bits >> 20) - (120u << 3)));
}

/* 0x7f and 0xff, NaN of the format, are not written. */
KVL_BLOCK float kvl_fp8_float(uint8_t q)
{
    uint32_t size = q & 0x7fu, sign = (q & 0x80u) << 24;
    if (size < 8) return kvl_block_bits(sign | kvl_row_bits((float)size * 0x1p-9f));
    return kvl_block_bits(sign | ((size << 20) + (120u << 23)));
}

KVL_BLOCK void kvl_fp8_e4m3_row_put(uint8_t *row, const float *x, int32_t n)
{
    uint32_t top = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t size = kvl_row_bits(x[i]) & 0x7fffffffu;
        top = size > top ? size : top;
    }
    bool finite = top < 0x7f800000u;
    uint16_t scale = finite ? kvl_row_bf16(kvl_block_bits(top) / 448) : 0x7fc0u;
    float d = kvl_block_bits((uint32_t)scale << 16);
    kvl_row_put_u16(row, scale);
    for (int32_t i = 0; i < n; i++) row[2 + i] = finite && scale > 0 ? kvl_fp8_of(x[i] / d) : 0;
    if (n % 2) row[2 + n] = 0;
}
KVL_BLOCK float kvl_fp8_e4m3_at(const uint8_t *row, int32_t i)
{
    return kvl_bf16_at(row, 0) * kvl_fp8_float(row[2 + i]);
}

/* ---- turboquant -------------------------------------------------------------------------------------- */

/* Value i of the upper half of the 2^bits that fit a normal distribution of variance 1 best; the lower half are the same
 * with the other sign. */
KVL_BLOCK float kvl_turbo_level(int32_t bits, int32_t i)
{
    if (bits == 3)
        return i < 2 ? (i < 1 ? 0.2450942f : 0.7560053f) : (i < 3 ? 1.3439093f : 2.1519457f);
    if (i < 4) return i < 2 ? (i < 1 ? 0.1283950f : 0.3880483f) : (i < 3 ? 0.6567591f : 0.9423405f);
    return i < 6 ? (i < 5 ? 1.2562312f : 1.6180464f) : (i < 7 ? 2.0690172f : 2.7325896f);
}

/* Halfway from value i to the next. */
KVL_BLOCK float kvl_turbo_edge(int32_t bits, int32_t i)
{
    return (kvl_turbo_level(bits, i) + kvl_turbo_level(bits, i + 1)) * 0.5f;
}

/* Ascending: 0 is the lowest value. */
KVL_BLOCK int32_t kvl_turbo_code(int32_t bits, float x)
{
    const int32_t half = 1 << (bits - 1);
    float size = fabsf(x);
    int32_t i = 0;
    while (i < half - 1 && size > kvl_turbo_edge(bits, i)) i++;
    return x < 0 ? half - 1 - i : half + i;
}
KVL_BLOCK float kvl_turbo_value(int32_t bits, int32_t code)
{
    const int32_t half = 1 << (bits - 1);
    return code < half ? -kvl_turbo_level(bits, half - 1 - code)
                       : kvl_turbo_level(bits, code - half);
}

/* Codes lie one after the other from the lowest bit of the first byte on. */
KVL_BLOCK int32_t kvl_turbo_get(const uint8_t *codes, int32_t bits, int32_t i)
{
    int32_t at = i * bits, two = codes[at / 8];
    if (at % 8 + bits > 8) two |= codes[at / 8 + 1] << 8;
    return two >> at % 8 & ((1 << bits) - 1);
}

KVL_BLOCK void kvl_turbo_put(uint8_t *row, const float *x, int32_t n, int32_t bits)
{
    double norm = 0, values = 0;
    for (int32_t i = 0; i < n; i++) norm += (double)x[i] * (double)x[i];
    const float times = norm > 0 && norm < (double)INFINITY ? (float)(1 / sqrt(norm / n)) : 0;
    for (int32_t i = 0; i < n / 8 * bits; i++) row[2 + i] = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t code = kvl_turbo_code(bits, times > 0 ? x[i] * times : 0), at = i * bits;
        double value = (double)kvl_turbo_value(bits, code);
        values += value * value;
        row[2 + at / 8] |= (uint8_t)(code << at % 8);
        if (at % 8 + bits > 8) row[3 + at / 8] |= (uint8_t)(code >> (8 - at % 8));
    }
    uint16_t scale = kvl_block_to_half((float)sqrt(norm / values));
    kvl_row_put_u16(row, (scale & 0x7fffu) < 0x7c00u ? scale : 0x7e00u);
}

KVL_BLOCK void kvl_turboquant4_row_put(uint8_t *row, const float *x, int32_t n)
{
    kvl_turbo_put(row, x, n, 4);
}
KVL_BLOCK float kvl_turboquant4_at(const uint8_t *row, int32_t i)
{
    return kvl_block_half(row) * kvl_turbo_value(4, kvl_turbo_get(row + 2, 4, i));
}
KVL_BLOCK void kvl_turboquant3_row_put(uint8_t *row, const float *x, int32_t n)
{
    kvl_turbo_put(row, x, n, 3);
}
KVL_BLOCK float kvl_turboquant3_at(const uint8_t *row, int32_t i)
{
    return kvl_block_half(row) * kvl_turbo_value(3, kvl_turbo_get(row + 2, 3, i));
}

/* ---- kivi -------------------------------------------------------------------------------------------- */

/* Of 32 numbers, `step` apart.  Numbers that are none make all of them none. */
KVL_BLOCK void kvl_kivi_range(const float *x, int32_t step, int32_t bits, uint8_t *min,
                              uint8_t *scale)
{
    float low = x[0], high = x[0];
    bool finite = true;
    for (int32_t i = 0; i < KVL_KV_GROUP; i++) {
        float v = x[i * step];
        finite = finite && (kvl_row_bits(v) & 0x7fffffffu) < 0x7f800000u;
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    uint16_t from = kvl_block_to_half(low);
    uint16_t by = kvl_block_to_half((high - low) / (float)((1 << bits) - 1));
    kvl_row_put_u16(min, finite ? from : 0x7e00u);
    kvl_row_put_u16(scale, finite ? by : 0x7e00u);
}

KVL_BLOCK int32_t kvl_kivi_code(float x, float min, float scale, int32_t bits)
{
    const float magic = 12582912.0f, most = (float)((1 << bits) - 1); /* as in kvl_fp8_of */
    if (!(scale > 0)) return 0;
    float q = (x - min) / scale;
    if (!(q > 0)) return 0;
    return (int32_t)((q < most ? q : most) + magic - magic);
}

/* The product is exact: fused or not, the sum is the same. */
KVL_BLOCK float kvl_kivi_value(const uint8_t *min, const uint8_t *scale, int32_t code)
{
    return kvl_block_half(min) + kvl_block_half(scale) * (float)code;
}

KVL_BLOCK int32_t kvl_kivi_get(const uint8_t *codes, int32_t bits, int32_t i)
{
    return codes[i * bits / 8] >> i * bits % 8 & ((1 << bits) - 1);
}
KVL_BLOCK void kvl_kivi_set(uint8_t *codes, int32_t bits, int32_t i, int32_t code)
{
    if (i * bits % 8 == 0) codes[i * bits / 8] = 0;
    codes[i * bits / 8] |= (uint8_t)(code << i * bits % 8);
}

KVL_BLOCK void kvl_kivi_row_put(uint8_t *row, const float *x, int32_t n, int32_t bits)
{
    for (int32_t u = 0; u < n; u += 32, row += 4 + 4 * bits) {
        kvl_kivi_range(x + u, 1, bits, row, row + 2);
        float min = kvl_block_half(row), scale = kvl_block_half(row + 2);
        for (int32_t i = 0; i < 32; i++)
            kvl_kivi_set(row + 4, bits, i, kvl_kivi_code(x[u + i], min, scale, bits));
    }
}
KVL_BLOCK float kvl_kivi_row_at(const uint8_t *row, int32_t i, int32_t bits)
{
    const uint8_t *unit = row + i / 32 * (4 + 4 * bits);
    return kvl_kivi_value(unit, unit + 2, kvl_kivi_get(unit + 4, bits, i % 32));
}

KVL_BLOCK void kvl_kivi4_row_put(uint8_t *row, const float *x, int32_t n)
{
    kvl_kivi_row_put(row, x, n, 4);
}
KVL_BLOCK float kvl_kivi4_at(const uint8_t *row, int32_t i)
{
    return kvl_kivi_row_at(row, i, 4);
}
KVL_BLOCK void kvl_kivi2_row_put(uint8_t *row, const float *x, int32_t n)
{
    kvl_kivi_row_put(row, x, n, 2);
}
KVL_BLOCK float kvl_kivi2_at(const uint8_t *row, int32_t i)
{
    return kvl_kivi_row_at(row, i, 2);
}

KVL_BLOCK int32_t kvl_kivi_bits(enum kvl_kv_type type)
{
    return type == KVL_KV_KIVI4 ? 4 : 2;
}

/* Where the codes of a token of a group of keys begin. */
KVL_BLOCK size_t kvl_kivi_group_codes(int32_t n, int32_t bits, int32_t token)
{
    return 4 * (size_t)n + (size_t)token * (size_t)(n / 8 * bits);
}

/* Keys of KVL_KV_GROUP tokens: x [KVL_KV_GROUP][n].  A group takes as many bytes as that many rows. */
KVL_BLOCK void kvl_kivi_group_put(enum kvl_kv_type type, uint8_t *group, const float *x, int32_t n)
{
    const int32_t bits = kvl_kivi_bits(type);
    uint8_t *min = group, *scale = group + 2 * n;
    for (int32_t c = 0; c < n; c++) kvl_kivi_range(x + c, n, bits, min + 2 * c, scale + 2 * c);
    for (int32_t t = 0; t < KVL_KV_GROUP; t++) {
        uint8_t *codes = group + kvl_kivi_group_codes(n, bits, t);
        for (int32_t c = 0; c < n; c++)
            kvl_kivi_set(codes, bits, c,
                         kvl_kivi_code(x[t * n + c], kvl_block_half(min + 2 * c),
                                       kvl_block_half(scale + 2 * c), bits));
    }
}
KVL_BLOCK float kvl_kivi_group_at(enum kvl_kv_type type, const uint8_t *group, int32_t n,
                                  int32_t token, int32_t c)
{
    const int32_t bits = kvl_kivi_bits(type);
    const uint8_t *codes = group + kvl_kivi_group_codes(n, bits, token);
    return kvl_kivi_value(group + 2 * c, group + 2 * (n + c), kvl_kivi_get(codes, bits, c));
}

/* ---- any type ---------------------------------------------------------------------------------------- */

/* n elements that are turned already to a row, and element i of a row before it is turned back. */
KVL_BLOCK void kvl_row_put_turned(enum kvl_kv_type type, uint8_t *row, const float *x, int32_t n)
{
#define KVL_KV_TYPE(name, number, text, family, ...)                                               \
    if (type == KVL_KV_##name) kvl_##family##_row_put(row, x, n);
#include "kvl/kvtypes.def"
}
KVL_BLOCK float kvl_row_at_turned(enum kvl_kv_type type, const uint8_t *row, int32_t i)
{
#define KVL_KV_TYPE(name, number, text, family, ...)                                               \
    if (type == KVL_KV_##name) return kvl_##family##_at(row, i);
#include "kvl/kvtypes.def"
    return 0;
}

KVL_BLOCK enum kvl_kv_turn kvl_row_turn(enum kvl_kv_type type)
{
#define KVL_KV_TYPE(name, number, text, family, unit, bytes, head, turn, ...)                      \
    if (type == KVL_KV_##name) return KVL_TURN_##turn;
#include "kvl/kvtypes.def"
    return KVL_TURN_NONE;
}

/* ---- turns ------------------------------------------------------------------------------------------- */

/* Whether element i of a row changes its sign: a bit of a hash of i. */
KVL_BLOCK bool kvl_turn_sign(int32_t i)
{
    uint32_t h = (uint32_t)i + 1u;
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) * 0x846ca68bu;
    return (h >> 16 & 1u) != 0;
}

KVL_BLOCK int32_t kvl_turn_piece(int32_t n)
{
    return n & -n;
}

/* 1 / sqrt(piece) */
KVL_BLOCK float kvl_turn_scale(int32_t piece)
{
    float scale = 1;
    for (; piece >= 4; piece /= 4) scale *= 0.5f;
    return piece == 2 ? scale * 0.70710678f : scale;
}

/* Pair i of n / 2 of a step: elements *a and *b, `step` apart. */
KVL_BLOCK void kvl_turn_pair(int32_t i, int32_t step, int32_t *a, int32_t *b)
{
    *a = i / step * 2 * step + i % step;
    *b = *a + step;
}

#endif
