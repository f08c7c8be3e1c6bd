/* vec_k16_avx512.h - 32 integers of 16 bits; see vec_k16_base.h for what each function means. */
#ifndef KVL_VEC_K16_H
#define KVL_VEC_K16_H

enum { KV = 1 };

typedef __m512i vk;
typedef uint16_t vec_u16 __attribute__((vector_size(64)));

VEC vk vk_load(const int16_t *p)
{
    return _mm512_loadu_si512(p);
}
VEC vk vk_bytes(const uint8_t *p)
{
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
VEC vk vk_table(const uint8_t *p, const int8_t *table)
{
    const __m256i shift = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
    __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m256i i = _mm256_srlv_epi32(_mm256_broadcastsi128_si256(b), shift);
    i = _mm256_and_si256(i, _mm256_set1_epi8(15));
    return _mm512_cvtepi8_epi16(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), i));
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
VEC void vk_dot(vf *to, vk a, vk b)
{
    *to = _mm512_cvtepi32_ps(_mm512_madd_epi16(a, b));
}
VEC void vk_floats(vf *to, vk a)
{
    to[0] = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_castsi512_si256(a)));
    to[1] = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(a, 1)));
}
VEC void vk_signed(vf *to, uint64_t lo, uint64_t hi)
{
    __m128i b = _mm_set_epi64x((long long)hi, (long long)lo);
    *to = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
}
VEC void vk_zip(vf *to, uint64_t even, uint64_t odd)
{
    __m128i a = _mm_cvtsi64_si128((long long)even), b = _mm_cvtsi64_si128((long long)odd);
    *to = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_unpacklo_epi8(a, b)));
}
VEC void vk_half(vf *to, const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    *to = _mm512_cvtph_ps(_mm256_set1_epi16((int16_t)h));
}
VEC void vk_halves(vf *to, const uint8_t *p)
{
    int32_t h;
    memcpy(&h, p, sizeof h);
    *to = _mm512_cvtph_ps(_mm256_set1_epi32(h));
}
/* One read from memory goes everywhere without arithmetic; a compiler that remembers what it stored
 * would permute registers instead. */
VEC void vk_store(float *p, const vf *v)
{
    vf_store(p, *v);
    __asm__("" : "+m"(*(float(*)[16])(void *)p));
}
VEC void vk_all(vf *to, const float *p, int32_t i)
{
    *to = _mm512_set1_ps(p[i]);
}
VEC void vk_pair(vf *to, const float *p, int32_t i)
{
    *to = _mm512_permutexvar_ps(_mm512_setr_epi32(i, i, i, i, i, i, i, i, i + 1, i + 1, i + 1,
                                                  i + 1, i + 1, i + 1, i + 1, i + 1),
                                vf_load(p));
}
VEC float vk_hsum(const vf *v)
{
    __m256 s = _mm256_add_ps(_mm512_castps512_ps256(*v), _mm512_extractf32x8_ps(*v, 1));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}

#endif
