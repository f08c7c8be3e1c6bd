/* vec_q16_x86.h - blocks of 32 integers of 16 bits, 8 sums of 32 bits: AVX2 and AVX-512 alike; see
 * vec_q16_base.h for what each function means. */
#ifndef KVL_VEC_Q16_H
#define KVL_VEC_Q16_H

enum { VQ_BATCH = 4 };

typedef struct {
    __m256i lo, hi;
} vq;
typedef __m256i vq_int;
typedef __m256 vq_sum;

VEC vq vq_load(const int16_t *p)
{
    return (vq){ _mm256_loadu_si256((const __m256i *)(const void *)p),
                 _mm256_loadu_si256((const __m256i *)(const void *)(p + 16)) };
}
VEC vq vq_set(int16_t lo, int16_t hi)
{
    return (vq){ _mm256_set1_epi16(lo), _mm256_set1_epi16(hi) };
}
/* 16 floats; the processor rounds to nearest even, as gemv_x.h does. */
VEC __m256i vec_round16(const float *x, float times)
{
    const __m256 t = _mm256_set1_ps(times);
    __m256i lo = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), t));
    __m256i hi = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), t));
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);
}
VEC vq vq_round(const float *x, float times)
{
    return (vq){ vec_round16(x, times), vec_round16(x + 16, times) };
}
VEC void vq_store(int16_t *p, vq q)
{
    _mm256_storeu_si256((__m256i *)(void *)p, q.lo);
    _mm256_storeu_si256((__m256i *)(void *)(p + 16), q.hi);
}
VEC vq vq_bytes(const uint8_t *p)
{
    __m128i lo = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m128i hi = _mm_loadu_si128((const __m128i *)(const void *)(p + 16));
    return (vq){ _mm256_cvtepi8_epi16(lo), _mm256_cvtepi8_epi16(hi) };
}
VEC vq vq_nibbles(const uint8_t *p)
{
    __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    return (vq){ _mm256_and_si256(b, _mm256_set1_epi16(15)), _mm256_srli_epi16(b, 4) };
}
VEC vq_int vq_start(const int32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
VEC vq_int vq_twice(vq_int s)
{
    return _mm256_add_epi32(s, s);
}
VEC void vq_store_ints(int32_t *p, vq_int s)
{
    _mm256_storeu_si256((__m256i *)(void *)p, s);
}
VEC vq_int vq_dot(vq_int s, vq a, vq b)
{
#ifdef VEC_HAS_VNNI
    return _mm256_dpwssd_epi32(_mm256_dpwssd_epi32(s, a.lo, b.lo), a.hi, b.hi);
#else
    __m256i lo = _mm256_madd_epi16(a.lo, b.lo), hi = _mm256_madd_epi16(a.hi, b.hi);
    return _mm256_add_epi32(s, _mm256_add_epi32(lo, hi));
#endif
}
VEC vq_sum vq_zero(void)
{
    return _mm256_setzero_ps();
}
VEC vq_sum vq_half(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_set1_epi16(vec_i16(p)));
}
VEC vq_sum vq_add(vq_sum a, vq_sum b)
{
    return _mm256_add_ps(a, b);
}
VEC vq_sum vq_times(vq_sum s, vq_sum d, vq_int t)
{
    return _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(t), s);
}
VEC vq_sum vq_scaled(vq_sum s, const float *d, vq_int t)
{
    return vq_times(s, _mm256_set1_ps(*d), t);
}
VEC void vq_sums(float *to, const vq_sum *s, int32_t n)
{
    for (int32_t i = 0; i < n; i += 8) _mm256_storeu_ps(to + i, vec_8_sums(s + i));
}
VEC float vq_hsum(vq_sum s)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

#endif
