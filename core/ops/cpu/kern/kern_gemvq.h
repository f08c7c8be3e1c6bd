/* kern_gemvq.h - decode projection with weights in blocks of 32.
 *
 * A row of x is rounded to 16-bit integers (8-bit ones where q8 is asked for), with one scale per block of 32 columns:
 * the products of a block are then an exact sum of integers, which takes half the instructions of widening every
 * weight to float.
 *
 * Eight blocks are taken at a time, a unit.  Weights stay bytes: block p fills the lower half of a vector, block p + 4
 * the upper one, 16 bits of x are two bytes, and the sums of the eight blocks end in the eight places of one vector, so
 * that scales, smallest values and what stands for zero cost one step a unit.  (Bytes of Q8_0 and of tables are widened to
 * 16 bits where x has 16.)  Rows go by in pairs: where at most four blocks are left of each, they share their last unit.
 * The blocks that a unit lacks are read from the row behind and count nothing, since x is zero there. */
#ifndef KVL_KERN_GEMVQ_H
#define KVL_KERN_GEMVQ_H

#include "gemv_x.h"
#include "kern_bytes.h"

enum { GEMVQ_X = 4, GEMVQ_AHEAD = 2048, GEMVQ_UNIT_BYTES = 8 * 34 };

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

/* ---- x ------------------------------------------------------------------------------------- */

/* One block of x, or none (NULL), in place `slot` of unit u. */
VEC void gemv_pack_slot(const struct kvl_gemv_x *to, const float *x, int32_t u, int32_t slot,
                        bool q8)
{
    static const float nothing[32] = { 0 };
    const int32_t most = q8 ? KVL_GEMV_MOST8 : KVL_GEMV_MOST;
    const size_t pair = (size_t)u * 256 + (size_t)(slot % 4 * 64 + slot / 4 * 16);
    float times, scale = kvl_gemv_scale(gemv_pack_top(x ? x : nothing), most, &times);
    vq q = vq_round(x ? x : nothing, times);
    int16_t one[32];
    int32_t sum = 0;
    vq_store(one, q);
    for (int32_t i = 0; i < 32; i++) sum += one[i];
    if (to->q) vq_store(to->q + u * 256 + slot * 32, q);
    if (to->hi && q8) vq_narrow(to->hi + pair, to->hi + pair + 32, q);
    if (to->hi && !q8) vq_split(to->hi + pair, to->lo + pair, 32, q);
    to->scale[u * 8 + slot] = scale;
    to->sum[u * 8 + slot] = (float)sum;
    to->start[u * 8 + slot] = -8 * sum;
}

static void gemv_pack(const struct kvl_gemv_x *to, const float *x, int32_t n_blocks, bool q8)
{
    for (int32_t b = 0; b < kvl_gemv_units(n_blocks) * 8; b++) {
        int32_t u = b / 8, slot = b % 8, i = u * 8 + slot;
        if (kvl_gemv_shared(n_blocks) && u == n_blocks / 8) i = u * 8 + slot % 4;
        gemv_pack_slot(to, i < n_blocks ? x + (size_t)i * 32 : NULL, u, slot, q8);
    }
}

/* ---- W ------------------------------------------------------------------------------------- */

/* Whether weights stay bytes. */
VEC bool gemvq_bytes(enum kvl_wtype type, bool q8)
{
    return q8 || !(bytes_signed(type) || type == KVL_W_Q8_0);
}

static bool gemv_bytes(enum kvl_wtype type, bool q8)
{
    return gemvq_bytes(type, q8);
}

/* Scales of a unit whose blocks 0 .. 3 begin at lo, 4 .. 7 at hi; smallest values. */
VEC void gemvq_scales(vq_sum *d, vq_sum *least, const uint8_t *lo, const uint8_t *hi,
                      enum kvl_wtype type)
{
    const size_t bytes = kvl_wtype_bytes(type, 32);
    float power[8];
    if (type == KVL_W_MXFP4) {
        for (size_t i = 0; i < 8; i++)
            power[i] = kvl_bf16_to_f32(block_power((i < 4 ? lo : hi)[i % 4 * bytes]));
        *d = vq_floats(power);
    } else if (block_has_least(type)) {
        vq_halves2(d, least, lo, hi, bytes);
    } else {
        *d = vq_halves(lo, hi, bytes);
    }
}

