/* kern_span.h - attention of the query heads of a job over a piece of its list.
 *
 * Slots are taken KVL_SPAN_TILE at a time and their K and V rows pass from memory once for all heads
 * of the job; SPAN_HEADS of them share every loaded vector.  A tile has three steps:
 *   scores   VW sums at a time, of VW / heads slots (two such groups, of three heads with AVX2), grow along the
 *            channels; added up, they make one vector of logits [head][slot]; the tile keeps a vector for every
 *            such group of slots
 *   softmax  vertical: a lane is always of the same head
 *   values   up to 64 channels of all heads stay in registers while the rows of the tile pass
 * bf16 rows are multiplied in pairs: two channels of a key, the same channel of two values.  Rows of a type that has
 * no loops of its own (kern_kv.h) are widened, a short tile at a time, and then are rows of floats; of types that seal
 * only where a tile is not sealed or its keys are not a group (kern_span_kivi.h).  Rows that were
 * turned when they were stored stay so: queries are turned like them, and what is summed of values is turned back.
 *
 * Meanwhile the rows of the next tile are asked for, keys during scores and values during values: into
 * L2 (into L1 halves the speed of sequential reads), a line or two between the multiply-adds. */
#ifndef KVL_KERN_SPAN_H
#define KVL_KERN_SPAN_H

#include "kern_kv.h"
#include "kern_row.h"
#include "kern_span_kivi.h"
#include "kern_span_logits.h"
#include "kern_span_q8.h"
#include "kern_span_rows.h"
#include "kern_span_scaled.h"

enum { SPAN_HEADS = 4, SPAN_ROWS = 4 };

/* Types in blocks of 32, which kern_span_q8.h has. */
VEC bool span_blocks(enum kvl_wtype type)
{
    return type == KVL_W_Q8_0 || type == KVL_W_Q4_0;
}

/* Types whose tiles are short, since something is kept of every row. */
VEC bool span_short(enum kvl_wtype type)
{
    return span_blocks(type) || kv_is_scaled(type);
}

/* Bound by memory.  Then values are read a line of every row at a time and tiles are short: with two
 * lines, or with 128 slots, a fifth of the bandwidth was lost. */
VEC bool span_light(enum kvl_wtype v_type, int32_t n_heads)
{
    return v_type == KVL_W_BF16 || span_short(v_type) || n_heads < SPAN_HEADS;
}

/* Asks for the lines that begin in `bytes` bytes of a row. */
VEC void prefetch_row(const uint8_t *row, size_t bytes)
{
    UNROLL
    for (size_t o = 0; o < bytes; o += 64) __builtin_prefetch(row + o, 0, 2);
}

/* Where the sum of head h and slot j lies: [group of slots][head][VW / n_heads]. */
VEC int32_t scores_at(int32_t h, int32_t j, int32_t n_heads)
{
    const int32_t n_tok = VW / n_heads;
    return j / n_tok * VW + h * n_tok + j % n_tok;
}

/* s += q k for slots j0 .. j0 + n_row - 1, along VW channels from c on, which are at k[] + off;
 * q [channels / VW][head][VW]. */
VEC void scores_f32(vf *s, const uint8_t *const *k, size_t off, enum kvl_wtype type, const void *q,
                    int32_t n_heads, int32_t used, int32_t c, int32_t len, int32_t j0,
                    int32_t n_row)
{
    vf y[SPAN_HEADS];
    UNROLL
    for (int32_t h = 0; h < used; h++) y[h] = vf_load((const float *)q + c * n_heads + h * VW);
    UNROLL
    for (int32_t j = 0; j < n_row; j++) {
        vf x = len == VW ? load_as(k[j] + off, type, 0) : load_as_n(k[j] + off, type, 0, len);
        UNROLL
        for (int32_t h = 0; h < used; h++) {
            vf *to = s + scores_at(h, j0 + j, n_heads);
            *to = vf_fma(x, y[h], *to);
        }
    }
}

