/* vec_b8_base.h - 32 weights of a byte each and products with 32 bytes of x, in plain C: any processor.  vec_b8_x86.h
 * gives the same names vectors. */
#ifndef KVL_VEC_B8_H
#define KVL_VEC_B8_H

#include "vec_q16_base.h"

/* Of a function that is long once all its loops are unrolled: here it is there once, whatever the type of weights, and
 * asks for it as it goes; where there are vectors it is VEC. */
#define ONE static __attribute__((noinline, unused))

/* 32 bytes; sums of two products each; scales of a block of 256. */
typedef struct {
    uint8_t at[32];
} vz;
typedef struct {
    int16_t at[16];
} vz_sum;
typedef vz_sum vz_scale;

VEC vz vz_load(const void *p)
{
    vz a;
    memcpy(&a, p, sizeof a);
    return a;
}
/* 16 bytes of each. */
VEC vz vz_both(const void *first, const void *last)
{
    vz a;
    memcpy(a.at, first, 16);
    memcpy(a.at + 16, last, 16);
    return a;
}
VEC vz vz_set(uint8_t x)
{
    vz a;
    memset(&a, x, sizeof a);
    return a;
}
/* The bits of `mask`, shifted left by n (right by -n) before. */
VEC vz vz_bits(vz a, int32_t n, uint8_t mask)
{
    for (int32_t i = 0; i < 32; i++)
        a.at[i] = (uint8_t)((n < 0 ? a.at[i] >> -n : a.at[i] << n) & mask);
    return a;
}
/* Nibbles of the same 16 bytes twice: first all low ones, then all high ones. */
VEC vz vz_halves(vz a)
{
    for (int32_t i = 0; i < 32; i++) a.at[i] = (uint8_t)(a.at[i] >> i / 16 * 4 & 15);
    return a;
}
VEC vz vz_or(vz a, vz b)
{
    for (int32_t i = 0; i < 32; i++) a.at[i] |= b.at[i];
    return a;
}
/* Signed bytes by their numbers, 0 to 15. */
VEC vz vz_table(vz a, const int8_t *table)
{
    for (int32_t i = 0; i < 32; i++) a.at[i] = (uint8_t)table[a.at[i]];
    return a;
}
/* 16 where a bit is set: of 16 bits each. */
VEC vz vz_marks(const uint8_t *first, const uint8_t *last)
{
    vz a;
    for (int32_t i = 0; i < 16; i++) {
        a.at[i] = first[i / 8] >> i % 8 & 1 ? 16 : 0;
        a.at[16 + i] = last[i / 8] >> i % 8 & 1 ? 16 : 0;
    }
    return a;
}
/* Products of weights, 0 to 63, with signed bytes. */
VEC vz_sum vz_mul(vz w, const int8_t *x)
{
    vz_sum s;
    for (int32_t i = 0; i < 16; i++)
        s.at[i] = (int16_t)(w.at[2 * i] * x[2 * i] + w.at[2 * i + 1] * x[2 * i + 1]);
    return s;
}
/* Products of weights, 0 to 31, with bytes from 0 to 255. */
VEC vz_sum vz_mul_low(vz w, const uint8_t *x)
{
    vz_sum s;
    for (int32_t i = 0; i < 16; i++)
        s.at[i] = (int16_t)(w.at[2 * i] * x[2 * i] + w.at[2 * i + 1] * x[2 * i + 1]);
    return s;
}
/* Products of signed weights with bytes from -127 to 127. */
VEC vz_sum vz_mul_signed(vz w, const int8_t *x)
{
    vz_sum s;
    for (int32_t i = 0; i < 16; i++)
        s.at[i] =
            (int16_t)((int8_t)w.at[2 * i] * x[2 * i] + (int8_t)w.at[2 * i + 1] * x[2 * i + 1]);
    return s;
}
VEC vz_sum vz_add(vz_sum a, vz_sum b)
{
    for (int32_t i = 0; i < 16; i++) a.at[i] = (int16_t)(a.at[i] + b.at[i]);
    return a;
}
/* s + sums of neighbours, each times `times`. */
VEC vq_int vz_wide(vq_int s, vz_sum a, int16_t times)
{
    for (int32_t i = 0; i < 16; i++) s.at[i / 2] += a.at[i] * times;
    return s;
}
/* 16 signed bytes: first those with an even number. */
VEC vz_scale vz_scales16(const uint64_t *s)
{
    vz_scale to;
    for (int32_t i = 0; i < 16; i++)
        to.at[i % 2 * 8 + i / 2] = (int8_t)(s[i / 8] >> i % 8 * 8 & 255);
    return to;
}
/* 8 signed bytes, twice. */
VEC vz_scale vz_scales32(const uint64_t *s)
{
    vz_scale to;
    for (int32_t i = 0; i < 16; i++) to.at[i] = (int8_t)(*s >> i % 8 * 8 & 255);
    return to;
}
VEC vz_scale vz_scales_times(vz_scale s, int16_t times)
{
    for (int32_t i = 0; i < 16; i++) s.at[i] = (int16_t)(s.at[i] * times);
    return s;
}
/* s + a times scale g of each half. */
VEC vq_int vz_scaled(vq_int s, vz_sum a, vz_scale scale, int32_t g)
{
    for (int32_t i = 0; i < 16; i++) s.at[i / 2] += a.at[i] * scale.at[i / 8 * 8 + g];
    return s;
}
/* Products of 16 sums of x, in the order of vz_scales16, with as many scales. */
VEC vq_int vz_sums(const int16_t *sum, vz_scale scale)
{
    vq_int s = { { 0 } };
    for (int32_t i = 0; i < 16; i++) s.at[i / 2] += sum[i] * scale.at[i];
    return s;
}
/* Of each half: sums of neighbouring pairs, of a, then of b. */
VEC vz_sum vz_fold(vz_sum a, vz_sum b)
{
    vz_sum s;
    for (int32_t i = 0; i < 16; i++) {
        const int16_t *from = (i % 8 < 4 ? a.at : b.at) + i / 8 * 8 + i % 4 / 2 * 4 + i % 2;
        s.at[i] = (int16_t)(from[0] + from[2]);
    }
    return s;
}
VEC vq_int vq_none(void)
{
    return (vq_int){ { 0 } };
}
VEC vq_int vq_plus(vq_int a, vq_int b)
{
    for (int32_t i = 0; i < VQ_LANES; i++) a.at[i] += b.at[i];
    return a;
}
/* Of each half: sums of neighbours, of a, then of b. */
VEC vq_int vq_fold(vq_int a, vq_int b)
{
    vq_int s;
    for (int32_t i = 0; i < VQ_LANES; i++) {
        const int32_t *from = (i % 4 < 2 ? a.at : b.at) + i / 4 * 4 + i % 2 * 2;
        s.at[i] = from[0] + from[1];
    }
    return s;
}
/* The halves of a added up, then those of b. */
VEC vq_int vq_cross(vq_int a, vq_int b)
{
    vq_int s;
    for (int32_t i = 0; i < 4; i++) {
        s.at[i] = a.at[i] + a.at[4 + i];
        s.at[4 + i] = b.at[i] + b.at[4 + i];
    }
    return s;
}
/* The halves, in half precision, that four blocks from lo on and four from hi on begin with. */
VEC vq_sum vq_halves(const uint8_t *lo, const uint8_t *hi, size_t bytes)
{
    vq_sum s;
    for (size_t i = 0; i < VQ_LANES; i++) {
        uint16_t half;
        memcpy(&half, (i < 4 ? lo : hi) + i % 4 * bytes, sizeof half);
        s.at[i] = vec_f16(half);
    }
    return s;
}
/* The same, and those behind them. */
VEC void vq_halves2(vq_sum *first, vq_sum *second, const uint8_t *lo, const uint8_t *hi,
                    size_t bytes)
{
    *first = vq_halves(lo, hi, bytes);
    *second = vq_halves(lo + 2, hi + 2, bytes);
}
VEC vq_sum vq_mul(vq_sum a, vq_sum b)
{
    for (int32_t i = 0; i < VQ_LANES; i++) a.at[i] *= b.at[i];
    return a;
}
/* a b + s */
VEC vq_sum vq_fma(vq_sum a, vq_sum b, vq_sum s)
{
    for (int32_t i = 0; i < VQ_LANES; i++) s.at[i] += a.at[i] * b.at[i];
    return s;
}
/* The sum of one half. */
VEC float vq_hsum_half(vq_sum s, int32_t h)
{
    float x = 0;
    for (int32_t i = 0; i < 4; i++) x += s.at[h * 4 + i];
    return x;
}
VEC vq_sum vq_floats(const float *p)
{
    vq_sum s;
    memcpy(&s, p, sizeof s);
    return s;
}
/* Elements 0 .. 15 of a block, from -128 to 127, go to `first`, the others to `last`. */
VEC void vq_narrow(int8_t *first, int8_t *last, vq q)
{
    for (int32_t i = 0; i < 16; i++) {
        first[i] = (int8_t)q.at[i];
        last[i] = (int8_t)q.at[16 + i];
    }
}
/* First the elements with an even number. */
VEC void vq_apart(int16_t *to, vq q)
{
    for (int32_t i = 0; i < 32; i++) to[i / 2 + i % 2 * 16] = q.at[i];
}
/* q as 256 hi + lo; elements 16 .. 31 ld bytes behind the others. */
VEC void vq_split(int8_t *hi, uint8_t *lo, size_t ld, vq q)
{
    for (int32_t i = 0; i < 32; i++) {
        hi[(size_t)(i / 16) * ld + (size_t)(i % 16)] = (int8_t)(q.at[i] >> 8);
        lo[(size_t)(i / 16) * ld + (size_t)(i % 16)] = (uint8_t)(q.at[i] & 255);
    }
}

#endif
