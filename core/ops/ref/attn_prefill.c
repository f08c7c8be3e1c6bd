#include "ops/ref/ref.h"

#include <assert.h>

int kvl_ref_attn_prefill(const struct kvl_attn_prefill_args *a)
{
    int32_t group = a->n_heads / a->n_kv_heads;
    for (int32_t r = 0; r < a->n * a->n_heads; r++) {
        int32_t i = r / a->n_heads, h = r % a->n_heads;
        const struct kvl_lane *lane = &a->lanes[h / group];
        struct kvl_ref_query query = { .q = a->q + (size_t)r * (size_t)a->head_dim,
                                       .lane = lane,
                                       .n = lane->n_slots - a->n + i + 1,
                                       .scale = a->scale };
        assert(lane->n_slots >= a->n);
        double *p = kvl_alloc((size_t)query.n, sizeof *p);
        if (!p) return KVL_ENOMEM;
        double lse = kvl_ref_weights(&query, p);
        kvl_ref_values(&query, p, a->out + (size_t)r * (size_t)a->head_dim);
        if (a->lse) a->lse[r] = (float)lse;
        kvl_free(p);
    }
    return KVL_OK;
}
