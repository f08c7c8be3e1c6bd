#include "ref.h"

#include <math.h>

static void pseudo_head(const struct kvl_attn_pseudo_args *a, int32_t h)
{
    const float *logit = a->logit + (size_t)h * (size_t)a->n;
    double max = -HUGE_VAL, sum = 0;
    for (int32_t i = 0; i < a->n; i++) max = KVL_MAX(max, (double)logit[i]);
    for (int32_t i = 0; i < a->n && max > -HUGE_VAL; i++) sum += exp((double)logit[i] - max);
    for (int32_t c = 0; c < a->head_dim; c++) {
        double out = 0;
        for (int32_t i = 0; i < a->n && sum > 0; i++)
            out += exp((double)logit[i] - max) / sum * (double)a->value[i * a->head_dim + c];
        a->out[h * a->head_dim + c] = (float)out;
    }
    a->lse[h] = sum > 0 ? (float)(max + log(sum)) : -INFINITY;
}

int kvl_ref_attn_pseudo(const struct kvl_attn_pseudo_args *a)
{
    for (int32_t h = 0; h < a->n_heads; h++) pseudo_head(a, h);
    return KVL_OK;
}
