/* vec_k16_avx2.h - 32 integers of 16 bits; see vec_k16_base.h for what each function means. */
#ifndef KVL_VEC_K16_H
#define KVL_VEC_K16_H

enum { KV = 2 };

typedef struct {
    __m256i lo, hi;
} vk;

VEC __m256i vec_load256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
VEC vk vec_widened(__m128i lo, __m128i hi)
{
    return (vk){ _mm256_cvtepi8_epi16(lo), _mm256_cvtepi8_epi16(hi) };
}
VEC vk vk_load(const int16_t *p)
{
    return (vk){ vec_load256(p), vec_load256(p + 16) };
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
VEC void vk_dot(vf *to, vk a, vk b)
{
    to[0] = _mm256_cvtepi32_ps(_mm256_madd_epi16(a.lo, b.lo));
    to[1] = _mm256_cvtepi32_ps(_mm256_madd_epi16(a.hi, b.hi));
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
VEC vf vec_floats8(uint64_t bytes)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)bytes)));
}
VEC void vk_signed(vf *to, uint64_t lo, uint64_t hi)
{
    to[0] = vec_floats8(lo);
    to[1] = vec_floats8(hi);
}
VEC void vk_zip(vf *to, uint64_t even, uint64_t odd)
{
    __m128i a = _mm_cvtsi64_si128((long long)even), b = _mm_cvtsi64_si128((long long)odd);
    __m128i zip = _mm_unpacklo_epi8(a, b);
    to[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(zip));
    to[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(zip, zip)));
}
VEC void vk_half(vf *to, const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    to[0] = to[1] = _mm256_cvtph_ps(_mm_set1_epi16((int16_t)h));
}
VEC void vk_halves(vf *to, const uint8_t *p)
{
    int32_t h;
    memcpy(&h, p, sizeof h);
    to[0] = to[1] = _mm256_cvtph_ps(_mm_set1_epi32(h));
}
VEC void vk_store(float *p, const vf *v)
{
    vf_store(p, v[0]);
    vf_store(p + 8, v[1]);
    __asm__("" : "+m"(*(float(*)[16])(void *)p)); /* see vec_k16_avx512.h */
}
VEC void vk_all(vf *to, const float *p, int32_t i)
{
    to[0] = to[1] = _mm256_set1_ps(p[i]);
}
VEC void vk_pair(vf *to, const float *p, int32_t i)
{
    to[0] = _mm256_set1_ps(p[i]);
    to[1] = _mm256_set1_ps(p[i + 1]);
}
VEC float vk_hsum(const vf *v)
{
    return vf_hsum(_mm256_add_ps(v[0], v[1]));
}

#endif
