/* kern_prefill.h - causal attention of a tile of query rows, in one pass over the keys.
 *
 * Everything is computed transposed: a panel of NR query rows lies across the vectors, so that
 * maxima, sums and scales of the softmax are plain vector operations, and widened K and V rows serve
 * as they are.  The scores of one panel and one tile of keys stay in L1.  Logits are in units of
 * ln 2.
 *
 * Rows that were turned when they were stored stay so: queries are turned like keys, what is summed of values is
 * turned back.
 *
 * In bf16 (kern_bf16.h) rows of K and Q have pairs of channels, rows of V and weights have pairs of
 * slots.  Rows are turned back first: what is rounded are channels of the model. */
#ifndef KVL_KERN_PREFILL_H
#define KVL_KERN_PREFILL_H

#include "kern_bf16.h"
#include "kern_kv.h"

enum { PREFILL_SLOTS = 128, PREFILL_STEP = 64, PREFILL_HEAD_DIM = 1024 };

struct prefill_work {
    float *k, *v;        /* [PREFILL_SLOTS][k_pad], [PREFILL_SLOTS or pairs][v_pad]: widened rows */
    float *q, *acc;      /* [n_panels][k_pad][NR], [n_panels][v_pad][NR] */
    float *s;            /* [PREFILL_SLOTS][NR]: scores, then weights */
    float *max, *sum;    /* [n_panels][NR] */
    size_t k_pad, v_pad; /* places of a row of K; channels of a row of V */
    int32_t n_panels;
};

/* Whole register tiles; in bf16 also whole vectors of pairs. */
VEC size_t prefill_pad(int32_t head_dim, bool bf16)
{
    size_t unit = bf16 ? KVL_MAX((size_t)MR, 2 * (size_t)VW) : (size_t)MR;
    return ((size_t)head_dim + unit - 1) / unit * unit;
}

VEC size_t round_up16(size_t n)
{
    return (n + 15) / 16 * 16;
}

static size_t prefill_scratch(int32_t n_rows, int32_t head_dim)
{
    size_t panels = ((size_t)n_rows + NR - 1) / NR, pad = prefill_pad(head_dim, true);
    return round_up16(PREFILL_SLOTS * pad * 2 + panels * NR * pad * 2 + PREFILL_SLOTS * NR +
                      panels * NR * 2);
}

VEC struct prefill_work prefill_layout(float *scratch, int32_t n_rows, int32_t head_dim, bool bf16)
{
    size_t pad = prefill_pad(head_dim, true);
    struct prefill_work w = { .k_pad = (size_t)(bf16 ? bf16_places(head_dim) : head_dim),
                              .v_pad = prefill_pad(head_dim, bf16),
                              .n_panels = (n_rows + NR - 1) / NR };
    w.k = scratch;
    w.v = w.k + PREFILL_SLOTS * pad;
    w.s = w.v + PREFILL_SLOTS * pad;
    w.q = w.s + PREFILL_SLOTS * NR;
    w.acc = w.q + (size_t)w.n_panels * NR * pad;
    w.max = w.acc + (size_t)w.n_panels * NR * pad;
    w.sum = w.max + (size_t)w.n_panels * NR;
    return w;
}

/* dst [head_dim][NR] = factor times NR rows of queries; missing rows (NULL) are zero. */
VEC void pack_queries(float *dst, const float *const *row, int32_t head_dim, float factor)
{
    for (int32_t r = 0; r < NR; r += VW)
        transpose_rows(dst + r, NR, VW, row + r, 0, head_dim, factor);
}

/* The same, rounded: dst [places][NR]. */
VEC void pack_queries_bf16(float *dst, const float *const *row, int32_t head_dim)
{
    for (int32_t c = 0; c < head_dim; c += PREFILL_STEP) {
        float part[NR][PREFILL_STEP];
        const float *rows[NR];
        int32_t len = KVL_MIN(PREFILL_STEP, head_dim - c);
        float *to = dst + (size_t)bf16_places(c) * NR;
        for (int32_t r = 0; r < NR; r++) {
            rows[r] = row[r] ? part[r] : NULL;
            if (row[r]) bf16_round(part[r], row[r] + c, len);
        }
        for (int32_t r = 0; r < NR; r += VW)
            transpose_rows(to + r, NR, VW, rows + r, 0, bf16_places(len), 1);
    }
}

