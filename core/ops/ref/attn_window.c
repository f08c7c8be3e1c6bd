#include "ref.h"

#include <math.h>

static void window_head(const struct kvl_attn_window_args *a, int32_t h, double *p, double *mass)
{
    const struct kvl_lane *lane = &a->lanes[h / (a->n_heads / a->n_kv_heads)];
    for (int32_t s = 0; s < a->n_slots; s++) mass[s] = 0;
    for (int32_t w = 0; w < a->n_window; w++) {
        size_t row = (size_t)w * (size_t)a->n_heads + (size_t)h;
        struct kvl_ref_query query = { .q = a->q + row * (size_t)a->head_dim,
                                       .lane = lane,
                                       .n = a->n_slots - a->n_window + w + 1,
                                       .scale = a->scale,
                                       .cap = a->cap,
                                       .bf16 = a->bf16 };
        double lse = kvl_ref_weights(&query, p);
        double factor = a->lse ? exp(lse - (double)a->lse[w * a->n_heads + h]) : 1;
        for (int32_t s = 0; s < query.n; s++) mass[s] += p[s] * factor;
    }
}

/* SnapKV (Li et al. 2024), Eq. 5. */
int kvl_ref_attn_window(const struct kvl_attn_window_args *a)
{
    double *p = kvl_alloc(2 * (size_t)a->n_slots, sizeof *p);
    if (!p) return KVL_ENOMEM;
    double *mass = p + a->n_slots;
    for (int32_t h = 0; h < a->n_heads; h++) {
        window_head(a, h, p, mass);
        for (int32_t s = 0; s < a->n_slots; s++)
            a->mass[(size_t)h * (size_t)a->n_slots + (size_t)s] = (float)mass[s];
    }
    kvl_free(p);
    return KVL_OK;
}
