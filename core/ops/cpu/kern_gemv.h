/* kern_gemv.h - decode projection.  A row of W is read once, in its own type, for up to 4 rows of
 * x; each of them has its own 4 sums, so its rounding is that of a row alone. */
#ifndef KVL_KERN_GEMV_H
#define KVL_KERN_GEMV_H

#include "ops/cpu/kern_math.h"

enum { GEMV_SUMS = 4, GEMV_ROWS = 4, GEMV_AHEAD = 4096 };

/* Sums of up to GEMV_ROWS rows of x.  Sum u takes the vectors, or blocks, whose number is u modulo
 * GEMV_SUMS; every index into this is a constant once loops are unrolled, so that all stay in
 * registers. */
struct gemv_sums {
    vf s[GEMV_ROWS][GEMV_SUMS];
};

VEC void gemv_close(const struct gemv_sums *t, int32_t n_x, float *y)
{
    UNROLL
    for (int32_t i = 0; i < n_x; i++)
        y[i] = vf_hsum(vf_add(vf_add(t->s[i][0], t->s[i][1]), vf_add(t->s[i][2], t->s[i][3])));
}

VEC void gemv_zero(struct gemv_sums *t, int32_t n_x)
{
    UNROLL
    for (int32_t i = 0; i < n_x; i++) {
        UNROLL
        for (int32_t u = 0; u < GEMV_SUMS; u++) t->s[i][u] = vf_zero();
    }
}

/* W is one stream through memory, whatever its rows; the processor's own prefetching stops at every
 * page. */
VEC void gemv_prefetch(const uint8_t *w, size_t bytes)
{
    for (size_t o = 0; o < bytes; o += 64) __builtin_prefetch(w + GEMV_AHEAD + o, 0, 2);
}

VEC void gemv_plain(const void *w, enum kvl_wtype type, const float *x, size_t ld, int32_t n,
                    int32_t n_x, float *y)
{
    struct gemv_sums t;
    const size_t elem_bytes = type == KVL_W_F32 ? 4 : 2;
    int32_t k = 0;
    gemv_zero(&t, n_x);
    for (; k + GEMV_SUMS * VW <= n; k += GEMV_SUMS * VW) {
        gemv_prefetch((const uint8_t *)w + (size_t)k * elem_bytes, GEMV_SUMS * VW * elem_bytes);
        UNROLL
        for (int32_t u = 0; u < GEMV_SUMS; u++) {
            vf a = load_as(w, type, (size_t)(k + u * VW));
            UNROLL
            for (int32_t i = 0; i < n_x; i++)
                t.s[i][u] =
                    vf_fma(a, vf_load(x + (size_t)i * ld + (size_t)(k + u * VW)), t.s[i][u]);
        }
    }
    UNROLL
    for (int32_t u = 0; u < GEMV_SUMS; u++) {
        int32_t at = k + u * VW, len = KVL_MIN(VW, n - at);
        if (len > 0) {
            vf a = load_as_n(w, type, (size_t)at, len);
            UNROLL
            for (int32_t i = 0; i < n_x; i++)
                t.s[i][u] = vf_fma(a, vf_load_n(x + (size_t)i * ld + (size_t)at, len), t.s[i][u]);
        }
    }
    gemv_close(&t, n_x, y);
}

/* The integers of a block are multiplied as they are, the scale joins once per block. */
VEC void gemv_block(const uint8_t *w, enum kvl_wtype type, const float *x, size_t ld, int32_t n_x,
                    struct gemv_sums *t, int32_t u)
{
    vf d = vf_set1(block_scale(w)), part[GEMV_ROWS];
    UNROLL
    for (int32_t j = 0; j < 32; j += VW) {
        vf a = block_ints(w, type, j);
        UNROLL
        for (int32_t i = 0; i < n_x; i++) {
            vf b = vf_load(x + (size_t)i * ld + (size_t)j);
            part[i] = j ? vf_fma(a, b, part[i]) : vf_mul(a, b);
        }
    }
    UNROLL
    for (int32_t i = 0; i < n_x; i++) t->s[i][u] = vf_fma(d, part[i], t->s[i][u]);
}

VEC void gemv_blocks(const uint8_t *w, enum kvl_wtype type, const float *x, size_t ld, int32_t n,
                     int32_t n_x, float *y)
{
    struct gemv_sums t;
    size_t size = block_size(type);
    int32_t n_blocks = n / 32, b = 0;
    gemv_zero(&t, n_x);
    for (; b + GEMV_SUMS <= n_blocks; b += GEMV_SUMS) {
        UNROLL
        for (int32_t u = 0; u < GEMV_SUMS; u++)
            gemv_block(w + (size_t)(b + u) * size, type, x + (size_t)(b + u) * 32, ld, n_x, &t, u);
    }
    UNROLL
    for (int32_t u = 0; u < GEMV_SUMS; u++)
        if (b + u < n_blocks)
            gemv_block(w + (size_t)(b + u) * size, type, x + (size_t)(b + u) * 32, ld, n_x, &t, u);
    gemv_close(&t, n_x, y);
}

VEC void gemv_typed(const struct kvl_gemv_args *a, enum kvl_wtype type, int32_t row0, int32_t row1,
                    int32_t i0, int32_t n_x)
{
    size_t ld = (size_t)a->w->n_cols, ld_y = (size_t)a->w->n_rows;
    const float *x = a->x + (size_t)i0 * ld;
    for (int32_t r = row0; r < row1; r++) {
        const uint8_t *w = (const uint8_t *)a->w->data + (size_t)r * a->w->row_bytes;
        float y[GEMV_ROWS];
        if (type == KVL_W_Q8_0 || type == KVL_W_Q4_0)
            gemv_blocks(w, type, x, ld, a->w->n_cols, n_x, y);
        else
            gemv_plain(w, type, x, ld, a->w->n_cols, n_x, y);
        for (int32_t i = 0; i < n_x; i++) a->y[(size_t)(i0 + i) * ld_y + (size_t)r] = y[i];
    }
}

VEC void gemv_group(const struct kvl_gemv_args *a, int32_t row0, int32_t row1, int32_t i0,
                    int32_t n_x)
{
    switch (a->w->type) {
    case KVL_W_F32: gemv_typed(a, KVL_W_F32, row0, row1, i0, n_x); break;
    case KVL_W_F16: gemv_typed(a, KVL_W_F16, row0, row1, i0, n_x); break;
    case KVL_W_BF16: gemv_typed(a, KVL_W_BF16, row0, row1, i0, n_x); break;
    case KVL_W_Q8_0: gemv_typed(a, KVL_W_Q8_0, row0, row1, i0, n_x); break;
    case KVL_W_Q4_0: gemv_typed(a, KVL_W_Q4_0, row0, row1, i0, n_x); break;
    }
}

static void gemv_rows(const struct kvl_gemv_args *a, int32_t row0, int32_t row1)
{
    int32_t i = 0;
    for (; i + 4 <= a->n; i += 4) gemv_group(a, row0, row1, i, 4);
    for (; i + 2 <= a->n; i += 2) gemv_group(a, row0, row1, i, 2);
    if (i < a->n) gemv_group(a, row0, row1, i, 1);
}

#endif