/* Sums of blocks p (lower half) and p + 4 (upper half) with x, in four places each; w: their first and last elements. */
VEC vq_int gemvq_blocks2(const vz *w, enum kvl_wtype type, const struct kvl_gemv_x *x, size_t at,
                         bool q8)
{
    const int8_t *hi = x->hi + at;
    vq_int s = vq_none();
    if (q8 && (bytes_signed(type) || type == KVL_W_Q8_0))
        return vz_wide(vz_wide(s, vz_mul_signed(w[0], hi), 1), vz_mul_signed(w[1], hi + 32), 1);
    s = vz_wide(s, vz_add(vz_mul(w[0], hi), vz_mul(w[1], hi + 32)), q8 ? 1 : 256);
    if (q8) return s;
    const uint8_t *lo = x->lo + at;
    return vz_wide(s, vz_add(vz_mul_low(w[0], lo), vz_mul_low(w[1], lo + 32)), 1);
}

/* Sums of eight blocks; of nibbles with bytes they fit 16 bits until the end. */
VEC vq_int gemvq_bytes_dot(const vz *w, enum kvl_wtype type, const struct kvl_gemv_x *x, size_t at,
                           bool q8)
{
    if (q8 && (type == KVL_W_Q4_0 || type == KVL_W_Q4_1)) {
        vz_sum s[4];
        UNROLL
        for (int32_t p = 0; p < 4; p++) {
            const int8_t *q = x->hi + at + p * 64;
            s[p] = vz_add(vz_mul(w[2 * p], q), vz_mul(w[2 * p + 1], q + 32));
        }
        return vz_wide(vq_none(), vz_fold(vz_fold(s[0], s[1]), vz_fold(s[2], s[3])), 1);
    }
    vq_int s[4];
    UNROLL
    for (int32_t p = 0; p < 4; p++)
        s[p] = gemvq_blocks2(w + 2 * p, type, x, at + (size_t)p * 64, q8);
    return vq_fold(vq_fold(s[0], s[1]), vq_fold(s[2], s[3]));
}

/* The same where weights are widened. */
VEC vq_int gemvq_words_dot(const vq *w, const int16_t *x)
{
    vq_int s[4];
    UNROLL
    for (int32_t p = 0; p < 4; p++)
        s[p] = vq_cross(vq_dot(vq_none(), w[p], vq_load(x + p * 32)),
                        vq_dot(vq_none(), w[p + 4], vq_load(x + (p + 4) * 32)));
    return vq_fold(vq_fold(s[0], s[1]), vq_fold(s[2], s[3]));
}

VEC vq gemvq_ints(const uint8_t *block, enum kvl_wtype type)
{
    return type == KVL_W_Q8_0 ? vq_bytes(block + 2) : vk_as_q(block_small(block, type));
}

/* Unit u of n_x rows of x with the blocks at lo and hi. */
ONE void gemvq_unit(const uint8_t *lo, const uint8_t *hi, enum kvl_wtype type, bool q8,
                    const struct kvl_gemv_x *x, int32_t n_x, size_t u, vq_sum *sum)
{
    const size_t bytes = kvl_wtype_bytes(type, 32);
    vq_sum d, least;
    vz w[8];
    vq wide[8];
    gemvq_scales(&d, &least, lo, hi, type);
    UNROLL
    for (size_t j = 0; j < 8; j++) {
        if (gemvq_bytes(type, q8))
            w[j] = bytes_pair(lo + j / 2 * bytes, hi + j / 2 * bytes, type, (int32_t)j % 2);
        else
            wide[j] = gemvq_ints((j < 4 ? lo : hi) + j % 4 * bytes, type);
    }
    UNROLL
    for (int32_t i = 0; i < n_x; i++) {
        vq_int dot = gemvq_bytes(type, q8) ? gemvq_bytes_dot(w, type, &x[i], u * 256, q8)
                                           : gemvq_words_dot(wide, x[i].q + u * 256);
        vq_int start = vq_start(x[i].start + u * 8);
        if (type == KVL_W_Q4_0) dot = vq_plus(dot, start);
        if (type == KVL_W_Q5_0) dot = vq_plus(dot, vq_twice(start));
        vq_sum scale = vq_floats(x[i].scale + u * 8);
        sum[i] = vq_times(sum[i], vq_mul(d, scale), dot);
        if (block_has_least(type))
            sum[i] = vq_fma(vq_mul(least, scale), vq_floats(x[i].sum + u * 8), sum[i]);
    }
}

/* Two rows of W, which may be the same: the bytes where they begin, and what is left when whole units are done. */
struct gemvq_two {
    const uint8_t *at[2], *rest[2];
};

