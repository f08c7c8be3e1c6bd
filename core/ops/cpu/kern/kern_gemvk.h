/* kern_gemvk.h - decode projection with weights in blocks of 256.
 *
 * x is rounded as for the smaller blocks (kern_gemvq.h), and 32 columns again are an exact sum of
 * integers, in 16 places.  What a type takes off its elements is the same for 16 of them: with the
 * sums of 16 x at hand it costs a few products per block.
 *
 * A row of W is read alone: a block has its scales with it, and so the processor sees one stream. */
#ifndef KVL_KERN_GEMVK_H
#define KVL_KERN_GEMVK_H

#include "kern_math.h"

enum { GEMVK_X = 4, GEMVK_AHEAD = 1024 };

/* The sum of a block for one row of x. */
struct gemvk_sum {
    vf even[KV], odd[KV];
    vf scale[KV]; /* of W times those of x */
    float kept[16];
};

/* Scales of a block of W, and what it takes off if that comes per 16 elements; else both by turns. */
struct gemvk_scales {
    vf scale[KV], less[KV];
};

VEC void gemvk_scales(struct gemvk_scales *to, const uint8_t *w, enum kvl_wtype type)
{
    const uint8_t *factor = kblock_factor(w, type);
    const bool by32 = kblock_by32(type), has_less = kblock_has_less(type);
    const float zero = kblock_zero(type);
    struct kblock s = kblock_scales(w, type);
    vf d[KV], d_less[KV];
    if (by32)
        vk_zip(to->scale, s.scale[0], s.less[0]);
    else
        vk_signed(to->scale, s.scale[0], s.scale[1]);
    if (by32 && has_less)
        vk_halves(d, factor);
    else
        vk_half(d, factor);
    if (!by32 && has_less) {
        vk_signed(to->less, s.less[0], s.less[1]);
        vk_half(d_less, factor + 2);
    }
    UNROLL
    for (int32_t v = 0; v < KV; v++) {
        to->scale[v] = vf_mul(d[v], to->scale[v]);
        if (zero != 0) to->less[v] = vf_mul(vf_set1(-zero), to->scale[v]);
        if (!by32 && has_less) to->less[v] = vf_mul(vf_sub(vf_zero(), d_less[v]), to->less[v]);
    }
}

/* Begins the sums of a block with what W takes off times the sums of x. */
VEC void gemvk_begin(struct gemvk_sum *t, const struct gemvk_scales *w, enum kvl_wtype type,
                     const struct kvl_gemv_x *x, size_t at16)
{
    const bool by32 = kblock_by32(type), has_less = kblock_has_less(type);
    UNROLL
    for (int32_t v = 0; v < KV; v++) {
        const size_t at = at16 + (size_t)(v * VW);
        vf scale = vf_load(x->scale16 + at);
        t->scale[v] = vf_mul(w->scale[v], scale);
        t->even[v] = t->odd[v] = vf_zero();
        if (by32 && has_less) t->even[v] = vf_mul(t->scale[v], vf_load(x->less32 + at));
        if (!by32 && (has_less || kblock_zero(type) != 0))
            t->even[v] = vf_mul(vf_mul(w->less[v], scale), vf_load(x->sum16 + at));
    }
    vk_store(t->kept, t->scale);
}

VEC void gemvk_dot(struct gemvk_sum *t, vk w, const int16_t *x, int32_t g, bool by32)
{
    vf dot[KV], scale[KV], *sum = g % 2 ? t->odd : t->even;
    vk_dot(dot, w, vk_load(x));
    if (by32)
        vk_all(scale, t->kept, t->scale, 2 * g);
    else
        vk_pair(scale, t->kept, t->scale, 2 * g);
    UNROLL
    for (int32_t v = 0; v < KV; v++) sum[v] = vf_fma(scale[v], dot[v], sum[v]);
}

/* One block of W, number k of its row, for n_x rows of x. */
VEC void gemvk_block(const uint8_t *w, enum kvl_wtype type, const struct kvl_gemv_x *x, int32_t n_x,
                     size_t k, vf (*sum)[KV])
{
    struct gemvk_scales scales;
    struct gemvk_sum t[GEMVK_X];
    gemvk_scales(&scales, w, type);
    UNROLL
    for (int32_t i = 0; i < n_x; i++) gemvk_begin(&t[i], &scales, type, &x[i], k * 16);
    UNROLL
    for (int32_t g = 0; g < 8; g++) {
        vk q = kblock_ints(w, type, g);
        UNROLL
        for (int32_t i = 0; i < n_x; i++)
            gemvk_dot(&t[i], q, x[i].q + k * 256 + (size_t)g * 32, g, kblock_by32(type));
    }
    UNROLL
    for (int32_t i = 0; i < n_x; i++) {
        UNROLL
        for (int32_t v = 0; v < KV; v++)
            sum[i][v] = vf_add(sum[i][v], vf_add(t[i].even[v], t[i].odd[v]));
    }
}

/* All rows of the item for rows i0 .. i0 + n_x - 1 of x. */
VEC void gemvk_rows(const struct kvl_gemv_item *it, enum kvl_wtype type, int32_t i0, int32_t n_x)
{
    const struct kvl_weight *w = it->a->w;
    const size_t bytes = kvl_wtype_bytes(type, 256), n_blocks = (size_t)w->n_cols / 256;
    const uint8_t *at = (const uint8_t *)w->data + (size_t)it->row0 * w->row_bytes;
    float *y = it->a->y + (size_t)i0 * (size_t)w->n_rows;
    for (int32_t r = it->row0; r < it->row1; r++) {
        vf sum[GEMVK_X][KV];
        UNROLL
        for (int32_t i = 0; i < n_x; i++) {
            UNROLL
            for (int32_t v = 0; v < KV; v++) sum[i][v] = vf_zero();
        }
        for (size_t k = 0; k < n_blocks; k++, at += bytes) {
            for (size_t o = 0; o < bytes; o += 64) __builtin_prefetch(at + GEMVK_AHEAD + o, 0, 2);
            gemvk_block(at, type, it->x + i0, n_x, k, sum);
        }
        UNROLL
        for (int32_t i = 0; i < n_x; i++)
            y[(size_t)i * (size_t)w->n_rows + (size_t)r] = vk_hsum(sum[i]);
    }
}

VEC void gemvk_typed(const struct kvl_gemv_item *it, enum kvl_wtype type)
{
    int32_t i = 0, n = it->a->n;
    for (; i + 4 <= n; i += 4) gemvk_rows(it, type, i, 4);
    for (; i + 2 <= n; i += 2) gemvk_rows(it, type, i, 2);
    if (i < n) gemvk_rows(it, type, i, 1);
}

#endif
