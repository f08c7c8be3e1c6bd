/* kern_kv.h - stored rows of keys and values as floats, and their turns (kv_row.h).
 *
 * kv_wide_<family>(y, row, n) widens a row of a family as it lies there.  A family without one takes the definition,
 * element by element. */
#ifndef KVL_KERN_KV_H
#define KVL_KERN_KV_H

#include "kern_math.h"
#include "kv_row.h"
#include "lane.h"

#define kv_wide_f32(y, row, n)  widen_plain(y, row, KVL_W_F32, n)
#define kv_wide_f16(y, row, n)  widen_plain(y, row, KVL_W_F16, n)
#define kv_wide_bf16(y, row, n) widen_plain(y, row, KVL_W_BF16, n)
#define kv_wide_q8_0(y, row, n) widen_int16(y, row, KVL_W_Q8_0, n)
#define kv_wide_q4_0(y, row, n) widen_int16(y, row, KVL_W_Q4_0, n)

/* Types of attention's own beside those of weights: rows with one scale, then bytes of e4m3 over 256, or codes of four or
 * three bits. */
#define KV_W_E4M3   ((enum kvl_wtype)1000)
#define KV_W_CODES4 ((enum kvl_wtype)1001)
#define KV_W_CODES3 ((enum kvl_wtype)1002)
/* The first, whose last vector is not whole: of heads that are no multiple of VW. */
#define KV_W_E4M3_ENDS ((enum kvl_wtype)1003)

VEC bool kv_is_scaled(enum kvl_wtype type)
{
    return type == KV_W_E4M3 || type == KV_W_CODES4 || type == KV_W_CODES3;
}

/* What codes stand for: kvl_turbo_value. */
static const float kv_codes4[16] = { -2.7325896f, -2.0690172f, -1.6180464f, -1.2562312f,
                                     -0.9423405f, -0.6567591f, -0.3880483f, -0.1283950f,
                                     0.1283950f,  0.3880483f,  0.6567591f,  0.9423405f,
                                     1.2562312f,  1.6180464f,  2.0690172f,  2.7325896f };
static const float kv_codes3[8] = { -2.1519457f, -1.3439093f, -0.7560053f, -0.2450942f,
                                    0.2450942f,  0.7560053f,  1.3439093f,  2.1519457f };

VEC float kv_load_scale(const uint8_t *row, enum kvl_wtype type)
{
    bool codes = type == KV_W_CODES4 || type == KV_W_CODES3;
    return codes ? block_scale(row) : kvl_bf16_at(row, 0) * 256;
}

/* Elements c .. c + VW - 1 of n; those behind the last are zero. */
VEC vf kv_load(const uint8_t *at, enum kvl_wtype type, int32_t c, int32_t n)
{
    uint8_t part[VW] = { 0 };
    if (type == KV_W_CODES4) return vf_codes4(kv_codes4, at, c);
    if (type == KV_W_CODES3) return vf_codes3(kv_codes3, at, c);
    if (type == KV_W_E4M3 || c + VW <= n) return vf_load_e4m3(at + c);
    memcpy(part, at + c, (size_t)(n - c));
    return vf_load_e4m3(part);
}

VEC void kv_wide_scaled(float *y, const uint8_t *row, enum kvl_wtype type, int32_t n)
{
    const vf d = vf_set1(kv_load_scale(row, type));
    for (int32_t c = 0; c < n; c += VW) {
        vf x = vf_mul(d, kv_load(row + 2, type, c, n));
        if (c + VW <= n)
            vf_store(y + c, x);
        else
            vf_store_n(y + c, x, n - c);
    }
}
#define kv_wide_fp8_e4m3(y, row, n)    kv_wide_scaled(y, row, KV_W_E4M3_ENDS, n)
#define kv_wide_turboquant4(y, row, n) kv_wide_scaled(y, row, KV_W_CODES4, n)
#define kv_wide_turboquant3(y, row, n) kv_wide_scaled(y, row, KV_W_CODES3, n)

/* Codes of four bits or two, for which min and scale are given. */
VEC vf kv_codes(const uint8_t *codes, int32_t bits, int32_t c)
{
    return bits == 4 ? vf_ints4(codes, c) : vf_ints2(codes, c);
}

/* Values: min and scale before the codes of each 32. */
VEC void kv_wide_kivi(float *y, const uint8_t *row, int32_t bits, int32_t n)
{
    for (int32_t u = 0; u < n; u += 32, row += 4 + 4 * bits) {
        const vf min = vf_set1(kvl_block_half(row)), scale = vf_set1(kvl_block_half(row + 2));
        for (int32_t c = 0; c < 32; c += VW)
            vf_store(y + u + c, vf_add(min, vf_mul(scale, kv_codes(row + 4, bits, c))));
    }
}
#define kv_wide_kivi4(y, row, n) kv_wide_kivi(y, row, 4, n)
#define kv_wide_kivi2(y, row, n) kv_wide_kivi(y, row, 2, n)

