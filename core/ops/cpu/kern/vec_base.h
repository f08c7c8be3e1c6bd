/* vec_base.h - vectors of 4 floats in the compiler's own vector types: any processor (SSE2, NEON).
 * On arm64 multiply-adds and half floats are its own instructions.
 *
 * The kernels (kern_*.h) are written once against these names; vec_avx2.h and vec_avx512.h give the
 * same names wider vectors.  VW floats make a vector; MR x NV vectors are the register tile of a
 * matrix product.
 */
#ifndef KVL_VEC_H
#define KVL_VEC_H

#include "half.h"

#include <stdint.h>
#include <string.h>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#define VEC static inline __attribute__((always_inline, unused))

enum { VW = 4, MR = 4, NV = 2, NR = NV * VW };

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vec_int __attribute__((vector_size(16)));

VEC vf vf_set1(float x)
{
    return (vf){ x, x, x, x };
}
VEC vf vf_zero(void)
{
    return vf_set1(0);
}
VEC vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
VEC void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}
/* The first n lanes, the others zero; 0 <= n <= VW. */
VEC vf vf_load_n(const float *p, int32_t n)
{
    float part[4] = { 0 };
    for (int32_t i = 0; i < n; i++) part[i] = p[i];
    return vf_load(part);
}
VEC void vf_store_n(float *p, vf v, int32_t n)
{
    for (int32_t i = 0; i < n; i++) p[i] = v[i];
}
VEC vf vf_add(vf a, vf b)
{
    return a + b;
}
VEC vf vf_sub(vf a, vf b)
{
    return a - b;
}
VEC vf vf_mul(vf a, vf b)
{
    return a * b;
}
VEC vf vf_div(vf a, vf b)
{
    return a / b;
}
/* a * b + c; one rounding or two. */
VEC vf vf_fma(vf a, vf b, vf c)
{
#if defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}
VEC vf vec_select(vec_int mask, vf a, vf b)
{
    return (vf)((mask & (vec_int)a) | (~mask & (vec_int)b));
}
/* a > b ? a : b, so that a NaN in b stays. */
VEC vf vf_max(vf a, vf b)
{
    return vec_select(a > b, a, b);
}
VEC vf vf_min(vf a, vf b)
{
    return vec_select(a < b, a, b);
}
/* x where a > b, else y; x and y may hold any bits. */
VEC vf vf_if_more(vf a, vf b, vf x, vf y)
{
    return vec_select(a > b, x, y);
}
/* VW / 2 numbers, each twice. */
VEC vf vf_pairs(const float *p)
{
    return (vf){ p[0], p[0], p[1], p[1] };
}
/* Neighbours have changed places. */
VEC vf vf_swap(vf v)
{
    return (vf){ v[1], v[0], v[3], v[2] };
}
/* a - b in even lanes, a + b in odd ones. */
VEC vf vf_less_more(vf a, vf b)
{
    return (vf){ a[0] - b[0], a[1] + b[1], a[2] - b[2], a[3] + b[3] };
}
VEC float vf_hsum(vf v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}
VEC float vf_hmax(vf v)
{
    float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
}
/* v where x is not below lo, else 0. */
VEC vf vf_unless_below(vf v, vf x, vf lo)
{
    return (vf)(~(x < lo) & (vec_int)v);
}
/* 2^n from t = n + 1.5 * 2^23: the low bits of t hold n. */
VEC vf vf_pow2_magic(vf t)
{
    typedef uint32_t vec_uint __attribute__((vector_size(16)));
    return (vf)(((vec_uint)t << 23) + 0x3f800000u);
}
VEC float vec_f16(uint16_t h)
{
    return kvl_f16_to_f32(h);
}
VEC vf vf_load_f16_n(const uint16_t *p, int32_t n)
{
    float part[4] = { 0 };
    for (int32_t i = 0; i < n; i++) part[i] = kvl_f16_to_f32(p[i]);
    return vf_load(part);
}
VEC vf vf_load_f16(const uint16_t *p)
{
#if defined(__aarch64__)
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
    return vf_load_f16_n(p, 4);
#endif
}
/* Rounds to nearest even. */
VEC void vf_store_f16(uint16_t *p, vf v)
{
    for (int32_t i = 0; i < VW; i++) p[i] = kvl_f32_to_f16(v[i]);
}
VEC vf vf_load_bf16_n(const uint16_t *p, int32_t n)
{
    float part[4] = { 0 };
    for (int32_t i = 0; i < n; i++) part[i] = kvl_bf16_to_f32(p[i]);
    return vf_load(part);
}
VEC vf vf_load_bf16(const uint16_t *p)
{
    return vf_load_bf16_n(p, 4);
}
VEC vf vf_load_i8(const int8_t *p)
{
    return (vf){ (float)p[0], (float)p[1], (float)p[2], (float)p[3] };
}
/* Elements j .. j + VW - 1 of a block's 16 bytes of nibbles, less 8: first all low ones, then all
 * high ones. */
VEC vf vf_nibbles(const uint8_t *p, int32_t j)
{
    int8_t q[4];
    for (int32_t i = 0; i < 4; i++) q[i] = (int8_t)((p[j % 16 + i] >> (j < 16 ? 0 : 4) & 15) - 8);
    return vf_load_i8(q);
}
/* VW numbers of fp8 e4m3, as a half with the same bits reads them: over 256. */
VEC vf vf_load_e4m3(const uint8_t *p)
{
    uint16_t h[4];
    for (int32_t i = 0; i < VW; i++) h[i] = (uint16_t)((p[i] & 0x7f) << 7 | (p[i] & 0x80) << 8);
    return vf_load_f16(h);
}
/* Codes i .. of four bits or two, one after the other from the lowest bit on; i a multiple of VW. */
VEC vf vf_ints4(const uint8_t *codes, int32_t i)
{
    const uint8_t *p = codes + i / 2;
    return (vf){ (float)(p[0] & 15), (float)(p[0] >> 4), (float)(p[1] & 15), (float)(p[1] >> 4) };
}
VEC vf vf_ints2(const uint8_t *codes, int32_t i)
{
    const int32_t p = codes[i / 4];
    return (vf){ (float)(p & 3), (float)(p >> 2 & 3), (float)(p >> 4 & 3), (float)(p >> 6) };
}
/* table[code i] .. of codes of four or three bits, one after the other from the lowest bit on; i a multiple of VW. */
VEC vf vf_codes4(const float *table, const uint8_t *codes, int32_t i)
{
    const uint8_t *p = codes + i / 2;
    return (vf){ table[p[0] & 15], table[p[0] >> 4], table[p[1] & 15], table[p[1] >> 4] };
}
VEC vf vf_codes3(const float *table, const uint8_t *codes, int32_t i)
{
    const uint8_t *p = codes + i / 8 * 3;
    uint32_t all = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16;
    all >>= i % 8 * 3;
    return (vf){ table[all & 7], table[all >> 3 & 7], table[all >> 6 & 7], table[all >> 9 & 7] };
}
/* The halves at p[i] + off, i < VW. */
VEC vf vf_halves(const uint8_t *const *p, size_t off)
{
    uint16_t h[4];
    for (int32_t i = 0; i < VW; i++) memcpy(&h[i], p[i] + off, sizeof h[i]);
    return vf_load_f16(h);
}
/* VW / n floats, n times each row of them: n is 1, 2 or 4. */
VEC vf vf_spread(const float *p, int32_t n)
{
    vf v;
    for (int32_t i = 0; i < VW; i++) v[i] = p[i % (VW / n)];
    return v;
}
/* Lane i = the sum of the lanes of v[i], i < VW. */
VEC vf vf_sums(const vf *v)
{
    return (vf){ vf_hsum(v[0]), vf_hsum(v[1]), vf_hsum(v[2]), vf_hsum(v[3]) };
}
/* Transposes a VW x VW square. */
VEC void vf_transpose(vf *r)
{
    vf s[4] = { r[0], r[1], r[2], r[3] };
    for (int32_t i = 0; i < 4; i++) r[i] = (vf){ s[0][i], s[1][i], s[2][i], s[3][i] };
}

/* 2 * VW bf16 values: pairs of neighbours, one pair in the place of a float. */
typedef uint16_t vb __attribute__((vector_size(16)));
typedef uint32_t vec_pair __attribute__((vector_size(16)));

VEC vb vb_load(const uint16_t *p)
{
    vb b;
    memcpy(&b, p, sizeof b);
    return b;
}
/* The first n values, the others zero; 0 <= n <= 2 * VW. */
VEC vb vb_load_n(const uint16_t *p, int32_t n)
{
    uint16_t part[8] = { 0 };
    memcpy(part, p, (size_t)n * sizeof *p);
    return vb_load(part);
}
VEC void vb_store(uint16_t *p, vb b)
{
    memcpy(p, &b, sizeof b);
}
/* The same pair everywhere. */
VEC vb vb_set2(const uint16_t *p)
{
    return (vb){ p[0], p[1], p[0], p[1], p[0], p[1], p[0], p[1] };
}
/* The values of lo, then those of hi, rounded to nearest even. */
VEC vb vb_round(vf lo, vf hi)
{
    vb b = { 0 };
    for (int32_t i = 0; i < VW; i++) {
        b[i] = kvl_f32_to_bf16(lo[i]);
        b[VW + i] = kvl_f32_to_bf16(hi[i]);
    }
    return b;
}
VEC void vf_store_bf16(uint16_t *p, vf v)
{
    for (int32_t i = 0; i < VW; i++) p[i] = kvl_f32_to_bf16(v[i]);
}
/* Lane i: s + the products of pair i; how the sums are rounded is left open.  Processors with the
 * instruction take subnormals for zero. */
VEC vf vf_dot_bf16(vf s, vb a, vb b)
{
    const vec_pair top = { 0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u };
    vf a0 = (vf)((vec_pair)a << 16), a1 = (vf)((vec_pair)a & top);
    vf b0 = (vf)((vec_pair)b << 16), b1 = (vf)((vec_pair)b & top);
    return vf_fma(a0, b0, vf_fma(a1, b1, s));
}
/* Pairs (a[c], b[c]): lo and hi have all c between them, in an order that vf_unzip undoes. */
VEC vb vb_zip_lo(vb a, vb b)
{
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
VEC vb vb_zip_hi(vb a, vb b)
{
    return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
VEC void vf_unzip(vf *lo, vf *hi)
{
    (void)lo;
    (void)hi;
}
/* Pairs (a[i], b[i]), rounded. */
VEC vb vb_pair(vf a, vf b)
{
    vb both = vb_round(a, b);
    return vb_zip_lo(both, __builtin_shufflevector(both, both, 4, 5, 6, 7, 4, 5, 6, 7));
}

/* Of the VW integers at key, those from lo to hi, one behind the other: how many.  VW words are written. */
VEC int32_t vec_keep(int32_t *to, const int32_t *key, int32_t lo, int32_t hi)
{
    int32_t m = 0, kept[VW] = { 0 };
    for (int32_t i = 0; i < VW; i++) {
        kept[m] = key[i];
        m += key[i] >= lo && key[i] <= hi;
    }
    memcpy(to, kept, sizeof kept);
    return m;
}
/* The same of their numbers, first and up, for keys from lo on. */
VEC int32_t vec_keep_places(int32_t *to, const int32_t *key, int32_t lo, int32_t first)
{
    int32_t m = 0, kept[VW] = { 0 };
    for (int32_t i = 0; i < VW; i++) {
        kept[m] = first + i;
        m += key[i] >= lo;
    }
    memcpy(to, kept, sizeof kept);
    return m;
}

/* Eight bytes' lower, or upper, halves as floats. */
VEC void vec_8_nibbles(float *y, const uint8_t *p, bool upper)
{
    for (int32_t i = 0; i < 8; i++) y[i] = (float)(upper ? p[i] >> 4 : p[i] & 15);
}

#endif
