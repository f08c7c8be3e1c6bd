/* kern_key4.h - logits of keys in 4 bits.
 *
 * Eight sums side by side, product and sum apart: the same order, and the same bits, whatever the vectors are.  Where the
 * channels allow it eight rows are taken together: codes stay in registers for some query heads, and the sums of eight
 * rows are added up at once. */
#ifndef KVL_KERN_KEY4_H
#define KVL_KERN_KEY4_H

#include "kern_math.h"

enum { KEY4_LANES = 8, KEY4_ROWS = 8, KEY4_HEADS = 4 };

typedef float key4_vec __attribute__((vector_size(32)));

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

static const uint8_t *key4_row(const struct kvl_key4_logits_args *a, size_t bytes, int32_t i)
{
    return a->rows + (size_t)(a->row ? a->row[i] - a->row0 : i) * bytes;
}

/* Rows of a list lie anywhere, and a row ends where the next one may begin: both of its lines. */
VEC void key4_ask(const struct kvl_key4_logits_args *a, size_t bytes, int32_t i)
{
    const uint8_t *row = key4_row(a, bytes, i);
    __builtin_prefetch(row);
    __builtin_prefetch(row + bytes - 1);
}

/* Row by row, for any number of channels. */
static void key4_each(const struct kvl_key4_logits_args *a, const float *q, const float *q_sum,
                      int32_t first, int32_t last)
{
    int32_t half = (a->head_dim + 1) / 2;
    size_t bytes = KVL_KEY4_BYTES(a->head_dim);
    float code[KVL_KEY4_MAX_DIM];
    for (int32_t i = first; i < last; i++) {
        const uint8_t *row = key4_row(a, bytes, i);
        float lo, step;
        memcpy(&lo, row, sizeof lo);
        memcpy(&step, row + sizeof lo, sizeof step);
        key4_codes(row + 2 * sizeof lo, half, code);
        for (int32_t h = 0; h < a->n_heads; h++) {
            float dot = key4_dot(q + (size_t)h * KVL_KEY4_MAX_DIM, code, 2 * half);
            a->logit[(size_t)h * a->stride + (size_t)i] = (lo * q_sum[h] + step * dot) * a->scale;
        }
    }
}

/* sum [n_q][KEY4_ROWS] of one row, its codes at `code`: even channels, then odd ones. */
VEC void key4_sums(key4_vec *sum, const uint8_t *code, int32_t half, const float *q, int32_t n_q)
{
    key4_vec s[KEY4_HEADS] = { { 0 } };
    UNROLL
    for (int32_t odd = 0; odd < 2; odd++)
        for (int32_t c = 0; c < half; c += KEY4_LANES) {
            float part[KEY4_LANES];
            key4_vec x;
            vec_8_nibbles(part, code + c, odd);
            memcpy(&x, part, sizeof x);
            UNROLL
            for (int32_t h = 0; h < n_q; h++) {
                key4_vec y;
                memcpy(&y, q + (size_t)h * KVL_KEY4_MAX_DIM + odd * half + c, sizeof y);
                s[h] += y * x;
            }
        }
    UNROLL
    for (int32_t h = 0; h < n_q; h++) sum[h * KEY4_ROWS] = s[h];
}

/* *dot: the sums of the lanes of eight vectors, added as key4_dot adds them. */
VEC void key4_add(key4_vec *dot, const key4_vec *sum)
{
    key4_vec x[4], y[2];
    UNROLL
    for (int32_t i = 0; i < 4; i++)
        x[i] = __builtin_shufflevector(sum[i], sum[i + 4], 0, 1, 2, 3, 8, 9, 10, 11) +
               __builtin_shufflevector(sum[i], sum[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    UNROLL
    for (int32_t i = 0; i < 2; i++)
        y[i] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 2, 8, 10, 4, 6, 12, 14) +
               __builtin_shufflevector(x[2 * i], x[2 * i + 1], 1, 3, 9, 11, 5, 7, 13, 15);
    *dot = __builtin_shufflevector(y[0], y[1], 0, 2, 8, 10, 4, 6, 12, 14) +
           __builtin_shufflevector(y[0], y[1], 1, 3, 9, 11, 5, 7, 13, 15);
}

/* n of KEY4_ROWS rows from i on, for query heads h0 .. h0 + n_q - 1. */
VEC void key4_tile(const struct kvl_key4_logits_args *a, const float *q, const float *q_sum,
                   int32_t i, int32_t n, int32_t h0, int32_t n_q)
{
    const size_t bytes = KVL_KEY4_BYTES(a->head_dim);
    key4_vec sum[KEY4_HEADS * KEY4_ROWS], lo, step, dot;
    for (int32_t j = 0; j < KEY4_ROWS; j++) {
        const uint8_t *row = key4_row(a, bytes, i + KVL_MIN(j, n - 1));
        float head[2];
        memcpy(head, row, sizeof head);
        lo[j] = head[0];
        step[j] = head[1];
        key4_sums(sum + j, row + sizeof head, a->head_dim / 2, q + (size_t)h0 * KVL_KEY4_MAX_DIM,
                  n_q);
    }
    for (int32_t h = 0; h < n_q; h++) {
        key4_add(&dot, sum + h * KEY4_ROWS);
        const key4_vec logit = (lo * q_sum[h0 + h] + step * dot) * a->scale;
        memcpy(a->logit + (size_t)(h0 + h) * a->stride + (size_t)i, &logit,
               (size_t)n * sizeof(float));
    }
}

static void key4_heads(const struct kvl_key4_logits_args *a, const float *q, const float *q_sum,
                       int32_t i, int32_t n, int32_t h0)
{
    switch (KVL_MIN((int32_t)KEY4_HEADS, a->n_heads - h0)) {
    case 4: key4_tile(a, q, q_sum, i, n, h0, 4); break;
    case 3: key4_tile(a, q, q_sum, i, n, h0, 3); break;
    case 2: key4_tile(a, q, q_sum, i, n, h0, 2); break;
    default: key4_tile(a, q, q_sum, i, n, h0, 1); break;
    }
}

static void key4_rows(const struct kvl_key4_logits_args *a, const float *q, const float *q_sum,
                      int32_t first, int32_t last)
{
    if (a->head_dim % (2 * KEY4_LANES) != 0) {
        key4_each(a, q, q_sum, first, last);
        return;
    }
    for (int32_t i = first; i < last; i += KEY4_ROWS) {
        for (int32_t j = i + KEY4_ROWS; j < KVL_MIN(i + 2 * KEY4_ROWS, last); j++)
            key4_ask(a, KVL_KEY4_BYTES(a->head_dim), j);
        for (int32_t h = 0; h < a->n_heads; h += KEY4_HEADS)
            key4_heads(a, q, q_sum, i, KVL_MIN((int32_t)KEY4_ROWS, last - i), h);
    }
}

#endif
