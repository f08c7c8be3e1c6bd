/* vec_b8_x86.h - 32 weights of a byte each and products with 32 bytes of x: AVX2 and AVX-512 alike; see vec_b8_base.h
 * for what each function means. */
#ifndef KVL_VEC_B8_H
#define KVL_VEC_B8_H

#include "vec_q16_x86.h"
#define ONE VEC
typedef __m256i vz;
typedef __m256i vz_sum, vz_scale;

VEC vz vz_load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
VEC vz vz_both(const void *first, const void *last)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)first)),
                                   _mm_loadu_si128((const __m128i *)last), 1);
}
VEC vz vz_set(uint8_t x)
{
    return _mm256_set1_epi8((char)x);
}
VEC vz vz_bits(vz a, int32_t n, uint8_t mask)
{
    if (n != 0) a = n < 0 ? _mm256_srli_epi16(a, -n) : _mm256_slli_epi16(a, n);
    return _mm256_and_si256(a, _mm256_set1_epi8((char)mask));
}
VEC vz vz_halves(vz a)
{
    a = _mm256_srlv_epi32(a, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
    return _mm256_and_si256(a, _mm256_set1_epi8(15));
}
VEC vz vz_or(vz a, vz b)
{
    return _mm256_or_si256(a, b);
}
VEC vz vz_table(vz a, const int8_t *table)
{
    __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), a);
}
VEC vz vz_marks(const uint8_t *first, const uint8_t *last)
{
    const __m256i byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0, 0x0101010101010101);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i a = _mm256_blend_epi32(_mm256_set1_epi16(vec_i16(first)),
                                   _mm256_set1_epi16(vec_i16(last)), 0xf0);
    a = _mm256_and_si256(_mm256_shuffle_epi8(a, byte), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(a, bit), _mm256_set1_epi8(16));
}
VEC vz_sum vz_mul(vz w, const int8_t *x)
{
    return _mm256_maddubs_epi16(w, vz_load(x));
}
VEC vz_sum vz_mul_low(vz w, const uint8_t *x)
{
    return _mm256_maddubs_epi16(vz_load(x), w);
}
VEC vz_sum vz_mul_signed(vz w, const int8_t *x)
{
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(vz_load(x), w));
}
VEC vz_sum vz_add(vz_sum a, vz_sum b)
{
    return _mm256_add_epi16(a, b);
}
VEC vq_int vec_wide(vq_int s, __m256i a, __m256i b)
{
#ifdef VEC_HAS_VNNI
    return _mm256_dpwssd_epi32(s, a, b);
#else
    return _mm256_add_epi32(s, _mm256_madd_epi16(a, b));
#endif
}
VEC vq_int vz_wide(vq_int s, vz_sum a, int16_t times)
{
    return vec_wide(s, a, _mm256_set1_epi16(times));
}
VEC vz_scale vz_scales16(const uint64_t *s)
{
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    __m128i all = _mm_set_epi64x((long long)s[1], (long long)s[0]);
    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(all, order));
}
VEC vz_scale vz_scales32(const uint64_t *s)
{
    return _mm256_broadcastsi128_si256(_mm_cvtepi8_epi16(_mm_cvtsi64_si128((long long)*s)));
}
VEC vz_scale vz_scales_times(vz_scale s, int16_t times)
{
    return _mm256_mullo_epi16(s, _mm256_set1_epi16(times));
}
VEC vq_int vz_scaled(vq_int s, vz_sum a, vz_scale scale, int32_t g)
{
    const __m256i at = _mm256_set1_epi16((int16_t)(0x0100 + g * 0x0202));
    return vec_wide(s, a, _mm256_shuffle_epi8(scale, at));
}
VEC vq_int vz_sums(const int16_t *sum, vz_scale scale)
{
    return _mm256_madd_epi16(vz_load(sum), scale);
}
VEC __m256i vec_fold(__m256i a, __m256i b, int32_t odd)
{
    __m256 x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);
    return _mm256_castps_si256(odd ? _mm256_shuffle_ps(x, y, 0xdd) : _mm256_shuffle_ps(x, y, 0x88));
}
VEC vz_sum vz_fold(vz_sum a, vz_sum b)
{
    return _mm256_add_epi16(vec_fold(a, b, 0), vec_fold(a, b, 1));
}
VEC vq_int vq_none(void)
{
    return _mm256_setzero_si256();
}
VEC vq_int vq_plus(vq_int a, vq_int b)
{
    return _mm256_add_epi32(a, b);
}
VEC vq_int vq_fold(vq_int a, vq_int b)
{
    return _mm256_add_epi32(vec_fold(a, b, 0), vec_fold(a, b, 1));
}
VEC vq_int vq_cross(vq_int a, vq_int b)
{
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                            _mm256_permute2x128_si256(a, b, 0x31));
}
VEC vq_sum vq_halves(const uint8_t *lo, const uint8_t *hi, size_t bytes)
{
    return _mm256_cvtph_ps(_mm_setr_epi16(vec_i16(lo), vec_i16(lo + bytes), vec_i16(lo + 2 * bytes),
                                          vec_i16(lo + 3 * bytes), vec_i16(hi), vec_i16(hi + bytes),
                                          vec_i16(hi + 2 * bytes), vec_i16(hi + 3 * bytes)));
}
VEC int32_t vec_i32(const uint8_t *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}
VEC __m128i vec_4_i32(const uint8_t *p, size_t bytes)
{
    return _mm_setr_epi32(vec_i32(p), vec_i32(p + bytes), vec_i32(p + 2 * bytes),
                          vec_i32(p + 3 * bytes));
}
VEC void vq_halves2(vq_sum *first, vq_sum *second, const uint8_t *lo, const uint8_t *hi,
                    size_t bytes)
{
    const __m256i apart = _mm256_setr_epi64x(0x0d0c090805040100, 0x0f0e0b0a07060302,
                                             0x0d0c090805040100, 0x0f0e0b0a07060302);
    __m256i all = _mm256_set_m128i(vec_4_i32(hi, bytes), vec_4_i32(lo, bytes));
    all = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(all, apart), 0xd8);
    *first = _mm256_cvtph_ps(_mm256_castsi256_si128(all));
    *second = _mm256_cvtph_ps(_mm256_extracti128_si256(all, 1));
}
VEC vq_sum vq_mul(vq_sum a, vq_sum b)
{
    return _mm256_mul_ps(a, b);
}
VEC vq_sum vq_fma(vq_sum a, vq_sum b, vq_sum s)
{
    return _mm256_fmadd_ps(a, b, s);
}
VEC float vq_hsum_half(vq_sum s, int32_t h)
{
    __m128 x = h ? _mm256_extractf128_ps(s, 1) : _mm256_castps256_ps128(s);
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
VEC vq_sum vq_floats(const float *p)
{
    return _mm256_loadu_ps(p);
}
VEC void vec_store16(void *p, __m128i a)
{
    _mm_storeu_si128((__m128i *)p, a);
}
/* 32 words as bytes: elements 0 .. 15, 16 .. 31. */
VEC __m256i vec_packed(__m256i lo, __m256i hi)
{
    return _mm256_permute4x64_epi64(_mm256_packs_epi16(lo, hi), 0xd8);
}
VEC void vq_narrow(int8_t *first, int8_t *last, vq q)
{
    __m256i all = vec_packed(q.lo, q.hi);
    vec_store16(first, _mm256_castsi256_si128(all));
    vec_store16(last, _mm256_extracti128_si256(all, 1));
}
VEC void vq_apart(int16_t *to, vq q)
{
    const __m256i low = _mm256_set1_epi32(0xffff);
    __m256i even = _mm256_packus_epi32(_mm256_and_si256(q.lo, low), _mm256_and_si256(q.hi, low));
    __m256i odd = _mm256_packus_epi32(_mm256_srli_epi32(q.lo, 16), _mm256_srli_epi32(q.hi, 16));
    vq_store(to, (vq){ _mm256_permute4x64_epi64(even, 0xd8), _mm256_permute4x64_epi64(odd, 0xd8) });
}
VEC void vq_split(int8_t *hi, uint8_t *lo, size_t ld, vq q)
{
    const __m256i low = _mm256_set1_epi16(255);
    __m256i a = _mm256_packus_epi16(_mm256_and_si256(q.lo, low), _mm256_and_si256(q.hi, low));
    a = _mm256_permute4x64_epi64(a, 0xd8);
    vq_narrow(hi, hi + ld, (vq){ _mm256_srai_epi16(q.lo, 8), _mm256_srai_epi16(q.hi, 8) });
    vec_store16(lo, _mm256_castsi256_si128(a));
    vec_store16(lo + ld, _mm256_extracti128_si256(a, 1));
}

#endif