/* The same along 2 * VW channels, which make one vector of q. */
VEC void scores_bf16(vf *s, const uint8_t *const *k, size_t off, const void *q, int32_t n_heads,
                     int32_t used, int32_t c, int32_t len, int32_t j0, int32_t n_row)
{
    vb y[SPAN_HEADS];
    UNROLL
    for (int32_t h = 0; h < used; h++)
        y[h] = vb_load((const uint16_t *)q + c * n_heads + h * 2 * VW);
    UNROLL
    for (int32_t j = 0; j < n_row; j++) {
        const uint16_t *at = (const uint16_t *)(const void *)(k[j] + off);
        vb x = len == 2 * VW ? vb_load(at) : vb_load_n(at, len);
        UNROLL
        for (int32_t h = 0; h < used; h++) {
            vf *to = s + scores_at(h, j0 + j, n_heads);
            *to = vf_dot_bf16(*to, x, y[h]);
        }
    }
}

VEC void scores_step(vf *s, const uint8_t *const *k, size_t off, enum kvl_wtype type, const void *q,
                     int32_t n_heads, int32_t used, int32_t c, int32_t len, int32_t j0,
                     int32_t n_row)
{
    if (type == KVL_W_BF16)
        scores_bf16(s, k, off, q, n_heads, used, c, len, j0, n_row);
    else
        scores_f32(s, k, off, type, q, n_heads, used, c, len, j0, n_row);
}

/* All channels of n_row slots, from slot j0 of those from t on; asks for as many rows. */
VEC void scores_rows(vf *s, const struct pass *p, int32_t t, enum kvl_wtype type, const void *q,
                     int32_t n_heads, int32_t used, int32_t j0, int32_t n_row)
{
    const int32_t step = type == KVL_W_BF16 ? 2 * VW : VW;
    const int32_t elem = type == KVL_W_F32 ? 4 : 2, line = 64 / elem;
    const uint8_t *k[SPAN_ROWS], *ahead[SPAN_ROWS];
    int32_t c = 0;
    UNROLL
    for (int32_t j = 0; j < n_row; j++) {
        k[j] = p->row[t + j0 + j] + p->off;
        ahead[j] = p->ahead[t + j0 + j] + p->ahead_off;
    }
    for (; c + line <= p->head_dim; c += line) {
        const size_t off = (size_t)(c * elem);
        UNROLL
        for (int32_t j = 0; j < n_row; j++) __builtin_prefetch(ahead[j] + off, 0, 2);
        UNROLL
        for (int32_t i = 0; i < line; i += step)
            scores_step(s, k, off + (size_t)(i * elem), type, q, n_heads, used, c + i, step, j0,
                        n_row);
    }
    for (; c < p->head_dim; c += step)
        scores_step(s, k, (size_t)(c * elem), type, q, n_heads, used, c,
                    KVL_MIN(step, p->head_dim - c), j0, n_row);
}

/* Vectors of sc that are made at a time: three heads of two slots would leave half of the registers empty, and
 * multiply-adds would wait for each other. */
VEC int32_t scores_vectors(enum kvl_wtype type, int32_t n_heads, int32_t used)
{
    return type != KVL_W_BF16 && used == 3 && 2 * n_heads == VW ? 2 : 1;
}

/* n_vec vectors of sc: q . k of VW / n_heads slots each, slot t and up. */
VEC void scores_group(float *sc, const struct pass *p, int32_t t, enum kvl_wtype type,
                      const void *q, int32_t n_heads, int32_t used, int32_t n_vec)
{
    const int32_t n_tok = n_vec * VW / n_heads, n_row = KVL_MIN(n_tok, SPAN_ROWS);
    vf s[2 * VW];
    UNROLL
    for (int32_t i = 0; i < n_vec * VW; i++) s[i] = vf_zero();
    UNROLL
    for (int32_t j = 0; j < n_tok; j += n_row)
        scores_rows(s, p, t, type, q, n_heads, used, j, n_row);
    UNROLL
    for (int32_t i = 0; i < n_vec; i++)
        vf_store(sc + i * VW, vf_mul(vf_sums(s + i * VW), vf_set1(p->scale)));
}

VEC void scores_heads(float *sc, const struct pass *p, enum kvl_wtype type, const void *q,
                      int32_t n_heads, int32_t used)
{
    const int32_t n_vec = scores_vectors(type, n_heads, used);
    for (int32_t t = 0; t < p->n; t += n_vec * VW / n_heads)
        scores_group(sc + t * n_heads, p, t, type, q, n_heads, used, n_vec);
}

