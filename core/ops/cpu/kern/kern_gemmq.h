/* kern_gemmq.h - prefill projection with weights in blocks, where the processor multiplies pairs of integers
 * of 16 bits (VEC_HAS_PAIRS).
 *
 * x is rounded as gemv_x.h says, to 15 bits.  Two neighbours along the sum lie in the place of a float, and a
 * step of the tile takes a pair of each; 32 columns are an exact sum of integers.  Weights whose scale is of
 * 16 columns are multiplied with it first: at most 4096, so that no sum of 32 passes 32 bits.
 *
 * Places of 32 columns, each of MR rows of x or NR rows of W: 16 pairs and the scale; then of x its sums over all
 * 32 and over each 16; of W what is added to all 32, or to each 16.
 * Every element of Y is one chain of multiply-adds over the blocks in order: it depends on nothing but its own
 * row and column. */
#ifndef KVL_KERN_GEMMQ_H
#define KVL_KERN_GEMMQ_H

#include "kern_gemm.h"
#include "kern_gemvq.h"

#include <assert.h>

#ifdef VEC_HAS_PAIRS

enum { GEMMQ_X = 20, GEMMQ_W = 19, GEMMQ_STEP = 256, GEMMQ_BLOCKS = GEMM_DEPTH / 32 };

static int32_t gemmq_places(int32_t k)
{
    return k / 32 * GEMMQ_X;
}

static size_t gemmq_scratch(int32_t n_cols)
{
    size_t panels = ((size_t)n_cols + NR - 1) / NR;
    return panels * GEMMQ_BLOCKS * GEMMQ_W * NR + (size_t)NR * GEMMQ_STEP / 2;
}

/* ---- x ------------------------------------------------------------------------------------- */

/* One block of one row as integers; scale: place 16 of it, and sums behind. */
VEC void gemmq_round(float *pair, float *scale, const float *x)
{
    float times, one = 1, half[2];
    *scale = kvl_gemv_scale(gemv_pack_top(x), KVL_GEMM_MOST, &times);
    const vq q = vq_round(x, times);
    vq_store((int16_t *)(void *)pair, q);
    for (int16_t h = 0; h < 2; h++) /* exact: below 2^24 */
        half[h] =
            vq_hsum(vq_scaled(vq_zero(), &one, vq_dot(vq_none(), q, vq_set((int16_t)(1 - h), h))));
    scale[MR] = half[0] + half[1];
    scale[2 * MR] = half[0];
    scale[3 * MR] = half[1];
}

/* dst [places][MR]: a group of up to MR rows of x, missing rows zero. */
static void gemmq_pack(float *dst, const float *x, size_t ld, int32_t n_rows, int32_t k)
{
    const float *rows[VW] = { 0 };
    float pairs[MR][16];
    for (int32_t i = 0; i < n_rows; i++) rows[i] = pairs[i];
    if (n_rows < MR) memset(dst, 0, (size_t)gemmq_places(k) * MR * sizeof *dst);
    for (int32_t c = 0; c < k; c += 32, dst += GEMMQ_X * MR) {
        for (int32_t i = 0; i < n_rows; i++)
            gemmq_round(pairs[i], dst + 16 * MR + i, x + (size_t)i * ld + c);
        transpose_rows(dst, MR, MR, rows, 0, 16, 1);
    }
}

/* ---- W ------------------------------------------------------------------------------------- */

/* Numbers that a type adds to its 32 elements. */
VEC int32_t gemmq_n_more(enum kvl_wtype type)
{
    if (type == KVL_W_Q2_K) return 2;
    return block_has_least(type) || kblock_has_less(type) ? 1 : 0;
}

VEC void gemmq_widen_small(int16_t *q, float *d, const uint8_t *block, enum kvl_wtype type)
{
    *d = type == KVL_W_MXFP4 ? kvl_bf16_to_f32(block_power(*block)) : block_scale(block);
    if (block_has_least(type)) d[NR] = block_scale(block + 2);
    const int16_t zero = type == KVL_W_Q4_0 ? 8 : type == KVL_W_Q5_0 ? 16 : 0;
    if (type == KVL_W_Q8_0)
        vq_store(q, vq_bytes(block + 2));
    else
        vq_store(q, vk_as_q(vk_less(block_small(block, type), zero)));
}

