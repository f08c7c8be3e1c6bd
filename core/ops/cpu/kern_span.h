/* kern_span.h - attention of the query heads of a job over a piece of its list.
 *
 * Slots are taken SPAN_TILE at a time.  Their K and V rows pass from memory once for all heads of
 * the job: scores of up to SPAN_HEADS heads share every loaded vector, and the rows of the next tile
 * are prefetched into L2 meanwhile (into L1 halves the speed of sequential reads). */
#ifndef KVL_KERN_SPAN_H
#define KVL_KERN_SPAN_H

#include "ops/cpu/kern_row.h"

enum { SPAN_TILE = 32, SPAN_HEADS = 4, SPAN_TOK = VW / SPAN_HEADS };

/* Walks the list and yields the address of every row. */
struct walk {
    const struct kvl_lane *lane;
    const struct kvl_run *runs;
    struct kvl_run all; /* stands for runs == NULL */
    int32_t run, off;
    size_t row_bytes, k_off, v_off;
};

struct rows {
    const uint8_t *k[SPAN_TILE], *v[SPAN_TILE];
    int32_t n;
};

static void walk_open(struct walk *w, const struct kvl_span *s)
{
    const struct kvl_layout *l = s->job->lane->layout;
    w->lane = s->job->lane;
    w->all = (struct kvl_run){ .slot = 0, .n = s->job->n_slots };
    w->runs = s->job->runs ? s->job->runs : &w->all;
    w->run = s->run;
    w->off = s->run_off;
    w->row_bytes = (size_t)l->head_dim * l->elem_bytes;
    w->k_off = l->part_off[s->job->pos ? KVL_PART_K_RAW : KVL_PART_K];
    w->v_off = l->part_off[KVL_PART_V];
}

/* The rows of the next n entries; a short tile repeats its last row. */
static void walk_next(struct walk *w, int32_t n, struct rows *rows)
{
    const struct kvl_layout *l = w->lane->layout;
    int32_t i = 0;
    while (i < n) {
        while (w->off >= w->runs[w->run].n) {
            w->run++;
            w->off = 0;
        }
        int32_t slot = w->runs[w->run].slot + w->off, in_block = slot & (l->block_tok - 1);
        int32_t len = KVL_MIN(l->block_tok - in_block, w->runs[w->run].n - w->off);
        assert(slot >= 0 && slot < w->lane->n_slots);
        len = KVL_MIN(len, n - i);
        const uint8_t *at =
            w->lane->blocks[slot >> l->block_shift] + (size_t)in_block * w->row_bytes;
        for (int32_t j = 0; j < len; j++, at += w->row_bytes) {
            rows->k[i + j] = at + w->k_off;
            rows->v[i + j] = at + w->v_off;
        }
        i += len;
        w->off += len;
    }
    rows->n = n;
    for (; i < SPAN_TILE && n > 0; i++) {
        rows->k[i] = rows->k[n - 1];
        rows->v[i] = rows->v[n - 1];
    }
}

/* Asks for the lines of `n` rows from byte `off` on that a step of `bytes` will read.  One or two at a
 * time between the multiply-adds: a burst of them would fill the miss buffers and stop everything. */
VEC void prefetch_step(const uint8_t *const *row, int32_t n, size_t off, size_t bytes)
{
    UNROLL
    for (int32_t i = 0; i < n; i++) {
        if (bytes > 64) __builtin_prefetch(row[i] + off + 64, 0, 2);
        if (bytes >= 64 || off % 64 == 0) __builtin_prefetch(row[i] + off, 0, 2);
    }
}

VEC void prefetch_rows(const uint8_t *const *row, int32_t n, size_t bytes)
{
    for (int32_t i = 0; i < n; i++)
        for (size_t o = 0; o < bytes; o += 64) __builtin_prefetch(row[i] + o, 0, 2);
}

