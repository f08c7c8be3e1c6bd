/* kern_columns.h - what every key received from a chunk of queries, once the log-sum-exp of the
 * queries is known.
 *
 * A panel of NR slots lies across the vectors and the queries pass one after the other, so that the
 * sums of the panel grow by one query at a time, in the order of their positions.  The queries come
 * packed as mul_tile reads them, and a block of them that fits L2 meets all panels of an item before
 * the next one comes.  Logits are in powers of two, so that a probability is one vf_exp2. */
#ifndef KVL_KERN_COLUMNS_H
#define KVL_KERN_COLUMNS_H

#include "ops/cpu/kern_prefill.h"

enum { COLUMNS_PANELS = PREFILL_SLOTS / NR, COLUMNS_ROWS = 128 / MR * MR };

struct columns_work {
    float *k;           /* [PREFILL_SLOTS][head_pad]: widened rows */
    float *panel;       /* [COLUMNS_PANELS][head_dim][NR]: keys times the factor */
    float *s;           /* [MR][NR]: logits */
    float *sum, *carry; /* [COLUMNS_PANELS][NR], of the query head at work */
};

static size_t columns_scratch(int32_t head_dim)
{
    size_t pad = kvl_head_pad(head_dim);
    return round_up16(PREFILL_SLOTS * pad * 2 + (size_t)NR * (MR + 2 * COLUMNS_PANELS));
}

static struct columns_work columns_layout(float *scratch, int32_t head_dim)
{
    size_t pad = kvl_head_pad(head_dim);
    struct columns_work w = { .k = scratch };
    w.panel = w.k + PREFILL_SLOTS * pad;
    w.s = w.panel + PREFILL_SLOTS * pad;
    w.sum = w.s + MR * NR;
    w.carry = w.sum + COLUMNS_PANELS * NR;
    return w;
}

/* Probabilities want logits to the base 2. */
VEC float columns_unit(enum kvl_columns kind)
{
    return kind == KVL_COLUMNS_PROBS ? 1.44269504f : 1;
}

VEC size_t columns_rows(int32_t n)
{
    return ((size_t)n + MR - 1) / MR * MR;
}

static size_t columns_packed(int32_t n, int32_t head_dim)
{
    return round_up16(columns_rows(n) * (size_t)(head_dim + 1));
}

/* The queries of one head: dst [n / MR][head_dim][MR], then their log-sum-exp [n]. */
static void columns_pack(float *dst, const struct kvl_attn_columns_args *a, int32_t head)
{
    size_t head_dim = (size_t)a->head_dim, step = (size_t)a->n_heads;
    float *lse = dst + columns_rows(a->n) * head_dim;
    for (int32_t i = 0; i < a->n; i += MR, dst += MR * head_dim) {
        const float *row[VW] = { 0 };
        for (int32_t r = 0; r < KVL_MIN(MR, a->n - i); r++)
            row[r] = a->q + ((size_t)(i + r) * step + (size_t)head) * head_dim;
        transpose_rows(dst, MR, MR, row, 0, a->head_dim, 1);
    }
    for (int32_t i = 0; a->kind == KVL_COLUMNS_PROBS && i < a->n; i++)
        lse[i] = a->lse[(size_t)i * step + (size_t)head] * columns_unit(a->kind);
}

/* Kahan's step: afterwards sum - carry is the total. */
VEC void columns_step(vf *sum, vf *carry, vf x)
{
    vf y = vf_sub(x, *carry), t = vf_add(*sum, y);
    *carry = vf_sub(vf_sub(t, *sum), y);
    *sum = t;
}

VEC vf columns_value(const float *x, enum kvl_columns kind, vf lse)
{
    vf v = vf_load(x);
    return kind == KVL_COLUMNS_PROBS ? vf_exp2(vf_sub(v, lse)) : v;
}

/* MR queries that all slots of a panel count. */
VEC void columns_whole(const float *s, enum kvl_columns kind, const float *lse, float *sums,
                       float *carries)
{
    vf sum[NV], carry[NV];
    UNROLL
    for (int32_t j = 0; j < NV; j++) {
        sum[j] = vf_load(sums + j * VW);
        carry[j] = vf_load(carries + j * VW);
    }
    UNROLL
    for (int32_t r = 0; r < MR; r++) {
        vf l = kind == KVL_COLUMNS_PROBS ? vf_set1(lse[r]) : vf_zero();
        UNROLL
        for (int32_t j = 0; j < NV; j++)
            columns_step(&sum[j], &carry[j], columns_value(s + r * NR + j * VW, kind, l));
    }
    UNROLL
    for (int32_t j = 0; j < NV; j++) {
        vf_store(sums + j * VW, sum[j]);
        vf_store(carries + j * VW, carry[j]);
    }
}

/* One query that slots a .. b - 1 of a vector count.  The others are not touched, so that their
 * carry does not depend on where a tile of queries begins. */
