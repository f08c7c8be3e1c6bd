/* kern_gemm.h - prefill projection.  W is widened and transposed in panels of NR rows and
 * GEMM_DEPTH columns; sums continue through Y, so the depth does not show in the result.
 *
 * In bf16, x and W are rounded while they are packed (kern_bf16.h): to pairs in the place of a float
 * where the processor multiplies them, which halves the places of a panel; else to floats. */
#ifndef KVL_KERN_GEMM_H
#define KVL_KERN_GEMM_H

#include "kern_bf16.h"

enum { GEMM_DEPTH = 512, GEMM_STEP = 64 };

/* Places of k columns. */
VEC int32_t gemm_places(int32_t k, bool bf16)
{
    return bf16 ? bf16_places(k) : k;
}

/* dst [places][MR]: a group of up to MR rows of x, missing rows zero. */
VEC void gemm_pack_rows(float *dst, const float *x, size_t ld, int32_t n_rows, int32_t k, bool bf16)
{
    const float *rows[VW] = { 0 };
    float wide[MR][GEMM_STEP];
    for (int32_t i = 0; i < n_rows && !bf16; i++) rows[i] = x + (size_t)i * ld;
    if (!bf16) transpose_rows(dst, MR, MR, rows, 0, k, 1);
    for (int32_t c = 0; c < k && bf16; c += GEMM_STEP) {
        int32_t len = KVL_MIN(GEMM_STEP, k - c);
        for (int32_t i = 0; i < n_rows; i++) {
            rows[i] = wide[i];
            bf16_round(wide[i], x + (size_t)i * ld + (size_t)c, len);
        }
        transpose_rows(dst + (size_t)bf16_places(c) * MR, MR, MR, rows, 0, bf16_places(len), 1);
    }
}

static int32_t gemm_places_f32(int32_t k)
{
    return gemm_places(k, false);
}
static int32_t gemm_places_bf16(int32_t k)
{
    return gemm_places(k, true);
}
static void gemm_pack_f32(float *dst, const float *x, size_t ld, int32_t n_rows, int32_t k)
{
    gemm_pack_rows(dst, x, ld, n_rows, k, false);
}
static void gemm_pack_bf16(float *dst, const float *x, size_t ld, int32_t n_rows, int32_t k)
{
    gemm_pack_rows(dst, x, ld, n_rows, k, true);
}

static size_t gemm_scratch(int32_t n_cols)
{
    size_t panels = ((size_t)n_cols + NR - 1) / NR;
    return panels * NR * GEMM_DEPTH + (size_t)NR * GEMM_STEP + (size_t)MR * NR;
}

VEC const uint8_t *gemm_weight_row(const struct kvl_weight *w, int32_t row)
{
    return (const uint8_t *)w->data + (size_t)row * w->row_bytes;
}

/* Asks for the `step` columns that follow in this row; at the end of the row, for those of the next panel.
 * NR rows at once are more streams than the processor's own prefetching follows. */
VEC void gemm_prefetch_w(const struct kvl_weight *w, int32_t row, int32_t k, int32_t k0,
                         int32_t depth, int32_t step)
{
    bool more = k + step < depth;
    int32_t next = k0 + (more ? k + step : 0);
    size_t from = kvl_wtype_bytes(w->type, (size_t)next);
    const uint8_t *at = gemm_weight_row(w, more ? row : row + NR) + from;
    size_t bytes = kvl_wtype_bytes(w->type, (size_t)(next + step)) - from;
    if (row + NR >= w->n_rows && !more) return;
    for (size_t o = 0; o < bytes; o += 64) __builtin_prefetch(at + o, 0, 2);
}

