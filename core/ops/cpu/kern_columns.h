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

/* Kahan's step: afterwards sum - carry is the total. */
VEC void columns_step(vf *sum, vf *carry, vf x)
{
    vf y = vf_sub(x, *carry), t = vf_add(*sum, y);
    *carry = vf_sub(vf_sub(t, *sum), y);
    *sum = t;
}

VEC vf columns_value(const float *x, enum kvl_columns kind, float lse)
{
    vf v = vf_load(x);
    return kind == KVL_COLUMNS_PROBS ? vf_exp(vf_sub(v, vf_set1(lse))) : v;
}

/* MR queries that all slots of a panel count: lse at a stride of `step`. */
VEC void columns_block(const struct columns_work *w, enum kvl_columns kind, const float *lse,
                       size_t step)
{
    UNROLL
    for (int32_t j = 0; j < NV; j++) {
        vf sum = vf_load(w->sum + j * VW), carry = vf_load(w->carry + j * VW);
        UNROLL
        for (int32_t r = 0; r < MR; r++)
            columns_step(&sum, &carry,
                         columns_value(w->s + r * NR + j * VW, kind,
                                       kind == KVL_COLUMNS_PROBS ? lse[(size_t)r * step] : 0));
        vf_store(w->sum + j * VW, sum);
        vf_store(w->carry + j * VW, carry);
    }
}

/* One query that slots a .. b - 1 of the panel count.  The others are not touched, so that their
 * carry does not depend on where a block of queries begins. */
static void columns_row(const struct columns_work *w, float *x, enum kvl_columns kind, float lse,
                        int32_t a, int32_t b)
{
    for (int32_t j = 0; j < NR; j += VW) vf_store(x + j, columns_value(x + j, kind, lse));
    for (int32_t t = a; t < b; t++) {
        float y = x[t] - w->carry[t], total = w->sum[t] + y;
        w->carry[t] = (total - w->sum[t]) - y;
        w->sum[t] = total;
    }
}

/* Logits of n_rows queries from chunk row i on are in w->s: adds them to the panel at slot0, n slots
 * of it live. */
VEC void columns_rows(const struct kvl_columns_item *it, const struct columns_work *w, int32_t head,
                      int32_t slot0, int32_t n, int32_t i, int32_t n_rows)
{
    const struct kvl_attn_columns_args *a = it->a;
    int32_t pos = a->lanes[it->kv_head].n_slots - a->n + i; /* of the first query */
    size_t step = (size_t)a->n_heads;
    const float *lse = a->lse ? a->lse + (size_t)i * step + (size_t)head : NULL;
    if (n == NR && n_rows == MR && pos - it->nearest >= slot0 + NR - 1 &&
        pos + MR - 1 - it->farthest <= slot0) {
        if (a->kind == KVL_COLUMNS_PROBS)
            columns_block(w, KVL_COLUMNS_PROBS, lse, step);
        else
            columns_block(w, KVL_COLUMNS_LOGITS, NULL, 0);
        return;
    }
    for (int32_t r = 0; r < n_rows; r++)
        columns_row(w, w->s + (size_t)r * NR, a->kind,
                    a->kind == KVL_COLUMNS_PROBS ? lse[(size_t)r * step] : 0,
                    KVL_MAX(0, pos + r - it->farthest - slot0),
                    KVL_MIN(n, pos + r - it->nearest - slot0 + 1));
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
