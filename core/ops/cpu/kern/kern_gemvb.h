/* kern_gemvb.h - decode projection with weights in blocks of 256 where x has 8 bits (q8), with one scale for as many
 * columns.
 *
 * Then the scales of a block, integers themselves, are multiplied with the sums of their columns before anything becomes
 * a float: a block of W and x is one exact sum, and one multiply-add for its factor. */
#ifndef KVL_KERN_GEMVB_H
#define KVL_KERN_GEMVB_H

#include "kern_gemvk.h"

/* ---- x ------------------------------------------------------------------------------------- */

/* The largest absolute value of 256; NaN if one is not finite. */
VEC float gemvb_top(const float *x)
{
    float top = 0;
    for (int32_t c = 0; c < 256; c += 32) {
        float y = gemv_pack_top(x + c);
        if (!(y <= top)) top = y;
        if (y != y) return y;
    }
    return top;
}

static void gemvb_pack(struct kvl_gemv_b *to, const float *x, int32_t n_blocks)
{
    for (int32_t k = 0; k < n_blocks; k++, to++, x += 256) {
        float times;
        to->scale = kvl_gemv_scale(gemvb_top(x), KVL_GEMV_MOST8, &times);
        for (int32_t s = 0; s < 16; s++) {
            if (s % 2 == 0)
                vq_narrow(to->q + s * 16, to->q + s * 16 + 16, vq_round(x + s * 16, times));
            int32_t sum = 0;
            for (int32_t i = 0; i < 16; i++) sum += to->q[s * 16 + i];
            to->sum[s % 2 * 8 + s / 2] = (int16_t)sum;
        }
    }
}

/* ---- W ------------------------------------------------------------------------------------- */

/* The scales of a block, what is taken off, and their factors. */
struct gemvb_scales {
    vz_scale scale, less;
    float d, d_less;
};

VEC struct gemvb_scales gemvb_scales(const uint8_t *w, enum kvl_wtype type)
{
    const struct kblock k = kblock_scales(w, type);
    const uint8_t *factor = kblock_factor(w, type);
    const bool by32 = kblock_by32(type);
    struct gemvb_scales s = { .d = block_scale(factor) };
    s.scale = by32 ? vz_scales32(k.scale) : vz_scales16(k.scale);
    s.less = vz_scales_times(s.scale, (int16_t)-kblock_zero(type));
    if (!kblock_has_less(type)) return s;
    s.less = by32 ? vz_scales32(k.less) : vz_scales16(k.less);
    s.d_less = block_scale(factor + 2);
    return s;
}

/* What the sum of a block starts with. */
VEC vq_int gemvb_start(enum kvl_wtype type, const struct gemvb_scales *s,
                       const struct kvl_gemv_b *x)
{
    static const int32_t none[8] = { 0 };
    return kblock_zero(type) ? vz_sums(x->sum, s->less) : vq_start(none);
}

VEC vq_int gemvb_part(vq_int s, vz w, enum kvl_wtype type, const struct gemvb_scales *by,
                      const struct kvl_gemv_b *x, int32_t g)
{
    const int8_t *q = x->q + 32 * g;
    return vz_scaled(s, bytes_signed(type) ? vz_mul_signed(w, q) : vz_mul(w, q), by->scale, g);
}

/* One block of W for block k of n_x rows of x. */
ONE void gemvb_block(const uint8_t *w, enum kvl_wtype type, const struct kvl_gemv_x *x, int32_t n_x,
                     size_t k, vq_sum *sum)
{
    const struct gemvb_scales s = gemvb_scales(w, type);
    vq_int dot[GEMVK_X];
    UNROLL
    for (int32_t i = 0; i < n_x; i++) dot[i] = gemvb_start(type, &s, x[i].b + k);
    UNROLL
    for (int32_t g = 0; g < 8; g++) {
        const vz a = bytes_part(w, type, g);
        UNROLL
        for (int32_t i = 0; i < n_x; i++) dot[i] = gemvb_part(dot[i], a, type, &s, x[i].b + k, g);
    }
    UNROLL
    for (int32_t i = 0; i < n_x; i++) {
        const struct kvl_gemv_b *b = x[i].b + k;
        const float d = s.d * b->scale, less = -s.d_less * b->scale;
        sum[i] = vq_scaled(sum[i], &d, dot[i]);
        if (kblock_has_less(type)) sum[i] = vq_scaled(sum[i], &less, vz_sums(b->sum, s.less));
    }
}

/* All rows of the item for rows i0 .. i0 + n_x - 1 of x. */
VEC void gemvb_rows(const struct kvl_gemv_item *it, enum kvl_wtype type, int32_t i0, int32_t n_x)
{
    const struct kvl_weight *w = it->a->w;
    const size_t bytes = kvl_wtype_bytes(type, 256), n_blocks = (size_t)w->n_cols / 256;
    const uint8_t *at = (const uint8_t *)w->data + (size_t)it->row0 * w->row_bytes;
    float *y = it->a->y + (size_t)i0 * (size_t)w->n_rows;
    for (int32_t r = it->row0; r < it->row1; r++) {
        vq_sum sum[GEMVK_X];
        UNROLL
        for (int32_t i = 0; i < n_x; i++) sum[i] = vq_zero();
        for (size_t k = 0; k < n_blocks; k++, at += bytes) {
            for (size_t o = 0; o < bytes; o += 64) __builtin_prefetch(at + GEMVK_AHEAD + o, 0, 2);
            gemvb_block(at, type, it->x + i0, n_x, k, sum);
        }
        UNROLL
        for (int32_t i = 0; i < n_x; i++)
            y[(size_t)i * (size_t)w->n_rows + (size_t)r] = vq_hsum(sum[i]);
    }
}

VEC void gemvb_typed(const struct kvl_gemv_item *it, enum kvl_wtype type)
{
    int32_t i = 0, n = it->a->n;
    for (; VQ_BATCH == 4 && i + 4 <= n; i += 4) gemvb_rows(it, type, i, 4);
    for (; VQ_BATCH == 4 && i + 2 <= n; i += 2) gemvb_rows(it, type, i, 2);
    for (; i < n; i++) gemvb_rows(it, type, i, 1);
}

#endif