static size_t prefill_row_at(const struct kvl_prefill_item *it, int32_t row)
{
    return (size_t)(row / it->group) * (size_t)it->a->n_heads +
           (size_t)(it->head0 + row % it->group);
}

static enum kvl_kv_turn prefill_turn(const struct kvl_prefill_item *it, enum kvl_kv_part part)
{
    const struct kvl_layout *l = it->a->lanes[it->kv_head].layout;
    return it->a->bf16 ? KVL_TURN_NONE : kvl_row_turn(l->type[part]);
}

/* Copies of n rows, turned as keys are: where keys will be. */
static void prefill_turn_queries(const struct kvl_prefill_item *it, const struct prefill_work *w,
                                 const float **row, int32_t n)
{
    const enum kvl_kv_turn turn = prefill_turn(it, KVL_PART_K);
    const size_t head_dim = (size_t)it->a->head_dim;
    for (int32_t r = 0; turn != KVL_TURN_NONE && r < n; r++) {
        float *to = w->k + (size_t)r * head_dim;
        memcpy(to, row[r], head_dim * sizeof *to);
        kv_turn(to, it->a->head_dim, turn, false);
        row[r] = to;
    }
}

VEC void prefill_open(const struct kvl_prefill_item *it, const struct prefill_work *w, bool bf16)
{
    int32_t head_dim = it->a->head_dim;
    for (int32_t p = 0; p < w->n_panels; p++) {
        const float *row[NR] = { 0 };
        int32_t n = KVL_MIN(NR, it->n_rows - p * NR);
        for (int32_t r = 0; r < n; r++)
            row[r] = it->a->q + prefill_row_at(it, it->row0 + p * NR + r) * (size_t)head_dim;
        float *q = w->q + (size_t)p * NR * w->k_pad;
        prefill_turn_queries(it, w, row, n);
        if (bf16)
            pack_queries_bf16(q, row, head_dim);
        else
            pack_queries(q, row, head_dim, 1);
    }
    memset(w->acc, 0, (size_t)w->n_panels * NR * w->v_pad * sizeof *w->acc);
    memset(w->sum, 0, (size_t)w->n_panels * NR * sizeof *w->sum);
    /* Below every logit, and finite: a row may see nothing of its first tiles. */
    for (int32_t i = 0; i < w->n_panels * NR; i++) w->max[i] = -1e30f;
}

/* The stored row of a slot, as floats, not turned back: to [head_dim], zero up to pad. */
VEC void widen_slot(float *to, size_t pad, const struct kvl_lane *lane, enum kvl_kv_part part,
                    int32_t slot)
{
    const struct kvl_layout *l = lane->layout;
    const struct kvl_kept kept = kvl_lane_kept(lane, part, slot);
    kv_kept(to, &kept, l->head_dim);
    for (size_t c = (size_t)l->head_dim; c < pad; c++) to[c] = 0;
}

/* The same, turned back. */
VEC void widen_back(float *to, size_t pad, const struct kvl_lane *lane, enum kvl_kv_part part,
                    int32_t slot)
{
    const struct kvl_layout *l = lane->layout;
    widen_slot(to, pad, lane, part, slot);
    kv_turn(to, l->head_dim, kvl_row_turn(l->type[part]), true);
}

/* Slots of a tile, at most PREFILL_SLOTS. */
struct prefill_slots {
    const int32_t *list; /* [n], NULL: from first on */
    int32_t first, n;
};

static int32_t prefill_slot(const struct prefill_slots *s, int32_t t)
{
    return s->list ? s->list[t] : s->first + t;
}

