/* A decode over everything that asks for weights but no values: keys once, logits written, read and written
 * again as weights.  Not timed on a GPU yet. */
#include "attn.cuh"

enum { PROBS_JOBS = 64 };

int kvl_cuda_attn_probs(const struct kvl_attn_probs_args *a)
{
    int32_t group = a->n_heads / a->n_kv_heads;
    for (int32_t h0 = 0; h0 < a->n_kv_heads; h0 += PROBS_JOBS) {
        struct kvl_attn_job jobs[PROBS_JOBS];
        struct kvl_attn_decode_args d = {};
        d.jobs = jobs;
        d.n_jobs = KVL_MIN(PROBS_JOBS, a->n_kv_heads - h0);
        d.head_dim = a->head_dim;
        d.scale = a->scale;
        d.cap = a->cap;
        for (int32_t j = 0; j < d.n_jobs; j++) {
            size_t head = (size_t)(h0 + j) * (size_t)group;
            jobs[j] = {};
            jobs[j].q = a->q + head * (size_t)a->head_dim;
            jobs[j].lane = &a->lanes[h0 + j];
            jobs[j].n_slots = a->n_slots;
            jobs[j].n_heads = group;
            jobs[j].lse = a->lse ? a->lse + head : NULL;
            jobs[j].probs = a->probs + head * (size_t)a->n_slots;
        }
        KVL_TRY(kvl_cuda_attend(&d, false));
    }
    return KVL_OK;
}
