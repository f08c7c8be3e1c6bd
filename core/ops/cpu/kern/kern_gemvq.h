/* kern_gemvq.h - decode projection with quantised weights.
 *
 * A row of x is rounded to 16-bit integers, with one scale per block of 32 columns: the products of a
 * block are then an exact sum of integers, which takes half the instructions of widening every
 * weight to float.  The 8 that Q4_0 takes off its nibbles is taken off the start of each sum.
 *
 * Rows of W are multiplied in groups that share the loads of x.  The scales of a group are read
 * while the group before it is multiplied, in the order in which they lie in memory: so the processor
 * sees one stream, which its prefetching follows, where rows side by side would be several. */
#ifndef KVL_KERN_GEMVQ_H
#define KVL_KERN_GEMVQ_H

#include "gemv_x.h"
#include "kern_math.h"

/* Sum u takes the blocks whose number is u modulo GEMVQ_SUMS. */
enum { GEMVQ_SUMS = 2, GEMVQ_ROWS = 4, GEMVQ_X = 4, GEMVQ_AHEAD = 256 };

/* Rows of W, one after another, and rows of x. */
struct gemvq {
    const uint8_t *w, *next; /* this group, the one after it */
    size_t row_bytes;
    int32_t n_blocks;
    const struct kvl_gemv_x *x;
    uint16_t *half; /* [GEMVQ_ROWS * n_blocks] scales of this group, then those of the next */
    float *scale;   /* [GEMVQ_X][GEMVQ_ROWS * n_blocks] times those of x */
    float *y;       /* out: row r of W, row i of x at y[i * ld_y + r] */
    size_t ld_y;
};

/* Floats of scratch: scales and halves. */
VEC size_t gemvq_scratch(int32_t n_cols)
{
    size_t n = (size_t)(n_cols / 32) * GEMVQ_ROWS;
    return (n * GEMVQ_X + n / 2 + 15) / 16 * 16;
}

/* The largest absolute value of 32; NaN if one is not finite. */
VEC float gemv_pack_top(const float *x)
{
    vf top = vf_zero(), bad = vf_zero();
    UNROLL
    for (int32_t i = 0; i < 32; i += VW) {
        vf v = vf_load(x + i);
        top = vf_max(top, vf_max(v, vf_sub(vf_zero(), v)));
        bad = vf_add(bad, vf_mul(v, vf_zero()));
    }
    return vf_hmax(top) + vf_hsum(bad);
}

/* The sum of q times one where `ones` has it; exact. */
VEC float gemv_pack_sum(vq q, vq ones)
{
    static const int32_t none[8] = { 0 };
    const float one = 1;
    return vq_hsum(vq_scaled(vq_zero(), &one, vq_dot(vq_start(none), q, ones)));
}

/* One block of x: integers, their scale and sums, and what Q4_0 sums start with. */
VEC void gemv_pack_block(const struct kvl_gemv_x *to, const float *x, int32_t b)
{
    static const int32_t none[8] = { 0 };
    float times, scale = kvl_gemv_scale(gemv_pack_top(x), &times);
    vq q = vq_round(x, times);
    float lo = gemv_pack_sum(q, vq_set(1, 0)), hi = gemv_pack_sum(q, vq_set(0, 1));
    vq_store(to->q + (size_t)b * 32, q);
    vq_store_ints(to->start[b], vq_dot(vq_start(none), q, vq_set(-8, -8)));
    to->scale[b] = to->scale16[2 * b] = to->scale16[2 * b + 1] = scale;
    to->sum16[2 * b] = lo;
    to->sum16[2 * b + 1] = hi;
    to->less32[2 * b] = 0;
    to->less32[2 * b + 1] = -(lo + hi);
}

static void gemv_pack(const struct kvl_gemv_x *to, const float *x, int32_t n_blocks)
{
    for (int32_t b = 0; b < n_blocks; b++) gemv_pack_block(to, x + (size_t)b * 32, b);
}

VEC void gemvq_scales(const struct gemvq *g, int32_t n_rows, int32_t n_x)
{
    for (int32_t i = 0; i < n_x; i++)
        for (int32_t r = 0; r < n_rows; r++) {
            float *to = g->scale + (size_t)(i * n_rows + r) * (size_t)g->n_blocks;
            const uint16_t *half = g->half + (size_t)r * (size_t)g->n_blocks;
            const float *x = g->x[i].scale;
            int32_t b = 0;
            for (; b + VW <= g->n_blocks; b += VW)
                vf_store(to + b, vf_mul(vf_load_f16(half + b), vf_load(x + b)));
            int32_t rest = g->n_blocks - b;
            if (rest)
                vf_store_n(to + b, vf_mul(vf_load_f16_n(half + b, rest), vf_load_n(x + b, rest)),
                           rest);
        }
}

struct gemvq_sums {
    vq_sum s[GEMVQ_X][GEMVQ_ROWS][GEMVQ_SUMS];
};

