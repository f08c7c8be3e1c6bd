/* vec_avx512.h - vectors of 16 floats; see vec_base.h for what each function means. */
#ifndef KVL_VEC_H
#define KVL_VEC_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#ifndef VEC /* tests/ops/avx512_host has another */
#define VEC static inline __attribute__((always_inline, unused))
#endif

#include "vec_x86.h"

enum { VW = 16, MR = 8, NV = 2, NR = NV * VW };

typedef __m512 vf;

VEC __mmask16 vf_first(int32_t n)
{
    return (__mmask16)((1u << n) - 1u);
}

VEC vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
VEC vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
VEC vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
VEC void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}
VEC vf vf_load_n(const float *p, int32_t n)
{
    return _mm512_maskz_loadu_ps(vf_first(n), p);
}
VEC void vf_store_n(float *p, vf v, int32_t n)
{
    _mm512_mask_storeu_ps(p, vf_first(n), v);
}
VEC vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
VEC vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
VEC vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
VEC vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
VEC vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
VEC vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
VEC vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
VEC vf vf_if_more(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), x);
}
VEC vf vf_pairs(const float *p)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
}
VEC vf vf_swap(vf v)
{
    return _mm512_permute_ps(v, 0xb1);
}
VEC vf vf_less_more(vf a, vf b)
{
    return _mm512_mask_sub_ps(_mm512_add_ps(a, b), 0x5555, a, b);
}
VEC float vf_hsum(vf v)
{
    return _mm512_reduce_add_ps(v);
}
VEC float vf_hmax(vf v)
{
    return _mm512_reduce_max_ps(v);
}
VEC vf vf_unless_below(vf v, vf x, vf lo)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, lo, _CMP_NLT_UQ), v);
}
VEC vf vf_pow2_magic(vf t)
{
    __m512i e = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(e, _mm512_set1_epi32(0x3f800000)));
}
VEC vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
VEC vf vf_load_f16_n(const uint16_t *p, int32_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(vf_first(n), p));
}
VEC void vf_store_f16(uint16_t *p, vf v)
{
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_maskz_cvtps_ph(vf_first(16), v, _MM_FROUND_TO_NEAREST_INT));
}
VEC vf vf_load_bf16(const uint16_t *p)
{
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}
VEC vf vf_load_bf16_n(const uint16_t *p, int32_t n)
{
    __m512i u = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(vf_first(n), p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}
VEC vf vf_load_i8(const int8_t *p)
{
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
}
/* The permutation looks at the low 4 bits of an index alone. */
VEC vf vf_nibbles(const uint8_t *p, int32_t j)
{
    const vf value = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm512_permutexvar_ps(j < 16 ? b : _mm512_srli_epi32(b, 4), value);
}
VEC vf vf_load_e4m3(const uint8_t *p)
{
    __m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm512_cvtph_ps(
        _mm256_and_si256(_mm256_slli_epi16(b, 7), _mm256_set1_epi16((int16_t)0xbf80)));
}
VEC vf vf_ints4(const uint8_t *codes, int32_t i)
{
    int32_t low, high;
    memcpy(&low, codes + i / 2, sizeof low);
    memcpy(&high, codes + i / 2 + 4, sizeof high);
    __m512i all = _mm512_inserti64x4(_mm512_set1_epi32(low), _mm256_set1_epi32(high), 1);
    __m512i by = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srlv_epi32(all, by), _mm512_set1_epi32(15)));
}
VEC vf vf_ints2(const uint8_t *codes, int32_t i)
{
    int32_t all;
    memcpy(&all, codes + i / 4, sizeof all);
    __m512i by = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512i q = _mm512_srlv_epi32(_mm512_set1_epi32(all), by);
    return _mm512_cvtepi32_ps(_mm512_and_si512(q, _mm512_set1_epi32(3)));
}
VEC vf vf_codes4(const float *table, const uint8_t *codes, int32_t i)
{
    int32_t low, high;
    memcpy(&low, codes + i / 2, sizeof low);
    memcpy(&high, codes + i / 2 + 4, sizeof high);
    __m512i all = _mm512_inserti64x4(_mm512_set1_epi32(low), _mm256_set1_epi32(high), 1);
    __m512i by = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(all, by), _mm512_loadu_ps(table));
}
VEC vf vf_codes3(const float *table, const uint8_t *codes, int32_t i)
{
    const uint8_t *p = codes + i / 8 * 3;
    const int32_t low = p[0] | p[1] << 8 | p[2] << 16, high = p[3] | p[4] << 8 | p[5] << 16;
    const __m512i by = _mm512_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21, 0, 3, 6, 9, 12, 15, 18, 21);
    __m512i all = _mm512_inserti64x4(_mm512_set1_epi32(low), _mm256_set1_epi32(high), 1);
    __m512i q = _mm512_and_si512(_mm512_srlv_epi32(all, by), _mm512_set1_epi32(7));
    return _mm512_permutexvar_ps(q, _mm512_zextps256_ps512(_mm256_loadu_ps(table)));
}
VEC vf vf_halves(const uint8_t *const *p, size_t off)
{
    return _mm512_cvtph_ps(_mm256_set_m128i(vec_8_i16(p + 8, off), vec_8_i16(p, off)));
}
VEC vf vf_spread(const float *p, int32_t n)
{
    if (n == 4) return _mm512_broadcast_f32x4(_mm_loadu_ps(p));
    if (n == 1) return vf_load(p);
    return _mm512_castpd_ps(_mm512_broadcast_f64x4(_mm256_castps_pd(_mm256_loadu_ps(p))));
}
VEC float vec_f16(uint16_t h)
{
    return _cvtsh_ss(h);
}

