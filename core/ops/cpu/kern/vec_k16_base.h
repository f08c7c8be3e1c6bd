/* vec_k16_base.h - 32 integers of 16 bits, in plain C: any processor.  vec_k16_avx2.h and
 * vec_k16_avx512.h give the same names vectors.
 *
 * 16 floats are an array of KV of the processor's vectors. */
#ifndef KVL_VEC_K16_H
#define KVL_VEC_K16_H

#include "vec_q16_base.h"

enum { KV = 16 / VW };

typedef struct {
    int16_t at[32];
} vk;

/* 32 bytes, 0 to 255. */
VEC vk vk_bytes(const uint8_t *p)
{
    vk k;
    for (int32_t i = 0; i < 32; i++) k.at[i] = p[i];
    return k;
}
/* 16 bytes of nibbles, first all low ones, then all high ones: the bytes of a table. */
VEC vk vk_table(const uint8_t *p, const int8_t *table)
{
    vk k;
    for (int32_t i = 0; i < 16; i++) {
        k.at[i] = table[p[i] & 15];
        k.at[16 + i] = table[p[i] >> 4];
    }
    return k;
}
/* The nibbles themselves. */
VEC vk vk_nibbles(const uint8_t *p)
{
    vk k;
    for (int32_t i = 0; i < 16; i++) {
        k.at[i] = p[i] & 15;
        k.at[16 + i] = p[i] >> 4;
    }
    return k;
}
/* a | x in the elements whose bit is set. */
VEC vk vk_mark(vk a, uint32_t bits, int16_t x)
{
    for (int32_t i = 0; i < 32; i++) a.at[i] = (int16_t)(a.at[i] | (bits >> i & 1 ? x : 0));
    return a;
}
VEC vq vk_as_q(vk a)
{
    return vq_load(a.at);
}
VEC vk vk_and(vk a, int16_t bits)
{
    for (int32_t i = 0; i < 32; i++) a.at[i] &= bits;
    return a;
}
/* Left by n, or right by -n; of elements that are not negative. */
VEC vk vk_shift(vk a, int32_t n)
{
    for (int32_t i = 0; i < 32; i++) a.at[i] = (int16_t)(n < 0 ? a.at[i] >> -n : a.at[i] << n);
    return a;
}
/* a | (b & bits) */
VEC vk vk_with(vk a, vk b, int16_t bits)
{
    for (int32_t i = 0; i < 32; i++) a.at[i] = (int16_t)(a.at[i] | (b.at[i] & bits));
    return a;
}
VEC vk vk_less(vk a, int16_t x)
{
    for (int32_t i = 0; i < 32; i++) a.at[i] = (int16_t)(a.at[i] - x);
    return a;
}
/* to [2 * KV]: the elements. */
VEC void vk_floats(vf *to, vk a)
{
    float x[32];
    for (int32_t i = 0; i < 32; i++) x[i] = (float)a.at[i];
    for (int32_t v = 0; v < 2 * KV; v++) to[v] = vf_load(x + v * VW);
}

#endif
