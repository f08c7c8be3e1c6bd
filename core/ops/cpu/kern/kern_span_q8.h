/* kern_span_q8.h - scores and values of a tile of rows in blocks of 32 (q8_0, and q4_0 with nibbles for bytes).
 *
 * Scores: a query becomes integers of 16 bits with one scale per head, so that the products of a block
 * are an exact sum of integers, and its scale is one multiply-add more: with four heads fewer steps than
 * widening the key.  Values: integers become floats as they are; the weight of a slot is multiplied with the
 * scales of its blocks before. */
#ifndef KVL_KERN_SPAN_Q8_H
#define KVL_KERN_SPAN_Q8_H

#include "kern_gemvq.h"
#include "kern_row.h"

/* Slots of a tile; blocks of a head at most. */
enum { Q8_TILE = KVL_SPAN_TILE / 4 };

/* One pass over rows: row i is row[i] + off; the same rows of `ahead` are prefetched. */
struct pass {
    const uint8_t *const *row, *const *ahead;
    size_t off, ahead_off;
    int32_t n; /* whole groups of slots */
    int32_t head_dim;
    float scale; /* of scores */
    /* blocks: rows up to Q8_TILE are there; room for weights times scales [blocks][4 Q8_TILE] */
    size_t row_bytes;
    float *scaled;
};

VEC int32_t q8_blocks(const struct pass *p)
{
    return p->head_dim / KVL_KV_BLOCK;
}

VEC size_t q8_block_bytes(enum kvl_wtype type)
{
    return kvl_wtype_bytes(type, KVL_KV_BLOCK);
}

/* The integers of a block; as floats, VW of them from c on. */
VEC vq q8_ints(const uint8_t *block, enum kvl_wtype type)
{
    if (type == KVL_W_Q8_0) return vq_bytes(block + 2);
    return vk_as_q(vk_less(vk_nibbles(block + 2), 8));
}
VEC vf q8_floats(const uint8_t *block, enum kvl_wtype type, int32_t c)
{
    return block_ints(block, type, c);
}

/* Line i of a row, which has at most as many as blocks. */
VEC void q8_prefetch(const struct pass *p, int32_t t, int32_t i)
{
    __builtin_prefetch(p->ahead[t] + p->ahead_off + (size_t)i * 64, 0, 2);
}

/* One query, its head's place in the group being `at`: to [block][n_heads][32].  Returns the scale. */
static float q8_query(int16_t *to, const float *q, int32_t head_dim, int32_t at, int32_t n_heads)
{
    float top = 0, times;
    for (int32_t c = 0; c < head_dim; c += 32) {
        float x = gemv_pack_top(q + c);
        if (!(x <= top)) top = x;
        if (x != x) return x;
    }
    float scale = kvl_gemv_scale(top, KVL_GEMV_MOST, &times);
    for (int32_t c = 0; c < head_dim; c += 32)
        vq_store(to + c * n_heads + at * 32, vq_round(q + c, times));
    return scale;
}

/* One vector of sc: q . k of VW / n_heads slots, slot t and up, times `scale`. */
VEC void q8_scores_group(float *sc, const struct pass *p, int32_t t, enum kvl_wtype type,
                         const int16_t *q, vf scale, int32_t n_heads, int32_t used)
{
    static const int32_t none[8] = { 0 };
    const int32_t n_tok = VW / n_heads;
    vq_sum s[VW];
    UNROLL
    for (int32_t i = 0; i < VW; i++) s[i] = vq_zero();
    for (int32_t b = 0; b < q8_blocks(p); b++, q += n_heads * 32) {
        UNROLL
        for (int32_t j = 0; j < n_tok; j++) {
            const uint8_t *block = p->row[t + j] + p->off + (size_t)b * q8_block_bytes(type);
            if ((size_t)b * 64 < p->row_bytes) q8_prefetch(p, t + j, b);
            vq k = q8_ints(block, type);
            vq_sum d = vq_half(block);
            UNROLL
            for (int32_t h = 0; h < used; h++)
                s[h * n_tok + j] =
                    vq_times(s[h * n_tok + j], d, vq_dot(vq_start(none), k, vq_load(q + h * 32)));
        }
    }
    vq_sums(sc, s, VW);
    vf_store(sc, vf_mul(vf_load(sc), scale));
}

VEC void q8_scores_heads(float *sc, const struct pass *p, enum kvl_wtype type, const int16_t *q,
                         const float *scale, int32_t n_heads, int32_t used)
{
    float lane[VW];
    for (int32_t i = 0; i < VW; i++) lane[i] = scale[i / (VW / n_heads)] * p->scale;
    vf by = vf_load(lane);
    for (int32_t t = 0; t < p->n; t += VW / n_heads)
        q8_scores_group(sc + t * n_heads, p, t, type, q, by, n_heads, used);
}

