/* vec_x86.h - what vectors of AVX2 and of AVX-512 are made with alike; behind the macro VEC. */
#ifndef KVL_VEC_X86_H
#define KVL_VEC_X86_H

VEC int16_t vec_i16(const uint8_t *p)
{
    int16_t x;
    memcpy(&x, p, sizeof x);
    return x;
}
/* The words at p[i] + off, i < 8. */
VEC __m128i vec_8_i16(const uint8_t *const *p, size_t off)
{
    return _mm_setr_epi16(vec_i16(p[0] + off), vec_i16(p[1] + off), vec_i16(p[2] + off),
                          vec_i16(p[3] + off), vec_i16(p[4] + off), vec_i16(p[5] + off),
                          vec_i16(p[6] + off), vec_i16(p[7] + off));
}
/* _mm256_hadd_ps, which takes twice the time of its three parts. */
VEC __m256 vec_hadd(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}
/* The sums of v[0] .. v[7]. */
VEC __m256 vec_8_sums(const __m256 *v)
{
    __m256 a = vec_hadd(vec_hadd(v[0], v[1]), vec_hadd(v[2], v[3]));
    __m256 b = vec_hadd(vec_hadd(v[4], v[5]), vec_hadd(v[6], v[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

/* Eight bytes' lower, or upper, halves as floats. */
VEC void vec_8_nibbles(float *y, const uint8_t *p, bool upper)
{
    __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)p);
    b = _mm_and_si128(upper ? _mm_srli_epi16(b, 4) : b, _mm_set1_epi8(15));
    _mm256_storeu_ps(y, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b)));
}

#endif