VEC void gemvq_block(const struct gemvq *g, enum kvl_wtype type, int32_t n_rows, int32_t n_x,
                     int32_t b, int32_t u, struct gemvq_sums *t)
{
    static const int32_t zero[8] = { 0 };
    const size_t size = kvl_wtype_bytes(type, 32);
    UNROLL
    for (int32_t r = 0; r < n_rows; r++) {
        const uint8_t *at = g->w + (size_t)r * g->row_bytes + (size_t)b * size + 2;
        vq w = type == KVL_W_Q8_0 ? vq_bytes(at) : vq_nibbles(at);
        UNROLL
        for (int32_t i = 0; i < n_x; i++) {
            const struct kvl_gemv_x *x = &g->x[i];
            const float *d = g->scale + (size_t)(i * n_rows + r) * (size_t)g->n_blocks + b;
            vq_int start = vq_start(type == KVL_W_Q8_0 ? zero : x->start[b]);
            vq q = vq_load(x->q + (size_t)b * 32);
            t->s[i][r][u] = vq_scaled(t->s[i][r][u], d, vq_dot(start, w, q));
        }
    }
}

/* Scales first .. first + n - 1 of the group that comes next, rows taken as one. */
VEC void gemvq_read_ahead(const struct gemvq *g, enum kvl_wtype type, int32_t first, int32_t n)
{
    const uint8_t *at = g->next + (size_t)first * kvl_wtype_bytes(type, 32);
    UNROLL
    for (int32_t j = 0; j < n; j++)
        memcpy(g->half + first + j, at + (size_t)j * kvl_wtype_bytes(type, 32), sizeof *g->half);
    for (size_t o = 0; o < (size_t)n * kvl_wtype_bytes(type, 32); o += 64)
        __builtin_prefetch(at + GEMVQ_AHEAD + o, 0, 2);
}

VEC void gemvq_group(const struct gemvq *g, enum kvl_wtype type, int32_t n_rows, int32_t n_x)
{
    struct gemvq_sums t;
    int32_t b = 0;
    gemvq_scales(g, n_rows, n_x);
    UNROLL
    for (int32_t i = 0; i < n_x; i++) {
        UNROLL
        for (int32_t r = 0; r < n_rows; r++) t.s[i][r][0] = t.s[i][r][1] = vq_zero();
    }
    for (; b + GEMVQ_SUMS <= g->n_blocks; b += GEMVQ_SUMS) {
        gemvq_read_ahead(g, type, b * n_rows, GEMVQ_SUMS * n_rows);
        gemvq_block(g, type, n_rows, n_x, b, 0, &t);
        gemvq_block(g, type, n_rows, n_x, b + 1, 1, &t);
    }
    if (b < g->n_blocks) {
        gemvq_read_ahead(g, type, b * n_rows, n_rows);
        gemvq_block(g, type, n_rows, n_x, b, 0, &t);
    }
    UNROLL
    for (int32_t i = 0; i < n_x; i++) {
        UNROLL
        for (int32_t r = 0; r < n_rows; r++)
            g->y[(size_t)i * g->ld_y + (size_t)r] = vq_hsum(vq_add(t.s[i][r][0], t.s[i][r][1]));
    }
}

/* Rows row0 .. row1 - 1, n_rows at a time; returns the first that is left over. */
VEC int32_t gemvq_rows(const struct kvl_gemv_item *it, enum kvl_wtype type, int32_t row0,
                       int32_t i0, int32_t n_rows, int32_t n_x)
{
    const struct kvl_weight *w = it->a->w;
    struct gemvq g = { .row_bytes = w->row_bytes,
                       .n_blocks = w->n_cols / 32,
                       .x = it->x + i0,
                       .ld_y = (size_t)w->n_rows };
    size_t group = (size_t)n_rows * w->row_bytes;
    g.scale = it->scratch;
    g.half = (uint16_t *)(void *)(g.scale + (size_t)g.n_blocks * GEMVQ_ROWS * GEMVQ_X);
    g.w = (const uint8_t *)w->data + (size_t)row0 * w->row_bytes;
    g.y = it->a->y + (size_t)i0 * g.ld_y + (size_t)row0;
    for (int32_t j = 0; row0 + n_rows <= it->row1 && j < n_rows * g.n_blocks; j++)
        memcpy(g.half + j, g.w + (size_t)j * kvl_wtype_bytes(type, 32), sizeof *g.half);
    for (; row0 + n_rows <= it->row1; row0 += n_rows, g.w += group, g.y += n_rows) {
        g.next = row0 + 2 * n_rows <= it->row1 ? g.w + group : g.w;
        gemvq_group(&g, type, n_rows, n_x);
    }
    return row0;
}

VEC void gemvq_typed(const struct kvl_gemv_item *it, enum kvl_wtype type)
{
    int32_t i = 0, n = it->a->n;
    for (; i + 4 <= n; i += 4)
        gemvq_rows(it, type, gemvq_rows(it, type, it->row0, i, 2, 4), i, 1, 4);
    for (; i < n; i++) gemvq_rows(it, type, gemvq_rows(it, type, it->row0, i, 4, 1), i, 1, 1);
}

#endif
