/* kern_columns.h - what every key received from a chunk of queries, once the log-sum-exp of the
 * queries is known.
 *
 * A panel of NR slots lies across the vectors and the queries pass one after the other, so that the
 * sums of the panel grow by one query at a time, in the order of their positions. */
#ifndef KVL_KERN_COLUMNS_H
#define KVL_KERN_COLUMNS_H

#include "ops/cpu/kern_prefill.h"

struct columns_work {
    float *k;           /* [PREFILL_SLOTS][head_pad]: widened rows */
    float *panel;       /* [head_dim][NR]: keys of a panel times the scale */
    float *tail;        /* [MR][head_dim]: the last queries of a chunk */
    float *s;           /* [MR][NR]: logits */
    float *sum, *carry; /* [NR] */
};

static size_t columns_scratch(int32_t head_dim)
{
    size_t pad = kvl_head_pad(head_dim);
    return round_up16(PREFILL_SLOTS * pad + (size_t)(NR + MR) * pad + (MR + 2) * NR);
}

static struct columns_work columns_layout(float *scratch, int32_t head_dim)
{
    size_t pad = kvl_head_pad(head_dim);
    struct columns_work w = { .k = scratch };
    w.panel = w.k + PREFILL_SLOTS * pad;
    w.tail = w.panel + NR * pad;
    w.s = w.tail + MR * pad;
    w.sum = w.s + MR * NR;
    w.carry = w.sum + NR;
    return w;
}

VEC void columns_probs(float *x, float lse)
{
    UNROLL
    for (int32_t j = 0; j < NV; j++)
        vf_store(x + j * VW, vf_exp(vf_sub(vf_load(x + j * VW), vf_set1(lse))));
}

/* Kahan's step: afterwards sum - carry is the total. */
VEC void columns_add(float *sum, float *carry, const float *x)
{
    UNROLL
    for (int32_t j = 0; j < NV; j++) {
        vf s = vf_load(sum + j * VW), y = vf_sub(vf_load(x + j * VW), vf_load(carry + j * VW));
        vf t = vf_add(s, y);
        vf_store(carry + j * VW, vf_sub(vf_sub(t, s), y));
        vf_store(sum + j * VW, t);
    }
}

/* The same for slots a .. b - 1 of the panel: others are not touched, so that their carry does not
 * depend on where a block of queries begins. */
static void columns_add_some(float *sum, float *carry, const float *x, int32_t a, int32_t b)
{
    for (int32_t t = a; t < b; t++) {
        float y = x[t] - carry[t], total = sum[t] + y;
        carry[t] = (total - sum[t]) - y;
        sum[t] = total;
    }
}

/* Adds up to MR queries from chunk row i on to the panel at slot0, n slots of it live. */
VEC void columns_rows(const struct kvl_columns_item *it, const struct columns_work *w, int32_t head,
                      int32_t slot0, int32_t n, int32_t i, int32_t n_rows)
{
    const struct kvl_attn_columns_args *a = it->a;
    int32_t past = a->lanes[it->kv_head].n_slots - a->n;
    for (int32_t r = 0; r < n_rows; r++) {
        float *x = w->s + (size_t)r * NR;
        int32_t pos = past + i + r;
        int32_t first = KVL_MAX(0, pos - it->farthest - slot0);
        int32_t last = KVL_MIN(n, pos - it->nearest - slot0 + 1);
        if (a->kind == KVL_COLUMNS_PROBS)
            columns_probs(x, a->lse[(size_t)(i + r) * (size_t)a->n_heads + (size_t)head]);
        if (first == 0 && last == NR)
            columns_add(w->sum, w->carry, x);
        else
            columns_add_some(w->sum, w->carry, x, first, last);
    }
}

/* All queries of the chunk that slots slot0 .. slot0 + n - 1 are seen by, one query head. */
static void columns_panel(const struct kvl_columns_item *it, const struct columns_work *w,
                          int32_t head, int32_t slot0, int32_t n)
{
    const struct kvl_attn_columns_args *a = it->a;
    int32_t past = a->lanes[it->kv_head].n_slots - a->n;
    size_t head_dim = (size_t)a->head_dim, row = (size_t)a->n_heads * head_dim;
    size_t at = (size_t)head * a->stride + (size_t)slot0;
    int32_t end = (int32_t)KVL_MIN((int64_t)a->n, (int64_t)slot0 + n - past + it->farthest);
    memset(w->sum, 0, 2 * NR * sizeof *w->sum);
    memcpy(w->sum, a->sums + at, (size_t)n * sizeof *w->sum);
    memcpy(w->carry, a->carry + at, (size_t)n * sizeof *w->carry);
    for (int32_t i = KVL_MAX(0, slot0 + it->nearest - past); i < end; i += MR) {
        const float *q = a->q + (size_t)i * row + (size_t)head * head_dim;
        int32_t n_rows = KVL_MIN(MR, end - i);
        for (int32_t r = 0; n_rows < MR && r < n_rows; r++)
            memcpy(w->tail + (size_t)r * head_dim, q + (size_t)r * row, head_dim * sizeof *q);
        mul_tile(w->s, NR, n_rows < MR ? w->tail : q, n_rows < MR ? head_dim : row, 1, w->panel, NR,
                 a->head_dim, true);
        columns_rows(it, w, head, slot0, n, i, n_rows);
    }
    memcpy(a->sums + at, w->sum, (size_t)n * sizeof *w->sum);
    memcpy(a->carry + at, w->carry, (size_t)n * sizeof *w->carry);
}

static void columns_item(const struct kvl_columns_item *it)
{
    const struct kvl_attn_columns_args *a = it->a;
    int32_t head_dim = a->head_dim, group = a->n_heads / a->n_kv_heads;
    struct columns_work w = columns_layout(it->scratch, head_dim);
    assert(it->n <= PREFILL_SLOTS);
    memset(w.tail, 0, (size_t)(MR * head_dim) * sizeof *w.tail);
    widen_slots(w.k, (size_t)head_dim, &a->lanes[it->kv_head], KVL_PART_K, it->slot0, it->n);
    for (int32_t t = 0; t < it->n; t += NR) {
        const float *row[NR] = { 0 };
        int32_t n = KVL_MIN(NR, it->n - t);
        for (int32_t r = 0; r < n; r++) row[r] = w.k + (size_t)(t + r) * (size_t)head_dim;
        pack_queries(w.panel, row, head_dim, a->scale);
        for (int32_t g = 0; g < group; g++)
            columns_panel(it, &w, it->kv_head * group + g, it->slot0 + t, n);
    }
}

#endif
