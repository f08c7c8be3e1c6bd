#include "ref.h"

#include <assert.h>
#include <math.h>

float kvl_ref_elem(const void *p, enum kvl_kv_type type, size_t i)
{
    assert(type <= KVL_KV_BF16);
    if (type == KVL_KV_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return type == KVL_KV_F16 ? kvl_f16_to_f32(h) : kvl_bf16_to_f32(h);
}

void kvl_ref_set_elem(void *p, enum kvl_kv_type type, size_t i, float x)
{
    if (type == KVL_KV_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = type == KVL_KV_F16 ? kvl_f32_to_f16(x) : kvl_f32_to_bf16(x);
}

static double half_at(const uint8_t *p)
{
    return (double)kvl_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* Blocks of 32: scale, bytes; scale, nibbles of which the low ones are the first 16. */
static double q8_0_at(const uint8_t *row, int32_t i)
{
    const uint8_t *block = row + i / 32 * 34;
    return half_at(block) * (int8_t)block[2 + i % 32];
}

static double q4_0_at(const uint8_t *row, int32_t i)
{
    const uint8_t *block = row + i / 32 * 18;
    int32_t two = block[2 + i % 16];
    return half_at(block) * ((i % 32 < 16 ? two % 16 : two / 16) - 8);
}

/* Sign, four bits of exponent, three of mantissa. */
static double fp8_at(const uint8_t *row, int32_t i)
{
    int32_t q = row[2 + i], e = q / 8 % 16, m = q % 8;
    double size = e == 0 ? m / 8.0 * 0x1p-6 : ldexp(1 + m / 8.0, e - 7);
    double scale = (double)kvl_bf16_to_f32((uint16_t)(row[0] | row[1] << 8));
    return scale * (q < 128 ? size : -size);
}

/* Codes of `bits` bits, a stream whose first bit is the lowest of the first byte. */
static double turbo_at(const uint8_t *row, int32_t i, int32_t bits)
{
    static const double of3[] = { 0.2450942, 0.7560053, 1.3439093, 2.1519457 };
    static const double of4[] = { 0.1283950, 0.3880483, 0.6567591, 0.9423405,
                                  1.2562312, 1.6180464, 2.0690172, 2.7325896 };
    const double *level = bits == 3 ? of3 : of4;
    int32_t code = 0, half = 1 << (bits - 1);
    for (int32_t b = 0; b < bits; b++) {
        int32_t at = i * bits + b;
        code += (row[2 + at / 8] >> at % 8 & 1) << b;
    }
    double value = code < half ? -level[half - 1 - code] : level[code - half];
    return half_at(row) * (double)(float)value;
}

/* 32 numbers: least, step, then codes. */
static double kivi_at(const uint8_t *row, int32_t i, int32_t bits)
{
    const uint8_t *unit = row + i / 32 * (4 + 32 * bits / 8);
    int32_t bit = i % 32 * bits, code = unit[4 + bit / 8] / (1 << bit % 8) % (1 << bits);
    return half_at(unit) + half_at(unit + 2) * code;
}

static double kept_at(const uint8_t *row, enum kvl_kv_type type, int32_t i)
{
    switch (type) {
    case KVL_KV_Q8_0:
    case KVL_KV_Q8_0_TURNED: return q8_0_at(row, i);
    case KVL_KV_Q4_0:
    case KVL_KV_Q4_0_TURNED: return q4_0_at(row, i);
    case KVL_KV_FP8_E4M3: return fp8_at(row, i);
    case KVL_KV_TURBOQUANT4: return turbo_at(row, i, 4);
    case KVL_KV_TURBOQUANT3: return turbo_at(row, i, 3);
    case KVL_KV_KIVI4: return kivi_at(row, i, 4);
    case KVL_KV_KIVI2: return kivi_at(row, i, 2);
    default: return (double)kvl_ref_elem(row, type, (size_t)i);
    }
}

static bool sign_at(int32_t i)
{
    uint32_t h = (uint32_t)i + 1;
    h = (h ^ h >> 16) * 2146121005u;
    h = (h ^ h >> 15) * 2221713035u;
    return h / 65536 % 2;
}

/* Of a row of n, in pieces of the largest power of two that divides n: Hadamard's matrix of 2 m rows is that of m as
 * [H H; H -H]. */
static void turn_back(double *x, int32_t n, bool with_signs)
{
    int32_t piece = 1;
    while (n % (2 * piece) == 0) piece *= 2;
    for (int32_t m = 1; m < piece; m *= 2)
        for (int32_t i = 0; i < n; i++) {
            if (i / m % 2) continue;
            double a = x[i], b = x[i + m];
            x[i] = a + b;
            x[i + m] = a - b;
        }
    for (int32_t i = 0; i < n; i++) {
        x[i] /= sqrt((double)piece);
        if (with_signs && sign_at(i)) x[i] = -x[i];
    }
}

void kvl_ref_kept(const void *row, enum kvl_kv_type type, int32_t n, double *to)
{
    for (int32_t i = 0; i < n; i++) to[i] = kept_at(row, type, i);
    switch (type) {
    case KVL_KV_Q8_0_TURNED:
    case KVL_KV_Q4_0_TURNED: turn_back(to, n, false); break;
    case KVL_KV_TURBOQUANT4:
    case KVL_KV_TURBOQUANT3: turn_back(to, n, true); break;
    default: break;
    }
}

/* n least values, n steps, then for every token n codes. */
void kvl_ref_kept_key(const void *group, enum kvl_kv_type type, int32_t n, int32_t token,
                      double *to)
{
    const uint8_t *p = group;
    int32_t bits = type == KVL_KV_KIVI4 ? 4 : 2;
    for (int32_t i = 0; i < n; i++) {
        int32_t bit = (token * n + i) * bits;
        int32_t code = p[4 * n + bit / 8] / (1 << bit % 8) % (1 << bits);
        to[i] = half_at(p + 2 * i) + half_at(p + 2 * n + 2 * i) * code;
    }
}
