#include "ref.h"

#include <math.h>

static double merge_lse(const struct kvl_attn_merge_args *a, int32_t h)
{
    double max = -HUGE_VAL, sum = 0;
    for (int32_t p = 0; p < a->n_parts; p++) max = KVL_MAX(max, (double)a->part_lse[p][h]);
    if (max == -HUGE_VAL) return max;
    for (int32_t p = 0; p < a->n_parts; p++) sum += exp((double)a->part_lse[p][h] - max);
    return max + log(sum);
}

static void merge_heads(const struct kvl_attn_merge_args *a)
{
    for (int32_t h = 0; h < a->n_heads; h++) {
        double lse = merge_lse(a, h);
        for (int32_t c = 0; c < a->head_dim; c++) {
            size_t at = (size_t)h * (size_t)a->head_dim + (size_t)c;
            double sum = 0;
            for (int32_t p = 0; p < a->n_parts; p++) {
                if (a->part_lse[p][h] == -INFINITY) continue;
                sum += exp((double)a->part_lse[p][h] - lse) * (double)a->part[p][at];
            }
            a->out[at] = (float)sum;
        }
        if (a->lse) a->lse[h] = (float)lse;
    }
}

int kvl_ref_attn_merge(const struct kvl_attn_merge_args *a)
{
    for (; a; a = a->next) merge_heads(a);
    return KVL_OK;
}
