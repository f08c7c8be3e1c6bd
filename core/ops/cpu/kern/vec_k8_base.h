/* vec_k8_base.h - 64 weights of a byte each, exact products of 4 of them with x, and sums of these times scales,
 * in plain C: any processor.  vec_k8_avx2.h and vec_k8_avx512.h give the same names vectors.
 *
 * A block of 256 weights has four such parts, j = 0 .. 3, and 16 scales, of 16 weights each. */
#ifndef KVL_VEC_K8_H
#define KVL_VEC_K8_H

#include "vec_b8_base.h"

typedef struct {
    uint8_t at[64];
} vy;
/* In the order of struct kvl_gemv_k. */
typedef struct {
    float at[16];
} vy_scale;
typedef vq_sum vy_sum;

VEC vy vy_load(const uint8_t *p)
{
    vy a;
    memcpy(&a, p, sizeof a);
    return a;
}
/* 32 bytes, twice. */
VEC vy vy_twice(const uint8_t *p)
{
    vy a;
    memcpy(a.at, p, 32);
    memcpy(a.at + 32, p, 32);
    return a;
}
/* The bits of `mask` of the first half shifted left by lo (right by -lo), of the second by hi. */
VEC vy vy_bits(vy a, int32_t lo, int32_t hi, uint8_t mask)
{
    for (int32_t i = 0; i < 64; i++) {
        int32_t n = i < 32 ? lo : hi;
        a.at[i] = (uint8_t)((n < 0 ? a.at[i] >> -n : a.at[i] << n) & mask);
    }
    return a;
}
VEC vy vy_or(vy a, vy b)
{
    for (int32_t i = 0; i < 64; i++) a.at[i] |= b.at[i];
    return a;
}
/* 32 bytes of nibbles, 16 at a time first all low ones, then all high ones: the signed bytes of a table. */
VEC vy vy_table(const uint8_t *p, const int8_t *table)
{
    vy a;
    for (int32_t i = 0; i < 64; i++)
        a.at[i] = (uint8_t)table[p[i / 32 * 16 + i % 16] >> i % 32 / 16 * 4 & 15];
    return a;
}
/* d times 16 scales times those of x. */
VEC vy_scale vy_scales16(const uint64_t *s, const struct kvl_gemv_k *x, float d)
{
    vy_scale to;
    for (int32_t i = 0; i < 16; i++) {
        int32_t part = i % 4 * 4 + i / 4; /* the sixteen that lies in this place */
        to.at[i] = d * (float)(int8_t)(s[part / 8] >> part % 8 * 8 & 255) * x->scale16[i];
    }
    return to;
}
/* The same for 8 scales, each of two sixteens. */
VEC vy_scale vy_scales32(const uint64_t *s, const struct kvl_gemv_k *x, float d)
{
    vy_scale to;
    for (int32_t i = 0; i < 16; i++) {
        int32_t part = (i % 4 * 4 + i / 4) / 2;
        to.at[i] = d * (float)(int8_t)(*s >> part * 8 & 255) * x->scale16[i];
    }
    return to;
}
VEC vy_sum vy_zero(void)
{
    return (vy_sum){ { 0 } };
}
/* s less scales times `times` times the sums of 16 x. */
VEC vy_sum vy_less16(vy_sum s, vy_scale less, const struct kvl_gemv_k *x, float times)
{
    for (int32_t i = 0; i < 16; i++) s.at[i % 8] -= less.at[i] * times * x->sum16[i];
    return s;
}
/* s less d times 8 numbers times the scales and sums of 32 x. */
VEC vy_sum vy_less32(vy_sum s, const uint64_t *less, const struct kvl_gemv_k *x, float d)
{
    for (int32_t i = 0; i < 8; i++) {
        int32_t part = i % 4 * 2 + i / 4;
        s.at[i] -= d * (float)(int8_t)(*less >> part * 8 & 255) * x->scale32[i] * x->sum32[i];
    }
    return s;
}
/* s + products of weights, each below 64, with part j of x, times their scales. */
VEC vy_sum vy_dot(vy_sum s, vy w, const struct kvl_gemv_k *x, vy_scale scale, int32_t j)
{
    for (int32_t i = 0; i < 64; i += 4) {
        int32_t dot = 0;
        for (int32_t k = i; k < i + 4; k++)
            dot += w.at[k] * (x->hi[64 * j + k] * 256 + x->lo[64 * j + k]);
        s.at[i / 4 % 8] += scale.at[i / 16 * 4 + j] * (float)dot;
    }
    return s;
}
/* The same for weights with signs, where 32 have one scale. */
VEC vy_sum vy_dot_signed(vy_sum s, vy w, const struct kvl_gemv_k *x, vy_scale scale, int32_t j)
{
    for (int32_t i = 0; i < 64; i += 4) {
        int32_t dot = 0;
        for (int32_t k = i; k < i + 4; k++) dot += (int8_t)w.at[k] * x->q[64 * j + k];
        s.at[i / 4 % 8] += scale.at[i / 16 * 4 + j] * (float)dot;
    }
    return s;
}
/* vy_dot of the low nibbles of 32 bytes, then of the high ones. */
VEC vy_sum vy_dot_nibbles(vy_sum s, const uint8_t *p, const struct kvl_gemv_k *x, vy_scale scale,
                          int32_t j)
{
    return vy_dot(s, vy_bits(vy_twice(p), 0, -4, 15), x, scale, j);
}
VEC float vy_hsum(vy_sum s)
{
    return vq_hsum(s);
}

#endif
