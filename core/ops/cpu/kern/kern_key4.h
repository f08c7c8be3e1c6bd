/* kern_key4.h - logits of keys in 4 bits.
 *
 * Eight sums side by side, product and sum apart: the same order, and the same bits, whatever the vectors are. */
#ifndef KVL_KERN_KEY4_H
#define KVL_KERN_KEY4_H

#include "kern_math.h"

enum { KEY4_LANES = 8, KEY4_AHEAD = 8 };

/* Codes of a row as floats: even channels first, then odd ones, so that both
 * halves are one loop. */
static void key4_codes(const uint8_t *row, int32_t half, float *code)
{
    for (int32_t c = 0; c < half; c++) {
        code[c] = (float)(row[c] & 15);
        code[half + c] = (float)(row[c] >> 4);
    }
}

static float key4_dot(const float *q, const float *code, int32_t n)
{
    float sum[KEY4_LANES] = { 0 };
    int32_t c = 0;
    for (; c + KEY4_LANES <= n; c += KEY4_LANES)
        for (int32_t l = 0; l < KEY4_LANES; l++) sum[l] += q[c + l] * code[c + l];
    for (int32_t l = 0; c + l < n; l++) sum[l] += q[c + l] * code[c + l];
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

/* Rows of a list lie anywhere, and a row ends where the next one may begin: both of its lines. */
VEC void key4_ask(const struct kvl_key4_logits_args *a, size_t bytes, int32_t i)
{
    const uint8_t *row = a->rows + (size_t)(a->row ? a->row[i] - a->row0 : i) * bytes;
    __builtin_prefetch(row);
    __builtin_prefetch(row + bytes - 1);
}

static void key4_rows(const struct kvl_key4_logits_args *a, const float *q, const float *q_sum,
                      int32_t first, int32_t last)
{
    int32_t half = (a->head_dim + 1) / 2;
    size_t bytes = KVL_KEY4_BYTES(a->head_dim);
    float code[KVL_KEY4_MAX_DIM];
    for (int32_t i = first; i < last; i++) {
        const uint8_t *row = a->rows + (size_t)(a->row ? a->row[i] - a->row0 : i) * bytes;
        float lo, step;
        if (i + KEY4_AHEAD < last) key4_ask(a, bytes, i + KEY4_AHEAD);
        memcpy(&lo, row, sizeof lo);
        memcpy(&step, row + sizeof lo, sizeof step);
        key4_codes(row + 2 * sizeof lo, half, code);
        for (int32_t h = 0; h < a->n_heads; h++) {
            float dot = key4_dot(q + (size_t)h * KVL_KEY4_MAX_DIM, code, 2 * half);
            a->logit[(size_t)h * a->stride + (size_t)i] = (lo * q_sum[h] + step * dot) * a->scale;
        }
    }
}

#endif