/* s [head][n_vec] += weight times a value for n_vec vectors of channels; w: of head 0. */
VEC void values_f32(vf *s, const uint8_t *v, enum kvl_wtype type, const float *w, int32_t n_heads,
                    int32_t used, int32_t len, int32_t n_vec)
{
    vf x[8];
    UNROLL
    for (int32_t u = 0; u < n_vec; u++)
        x[u] = len == VW ? load_as(v, type, (size_t)(u * VW)) : load_as_n(v, type, 0, len);
    UNROLL
    for (int32_t h = 0; h < used; h++) {
        vf y = vf_set1(w[h * (VW / n_heads)]);
        UNROLL
        for (int32_t u = 0; u < n_vec; u++) s[h * n_vec + u] = vf_fma(x[u], y, s[h * n_vec + u]);
    }
}

/* The same for values of two slots and n_vec / 2 vectors of pairs; w: a pair of weights.  The sums of
 * 2 * VW channels lie in the order of vb_zip. */
VEC void values_bf16(vf *s, const uint8_t *v0, const uint8_t *v1, const float *w, int32_t n_heads,
                     int32_t used, int32_t len, int32_t n_vec)
{
    const uint16_t *a = (const uint16_t *)(const void *)v0;
    const uint16_t *b = (const uint16_t *)(const void *)v1;
    vb x[8];
    UNROLL
    for (int32_t u = 0; u < n_vec; u += 2) {
        vb c = len == 2 * VW ? vb_load(a + u * VW) : vb_load_n(a, len);
        vb d = len == 2 * VW ? vb_load(b + u * VW) : vb_load_n(b, len);
        x[u] = vb_zip_lo(c, d);
        x[u + 1] = vb_zip_hi(c, d);
    }
    UNROLL
    for (int32_t h = 0; h < used; h++) {
        vb y = vb_set2((const uint16_t *)(const void *)(w + h * (VW / n_heads)));
        UNROLL
        for (int32_t u = 0; u < n_vec; u++)
            s[h * n_vec + u] = vf_dot_bf16(s[h * n_vec + u], x[u], y);
    }
}

/* acc += weight times value for n_vec vectors of channels from c on, over all rows. */
VEC void values_chunk(float *acc, size_t pad, const struct pass *p, enum kvl_wtype type,
                      const float *weight, int32_t n_heads, int32_t used, int32_t c, int32_t len,
                      int32_t n_vec)
{
    const int32_t n_tok = VW / n_heads;
    const size_t elem = type == KVL_W_F32 ? 4 : 2, at = (size_t)c * elem;
    const size_t bytes = (size_t)(n_vec * VW) * elem;
    const bool begins = bytes >= 64 || at % 64 == 0; /* a line */
    vf s[16];
    UNROLL
    for (int32_t i = 0; i < used * n_vec; i++)
        s[i] = vf_load(acc + (size_t)(i / n_vec) * pad + c + i % n_vec * VW);
    for (int32_t t = 0; t < p->n; t += 2 * n_tok) {
        const float *w = weight + t * n_heads;
        UNROLL
        for (int32_t j = 0; j < n_tok; j++) {
            const uint8_t *v0 = p->row[t + j] + p->off + at;
            const uint8_t *v1 = p->row[t + n_tok + j] + p->off + at;
            if (begins) prefetch_row(p->ahead[t + j] + p->ahead_off + at, bytes);
            if (begins) prefetch_row(p->ahead[t + n_tok + j] + p->ahead_off + at, bytes);
            if (type == KVL_W_BF16) {
                values_bf16(s, v0, v1, w + j, n_heads, used, len, n_vec);
            } else {
                values_f32(s, v0, type, w + j, n_heads, used, len, n_vec);
                values_f32(s, v1, type, w + VW + j, n_heads, used, len, n_vec);
            }
        }
    }
    UNROLL
    for (int32_t i = 0; i < used * n_vec; i++)
        vf_store(acc + (size_t)(i / n_vec) * pad + c + i % n_vec * VW, s[i]);
}