/* to [PREFILL_SLOTS][pad]: widened rows of a tile; everything else is zero. */
VEC void widen_tile(float *to, size_t pad, const struct kvl_lane *lane, enum kvl_kv_part part,
                    const struct prefill_slots *s)
{
    for (int32_t t = 0; t < s->n; t++, to += pad)
        widen_slot(to, pad, lane, part, prefill_slot(s, t));
    memset(to, 0, (size_t)(PREFILL_SLOTS - s->n) * pad * sizeof *to);
}

/* The same of neighbours, turned back. */
VEC void widen_slots(float *to, size_t pad, const struct kvl_lane *lane, enum kvl_kv_part part,
                     int32_t slot0, int32_t n)
{
    for (int32_t t = 0; t < n; t++, to += pad) widen_back(to, pad, lane, part, slot0 + t);
    memset(to, 0, (size_t)(PREFILL_SLOTS - n) * pad * sizeof *to);
}

/* The same for keys, rounded. */
VEC void prefill_keys_bf16(const struct prefill_work *w, const struct kvl_lane *lane,
                           const struct prefill_slots *s)
{
    float *to = w->k, wide[PREFILL_HEAD_DIM];
    for (int32_t t = 0; t < s->n; t++, to += w->k_pad) {
        widen_back(wide, 0, lane, KVL_PART_K, prefill_slot(s, t));
        bf16_round(to, wide, lane->layout->head_dim);
    }
    memset(to, 0, (size_t)(PREFILL_SLOTS - s->n) * w->k_pad * sizeof *to);
}

/* The same for values, rounded, in pairs of slots where places are pairs. */
VEC void prefill_values_bf16(const struct prefill_work *w, const struct kvl_lane *lane,
                             const struct prefill_slots *s)
{
    float *to = w->v, wide[2][PREFILL_HEAD_DIM + 2 * VW];
    for (int32_t t = 0; t < s->n; t += BF16_PAIR, to += w->v_pad) {
        widen_back(wide[0], w->v_pad, lane, KVL_PART_V, prefill_slot(s, t));
        if (BF16_PAIR == 2 && t + 1 < s->n)
            widen_back(wide[1], w->v_pad, lane, KVL_PART_V, prefill_slot(s, t + 1));
        else
            memset(wide[1], 0, w->v_pad * sizeof *to);
        bf16_zip(to, wide[0], wide[1], (int32_t)w->v_pad);
    }
}

VEC void prefill_tile(const struct prefill_work *w, const struct kvl_prefill_item *it,
                      const struct prefill_slots *s, bool bf16)
{
    const struct kvl_lane *lane = &it->a->lanes[it->kv_head];
    if (bf16)
        prefill_keys_bf16(w, lane, s);
    else
        widen_tile(w->k, w->k_pad, lane, KVL_PART_K, s);
    if (it->a->out && bf16) prefill_values_bf16(w, lane, s);
    if (it->a->out && !bf16) widen_tile(w->v, w->v_pad, lane, KVL_PART_V, s);
}

/* s [n][NR] = k q for n slots (rounded up to MR), n <= PREFILL_SLOTS. */
VEC void panel_scores(float *s, const float *k, const float *q, int32_t n, int32_t head_dim)
{
    for (int32_t t = 0; t < n; t += MR)
        mul_tile(s + (size_t)t * NR, NR, k + (size_t)t * (size_t)head_dim, (size_t)head_dim, 1, q,
                 NR, head_dim, true);
}

VEC void panel_scores_bf16(float *s, const float *k, const float *q, int32_t n, int32_t places)
{
    for (int32_t t = 0; t < n; t += MR)
        bf16_tile(s + (size_t)t * NR, NR, k + (size_t)t * (size_t)places, (size_t)places, 1, q, NR,
                  places, true);
}

/* Row r of the panel does not see slot t < first + (r0 + r) / group, where `first` is that of row 0: hides them. */
static void panel_past(float *s, int32_t n, int32_t first, int32_t r0, int32_t group)
{
    for (int32_t r = 0; r < NR; r++)
        for (int32_t t = 0; t < KVL_MIN(n, first + (r0 + r) / group); t++)
            s[(size_t)t * NR + (size_t)r] = -INFINITY;
}

