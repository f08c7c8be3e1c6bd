/* Heads are spread over threads; one reads the values of a tile of entries once for its tile of weights. */
#include "cpu.h"

#include <math.h>

enum { PSEUDO_TILE = 64, MAX_DIM = 1024 };

static void pseudo_head(const struct kvl_attn_pseudo_args *a, int32_t h)
{
    const struct kvl_kern *kern = kvl_kern();
    const float *logit = a->logit + (size_t)h * (size_t)a->n, *part[PSEUDO_TILE + 1];
    size_t dim = (size_t)a->head_dim;
    float *out = a->out + (size_t)h * dim, weight[PSEUDO_TILE + 1], max = -INFINITY;
    double sum = 0;
    for (size_t c = 0; c < dim; c++) out[c] = 0;
    for (int32_t i = 0; i < a->n; i++) max = KVL_MAX(max, logit[i]);
    for (int32_t i = 0; i < a->n && max > -INFINITY; i += PSEUDO_TILE) {
        int32_t n = KVL_MIN(PSEUDO_TILE, a->n - i);
        for (int32_t j = 0; j < n; j++) {
            weight[j] = logit[i + j];
            part[j] = a->value + (size_t)(i + j) * dim;
        }
        kern->exp_shift(weight, max, (size_t)n);
        for (int32_t j = 0; j < n; j++) sum += (double)weight[j];
        weight[n] = 1; /* what is there already */
        part[n] = out;
        float tile[MAX_DIM];
        kern->blend(tile, part, weight, n + 1, a->head_dim);
        for (size_t c = 0; c < dim; c++) out[c] = tile[c];
    }
    for (size_t c = 0; c < dim && sum > 0; c++) out[c] = (float)((double)out[c] / sum);
    a->lse[h] = sum > 0 ? max + (float)log(sum) : -INFINITY;
}

int kvl_cpu_attn_pseudo(const struct kvl_attn_pseudo_args *a)
{
    int threads = kvl_team((double)a->n * a->n_heads * a->head_dim * 0.1);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t h = 0; h < a->n_heads; h++) pseudo_head(a, h);
    return KVL_OK;
}
