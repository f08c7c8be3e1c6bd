#include "ref.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

struct topk_item {
    float x;
    int32_t i;
};

static int topk_by_value(const void *pa, const void *pb)
{
    const struct topk_item *a = pa, *b = pb;
    if (a->x != b->x) return a->x > b->x ? -1 : 1;
    return a->i < b->i ? -1 : 1;
}

static int topk_by_index(const void *pa, const void *pb)
{
    int32_t a = *(const int32_t *)pa, b = *(const int32_t *)pb;
    return (a > b) - (a < b);
}

static int topk_row(const float *x, int32_t n, int32_t k, struct topk_item *item, int32_t *index)
{
    for (int32_t i = 0; i < n; i++) {
        if (isnan(x[i])) return KVL_ENUMERIC;
        item[i] = (struct topk_item){ .x = x[i], .i = i };
    }
    qsort(item, (size_t)n, sizeof *item, topk_by_value);
    for (int32_t i = 0; i < k; i++) index[i] = item[i].i;
    qsort(index, (size_t)k, sizeof *index, topk_by_index);
    return KVL_OK;
}

int kvl_ref_topk(const struct kvl_topk_args *a)
{
    int status = KVL_OK;
    assert(a->k >= 0 && a->k <= a->n);
    struct topk_item *item = kvl_alloc((size_t)a->n, sizeof *item);
    if (!item) return KVL_ENOMEM;
    for (int32_t r = 0; r < a->n_rows && status == KVL_OK; r++)
        status = topk_row(a->x + (size_t)r * a->x_stride, a->n, a->k, item,
                          a->index + (size_t)r * (size_t)a->k);
    kvl_free(item);
    return status;
}
