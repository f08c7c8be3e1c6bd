#include "ops/cpu/cpu.h"

#include <assert.h>

/* sum_c max(q_c max_c, q_c min_c) = q_pos . max + q_neg . min: two multiply-adds per channel. */

enum { BOUND_PAGES_STEP = 256, BOUND_MAX_GROUP = 64 };

struct bound {
    const struct kvl_page_bound_args *a;
    const struct kvl_kern *kern;
    int32_t group, n_q; /* query heads per kv head, and how many of them are scored */
    size_t pad;
    float *q_pos, *q_neg; /* [n_kv_heads][n_q][pad] */
};

static float bound_query(const struct kvl_page_bound_args *a, int32_t head, int32_t n_mean,
                         int32_t c)
{
    float q = 0;
    for (int32_t i = 0; i < n_mean; i++)
        q += a->q[(size_t)(head + i) * (size_t)a->head_dim + (size_t)c];
    return n_mean > 1 ? q / (float)n_mean : q;
}

static void bound_split(const struct bound *b)
{
    const struct kvl_page_bound_args *a = b->a;
    int32_t n_mean = a->reduce == KVL_REDUCE_MEAN_Q ? b->group : 1;
    for (int32_t i = 0; i < a->n_kv_heads * b->n_q; i++) {
        int32_t head = i / b->n_q * b->group + i % b->n_q;
        float *pos = b->q_pos + (size_t)i * b->pad, *neg = b->q_neg + (size_t)i * b->pad;
        for (size_t c = 0; c < b->pad; c++) {
            float q = c < (size_t)a->head_dim ? bound_query(a, head, n_mean, (int32_t)c) : 0;
            pos[c] = q > 0 ? q : 0;
            neg[c] = q < 0 ? q : 0;
        }
    }
}

static void bound_reduce(const struct bound *b, const float *scores, int32_t kv, int32_t p0,
                         int32_t n)
{
    float *to = b->a->bound + (size_t)kv * (size_t)b->a->n_pages + p0;
    for (int32_t p = 0; p < n; p++) to[p] = scores[p];
    for (int32_t g = 1; g < b->n_q; g++, scores += BOUND_PAGES_STEP) {
        const float *x = scores + BOUND_PAGES_STEP;
        if (b->a->reduce == KVL_REDUCE_MAX)
            b->kern->max_into(to, x, (size_t)n);
        else
            b->kern->add(to, x, (size_t)n);
    }
    if (b->a->reduce == KVL_REDUCE_MEAN) b->kern->scale(to, (float)b->n_q, (size_t)n);
}

static void bound_item(const struct bound *b, int32_t kv, int32_t p0, float *scores)
{
    const struct kvl_page_bound_args *a = b->a;
    int32_t n = KVL_MIN(BOUND_PAGES_STEP, a->n_pages - p0);
    size_t q = (size_t)(kv * b->n_q) * b->pad;
    const float *minmax =
        (const float *)a->minmax + (size_t)kv * a->head_stride + (size_t)p0 * 2 * (size_t)a->head_dim;
    float *to = scores;
    size_t ld = BOUND_PAGES_STEP;
    if (a->reduce == KVL_REDUCE_NONE) {
        to = a->bound + (size_t)(kv * b->group) * (size_t)a->n_pages + p0;
        ld = (size_t)a->n_pages;
    }
    b->kern->page_bound(to, ld, b->q_pos + q, b->q_neg + q, b->n_q, minmax, a->head_dim, 0, n);
    if (a->reduce != KVL_REDUCE_NONE) bound_reduce(b, scores, kv, p0, n);
}

int kvl_cpu_page_bound(const struct kvl_page_bound_args *a)
{
    struct bound b = { .a = a, .kern = kvl_kern(), .group = a->n_heads / a->n_kv_heads };
    bool one = a->reduce == KVL_REDUCE_FIRST || a->reduce == KVL_REDUCE_MEAN_Q;
    int32_t steps = (a->n_pages + BOUND_PAGES_STEP - 1) / BOUND_PAGES_STEP;
    b.n_q = one ? 1 : b.group;
    b.pad = kvl_head_pad(a->head_dim);
    assert(b.group <= BOUND_MAX_GROUP);
    size_t q_floats = (size_t)(a->n_kv_heads * b.n_q) * b.pad;
    int threads = kvl_team((double)a->n_pages * a->head_dim * a->n_kv_heads * (1 + b.n_q) * 0.06);
    b.q_pos = kvl_cpu_scratch(2 * q_floats * sizeof *b.q_pos);
    if (!b.q_pos) return KVL_ENOMEM;
    b.q_neg = b.q_pos + q_floats;
    bound_split(&b);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < steps * a->n_kv_heads; i++) {
        float scores[BOUND_MAX_GROUP * BOUND_PAGES_STEP];
        bound_item(&b, i / steps, i % steps * BOUND_PAGES_STEP, scores);
    }
    return KVL_OK;
}
