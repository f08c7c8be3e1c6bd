/* kern_kv.h - stored rows of keys and values as floats, and their turns (kv_row.h).
 *
 * kv_wide_<family>(y, row, n) widens a row of a family as it lies there.  A family without one takes the definition,
 * element by element. */
#ifndef KVL_KERN_KV_H
#define KVL_KERN_KV_H

#include "kern_math.h"
#include "kv_row.h"

#define kv_wide_f32(y, row, n)  widen_plain(y, row, KVL_W_F32, n)
#define kv_wide_f16(y, row, n)  widen_plain(y, row, KVL_W_F16, n)
#define kv_wide_bf16(y, row, n) widen_plain(y, row, KVL_W_BF16, n)
#define kv_wide_q8_0(y, row, n) widen_int16(y, row, KVL_W_Q8_0, n)
#define kv_wide_q4_0(y, row, n) widen_int16(y, row, KVL_W_Q4_0, n)

VEC void kv_wide_fp8_e4m3(float *y, const uint8_t *row, int32_t n)
{
    const float d = kvl_bf16_at(row, 0);
    for (int32_t i = 0; i < n; i++) y[i] = d * kvl_fp8_float(row[2 + i]);
}

/* The values of a row, by their codes. */
VEC void kv_turbo_values(float *value, const uint8_t *row, int32_t bits)
{
    const float d = block_scale(row);
    for (int32_t i = 0; i < 1 << bits; i++) value[i] = d * kvl_turbo_value(bits, i);
}

VEC void kv_wide_turboquant4(float *y, const uint8_t *row, int32_t n)
{
    float value[16];
    kv_turbo_values(value, row, 4);
    for (int32_t i = 0; i < n; i += 2) {
        int32_t two = row[2 + i / 2];
        y[i] = value[two & 15];
        y[i + 1] = value[two >> 4];
    }
}

VEC void kv_wide_turboquant3(float *y, const uint8_t *row, int32_t n)
{
    float value[8];
    kv_turbo_values(value, row, 3);
    for (int32_t i = 0; i < n; i += 8) {
        const uint8_t *at = row + 2 + i / 8 * 3;
        uint32_t eight = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16;
        UNROLL
        for (int32_t j = 0; j < 8; j++) y[i + j] = value[eight >> 3 * j & 7];
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
#define kv_in_place_fp8_e4m3    KVL_W_F32
#define kv_in_place_turboquant4 KVL_W_F32
#define kv_in_place_turboquant3 KVL_W_F32

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

/* A row as the model made it, but for rounding. */
static void kv_row(float *y, const uint8_t *row, enum kvl_kv_type type, int32_t n)
{
    kv_wide(y, row, type, n);
    kv_turn(y, n, kvl_row_turn(type), true);
}

#endif
