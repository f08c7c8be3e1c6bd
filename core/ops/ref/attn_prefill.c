#include "ref.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Row of query head h over slots first .. n - 1, everything rounded to bf16 before it is multiplied. */
static int prefill_bf16(const struct kvl_attn_prefill_args *a, int32_t r, int32_t first, int32_t n)
{
    size_t dim = (size_t)a->head_dim;
    const struct kvl_lane *lane = &a->lanes[r % a->n_heads / (a->n_heads / a->n_kv_heads)];
    double *p = kvl_alloc((size_t)n + 2 * dim, sizeof *p), max = -HUGE_VAL, sum = 0;
    if (!p) return KVL_ENOMEM;
    double *row = p + n, *acc = row + dim;
    for (int32_t t = first; t < n; t++) {
        kvl_ref_slot(lane, KVL_PART_K, t, row);
        p[t] = 0;
        for (size_t c = 0; c < dim; c++)
            p[t] += kvl_ref_bf16((double)a->q[(size_t)r * dim + c]) * kvl_ref_bf16(row[c]);
        p[t] = kvl_ref_cap(p[t] * (double)a->scale, a->cap);
        max = fmax(max, p[t]);
    }
    for (size_t c = 0; c < dim; c++) acc[c] = 0;
    for (int32_t t = first; t < n; t++) {
        double e = exp(p[t] - max);
        sum += e;
        kvl_ref_slot(lane, KVL_PART_V, t, row);
        for (size_t c = 0; c < dim; c++) acc[c] += kvl_ref_bf16(e) * kvl_ref_bf16(row[c]);
    }
    for (size_t c = 0; a->out && c < dim; c++) a->out[(size_t)r * dim + c] = (float)(acc[c] / sum);
    if (a->lse) a->lse[r] = (float)(max + log(sum));
    kvl_free(p);
    return KVL_OK;
}

int kvl_ref_attn_prefill(const struct kvl_attn_prefill_args *a)
{
    int32_t group = a->n_heads / a->n_kv_heads;
    for (int32_t r = 0; r < a->n * a->n_heads; r++) {
        int32_t i = r / a->n_heads, h = r % a->n_heads;
        const struct kvl_lane *lane = &a->lanes[h / group];
        struct kvl_ref_query query = { .q = a->q + (size_t)r * (size_t)a->head_dim,
                                       .lane = lane,
                                       .n = lane->n_slots - a->n + i + 1,
                                       .scale = a->scale,
                                       .cap = a->cap };
        int32_t first = a->window > 0 ? KVL_MAX(0, query.n - a->window) : 0;
        assert(lane->n_slots >= a->n);
        if (a->bf16) {
            KVL_TRY(prefill_bf16(a, r, first, query.n));
            continue;
        }
        uint8_t *mask = kvl_alloc((size_t)query.n, 1);
        double *p = mask ? kvl_alloc((size_t)query.n, sizeof *p) : NULL;
        if (!p) {
            kvl_free(mask);
            return KVL_ENOMEM;
        }
        memset(mask + first, 1, (size_t)(query.n - first));
        query.mask = mask;
        double lse = kvl_ref_weights(&query, p);
        if (a->out) kvl_ref_values(&query, p, a->out + (size_t)r * (size_t)a->head_dim);
        if (a->lse) a->lse[r] = (float)lse;
        kvl_free(p);
        kvl_free(mask);
    }
    return KVL_OK;
}