/* acc [head][pad] += weights times values. */
VEC void values_heads(float *acc, size_t pad, const struct pass *p, enum kvl_wtype type,
                      const float *weight, int32_t n_heads, int32_t used)
{
    const int32_t all = KVL_MIN(16, KVL_MAX(8, VW)), fit = KVL_MIN(8, all / n_heads);
    const int32_t line = KVL_MAX(2, 64 / (type == KVL_W_F32 ? 4 : 2) / VW);
    const int32_t most = span_light(type, n_heads) ? KVL_MIN(fit, line) : fit;
    const int32_t least = type == KVL_W_BF16 ? 2 : 1, len = least * VW;
    int32_t c = 0;
    for (; c + most * VW <= p->head_dim; c += most * VW)
        values_chunk(acc, pad, p, type, weight, n_heads, used, c, len, most);
    for (; c + 2 * VW <= p->head_dim; c += 2 * VW)
        values_chunk(acc, pad, p, type, weight, n_heads, used, c, len, 2);
    for (; c < p->head_dim; c += len)
        values_chunk(acc, pad, p, type, weight, n_heads, used, c, KVL_MIN(len, p->head_dim - c),
                     least);
}

/* One function per element type and number of heads, so that sums stay in registers. */
static void span_scores(float *sc, const struct pass *p, enum kvl_wtype p_type, const void *q,
                        int32_t n_heads)
{
#define SPAN_SCORES(of, n, used) scores_heads(sc, p, of, q, n, used)
    HEADS_CASE(KVL_W_F32, SPAN_SCORES);
    HEADS_CASE(KVL_W_F16, SPAN_SCORES);
    HEADS_CASE(KVL_W_BF16, SPAN_SCORES);
}

static void span_values(float *acc, size_t pad, const struct pass *p, enum kvl_wtype p_type,
                        const float *weight, int32_t n_heads)
{
#define SPAN_VALUES(of, n, used) values_heads(acc, pad, p, of, weight, n, used)
    HEADS_CASE(KVL_W_F32, SPAN_VALUES);
    HEADS_CASE(KVL_W_F16, SPAN_VALUES);
    HEADS_CASE(KVL_W_BF16, SPAN_VALUES);
}

/* Scratch of a thread. */
struct span_work {
    float *q;  /* [heads][pad], by groups of heads as span_scores wants them */
    float *cs; /* cosines and sines of a position */
    float *k;  /* keys that are not stored like this [tile][pad]: given, rotated or widened */
    float *sc; /* logits, then weights */
    size_t pad;
    float *q_scale;                /* keys in q8_0: of queries as integers [heads] */
    float *scaled;                 /* values in q8_0: weights times scales */
    enum kvl_wtype k_type, v_type; /* of the rows that kernels see */
    enum kvl_kv_type k_kept, v_kept;
    bool k_wide, v_wide; /* rows are widened first */
    float *v;            /* widened values [Q8_TILE][pad] */
};

/* Heads that lie together from h0 on: three as four. */
static int32_t span_group(const struct kvl_attn_job *job, int32_t h0)
{
    int32_t left = job->n_heads - h0;
    return left > 2 ? SPAN_HEADS : left;
}

/* One query, its head's place in the group being `at`. */
static void span_query_head(const struct kvl_span *s, const struct span_work *w, float *to,
                            int32_t head, int32_t at, int32_t n_heads)
{
    const int32_t head_dim = s->a->head_dim;
    float *q = w->k;
    const float *from = s->job->q + (size_t)head * (size_t)head_dim;
    if (s->job->pos)
        rotate(q, from, kvl_rope_row(s->rope, s->job->q_pos, w->cs), head_dim, s->a->rope);
    else
        memcpy(q, from, (size_t)head_dim * sizeof *q);
    if (!s->job->pos && !s->job->keys) kv_turn(q, head_dim, kvl_row_turn(w->k_kept), false);
    for (int32_t c = head_dim; c < (int32_t)w->pad; c++) q[c] = 0;
    if (span_blocks(w->k_type)) {
        w->q_scale[head] = q8_query((int16_t *)(void *)to, q, head_dim, at, n_heads);
        return;
    }
    for (int32_t c = 0; c < (int32_t)w->pad; c += 2 * VW) {
        vf lo = vf_load(q + c), hi = vf_load(q + c + VW);
        if (w->k_type == KVL_W_BF16) {
            vb_store((uint16_t *)(void *)to + c * n_heads + at * 2 * VW, vb_round(lo, hi));
        } else {
            vf_store(to + c * n_heads + at * VW, lo);
            vf_store(to + (c + VW) * n_heads + at * VW, hi);
        }
    }
}

