/* kern_gemv.h - decode projection.  A row of W is read once, in its own type, for up to 4 rows of
 * x; each of them has its own 4 sums, so its rounding is that of a row alone. */
#ifndef KVL_KERN_GEMV_H
#define KVL_KERN_GEMV_H

#include "ops/cpu/kern_math.h"

enum { GEMV_SUMS = 4, GEMV_ROWS = 4 };

VEC float gemv_total(const vf *s)
{
    return vf_hsum(vf_add(vf_add(s[0], s[1]), vf_add(s[2], s[3])));
}

VEC void gemv_plain(const void *w, enum kvl_wtype type, const float *x, size_t ld, int32_t n,
                    int32_t n_x, float *y)
{
    vf s[GEMV_ROWS][GEMV_SUMS];
    int32_t k = 0, j = 0;
    for (int32_t i = 0; i < n_x; i++)
        for (int32_t u = 0; u < GEMV_SUMS; u++) s[i][u] = vf_zero();
    for (; k + GEMV_SUMS * VW <= n; k += GEMV_SUMS * VW) {
        UNROLL
        for (int32_t u = 0; u < GEMV_SUMS; u++) {
            vf a = load_as(w, type, (size_t)(k + u * VW));
            UNROLL
            for (int32_t i = 0; i < n_x; i++)
                s[i][u] = vf_fma(a, vf_load(x + (size_t)i * ld + (size_t)(k + u * VW)), s[i][u]);
        }
    }
    for (; k < n; k += VW, j++) {
        int32_t len = KVL_MIN(VW, n - k);
        vf a = load_as_n(w, type, (size_t)k, len);
        for (int32_t i = 0; i < n_x; i++)
            s[i][j] = vf_fma(a, vf_load_n(x + (size_t)i * ld + (size_t)k, len), s[i][j]);
    }
    for (int32_t i = 0; i < n_x; i++) y[i] = gemv_total(s[i]);
}

/* The integers of a block are multiplied as they are, the scale joins once per block. */
VEC void gemv_blocks(const uint8_t *w, enum kvl_wtype type, const float *x, size_t ld, int32_t n,
                     int32_t n_x, float *y)
{
    size_t block_bytes = type == KVL_W_Q8_0 ? 34 : 18;
    int8_t tmp[32];
    vf s[GEMV_ROWS][GEMV_SUMS];
    for (int32_t i = 0; i < n_x; i++)
        for (int32_t u = 0; u < GEMV_SUMS; u++) s[i][u] = vf_zero();
    for (int32_t k = 0; k < n; k += 32, w += block_bytes) {
        vf d = vf_set1(block_scale(w)), part[GEMV_ROWS];
        const int8_t *q = block_ints(w, type, tmp);
        UNROLL
        for (int32_t j = 0; j < 32; j += VW) {
            vf a = vf_load_i8(q + j);
            UNROLL
            for (int32_t i = 0; i < n_x; i++) {
                vf b = vf_load(x + (size_t)i * ld + (size_t)(k + j));
                part[i] = j ? vf_fma(a, b, part[i]) : vf_mul(a, b);
            }
        }
        for (int32_t i = 0; i < n_x; i++)
            s[i][(k / 32) % GEMV_SUMS] = vf_fma(d, part[i], s[i][(k / 32) % GEMV_SUMS]);
    }
    for (int32_t i = 0; i < n_x; i++) y[i] = gemv_total(s[i]);
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
