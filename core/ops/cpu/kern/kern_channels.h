/* kern_channels.h - scores from chosen channels of a page of keys that lies channel by channel.
 *
 * Tokens are the lanes: a channel is read in one piece and multiplied with one number per query head,
 * and a token's sum is one chain over the channels. */
#ifndef KVL_KERN_CHANNELS_H
#define KVL_KERN_CHANNELS_H

#include "kern_math.h"

enum { CHANNEL_VECS = 4 };

/* Tokens t .. t + n_vec * VW - 1, or the last len < VW of them, for n_q query heads. */
VEC void channels_tile(const struct kvl_channels_item *it, enum kvl_wtype type, const float *q,
                       float *score, int32_t n_q, size_t t, int32_t n_vec, int32_t len)
{
    vf s[4][CHANNEL_VECS], k[CHANNEL_VECS];
    for (int32_t g = 0; g < n_q; g++)
        for (int32_t u = 0; u < n_vec; u++) s[g][u] = vf_zero();
    for (int32_t i = 0; i < it->n_channels; i++) {
        size_t at = (size_t)it->channel[i] * it->page_tok + t;
        UNROLL
        for (int32_t u = 0; u < n_vec; u++)
            k[u] = len == VW ? load_as(it->keys, type, at + (size_t)(u * VW))
                             : load_as_n(it->keys, type, at, len);
        UNROLL
        for (int32_t g = 0; g < n_q; g++) {
            vf x = vf_set1(q[(size_t)g * (size_t)it->n_channels + (size_t)i]);
            UNROLL
            for (int32_t u = 0; u < n_vec; u++) s[g][u] = vf_fma(x, k[u], s[g][u]);
        }
    }
    UNROLL
    for (int32_t g = 0; g < n_q; g++) {
        float *y = score + (size_t)g * it->ld + t;
        UNROLL
        for (int32_t u = 0; u < n_vec; u++) {
            if (len == VW)
                vf_store(y + u * VW, s[g][u]);
            else
                vf_store_n(y, s[g][u], len);
        }
    }
}

VEC void channels_queries(const struct kvl_channels_item *it, enum kvl_wtype type, const float *q,
                          float *score, int32_t n_q)
{
    int32_t t = 0;
    for (; t + CHANNEL_VECS * VW <= it->n; t += CHANNEL_VECS * VW)
        channels_tile(it, type, q, score, n_q, (size_t)t, CHANNEL_VECS, VW);
    for (; t + VW <= it->n; t += VW) channels_tile(it, type, q, score, n_q, (size_t)t, 1, VW);
    if (t < it->n) channels_tile(it, type, q, score, n_q, (size_t)t, 1, it->n - t);
}

VEC void channels_typed(const struct kvl_channels_item *it, enum kvl_wtype type)
{
    const float *q = it->q;
    float *score = it->score;
    for (int32_t i = 0; i < it->n_q; i += 4) {
        switch (KVL_MIN(4, it->n_q - i)) {
        case 4: channels_queries(it, type, q, score, 4); break;
        case 3: channels_queries(it, type, q, score, 3); break;
        case 2: channels_queries(it, type, q, score, 2); break;
        default: channels_queries(it, type, q, score, 1); break;
        }
        q += 4 * (size_t)it->n_channels;
        score += 4 * it->ld;
    }
}

static void channel_scores(const struct kvl_channels_item *it)
{
    switch (it->type) {
    case KVL_W_F16: channels_typed(it, KVL_W_F16); break;
    case KVL_W_BF16: channels_typed(it, KVL_W_BF16); break;
    default: channels_typed(it, KVL_W_F32); break;
    }
}

/* Sum of exp(x - max) over n numbers, and their maximum. */
static float sum_exp(const float *x, int32_t n, float *max)
{
    vf sum = vf_zero();
    int32_t i = 0;
    *max = x[0];
    for (i = 1; i < n; i++) *max = x[i] > *max ? x[i] : *max;
    const vf shift = vf_set1(*max);
    for (i = 0; i + VW <= n; i += VW) sum = vf_add(sum, vf_exp(vf_sub(vf_load(x + i), shift)));
    float total = vf_hsum(sum);
    for (; i < n; i++) total += expf(x[i] - *max);
    return total;
}

#endif
