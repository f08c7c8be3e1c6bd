/* kern_prefill.h - causal attention of a tile of query rows, in one pass over the keys.
 *
 * Everything is computed transposed: a panel of NR query rows lies across the vectors, so that
 * maxima, sums and scales of the softmax are plain vector operations, and widened K and V rows serve
 * as they are.  The scores of one panel and one tile of keys stay in L1. */
#ifndef KVL_KERN_PREFILL_H
#define KVL_KERN_PREFILL_H

#include "ops/cpu/kern_math.h"

enum { PREFILL_SLOTS = 128 };

struct prefill_work {
    float *k, *v;     /* [PREFILL_SLOTS][k_pad], [PREFILL_SLOTS][v_pad]: widened rows */
    float *q, *acc;   /* [n_panels][head_dim][NR], [n_panels][v_pad][NR] */
    float *s;         /* [PREFILL_SLOTS][NR]: scores, then weights */
    float *max, *sum; /* [n_panels][NR] */
    size_t v_pad;
    int32_t n_panels;
};

VEC size_t prefill_pad(int32_t head_dim)
{
    return ((size_t)head_dim + MR - 1) / MR * MR;
}

VEC size_t round_up16(size_t n)
{
    return (n + 15) / 16 * 16;
}

static size_t prefill_scratch(int32_t n_rows, int32_t head_dim)
{
    size_t panels = ((size_t)n_rows + NR - 1) / NR, pad = kvl_head_pad(head_dim);
    return round_up16(PREFILL_SLOTS * pad * 2 + panels * NR * pad * 2 + PREFILL_SLOTS * NR +
                      panels * NR * 2);
}

