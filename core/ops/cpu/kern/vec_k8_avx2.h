/* vec_k8_avx2.h - 64 weights of a byte each; see vec_k8_base.h for what each function means. */
#ifndef KVL_VEC_K8_H
#define KVL_VEC_K8_H

#include "vec_b8_x86.h"

typedef struct {
    __m256i lo, hi;
} vy;
typedef struct {
    __m256 lo, hi;
} vy_scale, vy_sum;

VEC __m256i vec_at256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
VEC vy vy_load(const uint8_t *p)
{
    return (vy){ vec_at256(p), vec_at256(p + 32) };
}
VEC vy vy_twice(const uint8_t *p)
{
    __m256i b = vec_at256(p);
    return (vy){ b, b };
}
VEC __m256i vec_bits(__m256i a, int32_t shift, uint8_t mask)
{
    a = shift < 0 ? _mm256_srli_epi16(a, -shift) : _mm256_slli_epi16(a, shift);
    return _mm256_and_si256(a, _mm256_set1_epi8((char)mask));
}
VEC vy vy_bits(vy a, int32_t lo, int32_t hi, uint8_t mask)
{
    return (vy){ vec_bits(a.lo, lo, mask), vec_bits(a.hi, hi, mask) };
}
VEC vy vy_or(vy a, vy b)
{
    return (vy){ _mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi) };
}
/* 32 nibbles of 16 bytes, each a byte of the table. */
VEC __m256i vec_table(const uint8_t *p, __m256i table)
{
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m256i n = _mm256_set_m128i(_mm_srli_epi16(b, 4), b);
    return _mm256_shuffle_epi8(table, _mm256_and_si256(n, _mm256_set1_epi8(15)));
}
VEC vy vy_table(const uint8_t *p, const int8_t *table)
{
    __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    __m256i two = _mm256_broadcastsi128_si256(t);
    return (vy){ vec_table(p, two), vec_table(p + 16, two) };
}
/* 8 signed bytes. */
VEC __m256 vec_floats8(__m128i bytes)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
VEC __m256 vec_scaled(__m128i bytes, float d)
{
    return _mm256_mul_ps(vec_floats8(bytes), _mm256_set1_ps(d));
}
VEC __m128i vec_order16(const uint64_t *s)
{
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm_shuffle_epi8(_mm_set_epi64x((long long)s[1], (long long)s[0]), order);
}
VEC __m128i vec_order32(const uint64_t *s)
{
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, -1, -1, -1, -1, -1, -1, -1, -1);
    return _mm_shuffle_epi8(_mm_cvtsi64_si128((long long)*s), order);
}
VEC vy_scale vy_scales16(const uint64_t *s, const struct kvl_gemv_k *x, float d)
{
    __m128i all = vec_order16(s);
    __m256 lo = vec_scaled(all, d), hi = vec_scaled(_mm_srli_si128(all, 8), d);
    return (vy_scale){ _mm256_mul_ps(lo, _mm256_loadu_ps(x->scale16)),
                       _mm256_mul_ps(hi, _mm256_loadu_ps(x->scale16 + 8)) };
}
VEC vy_scale vy_scales32(const uint64_t *s, const struct kvl_gemv_k *x, float d)
{
    __m256 all = _mm256_mul_ps(vec_scaled(vec_order32(s), d), _mm256_loadu_ps(x->scale32));
    return (vy_scale){ _mm256_permute2f128_ps(all, all, 0), _mm256_permute2f128_ps(all, all, 17) };
}
VEC vy_sum vy_zero(void)
{
    return (vy_sum){ _mm256_setzero_ps(), _mm256_setzero_ps() };
}
VEC vy_sum vy_less16(vy_sum s, vy_scale less, const struct kvl_gemv_k *x, float times)
{
    __m256 lo = _mm256_mul_ps(less.lo, _mm256_set1_ps(times));
    __m256 hi = _mm256_mul_ps(less.hi, _mm256_set1_ps(times));
    return (vy_sum){ _mm256_fnmadd_ps(lo, _mm256_loadu_ps(x->sum16), s.lo),
                     _mm256_fnmadd_ps(hi, _mm256_loadu_ps(x->sum16 + 8), s.hi) };
}
VEC vy_sum vy_less32(vy_sum s, const uint64_t *less, const struct kvl_gemv_k *x, float d)
{
    __m256 all = _mm256_mul_ps(vec_scaled(vec_order32(less), d), _mm256_loadu_ps(x->scale32));
    s.lo = _mm256_fnmadd_ps(all, _mm256_loadu_ps(x->sum32), s.lo);
    return s;
}
/* Number j of each half. */
VEC __m256 vec_each(__m256 a, int32_t j)
{
    switch (j) {
    case 0: return _mm256_permute_ps(a, 0x00);
    case 1: return _mm256_permute_ps(a, 0x55);
    case 2: return _mm256_permute_ps(a, 0xaa);
    default: return _mm256_permute_ps(a, 0xff);
    }
}
/* Products of 32 weights, none of them negative, with x. */
VEC __m256 vec_dot32(__m256i w, const int8_t *x_hi, const uint8_t *x_lo)
{
    __m256i hi = _mm256_maddubs_epi16(w, vec_at256(x_hi));
    __m256i lo = _mm256_maddubs_epi16(vec_at256(x_lo), w);
    hi = _mm256_madd_epi16(hi, _mm256_set1_epi16(256));
    lo = _mm256_madd_epi16(lo, _mm256_set1_epi16(1));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(hi, lo));
}
VEC __m256 vec_dot32_signed(__m256i w, const int16_t *x)
{
    __m256i lo = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(w));
    __m256i hi = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(w, 1));
    lo = _mm256_madd_epi16(lo, vec_at256(x));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(lo, _mm256_madd_epi16(hi, vec_at256(x + 16))));
}
VEC vy_sum vy_dot(vy_sum s, vy w, const struct kvl_gemv_k *x, vy_scale scale, int32_t j)
{
    const int8_t *hi = x->hi + 64 * j;
    const uint8_t *lo = x->lo + 64 * j;
    s.lo = _mm256_fmadd_ps(vec_each(scale.lo, j), vec_dot32(w.lo, hi, lo), s.lo);
    s.hi = _mm256_fmadd_ps(vec_each(scale.hi, j), vec_dot32(w.hi, hi + 32, lo + 32), s.hi);
    return s;
}
VEC vy_sum vy_dot_signed(vy_sum s, vy w, const struct kvl_gemv_k *x, vy_scale scale, int32_t j)
{
    const int16_t *q = x->q + 64 * j;
    s.lo = _mm256_fmadd_ps(vec_each(scale.lo, j), vec_dot32_signed(w.lo, q), s.lo);
    s.hi = _mm256_fmadd_ps(vec_each(scale.hi, j), vec_dot32_signed(w.hi, q + 32), s.hi);
    return s;
}
VEC vy_sum vy_dot_nibbles(vy_sum s, const uint8_t *p, const struct kvl_gemv_k *x, vy_scale scale,
                          int32_t j)
{
    /* Four nibbles in each 16 bits, of elements 2 i and 2 i + 32, 2 i + 1 and 2 i + 33. */
    const __m256i low = _mm256_set1_epi16(15), w = vec_at256(p);
    const int16_t *q = x->split + 64 * j;
    __m256i a = _mm256_madd_epi16(_mm256_and_si256(w, low), vec_at256(q));
    __m256i b =
        _mm256_madd_epi16(_mm256_and_si256(_mm256_srli_epi16(w, 8), low), vec_at256(q + 16));
    __m256i c =
        _mm256_madd_epi16(_mm256_and_si256(_mm256_srli_epi16(w, 4), low), vec_at256(q + 32));
    __m256i d = _mm256_madd_epi16(_mm256_srli_epi16(w, 12), vec_at256(q + 48));
    a = _mm256_add_epi32(a, b);
    c = _mm256_add_epi32(c, d);
    s.lo = _mm256_fmadd_ps(vec_each(scale.lo, j), _mm256_cvtepi32_ps(a), s.lo);
    s.hi = _mm256_fmadd_ps(vec_each(scale.hi, j), _mm256_cvtepi32_ps(c), s.hi);
    return s;
}
VEC float vy_hsum(vy_sum s)
{
    return vq_hsum(_mm256_add_ps(s.lo, s.hi));
}

#endif