/* Three heads lie as four, of which nothing is computed of the last. */
#define HEADS_CASE(of, call)                                                                       \
    if (p_type == (of) && n_heads == 1) call(of, 1, 1);                                            \
    if (p_type == (of) && n_heads == 2) call(of, 2, 2);                                            \
    if (p_type == (of) && n_heads == 3) call(of, 4, 3);                                            \
    if (p_type == (of) && n_heads == 4) call(of, 4, 4)

static void q8_scores(float *sc, const struct pass *p, enum kvl_wtype p_type, const int16_t *q,
                      const float *scale, int32_t n_heads)
{
#define Q8_SCORES(of, n, used) q8_scores_heads(sc, p, of, q, scale, n, used)
    HEADS_CASE(KVL_W_Q8_0, Q8_SCORES);
    HEADS_CASE(KVL_W_Q4_0, Q8_SCORES);
}

/* p->scaled: weights times the scales of values, a block after another in the order of the scores. */
VEC void q8_weights(const struct pass *p, enum kvl_wtype type, const float *weight, int32_t n_heads)
{
    const int32_t n_tok = VW / n_heads;
    for (int32_t b = 0; b < q8_blocks(p); b++) {
        const size_t at = p->off + (size_t)b * q8_block_bytes(type);
        float d[Q8_TILE], *to = p->scaled + b * 4 * Q8_TILE;
        for (int32_t t = 0; t < p->n; t += VW) vf_store(d + t, vf_halves(p->row + t, at));
        for (int32_t t = 0; t < p->n; t += n_tok)
            vf_store(to + t * n_heads,
                     vf_mul(vf_load(weight + t * n_heads), vf_spread(d + t, n_heads)));
    }
}

/* acc += weight times value for n_vec vectors of channels from c of block b on, over all rows. */
VEC void q8_values_chunk(float *acc, size_t pad, const struct pass *p, enum kvl_wtype type,
                         int32_t n_heads, int32_t used, int32_t b, int32_t c, int32_t n_vec)
{
    const int32_t n_tok = VW / n_heads;
    const size_t at = p->off + (size_t)b * q8_block_bytes(type);
    const float *weight = p->scaled + b * 4 * Q8_TILE;
    vf s[16];
    acc += b * KVL_KV_BLOCK + c;
    UNROLL
    for (int32_t i = 0; i < used * n_vec; i++)
        s[i] = vf_load(acc + (size_t)(i / n_vec) * pad + i % n_vec * VW);
    for (int32_t t = 0; t < p->n; t += n_tok) {
        UNROLL
        for (int32_t j = 0; j < n_tok; j++) {
            vf x[8];
            UNROLL
            for (int32_t u = 0; u < n_vec; u++)
                x[u] = q8_floats(p->row[t + j] + at, type, c + u * VW);
            UNROLL
            for (int32_t h = 0; h < used; h++) {
                vf y = vf_set1(weight[t * n_heads + h * n_tok + j]);
                UNROLL
                for (int32_t u = 0; u < n_vec; u++)
                    s[h * n_vec + u] = vf_fma(x[u], y, s[h * n_vec + u]);
            }
        }
    }
    UNROLL
    for (int32_t i = 0; i < used * n_vec; i++)
        vf_store(acc + (size_t)(i / n_vec) * pad + i % n_vec * VW, s[i]);
}

/* acc [head][pad] += weights times values. */
VEC void q8_values_heads(float *acc, size_t pad, const struct pass *p, enum kvl_wtype type,
                         const float *weight, int32_t n_heads, int32_t used)
{
    const int32_t n_vec = KVL_MIN(KVL_KV_BLOCK / VW, KVL_MAX(1, 8 / n_heads));
    const int32_t n_part = KVL_KV_BLOCK / (n_vec * VW), n_chunks = q8_blocks(p) * n_part;
    q8_weights(p, type, weight, n_heads);
    for (int32_t i = 0; i < n_chunks; i++) {
        for (int32_t t = 0; t < p->n && (size_t)i * 64 < p->row_bytes; t++) q8_prefetch(p, t, i);
        q8_values_chunk(acc, pad, p, type, n_heads, used, i / n_part, i % n_part * n_vec * VW,
                        n_vec);
    }
}

static void q8_values(float *acc, size_t pad, const struct pass *p, enum kvl_wtype p_type,
                      const float *weight, int32_t n_heads)
{
#define Q8_VALUES(of, n, used) q8_values_heads(acc, pad, p, of, weight, n, used)
    HEADS_CASE(KVL_W_Q8_0, Q8_VALUES);
    HEADS_CASE(KVL_W_Q4_0, Q8_VALUES);
}

#endif
