/* kern_span_logits.h - logits of a tile, as the job wants them, and the softmax that makes weights of them. */
#ifndef KVL_KERN_SPAN_LOGITS_H
#define KVL_KERN_SPAN_LOGITS_H

#include "kern_math.h"

/* The running maximum of a head becomes `max`. */
static void span_raise(const struct kvl_span *s, int32_t h, float max, size_t pad)
{
    float keep = expf(s->max[h] - max);
    s->max[h] = max;
    s->sum[h] *= keep;
    for (size_t c = 0; s->acc && c < pad; c++) s->acc[(size_t)h * pad + c] *= keep;
}

/* What is subtracted from the logits of a tile: by lane, the maximum of its head so far. */
VEC vf span_shift(const struct kvl_span *s, const float *sc, int32_t n, int32_t h0, int32_t n_heads,
                  size_t pad)
{
    const int32_t n_tok = VW / n_heads;
    vf top = vf_load(sc);
    float lane[VW];
    for (int32_t i = VW; i < n; i += VW) top = vf_max(top, vf_load(sc + i));
    vf_store(lane, top);
    for (int32_t h = 0; h < n_heads; h++) {
        float max = s->max[h0 + h];
        for (int32_t j = 0; j < n_tok; j++) max = KVL_MAX(max, lane[h * n_tok + j]);
        if (max > s->max[h0 + h]) span_raise(s, h0 + h, max, pad);
        /* Nothing but -inf so far: the difference would be NaN. */
        for (int32_t j = 0; j < n_tok; j++) lane[h * n_tok + j] = max == -INFINITY ? 0 : max;
    }
    return vf_load(lane);
}

/* Turns n logits of heads h0 .. h0 + n_heads - 1 into weights exp(logit - max), for bf16 values into
 * rounded pairs of them.  Their sum is that of what was not rounded: the log-sum-exp is exact. */
VEC void softmax_heads(const struct kvl_span *s, float *sc, int32_t n, int32_t h0, int32_t n_heads,
                       size_t pad, bool bf16)
{
    const vf shift = span_shift(s, sc, n, h0, n_heads, pad);
    float lane[VW];
    vf sum = vf_zero();
    for (int32_t i = 0; i < n; i += 2 * VW) {
        vf x = vf_exp(vf_sub(vf_load(sc + i), shift));
        vf y = vf_exp(vf_sub(vf_load(sc + i + VW), shift));
        sum = vf_add(sum, vf_add(x, y));
        if (bf16) {
            vb_store((uint16_t *)(void *)(sc + i), vb_pair(x, y));
        } else {
            vf_store(sc + i, x);
            vf_store(sc + i + VW, y);
        }
    }
    vf_store(lane, sum);
    for (int32_t i = 0; i < VW; i++) s->sum[h0 + i / (VW / n_heads)] += lane[i];
}

static void span_softmax(const struct kvl_span *s, float *sc, int32_t n, int32_t h0,
                         int32_t n_heads, size_t pad, bool bf16)
{
    switch (n_heads + (bf16 ? 10 : 0)) {
    case 1: softmax_heads(s, sc, n, h0, 1, pad, false); break;
    case 2: softmax_heads(s, sc, n, h0, 2, pad, false); break;
    case 4: softmax_heads(s, sc, n, h0, 4, pad, false); break;
    case 11: softmax_heads(s, sc, n, h0, 1, pad, true); break;
    case 12: softmax_heads(s, sc, n, h0, 2, pad, true); break;
    default: softmax_heads(s, sc, n, h0, 4, pad, true); break;
    }
}

/* The logits of a head lie n_heads vectors apart: piece by piece to where the job wants them. */
VEC void logits_keep(const struct kvl_span *s, const float *sc, int32_t h0, int32_t n_heads,
                     int32_t i0, int32_t n)
{
    const struct kvl_attn_job *job = s->job;
    const int32_t n_tok = VW / n_heads, n_out = KVL_MIN(n_heads, job->n_heads - h0);
    for (int32_t h = 0; h < n_out; h++) {
        float *to = job->probs + (size_t)(h0 + h) * (size_t)job->n_slots + i0;
        const float *from = sc + h * n_tok;
        int32_t t = 0;
        for (; t + n_tok <= n; t += n_tok)
            memcpy(to + t, from + t * n_heads, (size_t)n_tok * sizeof *to);
        for (int32_t i = 0; t + i < n; i++) to[t + i] = from[t * n_heads + i];
    }
}

/* Logits of n slots as the job wants them: list weights added, kept for probs, -inf up to n_all. */
VEC void logits_heads(const struct kvl_span *s, float *sc, int32_t h0, int32_t n_heads, int32_t i0,
                      int32_t n, int32_t n_all)
{
    const struct kvl_attn_job *job = s->job;
    const int32_t n_tok = VW / n_heads;
    const float *more = job->log_weight ? job->log_weight + i0 : NULL;
    for (int32_t t = 0; more && t < n; t++)
        for (int32_t h = 0; h < n_heads; h++) sc[t / n_tok * VW + h * n_tok + t % n_tok] += more[t];
    if (job->probs) logits_keep(s, sc, h0, n_heads, i0, n);
    for (int32_t t = n; t < n_all; t++)
        for (int32_t h = 0; h < n_heads; h++)
            sc[t / n_tok * VW + h * n_tok + t % n_tok] = -INFINITY;
}

static void span_logits(const struct kvl_span *s, float *sc, int32_t h0, int32_t n_heads, int32_t i,
                        int32_t n, int32_t n_all)
{
    switch (n_heads) {
    case 1: logits_heads(s, sc, h0, 1, i, n, n_all); break;
    case 2: logits_heads(s, sc, h0, 2, i, n, n_all); break;
    default: logits_heads(s, sc, h0, 4, i, n, n_all); break;
    }
}

#endif
