#include "ref.h"

#include <assert.h>

/* Quest (Tang et al. 2024), Algorithm 1, lines 5-7.  q is the mean of `n_q` query heads. */
static double bound_one(const struct kvl_page_bound_args *a, int32_t kv, int32_t page, int32_t head,
                        int32_t n_q)
{
    size_t lo = (size_t)kv * a->head_stride + (size_t)page * 2 * (size_t)a->head_dim;
    double sum = 0;
    for (int32_t c = 0; c < a->head_dim; c++) {
        double q = 0;
        for (int32_t i = 0; i < n_q; i++)
            q += (double)a->q[(size_t)(head + i) * (size_t)a->head_dim + (size_t)c] / n_q;
        double min = (double)kvl_ref_elem(a->minmax, a->type, lo + (size_t)c);
        double max = (double)kvl_ref_elem(a->minmax, a->type, lo + (size_t)(a->head_dim + c));
        sum += KVL_MAX(q * max, q * min);
    }
    return sum;
}

static double bound_group(const struct kvl_page_bound_args *a, int32_t kv, int32_t page)
{
    int32_t group = a->n_heads / a->n_kv_heads, head = kv * group;
    if (a->reduce == KVL_REDUCE_MEAN_Q) return bound_one(a, kv, page, head, group);
    double y = bound_one(a, kv, page, head, 1);
    if (a->reduce == KVL_REDUCE_FIRST) return y;
    for (int32_t g = 1; g < group; g++) {
        double b = bound_one(a, kv, page, head + g, 1);
        y = a->reduce == KVL_REDUCE_MAX ? KVL_MAX(y, b) : y + b;
    }
    return a->reduce == KVL_REDUCE_MEAN ? y / group : y;
}

static int bound_lists(const struct kvl_page_bound_args *a)
{
    int32_t group = a->n_heads / a->n_kv_heads;
    bool per_head = a->reduce == KVL_REDUCE_NONE;
    int32_t n_lists = per_head ? a->n_heads : a->n_kv_heads;
    size_t stride = a->bound_stride ? a->bound_stride : (size_t)a->n_pages;
    if (a->reduce < KVL_REDUCE_NONE || a->reduce > KVL_REDUCE_MEAN_Q) return KVL_EINVAL;
    for (int32_t l = 0; l < n_lists; l++)
        for (int32_t p = 0; p < a->n_pages; p++)
            a->bound[(size_t)l * stride + (size_t)p] =
                (float)(per_head ? bound_one(a, l / group, p, l, 1) : bound_group(a, l, p));
    return KVL_OK;
}

int kvl_ref_page_bound(const struct kvl_page_bound_args *a)
{
    int rc = KVL_OK;
    for (; a && rc == KVL_OK; a = a->next) rc = bound_lists(a);
    return rc;
}
