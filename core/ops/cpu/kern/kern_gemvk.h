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

/* What a block needs before its elements, for each row of x: scales of W times those of x, and the
 * sums begun with what W takes off times the sums of x.  Made while the block before it is multiplied:
 * a processor looks no further than some four blocks ahead, and this is the longer half of the way
 * from the bytes to the sum. */
struct gemvk_ahead {
    float scale[GEMVK_X][16];
    vf sum[GEMVK_X][KV];
};

/* scale: of a block of W; with what it takes off by turns if both come per 32 elements. */
VEC void gemvk_scales(vf *scale, vf *less, const uint8_t *w, enum kvl_wtype type)
{
    const uint8_t *factor = kblock_factor(w, type);
    const bool by32 = kblock_by32(type), has_less = kblock_has_less(type);
    const float zero = kblock_zero(type);
    struct kblock s = kblock_scales(w, type);
    vf d[KV], d_less[KV];
    if (by32)
        vk_zip(scale, s.scale[0], s.less[0]);
    else
        vk_signed(scale, s.scale[0], s.scale[1]);
    if (by32 && has_less)
        vk_halves(d, factor);
    else
        vk_half(d, factor);
    if (!by32 && has_less) {
        vk_signed(less, s.less[0], s.less[1]);
        vk_half(d_less, factor + 2);
    }
    UNROLL
    for (int32_t v = 0; v < KV; v++) {
        scale[v] = vf_mul(d[v], scale[v]);
        if (zero != 0) less[v] = vf_mul(vf_set1(-zero), scale[v]);
        if (!by32 && has_less) less[v] = vf_mul(vf_sub(vf_zero(), d_less[v]), less[v]);
    }
}

/* w: block k of its row. */
VEC void gemvk_look(struct gemvk_ahead *to, const uint8_t *w, enum kvl_wtype type,
                    const struct kvl_gemv_x *x, int32_t n_x, size_t k)
{
    const bool by32 = kblock_by32(type), has_less = kblock_has_less(type);
    vf scale[KV], less[KV];
    gemvk_scales(scale, less, w, type);
    UNROLL
    for (int32_t i = 0; i < n_x; i++) {
        vf product[KV];
        UNROLL
        for (int32_t v = 0; v < KV; v++) {
            const size_t at = k * 16 + (size_t)(v * VW);
            vf times = vf_load(x[i].scale16 + at);
            product[v] = vf_mul(scale[v], times);
            to->sum[i][v] = vf_zero();
            if (by32 && has_less)
                to->sum[i][v] = vf_mul(product[v], vf_load(x[i].less32 + at));
            else if (has_less || kblock_zero(type) != 0)
                to->sum[i][v] = vf_mul(vf_mul(less[v], times), vf_load(x[i].sum16 + at));
        }
        vk_store(to->scale[i], product);
    }
}

/* One block of W, number k of its row, for n_x rows of x. */
VEC void gemvk_block(const uint8_t *w, enum kvl_wtype type, const struct kvl_gemv_x *x, int32_t n_x,
                     size_t k, const struct gemvk_ahead *a, vf (*sum)[KV])
{
    vf part[GEMVK_X][2][KV]; /* of even and of odd parts */
    UNROLL
    for (int32_t i = 0; i < n_x; i++) {
        UNROLL
        for (int32_t v = 0; v < KV; v++) {
            part[i][0][v] = a->sum[i][v];
            part[i][1][v] = vf_zero();
        }
    }
    UNROLL
    for (int32_t g = 0; g < 8; g++) {
        vk q = kblock_ints(w, type, g);
        UNROLL
        for (int32_t i = 0; i < n_x; i++) {
            vf dot[KV], scale[KV], *to = part[i][g % 2];
            vk_dot(dot, q, vk_load(x[i].q + k * 256 + (size_t)g * 32));
            if (kblock_by32(type))
                vk_all(scale, a->scale[i], 2 * g);
            else
                vk_pair(scale, a->scale[i], 2 * g);
            UNROLL
            for (int32_t v = 0; v < KV; v++) to[v] = vf_fma(scale[v], dot[v], to[v]);
        }
    }
    UNROLL
    for (int32_t i = 0; i < n_x; i++) {
        UNROLL
        for (int32_t v = 0; v < KV; v++)
            sum[i][v] = vf_add(sum[i][v], vf_add(part[i][0][v], part[i][1][v]));
    }
}

/* All rows of the item for rows i0 .. i0 + n_x - 1 of x. */
VEC void gemvk_rows(const struct kvl_gemv_item *it, enum kvl_wtype type, int32_t i0, int32_t n_x)
{
    const struct kvl_weight *w = it->a->w;
    const size_t bytes = kvl_wtype_bytes(type, 256), n_blocks = (size_t)w->n_cols / 256;
    const uint8_t *at = (const uint8_t *)w->data + (size_t)it->row0 * w->row_bytes;
    const uint8_t *last = at + (size_t)(it->row1 - it->row0) * w->row_bytes - bytes;
    const struct kvl_gemv_x *x = it->x + i0;
    float *y = it->a->y + (size_t)i0 * (size_t)w->n_rows;
    struct gemvk_ahead ahead[2];
    size_t now = 0;
    gemvk_look(&ahead[0], at, type, x, n_x, 0);
    for (int32_t r = it->row0; r < it->row1; r++) {
        vf sum[GEMVK_X][KV];
        UNROLL
        for (int32_t i = 0; i < n_x; i++) {
            UNROLL
            for (int32_t v = 0; v < KV; v++) sum[i][v] = vf_zero();
        }
        for (size_t k = 0; k < n_blocks; k++, at += bytes, now ^= 1) {
            size_t next = k + 1 < n_blocks ? k + 1 : 0;
            for (size_t o = 0; o < bytes; o += 64) __builtin_prefetch(at + GEMVK_AHEAD + o, 0, 2);
            gemvk_look(&ahead[now ^ 1], at < last ? at + bytes : at, type, x, n_x, next);
            gemvk_block(at, type, x, n_x, k, &ahead[now], sum);
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
