#include "cpu.h"

/* A decode over everything that asks for weights but no values. */
int kvl_cpu_attn_probs(const struct kvl_attn_probs_args *a)
{
    enum { MAX_JOBS = 32 };
    int32_t group = a->n_heads / a->n_kv_heads;
    for (int32_t h0 = 0; h0 < a->n_kv_heads; h0 += MAX_JOBS) {
        struct kvl_attn_job jobs[MAX_JOBS];
        struct kvl_attn_decode_args d = {
            .jobs = jobs, .head_dim = a->head_dim, .scale = a->scale, .cap = a->cap
        };
        d.n_jobs = KVL_MIN(MAX_JOBS, a->n_kv_heads - h0);
        for (int32_t j = 0; j < d.n_jobs; j++) {
            size_t head = (size_t)(h0 + j) * (size_t)group;
            jobs[j] = (struct kvl_attn_job){ .q = a->q + head * (size_t)a->head_dim,
                                             .lane = &a->lanes[h0 + j],
                                             .n_slots = a->n_slots,
                                             .n_heads = group,
                                             .lse = a->lse ? a->lse + head : NULL,
                                             .probs = a->probs + head * (size_t)a->n_slots };
        }
        KVL_TRY(kvl_cpu_attend(&d, false));
    }
    return KVL_OK;
}
