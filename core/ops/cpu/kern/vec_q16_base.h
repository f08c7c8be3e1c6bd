/* vec_q16_base.h - blocks of 32 integers of 16 bits and sums of their products, in plain C: any
 * processor.  vec_q16_x86.h gives the same names vectors. */
#ifndef KVL_VEC_Q16_H
#define KVL_VEC_Q16_H

#include "gemv_x.h"

/* A block; exact sums of products, in VQ_LANES places; sums of such sums times scales. */
enum { VQ_LANES = 8 };

/* Rows of x multiplied at a time, beside one alone: here arithmetic is what takes time. */
enum { VQ_BATCH = 1 };

typedef struct {
    int16_t at[32];
} vq;
typedef struct {
    int32_t at[VQ_LANES];
} vq_int;
typedef struct {
    float at[VQ_LANES];
} vq_sum;

VEC vq vq_load(const int16_t *p)
{
    vq q;
    memcpy(&q, p, sizeof q);
    return q;
}
/* lo 16 times, then hi 16 times. */
VEC vq vq_set(int16_t lo, int16_t hi)
{
    vq q;
    for (int32_t i = 0; i < 32; i++) q.at[i] = i < 16 ? lo : hi;
    return q;
}
/* 32 floats times `times`, rounded as gemv_x.h says; NaN gives anything. */
VEC vq vq_round(const float *x, float times)
{
    vq q;
    for (int32_t i = 0; i < 32; i++) q.at[i] = kvl_gemv_round(x[i], times);
    return q;
}
VEC void vq_store(int16_t *p, vq q)
{
    memcpy(p, &q, sizeof q);
}
/* 32 signed bytes. */
VEC vq vq_bytes(const uint8_t *p)
{
    vq q;
    for (int32_t i = 0; i < 32; i++) q.at[i] = (int8_t)p[i];
    return q;
}
/* 16 bytes of nibbles, 0 to 15: first all low ones, then all high ones. */
VEC vq vq_nibbles(const uint8_t *p)
{
    vq q;
    for (int32_t i = 0; i < 16; i++) {
        q.at[i] = p[i] & 15;
        q.at[16 + i] = p[i] >> 4;
    }
    return q;
}
VEC vq_int vq_start(const int32_t *p)
{
    vq_int s;
    memcpy(&s, p, sizeof s);
    return s;
}
VEC vq_int vq_twice(vq_int s)
{
    for (int32_t i = 0; i < VQ_LANES; i++) s.at[i] *= 2;
    return s;
}
VEC void vq_store_ints(int32_t *p, vq_int s)
{
    memcpy(p, &s, sizeof s);
}
/* s + products; elements 2i, 2i + 1, 16 + 2i and 17 + 2i go to place i. */
VEC vq_int vq_dot(vq_int s, vq a, vq b)
{
    for (int32_t i = 0; i < 32; i++) s.at[i % 16 / 2] += a.at[i] * b.at[i];
    return s;
}
VEC vq_sum vq_zero(void)
{
    return (vq_sum){ { 0 } };
}
VEC vq_sum vq_add(vq_sum a, vq_sum b)
{
    for (int32_t i = 0; i < VQ_LANES; i++) a.at[i] += b.at[i];
    return a;
}
/* A half in every place. */
VEC vq_sum vq_half(const uint8_t *p)
{
    vq_sum s;
    uint16_t half;
    memcpy(&half, p, sizeof half);
    for (int32_t i = 0; i < VQ_LANES; i++) s.at[i] = vec_f16(half);
    return s;
}
/* s + d * t */
VEC vq_sum vq_times(vq_sum s, vq_sum d, vq_int t)
{
    for (int32_t i = 0; i < VQ_LANES; i++) s.at[i] += d.at[i] * (float)t.at[i];
    return s;
}
/* s + *d * t */
VEC vq_sum vq_scaled(vq_sum s, const float *d, vq_int t)
{
    for (int32_t i = 0; i < VQ_LANES; i++) s.at[i] += *d * (float)t.at[i];
    return s;
}
VEC float vq_hsum(vq_sum s)
{
    float x = 0;
    for (int32_t i = 0; i < VQ_LANES; i++) x += s.at[i];
    return x;
}
/* The sums of n = VW of them. */
VEC void vq_sums(float *to, const vq_sum *s, int32_t n)
{
    for (int32_t i = 0; i < n; i++) to[i] = vq_hsum(s[i]);
}

#endif