static void span_query(const struct kvl_span *s, const struct span_work *w)
{
    size_t n_heads = (size_t)kvl_span_heads(s->job->n_heads);
    memset(w->q, 0, n_heads * w->pad * sizeof *w->q);
    if (span_blocks(w->k_type)) memset(w->q_scale, 0, n_heads * sizeof *w->q_scale);
    for (int32_t h0 = 0; h0 < s->job->n_heads; h0 += span_group(s->job, h0))
        for (int32_t h = 0; h < KVL_MIN(span_group(s->job, h0), s->job->n_heads - h0); h++)
            span_query_head(s, w, w->q + (size_t)h0 * w->pad, h0 + h, h, span_group(s->job, h0));
}

/* Widened, rotated keys. */
static void span_rotate(const struct kvl_span *s, const struct span_work *w,
                        const struct rows *rows, struct side *turned, int32_t i)
{
    int32_t head_dim = s->a->head_dim;
    for (int32_t t = 0; t < rows->n; t++) {
        float *k = w->k + (size_t)t * w->pad;
        const float *cs = kvl_rope_row(s->rope, s->job->pos[i + t], w->cs);
        kv_row(k, side_kept(s, &rows->k, w->k_kept, t), head_dim);
        rotate(k, k, cs, head_dim, s->a->rope);
    }
    side_floats(turned, w->k, w->pad, rows->n);
}

/* Widened rows, as they lie there; asks for those of the next tile. */
static void span_widen(const struct kvl_span *s, enum kvl_kv_type type, size_t row_bytes,
                       const struct side *from, const struct side *next, int32_t n, int32_t n_next,
                       float *to, struct side *wide)
{
    const size_t pad = kvl_span_pad(s->a->head_dim);
    for (int32_t t = 0; t < n; t++) {
        if (t < n_next) prefetch_row(next->at[t] + next->off, row_bytes);
        const struct kvl_kept kept = side_kept(s, from, type, t);
        kv_kept(to + (size_t)t * pad, &kept, s->a->head_dim);
    }
    side_floats(wide, to, pad, n);
}

/* What the heads of a job see of a tile, and what comes after it. */
struct tile {
    const struct side *k, *v, *next_k, *next_v;
    int32_t n, i; /* entries; of the list, the first */
    int32_t k_bits,
        v_bits; /* of sealed rows as they lie there; 0: they are of w->k_type, w->v_type */
};

