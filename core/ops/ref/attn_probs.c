#include "ref.h"

int kvl_ref_attn_probs(const struct kvl_attn_probs_args *a)
{
    int32_t group = a->n_heads / a->n_kv_heads;
    double *p = kvl_alloc((size_t)a->n_slots, sizeof *p);
    if (!p) return KVL_ENOMEM;
    for (int32_t h = 0; h < a->n_heads; h++) {
        struct kvl_ref_query query = { .q = a->q + (size_t)h * (size_t)a->head_dim,
                                       .lane = &a->lanes[h / group],
                                       .n = a->n_slots,
                                       .scale = a->scale,
                                       .cap = a->cap };
        double lse = kvl_ref_weights(&query, p);
        if (a->lse) a->lse[h] = (float)lse;
        for (int32_t s = 0; s < a->n_slots; s++)
            a->probs[(size_t)h * (size_t)a->n_slots + (size_t)s] = (float)p[s];
    }
    kvl_free(p);
    return KVL_OK;
}