VEC void scores_step(vf *s, const uint8_t *const *k, enum kvl_wtype type, const float *q,
                     size_t pad, int32_t n_heads, int32_t c, int32_t len)
{
    vf x[SPAN_TOK];
    UNROLL
    for (int32_t j = 0; j < SPAN_TOK; j++)
        x[j] = len == VW ? load_as(k[j], type, (size_t)c) : load_as_n(k[j], type, (size_t)c, len);
    UNROLL
    for (int32_t h = 0; h < n_heads; h++) {
        vf y = vf_load(q + (size_t)h * pad + c);
        UNROLL
        for (int32_t j = 0; j < SPAN_TOK; j++)
            s[h * SPAN_TOK + j] = vf_fma(x[j], y, s[h * SPAN_TOK + j]);
    }
}

/* sc [n_heads][SPAN_TILE] = q . k, for whole groups of SPAN_TOK slots. */
VEC void scores_heads(float *sc, const struct rows *rows, const struct rows *next,
                      enum kvl_wtype type, const float *q, int32_t n_heads, int32_t head_dim)
{
    const size_t pad = kvl_head_pad(head_dim), elem = type == KVL_W_F16 ? 2 : 4;
    for (int32_t t = 0; t < rows->n; t += SPAN_TOK) {
        vf s[VW];
        float sums[VW];
        int32_t c = 0;
        UNROLL
        for (int32_t i = 0; i < VW; i++) s[i] = vf_zero();
        for (; c + VW <= head_dim; c += VW) {
            if (next) prefetch_step(next->k + t, SPAN_TOK, (size_t)c * elem, VW * elem);
            scores_step(s, rows->k + t, type, q, pad, n_heads, c, VW);
        }
        if (c < head_dim) scores_step(s, rows->k + t, type, q, pad, n_heads, c, head_dim - c);
        vf_store(sums, vf_sums(s));
        for (int32_t h = 0; h < n_heads; h++)
            memcpy(sc + h * SPAN_TILE + t, sums + h * SPAN_TOK, SPAN_TOK * sizeof *sc);
    }
}

VEC void values_step(float *acc, size_t pad, const struct rows *rows, const struct rows *next,
                     enum kvl_wtype type, const float *p, int32_t n_heads, int32_t c, int32_t len,
                     int32_t n_vec)
{
    const size_t elem = type == KVL_W_F16 ? 2 : 4;
    vf s[SPAN_HEADS][2];
    for (int32_t h = 0; h < n_heads; h++)
        for (int32_t u = 0; u < n_vec; u++) s[h][u] = vf_load(acc + (size_t)h * pad + c + u * VW);
    for (int32_t t = 0; t < rows->n; t++) {
        vf x[2];
        if (next) prefetch_step(next->v + t, 1, (size_t)c * elem, (size_t)(n_vec * VW) * elem);
        UNROLL
        for (int32_t u = 0; u < n_vec; u++)
            x[u] = len == VW ? load_as(rows->v[t], type, (size_t)(c + u * VW))
                             : load_as_n(rows->v[t], type, (size_t)c, len);
        UNROLL
        for (int32_t h = 0; h < n_heads; h++) {
            vf w = vf_set1(p[h * SPAN_TILE + t]);
            UNROLL
            for (int32_t u = 0; u < n_vec; u++) s[h][u] = vf_fma(x[u], w, s[h][u]);
        }
    }
    for (int32_t h = 0; h < n_heads; h++)
        for (int32_t u = 0; u < n_vec; u++) vf_store(acc + (size_t)h * pad + c + u * VW, s[h][u]);
}

/* acc [n_heads][pad] += p v. */
VEC void values_heads(float *acc, const struct rows *rows, const struct rows *next,
                      enum kvl_wtype type, const float *p, int32_t n_heads, int32_t head_dim)
{
    size_t pad = kvl_head_pad(head_dim);
    int32_t c = 0;
    for (; c + 2 * VW <= head_dim; c += 2 * VW)
        values_step(acc, pad, rows, next, type, p, n_heads, c, VW, 2);
    for (; c + VW <= head_dim; c += VW)
        values_step(acc, pad, rows, next, type, p, n_heads, c, VW, 1);
    if (c < head_dim) values_step(acc, pad, rows, next, type, p, n_heads, c, head_dim - c, 1);
}

