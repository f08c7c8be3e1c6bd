#include "ref.h"

#include <math.h>

/* SparQ (Ribar et al. 2024), Algorithm 1, line 4 before the softmax. */
static double channel_score(const struct kvl_channel_scores_args *a, int32_t h, int32_t t)
{
    int32_t kv = h / (a->n_heads / a->n_kv_heads);
    double sum = 0;
    for (int32_t i = 0; i < a->n_channels; i++) {
        int32_t c = a->channel[(size_t)kv * (size_t)a->n_channels + (size_t)i];
        size_t row = (size_t)(t / a->page_tok) * (size_t)a->head_dim + (size_t)c;
        size_t at =
            (size_t)kv * a->head_stride + row * (size_t)a->page_tok + (size_t)(t % a->page_tok);
        sum += (double)a->q[(size_t)h * (size_t)a->head_dim + (size_t)c] *
               (double)kvl_ref_elem(a->keys, a->type, at);
    }
    return sum * (double)a->factor[h];
}

int kvl_ref_channel_scores(const struct kvl_channel_scores_args *a)
{
    for (int32_t h = 0; h < a->n_heads; h++) {
        float *score = a->score + (size_t)h * a->score_stride;
        double sum = 0;
        a->max[h] = -INFINITY;
        for (int32_t t = 0; t < a->n_tok; t++) {
            score[t] = (float)channel_score(a, h, t);
            a->max[h] = KVL_MAX(a->max[h], score[t]);
        }
        for (int32_t t = 0; t < a->n_tok; t++) sum += exp((double)score[t] - (double)a->max[h]);
        a->sum[h] = (float)sum;
    }
    return KVL_OK;
}