/* Heads h0 .. h0 + n_heads - 1; the first of them ask for the rows that come next. */
static void span_heads(const struct kvl_span *s, const struct span_work *w, const struct tile *t,
                       int32_t h0, int32_t n_heads)
{
    const struct kvl_layout *l = s->job->lane->layout;
    const struct kvl_layout *k_of = t->k_bits ? l->sealed : l, *v_of = t->v_bits ? l->sealed : l;
    const int32_t group = 2 * VW / n_heads, n = (t->n + group - 1) / group * group;
    const int32_t used = KVL_MIN(n_heads, s->job->n_heads - h0);
    const float *q = w->q + (size_t)h0 * w->pad;
    const struct side *next_k = h0 > 0 ? t->k : t->next_k, *next_v = h0 > 0 ? t->v : t->next_v;
    struct pass scores = { .row = t->k->at,
                           .off = t->k->off,
                           .ahead = next_k->at,
                           .ahead_off = next_k->off,
                           .n = n,
                           .head_dim = s->a->head_dim,
                           .scale = s->a->scale,
                           .row_bytes = k_of->row_bytes[KVL_PART_K] };
    struct pass values = { .row = t->v->at,
                           .off = t->v->off,
                           .ahead = next_v->at,
                           .ahead_off = next_v->off,
                           .n = n,
                           .head_dim = s->a->head_dim,
                           .row_bytes = v_of->row_bytes[KVL_PART_V],
                           .scaled = w->scaled };
    if (t->k_bits)
        kivi_scores(w->sc, &scores, t->k_bits, q, w->k, used);
    else if (span_blocks(w->k_type))
        q8_scores(w->sc, &scores, w->k_type, (const int16_t *)(const void *)q, w->q_scale + h0,
                  used);
    else if (kv_is_scaled(w->k_type))
        scaled_scores(w->sc, &scores, w->k_type, q, used);
    else
        span_scores(w->sc, &scores, w->k_type, q, used);
    if (s->a->cap > 0) cap_products(w->sc, (size_t)(n * n_heads), 1, s->a->cap);
    span_logits(s, w->sc, h0, n_heads, t->i, t->n, n);
    if (!s->max) return; /* logits alone are wanted */
    span_softmax(s, w->sc, n * n_heads, h0, n_heads, w->pad, s->acc && w->v_type == KVL_W_BF16);
    if (s->acc && t->v_bits)
        kivi_values(s->acc + (size_t)h0 * w->pad, w->pad, &values, t->v_bits, w->sc, used);
    else if (s->acc && span_blocks(w->v_type))
        q8_values(s->acc + (size_t)h0 * w->pad, w->pad, &values, w->v_type, w->sc, used);
    else if (s->acc && kv_is_scaled(w->v_type))
        scaled_values(s->acc + (size_t)h0 * w->pad, w->pad, &values, w->v_type, w->sc, used);
    else if (s->acc)
        span_values(s->acc + (size_t)h0 * w->pad, w->pad, &values, w->v_type, w->sc, used);
}

/* Sealed rows that are read as they lie there; `ahead`: what to ask for meanwhile. */
static void span_sealed(const struct kvl_span *s, const struct span_work *w,
                        const struct rows *rows, const struct rows *next, struct tile *t,
                        struct side *ahead)
{
    const struct kvl_layout *sealed = s->job->lane->layout->sealed;
    if (s->job->lane->n_sealed == 0) return;
    if (w->k_wide && !s->job->pos && !s->job->keys) t->k_bits = kivi_group(&rows->k, rows->n);
    if (w->v_wide && s->acc) t->v_bits = kivi_rows(&rows->v, rows->n);
    const struct rows *come = next->n > 0 && next->kept ? next : rows;
    if (t->k_bits) t->next_k = &ahead[0];
    if (t->v_bits) t->next_v = &ahead[1];
    kivi_ahead(&ahead[0], &come->k, sealed->row_bytes[KVL_PART_K], come->n);
    kivi_ahead(&ahead[1], &come->v, sealed->row_bytes[KVL_PART_V], come->n);
}

static void span_tile(const struct kvl_span *s, const struct span_work *w, const struct rows *rows,
                      const struct rows *next, int32_t i)
{
    const struct kvl_layout *l = s->job->lane->layout;
    const bool own_keys = s->job->pos || s->job->keys;
    struct side k, v, ahead[2];
    struct tile t = { .k = &rows->k, .v = &rows->v, .n = rows->n, .i = i };
    span_sealed(s, w, rows, next, &t, ahead);
    if (!t.k_bits && (own_keys || w->k_wide)) t.k = &k;
    if (!t.v_bits && s->acc && w->v_wide) t.v = &v;
    /* Asks for what is there where there is nothing to come, or where rows were fetched already. */
    if (!t.k_bits) t.next_k = next->n > 0 && (own_keys || t.k != &k) ? &next->k : t.k;
    if (!t.v_bits) t.next_v = next->n > 0 && t.v != &v ? &next->v : t.v;
    if (s->job->pos) span_rotate(s, w, rows, &k, i);
    if (s->job->keys)
        side_floats(&k, s->job->keys + (size_t)i * (size_t)s->a->head_dim, (size_t)s->a->head_dim,
                    rows->n);
    if (!own_keys && t.k == &k)
        span_widen(s, w->k_kept, l->row_bytes[KVL_PART_K], &rows->k, &next->k, rows->n, next->n,
                   w->k, &k);
    if (t.v == &v)
        span_widen(s, w->v_kept, l->row_bytes[KVL_PART_V], &rows->v, &next->v, rows->n, next->n,
                   w->v, &v);
    for (int32_t h = 0; h < s->job->n_heads; h += span_group(s->job, h))
        span_heads(s, w, &t, h, span_group(s->job, h));
}

