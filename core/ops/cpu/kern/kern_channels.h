/* kern_channels.h - scores from chosen channels of a page of keys that lies channel by channel.
 *
 * Tokens are the lanes: a channel is read in one piece and multiplied with one number per query head,
 * and a token's sum is one chain over the channels. */
#ifndef KVL_KERN_CHANNELS_H
#define KVL_KERN_CHANNELS_H

#include "kern_row.h"

enum { CHANNEL_VECS = 4 };

/* Tokens t .. t + n_vec * VW - 1, or the last len < VW of them, for n_q query heads.  The same of the next page is asked for:
 * chosen channels lie apart, and the processor guesses neither them nor pages. */
VEC void channels_tile(const struct kvl_channels_item *it, enum kvl_wtype type, const float *q,
                       float *score, int32_t n_q, size_t t, int32_t n_vec, int32_t len)
{
    const size_t elem = type == KVL_W_F32 ? 4 : 2;
    vf s[4][CHANNEL_VECS], k[CHANNEL_VECS];
    for (int32_t g = 0; g < n_q; g++)
        for (int32_t u = 0; u < n_vec; u++) s[g][u] = vf_zero();
    for (int32_t i = 0; i < it->n_channels; i++) {
        size_t at = (size_t)it->channel[i] * it->page_tok + t;
        if (n_vec > 1) __builtin_prefetch((const uint8_t *)it->next + at * elem, 0, 2);
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

enum { BOX_TILE = 256, BOX_CHANNELS = 4, BOX_HEADS = 4 };

/* Of a channel, the number that every `step`-th element of a column is; n of them, multiples of VW. */
VEC void box_pick(float *y, const uint8_t *from, enum kvl_wtype type, size_t step, int32_t n,
                  int32_t pad)
{
    uint16_t half[BOX_TILE];
    const uint16_t *h = (const uint16_t *)(const void *)from;
    const float *f = (const float *)(const void *)from;
    if (type == KVL_W_F32) {
        for (int32_t i = 0; i < n; i++) y[i] = f[(size_t)i * step];
    } else {
        if (step == 1)
            memcpy(half, h, (size_t)n * sizeof *half);
        else if (step == 2)
            for (int32_t i = 0; i < n; i++) half[i] = h[2 * (size_t)i];
        else
            for (int32_t i = 0; i < n; i++) half[i] = h[(size_t)i * step];
        for (int32_t i = n; i < pad; i++) half[i] = 0;
        for (int32_t i = 0; i < pad; i += VW) vf_store(y + i, load_as(half, type, (size_t)i));
    }
    for (int32_t i = n; type == KVL_W_F32 && i < pad; i++) y[i] = 0;
}

/* y [n_q][BOX_TILE] += the products of n_q query heads with m channels, one after the other; q: of the first channel, n_q
 * of them ld apart. */
VEC void box_add(float (*y)[BOX_TILE], const float *q, size_t ld, float (*x)[BOX_TILE], int32_t n_q,
                 int32_t m, int32_t pad)
{
    for (int32_t i = 0; i < pad; i += VW) {
        vf k[BOX_CHANNELS];
        UNROLL
        for (int32_t c = 0; c < m; c++) k[c] = vf_load(x[c] + i);
        UNROLL
        for (int32_t g = 0; g < n_q; g++) {
            vf sum = vf_load(y[g] + i);
            UNROLL
            for (int32_t c = 0; c < m; c++)
                sum = vf_fma(vf_set1(q[(size_t)g * ld + (size_t)c]), k[c], sum);
            vf_store(y[g] + i, sum);
        }
    }
}

/* m channels, from number j on, for n_q query heads. */
VEC void box_channels(const struct kvl_boxes_item *it, float (*y)[BOX_TILE], const float *q,
                      float (*x)[BOX_TILE], int32_t n_q, int32_t m, int32_t pad)
{
    const size_t ld = (size_t)it->n_channels;
    if (m == BOX_CHANNELS)
        box_add(y, q, ld, x, n_q, BOX_CHANNELS, pad);
    else
        for (int32_t c = 0; c < m; c++) box_add(y, q + c, ld, x + c, n_q, 1, pad);
}

/* Sums of up to BOX_HEADS query heads stay here until they are whole. */
VEC void boxes_heads(const struct kvl_boxes_item *it, enum kvl_wtype type, int32_t g, int32_t n_q)
{
    float x[BOX_CHANNELS][BOX_TILE], y[BOX_HEADS][BOX_TILE];
    const int32_t n = it->n, pad = (n + VW - 1) / VW * VW;
    const size_t elem = type == KVL_W_F32 ? 4 : 2;
    const size_t ahead = (size_t)n * it->box_tok * elem; /* to the same columns of the next tile */
    memset(y, 0, sizeof y);
    for (int32_t j = 0; j < it->n_channels; j += BOX_CHANNELS) {
        const int32_t m = KVL_MIN(BOX_CHANNELS, it->n_channels - j);
        const float *q = it->q + (size_t)g * (size_t)it->n_channels + j;
        for (int32_t c = 0; c < m; c++) {
            const uint8_t *from = (const uint8_t *)it->boxes + it->column[j + c] * elem;
            box_pick(x[c], from, type, it->box_tok, n, pad);
            for (size_t o = 0; o < ahead; o += 64) __builtin_prefetch(from + ahead + o, 0, 2);
        }
        switch (n_q) {
        case 4: box_channels(it, y, q, x, 4, m, pad); break;
        case 3: box_channels(it, y, q, x, 3, m, pad); break;
        case 2: box_channels(it, y, q, x, 2, m, pad); break;
        default: box_channels(it, y, q, x, 1, m, pad); break;
        }
    }
    for (int32_t h = 0; h < n_q; h++)
        memcpy(it->score + (size_t)(g + h) * it->ld, y[h], (size_t)n * sizeof **y);
}

VEC void boxes_typed(const struct kvl_boxes_item *it, enum kvl_wtype type)
{
    for (int32_t g = 0; g < it->n_q; g += BOX_HEADS)
        boxes_heads(it, type, g, KVL_MIN(BOX_HEADS, it->n_q - g));
}

/* Up to BOX_TILE boxes; columns are read in one piece, a few of them before a sum is stored. */
static void box_scores(const struct kvl_boxes_item *it)
{
    switch (it->type) {
    case KVL_W_F16: boxes_typed(it, KVL_W_F16); break;
    case KVL_W_BF16: boxes_typed(it, KVL_W_BF16); break;
    default: boxes_typed(it, KVL_W_F32); break;
    }
}

/* Sum of exp(x - max) over n numbers, and their maximum. */
static float sum_exp(const float *x, int32_t n, float *max)
{
    vf sum = vf_zero();
    int32_t i = 0;
    *max = row_max(x, n);
    const vf shift = vf_set1(*max);
    for (i = 0; i + VW <= n; i += VW) sum = vf_add(sum, vf_exp(vf_sub(vf_load(x + i), shift)));
    float total = vf_hsum(sum);
    for (; i < n; i++) total += expf(x[i] - *max);
    return total;
}

#endif
