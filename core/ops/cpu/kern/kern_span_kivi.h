/* kern_span_kivi.h - scores and values of a tile of sealed KIVI blocks as they lie there (kv_row.h).
 *
 * Codes become floats as they are.  Keys: a tile is one group, whose scales are multiplied with the queries before, and
 * whose mins with them are the same for all of its tokens.  Values: weights are multiplied with the scales of a unit of
 * channels, and the sum of weights times mins is the same for all of its channels. */
#ifndef KVL_KERN_SPAN_KIVI_H
#define KVL_KERN_SPAN_KIVI_H

#include "kern_kv.h"
#include "kern_span_q8.h"
#include "kern_span_rows.h"

/* Bits of codes, 0 of a type that has none. */
static int32_t kivi_bits(enum kvl_kv_type type)
{
    return type == KVL_KV_KIVI4 ? 4 : type == KVL_KV_KIVI2 ? 2 : 0;
}

/* Whether a tile of n keys of a lane with sealed blocks is a group, token by token: bits of its codes, else 0. */
static int32_t kivi_group(const struct side *k, int32_t n)
{
    if (n != KVL_KV_GROUP) return 0;
    for (int32_t t = 0; t < n; t++)
        if (k->kept[t].token != t || k->kept[t].at != k->kept[0].at) return 0;
    return kivi_bits(k->kept[0].type);
}

/* The same of values: all of them are sealed. */
static int32_t kivi_rows(const struct side *v, int32_t n)
{
    const int32_t bits = kivi_bits(v->kept[0].type);
    for (int32_t t = 1; t < n; t++)
        if (v->kept[t].type != v->kept[0].type) return 0;
    return bits;
}

/* What to ask for of the n rows that come next: of a group the share of each token. */
static void kivi_ahead(struct side *to, const struct side *next, size_t row_bytes, int32_t n)
{
    for (int32_t t = 0; t < n; t++)
        to->at[t] = next->kept[t].at + (size_t)KVL_MAX(0, next->kept[t].token) * row_bytes;
    side_fill(to, n, Q8_TILE);
    to->off = 0;
}

/* by [channels / VW][head][VW] = q times the scales of the group; off, by lane of a vector of scores: q times its mins. */
VEC vf kivi_query(float *by, const struct pass *p, const float *q, int32_t n_heads, int32_t used)
{
    const uint16_t *min = (const uint16_t *)(const void *)(p->row[0] + p->off);
    const uint16_t *scale = min + p->head_dim;
    float off[VW] = { 0 }, lane[VW];
    vf base[4];
    UNROLL
    for (int32_t h = 0; h < used; h++) base[h] = vf_zero();
    for (int32_t c = 0; c < p->head_dim; c += VW) {
        const vf m = vf_load_f16(min + c), s = vf_load_f16(scale + c);
        UNROLL
        for (int32_t h = 0; h < used; h++) {
            vf y = vf_load(q + c * n_heads + h * VW);
            base[h] = vf_fma(m, y, base[h]);
            vf_store(by + c * n_heads + h * VW, vf_mul(s, y));
        }
    }
    for (int32_t h = 0; h < used; h++) {
        float sum = 0;
        vf_store(lane, base[h]);
        for (int32_t i = 0; i < VW; i++) sum += lane[i];
        for (int32_t i = 0; i < VW / n_heads; i++) off[h * (VW / n_heads) + i] = sum;
    }
    return vf_load(off);
}

/* by: room for a query of each head. */
VEC void kivi_scores_heads(float *sc, const struct pass *p, int32_t bits, const float *q, float *by,
                           int32_t n_heads, int32_t used)
{
    const int32_t n_tok = VW / n_heads;
    const vf off = kivi_query(by, p, q, n_heads, used), scale = vf_set1(p->scale);
    const uint8_t *codes = p->row[0] + p->off + kvl_kivi_group_codes(p->head_dim, bits, 0);
    const size_t step = (size_t)(p->head_dim / 8 * bits);
    for (int32_t t = 0; t < p->n; t += n_tok, codes += (size_t)n_tok * step) {
        vf s[VW];
        UNROLL
        for (int32_t i = 0; i < VW; i++) s[i] = vf_zero();
        UNROLL
        for (int32_t j = 0; j < n_tok; j++)
            for (size_t o = 0; o < p->row_bytes; o += 64)
                __builtin_prefetch(p->ahead[t + j] + o, 0, 2);
        for (int32_t c = 0; c < p->head_dim; c += VW) {
            UNROLL
            for (int32_t j = 0; j < n_tok; j++) {
                vf x = kv_codes(codes + (size_t)j * step, bits, c);
                UNROLL
                for (int32_t h = 0; h < used; h++)
                    s[h * n_tok + j] =
                        vf_fma(x, vf_load(by + c * n_heads + h * VW), s[h * n_tok + j]);
            }
        }
        vf_store(sc + t * n_heads, vf_mul(vf_add(vf_sums(s), off), scale));
    }
}

