/* vec_k16_base.h - 32 integers of 16 bits and sums of their products in 16 places, in plain C: any
 * processor.  vec_k16_avx2.h and vec_k16_avx512.h give the same names vectors.
 *
 * 16 floats are an array of KV of the processor's vectors. */
#ifndef KVL_VEC_K16_H
#define KVL_VEC_K16_H

enum { KV = 16 / VW };

typedef struct {
    int16_t at[32];
} vk;

VEC vk vk_load(const int16_t *p)
{
    vk k;
    memcpy(&k, p, sizeof k);
    return k;
}
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
/* to [KV]: place i has the products of elements 2i and 2i + 1. */
VEC void vk_dot(vf *to, vk a, vk b)
{
    float sum[16];
    for (int32_t i = 0; i < 16; i++)
        sum[i] = (float)(a.at[2 * i] * b.at[2 * i] + a.at[2 * i + 1] * b.at[2 * i + 1]);
    for (int32_t v = 0; v < KV; v++) to[v] = vf_load(sum + v * VW);
}
/* to [2 * KV]: the elements. */
VEC void vk_floats(vf *to, vk a)
{
    float x[32];
    for (int32_t i = 0; i < 32; i++) x[i] = (float)a.at[i];
    for (int32_t v = 0; v < 2 * KV; v++) to[v] = vf_load(x + v * VW);
}
/* to [KV]: the sixteen signed bytes of two words. */
VEC void vk_signed(vf *to, uint64_t lo, uint64_t hi)
{
    for (int32_t v = 0; v < KV; v++) {
        int8_t b[8];
        memcpy(b, v < KV / 2 ? &lo : &hi, sizeof b);
        to[v] = vf_load_i8(b + v * VW % 8);
    }
}
/* to [KV]: the bytes of both words by turns. */
VEC void vk_zip(vf *to, uint64_t even, uint64_t odd)
{
    float x[16];
    for (int32_t i = 0; i < 8; i++) {
        x[2 * i] = (float)(int8_t)(even >> 8 * i & 255);
        x[2 * i + 1] = (float)(int8_t)(odd >> 8 * i & 255);
    }
    for (int32_t v = 0; v < KV; v++) to[v] = vf_load(x + v * VW);
}
/* to [KV]: the half at p. */
VEC void vk_half(vf *to, const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    for (int32_t v = 0; v < KV; v++) to[v] = vf_set1(vec_f16(h));
}
/* to [KV]: the two halves at p by turns. */
VEC void vk_halves(vf *to, const uint8_t *p)
{
    uint16_t h[2];
    memcpy(h, p, sizeof h);
    float x[4] = { vec_f16(h[0]), vec_f16(h[1]), vec_f16(h[0]), vec_f16(h[1]) };
    for (int32_t v = 0; v < KV; v++) to[v] = vf_load(x);
}
/* 16 floats that are read again one by one. */
VEC void vk_store(float *p, const vf *v)
{
    for (int32_t i = 0; i < KV; i++) vf_store(p + i * VW, v[i]);
}
/* to [KV]: number i of those everywhere. */
VEC void vk_all(vf *to, const float *p, int32_t i)
{
    for (int32_t j = 0; j < KV; j++) to[j] = vf_set1(p[i]);
}
/* to [KV]: number i in places 0 to 7, the next in the others. */
VEC void vk_pair(vf *to, const float *p, int32_t i)
{
    for (int32_t j = 0; j < KV; j++) to[j] = vf_set1(p[i + j * VW / 8]);
}
/* In the order in which all processors add: halves, quarters and so on. */
VEC float vk_hsum(const vf *v)
{
    vf s = vf_add(vf_add(v[0], v[2]), vf_add(v[1], v[3]));
    return vf_hsum(s);
}

#endif
