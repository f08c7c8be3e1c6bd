/* vec_k16_avx2.h - 32 integers of 16 bits; see vec_k16_base.h for what each function means. */
#ifndef KVL_VEC_K16_H
#define KVL_VEC_K16_H

#include "vec_q16_x86.h"

enum { KV = 2 };

typedef vq vk;

VEC vk vec_widened(__m128i lo, __m128i hi)
{
    return (vk){ _mm256_cvtepi8_epi16(lo), _mm256_cvtepi8_epi16(hi) };
}
VEC vk vk_bytes(const uint8_t *p)
{
    return (vk){ _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p)),
                 _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(p + 16))) };
}
VEC vk vk_table(const uint8_t *p, const int8_t *table)
{
    const __m128i low = _mm_set1_epi8(15);
    __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return vec_widened(_mm_shuffle_epi8(t, _mm_and_si128(b, low)),
                       _mm_shuffle_epi8(t, _mm_and_si128(_mm_srli_epi16(b, 4), low)));
}
VEC vk vk_nibbles(const uint8_t *p)
{
    return vq_nibbles(p);
}
/* Of 16 elements: a bit each, as all bits of it. */
VEC __m256i vec_bits16(uint32_t bits)
{
    const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096,
                                          8192, 16384, -32768);
    __m256i b = _mm256_set1_epi16((int16_t)(bits & 0xffff));
    return _mm256_cmpeq_epi16(_mm256_and_si256(b, bit), bit);
}
VEC vk vk_mark(vk a, uint32_t bits, int16_t x)
{
    const __m256i m = _mm256_set1_epi16(x);
    a.lo = _mm256_or_si256(a.lo, _mm256_and_si256(vec_bits16(bits), m));
    a.hi = _mm256_or_si256(a.hi, _mm256_and_si256(vec_bits16(bits >> 16), m));
    return a;
}
VEC vq vk_as_q(vk a)
{
    return a;
}
VEC vk vk_and(vk a, int16_t bits)
{
    const __m256i m = _mm256_set1_epi16(bits);
    return (vk){ _mm256_and_si256(a.lo, m), _mm256_and_si256(a.hi, m) };
}
VEC vk vk_shift(vk a, int32_t n)
{
    if (n < 0) return (vk){ _mm256_srli_epi16(a.lo, -n), _mm256_srli_epi16(a.hi, -n) };
    return (vk){ _mm256_slli_epi16(a.lo, n), _mm256_slli_epi16(a.hi, n) };
}
VEC vk vk_with(vk a, vk b, int16_t bits)
{
    b = vk_and(b, bits);
    return (vk){ _mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi) };
}
VEC vk vk_less(vk a, int16_t x)
{
    const __m256i s = _mm256_set1_epi16(x);
    return (vk){ _mm256_sub_epi16(a.lo, s), _mm256_sub_epi16(a.hi, s) };
}
/* Elements 0 .. 15 times lo, 16 .. 31 times hi. */
VEC vk vk_times(vk a, int16_t lo, int16_t hi)
{
    return (vk){ _mm256_mullo_epi16(a.lo, _mm256_set1_epi16(lo)),
                 _mm256_mullo_epi16(a.hi, _mm256_set1_epi16(hi)) };
}
VEC void vec_floats16(vf *to, __m256i a)
{
    to[0] = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(a)));
    to[1] = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(a, 1)));
}
VEC void vk_floats(vf *to, vk a)
{
    vec_floats16(to, a.lo);
    vec_floats16(to + 2, a.hi);
}

/* Pairs of 16-bit integers, each in the place of a float, or 32-bit sums of their products: kern_gemmq.h. */
#define VEC_HAS_PAIRS
typedef __m256i vp;

VEC vp vp_zero(void)
{
    return _mm256_setzero_si256();
}
VEC vp vp_load(const float *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
VEC vp vp_set1(const float *p)
{
    return _mm256_castps_si256(_mm256_broadcast_ss(p));
}
/* s + a pair of a times a pair of b.  The empty statement keeps s in its register: GCC 12 gives every sum of a
 * loop a new one and copies it back. */
VEC vp vp_dot(vp s, vp a, vp b)
{
    s = _mm256_add_epi32(s, _mm256_madd_epi16(a, b));
    __asm__("" : "+x"(s));
    return s;
}
VEC vf vp_floats(vp s)
{
    return _mm256_cvtepi32_ps(s);
}

#endif
