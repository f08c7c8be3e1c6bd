/* kern_math.h - exp, widening of stored elements, and the register tile of every product. */
#ifndef KVL_KERN_MATH_H
#define KVL_KERN_MATH_H

#include "cpu.h"
#include "half.h"
#include "kern_kblock.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#if defined(UNROLL) /* tests/ops/avx512_host has none */
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* exp(x) = 2^n exp(r), |r| <= ln 2 / 2, by the Taylor series up to r^7: below 2 ulp.  0 below
 * -87.3, so that -inf gives 0; the largest result is exp(88). */
VEC vf vf_exp(vf x)
{
    const vf magic = vf_set1(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    vf y = vf_min(vf_set1(88.0f), vf_max(vf_set1(-87.3f), x));
    vf t = vf_fma(y, vf_set1(1.44269504f), magic);
    vf n = vf_sub(t, magic);
    vf r = vf_fma(n, vf_set1(-0.693145752f), y); /* ln 2 in two parts: the first is exact times n */
    r = vf_fma(n, vf_set1(-1.42860677e-6f), r);
    vf p = vf_set1(1.0f / 5040);
    p = vf_fma(p, r, vf_set1(1.0f / 720));
    p = vf_fma(p, r, vf_set1(1.0f / 120));
    p = vf_fma(p, r, vf_set1(1.0f / 24));
    p = vf_fma(p, r, vf_set1(1.0f / 6));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_unless_below(vf_mul(p, vf_pow2_magic(t)), x, vf_set1(-87.3f));
}

/* 2^x = 2^n 2^r, |r| <= 1/2, by the polynomial of degree 5 whose largest relative error is the
 * smallest: below 2 ulp, powers of two exact, half the work of vf_exp.  0 below -126, so that -inf
 * gives 0; x < 128. */
VEC vf vf_exp2(vf x)
{
    const vf magic = vf_set1(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    vf t = vf_add(x, magic), r = vf_sub(x, vf_sub(t, magic));
    vf p = vf_set1(1.32764725e-3f);
    p = vf_fma(p, r, vf_set1(9.67554096e-3f));
    p = vf_fma(p, r, vf_set1(5.55071309e-2f));
    p = vf_fma(p, r, vf_set1(2.40221202e-1f));
    p = vf_fma(p, r, vf_set1(6.93146944e-1f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_unless_below(vf_mul(p, vf_pow2_magic(t)), x, vf_set1(-126.0f));
}

/* tanh(x) = m / (m + 2), m = exp(2x) - 1 = 2^n (exp(r) - 1) + (2^n - 1): nothing cancels near 0, where n is 0,
 * nor elsewhere.  Below 4 ulp. */
VEC vf vf_tanh(vf x)
{
    const vf magic = vf_set1(12582912.0f), one = vf_set1(1.0f), two = vf_set1(2.0f);
    vf y = vf_min(vf_set1(20.0f), vf_max(vf_set1(-20.0f), vf_mul(x, two)));
    vf t = vf_fma(y, vf_set1(1.44269504f), magic);
    vf n = vf_sub(t, magic);
    vf r = vf_fma(n, vf_set1(-0.693145752f), y);
    r = vf_fma(n, vf_set1(-1.42860677e-6f), r);
    vf p = vf_set1(1.0f / 5040);
    p = vf_fma(p, r, vf_set1(1.0f / 720));
    p = vf_fma(p, r, vf_set1(1.0f / 120));
    p = vf_fma(p, r, vf_set1(1.0f / 24));
    p = vf_fma(p, r, vf_set1(1.0f / 6));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(vf_mul(p, r), r, r); /* exp(r) - 1 */
    vf power = vf_pow2_magic(t), m = vf_fma(power, p, vf_sub(power, one));
    return vf_div(m, vf_add(m, two));
}

/* s [n] = cap / scale * tanh(s scale / cap): products that the scale makes capped logits of.  n is a multiple
 * of VW. */
static void cap_products(float *s, size_t n, float scale, float cap)
{
    const vf in = vf_set1(scale / cap), out = vf_set1(cap / scale);
    for (size_t i = 0; i < n; i += VW)
        vf_store(s + i, vf_mul(out, vf_tanh(vf_mul(vf_load(s + i), in))));
}

/* Elements i .. i + VW - 1 of an array of F32, F16 or BF16. */
VEC vf load_as(const void *p, enum kvl_wtype type, size_t i)
{
    if (type == KVL_W_F32) return vf_load((const float *)p + i);
    if (type == KVL_W_F16) return vf_load_f16((const uint16_t *)p + i);
    return vf_load_bf16((const uint16_t *)p + i);
}

/* The same for the last n < VW; the other lanes are 0. */
VEC vf load_as_n(const void *p, enum kvl_wtype type, size_t i, int32_t n)
{
    if (type == KVL_W_F32) return vf_load_n((const float *)p + i, n);
    if (type == KVL_W_F16) return vf_load_f16_n((const uint16_t *)p + i, n);
    return vf_load_bf16_n((const uint16_t *)p + i, n);
}

VEC void widen_plain(float *y, const void *src, enum kvl_wtype type, int32_t n)
{
    int32_t i = 0;
    for (; i + VW <= n; i += VW) vf_store(y + i, load_as(src, type, (size_t)i));
    if (i < n) vf_store_n(y + i, load_as_n(src, type, (size_t)i, n - i), n - i);
}

VEC float block_scale(const uint8_t *block)
{
    uint16_t h;
    memcpy(&h, block, sizeof h);
    return vec_f16(h);
}

/* Integers j .. j + VW - 1 of the 32 of a quantised block. */
VEC vf block_ints(const uint8_t *block, enum kvl_wtype type, int32_t j)
{
    if (type == KVL_W_Q8_0) return vf_load_i8((const int8_t *)(block + 2 + j));
    return vf_nibbles(block + 2, j);
}

/* Whether a type adds a smallest value, which lies behind the scale. */
VEC bool block_has_least(enum kvl_wtype type)
{
    return type == KVL_W_Q4_1 || type == KVL_W_Q5_1;
}

/* The scale of MXFP4, its sign and its upper bits: all that is not zero. */
VEC uint16_t block_power(uint8_t e)
{
    return (uint16_t)(e < 2 ? 0x20u << e : (e - 1u) << 7);
}

/* The 32 elements of a block of the types that block_ints has not, before a zero is taken off. */
VEC vk block_small(const uint8_t *block, enum kvl_wtype type)
{
    const bool fives = type == KVL_W_Q5_0 || type == KVL_W_Q5_1;
    const uint8_t *at = block + (block_has_least(type) ? 4 : type == KVL_W_MXFP4 ? 1 : 2);
    uint32_t bits;
    if (type == KVL_W_MXFP4) return vk_table(at, block_mxfp4);
    if (type == KVL_W_IQ4_NL) return vk_table(at, block_iq4);
    if (!fives) return vk_nibbles(at);
    memcpy(&bits, at, sizeof bits);
    return vk_mark(vk_nibbles(at + 4), bits, 16);
}

VEC void widen_small(float *y, const uint8_t *block, enum kvl_wtype type)
{
    const bool mx = type == KVL_W_MXFP4;
    float d = mx ? kvl_bf16_to_f32(block_power(*block)) : block_scale(block), least = 0;
    if (block_has_least(type)) least = block_scale(block + 2);
    vf q[2 * KV];
    vk_floats(q, vk_less(block_small(block, type), type == KVL_W_Q5_0 ? 16 : 0));
    UNROLL
    for (int32_t v = 0; v < 2 * KV; v++) {
        vf x = vf_mul(vf_set1(d), q[v]);
        vf_store(y + v * VW, block_has_least(type) ? vf_add(x, vf_set1(least)) : x);
    }
}

VEC void widen_int16(float *y, const uint8_t *src, enum kvl_wtype type, int32_t n)
{
    const bool first = type == KVL_W_Q8_0 || type == KVL_W_Q4_0;
    for (int32_t i = 0; i < n; i += 32, src += kvl_wtype_bytes(type, 32)) {
        if (!first) widen_small(y + i, src, type);
        if (!first) continue;
        vf d = vf_set1(block_scale(src));
        UNROLL
        for (int32_t j = 0; j < 32; j += VW)
            vf_store(y + i + j, vf_mul(d, block_ints(src, type, j)));
    }
}

/* 32 elements of a block of 256, number g of them. */
VEC void widen_k16_part(float *y, const uint8_t *block, enum kvl_wtype type, int32_t g)
{
    const bool by32 = kblock_by32(type);
    const uint8_t *factor = kblock_factor(block, type);
    struct kblock s = kblock_scales(block, type);
    float d = block_scale(factor), d_less = 0;
    if (kblock_has_less(type)) d_less = block_scale(factor + 2);
    vf q[2 * KV];
    vk_floats(q, vk_less(kblock_ints(block, type, g), kblock_zero(type)));
    for (int32_t h = 0; h < 2; h++) {
        int32_t i = by32 ? g : 2 * g + h;
        vf scale = vf_set1(d * (float)(int8_t)(s.scale[i / 8] >> i % 8 * 8 & 255));
        vf less = vf_set1(d_less * (float)(s.less[i / 8] >> i % 8 * 8 & 255));
        UNROLL
        for (int32_t v = h * KV; v < (h + 1) * KV; v++) {
            vf x = vf_mul(scale, q[v]);
            vf_store(y + v * VW, kblock_has_less(type) ? vf_sub(x, less) : x);
        }
    }
}

/* Columns col .. col + n - 1 of a row, col a multiple of 32. */
VEC void widen_k16(float *y, const uint8_t *row, enum kvl_wtype type, int32_t col, int32_t n)
{
    for (int32_t i = col; i < col + n; i += 32, y += 32)
        widen_k16_part(y, row + kvl_wtype_bytes(type, (size_t)i), type, i % 256 / 32);
}

/* A row of a type that has no kernels: columns col .. col + n - 1, col a multiple of 8. */
VEC void widen_any(float *y, const uint8_t *row, enum kvl_wtype type, int32_t col, int32_t n)
{
    for (int32_t i = col; i < col + n; i += 8, y += 8) {
        switch (type) {
#define KVL_WTYPE_PLAIN(name, ...)                                                                 \
    case KVL_W_##name:                                                                             \
        break;
#define KVL_WTYPE_BLOCK(name, number, elements, bytes, word, word2, exponent, eight, ...)          \
    case KVL_W_##name:                                                                             \
        eight(y, row + (size_t)(i / (elements)) * (bytes), i % (elements));                        \
        break;
#include "kvl/wtypes.def"
        }
    }
}

/* Columns col .. col + n - 1 of a row, col a multiple of 32. */
static void widen_columns(float *y, const void *row, enum kvl_wtype type, int32_t col, int32_t n)
{
    const uint8_t *at = (const uint8_t *)row + kvl_wtype_bytes(type, (size_t)col);
    switch (type) {
#define widen_kernel_int16(name) widen_int16(y, at, KVL_W_##name, n)
#define widen_kernel_k16(name)   widen_k16(y, row, KVL_W_##name, col, n)
#define widen_kernel_any(name)   widen_any(y, row, KVL_W_##name, col, n)
#define KVL_WTYPE_PLAIN(name, ...)                                                                 \
    case KVL_W_##name:                                                                             \
        widen_plain(y, at, KVL_W_##name, n);                                                       \
        break;
#define KVL_WTYPE_BLOCK(name, number, elements, bytes, word, word2, exponent, eight, kernels)      \
    case KVL_W_##name:                                                                             \
        widen_kernel_##kernels(name);                                                              \
        break;
#include "kvl/wtypes.def"
    }
}

static void widen(float *y, const void *src, enum kvl_wtype type, int32_t n)
{
    widen_columns(y, src, type, 0, n);
}

/* C [MR][NR] = or += A B.  Element (i, k) of A is a[i * row_a + k * col_a], row k of B is at
 * b + k * ld_b.  Every element of C is one chain of multiply-adds in the order of k: it depends on
 * nothing but its own row and column. */
VEC void mul_tile(float *c, size_t ld_c, const float *a, size_t row_a, size_t col_a, const float *b,
                  size_t ld_b, int32_t depth, bool first)
{
    vf s[MR][NV];
    UNROLL
    for (size_t i = 0; i < MR; i++) {
        UNROLL
        for (size_t j = 0; j < NV; j++)
            s[i][j] = first ? vf_zero() : vf_load(c + i * ld_c + j * VW);
    }
    for (int32_t k = 0; k < depth; k++, a += col_a, b += ld_b) {
        vf y[NV];
        UNROLL
        for (size_t j = 0; j < NV; j++) y[j] = vf_load(b + j * VW);
        UNROLL
        for (size_t i = 0; i < MR; i++) {
            vf x = vf_set1(a[i * row_a]);
            UNROLL
            for (size_t j = 0; j < NV; j++) s[i][j] = vf_fma(x, y[j], s[i][j]);
        }
    }
    UNROLL
    for (size_t i = 0; i < MR; i++) {
        UNROLL
        for (size_t j = 0; j < NV; j++) vf_store(c + i * ld_c + j * VW, s[i][j]);
    }
}

/* dst [n_cols][ld], n_lanes of each row = transpose of up to VW rows of src from column col0 on,
 * times factor; missing rows (NULL) are zero. */
VEC void transpose_rows(float *dst, size_t ld, int32_t n_lanes, const float *const *src,
                        size_t col0, int32_t n_cols, float factor)
{
    for (int32_t c = 0; c < n_cols; c += VW) {
        vf r[VW];
        int32_t len = KVL_MIN(VW, n_cols - c);
        UNROLL
        for (int32_t i = 0; i < VW; i++) {
            r[i] = vf_zero();
            if (i < n_lanes && src[i])
                r[i] = len == VW ? vf_load(src[i] + col0 + (size_t)c)
                                 : vf_load_n(src[i] + col0 + (size_t)c, len);
            if (factor != 1) r[i] = vf_mul(r[i], vf_set1(factor));
        }
        vf_transpose(r);
        UNROLL
        for (int32_t i = 0; i < VW; i++) {
            if (i < len && n_lanes == VW) vf_store(dst + (size_t)(c + i) * ld, r[i]);
            if (i < len && n_lanes < VW) vf_store_n(dst + (size_t)(c + i) * ld, r[i], n_lanes);
        }
    }
}

/* y [i] of the numbers first + i of a seed, kvl_seed_mix of both, in [0, 1): without a call for each of them. */
static void random_fill(float *y, uint64_t seed, uint64_t first, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t z = seed + 0x9e3779b97f4a7c15u * (first + i + 1);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        y[i] = (float)(int32_t)((z ^ (z >> 31)) >> 40) * 0x1p-24f;
    }
}

#endif
