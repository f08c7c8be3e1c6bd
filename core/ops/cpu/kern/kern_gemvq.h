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
    /* [2][GEMVQ_ROWS * n_blocks] scales of this group, then those of the next; smallest values */
    uint16_t *half;
    float *scale; /* [2][GEMVQ_X][GEMVQ_ROWS * n_blocks] the same times the scales of x */
    float *y;     /* out: row r of W, row i of x at y[i * ld_y + r] */
    size_t ld_y;
};

/* Floats of scratch: scales and halves, twice. */
VEC size_t gemvq_scratch(int32_t n_cols)
{
    size_t n = (size_t)(n_cols / 32) * GEMVQ_ROWS;
    return (2 * n * GEMVQ_X + n + 15) / 16 * 16;
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

/* One block of x: integers, their scale, and what Q4_0 sums start with. */
VEC void gemv_pack_block(const struct kvl_gemv_x *to, const float *x, int32_t b)
{
    static const int32_t none[8] = { 0 };
    float times, scale = kvl_gemv_scale(gemv_pack_top(x), KVL_GEMV_MOST, &times);
    vq q = vq_round(x, times);
    vq_store(to->q + (size_t)b * 32, q);
    vq_store_ints(to->start[b], vq_dot(vq_start(none), q, vq_set(-8, -8)));
    to->scale[b] = scale;
}

static void gemv_pack(const struct kvl_gemv_x *to, const float *x, int32_t n_blocks)
{
    for (int32_t b = 0; b < n_blocks; b++) gemv_pack_block(to, x + (size_t)b * 32, b);
}

/* n halves, or what block_power made, times the scales of x and `times`. */
VEC void gemvq_product(float *to, const uint16_t *half, const float *x, int32_t n, float times,
                       bool power)
{
    int32_t b = 0;
    for (; b + VW <= n; b += VW) {
        vf d = power ? vf_load_bf16(half + b) : vf_load_f16(half + b);
        vf_store(to + b, vf_mul(vf_mul(d, vf_set1(times)), vf_load(x + b)));
    }
    int32_t rest = n - b;
    if (rest == 0) return;
    vf d = power ? vf_load_bf16_n(half + b, rest) : vf_load_f16_n(half + b, rest);
    vf_store_n(to + b, vf_mul(vf_mul(d, vf_set1(times)), vf_load_n(x + b, rest)), rest);
}

/* The smallest values by -1/8, since they are multiplied with what Q4_0 sums start with. */
VEC void gemvq_scales(const struct gemvq *g, enum kvl_wtype type, int32_t n_rows, int32_t n_x)
{
    const size_t n = (size_t)g->n_blocks, group = n * GEMVQ_ROWS;
    for (int32_t i = 0; i < n_x; i++)
        for (int32_t r = 0; r < n_rows; r++) {
            float *to = g->scale + (size_t)(i * n_rows + r) * n;
            const uint16_t *half = g->half + (size_t)r * n;
            const float *x = g->x[i].scale;
            gemvq_product(to, half, x, g->n_blocks, 1, type == KVL_W_MXFP4);
            if (block_has_least(type))
                gemvq_product(to + group * GEMVQ_X, half + group, x, g->n_blocks, -0.125f, false);
        }
}

struct gemvq_sums {
    vq_sum s[GEMVQ_X][GEMVQ_ROWS][GEMVQ_SUMS];
};

/* The integers of a block. */
VEC vq gemvq_ints(const uint8_t *block, enum kvl_wtype type)
{
    if (type == KVL_W_Q8_0) return vq_bytes(block + 2);
    if (type == KVL_W_Q4_0) return vq_nibbles(block + 2);
    return vk_as_q(block_small(block, type));
}

/* What its sums start with: less a zero. */
VEC vq_int gemvq_start(const int32_t *start, enum kvl_wtype type)
{
    static const int32_t none[8] = { 0 };
    if (type == KVL_W_Q4_0) return vq_start(start);
    return type == KVL_W_Q5_0 ? vq_twice(vq_start(start)) : vq_start(none);
}

VEC void gemvq_block(const struct gemvq *g, enum kvl_wtype type, int32_t n_rows, int32_t n_x,
                     int32_t b, int32_t u, struct gemvq_sums *t)
{
    const size_t least = (size_t)g->n_blocks * GEMVQ_ROWS * GEMVQ_X;
    UNROLL
    for (int32_t r = 0; r < n_rows; r++) {
        const uint8_t *at = g->w + (size_t)r * g->row_bytes + (size_t)b * kvl_wtype_bytes(type, 32);
        vq w = gemvq_ints(at, type);
        UNROLL
        for (int32_t i = 0; i < n_x; i++) {
            const struct kvl_gemv_x *x = &g->x[i];
            const float *d = g->scale + (size_t)(i * n_rows + r) * (size_t)g->n_blocks + b;
            vq q = vq_load(x->q + (size_t)b * 32);
            vq_int dot = vq_dot(gemvq_start(x->start[b], type), w, q);
            t->s[i][r][u] = vq_scaled(t->s[i][r][u], d, dot);
            if (block_has_least(type))
                t->s[i][r][u] = vq_scaled(t->s[i][r][u], d + least, vq_start(x->start[b]));
        }
    }
}

/* The scale of block number j from `at` on, and what comes with it. */
VEC void gemvq_read(const struct gemvq *g, enum kvl_wtype type, const uint8_t *at, int32_t j)
{
    at += (size_t)j * kvl_wtype_bytes(type, 32);
    memcpy(g->half + j, at, sizeof *g->half);
    if (type == KVL_W_MXFP4) g->half[j] = block_power(*at);
    if (block_has_least(type))
        memcpy(g->half + (size_t)g->n_blocks * GEMVQ_ROWS + j, at + 2, sizeof *g->half);
}

/* Scales first .. first + n - 1 of the group that comes next, rows taken as one. */
VEC void gemvq_read_ahead(const struct gemvq *g, enum kvl_wtype type, int32_t first, int32_t n)
{
    const uint8_t *at = g->next + (size_t)first * kvl_wtype_bytes(type, 32);
    UNROLL
    for (int32_t j = 0; j < n; j++) gemvq_read(g, type, g->next, first + j);
    for (size_t o = 0; o < (size_t)n * kvl_wtype_bytes(type, 32); o += 64)
        __builtin_prefetch(at + GEMVQ_AHEAD + o, 0, 2);
}

VEC void gemvq_group(const struct gemvq *g, enum kvl_wtype type, int32_t n_rows, int32_t n_x)
{
    struct gemvq_sums t;
    int32_t b = 0;
    gemvq_scales(g, type, n_rows, n_x);
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
    g.half = (uint16_t *)(void *)(g.scale + (size_t)g.n_blocks * GEMVQ_ROWS * GEMVQ_X * 2);
    g.w = (const uint8_t *)w->data + (size_t)row0 * w->row_bytes;
    g.y = it->a->y + (size_t)i0 * g.ld_y + (size_t)row0;
    for (int32_t j = 0; row0 + n_rows <= it->row1 && j < n_rows * g.n_blocks; j++)
        gemvq_read(&g, type, g.w, j);
    for (; row0 + n_rows <= it->row1; row0 += n_rows, g.w += group, g.y += n_rows) {
        g.next = row0 + 2 * n_rows <= it->row1 ? g.w + group : g.w;
        gemvq_group(&g, type, n_rows, n_x);
    }
    return row0;
}

VEC void gemvq_typed(const struct kvl_gemv_item *it, enum kvl_wtype type)
{
    int32_t i = 0, n = it->a->n;
    for (; VQ_BATCH == 4 && i + 4 <= n; i += 4)
        gemvq_rows(it, type, gemvq_rows(it, type, it->row0, i, 2, 4), i, 1, 4);
    for (; i < n; i++) gemvq_rows(it, type, gemvq_rows(it, type, it->row0, i, 4, 1), i, 1, 1);
}

#endif