/* One function per element type and number of heads, so that sums stay in registers. */
static void span_scores(float *sc, const struct rows *rows, const struct rows *next,
                        enum kvl_wtype type, const float *q, int32_t n_heads, int32_t head_dim)
{
    switch (n_heads + (type == KVL_W_F16 ? SPAN_HEADS : 0)) {
    case 1: scores_heads(sc, rows, next, KVL_W_F32, q, 1, head_dim); break;
    case 2: scores_heads(sc, rows, next, KVL_W_F32, q, 2, head_dim); break;
    case 3: scores_heads(sc, rows, next, KVL_W_F32, q, 3, head_dim); break;
    case 4: scores_heads(sc, rows, next, KVL_W_F32, q, 4, head_dim); break;
    case 5: scores_heads(sc, rows, next, KVL_W_F16, q, 1, head_dim); break;
    case 6: scores_heads(sc, rows, next, KVL_W_F16, q, 2, head_dim); break;
    case 7: scores_heads(sc, rows, next, KVL_W_F16, q, 3, head_dim); break;
    default: scores_heads(sc, rows, next, KVL_W_F16, q, 4, head_dim); break;
    }
}

static void span_values(float *acc, const struct rows *rows, const struct rows *next,
                        enum kvl_wtype type, const float *p, int32_t n_heads, int32_t head_dim)
{
    switch (n_heads + (type == KVL_W_F16 ? SPAN_HEADS : 0)) {
    case 1: values_heads(acc, rows, next, KVL_W_F32, p, 1, head_dim); break;
    case 2: values_heads(acc, rows, next, KVL_W_F32, p, 2, head_dim); break;
    case 3: values_heads(acc, rows, next, KVL_W_F32, p, 3, head_dim); break;
    case 4: values_heads(acc, rows, next, KVL_W_F32, p, 4, head_dim); break;
    case 5: values_heads(acc, rows, next, KVL_W_F16, p, 1, head_dim); break;
    case 6: values_heads(acc, rows, next, KVL_W_F16, p, 2, head_dim); break;
    case 7: values_heads(acc, rows, next, KVL_W_F16, p, 3, head_dim); break;
    default: values_heads(acc, rows, next, KVL_W_F16, p, 4, head_dim); break;
    }
}

/* Turns the logits of one head into exp(logit - max), with the running maximum. */
static void span_softmax(const struct kvl_span *s, float *sc, int32_t h, size_t pad)
{
    vf x[SPAN_TILE / VW], top = vf_set1(-INFINITY), sum = vf_zero();
    for (int32_t i = 0; i < SPAN_TILE / VW; i++) {
        x[i] = vf_load(sc + i * VW);
        top = vf_max(top, x[i]);
    }
    float max = vf_hmax(top);
    if (max > s->max[h]) {
        float keep = expf(s->max[h] - max);
        s->max[h] = max;
        s->sum[h] *= keep;
        for (size_t c = 0; s->acc && c < pad; c++) s->acc[(size_t)h * pad + c] *= keep;
    }
    /* Nothing but -inf so far: the difference would be NaN. */
    vf shift = vf_set1(s->max[h] == -INFINITY ? 0 : s->max[h]);
    for (int32_t i = 0; i < SPAN_TILE / VW; i++) {
        vf e = vf_exp(vf_sub(x[i], shift));
        sum = vf_add(sum, e);
        vf_store(sc + i * VW, e);
    }
    s->sum[h] += vf_hsum(sum);
}

/* Logits as the job wants them: list weights added, kept for probs, -inf behind the end. */
static void span_logits(const struct kvl_span *s, float *sc, int32_t h, int32_t i, int32_t n)
{
    const struct kvl_attn_job *job = s->job;
    for (int32_t t = 0; job->log_weight && t < n; t++) sc[t] += job->log_weight[i + t];
    if (job->probs)
        memcpy(job->probs + (size_t)h * (size_t)job->n_slots + i, sc, (size_t)n * sizeof *sc);
    for (int32_t t = n; t < SPAN_TILE; t++) sc[t] = -INFINITY;
}

/* Scratch: q [n_heads][pad], one row of cosines and sines, rotated keys [SPAN_TILE][pad]. */
struct span_work {
    float *q, *cs, *k;
    const struct kvl_rope_table *rope;
    size_t pad;
};

