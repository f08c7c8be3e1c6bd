/* avx512_host.h - the intrinsics of AVX-512 that the kernels use, for processors with AVX2: SIMDe's, and what it lacks or
 * has wrong (0.7.4 to 0.8.2), one element after the other as Intel's guide says.  Included before <immintrin.h>, in files
 * compiled for AVX2.
 *
 * Nothing is unrolled, and the compiler inlines what it likes, which makes minutes of compiling ten seconds. */
#ifndef KVL_AVX512_HOST_H
#define KVL_AVX512_HOST_H

#define VEC static inline __attribute__((unused))
#define UNROLL

#include "half.h"

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#define HOST static inline __attribute__((unused))

/* Elements of a vector, and a vector of elements. */
#define HOST_AS(type, n, v)                                                                        \
    type a[n];                                                                                     \
    _Static_assert(sizeof a == sizeof(v), "all of it");                                            \
    memcpy(a, &(v), sizeof a)
#define HOST_IS(type, a)                                                                           \
    type to;                                                                                       \
    _Static_assert(sizeof a == sizeof to, "all of it");                                            \
    memcpy(&to, a, sizeof to);                                                                     \
    return to

/* Integers made wider, or floats: every element by itself. */
#define HOST_WIDEN(name, to_type, from_type, n, to_elem, from_elem)                                \
    HOST to_type host_##name(from_type v)                                                          \
    {                                                                                              \
        HOST_AS(from_elem, n, v);                                                                  \
        to_elem b[n];                                                                              \
        for (int i = 0; i < n; i++) b[i] = (to_elem)a[i];                                          \
        HOST_IS(to_type, b);                                                                       \
    }
HOST_WIDEN(cvtepi8_epi32, __m512i, __m128i, 16, int32_t, int8_t)
HOST_WIDEN(cvtepu8_epi32, __m512i, __m128i, 16, int32_t, uint8_t)
HOST_WIDEN(cvtepi16_epi32, __m512i, __m256i, 16, int32_t, int16_t)
HOST_WIDEN(cvtepu16_epi32, __m512i, __m256i, 16, int32_t, uint16_t)
HOST_WIDEN(cvtepu8_epi16, __m512i, __m256i, 32, uint16_t, uint8_t)
HOST_WIDEN(cvtepi32_ps, __m512, __m512i, 16, float, int32_t)
HOST_WIDEN(cvtepi32_epi16, __m256i, __m512i, 16, int16_t, int32_t)

HOST __m512i host_madd_epi16(__m512i x, __m512i y)
{
    int16_t b[32];
    int32_t s[16];
    HOST_AS(int16_t, 32, x);
    memcpy(b, &y, sizeof b);
    for (int i = 0; i < 16; i++)
        s[i] = (int32_t)((uint32_t)(a[2 * i] * b[2 * i]) + (uint32_t)(a[2 * i + 1] * b[2 * i + 1]));
    HOST_IS(__m512i, s);
}

/* ---- loads and stores under a mask: what is left out is not touched ------------------------ */

#define HOST_LOADU(name, type, mask, elem, n)                                                      \
    HOST type host_##name(mask k, const void *p)                                                   \
    {                                                                                              \
        elem b[n] = { 0 };                                                                         \
        for (int i = 0; i < (n); i++)                                                              \
            if (k >> i & 1) memcpy(b + i, (const elem *)p + i, sizeof *b);                         \
        HOST_IS(type, b);                                                                          \
    }
HOST_LOADU(maskz_loadu_ps, __m512, __mmask16, float, 16)
HOST_LOADU(maskz_loadu_epi16_256, __m256i, __mmask16, uint16_t, 16)
HOST_LOADU(maskz_loadu_epi16_512, __m512i, __mmask32, uint16_t, 32)

HOST void host_mask_storeu_ps(float *p, __mmask16 k, __m512 v)
{
    HOST_AS(float, 16, v);
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) p[i] = a[i];
}
/* ---- halves -------------------------------------------------------------------------------- */

HOST __m512 host_cvtph_ps(__m256i v)
{
    float b[16];
    HOST_AS(uint16_t, 16, v);
    for (int i = 0; i < 16; i++) b[i] = kvl_f16_to_f32(a[i]);
    HOST_IS(__m512, b);
}
/* Rounded to nearest even. */
HOST __m256i host_maskz_cvtps_ph(__mmask16 k, __m512 v)
{
    uint16_t b[16];
    HOST_AS(float, 16, v);
    for (int i = 0; i < 16; i++) b[i] = k >> i & 1 ? kvl_f32_to_f16(a[i]) : 0;
    HOST_IS(__m256i, b);
}
/* Subnormal numbers count as zero, as VCVTNEPS2BF16 takes them. */
HOST uint16_t host_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000) == 0) return (uint16_t)(bits >> 16 & 0x8000);
    return kvl_f32_to_bf16(x);
}
HOST __m256i host_cvtneps_pbh(__m512 v)
{
    uint16_t b[16];
    HOST_AS(float, 16, v);
    for (int i = 0; i < 16; i++) b[i] = host_bf16(a[i]);
    HOST_IS(__m256i, b);
}
/* The second one's come first. */
HOST __m512i host_cvtne2ps_pbh(__m512 hi, __m512 lo)
{
    uint16_t b[32];
    float up[16];
    HOST_AS(float, 16, lo);
    memcpy(up, &hi, sizeof up);
    for (int i = 0; i < 16; i++) b[i] = host_bf16(a[i]);
    for (int i = 0; i < 16; i++) b[16 + i] = host_bf16(up[i]);
    HOST_IS(__m512i, b);
}

