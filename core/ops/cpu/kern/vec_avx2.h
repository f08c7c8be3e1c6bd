/* vec_avx2.h - vectors of 8 floats; see vec_base.h for what each function means. */
#ifndef KVL_VEC_H
#define KVL_VEC_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define VEC static inline __attribute__((always_inline, unused))

#include "vec_x86.h"

/* 12 sums, 3 vectors of B and one broadcast fill the 16 registers. */
enum { VW = 8, MR = 4, NV = 3, NR = NV * VW };

typedef __m256 vf;

VEC vf vf_zero(void)
{
    return _mm256_setzero_ps();
}
VEC vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}
VEC vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
VEC void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}
VEC __m256i vf_first(int32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
VEC vf vf_load_n(const float *p, int32_t n)
{
    return _mm256_maskload_ps(p, vf_first(n));
}
/* Half of it without a mask, which takes many times as long on some processors. */
VEC void vf_store_n(float *p, vf v, int32_t n)
{
    if (__builtin_constant_p(n) && n == VW / 2)
        _mm_storeu_ps(p, _mm256_castps256_ps128(v));
    else
        _mm256_maskstore_ps(p, vf_first(n), v);
}
VEC vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
VEC vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
VEC vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
VEC vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
VEC vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
VEC vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
VEC vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
VEC vf vf_if_more(vf a, vf b, vf x, vf y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
VEC vf vf_pairs(const float *p)
{
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), twice);
}
VEC vf vf_swap(vf v)
{
    return _mm256_permute_ps(v, 0xb1);
}
VEC vf vf_less_more(vf a, vf b)
{
    return _mm256_addsub_ps(a, b);
}
VEC float vf_hsum(vf v)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
VEC float vf_hmax(vf v)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}
VEC vf vf_unless_below(vf v, vf x, vf lo)
{
    return _mm256_and_ps(_mm256_cmp_ps(x, lo, _CMP_NLT_UQ), v);
}
VEC vf vf_pow2_magic(vf t)
{
    __m256i e = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(e, _mm256_set1_epi32(0x3f800000)));
}
VEC vf vf_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
VEC vf vf_load_f16_n(const uint16_t *p, int32_t n)
{
    uint16_t part[8] = { 0 };
    memcpy(part, p, (size_t)n * sizeof *p);
    return vf_load_f16(part);
}
VEC void vf_store_f16(uint16_t *p, vf v)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
VEC vf vf_load_bf16(const uint16_t *p)
{
    __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}
