#include "ref.h"

#include <math.h>

enum { MAX_HEAD_DIM = 1024 };

static double columns_logit(const struct kvl_attn_columns_args *a, const struct kvl_lane *lane,
                            const float *q, int32_t slot)
{
    double k[MAX_HEAD_DIM], dot = 0;
    kvl_ref_slot(lane, KVL_PART_K, slot, k);
    for (int32_t c = 0; c < a->head_dim; c++)
        dot += a->bf16 ? kvl_ref_bf16((double)q[c]) * kvl_ref_bf16(k[c]) : (double)q[c] * k[c];
    return kvl_ref_cap(dot * (double)a->scale, a->cap);
}

static bool columns_counts(const struct kvl_attn_columns_args *a, int32_t distance)
{
    if (a->kind == KVL_COLUMNS_LOGITS)
        return distance >= 1 && (a->next == 0 || distance <= a->next);
    return distance >= 0 && (a->next == 0 || distance < a->next);
}

/* H2O (Zhang et al. 2023), the accumulated attention score of Algorithm 1; InfLLM (Xiao et al.
 * 2024), the representative score r_m before the division by the number of queries. */
static double columns_sum(const struct kvl_attn_columns_args *a, int32_t head, int32_t slot)
{
    const struct kvl_lane *lane = &a->lanes[head / (a->n_heads / a->n_kv_heads)];
    double sum = 0;
    for (int32_t i = 0; i < a->n; i++) {
        size_t row = (size_t)i * (size_t)a->n_heads + (size_t)head;
        if (!columns_counts(a, lane->n_slots - a->n + i - slot)) continue;
        double logit = columns_logit(a, lane, a->q + row * (size_t)a->head_dim, slot);
        sum += a->kind == KVL_COLUMNS_LOGITS ? logit : exp(logit - (double)a->lse[row]);
    }
    return sum;
}

int kvl_ref_attn_columns(const struct kvl_attn_columns_args *a)
{
    for (int32_t h = 0; h < a->n_heads; h++)
        for (int32_t s = 0; s < a->lanes[0].n_slots; s++) {
            size_t at = (size_t)h * a->stride + (size_t)s;
            double total = (double)a->sums[at] - (double)a->carry[at] + columns_sum(a, h, s);
            a->sums[at] = (float)total;
            a->carry[at] = (float)((double)a->sums[at] - total);
        }
    return KVL_OK;
}