/* Row r of the panel sees slot t iff t <= first + (r0 + r) / group: hides the others. */
static void panel_mask(float *s, int32_t n, int32_t first, int32_t r0, int32_t group)
{
    for (int32_t t = KVL_MAX(0, first); t < n; t++) {
        int64_t hidden = (int64_t)(t - first) * group - r0;
        for (int32_t r = 0; r < KVL_MIN(NR, hidden); r++) s[(size_t)t * NR + (size_t)r] = -INFINITY;
    }
}

/* Scores of n slots become weights, 2^(factor score - max); returns in keep what older sums are
 * worth. */
VEC void panel_softmax(float *s, int32_t n, float factor, float *max, float *sum, vf *keep)
{
    const vf f = vf_set1(factor), none = vf_set1(-INFINITY);
    UNROLL
    for (int32_t j = 0; j < NV; j++) {
        vf old = vf_load(max + j * VW), top = none, total = vf_zero();
        for (int32_t t = 0; t < n; t++) top = vf_max(top, vf_load(s + (size_t)t * NR + j * VW));
        top = vf_max(vf_mul(top, f), old);
        vf minus = vf_sub(vf_zero(), top);
        for (int32_t t = 0; t < n; t++) {
            float *at = s + (size_t)t * NR + j * VW;
            vf e = vf_exp2(vf_fma(vf_load(at), f, minus));
            total = vf_add(total, e);
            vf_store(at, e);
        }
        keep[j] = vf_exp2(vf_sub(old, top));
        vf_store(max + j * VW, top);
        vf_store(sum + j * VW, vf_add(vf_mul(vf_load(sum + j * VW), keep[j]), total));
    }
}

/* Weights of n slots rounded, in pairs of slots where places are pairs. */
VEC void panel_round(float *s, int32_t n)
{
    if (n % BF16_PAIR) memset(s + (size_t)n * NR, 0, NR * sizeof *s);
    for (int32_t t = 0; t < n; t += BF16_PAIR) {
        const float *at = s + (size_t)t * NR;
        bf16_zip(s + (size_t)(t / BF16_PAIR) * NR, at, at + (BF16_PAIR - 1) * NR, NR);
    }
}

/* acc = acc * keep + v s */
VEC void panel_values(const struct prefill_work *w, float *acc, int32_t n, const vf *keep,
                      bool bf16)
{
    for (size_t c = 0; c < w->v_pad; c++)
        for (int32_t j = 0; j < NV; j++) {
            float *at = acc + c * NR + (size_t)(j * VW);
            vf_store(at, vf_mul(vf_load(at), keep[j]));
        }
    for (size_t c = 0; c < w->v_pad; c += MR) {
        if (bf16)
            bf16_tile(acc + c * NR, NR, w->v + c, 1, w->v_pad, w->s, NR, bf16_places(n), false);
        else
            mul_tile(acc + c * NR, NR, w->v + c, 1, w->v_pad, w->s, NR, n, false);
    }
}

/* Scores of a tile of n slots for one panel. */
VEC void panel_dot(const struct kvl_prefill_item *it, const struct prefill_work *w, int32_t p,
                   int32_t n, bool bf16)
{
    const float *q = w->q + (size_t)p * NR * w->k_pad;
    if (bf16)
        panel_scores_bf16(w->s, w->k, q, n, (int32_t)w->k_pad);
    else
        panel_scores(w->s, w->k, q, n, (int32_t)w->k_pad);
    if (it->a->cap > 0) cap_products(w->s, (size_t)n * NR, it->a->scale, it->a->cap);
}

/* Takes them in, once what rows do not see is hidden. */
VEC void panel_absorb(const struct kvl_prefill_item *it, const struct prefill_work *w, int32_t p,
                      int32_t n, bool bf16)
{
    vf keep[NV];
    const float log2_e = 1.44269504f;
    panel_softmax(w->s, n, it->a->scale * log2_e, w->max + (size_t)p * NR, w->sum + (size_t)p * NR,
                  keep);
    if (!it->a->out) return;
    if (bf16) panel_round(w->s, n);
    panel_values(w, w->acc + (size_t)p * NR * w->v_pad, n, keep, bf16);
}