/* Sums over bf16 values into the order of their channels. */
static void span_unzip(const struct kvl_span *s, size_t n)
{
    for (size_t c = 0; c < n; c += 2 * VW) {
        vf lo = vf_load(s->acc + c), hi = vf_load(s->acc + c + VW);
        vf_unzip(&lo, &hi);
        vf_store(s->acc + c, lo);
        vf_store(s->acc + c + VW, hi);
    }
}

/* Rows of a part that are of two types, of open and of sealed blocks, are widened. */
static bool span_mixes(const struct kvl_span *s, enum kvl_kv_part part)
{
    const struct kvl_lane *lane = s->job->lane;
    return lane->n_sealed > 0 && lane->layout->sealed->type[part] != lane->layout->type[part];
}

static void span_types(const struct kvl_span *s, struct span_work *w)
{
    const struct kvl_layout *l = s->job->lane->layout;
    const enum kvl_kv_part key = s->job->pos ? KVL_PART_K_RAW : KVL_PART_K;
    w->k_kept = l->type[key];
    w->v_kept = l->type[KVL_PART_V];
    w->k_wide = kv_is_widened(w->k_kept) || span_mixes(s, key);
    w->v_wide = kv_is_widened(w->v_kept) || span_mixes(s, KVL_PART_V);
    w->k_type = s->job->pos || s->job->keys || w->k_wide ? KVL_W_F32 : kv_in_place(w->k_kept);
    w->v_type = w->v_wide ? KVL_W_F32 : kv_in_place(w->v_kept);
}

static void span_run(const struct kvl_span *s)
{
    struct walk walk;
    struct rows rows[2];
    size_t n_heads = (size_t)kvl_span_heads(s->job->n_heads), pad = kvl_span_pad(s->a->head_dim);
    struct span_work w = { .q = s->scratch, .pad = pad };
    span_types(s, &w);
    const bool widened = w.k_wide || w.v_wide;
    const bool light = widened || span_short(w.k_type) || span_light(w.v_type, s->job->n_heads);
    const int32_t tile = light ? KVL_SPAN_TILE / 4 : KVL_SPAN_TILE;
    w.cs = w.q + n_heads * pad;
    w.sc = w.cs + pad;
    w.k = w.sc + SPAN_HEADS * KVL_SPAN_TILE;
    w.q_scale = w.k + Q8_TILE * pad; /* its tiles are short: there is room */
    w.scaled = w.q_scale + (n_heads + 15) / 16 * 16;
    w.v = w.k + 3 * Q8_TILE * pad;
    for (size_t h = 0; s->max && h < n_heads; h++) {
        s->max[h] = -INFINITY;
        s->sum[h] = 0;
    }
    if (s->acc) memset(s->acc, 0, n_heads * pad * sizeof *s->acc);
    span_query(s, &w);
    walk_open(&walk, s);
    walk_next(&walk, KVL_MIN(tile, s->n), tile, &rows[0]);
    for (int32_t i = 0, now = 0; i < s->n; i += tile, now = !now) {
        int32_t left = s->n - i - tile;
        if (left <= 0 && s->next) {
            walk_open(&walk, s->next);
            left = s->next->n;
        }
        walk_next(&walk, KVL_MAX(0, KVL_MIN(tile, left)), tile, &rows[!now]);
        span_tile(s, &w, &rows[now], &rows[!now], s->i0 + i);
    }
    if (s->acc && w.v_type == KVL_W_BF16) span_unzip(s, n_heads * pad);
    for (size_t h = 0; s->acc && h < n_heads; h++)
        kv_turn(s->acc + h * pad, s->a->head_dim, kvl_row_turn(w.v_kept), true);
}

#endif