/* A key of a group: min and scale of each channel at its start. */
static void kv_wide_group(float *y, const struct kvl_kept *k, int32_t n)
{
    const int32_t bits = kvl_kivi_bits(k->type);
    const uint16_t *min = (const uint16_t *)(const void *)k->at, *scale = min + n;
    const uint8_t *codes = k->at + kvl_kivi_group_codes(n, bits, k->token);
    for (int32_t c = 0; c < n; c += VW) {
        vf by = vf_mul(vf_load_f16(scale + c), kv_codes(codes, bits, c));
        vf_store(y + c, vf_add(vf_load_f16(min + c), by));
    }
}

/* A row as it lies there, not turned back. */
static void kv_wide(float *y, const uint8_t *row, enum kvl_kv_type type, int32_t n)
{
    switch (type) {
#define KVL_KV_TYPE(name, number, text, family, ...)                                               \
    case KVL_KV_##name:                                                                            \
        kv_wide_##family(y, row, n);                                                               \
        break;
#include "kvl/kvtypes.def"
    case KVL_KV_PAIRS: break;
    }
}

/* The type whose kernels read rows in place: turned ones are what they are before the turn.  F32: there are none,
 * rows are widened first. */
#define kv_in_place_f32         KVL_W_F32
#define kv_in_place_f16         KVL_W_F16
#define kv_in_place_bf16        KVL_W_BF16
#define kv_in_place_q8_0        KVL_W_Q8_0
#define kv_in_place_q4_0        KVL_W_Q4_0
#define kv_in_place_fp8_e4m3    KV_W_E4M3
#define kv_in_place_turboquant4 KV_W_CODES4
#define kv_in_place_turboquant3 KV_W_CODES3
#define kv_in_place_kivi4       KVL_W_F32
#define kv_in_place_kivi2       KVL_W_F32

VEC enum kvl_wtype kv_in_place(enum kvl_kv_type type)
{
#define KVL_KV_TYPE(name, number, text, family, ...)                                               \
    if (type == KVL_KV_##name) return kv_in_place_##family;
#include "kvl/kvtypes.def"
    return KVL_W_F32;
}

VEC bool kv_is_widened(enum kvl_kv_type type)
{
    return type != KVL_KV_F32 && kv_in_place(type) == KVL_W_F32;
}

/* x [n]: signs as kvl_turn_sign tells, times scale. */
VEC void kv_turn_signs(float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) x[i] = kvl_turn_sign(i) ? -x[i] : x[i];
}

/* Steps of less than a vector: of VW vectors at a time, which are turned over and back. */
VEC void kv_turn_square(float *x)
{
    vf r[VW];
    UNROLL
    for (int32_t i = 0; i < VW; i++) r[i] = vf_load(x + i * VW);
    vf_transpose(r);
    UNROLL
    for (int32_t step = 1; step < VW; step *= 2) {
        UNROLL
        for (int32_t i = 0; i < VW / 2; i++) {
            int32_t a = i / step * 2 * step + i % step;
            vf sum = vf_add(r[a], r[a + step]), rest = vf_sub(r[a], r[a + step]);
            r[a] = sum;
            r[a + step] = rest;
        }
    }
    vf_transpose(r);
    UNROLL
    for (int32_t i = 0; i < VW; i++) vf_store(x + i * VW, r[i]);
}

VEC void kv_turn_short(float *x, int32_t n, int32_t step)
{
    for (int32_t i = 0, a, b; i < n / 2; i++) {
        kvl_turn_pair(i, step, &a, &b);
        float sum = x[a] + x[b], rest = x[a] - x[b];
        x[a] = sum;
        x[b] = rest;
    }
}

/* A row of n, in place; the same numbers as kvl_row_turn_by, bit for bit. */
static void kv_turn(float *x, int32_t n, enum kvl_kv_turn turn, bool back)
{
    if (turn == KVL_TURN_NONE) return;
    const int32_t piece = kvl_turn_piece(n), squares = n - n % (VW * VW);
    const vf scale = vf_set1(kvl_turn_scale(piece));
    if (turn == KVL_TURN_SIGNED && !back) kv_turn_signs(x, n);
    for (int32_t i = 0; i < squares; i += VW * VW) kv_turn_square(x + i);
    for (int32_t step = 1; step < VW; step *= 2) kv_turn_short(x + squares, n - squares, step);
    for (int32_t step = VW; step < piece; step *= 2)
        for (int32_t a = 0; a < n; a += 2 * step)
            for (int32_t i = a; i < a + step; i += VW) {
                vf p = vf_load(x + i), q = vf_load(x + i + step);
                vf_store(x + i, vf_add(p, q));
                vf_store(x + i + step, vf_sub(p, q));
            }
    for (int32_t i = 0; i < n; i += VW) vf_store(x + i, vf_mul(vf_load(x + i), scale));
    if (turn == KVL_TURN_SIGNED && back) kv_turn_signs(x, n);
}

/* What is kept of a slot, not turned back. */
VEC void kv_kept(float *y, const struct kvl_kept *kept, int32_t n)
{
    if (kept->token >= 0)
        kv_wide_group(y, kept, n);
    else
        kv_wide(y, kept->at, kept->type, n);
}

/* As the model made it, but for rounding. */
static void kv_row(float *y, struct kvl_kept kept, int32_t n)
{
    kv_kept(y, &kept, n);
    if (kept.token < 0) kv_turn(y, n, kvl_row_turn(kept.type), true);
}

#endif
