/* The oracle that real execution is compared with: shares nothing with attn_decode but exp and the
 * widening of a row. */
#include "cpu.h"

#include <math.h>

struct masked {
    const struct kvl_attn_masked_args *a;
    const struct kvl_kern *kern;
    const struct kvl_rope_table *rope;
    float *q, *row, *cs; /* [n_heads][head_dim], [head_dim], [head_dim] */
    double *logit;       /* [n_slots] */
    double *sum;         /* [head_dim] */
};

static void masked_row(const struct masked *m, enum kvl_kv_part part, int32_t slot)
{
    m->kern->kv_row(m->row, kvl_lane_kept(m->a->lane, part, slot), m->a->head_dim);
}

static void masked_turn(const struct masked *m, float *x, int32_t pos)
{
    m->kern->rotate(x, x, kvl_rope_row(m->rope, pos, m->cs), m->a->head_dim, m->a->rope);
}

static double masked_logits(const struct masked *m, const float *q)
{
    double max = -HUGE_VAL;
    for (int32_t s = 0; s < m->a->n_slots; s++) {
        double dot = 0;
        if (!m->a->mask[s]) continue;
        const float *key = m->a->keys ? m->a->keys[s] : NULL;
        if (!key) {
            masked_row(m, m->a->pos ? KVL_PART_K_RAW : KVL_PART_K, s);
            if (m->a->pos) masked_turn(m, m->row, m->a->pos[s]);
            key = m->row;
        }
        for (int32_t c = 0; c < m->a->head_dim; c++) dot += (double)q[c] * (double)key[c];
        dot *= (double)m->a->scale;
        if (m->a->cap > 0) dot = (double)m->a->cap * tanh(dot / (double)m->a->cap);
        m->logit[s] = dot + (m->a->bias ? (double)m->a->bias[s] : 0);
        max = KVL_MAX(max, m->logit[s]);
    }
    return max;
}

/* Weights in slot order; masked slots weigh nothing. */
static void masked_probs(const struct masked *m, int32_t h, double max, double total)
{
    float *probs = m->a->probs + (size_t)h * (size_t)m->a->n_slots;
    for (int32_t s = 0; s < m->a->n_slots; s++)
        probs[s] = m->a->mask[s] ? (float)(exp(m->logit[s] - max) / total) : 0.0f;
}

static void masked_head(const struct masked *m, int32_t h)
{
    const struct kvl_attn_masked_args *a = m->a;
    float *q = m->q + (size_t)h * (size_t)a->head_dim,
          *out = a->out + (size_t)h * (size_t)a->head_dim;
    if (a->pos) masked_turn(m, q, a->q_pos);
    double max = masked_logits(m, q), total = 0;
    for (int32_t c = 0; c < a->head_dim; c++) m->sum[c] = 0;
    for (int32_t s = 0; s < a->n_slots; s++) {
        if (!a->mask[s]) continue;
        double p = exp(m->logit[s] - max);
        total += p;
        masked_row(m, KVL_PART_V, s);
        for (int32_t c = 0; c < a->head_dim; c++) m->sum[c] += p * (double)m->row[c];
    }
    for (int32_t c = 0; c < a->head_dim; c++) out[c] = total > 0 ? (float)(m->sum[c] / total) : 0;
    if (a->probs) masked_probs(m, h, max, total);
    a->lse[h] = total > 0 ? (float)(max + log(total)) : -INFINITY;
}

int kvl_cpu_attn_masked(const struct kvl_attn_masked_args *a)
{
    struct masked m = { .a = a, .kern = kvl_kern() };
    size_t dim = (size_t)a->head_dim, n_q = (size_t)a->n_heads * dim;
    size_t doubles = (size_t)a->n_slots + dim;
    if (a->pos) {
        m.rope = kvl_rope_prepare(a->rope, a->pos, a->n_slots);
        if (!m.rope) return KVL_ENOMEM;
    }
    m.logit = kvl_cpu_scratch(doubles * sizeof(double) + (n_q + 2 * dim) * sizeof(float));
    if (!m.logit) return KVL_ENOMEM;
    m.sum = m.logit + a->n_slots;
    m.q = (float *)(void *)(m.sum + dim);
    m.row = m.q + n_q;
    m.cs = m.row + dim;
    for (size_t i = 0; i < n_q; i++) m.q[i] = a->q[i];
    for (int32_t h = 0; h < a->n_heads; h++) masked_head(&m, h);
    return KVL_OK;
}
