/* kern_span_scaled.h - scores and values of a tile of rows that have one scale each, before their elements: fp8_e4m3 and
 * turboquant (kv_row.h).  Elements become floats as they are; scores are multiplied with the scales of their keys after
 * the sums, weights with those of their values before. */
#ifndef KVL_KERN_SPAN_SCALED_H
#define KVL_KERN_SPAN_SCALED_H

#include "kern_kv.h"
#include "kern_span_q8.h"

/* Elements begin behind the scale. */
enum { SCALED_HEAD = 2 };

/* d [Q8_TILE]: scales of the rows of a tile. */
VEC void scaled_scales(float *d, const struct pass *p, enum kvl_wtype type)
{
    for (int32_t t = 0; t < p->n; t++) d[t] = kv_load_scale(p->row[t] + p->off, type);
}

VEC vf scaled_load(const struct pass *p, int32_t t, enum kvl_wtype type, int32_t c)
{
    return kv_load(p->row[t] + p->off + SCALED_HEAD, type, c, p->head_dim);
}

/* One vector of sc: q . k of VW / n_heads slots, slot t and up. */
VEC void scaled_scores_group(float *sc, const struct pass *p, int32_t t, enum kvl_wtype type,
                             const float *q, const float *d, int32_t n_heads, int32_t used)
{
    const int32_t n_tok = VW / n_heads;
    vf s[VW];
    UNROLL
    for (int32_t i = 0; i < VW; i++) s[i] = vf_zero();
    UNROLL
    for (int32_t j = 0; j < n_tok; j++) q8_prefetch(p, t + j, 0);
    for (int32_t c = 0; c < p->head_dim; c += VW) {
        UNROLL
        for (int32_t j = 0; j < n_tok; j++) {
            vf x = scaled_load(p, t + j, type, c);
            UNROLL
            for (int32_t h = 0; h < used; h++)
                s[h * n_tok + j] = vf_fma(x, vf_load(q + c * n_heads + h * VW), s[h * n_tok + j]);
        }
    }
    vf scale = vf_mul(vf_spread(d + t, n_heads), vf_set1(p->scale));
    vf_store(sc, vf_mul(vf_sums(s), scale));
}

VEC void scaled_scores_heads(float *sc, const struct pass *p, enum kvl_wtype type, const float *q,
                             int32_t n_heads, int32_t used)
{
    float d[Q8_TILE];
    scaled_scales(d, p, type);
    for (int32_t t = 0; t < p->n; t += VW / n_heads)
        scaled_scores_group(sc + t * n_heads, p, t, type, q, d, n_heads, used);
}

/* acc += weight times value for n_vec vectors of channels from c on, over all rows. */
VEC void scaled_values_chunk(float *acc, size_t pad, const struct pass *p, enum kvl_wtype type,
                             int32_t n_heads, int32_t used, int32_t c, int32_t n_vec)
{
    const int32_t n_tok = VW / n_heads;
    vf s[16];
    UNROLL
    for (int32_t i = 0; i < used * n_vec; i++)
        s[i] = vf_load(acc + (size_t)(i / n_vec) * pad + c + i % n_vec * VW);
    for (int32_t t = 0; t < p->n; t += n_tok) {
        UNROLL
        for (int32_t j = 0; j < n_tok; j++) {
            vf x[8];
            UNROLL
            for (int32_t u = 0; u < n_vec; u++) x[u] = scaled_load(p, t + j, type, c + u * VW);
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
VEC void scaled_values_heads(float *acc, size_t pad, const struct pass *p, enum kvl_wtype type,
                             const float *weight, int32_t n_heads, int32_t used)
{
    const int32_t n_tok = VW / n_heads, n_vec = KVL_MAX(1, 8 / n_heads);
    float d[Q8_TILE];
    int32_t c = 0;
    scaled_scales(d, p, type);
    for (int32_t t = 0; t < p->n; t++) q8_prefetch(p, t, 0);
    for (int32_t t = 0; t < p->n; t += n_tok)
        vf_store(p->scaled + t * n_heads,
                 vf_mul(vf_load(weight + t * n_heads), vf_spread(d + t, n_heads)));
    for (; c + n_vec * VW <= p->head_dim; c += n_vec * VW)
        scaled_values_chunk(acc, pad, p, type, n_heads, used, c, n_vec);
    for (; c < p->head_dim; c += VW) scaled_values_chunk(acc, pad, p, type, n_heads, used, c, 1);
}

static enum kvl_wtype scaled_type(const struct pass *p, enum kvl_wtype type)
{
    return type == KV_W_E4M3 && p->head_dim % VW != 0 ? KV_W_E4M3_ENDS : type;
}

static void scaled_scores(float *sc, const struct pass *p, enum kvl_wtype type, const float *q,
                          int32_t n_heads)
{
    const enum kvl_wtype p_type = scaled_type(p, type);
#define SCALED_SCORES(of, n, used) scaled_scores_heads(sc, p, of, q, n, used)
    HEADS_CASE(KV_W_E4M3, SCALED_SCORES);
    HEADS_CASE(KV_W_E4M3_ENDS, SCALED_SCORES);
    HEADS_CASE(KV_W_CODES4, SCALED_SCORES);
    HEADS_CASE(KV_W_CODES3, SCALED_SCORES);
}

static void scaled_values(float *acc, size_t pad, const struct pass *p, enum kvl_wtype type,
                          const float *weight, int32_t n_heads)
{
    const enum kvl_wtype p_type = scaled_type(p, type);
#define SCALED_VALUES(of, n, used) scaled_values_heads(acc, pad, p, of, weight, n, used)
    HEADS_CASE(KV_W_E4M3, SCALED_VALUES);
    HEADS_CASE(KV_W_E4M3_ENDS, SCALED_VALUES);
    HEADS_CASE(KV_W_CODES4, SCALED_VALUES);
    HEADS_CASE(KV_W_CODES3, SCALED_VALUES);
}

#endif
