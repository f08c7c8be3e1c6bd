#include "cpu.h"

#include <assert.h>
#include <string.h>

enum { KEY4_MAX_DIM = 512, KEY4_LANES = 8 };

/* Codes of a row as floats: even channels first, then odd ones, so that both
 * halves are one loop. */
static void key4_codes(const uint8_t *row, int32_t half, float *code)
{
    for (int32_t c = 0; c < half; c++) {
        code[c] = (float)(row[c] & 15);
        code[half + c] = (float)(row[c] >> 4);
    }
}

/* Eight sums side by side: the same order whatever the vectors are. */
static float key4_dot(const float *q, const float *code, int32_t n)
{
    float sum[KEY4_LANES] = { 0 };
    int32_t c = 0;
    for (; c + KEY4_LANES <= n; c += KEY4_LANES)
        for (int32_t l = 0; l < KEY4_LANES; l++) sum[l] += q[c + l] * code[c + l];
    for (int32_t l = 0; c + l < n; l++) sum[l] += q[c + l] * code[c + l];
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

/* A query in the order of key4_codes; its sum weighs the smallest channel. */
static float key4_query(const float *q, int32_t dim, float *out)
{
    int32_t half = (dim + 1) / 2;
    float sum = 0;
    out[dim / 2 + half] = 0; /* the odd half of an odd number */
    for (int32_t c = 0; c < dim; c++) {
        out[c % 2 ? half + c / 2 : c / 2] = q[c];
        sum += q[c];
    }
    return sum;
}

static void key4_rows(const struct kvl_key4_logits_args *a, const float *q, const float *q_sum,
                      int32_t first, int32_t last)
{
    int32_t half = (a->head_dim + 1) / 2;
    size_t bytes = KVL_KEY4_BYTES(a->head_dim);
    float code[KEY4_MAX_DIM];
    for (int32_t i = first; i < last; i++) {
        const uint8_t *row = a->rows + (size_t)(a->row ? a->row[i] - a->row0 : i) * bytes;
        float lo, step;
        memcpy(&lo, row, sizeof lo);
        memcpy(&step, row + sizeof lo, sizeof step);
        key4_codes(row + 2 * sizeof lo, half, code);
        for (int32_t h = 0; h < a->n_heads; h++) {
            float dot = key4_dot(q + (size_t)h * KEY4_MAX_DIM, code, 2 * half);
            a->logit[(size_t)h * a->stride + (size_t)i] = (lo * q_sum[h] + step * dot) * a->scale;
        }
    }
}

int kvl_cpu_key4_logits(const struct kvl_key4_logits_args *a)
{
    enum { PIECE = 256 };
    int32_t n_pieces = (a->n + PIECE - 1) / PIECE;
    int threads = kvl_team((double)a->n * a->head_dim * (0.5 + 0.2 * a->n_heads));
    size_t heads = (size_t)a->n_heads;
    assert(a->head_dim < KEY4_MAX_DIM);
    float *q = kvl_cpu_scratch(heads * (KEY4_MAX_DIM + 1) * sizeof *q);
    if (!q) return KVL_ENOMEM;
    float *q_sum = q + heads * KEY4_MAX_DIM;
    for (size_t h = 0; h < heads; h++)
        q_sum[h] = key4_query(a->q + h * (size_t)a->head_dim, a->head_dim, q + h * KEY4_MAX_DIM);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t p = 0; p < n_pieces; p++)
        key4_rows(a, q, q_sum, p * PIECE, KVL_MIN((p + 1) * PIECE, a->n));
    return KVL_OK;
}