static struct prefill_work prefill_layout(float *scratch, int32_t n_rows, int32_t head_dim)
{
    size_t pad = kvl_head_pad(head_dim);
    struct prefill_work w = { .v_pad = prefill_pad(head_dim), .n_panels = (n_rows + NR - 1) / NR };
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
static void pack_queries(float *dst, const float *const *row, int32_t head_dim, float factor)
{
    for (int32_t r = 0; r < NR; r += VW)
        transpose_rows(dst + r, NR, VW, row + r, 0, head_dim, factor);
}

static size_t prefill_row_at(const struct kvl_prefill_item *it, int32_t row)
{
    int32_t group = it->a->n_heads / it->a->n_kv_heads;
    return (size_t)(row / group) * (size_t)it->a->n_heads +
           (size_t)(it->kv_head * group + row % group);
}

static void prefill_open(const struct kvl_prefill_item *it, const struct prefill_work *w)
{
    int32_t head_dim = it->a->head_dim;
    for (int32_t p = 0; p < w->n_panels; p++) {
        const float *row[NR] = { 0 };
        int32_t n = KVL_MIN(NR, it->n_rows - p * NR);
        for (int32_t r = 0; r < n; r++)
            row[r] = it->a->q + prefill_row_at(it, it->row0 + p * NR + r) * (size_t)head_dim;
        pack_queries(w->q + (size_t)p * NR * (size_t)head_dim, row, head_dim, it->a->scale);
    }
    memset(w->acc, 0, (size_t)w->n_panels * NR * w->v_pad * sizeof *w->acc);
    memset(w->sum, 0, (size_t)w->n_panels * NR * sizeof *w->sum);
    for (int32_t i = 0; i < w->n_panels * NR; i++) w->max[i] = -INFINITY;
}

/* to [PREFILL_SLOTS][pad]: widened rows of n slots from slot0 on; everything else is zero. */
static void widen_slots(float *to, size_t pad, const struct kvl_lane *lane, enum kvl_kv_part part,
                        int32_t slot0, int32_t n)
{
    const struct kvl_layout *l = lane->layout;
    enum kvl_wtype type = l->type == KVL_KV_F16 ? KVL_W_F16 : KVL_W_F32;
    size_t row_bytes = (size_t)l->head_dim * l->elem_bytes;
    for (int32_t t = 0; t < n; t++, to += pad) {
        int32_t slot = slot0 + t;
        const uint8_t *row = kvl_lane_rows(lane, part, slot >> l->block_shift);
        widen(to, row + (size_t)(slot & (l->block_tok - 1)) * row_bytes, type, l->head_dim);
        for (size_t c = (size_t)l->head_dim; c < pad; c++) to[c] = 0;
    }
    memset(to, 0, (size_t)(PREFILL_SLOTS - n) * pad * sizeof *to);
}

/* s [n][NR] = k q for n slots (rounded up to MR), n <= PREFILL_SLOTS. */
static void panel_scores(float *s, const float *k, const float *q, int32_t n, int32_t head_dim)
{
    for (int32_t t = 0; t < n; t += MR)
        mul_tile(s + (size_t)t * NR, NR, k + (size_t)t * (size_t)head_dim, (size_t)head_dim, 1, q,
                 NR, head_dim, true);
}

/* Row r of the panel sees slot t iff t <= first + (r0 + r) / group: hides the others. */
static void panel_mask(float *s, int32_t n, int32_t first, int32_t r0, int32_t group)
{
    for (int32_t t = KVL_MAX(0, first); t < n; t++) {
        int64_t hidden = (int64_t)(t - first) * group - r0;
        for (int32_t r = 0; r < KVL_MIN(NR, hidden); r++) s[(size_t)t * NR + (size_t)r] = -INFINITY;
    }
}

/* Scores of n slots become weights; returns in keep what older sums are worth. */
VEC void panel_softmax(float *s, int32_t n, float *max, float *sum, vf *keep)
{
    for (int32_t j = 0; j < NV; j++) {
        vf old = vf_load(max + j * VW), top = old, total = vf_zero();
        for (int32_t t = 0; t < n; t++) top = vf_max(top, vf_load(s + (size_t)t * NR + j * VW));
        for (int32_t t = 0; t < n; t++) {
            float *at = s + (size_t)t * NR + j * VW;
            vf e = vf_exp(vf_sub(vf_load(at), top));
            total = vf_add(total, e);
            vf_store(at, e);
        }
        keep[j] = vf_exp(vf_sub(old, top));
        vf_store(max + j * VW, top);
        vf_store(sum + j * VW, vf_add(vf_mul(vf_load(sum + j * VW), keep[j]), total));
    }
}

/* One tile of keys for one panel: n slots, the later ones hidden from some rows. */
static void prefill_panel(const struct kvl_prefill_item *it, const struct prefill_work *w,
                          int32_t p, int32_t n, int32_t first)
{
    int32_t head_dim = it->a->head_dim;
    float *acc = w->acc + (size_t)p * NR * w->v_pad;
    vf keep[NV];
    panel_scores(w->s, w->k, w->q + (size_t)p * NR * (size_t)head_dim, n, head_dim);
    panel_mask(w->s, n, first, it->row0 + p * NR, it->a->n_heads / it->a->n_kv_heads);
    panel_softmax(w->s, n, w->max + (size_t)p * NR, w->sum + (size_t)p * NR, keep);
    if (!it->a->out) return;
    for (size_t c = 0; c < w->v_pad; c++)
        for (int32_t j = 0; j < NV; j++) {
            float *at = acc + c * NR + (size_t)(j * VW);
            vf_store(at, vf_mul(vf_load(at), keep[j]));
        }
    for (size_t c = 0; c < w->v_pad; c += MR)
        mul_tile(acc + c * NR, NR, w->v + c, 1, w->v_pad, w->s, NR, n, false);
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
        it->a->lse[prefill_row_at(it, it->row0 + r)] = w->max[r] + logf(w->sum[r]);
    for (int32_t r = 0; it->a->out && r < it->n_rows; r += VW)
        for (int32_t c = 0; c < it->a->head_dim; c += VW) close_square(it, w, r, c);
}

static void prefill_item(const struct kvl_prefill_item *it)
{
    const struct kvl_lane *lane = &it->a->lanes[it->kv_head];
    int32_t head_dim = it->a->head_dim, group = it->a->n_heads / it->a->n_kv_heads;
    int32_t past = lane->n_slots - it->a->n; /* slots before the chunk */
    int32_t end = past + (it->row0 + it->n_rows - 1) / group + 1;
    struct prefill_work w = prefill_layout(it->scratch, it->n_rows, head_dim);
    prefill_open(it, &w);
    for (int32_t s0 = 0; s0 < end; s0 += PREFILL_SLOTS) {
        int32_t n = KVL_MIN(PREFILL_SLOTS, end - s0);
        widen_slots(w.k, (size_t)head_dim, lane, KVL_PART_K, s0, n);
        if (it->a->out) widen_slots(w.v, w.v_pad, lane, KVL_PART_V, s0, n);
        for (int32_t p = 0; p < w.n_panels; p++) {
            int32_t last_row = KVL_MIN(it->row0 + it->n_rows, it->row0 + (p + 1) * NR) - 1;
            int32_t panel_n = KVL_MIN(PREFILL_SLOTS, past + last_row / group + 1 - s0);
            if (panel_n > 0) prefill_panel(it, &w, p, panel_n, past - s0);
        }
    }
    prefill_close(it, &w);
}

#endif