/* Weights of a unit times its scales to p->scaled; the sums of weights times mins to off, by head. */
VEC void kivi_weights(const struct pass *p, size_t unit, const float *weight, float *off,
                      int32_t n_heads)
{
    const int32_t n_tok = VW / n_heads;
    float d[Q8_TILE], m[Q8_TILE], lane[VW];
    vf sum = vf_zero();
    for (int32_t t = 0; t < p->n; t += VW) {
        vf_store(m + t, vf_halves(p->row + t, unit));
        vf_store(d + t, vf_halves(p->row + t, unit + 2));
    }
    for (int32_t t = 0; t < p->n; t += n_tok) {
        vf w = vf_load(weight + t * n_heads);
        vf_store(p->scaled + t * n_heads, vf_mul(w, vf_spread(d + t, n_heads)));
        sum = vf_fma(w, vf_spread(m + t, n_heads), sum);
    }
    vf_store(lane, sum);
    for (int32_t h = 0; h < n_heads; h++) {
        off[h] = 0;
        for (int32_t i = 0; i < n_tok; i++) off[h] += lane[h * n_tok + i];
    }
}

/* acc += weight times value for n_vec vectors of channels of a unit, from c of it on; codes: where those of a row begin. */
VEC void kivi_values_chunk(float *acc, size_t pad, const struct pass *p, int32_t bits, size_t codes,
                           const float *off, int32_t n_heads, int32_t used, int32_t c,
                           int32_t n_vec)
{
    const int32_t n_tok = VW / n_heads;
    vf s[16];
    UNROLL
    for (int32_t i = 0; i < used * n_vec; i++)
        s[i] = vf_add(vf_set1(off[i / n_vec]),
                      vf_load(acc + (size_t)(i / n_vec) * pad + c + i % n_vec * VW));
    for (int32_t t = 0; t < p->n; t += n_tok) {
        UNROLL
        for (int32_t j = 0; j < n_tok; j++) {
            vf x[8];
            UNROLL
            for (int32_t u = 0; u < n_vec; u++)
                x[u] = kv_codes(p->row[t + j] + codes, bits, c + u * VW);
            UNROLL
            for (int32_t h = 0; h < used; h++) {
                vf y = vf_set1(p->scaled[t * n_heads + h * n_tok + j]);
                UNROLL
                for (int32_t u = 0; u < n_vec; u++)
                    s[h * n_vec + u] = vf_fma(x[u], y, s[h * n_vec + u]);
            }
        }
    }
    UNROLL
    for (int32_t i = 0; i < used * n_vec; i++)
        vf_store(acc + (size_t)(i / n_vec) * pad + c + i % n_vec * VW, s[i]);
}

/* acc [head][pad] += weights times values. */
VEC void kivi_values_heads(float *acc, size_t pad, const struct pass *p, int32_t bits,
                           const float *weight, int32_t n_heads, int32_t used)
{
    const int32_t n_vec = KVL_MIN(KVL_KV_BLOCK / VW, KVL_MAX(1, 8 / n_heads));
    float off[4];
    for (int32_t t = 0; t < p->n; t++)
        for (size_t o = 0; o < p->row_bytes; o += 64) __builtin_prefetch(p->ahead[t] + o, 0, 2);
    for (int32_t u = 0; u < p->head_dim / KVL_KV_BLOCK; u++, acc += KVL_KV_BLOCK) {
        const size_t unit = p->off + (size_t)(u * (4 + 4 * bits));
        kivi_weights(p, unit, weight, off, n_heads);
        for (int32_t c = 0; c < KVL_KV_BLOCK; c += n_vec * VW)
            kivi_values_chunk(acc, pad, p, bits, unit + 4, off, n_heads, used, c, n_vec);
    }
}

static void kivi_scores(float *sc, const struct pass *p, int32_t p_type, const float *q, float *by,
                        int32_t n_heads)
{
#define KIVI_SCORES(of, n, used) kivi_scores_heads(sc, p, of, q, by, n, used)
    HEADS_CASE(4, KIVI_SCORES);
    HEADS_CASE(2, KIVI_SCORES);
}

static void kivi_values(float *acc, size_t pad, const struct pass *p, int32_t p_type,
                        const float *weight, int32_t n_heads)
{
#define KIVI_VALUES(of, n, used) kivi_values_heads(acc, pad, p, of, weight, n, used)
    HEADS_CASE(4, KIVI_VALUES);
    HEADS_CASE(2, KIVI_VALUES);
}

#endif
