/* kern_window.h - probability mass by slot: a second pass once the log-sum-exp of every query is
 * known, so that no matrix of scores is ever stored. */
#ifndef KVL_KERN_WINDOW_H
#define KVL_KERN_WINDOW_H

#include "kern_prefill.h"

/* Logits to the base 2: a weight is one vf_exp2. */
static const float window_unit = 1.44269504f;

static size_t window_scratch(int32_t head_dim)
{
    return round_up16(PREFILL_SLOTS * kvl_head_pad(head_dim) + PREFILL_SLOTS * NR);
}

/* Queries w0 .. of one head, in panels of NR: dst [panels][head_dim or fewer places][NR]. */
static void window_pack(float *dst, const struct kvl_attn_window_args *a, int32_t head, int32_t w0,
                        int32_t n_w)
{
    for (int32_t p = 0; p < n_w; p += NR, dst += (size_t)NR * (size_t)a->head_dim) {
        const float *row[NR] = { 0 };
        int32_t n = KVL_MIN(NR, n_w - p);
        for (int32_t r = 0; r < n; r++) {
            size_t at = (size_t)(w0 + p + r) * (size_t)a->n_heads + (size_t)head;
            row[r] = a->q + at * (size_t)a->head_dim;
        }
        if (a->bf16)
            pack_queries_bf16(dst, row, a->head_dim);
        else
            pack_queries(dst, row, a->head_dim, 1);
    }
}

/* mass [n] += sum over the rows of a panel of 2^(factor s + minus). */
static void window_add(float *mass, const float *s, float factor, const float *minus, int32_t n)
{
    const vf f = vf_set1(factor);
    for (int32_t t = 0; t < n; t++) {
        vf sum = vf_zero();
        for (int32_t j = 0; j < NV; j++) {
            vf at = vf_load(s + (size_t)t * NR + j * VW);
            sum = vf_add(sum, vf_exp2(vf_fma(at, f, vf_load(minus + j * VW))));
        }
        mass[t] += vf_hsum(sum);
    }
}

static void window_panel(const struct kvl_window_item *it, const float *k, float *s, const float *q,
                         int32_t head, int32_t w)
{
    const struct kvl_attn_window_args *a = it->a;
    float minus[NR]; /* -inf: no such query */
    for (int32_t r = 0; r < NR; r++)
        minus[r] = w + r < it->w0 + it->n_w
                       ? -it->lse[(size_t)(w + r) * (size_t)a->n_heads + (size_t)head] * window_unit
                       : -INFINITY;
    if (a->bf16)
        panel_scores_bf16(s, k, q, it->n, bf16_places(a->head_dim));
    else
        panel_scores(s, k, q, it->n, a->head_dim);
    if (a->cap > 0) cap_products(s, (size_t)it->n * NR, a->scale, a->cap);
    panel_mask(s, it->n, a->n_slots - a->n_window - it->slot0, w, 1);
    window_add(a->mass + (size_t)head * (size_t)a->n_slots + it->slot0, s, a->scale * window_unit,
               minus, it->n);
}

static void window_item(const struct kvl_window_item *it)
{
    int32_t head_dim = it->a->head_dim, group = it->a->n_heads / it->a->n_kv_heads;
    float *k = it->scratch, *s = k + PREFILL_SLOTS * kvl_head_pad(head_dim);
    widen_slots(k, (size_t)head_dim, &it->a->lanes[it->kv_head], KVL_PART_K, it->slot0, it->n);
    for (int32_t t = 0; it->a->bf16 && t < it->n; t++)
        bf16_round(k + t * bf16_places(head_dim), k + t * head_dim, head_dim);
    for (int32_t g = 0; g < group; g++)
        for (int32_t w = 0; w < it->n_w; w += NR) {
            const float *q = it->q + (size_t)g * it->q_stride + (size_t)w * (size_t)head_dim;
            window_panel(it, k, s, q, it->kv_head * group + g, it->w0 + w);
        }
}

#endif
