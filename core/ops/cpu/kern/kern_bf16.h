/* kern_bf16.h - products of values rounded to bf16, summed in float.
 *
 * Where the processor multiplies pairs of bf16 (VEC_HAS_BF16), two neighbours along the sum lie in the
 * place of a float, and a step of the register tile takes a pair of each.  Elsewhere every value has a
 * place of its own, rounded but still a float, and the tile is that of floats: the same meaning.
 * Everything that moves places (transposing, copying) moves floats, whatever their bits mean. */
#ifndef KVL_KERN_BF16_H
#define KVL_KERN_BF16_H

#include "half.h"
#include "kern_math.h"

#ifdef VEC_HAS_BF16
enum { BF16_PAIR = 2 };
#else
enum { BF16_PAIR = 1 };
#endif

/* Places of n values in a row. */
VEC int32_t bf16_places(int32_t n)
{
    return (n + BF16_PAIR - 1) / BF16_PAIR;
}

#ifdef VEC_HAS_BF16
/* to [places]: n values rounded; the last pair may be half zero.  to may be x. */
VEC void bf16_round(float *to, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i += 2 * VW) {
        int32_t rest = n - i;
        uint16_t pair[2 * VW];
        vf lo = rest >= VW ? vf_load(x + i) : vf_load_n(x + i, rest), hi = vf_zero();
        if (rest >= 2 * VW)
            hi = vf_load(x + i + VW);
        else if (rest > VW)
            hi = vf_load_n(x + i + VW, rest - VW);
        vb_store(pair, vb_round(lo, hi));
        memcpy(to + i / 2, pair, (size_t)bf16_places(KVL_MIN(rest, 2 * VW)) * sizeof *to);
    }
}

/* to [n]: value i of a with value i of b, rounded; n a multiple of 2 VW.  to may be a. */
VEC void bf16_zip(float *to, const float *a, const float *b, int32_t n)
{
    for (int32_t i = 0; i < n; i += 2 * VW) {
        vb x = vb_round(vf_load(a + i), vf_load(a + i + VW));
        vb y = vb_round(vf_load(b + i), vf_load(b + i + VW));
        uint16_t pair[2][2 * VW];
        vb_store(pair[0], vb_zip_lo(x, y));
        vb_store(pair[1], vb_zip_hi(x, y));
        vf lo = vf_load((const float *)(const void *)pair[0]);
        vf hi = vf_load((const float *)(const void *)pair[1]);
        vf_unzip(&lo, &hi);
        vf_store(to + i, lo);
        vf_store(to + i + VW, hi);
    }
}

/* As mul_tile, with places for elements. */
VEC void bf16_tile(float *c, size_t ld_c, const float *a, size_t row_a, size_t col_a,
                   const float *b, size_t ld_b, int32_t places, bool first)
{
    vf s[MR][NV];
    UNROLL
    for (size_t i = 0; i < MR; i++) {
        UNROLL
        for (size_t j = 0; j < NV; j++)
            s[i][j] = first ? vf_zero() : vf_load(c + i * ld_c + j * VW);
    }
    for (int32_t k = 0; k < places; k++, a += col_a, b += ld_b) {
        vb y[NV];
        UNROLL
        for (size_t j = 0; j < NV; j++)
            y[j] = vb_load((const uint16_t *)(const void *)(b + j * VW));
        UNROLL
        for (size_t i = 0; i < MR; i++) {
            vb x = vb_set2((const uint16_t *)(const void *)(a + i * row_a));
            UNROLL
            for (size_t j = 0; j < NV; j++) s[i][j] = vf_dot_bf16(s[i][j], x, y[j]);
        }
    }
    UNROLL
    for (size_t i = 0; i < MR; i++) {
        UNROLL
        for (size_t j = 0; j < NV; j++) vf_store(c + i * ld_c + j * VW, s[i][j]);
    }
}
#else
VEC void bf16_round(float *to, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) to[i] = kvl_bf16_to_f32(kvl_f32_to_bf16(x[i]));
}

VEC void bf16_zip(float *to, const float *a, const float *b, int32_t n)
{
    (void)b;
    bf16_round(to, a, n);
}

VEC void bf16_tile(float *c, size_t ld_c, const float *a, size_t row_a, size_t col_a,
                   const float *b, size_t ld_b, int32_t places, bool first)
{
    mul_tile(c, ld_c, a, row_a, col_a, b, ld_b, places, first);
}
#endif

#endif
