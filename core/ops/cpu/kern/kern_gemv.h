/* kern_gemv.h - decode projection.  A row of W is read once, in its own type, for up to 4 rows of
 * x; each of them has its own sums, so its rounding is that of a row alone. */
#ifndef KVL_KERN_GEMV_H
#define KVL_KERN_GEMV_H

#include "kern_gemvb.h"
#include "kern_gemvq.h"

enum { GEMV_SUMS = 4, GEMV_ROWS = 4, GEMV_AHEAD = 1024, GEMV_AHEAD_BATCH = 4096 };

/* A loop of unknown length.  Rows are short: at 1024 columns of F16, 16 turns reach 0.76 of a streaming
 * read and 4 longer ones 1.0. */
#if defined(__clang__)
#define UNROLL_SOME _Pragma("clang loop unroll_count(4)")
#else
#define UNROLL_SOME _Pragma("GCC unroll 4")
#endif

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
 * page.  Into L2, never L1 (half the speed); 1 KiB ahead is better than 4 (0.91 against 0.71 of a
 * streaming read). */
VEC void gemv_prefetch(const uint8_t *w, size_t bytes, int32_t n_x)
{
    const size_t ahead = n_x > 1 ? GEMV_AHEAD_BATCH : GEMV_AHEAD;
    for (size_t o = 0; o < bytes; o += 64) __builtin_prefetch(w + ahead + o, 0, 2);
}

