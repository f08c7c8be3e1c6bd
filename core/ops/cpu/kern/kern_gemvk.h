/* kern_gemvk.h - decode projection with weights in blocks of 256.
 *
 * x is rounded as for the smaller blocks (kern_gemvq.h), and each integer kept as two bytes, 256 hi + lo:
 * a weight has six bits or fewer, so that the processor multiplies bytes, and 32 columns are an exact sum.
 * Nibbles of Q4_K are multiplied with the 16 bits at once where that is faster, with the same sums.
 * What a type takes off its elements is the same for 16 of them: sums of 16 x are kept.
 *
 * A row of W is read alone: a block has its scales with it, and so the processor sees one stream. */
#ifndef KVL_KERN_GEMVK_H
#define KVL_KERN_GEMVK_H

#include "kern_gemvq.h"

enum { GEMVK_X = 4, GEMVK_AHEAD = 1024 };

/* ---- x ------------------------------------------------------------------------------------- */

/* 32 columns, number g of eight. */
VEC void gemvk_pack_part(struct kvl_gemv_k *to, const float *x, int32_t g)
{
    float times, scale = kvl_gemv_scale(gemv_pack_top(x), KVL_GEMV_MOST, &times);
    int32_t sum[2] = { 0 }, at16 = g % 2 * 8 + g / 2, at32 = g % 2 * 4 + g / 2;
    int16_t *q = to->q + g * 32;
    const vq all = vq_round(x, times);
    vq_store(q, all);
    vq_split(to->hi + g * 32, to->lo + g * 32, 16, all);
    vq_apart(to->split + g * 32, all);
    for (int32_t i = 0; i < 16; i++) sum[0] += q[i];
    for (int32_t i = 16; i < 32; i++) sum[1] += q[i];
    for (int32_t h = 0; h < 2; h++) {
        to->scale16[at16 + 4 * h] = scale;
        to->sum16[at16 + 4 * h] = (float)sum[h];
    }
    to->scale32[at32] = scale;
    to->sum32[at32] = (float)(sum[0] + sum[1]);
}

static void gemvk_pack(struct kvl_gemv_k *to, const float *x, int32_t n_blocks)
{
    for (int32_t g = 0; g < n_blocks * 8; g++)
        gemvk_pack_part(to + g / 8, x + (size_t)g * 32, g % 8);
}

/* ---- W ------------------------------------------------------------------------------------- */

/* Elements 64 j .. 64 j + 63 of a block, before `zero` is taken off; types of which gemvk_dot takes them. */
VEC vy gemvk_weights(const uint8_t *w, enum kvl_wtype type, int32_t j)
{
    const int32_t two = 4 * (j % 2), half = j / 2;
    vy a;
    switch (type) {
    case KVL_W_Q2_K: return vy_bits(vy_twice(w + 16 + half * 32), -two, -two - 2, 3);
    case KVL_W_Q3_K:
        a = vy_bits(vy_twice(w + 32 + half * 32), -two, -two - 2, 3);
        return vy_or(a, vy_bits(vy_twice(w), 2 - 2 * j, 1 - 2 * j, 4));
    case KVL_W_Q5_K:
        a = vy_bits(vy_twice(w + 48 + j * 32), 0, -4, 15);
        return vy_or(a, vy_bits(vy_twice(w + 16), 4 - 2 * j, 3 - 2 * j, 16));
    default: /* Q6_K */
        a = vy_bits(vy_load(w + half * 64), -two, -two, 15);
        return vy_or(a, vy_bits(vy_twice(w + 128 + half * 32), 4 - two, 2 - two, 48));
    }
}

/* What a block takes off, with x of one block and its scales. */
VEC vy_sum gemvk_less(vy_sum sum, const uint8_t *w, enum kvl_wtype type, const struct kblock *s,
                      const struct kvl_gemv_k *x, vy_scale scale)
{
    const uint8_t *factor = kblock_factor(w, type) + 2;
    if (kblock_zero(type) != 0) return vy_less16(sum, scale, x, kblock_zero(type));
    if (!kblock_has_less(type)) return sum;
    if (kblock_by32(type)) return vy_less32(sum, s->less, x, block_scale(factor));
    return vy_less16(sum, vy_scales16(s->less, x, block_scale(factor)), x, 1);
}

/* Part j of a block. */
VEC vy_sum gemvk_dot(vy_sum s, const uint8_t *w, enum kvl_wtype type, const struct kvl_gemv_k *x,
                     vy_scale scale, int32_t j)
{
    if (type == KVL_W_Q4_K) return vy_dot_nibbles(s, w + 16 + 32 * j, x, scale, j);
    if (type == KVL_W_IQ4_XS)
        return vy_dot_signed(s, vy_table(w + 8 + j * 32, block_iq4), x, scale, j);
    return vy_dot(s, gemvk_weights(w, type, j), x, scale, j);
}

/* One block of W for block k of n_x rows of x. */
VEC void gemvk_block(const uint8_t *w, enum kvl_wtype type, const struct kvl_gemv_x *x, int32_t n_x,
                     size_t k, vy_sum *sum)
{
    const float d = block_scale(kblock_factor(w, type));
    const struct kblock s = kblock_scales(w, type);
    vy_scale scale[GEMVK_X];
    UNROLL
    for (int32_t i = 0; i < n_x; i++) {
        const struct kvl_gemv_k *b = x[i].k + k;
        scale[i] = kblock_by32(type) ? vy_scales32(s.scale, b, d) : vy_scales16(s.scale, b, d);
        sum[i] = gemvk_less(sum[i], w, type, &s, b, scale[i]);
    }
    UNROLL
    for (int32_t j = 0; j < 4; j++) {
        UNROLL
        for (int32_t i = 0; i < n_x; i++)
            sum[i] = gemvk_dot(sum[i], w, type, x[i].k + k, scale[i], j);
    }
}

/* All rows of the item for rows i0 .. i0 + n_x - 1 of x. */
VEC void gemvk_rows(const struct kvl_gemv_item *it, enum kvl_wtype type, int32_t i0, int32_t n_x)
{
    const struct kvl_weight *w = it->a->w;
    const size_t bytes = kvl_wtype_bytes(type, 256), n_blocks = (size_t)w->n_cols / 256;
    const uint8_t *at = (const uint8_t *)w->data + (size_t)it->row0 * w->row_bytes;
    const struct kvl_gemv_x *x = it->x + i0;
    float *y = it->a->y + (size_t)i0 * (size_t)w->n_rows;
    for (int32_t r = it->row0; r < it->row1; r++) {
        vy_sum sum[GEMVK_X];
        UNROLL
        for (int32_t i = 0; i < n_x; i++) sum[i] = vy_zero();
        for (size_t k = 0; k < n_blocks; k++, at += bytes) {
            for (size_t o = 0; o < bytes; o += 64) __builtin_prefetch(at + GEMVK_AHEAD + o, 0, 2);
            gemvk_block(at, type, x, n_x, k, sum);
        }
        UNROLL
        for (int32_t i = 0; i < n_x; i++)
            y[(size_t)i * (size_t)w->n_rows + (size_t)r] = vy_hsum(sum[i]);
    }
}

VEC void gemvk_typed(const struct kvl_gemv_item *it, enum kvl_wtype type)
{
    int32_t i = 0, n = it->a->n;
    for (; VQ_BATCH == 4 && i + 4 <= n; i += 4) gemvk_rows(it, type, i, 4);
    for (; VQ_BATCH == 4 && i + 2 <= n; i += 2) gemvk_rows(it, type, i, 2);
    for (; i < n; i++) gemvk_rows(it, type, i, 1);
}

#endif
