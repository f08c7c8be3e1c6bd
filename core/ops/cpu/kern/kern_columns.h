/* kern_columns.h - what every key received from a chunk of queries, once the log-sum-exp of the
 * queries is known.
 *
 * A panel of NR slots lies across the vectors and the queries pass one after the other, so that the
 * sums of the panel grow by one query at a time, in the order of their positions.  The queries come
 * packed as mul_tile reads them, and a block of them that fits L2 meets all panels of an item before
 * the next one comes.  Logits are to the base 2, so that a probability is one vf_exp2.  In bf16
 * (kern_bf16.h) rows of queries and keys have places for pairs of channels. */
#ifndef KVL_KERN_COLUMNS_H
#define KVL_KERN_COLUMNS_H

#include "kern_prefill.h"

enum { COLUMNS_PANELS = PREFILL_SLOTS / NR, COLUMNS_ROWS = 128 / MR * MR };

struct columns_work {
    float *k;           /* [PREFILL_SLOTS][head_pad]: widened rows */
    float *panel;       /* [COLUMNS_PANELS][places][NR]: keys */
    float *s;           /* [MR][NR]: products */
    float *sum, *carry; /* [COLUMNS_PANELS][NR], of the query head at work */
    int32_t places;     /* of a row */
    float factor;       /* what makes a product a logit */
};

VEC int32_t columns_places(const struct kvl_attn_columns_args *a)
{
    return a->bf16 ? bf16_places(a->head_dim) : a->head_dim;
}

static size_t columns_scratch(int32_t head_dim)
{
    size_t pad = kvl_head_pad(head_dim);
    return round_up16(PREFILL_SLOTS * pad * 2 + (size_t)NR * (MR + 2 * COLUMNS_PANELS));
}

/* Probabilities want logits to the base 2. */
VEC float columns_unit(enum kvl_columns kind)
{
    return kind == KVL_COLUMNS_PROBS ? 1.44269504f : 1;
}

static struct columns_work columns_layout(const struct kvl_columns_item *it)
{
    const struct kvl_attn_columns_args *a = it->a;
    size_t pad = kvl_head_pad(a->head_dim);
    struct columns_work w = { .k = it->scratch,
                              .places = columns_places(a),
                              .factor = a->scale * columns_unit(a->kind) };
    w.panel = w.k + PREFILL_SLOTS * pad;
    w.s = w.panel + PREFILL_SLOTS * pad;
    w.sum = w.s + MR * NR;
    w.carry = w.sum + COLUMNS_PANELS * NR;
    return w;
}

VEC size_t columns_rows(int32_t n)
{
    return ((size_t)n + MR - 1) / MR * MR;
}

static size_t columns_packed(int32_t n, int32_t head_dim)
{
    return round_up16(columns_rows(n) * (size_t)(head_dim + 1));
}

