#include "ref.h"

#include <assert.h>
#include <math.h>

enum { MAX_HEAD_DIM = 1024 };

void kvl_ref_slot(const struct kvl_lane *lane, enum kvl_kv_part part, int32_t slot, double *out)
{
    const int32_t head_dim = lane->layout->head_dim;
    assert(slot >= 0 && slot < lane->n_slots);
    struct kvl_kept k = kvl_lane_kept(lane, part, slot);
    if (k.token >= 0)
        kvl_ref_kept_key(k.at, k.type, head_dim, k.token, out);
    else
        kvl_ref_kept(k.at, k.type, head_dim, out);
}

void kvl_ref_rotate(double *x, int32_t pos, const struct kvl_rope *rope)
{
    int32_t half = rope->n_rot / 2;
    for (int32_t i = 0; i < half; i++) {
        int32_t a = rope->style == KVL_ROPE_NORM ? 2 * i : i;
        int32_t b = rope->style == KVL_ROPE_NORM ? 2 * i + 1 : i + half;
        double angle = pos * rope->inv_freq[i], mag = (double)rope->mag;
        double c = mag * cos(angle), s = mag * sin(angle);
        double xa = x[a], xb = x[b];
        x[a] = xa * c - xb * s;
        x[b] = xa * s + xb * c;
    }
}

double kvl_ref_cap(double logit, float cap)
{
    return cap > 0 ? (double)cap * tanh(logit / (double)cap) : logit;
}

/* Rounded to bf16 where the operator does that. */
static void attend_round(const struct kvl_ref_query *a, double *x)
{
    for (int32_t c = 0; a->bf16 && c < a->lane->layout->head_dim; c++) x[c] = kvl_ref_bf16(x[c]);
}

/* q: turned and rounded. */
static double attend_logit(const struct kvl_ref_query *a, const double *q, int32_t i)
{
    double k[MAX_HEAD_DIM], dot = 0;
    int32_t head_dim = a->lane->layout->head_dim, slot = a->slot ? a->slot[i] : i;
    if (a->mask && !a->mask[i]) return -HUGE_VAL;
    const float *given = a->keys ? a->keys + (size_t)i * (size_t)head_dim : NULL;
    if (a->key && a->key[i]) given = a->key[i];
    if (!given) kvl_ref_slot(a->lane, a->pos ? KVL_PART_K_RAW : KVL_PART_K, slot, k);
    for (int32_t c = 0; given && c < head_dim; c++) k[c] = (double)given[c];
    if (a->pos) kvl_ref_rotate(k, a->pos[i], a->rope);
    attend_round(a, k);
    for (int32_t c = 0; c < head_dim; c++) dot += q[c] * k[c];
    return kvl_ref_cap(dot * (double)a->scale, a->cap) +
           (a->log_weight ? (double)a->log_weight[i] : 0);
}

double kvl_ref_weights(const struct kvl_ref_query *a, double *p)
{
    double q[MAX_HEAD_DIM], max = -HUGE_VAL, sum = 0;
    int32_t head_dim = a->lane->layout->head_dim;
    assert(head_dim <= MAX_HEAD_DIM);
    for (int32_t c = 0; c < head_dim; c++) q[c] = (double)a->q[c];
    if (a->pos) kvl_ref_rotate(q, a->q_pos, a->rope);
    attend_round(a, q);
    for (int32_t i = 0; i < a->n; i++) {
        p[i] = attend_logit(a, q, i);
        max = KVL_MAX(max, p[i]);
    }
    if (max == -HUGE_VAL) {
        for (int32_t i = 0; i < a->n; i++) p[i] = 0;
        return -HUGE_VAL;
    }
    for (int32_t i = 0; i < a->n; i++) sum += p[i] = exp(p[i] - max);
    for (int32_t i = 0; i < a->n; i++) p[i] /= sum;
    return max + log(sum);
}

void kvl_ref_values(const struct kvl_ref_query *a, const double *p, float *out)
{
    double v[MAX_HEAD_DIM], sum[MAX_HEAD_DIM] = { 0 };
    int32_t head_dim = a->lane->layout->head_dim;
    for (int32_t i = 0; i < a->n; i++) {
        if (p[i] == 0) continue; /* an unread slot may hold anything */
        kvl_ref_slot(a->lane, KVL_PART_V, a->slot ? a->slot[i] : i, v);
        for (int32_t c = 0; c < head_dim; c++) sum[c] += p[i] * v[c];
    }
    for (int32_t c = 0; c < head_dim; c++) out[c] = (float)sum[c];
}
