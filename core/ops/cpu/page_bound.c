/* sum_c max(q_c max_c, q_c min_c) = q_pos . max + q_neg . min, with q_pos = max(q, 0), q_neg = min(q, 0):
 * two multiply-adds per channel.
 *
 * A sum (or mean) over the query heads of a group is the bound of one query, whose q_pos and q_neg are
 * the sums of theirs: a page costs as much as for one head, and the operator runs at the speed of
 * memory.  A maximum, and lists per query head, cost two multiply-adds per head: the minima and maxima
 * are widened once for the whole group.
 *
 * Pages are cut in steps of BOUND_PAGES_STEP, spread over threads whatever their head. */
#include "cpu.h"

#include <assert.h>
#include <string.h>

enum { BOUND_PAGES_STEP = 256, BOUND_MAX_GROUP = 64 };

struct bound {
    const struct kvl_page_bound_args *a;
    const struct kvl_kern *kern;
    int32_t group, n_q;   /* query heads per kv head, and how many queries are scored for them */
    size_t pad, stride;   /* of a query; between lists */
    float *q_pos, *q_neg; /* [n_kv_heads][n_q][pad] */
};

/* The positive and the negative part of query i of a kv head: those of one query head, or their sum. */
static void bound_split(const struct bound *b, int32_t kv, int32_t i)
{
    const struct kvl_page_bound_args *a = b->a;
    bool sum = a->reduce == KVL_REDUCE_SUM || a->reduce == KVL_REDUCE_MEAN;
    size_t dim = (size_t)a->head_dim, at = (size_t)(kv * b->n_q + i) * b->pad;
    const float *q = a->q + (size_t)(kv * b->group + i) * dim;
    float *pos = b->q_pos + at, *neg = b->q_neg + at;
    memset(pos, 0, b->pad * sizeof *pos);
    memset(neg, 0, b->pad * sizeof *neg);
    for (int32_t g = 0; g < (sum ? b->group : 1); g++, q += dim)
        for (size_t c = 0; c < dim; c++) {
            pos[c] += q[c] > 0 ? q[c] : 0;
            neg[c] += q[c] < 0 ? q[c] : 0;
        }
}

static void bound_mean_query(const struct bound *b, int32_t kv)
{
    const struct kvl_page_bound_args *a = b->a;
    size_t dim = (size_t)a->head_dim;
    float *pos = b->q_pos + (size_t)kv * b->pad, *neg = b->q_neg + (size_t)kv * b->pad;
    for (size_t c = 0; c < b->pad; c++) {
        float q = 0;
        for (int32_t g = 0; c < dim && g < b->group; g++)
            q += a->q[(size_t)(kv * b->group + g) * dim + c];
        q /= (float)b->group;
        pos[c] = KVL_MAX(q, 0.0f);
        neg[c] = KVL_MIN(q, 0.0f);
    }
}

static void bound_queries(const struct bound *b)
{
    for (int32_t kv = 0; kv < b->a->n_kv_heads; kv++) {
        if (b->a->reduce == KVL_REDUCE_MEAN_Q)
            bound_mean_query(b, kv);
        else
            for (int32_t i = 0; i < b->n_q; i++) bound_split(b, kv, i);
    }
}

static void bound_item(const struct bound *b, int32_t kv, int32_t p0)
{
    const struct kvl_page_bound_args *a = b->a;
    bool max = a->reduce == KVL_REDUCE_MAX, none = a->reduce == KVL_REDUCE_NONE;
    int32_t n = KVL_MIN(BOUND_PAGES_STEP, a->n_pages - p0);
    size_t q = (size_t)(kv * b->n_q) * b->pad, row = 2 * (size_t)a->head_dim;
    size_t elem = (size_t)kvl_kv_elem_bytes(a->type);
    const uint8_t *minmax =
        (const uint8_t *)a->minmax + ((size_t)kv * a->head_stride + (size_t)p0 * row) * elem;
    float scores[BOUND_MAX_GROUP * BOUND_PAGES_STEP];
    float *bound = a->bound + (size_t)(none ? kv * b->group : kv) * b->stride + p0;
    b->kern->page_bound(max ? scores : bound, max ? BOUND_PAGES_STEP : b->stride, b->q_pos + q,
                        b->q_neg + q, b->n_q, minmax, kvl_kv_wtype(a->type), a->head_dim, n,
                        a->n_pages - p0 - n);
    if (a->reduce == KVL_REDUCE_MEAN) b->kern->scale(bound, (float)b->group, (size_t)n);
    for (int32_t g = 0; max && g < b->n_q; g++)
        for (int32_t p = 0; p < n; p++) {
            float x = scores[g * BOUND_PAGES_STEP + p];
            bound[p] = g == 0 || x > bound[p] ? x : bound[p];
        }
}

static int bound_lists(const struct kvl_page_bound_args *a)
{
    struct bound b = { .a = a, .kern = kvl_kern(), .group = a->n_heads / a->n_kv_heads };
    bool each = a->reduce == KVL_REDUCE_NONE || a->reduce == KVL_REDUCE_MAX;
    int32_t steps = (a->n_pages + BOUND_PAGES_STEP - 1) / BOUND_PAGES_STEP;
    b.n_q = each ? b.group : 1;
    b.pad = kvl_head_pad(a->head_dim);
    b.stride = a->bound_stride ? a->bound_stride : (size_t)a->n_pages;
    assert(b.group <= BOUND_MAX_GROUP);
    if (a->reduce < KVL_REDUCE_NONE || a->reduce > KVL_REDUCE_MEAN_Q) return KVL_EINVAL;
    size_t q_floats = (size_t)(a->n_kv_heads * b.n_q) * b.pad;
    int threads = kvl_team((double)a->n_pages * a->head_dim * a->n_kv_heads * (1 + b.n_q) * 0.06);
    b.q_pos = kvl_cpu_scratch(2 * q_floats * sizeof *b.q_pos);
    if (!b.q_pos) return KVL_ENOMEM;
    b.q_neg = b.q_pos + q_floats;
    bound_queries(&b);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < steps * a->n_kv_heads; i++)
        bound_item(&b, i / steps, i % steps * BOUND_PAGES_STEP);
    return KVL_OK;
}

int kvl_cpu_page_bound(const struct kvl_page_bound_args *a)
{
    int rc = KVL_OK;
    for (; a && rc == KVL_OK; a = a->next) rc = bound_lists(a);
    return rc;
}
