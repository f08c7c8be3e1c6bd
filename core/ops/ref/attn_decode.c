#include "ref.h"

#include <assert.h>

static void decode_slots(const struct kvl_attn_job *job, int32_t *slot)
{
    int32_t n = 0, paged = job->n_pages * job->page_tok;
    for (; job->page && n < job->n_slots; n++)
        slot[n] = n < paged ? job->page[n / job->page_tok] * job->page_tok + n % job->page_tok
                            : job->tail + n - paged;
    for (int32_t r = 0; job->runs && r < job->n_runs; r++)
        for (int32_t i = 0; i < job->runs[r].n; i++) slot[n++] = job->runs[r].slot + i;
    if (!job->runs && !job->page)
        for (; n < job->n_slots; n++) slot[n] = n;
    assert(n == job->n_slots);
}

static void decode_head(const struct kvl_attn_job *job, const struct kvl_ref_query *query,
                        int32_t h, double *p)
{
    int32_t head_dim = job->lane->layout->head_dim;
    job->lse[h] = (float)kvl_ref_weights(query, p);
    kvl_ref_values(query, p, job->out + (size_t)h * (size_t)head_dim);
    for (int32_t i = 0; job->probs && i < job->n_slots; i++)
        job->probs[(size_t)h * (size_t)job->n_slots + (size_t)i] = (float)p[i];
}

static int decode_job(const struct kvl_attn_decode_args *a, const struct kvl_attn_job *job)
{
    int status = KVL_ENOMEM;
    int32_t *slot = kvl_alloc((size_t)job->n_slots, sizeof *slot);
    double *p = kvl_alloc((size_t)job->n_slots, sizeof *p);
    if (!slot || !p) goto done;
    decode_slots(job, slot);
    for (int32_t h = 0; h < job->n_heads; h++) {
        struct kvl_ref_query query = { .q = job->q + (size_t)h * (size_t)a->head_dim,
                                       .lane = job->lane,
                                       .slot = slot,
                                       .log_weight = job->log_weight,
                                       .pos = job->pos,
                                       .keys = job->keys,
                                       .q_pos = job->q_pos,
                                       .n = job->n_slots,
                                       .scale = a->scale,
                                       .cap = a->cap,
                                       .rope = a->rope };
        decode_head(job, &query, h, p);
    }
    status = KVL_OK;
done:
    kvl_free(p);
    kvl_free(slot);
    return status;
}

int kvl_ref_attn_decode(const struct kvl_attn_decode_args *a)
{
    for (int32_t j = 0; j < a->n_jobs; j++) KVL_TRY(decode_job(a, &a->jobs[j]));
    return KVL_OK;
}
