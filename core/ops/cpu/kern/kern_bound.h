/* kern_bound.h - pages of keys as a minimum and a maximum per channel: keeping them, bounding with
 * them.
 *
 * A page is a row of head_dim minima and as many maxima, in the type of the stored keys.  The bound
 * of a page is q_pos . max + q_neg . min.  Pages are taken as many at a time as make VW sums with the
 * queries (16 pages of one query, or 4 of four), so that one transposed addition finishes them all;
 * every loaded vector serves all queries, and the rows of the next tile are prefetched into L2
 * meanwhile. */
#ifndef KVL_KERN_BOUND_H
#define KVL_KERN_BOUND_H

#include "kern_math.h"

/* ---- minimum and maximum ------------------------------------------------------------------------ */

VEC void store_as(void *p, enum kvl_wtype type, size_t i, vf v)
{
    if (type == KVL_W_F32)
        vf_store((float *)p + i, v);
    else if (type == KVL_W_F16)
        vf_store_f16((uint16_t *)p + i, v);
    else
        vf_store_bf16((uint16_t *)p + i, v);
}

/* The same for the first n < VW lanes. */
VEC void store_as_n(void *p, enum kvl_wtype type, size_t i, vf v, int32_t n)
{
    size_t elem = type == KVL_W_F32 ? 4 : 2;
    float all[VW]; /* room and alignment for any type */
    store_as(all, type, 0, v);
    memcpy((uint8_t *)p + i * elem, all, (size_t)n * elem);
}

enum { MINMAX_VECS = 4 };

/* Channels c .. c + n_vec * VW - 1, or the last len of them, of n_tok keys. */
VEC void minmax_step(void *row, enum kvl_wtype type, const float *k, size_t ld, int32_t n_tok,
                     int32_t dim, bool first, int32_t c, int32_t n_vec, int32_t len)
{
    vf lo[MINMAX_VECS], hi[MINMAX_VECS];
    UNROLL
    for (int32_t u = 0; u < n_vec; u++) {
        size_t at = (size_t)(c + u * VW), top = at + (size_t)dim;
        if (first)
            lo[u] = hi[u] = len == VW ? vf_load(k + at) : vf_load_n(k + at, len);
        else if (len == VW)
            lo[u] = load_as(row, type, at), hi[u] = load_as(row, type, top);
        else
            lo[u] = load_as_n(row, type, at, len), hi[u] = load_as_n(row, type, top, len);
    }
    for (int32_t t = first; t < n_tok; t++) {
        const float *x = k + (size_t)t * ld + c;
        UNROLL
        for (int32_t u = 0; u < n_vec; u++) {
            vf v = len == VW ? vf_load(x + u * VW) : vf_load_n(x, len);
            lo[u] = vf_min(v, lo[u]);
            hi[u] = vf_max(v, hi[u]);
        }
    }
    UNROLL
    for (int32_t u = 0; u < n_vec; u++) {
        size_t at = (size_t)(c + u * VW), top = at + (size_t)dim;
        if (len == VW) {
            store_as(row, type, at, lo[u]);
            store_as(row, type, top, hi[u]);
        } else {
            store_as_n(row, type, at, lo[u], len);
            store_as_n(row, type, top, hi[u], len);
        }
    }
}

VEC void minmax_typed(void *row, enum kvl_wtype type, const float *k, size_t ld, int32_t n_tok,
                      int32_t dim, bool first)
{
    int32_t c = 0;
    for (; c + MINMAX_VECS * VW <= dim; c += MINMAX_VECS * VW)
        minmax_step(row, type, k, ld, n_tok, dim, first, c, MINMAX_VECS, VW);
    for (; c + VW <= dim; c += VW) minmax_step(row, type, k, ld, n_tok, dim, first, c, 1, VW);
    if (c < dim) minmax_step(row, type, k, ld, n_tok, dim, first, c, 1, dim - c);
}

static void page_minmax(void *row, enum kvl_wtype type, const float *k, size_t ld, int32_t n_tok,
                        int32_t dim, bool first)
{
    switch (type) {
    case KVL_W_F16: minmax_typed(row, KVL_W_F16, k, ld, n_tok, dim, first); break;
    case KVL_W_BF16: minmax_typed(row, KVL_W_BF16, k, ld, n_tok, dim, first); break;
    default: minmax_typed(row, KVL_W_F32, k, ld, n_tok, dim, first); break;
    }
}

/* ---- bounds --------------------------------------------------------------------------------------- */

enum { BOUND_AHEAD = 8192 }; /* bytes: what is prefetched while a page is computed */

/* What stays the same from tile to tile.  end: behind the last row that may be prefetched. */
struct bound_rows {
    const float *q_pos, *q_neg;
    const uint8_t *end;
    size_t pad, row_bytes;
    int32_t head_dim;
};

/* Channels c .. c + len - 1 of one page, for n_q queries: sums with minima and with maxima apart, two
 * chains. */