VEC void gemv_plain(const void *w, enum kvl_wtype type, const float *x, size_t ld, int32_t n,
                    int32_t n_x, float *y)
{
    struct gemv_sums t;
    const size_t elem_bytes = type == KVL_W_F32 ? 4 : 2;
    int32_t k = 0;
    gemv_zero(&t, n_x);
    UNROLL_SOME
    for (; k + GEMV_SUMS * VW <= n; k += GEMV_SUMS * VW) {
        gemv_prefetch((const uint8_t *)w + (size_t)k * elem_bytes, GEMV_SUMS * VW * elem_bytes,
                      n_x);
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

/* The sum of a row of at most GEMV_SUMS vectors, as gemv_plain and gemv_close would add it up, but for vf_hsum. */
VEC vf gemv_short_row(const void *w, enum kvl_wtype type, const vf *x, int32_t n, int32_t n_vec)
{
    vf s[GEMV_SUMS];
    UNROLL
    for (int32_t u = 0; u < GEMV_SUMS; u++) s[u] = vf_zero();
    UNROLL
    for (int32_t u = 0; u < n_vec; u++) {
        int32_t len = u + 1 < n_vec ? VW : n - u * VW;
        vf a = len == VW ? load_as(w, type, (size_t)(u * VW))
                         : load_as_n(w, type, (size_t)(u * VW), len);
        s[u] = vf_fma(a, x[u], s[u]);
    }
    return vf_add(vf_add(s[0], s[1]), vf_add(s[2], s[3]));
}

/* vf_hsum of each of VW vectors: halves are added until one lane is left, here of all of them at once. */
VEC vf gemv_hsums(vf *v)
{
    vf_transpose(v);
    UNROLL
    for (int32_t half = VW / 2; half > 0; half /= 2) {
        UNROLL
        for (int32_t i = 0; i < half; i++) v[i] = vf_add(v[i], v[i + half]);
    }
    return v[0];
}

/* Rows of a few vectors: x stays in registers, and sums across vectors are made for VW rows at once. */
VEC void gemv_short(const struct kvl_gemv_args *a, enum kvl_wtype type, int32_t row0, int32_t row1,
                    int32_t i, int32_t n_vec)
{
    const size_t bytes = a->w->row_bytes;
    const int32_t n = a->w->n_cols;
    const uint8_t *w = (const uint8_t *)a->w->data + (size_t)row0 * bytes;
    const float *from = a->x + (size_t)i * (size_t)n;
    float *y = a->y + (size_t)i * (size_t)a->w->n_rows;
    vf x[GEMV_SUMS], s[VW];
    UNROLL
    for (int32_t u = 0; u < n_vec; u++)
        x[u] = u + 1 < n_vec ? vf_load(from + u * VW) : vf_load_n(from + u * VW, n - u * VW);
    int32_t r = row0;
    for (; r + VW <= row1; r += VW, w += VW * bytes) {
        for (size_t o = 0; o < VW * bytes; o += 64) __builtin_prefetch(w + GEMV_AHEAD + o, 0, 2);
        UNROLL
        for (int32_t j = 0; j < VW; j++)
            s[j] = gemv_short_row(w + (size_t)j * bytes, type, x, n, n_vec);
        vf_store(y + r, gemv_hsums(s));
    }
    for (; r < row1; r++, w += bytes) y[r] = vf_hsum(gemv_short_row(w, type, x, n, n_vec));
}

VEC void gemv_shorts(const struct kvl_gemv_args *a, enum kvl_wtype type, int32_t row0, int32_t row1,
                     int32_t i)
{
    switch ((a->w->n_cols + VW - 1) / VW) {
    case 1: gemv_short(a, type, row0, row1, i, 1); break;
    case 2: gemv_short(a, type, row0, row1, i, 2); break;
    case 3: gemv_short(a, type, row0, row1, i, 3); break;
    default: gemv_short(a, type, row0, row1, i, 4); break;
    }
}

VEC void gemv_typed(const struct kvl_gemv_args *a, enum kvl_wtype type, int32_t row0, int32_t row1,
                    int32_t i0, int32_t n_x)
{
    size_t ld = (size_t)a->w->n_cols, ld_y = (size_t)a->w->n_rows;
    const float *x = a->x + (size_t)i0 * ld;
    for (int32_t r = row0; r < row1; r++) {
        const uint8_t *w = (const uint8_t *)a->w->data + (size_t)r * a->w->row_bytes;
        float y[GEMV_ROWS];
        gemv_plain(w, type, x, ld, a->w->n_cols, n_x, y);
        for (int32_t i = 0; i < n_x; i++) a->y[(size_t)(i0 + i) * ld_y + (size_t)r] = y[i];
    }
}

VEC void gemv_batches(const struct kvl_gemv_item *it, enum kvl_wtype type)
{
    int32_t i = 0, n = it->a->n;
    for (; it->a->w->n_cols <= GEMV_SUMS * VW && i < n; i++)
        gemv_shorts(it->a, type, it->row0, it->row1, i);
    for (; i + 4 <= n; i += 4) gemv_typed(it->a, type, it->row0, it->row1, i, 4);
    for (; i + 2 <= n; i += 2) gemv_typed(it->a, type, it->row0, it->row1, i, 2);
    if (i < n) gemv_typed(it->a, type, it->row0, it->row1, i, 1);
}

/* A type without kernels (none today): each row is widened, and is then one of F32 for all rows of x. */
__attribute__((unused)) static void gemv_any(const struct kvl_gemv_item *it)
{
    struct kvl_gemv_args a = *it->a;
    struct kvl_weight row = { it->scratch, KVL_W_F32, a.w->n_rows, a.w->n_cols, 0 };
    const struct kvl_gemv_item one = { .a = &a, .row1 = 1 };
    const uint8_t *w = (const uint8_t *)a.w->data + (size_t)it->row0 * a.w->row_bytes;
    enum kvl_wtype type = a.w->type;
    size_t row_bytes = a.w->row_bytes;
    a.w = &row;
    a.y += it->row0;
    for (int32_t r = it->row0; r < it->row1; r++, a.y++, w += row_bytes) {
        widen(it->scratch, w, type, row.n_cols);
        gemv_batches(&one, KVL_W_F32);
    }
}

static size_t gemv_scratch(enum kvl_wtype type, int32_t n_cols)
{
    size_t floats = 0;
    switch (type) {
#define gemv_scratch_int16 0
#define gemv_scratch_k16   0
#define gemv_scratch_any   ((size_t)n_cols)
#define KVL_WTYPE_PLAIN(name, ...)                                                                 \
    case KVL_W_##name:                                                                             \
        break;
#define KVL_WTYPE_BLOCK(name, number, elements, bytes, word, word2, exponent, eight, kernels)      \
    case KVL_W_##name:                                                                             \
        floats = gemv_scratch_##kernels;                                                           \
        break;
#include "kvl/wtypes.def"
    }
    return floats;
}

static void gemv_item(const struct kvl_gemv_item *it)
{
    switch (it->a->w->type) {
#define gemv_kernel_int16(name) gemvq_typed(it, KVL_W_##name)
#define gemv_kernel_k16(name)                                                                      \
    (it->a->q8 ? gemvb_typed(it, KVL_W_##name) : gemvk_typed(it, KVL_W_##name))
#define gemv_kernel_any(name) gemv_any(it)
#define KVL_WTYPE_PLAIN(name, ...)                                                                 \
    case KVL_W_##name:                                                                             \
        gemv_batches(it, KVL_W_##name);                                                            \
        break;
#define KVL_WTYPE_BLOCK(name, number, elements, bytes, word, word2, exponent, eight, kernels)      \
    case KVL_W_##name:                                                                             \
        gemv_kernel_##kernels(name);                                                               \
        break;
#include "kvl/wtypes.def"
    }
}

#endif