/* panel [places][NR] = columns k0 .. of n <= NR rows of W from row0 on. */
VEC void gemm_pack_w(float *panel, const struct kvl_weight *w, int32_t row0, int32_t n, int32_t k0,
                     int32_t depth, float *wide, bool bf16)
{
    const float *rows[NR];
    for (int32_t k = 0; k < depth; k += GEMM_STEP) {
        int32_t len = KVL_MIN(GEMM_STEP, depth - k);
        for (int32_t r = 0; r < NR; r++) {
            float *to = wide + (size_t)r * GEMM_STEP;
            rows[r] = r < n ? to : NULL;
            if (r >= n) continue;
            gemm_prefetch_w(w, row0 + r, k, k0, depth, GEMM_STEP);
            widen_columns(to, gemm_weight_row(w, row0 + r), w->type, k0 + k, len);
            if (bf16) bf16_round(to, to, len);
        }
        float *at = panel + (size_t)gemm_places(k, bf16) * NR;
        for (int32_t r = 0; r < NR; r += VW)
            transpose_rows(at + r, NR, VW, rows + r, 0, gemm_places(len, bf16), 1);
    }
}

/* Y [MR][NR] = or += A B over so many places. */
VEC void gemm_tile(float *y, size_t ld_y, const float *a, const float *b, int32_t places,
                   bool first, bool bf16)
{
    if (bf16)
        bf16_tile(y, ld_y, a, 1, MR, b, NR, places, first);
    else
        mul_tile(y, ld_y, a, 1, MR, b, NR, places, first);
}

/* A tile at the edge goes through a full-sized copy. */
VEC void gemm_edge(float *y, size_t ld_y, int32_t n_rows, int32_t n_cols, const float *a,
                   const float *b, int32_t places, bool first, float *tile, bool bf16)
{
    for (int32_t i = 0; i < n_rows && !first; i++)
        memcpy(tile + (size_t)i * NR, y + (size_t)i * ld_y, (size_t)n_cols * sizeof *y);
    gemm_tile(tile, NR, a, b, places, first, bf16);
    for (int32_t i = 0; i < n_rows; i++)
        memcpy(y + (size_t)i * ld_y, tile + (size_t)i * NR, (size_t)n_cols * sizeof *y);
}

VEC void gemm_panels(const struct kvl_gemm_item *it, const float *panels, int32_t k0, int32_t depth,
                     float *tile, bool bf16)
{
    size_t row_places = (size_t)gemm_places(it->w->n_cols, bf16);
    int32_t places = gemm_places(depth, bf16);
    for (int32_t r = 0; r < it->n; r += MR) {
        const float *a = it->x + (size_t)r * row_places + (size_t)gemm_places(k0, bf16) * MR;
        int32_t n_rows = KVL_MIN(MR, it->n - r);
        for (int32_t c = 0; c < it->n_cols; c += NR) {
            const float *b = panels + (size_t)c * GEMM_DEPTH;
            float *y = it->y + (size_t)r * it->ld_y + (size_t)(it->col0 + c);
            int32_t n_cols = KVL_MIN(NR, it->n_cols - c);
            if (n_rows == MR && n_cols == NR)
                gemm_tile(y, it->ld_y, a, b, places, k0 == 0, bf16);
            else
                gemm_edge(y, it->ld_y, n_rows, n_cols, a, b, places, k0 == 0, tile, bf16);
        }
    }
}

VEC void gemm_columns(const struct kvl_gemm_item *it, bool bf16)
{
    float *panels = it->scratch;
    float *wide = panels + ((size_t)it->n_cols + NR - 1) / NR * NR * GEMM_DEPTH;
    float *tile = wide + (size_t)NR * GEMM_STEP;
    memset(tile, 0, (size_t)MR * NR * sizeof *tile);
    for (int32_t k0 = 0; k0 < it->w->n_cols; k0 += GEMM_DEPTH) {
        int32_t depth = KVL_MIN(GEMM_DEPTH, it->w->n_cols - k0);
        for (int32_t c = 0; c < it->n_cols; c += NR)
            gemm_pack_w(panels + (size_t)c * GEMM_DEPTH, it->w, it->col0 + c,
                        KVL_MIN(NR, it->n_cols - c), k0, depth, wide, bf16);
        gemm_panels(it, panels, k0, depth, tile, bf16);
    }
}

static void gemm_item_f32(const struct kvl_gemm_item *it)
{
    gemm_columns(it, false);
}
static void gemm_item_bf16(const struct kvl_gemm_item *it)
{
    gemm_columns(it, true);
}

#endif
