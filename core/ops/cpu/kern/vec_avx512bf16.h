/* vec_avx512bf16.h - vec_avx512.h with instructions for bf16; see vec_base.h for what each function
 * means. */
#define VEC_HAS_BF16
#include "vec_avx512.h"

VEC vb vb_round(vf lo, vf hi)
{
    return (vb)_mm512_cvtne2ps_pbh(hi, lo);
}
VEC void vf_store_bf16(uint16_t *p, vf v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, (__m256i)_mm512_cvtneps_pbh(v));
}
VEC vf vf_dot_bf16(vf s, vb a, vb b)
{
    return _mm512_dpbf16_ps(s, (__m512bh)a, (__m512bh)b);
}
VEC vb vb_pair(vf a, vf b)
{
    __m512i lo = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(a));
    __m512i hi = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(b));
    return _mm512_or_si512(lo, _mm512_slli_epi32(hi, 16));
}