VEC void bound_step(vf *low, vf *high, const struct bound_rows *b, const uint8_t *row,
                    enum kvl_wtype type, int32_t n_q, int32_t c, int32_t len)
{
    const size_t at = (size_t)c, top = at + (size_t)b->head_dim;
    vf lo = len == VW ? load_as(row, type, at) : load_as_n(row, type, at, len);
    vf hi = len == VW ? load_as(row, type, top) : load_as_n(row, type, top, len);
    UNROLL
    for (int32_t i = 0; i < n_q; i++) {
        low[i] = vf_fma(vf_load(b->q_neg + (size_t)i * b->pad + c), lo, low[i]);
        high[i] = vf_fma(vf_load(b->q_pos + (size_t)i * b->pad + c), hi, high[i]);
    }
}

VEC void bound_page(vf *s, int32_t step, const struct bound_rows *b, const uint8_t *row,
                    enum kvl_wtype type, int32_t n_q)
{
    vf low[4], high[4];
    int32_t c = 0;
    for (int32_t i = 0; i < n_q; i++) low[i] = high[i] = vf_zero();
    for (; c + VW <= b->head_dim; c += VW) bound_step(low, high, b, row, type, n_q, c, VW);
    if (c < b->head_dim) bound_step(low, high, b, row, type, n_q, c, b->head_dim - c);
    UNROLL
    for (int32_t i = 0; i < n_q; i++) s[i * step] = vf_add(low[i], high[i]);
}

/* One tile: n of its n_pages pages count. */
VEC void bound_tile(float *bound, size_t ld, const struct bound_rows *b, const uint8_t *from,
                    enum kvl_wtype type, int32_t n_q, int32_t n_pages, int32_t n)
{
    vf s[VW];
    float sums[VW];
    for (int32_t i = 0; i < VW; i++) s[i] = vf_zero();
    for (int32_t j = 0; j < n; j++) {
        const uint8_t *row = from + (size_t)j * b->row_bytes;
        size_t ahead = BOUND_AHEAD, left = (size_t)(b->end - row);
        for (; ahead < KVL_MIN(left, BOUND_AHEAD + b->row_bytes); ahead += 64)
            __builtin_prefetch(row + ahead, 0, 2);
        bound_page(s + j, n_pages, b, row, type, n_q);
    }
    vf_store(sums, vf_sums(s));
    for (int32_t i = 0; i < n_q; i++)
        memcpy(bound + (size_t)i * ld, sums + i * n_pages, (size_t)n * sizeof *bound);
}

VEC void bound_queries(float *bound, size_t ld, const struct bound_rows *b, const uint8_t *rows,
                       enum kvl_wtype type, int32_t n_q, int32_t n_pages, int32_t n)
{
    for (int32_t p = 0; p < n; p += n_pages)
        bound_tile(bound + p, ld, b, rows + (size_t)p * b->row_bytes, type, n_q, n_pages,
                   KVL_MIN(n_pages, n - p));
}

VEC void bound_typed(float *bound, size_t ld, struct bound_rows b, const uint8_t *rows,
                     enum kvl_wtype type, int32_t n_q, int32_t n)
{
    for (int32_t i = 0; i < n_q; i += 4) {
        switch (KVL_MIN(4, n_q - i)) {
        case 4: bound_queries(bound, ld, &b, rows, type, 4, VW / 4, n); break;
        case 3: bound_queries(bound, ld, &b, rows, type, 3, VW / 4, n); break;
        case 2: bound_queries(bound, ld, &b, rows, type, 2, VW / 2, n); break;
        default: bound_queries(bound, ld, &b, rows, type, 1, VW, n); break;
        }
        bound += 4 * ld;
        b.q_pos += 4 * b.pad;
        b.q_neg += 4 * b.pad;
    }
}

static void page_bound(float *bound, size_t ld, const float *q_pos, const float *q_neg, int32_t n_q,
                       const void *minmax, enum kvl_wtype type, int32_t head_dim, int32_t n,
                       int32_t n_ahead)
{
    const uint8_t *rows = minmax;
    size_t row_bytes = 2 * (size_t)head_dim * (type == KVL_W_F32 ? 4 : 2);
    struct bound_rows b = { .q_pos = q_pos,
                            .q_neg = q_neg,
                            .end = rows + (size_t)(n + n_ahead) * row_bytes,
                            .pad = kvl_head_pad(head_dim),
                            .row_bytes = row_bytes,
                            .head_dim = head_dim };
    switch (type) {
    case KVL_W_F16: bound_typed(bound, ld, b, rows, KVL_W_F16, n_q, n); break;
    case KVL_W_BF16: bound_typed(bound, ld, b, rows, KVL_W_BF16, n_q, n); break;
    default: bound_typed(bound, ld, b, rows, KVL_W_F32, n_q, n); break;
    }
}

#endif
