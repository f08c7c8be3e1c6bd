#include "ref.h"

#include <assert.h>
#include <math.h>

enum { PEAKS_DIM = 1024 };

static bool peaks_sees(const struct kvl_attn_peaks_args *a, int32_t slot, int32_t last)
{
    return slot < a->sink || (slot >= a->first && slot < a->last) ||
           (slot >= a->own && slot <= last);
}

/* One query of one head: logit [n_slots of the lane] is scratch. */
static void peaks_query(const struct kvl_attn_peaks_args *a, int32_t i, int32_t h, double *logit)
{
    const struct kvl_lane *lane = &a->lanes[h / (a->n_heads / a->n_kv_heads)];
    int32_t end = lane->n_slots - a->n + i;
    size_t row = (size_t)i * (size_t)a->n_heads + (size_t)h;
    float *peak = a->peak + (size_t)h * (size_t)(a->last - a->first);
    double top = -HUGE_VAL, sum = 0;
    for (int32_t s = 0; s <= end; s++) {
        if (!peaks_sees(a, s, end)) continue;
        double k[PEAKS_DIM];
        kvl_ref_slot(lane, KVL_PART_K, s, k);
        logit[s] = 0;
        for (int32_t c = 0; c < a->head_dim; c++)
            logit[s] += (double)a->q[row * (size_t)a->head_dim + (size_t)c] * k[c];
        logit[s] = kvl_ref_cap(logit[s] * (double)a->scale, a->cap);
        top = fmax(top, logit[s]);
    }
    for (int32_t s = 0; s <= end; s++)
        if (peaks_sees(a, s, end)) sum += exp(logit[s] - top);
    if (a->rest) sum += exp((double)a->rest[h] - top);
    for (int32_t s = a->first; s < a->last; s++) {
        double x = logit[s] - top - log(sum) - (a->bias ? (double)a->bias[i] : 0);
        peak[s - a->first] = (float)fmax((double)peak[s - a->first], x);
    }
}

/* KVzip (Kim et al. 2025), Eq. 2 and 3. */
int kvl_ref_attn_peaks(const struct kvl_attn_peaks_args *a)
{
    double *logit = kvl_alloc((size_t)a->lanes[0].n_slots, sizeof *logit);
    if (!logit) return KVL_ENOMEM;
    assert(a->head_dim <= PEAKS_DIM);
    for (int32_t i = 0; i < a->n; i++)
        for (int32_t h = 0; h < a->n_heads; h++) peaks_query(a, i, h, logit);
    kvl_free(logit);
    return KVL_OK;
}