/* Part g of a block of 256 with these scales. */
VEC void gemmq_widen_part(int16_t *q, float *d, const uint8_t *block, enum kvl_wtype type,
                          const struct kblock *s, int32_t g)
{
    const uint8_t *factor = kblock_factor(block, type);
    const int32_t at = kblock_by32(type) ? g : 2 * g, word = at / 8, shift = at % 8 * 8;
    const uint64_t scale = s->scale[word] >> shift, less = s->less[word] >> shift;
    vk w = vk_less(kblock_ints(block, type, g), kblock_zero(type));
    *d = block_scale(factor);
    if (kblock_by32(type))
        *d *= (float)(int8_t)(scale & 255);
    else
        w = vk_times(w, (int8_t)(scale & 255), (int8_t)(scale >> 8 & 255));
    for (int32_t h = 0; h < gemmq_n_more(type); h++)
        d[(h + 1) * NR] = -block_scale(factor + 2) * (float)(less >> 8 * h & 255);
    vq_store(q, vk_as_q(w));
}

/* q [n]: columns col .. col + n - 1 of a row as integers; d: place 16 of the first block. */
VEC void gemmq_widen_typed(int16_t *q, float *d, const uint8_t *row, enum kvl_wtype type,
                           bool small, int32_t col, int32_t n)
{
    struct kblock s = { 0 };
    for (int32_t i = col; i < col + n; i += 32, q += 32, d += GEMMQ_W * NR) {
        const uint8_t *block = row + kvl_wtype_bytes(type, (size_t)i);
        if (small) gemmq_widen_small(q, d, block, type);
        if (!small && i % 256 == 0) s = kblock_scales(block, type);
        if (!small) gemmq_widen_part(q, d, block, type, &s, i % 256 / 32);
    }
}

static void gemmq_widen(int16_t *q, float *d, const uint8_t *row, enum kvl_wtype type, int32_t col,
                        int32_t n)
{
    switch (type) {
#define gemmq_kernel_int16(name) gemmq_widen_typed(q, d, row, KVL_W_##name, true, col, n)
#define gemmq_kernel_k16(name)   gemmq_widen_typed(q, d, row, KVL_W_##name, false, col, n)
#define gemmq_kernel_any(name)   assert(false)
#define KVL_WTYPE_PLAIN(name, ...)                                                                 \
    case KVL_W_##name:                                                                             \
        assert(false);                                                                             \
        break;
#define KVL_WTYPE_BLOCK(name, number, elements, bytes, word, word2, exponent, eight, kernels)      \
    case KVL_W_##name:                                                                             \
        gemmq_kernel_##kernels(name);                                                              \
        break;
#include "kvl/wtypes.def"
    }
}

/* panel [places][NR] = columns k0 .. of n <= NR rows of W from row0 on.  wide: room for NR rows of GEMMQ_STEP. */
static void gemmq_pack_w(float *panel, const struct kvl_weight *w, int32_t row0, int32_t n,
                         int32_t k0, int32_t depth, float *wide)
{
    const float *rows[NR];
    for (int32_t k = 0; k < depth; k += GEMMQ_STEP) {
        int32_t len = KVL_MIN(GEMMQ_STEP, depth - k);
        float *at = panel + (size_t)(k / 32) * GEMMQ_W * NR;
        for (int32_t r = 0; r < NR; r++) {
            float *to = wide + (size_t)r * (GEMMQ_STEP / 2);
            rows[r] = r < n ? to : NULL;
            if (r >= n) continue;
            gemm_prefetch_w(w, row0 + r, k, k0, depth, GEMMQ_STEP);
            gemmq_widen((int16_t *)(void *)to, at + 16 * NR + r, gemm_weight_row(w, row0 + r),
                        w->type, k0 + k, len);
        }
        for (int32_t b = 0; b < len / 32; b++, at += GEMMQ_W * NR)
            for (int32_t r = 0; r < NR; r += VW)
                transpose_rows(at + r, NR, VW, rows + r, (size_t)b * 16, 16, 1);
    }
}

/* ---- products ------------------------------------------------------------------------------ */

/* Sums of 32 columns. */
VEC void gemmq_sums(vp s[MR][NV], const float *x, const float *w)
{
    UNROLL
    for (int32_t i = 0; i < MR; i++) {
        UNROLL
        for (int32_t j = 0; j < NV; j++) s[i][j] = vp_zero();
    }
    UNROLL
    for (int32_t k = 0; k < 16; k++) {
        vp y[NV];
        UNROLL
        for (int32_t j = 0; j < NV; j++) y[j] = vp_load(w + (k * NV + j) * VW);
        UNROLL
        for (int32_t i = 0; i < MR; i++) {
            vp a = vp_set1(x + k * MR + i);
            UNROLL
            for (int32_t j = 0; j < NV; j++) s[i][j] = vp_dot(s[i][j], a, y[j]);
        }
    }
}