static void columns_part(vf x, float *sums, float *carries, int32_t a, int32_t b)
{
    vf sum = vf_load(sums), carry = vf_load(carries);
    float s[VW], c[VW];
    columns_step(&sum, &carry, x);
    vf_store(s, sum);
    vf_store(c, carry);
    for (int32_t t = KVL_MAX(0, a); t < KVL_MIN(VW, b); t++) {
        sums[t] = s[t];
        carries[t] = c[t];
    }
}

static void columns_row(const float *s, enum kvl_columns kind, float lse, float *sums,
                        float *carries, int32_t a, int32_t b)
{
    for (int32_t j = 0; j < NR; j += VW)
        if (a < j + VW && b > j)
            columns_part(columns_value(s + j, kind, vf_set1(lse)), sums + j, carries + j, a - j,
                         b - j);
}

/* A tile of MR queries from row i of the chunk on and panel p. */
static void columns_tile(const struct kvl_columns_item *it, const struct columns_work *w,
                         const float *q, int32_t p, int32_t i)
{
    const struct kvl_attn_columns_args *a = it->a;
    const float *lse = q + columns_rows(a->n) * (size_t)a->head_dim + i;
    float *sum = w->sum + p * NR, *carry = w->carry + p * NR;
    int32_t slot0 = it->slot0 + p * NR, n = KVL_MIN(NR, it->n - p * NR);
    int32_t pos = a->lanes[it->kv_head].n_slots - a->n + i; /* of the first query */
    mul_tile(w->s, NR, q + (size_t)i * (size_t)a->head_dim, 1, MR,
             w->panel + (size_t)p * NR * (size_t)a->head_dim, NR, a->head_dim, true);
    if (i + MR <= a->n && pos - it->nearest >= slot0 + NR - 1 &&
        pos + MR - 1 - it->farthest <= slot0) {
        if (a->kind == KVL_COLUMNS_PROBS)
            columns_whole(w->s, KVL_COLUMNS_PROBS, lse, sum, carry);
        else
            columns_whole(w->s, KVL_COLUMNS_LOGITS, NULL, sum, carry);
        return;
    }
    for (int32_t r = 0; r < KVL_MIN(MR, a->n - i); r++)
        columns_row(w->s + r * NR, a->kind, a->kind == KVL_COLUMNS_PROBS ? lse[r] : 0, sum, carry,
                    KVL_MAX(0, pos + r - it->farthest - slot0),
                    KVL_MIN(n, pos + r - it->nearest - slot0 + 1));
}

/* Rows row0 .. row1 - 1 of the chunk, as far as the slots of panel p are seen by them. */
static void columns_panel(const struct kvl_columns_item *it, const struct columns_work *w,
                          const float *q, int32_t p, int32_t row0, int32_t row1)
{
    int32_t past = it->a->lanes[it->kv_head].n_slots - it->a->n, slot0 = it->slot0 + p * NR;
    int32_t n = KVL_MIN(NR, it->n - p * NR), first = KVL_MAX(0, slot0 + it->nearest - past);
    int32_t end = (int32_t)KVL_MIN((int64_t)row1, (int64_t)slot0 + n - past + it->farthest);
    for (int32_t i = KVL_MAX(row0, first / MR * MR); i < end; i += MR) columns_tile(it, w, q, p, i);
}

/* All queries of one head. */
static void columns_head(const struct kvl_columns_item *it, const struct columns_work *w,
                         int32_t head)
{
    const struct kvl_attn_columns_args *a = it->a;
    const float *q = it->q + (size_t)head * it->q_stride;
    size_t at = (size_t)head * a->stride + (size_t)it->slot0, bytes = (size_t)it->n * sizeof *q;
    memcpy(w->sum, a->sums + at, bytes);
    memcpy(w->carry, a->carry + at, bytes);
    for (int32_t row = 0; row < a->n; row += COLUMNS_ROWS)
        for (int32_t p = 0; p * NR < it->n; p++)
            columns_panel(it, w, q, p, row, KVL_MIN(a->n, row + COLUMNS_ROWS));
    memcpy(a->sums + at, w->sum, bytes);
    memcpy(a->carry + at, w->carry, bytes);
}

static void columns_item(const struct kvl_columns_item *it)
{
    const struct kvl_attn_columns_args *a = it->a;
    int32_t head_dim = a->head_dim, group = a->n_heads / a->n_kv_heads;
    struct columns_work w = columns_layout(it->scratch, head_dim);
    assert(it->n <= COLUMNS_PANELS * NR);
    memset(w.sum, 0, 2 * COLUMNS_PANELS * NR * sizeof *w.sum); /* slots behind the last one */
    widen_slots(w.k, (size_t)head_dim, &a->lanes[it->kv_head], KVL_PART_K, it->slot0, it->n);
    for (int32_t p = 0; p * NR < it->n; p++) {
        const float *row[NR] = { 0 };
        for (int32_t r = 0; r < KVL_MIN(NR, it->n - p * NR); r++)
            row[r] = w.k + (size_t)(p * NR + r) * (size_t)head_dim;
        pack_queries(w.panel + (size_t)p * NR * (size_t)head_dim, row, head_dim,
                     a->scale * columns_unit(a->kind));
    }
    for (int32_t g = 0; g < group; g++) columns_head(it, &w, it->kv_head * group + g);
}

#endif