/* Adds neighbours of pairs of 32-bit lanes, then of 64-bit lanes, then of 128-bit lanes. */
VEC vf vec_add32(vf a, vf b)
{
    return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}
VEC vf vec_add64(vf a, vf b)
{
    __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}
VEC vf vec_add128(vf a, vf b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
VEC vf vf_sums(const vf *v)
{
    vf u[4];
    for (int32_t i = 0; i < 4; i++)
        u[i] = vec_add64(vec_add32(v[4 * i], v[4 * i + 1]), vec_add32(v[4 * i + 2], v[4 * i + 3]));
    return vec_add128(vec_add128(u[0], u[1]), vec_add128(u[2], u[3]));
}

/* Transposes 4 x 4 squares inside the 128-bit lanes, then the 4 x 4 grid of squares. */
VEC void vf_transpose(vf *r)
{
    vf s[16];
    for (int32_t i = 0; i < 16; i += 4) {
        __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r[i], r[i + 1]));
        __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(r[i], r[i + 1]));
        __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(r[i + 2], r[i + 3]));
        __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(r[i + 2], r[i + 3]));
        s[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        s[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        s[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        s[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    for (int32_t j = 0; j < 4; j++) {
        vf a = _mm512_shuffle_f32x4(s[j], s[4 + j], 0x88);
        vf b = _mm512_shuffle_f32x4(s[j], s[4 + j], 0xdd);
        vf c = _mm512_shuffle_f32x4(s[8 + j], s[12 + j], 0x88);
        vf d = _mm512_shuffle_f32x4(s[8 + j], s[12 + j], 0xdd);
        r[j] = _mm512_shuffle_f32x4(a, c, 0x88);
        r[8 + j] = _mm512_shuffle_f32x4(a, c, 0xdd);
        r[4 + j] = _mm512_shuffle_f32x4(b, d, 0x88);
        r[12 + j] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}

typedef __m512i vb;

VEC vb vb_load(const uint16_t *p)
{
    return _mm512_loadu_si512(p);
}
VEC vb vb_load_n(const uint16_t *p, int32_t n)
{
    return _mm512_maskz_loadu_epi16((__mmask32)((1ull << n) - 1), p);
}
VEC void vb_store(uint16_t *p, vb b)
{
    _mm512_storeu_si512(p, b);
}
VEC vb vb_set2(const uint16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
}
VEC vb vb_zip_lo(vb a, vb b)
{
    return _mm512_unpacklo_epi16(a, b);
}
VEC vb vb_zip_hi(vb a, vb b)
{
    return _mm512_unpackhi_epi16(a, b);
}
VEC void vf_unzip(vf *lo, vf *hi)
{
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i last = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    __m512d a = _mm512_castps_pd(*lo), b = _mm512_castps_pd(*hi);
    *lo = _mm512_castpd_ps(_mm512_permutex2var_pd(a, first, b));
    *hi = _mm512_castpd_ps(_mm512_permutex2var_pd(a, last, b));
}

#ifndef VEC_HAS_BF16 /* vec_avx512bf16.h has the instructions */
/* Rounded in the upper half of every lane; the lower half is left over. */
VEC __m512i vec_bf16_bits(vf v)
{
    __m512i u = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
}
VEC vb vb_pair(vf a, vf b)
{
    __m512i lo = _mm512_srli_epi32(vec_bf16_bits(a), 16);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, lo, vec_bf16_bits(b));
}
VEC __m256i vec_bf16(vf v)
{
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(vec_bf16_bits(v), 16));
}
VEC vb vb_round(vf lo, vf hi)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(vec_bf16(lo)), vec_bf16(hi), 1);
}
VEC void vf_store_bf16(uint16_t *p, vf v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, vec_bf16(v));
}
VEC vf vf_dot_bf16(vf s, vb a, vb b)
{
    const __m512i top = _mm512_set1_epi32(-65536);
    __m512 a1 = _mm512_castsi512_ps(_mm512_and_si512(a, top));
    __m512 b1 = _mm512_castsi512_ps(_mm512_and_si512(b, top));
    __m512 a0 = _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
    __m512 b0 = _mm512_castsi512_ps(_mm512_slli_epi32(b, 16));
    return _mm512_fmadd_ps(a0, b0, _mm512_fmadd_ps(a1, b1, s));
}
#endif

VEC int32_t vec_keep_lanes(int32_t *to, __m512i v, __mmask16 keep)
{
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(keep, v));
    return __builtin_popcount(keep);
}
VEC int32_t vec_keep(int32_t *to, const int32_t *key, int32_t lo, int32_t hi)
{
    __m512i v = _mm512_loadu_si512(key);
    return vec_keep_lanes(to, v,
                          _mm512_cmpge_epi32_mask(v, _mm512_set1_epi32(lo)) &
                              _mm512_cmple_epi32_mask(v, _mm512_set1_epi32(hi)));
}
VEC int32_t vec_keep_places(int32_t *to, const int32_t *key, int32_t lo, int32_t first)
{
    __m512i place =
        _mm512_add_epi32(_mm512_set1_epi32(first),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    return vec_keep_lanes(to, place,
                          _mm512_cmpge_epi32_mask(_mm512_loadu_si512(key), _mm512_set1_epi32(lo)));
}

#endif
