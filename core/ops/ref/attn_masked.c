#include "ref.h"

int kvl_ref_attn_masked(const struct kvl_attn_masked_args *a)
{
    double *p = kvl_alloc((size_t)a->n_slots, sizeof *p);
    if (!p) return KVL_ENOMEM;
    for (int32_t h = 0; h < a->n_heads; h++) {
        struct kvl_ref_query query = { .q = a->q + (size_t)h * (size_t)a->head_dim,
                                       .lane = a->lane,
                                       .mask = a->mask,
                                       .log_weight = a->bias,
                                       .pos = a->pos,
                                       .key = a->keys,
                                       .q_pos = a->q_pos,
                                       .n = a->n_slots,
                                       .scale = a->scale,
                                       .cap = a->cap,
                                       .rope = a->rope };
        a->lse[h] = (float)kvl_ref_weights(&query, p);
        for (int32_t i = 0; a->probs && i < a->n_slots; i++)
            a->probs[(size_t)h * (size_t)a->n_slots + (size_t)i] = (float)p[i];
        kvl_ref_values(&query, p, a->out + (size_t)h * (size_t)a->head_dim);
    }
    kvl_free(p);
    return KVL_OK;
}