/* Channels c .. of VW rows: one square of the accumulators turned back into rows. */
VEC void close_square(const struct kvl_prefill_item *it, const struct prefill_work *w, int32_t r0,
                      int32_t c)
{
    size_t head_dim = (size_t)it->a->head_dim;
    const float *acc = w->acc + (size_t)(r0 / NR) * NR * w->v_pad + (size_t)(r0 % NR);
    int32_t len = KVL_MIN(VW, it->a->head_dim - c);
    vf r[VW];
    UNROLL
    for (int32_t i = 0; i < VW; i++)
        r[i] = i < len ? vf_load(acc + (size_t)(c + i) * NR) : vf_zero();
    vf_transpose(r);
    UNROLL
    for (int32_t i = 0; i < VW; i++) {
        if (r0 + i < it->n_rows) {
            float *out = it->a->out + prefill_row_at(it, it->row0 + r0 + i) * head_dim + c;
            vf_store_n(out, vf_div(r[i], vf_set1(w->sum[r0 + i])), len);
        }
    }
}

static void prefill_close(const struct kvl_prefill_item *it, const struct prefill_work *w)
{
    for (int32_t r = 0; it->a->lse && r < it->n_rows; r++)
        it->a->lse[prefill_row_at(it, it->row0 + r)] = w->max[r] * 0.693147181f + logf(w->sum[r]);
    for (int32_t r = 0; it->a->out && r < it->n_rows; r += VW)
        for (int32_t c = 0; c < it->a->head_dim; c += VW) close_square(it, w, r, c);
    const enum kvl_kv_turn turn = prefill_turn(it, KVL_PART_V);
    for (int32_t r = 0; it->a->out && turn != KVL_TURN_NONE && r < it->n_rows; r++)
        kv_turn(it->a->out + prefill_row_at(it, it->row0 + r) * (size_t)it->a->head_dim,
                it->a->head_dim, turn, true);
}

VEC void prefill_rows(const struct kvl_prefill_item *it, bool bf16)
{
    const struct kvl_lane *lane = &it->a->lanes[it->kv_head];
    int32_t head_dim = it->a->head_dim, group = it->group;
    int32_t past = lane->n_slots - it->a->n; /* slots before the chunk */
    int32_t end = past + (it->row0 + it->n_rows - 1) / group + 1;
    /* The first slot that row 0 of the chunk sees, and the tile of the item's first. */
    int32_t low = it->a->window > 0 ? past - it->a->window + 1 : INT32_MIN / 2;
    int32_t begin = KVL_MAX(0, low + it->row0 / group) / PREFILL_SLOTS * PREFILL_SLOTS;
    struct prefill_work w = prefill_layout(it->scratch, it->n_rows, head_dim, bf16);
    prefill_open(it, &w, bf16);
    for (int32_t s0 = begin; s0 < end; s0 += PREFILL_SLOTS) {
        int32_t n = KVL_MIN(PREFILL_SLOTS, end - s0);
        prefill_tile(&w, it, &(struct prefill_slots){ .first = s0, .n = n }, bf16);
        for (int32_t p = 0; p < w.n_panels; p++) {
            int32_t last_row = KVL_MIN(it->row0 + it->n_rows, it->row0 + (p + 1) * NR) - 1;
            int32_t first_row = it->row0 + p * NR;
            int32_t panel_n = KVL_MIN(PREFILL_SLOTS, past + last_row / group + 1 - s0);
            if (panel_n <= 0 || low + first_row / group >= s0 + n) continue;
            panel_dot(it, &w, p, panel_n, bf16);
            panel_mask(w.s, panel_n, past - s0, first_row, group);
            if (low + last_row / group > s0) panel_past(w.s, panel_n, low - s0, first_row, group);
            panel_absorb(it, &w, p, panel_n, bf16);
        }
    }
    prefill_close(it, &w);
}

static void prefill_item(const struct kvl_prefill_item *it)
{
    if (it->a->bf16)
        prefill_rows(it, true);
    else
        prefill_rows(it, false);
}

#endif
