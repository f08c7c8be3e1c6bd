#include "cpu.h"

#include <assert.h>
#include <string.h>

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

int kvl_cpu_key4_logits(const struct kvl_key4_logits_args *a)
{
    enum { PIECE = 256 };
    const struct kvl_kern *kern = kvl_kern();
    int32_t n_pieces = (a->n + PIECE - 1) / PIECE;
    int threads = kvl_team((double)a->n * a->head_dim * (0.5 + 0.2 * a->n_heads));
    size_t heads = (size_t)a->n_heads;
    assert(a->head_dim < KVL_KEY4_MAX_DIM);
    float *q = kvl_cpu_scratch(heads * (KVL_KEY4_MAX_DIM + 1) * sizeof *q);
    if (!q) return KVL_ENOMEM;
    float *q_sum = q + heads * KVL_KEY4_MAX_DIM;
    for (size_t h = 0; h < heads; h++)
        q_sum[h] =
            key4_query(a->q + h * (size_t)a->head_dim, a->head_dim, q + h * KVL_KEY4_MAX_DIM);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t p = 0; p < n_pieces; p++)
        kern->key4_rows(a, q, q_sum, p * PIECE, KVL_MIN((p + 1) * PIECE, a->n));
    return KVL_OK;
}