VEC vf vf_load_bf16_n(const uint16_t *p, int32_t n)
{
    uint16_t part[8] = { 0 };
    memcpy(part, p, (size_t)n * sizeof *p);
    return vf_load_bf16(part);
}
VEC vf vf_load_i8(const int8_t *p)
{
    __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b));
}
VEC vf vf_nibbles(const uint8_t *p, int32_t j)
{
    __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)(p + j % 16));
    b = _mm_and_si128(j < 16 ? b : _mm_srli_epi16(b, 4), _mm_set1_epi8(15));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_sub_epi8(b, _mm_set1_epi8(8))));
}
/* The sign is above the seven other bits and, repeated, above itself. */
VEC vf vf_load_e4m3(const uint8_t *p)
{
    __m128i b = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p));
    return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(b, 7), _mm_set1_epi16((int16_t)0xbf80)));
}
VEC vf vf_ints4(const uint8_t *codes, int32_t i)
{
    int32_t all;
    memcpy(&all, codes + i / 2, sizeof all);
    __m256i q =
        _mm256_srlv_epi32(_mm256_set1_epi32(all), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    return _mm256_cvtepi32_ps(_mm256_and_si256(q, _mm256_set1_epi32(15)));
}
VEC vf vf_ints2(const uint8_t *codes, int32_t i)
{
    uint16_t all;
    memcpy(&all, codes + i / 4, sizeof all);
    __m256i q =
        _mm256_srlv_epi32(_mm256_set1_epi32(all), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    return _mm256_cvtepi32_ps(_mm256_and_si256(q, _mm256_set1_epi32(3)));
}
/* A permutation looks at the low 3 bits of an index alone. */
VEC vf vf_codes4(const float *table, const uint8_t *codes, int32_t i)
{
    int32_t all;
    memcpy(&all, codes + i / 2, sizeof all);
    __m256i q =
        _mm256_srlv_epi32(_mm256_set1_epi32(all), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    vf low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), q);
    vf high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), q);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(q, 28)));
}
VEC vf vf_codes3(const float *table, const uint8_t *codes, int32_t i)
{
    const uint8_t *p = codes + i / 8 * 3;
    uint16_t two;
    memcpy(&two, p, sizeof two);
    __m256i q = _mm256_srlv_epi32(_mm256_set1_epi32(two | p[2] << 16),
                                  _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21));
    return _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), q);
}
VEC vf vf_halves(const uint8_t *const *p, size_t off)
{
    return _mm256_cvtph_ps(vec_8_i16(p, off));
}
VEC vf vf_spread(const float *p, int32_t n)
{
    if (n == 4) return _mm256_castpd_ps(_mm256_broadcast_sd((const double *)(const void *)p));
    if (n == 2) return _mm256_broadcast_ps((const __m128 *)(const void *)p);
    return vf_load(p);
}
VEC float vec_f16(uint16_t h)
{
    return _cvtsh_ss(h);
}
VEC vf vf_sums(const vf *v)
{
    return vec_8_sums(v);
}
VEC void vf_transpose(vf *r)
{
    vf s[8];
    for (int32_t i = 0; i < 8; i += 4) {
        __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(r[i], r[i + 1]));
        __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(r[i], r[i + 1]));
        __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(r[i + 2], r[i + 3]));
        __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(r[i + 2], r[i + 3]));
        s[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
        s[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
        s[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
        s[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
    }
    for (int32_t j = 0; j < 4; j++) {
        r[j] = _mm256_permute2f128_ps(s[j], s[4 + j], 0x20);
        r[4 + j] = _mm256_permute2f128_ps(s[j], s[4 + j], 0x31);
    }
}

typedef __m256i vb;

VEC vb vb_load(const uint16_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
VEC vb vb_load_n(const uint16_t *p, int32_t n)
{
    uint16_t part[16] = { 0 };
    memcpy(part, p, (size_t)n * sizeof *p);
    return vb_load(part);
}
VEC void vb_store(uint16_t *p, vb b)
{
    _mm256_storeu_si256((__m256i *)(void *)p, b);
}
VEC vb vb_set2(const uint16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm256_set1_epi32(pair);
}
/* Rounded in the upper half of every lane; the lower half is left over. */
VEC __m256i vec_bf16_bits(vf v)
{
    __m256i u = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(r, quiet, nan);
}
VEC vb vb_pair(vf a, vf b)
{
    __m256i lo = _mm256_srli_epi32(vec_bf16_bits(a), 16);
    return _mm256_blend_epi16(lo, vec_bf16_bits(b), 0xaa);
}
VEC vb vb_round(vf lo, vf hi)
{
    __m256i a = _mm256_srli_epi32(vec_bf16_bits(lo), 16);
    __m256i b = _mm256_srli_epi32(vec_bf16_bits(hi), 16);
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}
VEC void vf_store_bf16(uint16_t *p, vf v)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(vb_round(v, v)));
}
VEC vf vf_dot_bf16(vf s, vb a, vb b)
{
    const __m256i top = _mm256_set1_epi32(-65536);
    __m256 a1 = _mm256_castsi256_ps(_mm256_and_si256(a, top));
    __m256 b1 = _mm256_castsi256_ps(_mm256_and_si256(b, top));
    __m256 a0 = _mm256_castsi256_ps(_mm256_slli_epi32(a, 16));
    __m256 b0 = _mm256_castsi256_ps(_mm256_slli_epi32(b, 16));
    return _mm256_fmadd_ps(a0, b0, _mm256_fmadd_ps(a1, b1, s));
}
VEC vb vb_zip_lo(vb a, vb b)
{
    return _mm256_unpacklo_epi16(a, b);
}
VEC vb vb_zip_hi(vb a, vb b)
{
    return _mm256_unpackhi_epi16(a, b);
}
VEC void vf_unzip(vf *lo, vf *hi)
{
    vf a = *lo, b = *hi;
    *lo = _mm256_permute2f128_ps(a, b, 0x20);
    *hi = _mm256_permute2f128_ps(a, b, 0x31);
}

/* By mask of eight lanes: the lanes that it has, a byte each. */
#define VEC_LANE(m, b)                                                                             \
    ((uint64_t)((m) >> (b)&1) * (uint64_t)(b) << 8 * __builtin_popcount((m) & ((1 << (b)) - 1)))
#define VEC_LANES(m)                                                                               \
    VEC_LANE(m, 0) | VEC_LANE(m, 1) | VEC_LANE(m, 2) | VEC_LANE(m, 3) | VEC_LANE(m, 4) |           \
        VEC_LANE(m, 5) | VEC_LANE(m, 6) | VEC_LANE(m, 7)
#define VEC_LANES4(m)  VEC_LANES(m), VEC_LANES((m) + 1), VEC_LANES((m) + 2), VEC_LANES((m) + 3)
#define VEC_LANES16(m) VEC_LANES4(m), VEC_LANES4((m) + 4), VEC_LANES4((m) + 8), VEC_LANES4((m) + 12)
#define VEC_LANES64(m)                                                                             \
    VEC_LANES16(m), VEC_LANES16((m) + 16), VEC_LANES16((m) + 32), VEC_LANES16((m) + 48)
static const uint64_t vec_lanes[256] = { VEC_LANES64(0), VEC_LANES64(64), VEC_LANES64(128),
                                         VEC_LANES64(192) };

VEC int32_t vec_keep_lanes(int32_t *to, __m256i v, __m256i keep)
{
    uint32_t mask = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(keep));
    __m128i lanes = _mm_loadl_epi64((const __m128i *)(const void *)&vec_lanes[mask]);
    _mm256_storeu_si256((__m256i *)(void *)to,
                        _mm256_permutevar8x32_epi32(v, _mm256_cvtepu8_epi32(lanes)));
    return __builtin_popcount(mask);
}
VEC int32_t vec_keep(int32_t *to, const int32_t *key, int32_t lo, int32_t hi)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)key);
    __m256i out = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), v),
                                  _mm256_cmpgt_epi32(v, _mm256_set1_epi32(hi)));
    return vec_keep_lanes(to, v, _mm256_xor_si256(out, _mm256_set1_epi32(-1)));
}
VEC int32_t vec_keep_places(int32_t *to, const int32_t *key, int32_t lo, int32_t first)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)key);
    __m256i out = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo), v);
    __m256i place =
        _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return vec_keep_lanes(to, place, _mm256_xor_si256(out, _mm256_set1_epi32(-1)));
}

#endif