/* ---- places -------------------------------------------------------------------------------- */

/* Of each 4 floats, those whose numbers `which` has in two bits each. */
HOST __m512 host_permute_ps(__m512 v, int which)
{
    float b[16];
    HOST_AS(float, 16, v);
    for (int i = 0; i < 16; i++) b[i] = a[i / 4 * 4 + (which >> i % 4 * 2 & 3)];
    HOST_IS(__m512, b);
}
/* Quarters: two of x, two of y. */
#define HOST_QUARTERS(name, type)                                                                  \
    HOST type host_##name(type x, type y, int which)                                               \
    {                                                                                              \
        float b[16], c[16];                                                                        \
        HOST_AS(float, 16, x);                                                                     \
        memcpy(c, &y, sizeof c);                                                                   \
        for (int q = 0; q < 4; q++)                                                                \
            memcpy(b + q * 4, (q < 2 ? a : c) + (which >> 2 * q & 3) * 4, 4 * sizeof *b);          \
        HOST_IS(type, b);                                                                          \
    }
HOST_QUARTERS(shuffle_f32x4, __m512)
HOST_QUARTERS(shuffle_i64x2, __m512i)

HOST __m256 host_extractf32x8_ps(__m512 v, int which)
{
    HOST_AS(float, 16, v);
    float b[8];
    memcpy(b, a + which * 8, sizeof b);
    HOST_IS(__m256, b);
}
HOST __m512 host_zextps256_ps512(__m256 v)
{
    float b[16] = { 0 };
    memcpy(b, &v, sizeof v);
    HOST_IS(__m512, b);
}

/* ---- sums and maxima of all: halves are taken together until one is left ------------------- */

HOST float host_reduce_add_ps(__m512 v)
{
    HOST_AS(float, 16, v);
    for (int n = 8; n > 0; n /= 2)
        for (int i = 0; i < n; i++) a[i] += a[i + n];
    return a[0];
}
HOST float host_reduce_max_ps(__m512 v)
{
    HOST_AS(float, 16, v);
    for (int n = 8; n > 0; n /= 2)
        for (int i = 0; i < n; i++) a[i] = a[i] > a[i + n] ? a[i] : a[i + n];
    return a[0];
}

#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu8_epi32
#undef _mm512_cvtepi16_epi32
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepu8_epi16
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtepi32_epi16
#undef _mm512_madd_epi16
#undef _mm512_maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#undef _mm256_maskz_loadu_epi16
#undef _mm512_maskz_loadu_epi16
#undef _mm512_cvtph_ps
#undef _mm512_maskz_cvtps_ph
#undef _mm512_cvtneps_pbh
#undef _mm512_cvtne2ps_pbh
#undef _mm512_permute_ps
#undef _mm512_shuffle_f32x4
#undef _mm512_shuffle_i64x2
#undef _mm512_extractf32x8_ps
#undef _mm512_zextps256_ps512
#undef _mm512_reduce_add_ps
#undef _mm512_reduce_max_ps
#define _mm512_cvtepi8_epi32(v)           host_cvtepi8_epi32(v)
#define _mm512_cvtepu8_epi32(v)           host_cvtepu8_epi32(v)
#define _mm512_cvtepi16_epi32(v)          host_cvtepi16_epi32(v)
#define _mm512_cvtepu16_epi32(v)          host_cvtepu16_epi32(v)
#define _mm512_cvtepu8_epi16(v)           host_cvtepu8_epi16(v)
#define _mm512_cvtepi32_ps(v)             host_cvtepi32_ps(v)
#define _mm512_cvtepi32_epi16(v)          host_cvtepi32_epi16(v)
#define _mm512_madd_epi16(x, y)           host_madd_epi16(x, y)
#define _mm512_maskz_loadu_ps(k, p)       host_maskz_loadu_ps(k, p)
#define _mm512_mask_storeu_ps(p, k, v)    host_mask_storeu_ps(p, k, v)
#define _mm256_maskz_loadu_epi16(k, p)    host_maskz_loadu_epi16_256(k, p)
#define _mm512_maskz_loadu_epi16(k, p)    host_maskz_loadu_epi16_512(k, p)
#define _mm512_cvtph_ps(v)                host_cvtph_ps(v)
#define _mm512_maskz_cvtps_ph(k, v, way)  host_maskz_cvtps_ph(k, v)
#define _mm512_cvtneps_pbh(v)             host_cvtneps_pbh(v)
#define _mm512_cvtne2ps_pbh(hi, lo)       host_cvtne2ps_pbh(hi, lo)
#define _mm512_permute_ps(v, which)       host_permute_ps(v, which)
#define _mm512_shuffle_f32x4(x, y, which) host_shuffle_f32x4(x, y, which)
#define _mm512_shuffle_i64x2(x, y, which) host_shuffle_i64x2(x, y, which)
#define _mm512_extractf32x8_ps(v, which)  host_extractf32x8_ps(v, which)
#define _mm512_zextps256_ps512(v)         host_zextps256_ps512(v)
#define _mm512_reduce_add_ps(v)           host_reduce_add_ps(v)
#define _mm512_reduce_max_ps(v)           host_reduce_max_ps(v)

#endif