/* y += the products of a block: scales of x and w from place 16 on. */
VEC void gemmq_block(float y[MR][NR], const float *x, const float *w, int32_t n_more)
{
    vp s[MR][NV];
    gemmq_sums(s, x, w);
    UNROLL
    for (int32_t i = 0; i < MR; i++) {
        const float *xi = x + 16 * MR + i;
        UNROLL
        for (int32_t j = 0; j < NV; j++) {
            const float *wj = w + 16 * NR + j * VW;
            vf t = vf_mul(vf_load(wj), vf_set1(xi[0]));
            t = vf_fma(vp_floats(s[i][j]), t, vf_load(y[i] + j * VW));
            UNROLL
            for (int32_t h = 0; h < n_more; h++) {
                vf more = vf_mul(vf_load(wj + (h + 1) * NR), vf_set1(xi[0]));
                t = vf_fma(more, vf_set1(xi[(h + n_more) * MR]), t);
            }
            vf_store(y[i] + j * VW, t);
        }
    }
}

VEC void gemmq_tile_typed(float y[MR][NR], const float *x, const float *w, int32_t n_blocks,
                          int32_t n_more)
{
    for (int32_t b = 0; b < n_blocks; b++, x += GEMMQ_X * MR, w += GEMMQ_W * NR)
        gemmq_block(y, x, w, n_more);
}

static void gemmq_tile(float y[MR][NR], const float *x, const float *w, int32_t n_blocks,
                       int32_t n_more)
{
    if (n_more == 0) gemmq_tile_typed(y, x, w, n_blocks, 0);
    if (n_more == 1) gemmq_tile_typed(y, x, w, n_blocks, 1);
    if (n_more == 2) gemmq_tile_typed(y, x, w, n_blocks, 2);
}

/* n elements of a row of a tile.  A call of memcpy, or what a compiler makes of it, takes as long as a tenth of a tile. */
VEC void gemmq_copy(float *to, const float *from, int32_t n)
{
    UNROLL
    for (int32_t j = 0; j < NV && n == NR; j++) vf_store(to + j * VW, vf_load(from + j * VW));
    for (int32_t j = 0; j < n && n < NR; j++) to[j] = from[j];
}

/* y [n_rows][n_cols] = or += the products of a tile.  Its sums lie together while they grow. */
VEC void gemmq_y(float *y, size_t ld_y, int32_t n_rows, int32_t n_cols, const float *x,
                 const float *w, int32_t n_blocks, int32_t n_more, bool first)
{
    float tile[MR][NR];
    UNROLL
    for (int32_t i = 0; i < MR * NR; i += VW) vf_store(tile[0] + i, vf_zero());
    for (int32_t i = 0; i < n_rows && !first; i++)
        gemmq_copy(tile[i], y + (size_t)i * ld_y, n_cols);
    gemmq_tile(tile, x, w, n_blocks, n_more);
    for (int32_t i = 0; i < n_rows; i++) gemmq_copy(y + (size_t)i * ld_y, tile[i], n_cols);
}

VEC void gemmq_panels(const struct kvl_gemm_item *it, const float *panels, int32_t k0,
                      int32_t depth)
{
    const size_t row_places = (size_t)gemmq_places(it->w->n_cols);
    for (int32_t r = 0; r < it->n; r += MR) {
        const float *x = it->x + (size_t)r * row_places + (size_t)gemmq_places(k0) * MR;
        float *y = it->y + (size_t)r * it->ld_y + it->col0;
        for (int32_t c = 0; c < it->n_cols; c += NR)
            gemmq_y(y + c, it->ld_y, KVL_MIN(MR, it->n - r), KVL_MIN(NR, it->n_cols - c), x,
                    panels + (size_t)c * GEMMQ_BLOCKS * GEMMQ_W, depth / 32,
                    gemmq_n_more(it->w->type), k0 == 0);
    }
}

static void gemmq_item(const struct kvl_gemm_item *it)
{
    const size_t panel = (size_t)GEMMQ_BLOCKS * GEMMQ_W * NR;
    const size_t n_panels = ((size_t)it->n_cols + NR - 1) / NR;
    float *panels = it->scratch, *wide = panels + n_panels * panel;
    if (it->n_cols % NR) /* what the places of missing rows hold */
        memset(panels + (n_panels - 1) * panel, 0, panel * sizeof *panels);
    for (int32_t k0 = 0; k0 < it->w->n_cols; k0 += GEMM_DEPTH) {
        int32_t depth = KVL_MIN(GEMM_DEPTH, it->w->n_cols - k0);
        for (int32_t c = 0; c < it->n_cols; c += NR)
            gemmq_pack_w(panels + (size_t)(c / NR) * panel, it->w, it->col0 + c,
                         KVL_MIN(NR, it->n_cols - c), k0, depth, wide);
        gemmq_panels(it, panels, k0, depth);
    }
}

#endif
#endif