static void span_query(const struct kvl_span *s, const struct span_work *w)
{
    int32_t head_dim = s->a->head_dim;
    for (int32_t h = 0; h < s->job->n_heads; h++) {
        const float *from = s->job->q + (size_t)h * (size_t)head_dim;
        float *to = w->q + (size_t)h * w->pad;
        if (s->job->pos)
            rotate(to, from, kvl_rope_row(w->rope, s->job->q_pos, w->cs), head_dim, s->a->style);
        else
            memcpy(to, from, (size_t)head_dim * sizeof *to);
        for (int32_t c = 0; c < head_dim; c++) to[c] *= s->a->scale;
        for (size_t c = (size_t)head_dim; c < w->pad; c++) to[c] = 0;
    }
}

/* Widened, rotated keys take the place of the stored ones. */
static void span_rotate(const struct kvl_span *s, const struct span_work *w, struct rows *rows,
                        enum kvl_wtype type, int32_t i)
{
    int32_t head_dim = s->a->head_dim;
    for (int32_t t = 0; t < SPAN_TILE; t++) {
        float *k = w->k + (size_t)t * w->pad;
        if (t < rows->n) {
            const float *cs = kvl_rope_row(w->rope, s->job->pos[i + t], w->cs);
            widen(k, rows->k[t], type, head_dim);
            rotate(k, k, cs, head_dim, s->a->style);
        }
        rows->k[t] = (const uint8_t *)(t < rows->n ? k : w->k);
    }
}

static void span_tile(const struct kvl_span *s, const struct span_work *w, struct rows *rows,
                      const struct rows *next, int32_t i)
{
    enum kvl_wtype type = s->job->lane->layout->type == KVL_KV_F16 ? KVL_W_F16 : KVL_W_F32;
    int32_t head_dim = s->a->head_dim;
    size_t row_bytes = (size_t)head_dim * s->job->lane->layout->elem_bytes;
    if (next->n == 0) next = NULL;
    if (s->job->pos) {
        if (next) prefetch_rows(next->k, next->n, row_bytes);
        span_rotate(s, w, rows, type, i);
    }
    for (int32_t h = 0; h < s->job->n_heads; h += SPAN_HEADS) {
        float sc[SPAN_HEADS * SPAN_TILE];
        int32_t n_heads = KVL_MIN(SPAN_HEADS, s->job->n_heads - h);
        span_scores(sc, rows, h || s->job->pos ? NULL : next, s->job->pos ? KVL_W_F32 : type,
                    w->q + (size_t)h * w->pad, n_heads, head_dim);
        for (int32_t g = 0; g < n_heads; g++) {
            span_logits(s, sc + g * SPAN_TILE, h + g, i, rows->n);
            span_softmax(s, sc + g * SPAN_TILE, h + g, w->pad);
        }
        if (s->acc)
            span_values(s->acc + (size_t)h * w->pad, rows, h ? NULL : next, type, sc, n_heads,
                        head_dim);
    }
}

static void span_run(const struct kvl_span *s)
{
    struct walk walk;
    struct rows rows[2];
    size_t pad = kvl_head_pad(s->a->head_dim), q_len = (size_t)s->job->n_heads * pad;
    struct span_work w = { .q = s->scratch,
                           .cs = s->scratch + q_len,
                           .k = s->scratch + q_len + pad,
                           .rope = s->rope,
                           .pad = pad };
    for (int32_t h = 0; h < s->job->n_heads; h++) {
        s->max[h] = -INFINITY;
        s->sum[h] = 0;
    }
    if (s->acc) memset(s->acc, 0, q_len * sizeof *s->acc);
    span_query(s, &w);
    walk_open(&walk, s);
    walk_next(&walk, KVL_MIN(SPAN_TILE, s->n), &rows[0]);
    for (int32_t i = 0, now = 0; i < s->n; i += SPAN_TILE, now = !now) {
        /* Behind the last tile comes the next span, which this thread most likely takes next. */
        int32_t left = s->job->n_slots - s->i0 - i - SPAN_TILE;
        walk_next(&walk, KVL_MAX(0, KVL_MIN(SPAN_TILE, left)), &rows[!now]);
        span_tile(s, &w, &rows[now], &rows[!now], s->i0 + i);
    }
}

#endif
