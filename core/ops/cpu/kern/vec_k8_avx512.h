/* vec_k8_avx512.h - 64 weights of a byte each; see vec_k8_base.h for what each function means. */
#ifndef KVL_VEC_K8_H
#define KVL_VEC_K8_H

#include "vec_b8_x86.h"

typedef __m512i vy;
typedef __m512 vy_scale;
typedef __m512 vy_sum; /* halves are lo and hi of vec_k8_avx2.h, with the same bits */

/* Two constants, one for each half. */
VEC __m512i vec_halves(int16_t lo, int16_t hi)
{
    return _mm512_inserti64x4(_mm512_set1_epi16(lo), _mm256_set1_epi16(hi), 1);
}
VEC vy vy_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}
VEC vy vy_twice(const uint8_t *p)
{
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
VEC vy vy_bits(vy a, int32_t lo, int32_t hi, uint8_t mask)
{
    if (lo != 0 || hi != 0) {
        __m512i left = vec_halves((int16_t)KVL_MAX(lo, 0), (int16_t)KVL_MAX(hi, 0));
        __m512i right = vec_halves((int16_t)KVL_MAX(-lo, 0), (int16_t)KVL_MAX(-hi, 0));
        if (lo > 0 || hi > 0) a = _mm512_sllv_epi16(a, left);
        if (lo < 0 || hi < 0) a = _mm512_srlv_epi16(a, right);
    }
    return _mm512_and_si512(a, _mm512_set1_epi8((char)mask));
}
VEC vy vy_or(vy a, vy b)
{
    return _mm512_or_si512(a, b);
}
VEC vy vy_table(const uint8_t *p, const int8_t *table)
{
    const __m512i where = _mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3);
    __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    __m512i b = _mm512_permutexvar_epi64(
        where, _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)p)));
    b = _mm512_srlv_epi64(b, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t),
                               _mm512_and_si512(b, _mm512_set1_epi8(15)));
}
VEC __m512 vec_order16(const uint64_t *s, float d)
{
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m128i all = _mm_set_epi64x((long long)s[1], (long long)s[0]);
    __m512i wide = _mm512_cvtepi8_epi32(_mm_shuffle_epi8(all, order));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(wide), _mm512_set1_ps(d));
}
VEC __m512 vec_order32(const uint64_t *s, float d)
{
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 0, 2, 4, 6, 1, 3, 5, 7, 1, 3, 5, 7);
    __m128i all = _mm_cvtsi64_si128((long long)*s);
    __m512i wide = _mm512_cvtepi8_epi32(_mm_shuffle_epi8(all, order));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(wide), _mm512_set1_ps(d));
}
VEC vy_scale vy_scales16(const uint64_t *s, const struct kvl_gemv_k *x, float d)
{
    return _mm512_mul_ps(vec_order16(s, d), _mm512_loadu_ps(x->scale16));
}
VEC vy_scale vy_scales32(const uint64_t *s, const struct kvl_gemv_k *x, float d)
{
    return _mm512_mul_ps(vec_order32(s, d), _mm512_loadu_ps(x->scale16));
}
VEC vy_sum vy_zero(void)
{
    return _mm512_setzero_ps();
}
VEC vy_sum vy_less16(vy_sum s, vy_scale less, const struct kvl_gemv_k *x, float times)
{
    less = _mm512_mul_ps(less, _mm512_set1_ps(times));
    return _mm512_fnmadd_ps(less, _mm512_loadu_ps(x->sum16), s);
}
VEC vy_sum vy_less32(vy_sum s, const uint64_t *less, const struct kvl_gemv_k *x, float d)
{
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, -1, -1, -1, -1, -1, -1, -1, -1);
    __m128i all = _mm_shuffle_epi8(_mm_cvtsi64_si128((long long)*less), order);
    __m256 y = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all)), _mm256_set1_ps(d));
    y = _mm256_mul_ps(y, _mm256_loadu_ps(x->scale32));
    return _mm512_fnmadd_ps(_mm512_zextps256_ps512(y),
                            _mm512_zextps256_ps512(_mm256_loadu_ps(x->sum32)), s);
}
/* Number j of each quarter. */
VEC __m512 vec_each(__m512 a, int32_t j)
{
    switch (j) {
    case 0: return _mm512_permute_ps(a, 0x00);
    case 1: return _mm512_permute_ps(a, 0x55);
    case 2: return _mm512_permute_ps(a, 0xaa);
    default: return _mm512_permute_ps(a, 0xff);
    }
}
VEC vy_sum vec_add_part(vy_sum s, __m512i dot, vy_scale scale, int32_t j)
{
    return _mm512_fmadd_ps(vec_each(scale, j), _mm512_cvtepi32_ps(dot), s);
}
/* s + products of pairs */
VEC __m512i vec_pairs(__m512i s, __m512i a, __m512i b)
{
#ifdef VEC_HAS_VNNI
    return _mm512_dpwssd_epi32(s, a, b);
#else
    return _mm512_add_epi32(s, _mm512_madd_epi16(a, b));
#endif
}
VEC vy_sum vy_dot(vy_sum s, vy w, const struct kvl_gemv_k *x, vy_scale scale, int32_t j)
{
    __m512i hi = _mm512_maddubs_epi16(w, _mm512_loadu_si512(x->hi + 64 * j));
    __m512i lo = _mm512_maddubs_epi16(_mm512_loadu_si512(x->lo + 64 * j), w);
    __m512i dot = _mm512_madd_epi16(hi, _mm512_set1_epi16(256));
    return vec_add_part(s, vec_pairs(dot, lo, _mm512_set1_epi16(1)), scale, j);
}
VEC vy_sum vy_dot_signed(vy_sum s, vy w, const struct kvl_gemv_k *x, vy_scale scale, int32_t j)
{
    __m512i lo = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(w));
    __m512i hi = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(w, 1));
    lo = _mm512_madd_epi16(lo, _mm512_loadu_si512(x->q + 64 * j));
    hi = _mm512_madd_epi16(hi, _mm512_loadu_si512(x->q + 64 * j + 32));
    __m512i first = _mm512_shuffle_i64x2(lo, hi, 0x44), last = _mm512_shuffle_i64x2(lo, hi, 0xee);
    return vec_add_part(s, _mm512_add_epi32(first, last), scale, j);
}
VEC vy_sum vy_dot_nibbles(vy_sum s, const uint8_t *p, const struct kvl_gemv_k *x, vy_scale scale,
                          int32_t j)
{
    return vy_dot(s, vy_bits(vy_twice(p), 0, -4, 15), x, scale, j);
}
VEC float vy_hsum(vy_sum s)
{
    return vq_hsum(_mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1)));
}

#endif
