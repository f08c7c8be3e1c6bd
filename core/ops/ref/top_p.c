#include "ref.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

struct top_p_item {
    double x;
    int32_t i;
};

static int top_p_by_value(const void *pa, const void *pb)
{
    const struct top_p_item *a = pa, *b = pb;
    if (a->x != b->x) return a->x > b->x ? -1 : 1;
    return a->i < b->i ? -1 : 1;
}

/* Marks the fewest of a row whose sum reaches p of all; the last one counts
 * first where it is forced. */
static void top_p_row(const struct kvl_top_p_args *a, const float *x, struct top_p_item *item,
                      uint8_t *mark)
{
    double all = 0, sum = 0;
    int32_t n = a->n - (a->last ? 1 : 0);
    for (int32_t i = 0; i < a->n; i++) all += (double)x[i];
    for (int32_t i = 0; i < n; i++) item[i] = (struct top_p_item){ (double)x[i], i };
    qsort(item, (size_t)n, sizeof *item, top_p_by_value);
    if (a->last) sum = (double)x[n];
    for (int32_t i = 0; i < n && sum < (double)a->p * all; i++) {
        mark[item[i].i] = 1;
        sum += item[i].x;
    }
}

int kvl_ref_top_p(const struct kvl_top_p_args *a)
{
    int32_t n = a->n - (a->last ? 1 : 0), m = 0, k = a->k - (a->last ? 1 : 0);
    assert(k >= 0 && n >= 0);
    struct top_p_item *item = kvl_alloc((size_t)a->n + 1, sizeof *item);
    uint8_t *mark = kvl_alloc((size_t)a->n + 1, 1);
    if (!item || !mark) {
        kvl_free(item);
        kvl_free(mark);
        return KVL_ENOMEM;
    }
    int status = KVL_OK;
    for (int32_t r = 0; r < a->n_rows; r++) {
        const float *x = a->weight + (size_t)r * a->stride;
        for (int32_t i = 0; i < a->n; i++)
            if (isnan(x[i])) status = KVL_ENUMERIC;
        top_p_row(a, x, item, mark);
    }
    for (int32_t i = 0; i < n; i++) { /* the union, by its summed weight */
        double sum = 0;
        for (int32_t r = 0; r < a->n_rows; r++)
            sum += (double)a->weight[(size_t)r * a->stride + (size_t)i];
        if (mark[i]) item[m++] = (struct top_p_item){ (double)(float)sum, i };
    }
    qsort(item, (size_t)m, sizeof *item, top_p_by_value);
    for (int32_t i = k; i < m; i++) mark[item[i].i] = 0;
    *a->n_index = 0;
    for (int32_t i = 0; i < n; i++)
        if (mark[i]) a->index[(*a->n_index)++] = i;
    if (a->last) a->index[(*a->n_index)++] = n;
    kvl_free(item);
    kvl_free(mark);
    return status;
}