/* The last row of all has none behind it: what is left of it goes to `copy`. */
VEC struct gemvq_two gemvq_two(const struct kvl_weight *w, int32_t r, int32_t s, size_t whole,
                               uint8_t *copy)
{
    const uint8_t *data = w->data;
    struct gemvq_two two = { .at = { data + (size_t)r * w->row_bytes,
                                     data + (size_t)s * w->row_bytes } };
    for (int32_t i = 0; i < 2; i++) two.rest[i] = two.at[i] + whole;
    if (s < w->n_rows - 1 || whole == w->row_bytes) return two;
    memset(copy, 0, GEMVQ_UNIT_BYTES);
    memcpy(copy, two.rest[1], w->row_bytes - whole);
    two.rest[1] = copy;
    if (r == s) two.rest[0] = copy;
    return two;
}

/* sum [2][n_x]: the whole units of both rows.  What comes is asked for in the order of memory, as one stream. */
VEC void gemvq_whole(const struct gemvq_two *two, enum kvl_wtype type, bool q8,
                     const struct kvl_gemv_x *x, int32_t n_x, size_t n_units,
                     vq_sum sum[2][GEMVQ_X])
{
    const size_t unit = kvl_wtype_bytes(type, 256);
    const uint8_t *a = two->at[0], *b = two->at[1], *ahead = a + GEMVQ_AHEAD;
    UNROLL
    for (int32_t i = 0; i < n_x; i++) sum[0][i] = sum[1][i] = vq_zero();
    for (size_t u = 0; u < n_units; u++, a += unit, b += unit, ahead += 2 * unit) {
        for (size_t o = 0; o < 2 * unit; o += 64) __builtin_prefetch(ahead + o, 0, 2);
        gemvq_unit(a, a + unit / 2, type, q8, x, n_x, u, sum[0]);
        gemvq_unit(b, b + unit / 2, type, q8, x, n_x, u, sum[1]);
    }
}

/* Rows r and s of W for n_x rows of x. */
VEC void gemvq_rows2(const struct kvl_gemv_item *it, enum kvl_wtype type, bool q8, int32_t r,
                     int32_t s, int32_t i0, int32_t n_x)
{
    const struct kvl_weight *w = it->a->w;
    const struct kvl_gemv_x *x = it->x + i0;
    const int32_t n_blocks = w->n_cols / 32, left = n_blocks % 8;
    const size_t unit = kvl_wtype_bytes(type, 256), n_units = (size_t)(n_blocks / 8);
    uint8_t copy[GEMVQ_UNIT_BYTES];
    const struct gemvq_two two = gemvq_two(w, r, s, n_units * unit, copy);
    float *y = it->a->y + (size_t)i0 * (size_t)w->n_rows;
    vq_sum sum[2][GEMVQ_X], both[GEMVQ_X];
    gemvq_whole(&two, type, q8, x, n_x, n_units, sum);
    UNROLL
    for (int32_t i = 0; i < n_x; i++) both[i] = vq_zero();
    /* Four blocks of each row; all that are left of one, then of the other. */
    for (int32_t i = 0; i < (left > 4 ? 2 : left > 0); i++) {
        const uint8_t *hi = left > 4 ? two.rest[i] + unit / 2 : two.rest[1];
        gemvq_unit(two.rest[i], hi, type, q8, x, n_x, n_units, left > 4 ? sum[i] : both);
    }
    UNROLL
    for (int32_t i = 0; i < n_x; i++, y += w->n_rows) {
        y[r] = vq_hsum(sum[0][i]) + vq_hsum_half(both[i], 0);
        if (s != r) y[s] = vq_hsum(sum[1][i]) + vq_hsum_half(both[i], 1);
    }
}

VEC void gemvq_batch(const struct kvl_gemv_item *it, enum kvl_wtype type, bool q8, int32_t i0,
                     int32_t n_x)
{
    for (int32_t r = it->row0; r < it->row1; r += 2)
        gemvq_rows2(it, type, q8, r, KVL_MIN(r + 1, it->row1 - 1), i0, n_x);
}

VEC void gemvq_all(const struct kvl_gemv_item *it, enum kvl_wtype type, bool q8)
{
    int32_t i = 0, n = it->a->n;
    for (; VQ_BATCH == 4 && i + 4 <= n; i += 4) gemvq_batch(it, type, q8, i, 4);
    for (; i < n; i++) gemvq_batch(it, type, q8, i, 1);
}

VEC void gemvq_typed(const struct kvl_gemv_item *it, enum kvl_wtype type)
{
    if (it->a->q8)
        gemvq_all(it, type, true);
    else
        gemvq_all(it, type, false);
}

#endif