/* The queries of one head: dst [n / MR][places][MR], then their log-sum-exp [n]. */
static void columns_pack(float *dst, const struct kvl_attn_columns_args *a, int32_t head)
{
    int32_t places = columns_places(a);
    size_t step = (size_t)a->n_heads;
    float *lse = dst + columns_rows(a->n) * (size_t)places, rounded[MR][PREFILL_HEAD_DIM];
    for (int32_t i = 0; i < a->n; i += MR, dst += MR * places) {
        const float *row[VW] = { 0 };
        for (int32_t r = 0; r < KVL_MIN(MR, a->n - i); r++) {
            row[r] = a->q + ((size_t)(i + r) * step + (size_t)head) * (size_t)a->head_dim;
            if (a->bf16) bf16_round(rounded[r], row[r], a->head_dim);
            if (a->bf16) row[r] = rounded[r];
        }
        transpose_rows(dst, MR, MR, row, 0, places, 1);
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

/* minus: the negative log-sum-exp. */
VEC vf columns_value(const float *x, enum kvl_columns kind, vf factor, vf minus)
{
    vf v = vf_load(x);
    return kind == KVL_COLUMNS_PROBS ? vf_exp2(vf_fma(v, factor, minus)) : vf_mul(v, factor);
}

/* MR queries that all slots of a panel count. */
VEC void columns_whole(const struct columns_work *w, enum kvl_columns kind, const float *lse,
                       float *sums, float *carries)
{
    vf sum[NV], carry[NV], factor = vf_set1(w->factor);
    UNROLL
    for (int32_t j = 0; j < NV; j++) {
        sum[j] = vf_load(sums + j * VW);
        carry[j] = vf_load(carries + j * VW);
    }
    UNROLL
    for (int32_t r = 0; r < MR; r++) {
        vf minus = kind == KVL_COLUMNS_PROBS ? vf_set1(-lse[r]) : vf_zero();
        UNROLL
        for (int32_t j = 0; j < NV; j++)
            columns_step(&sum[j], &carry[j],
                         columns_value(w->s + r * NR + j * VW, kind, factor, minus));
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

static void columns_row(const struct columns_work *w, int32_t r, enum kvl_columns kind, float lse,
                        float *sums, float *carries, int32_t a, int32_t b)
{
    for (int32_t j = 0; j < NR; j += VW) {
        if (a >= j + VW || b <= j) continue;
        vf x = columns_value(w->s + r * NR + j, kind, vf_set1(w->factor), vf_set1(-lse));
        columns_part(x, sums + j, carries + j, a - j, b - j);
    }
}

/* A tile of MR queries from row i of the chunk on and panel p. */
static void columns_tile(const struct kvl_columns_item *it, const struct columns_work *w,
                         const float *q, int32_t p, int32_t i)
{
    const struct kvl_attn_columns_args *a = it->a;
    const float *lse = q + columns_rows(a->n) * (size_t)w->places + i;
    const float *panel = w->panel + (size_t)p * NR * (size_t)w->places;
    float *sum = w->sum + p * NR, *carry = w->carry + p * NR;
    int32_t slot0 = it->slot0 + p * NR, n = KVL_MIN(NR, it->n - p * NR);
    int32_t pos = a->lanes[it->kv_head].n_slots - a->n + i; /* of the first query */
    if (a->bf16)
        bf16_tile(w->s, NR, q + (size_t)i * (size_t)w->places, 1, MR, panel, NR, w->places, true);
    else
        mul_tile(w->s, NR, q + (size_t)i * (size_t)w->places, 1, MR, panel, NR, w->places, true);
    if (a->cap > 0) cap_products(w->s, MR * NR, a->scale, a->cap);
    if (i + MR <= a->n && pos - it->nearest >= slot0 + NR - 1 &&
        pos + MR - 1 - it->farthest <= slot0) {
        if (a->kind == KVL_COLUMNS_PROBS)
            columns_whole(w, KVL_COLUMNS_PROBS, lse, sum, carry);
        else
            columns_whole(w, KVL_COLUMNS_LOGITS, NULL, sum, carry);
        return;
    }
    for (int32_t r = 0; r < KVL_MIN(MR, a->n - i); r++)
        columns_row(w, r, a->kind, a->kind == KVL_COLUMNS_PROBS ? lse[r] : 0, sum, carry,
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
    struct columns_work w = columns_layout(it);
    assert(it->n <= COLUMNS_PANELS * NR);
    memset(w.sum, 0, 2 * COLUMNS_PANELS * NR * sizeof *w.sum); /* slots behind the last one */
    widen_slots(w.k, (size_t)head_dim, &a->lanes[it->kv_head], KVL_PART_K, it->slot0, it->n);
    for (int32_t p = 0; p * NR < it->n; p++) {
        const float *row[NR] = { 0 };
        for (int32_t r = 0; r < KVL_MIN(NR, it->n - p * NR); r++) {
            float *k = w.k + (size_t)(p * NR + r) * (size_t)head_dim;
            if (a->bf16) bf16_round(k, k, head_dim);
            row[r] = k;
        }
        pack_queries(w.panel + (size_t)p * NR * (size_t)w.places, row, w.places, 1);
    }
    for (int32_t g = 0; g < group; g++) columns_head(it, &w, it->kv_head * group + g);
}

#endif
