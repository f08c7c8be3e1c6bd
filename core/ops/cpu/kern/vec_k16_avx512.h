/* vec_k16_avx512.h - 32 integers of 16 bits; see vec_k16_base.h for what each function means. */
#ifndef KVL_VEC_K16_H
#define KVL_VEC_K16_H

#include "vec_q16_x86.h"

enum { KV = 1 };

typedef __m512i vk;
typedef uint16_t vec_u16 __attribute__((vector_size(64)));

VEC vk vk_bytes(const uint8_t *p)
{
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
/* 16 bytes of nibbles, each in a byte. */
VEC __m256i vec_nibbles(const uint8_t *p)
{
    const __m256i shift = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m256i n = _mm256_srlv_epi32(_mm256_broadcastsi128_si256(b), shift);
    return _mm256_and_si256(n, _mm256_set1_epi8(15));
}
VEC vk vk_table(const uint8_t *p, const int8_t *table)
{
    __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    return _mm512_cvtepi8_epi16(
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), vec_nibbles(p)));
}
VEC vk vk_nibbles(const uint8_t *p)
{
    return _mm512_cvtepu8_epi16(vec_nibbles(p));
}
VEC vk vk_mark(vk a, uint32_t bits, int16_t x)
{
    return _mm512_mask_add_epi16(a, bits, a, _mm512_set1_epi16(x)); /* x has no bits of a */
}
VEC vq vk_as_q(vk a)
{
    return (vq){ _mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1) };
}
VEC vk vk_and(vk a, int16_t bits)
{
    return _mm512_and_si512(a, _mm512_set1_epi16(bits));
}
/* Not an intrinsic: their n has to be a constant, or a vector. */
VEC vk vk_shift(vk a, int32_t n)
{
    return n < 0 ? (vk)((vec_u16)a >> -n) : (vk)((vec_u16)a << n);
}
VEC vk vk_with(vk a, vk b, int16_t bits)
{
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi16(bits), 0xf8);
}
VEC vk vk_less(vk a, int16_t x)
{
    return _mm512_sub_epi16(a, _mm512_set1_epi16(x));
}
/* Elements 0 .. 15 times lo, 16 .. 31 times hi. */
VEC vk vk_times(vk a, int16_t lo, int16_t hi)
{
    return _mm512_mullo_epi16(a,
                              _mm512_inserti64x4(_mm512_set1_epi16(lo), _mm256_set1_epi16(hi), 1));
}
VEC void vk_floats(vf *to, vk a)
{
    to[0] = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_castsi512_si256(a)));
    to[1] = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(a, 1)));
}

/* Pairs of 16-bit integers, each in the place of a float, or 32-bit sums of their products: kern_gemmq.h.
 * The sums are those of vec_k16_avx2.h, bit for bit: no sum is rounded, and none is too large. */
#define VEC_HAS_PAIRS
typedef __m512i vp;

VEC vp vp_zero(void)
{
    return _mm512_setzero_si512();
}
VEC vp vp_load(const float *p)
{
    return _mm512_loadu_si512(p);
}
VEC vp vp_set1(const float *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
}
/* s + a pair of a times a pair of b.  The empty statement is that of vec_k16_avx2.h, not
 * where tests emulate the vectors. */
VEC vp vp_dot(vp s, vp a, vp b)
{
#ifdef VEC_HAS_VNNI
    s = _mm512_dpwssd_epi32(s, a, b);
#else
    s = _mm512_add_epi32(s, _mm512_madd_epi16(a, b));
#endif
#ifdef __AVX512F__
    __asm__("" : "+v"(s));
#endif
    return s;
}
VEC vf vp_floats(vp s)
{
    return _mm512_cvtepi32_ps(s);
}

#endif
