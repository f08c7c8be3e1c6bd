#include "cpu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* The largest of a row go before all others: infinity, which no score may be
 * less than. */
static bool share_protect(const struct kvl_joint_share_args *a, float *row, int32_t *index,
                          int32_t *keys)
{
    if (!kvl_kern()->topk_row(index, row, a->n, a->safe, keys)) return false;
    for (int32_t i = 0; i < a->safe; i++) row[index[i]] = INFINITY;
    return true;
}

/* One top-k over the rows laid end to end: indices ascend, and so do rows. */
int kvl_cpu_joint_share(const struct kvl_joint_share_args *a)
{
    size_t n = (size_t)a->n, all = (size_t)a->n_rows * n;
    assert(a->k >= 0 && (size_t)a->k <= all && a->safe <= a->n && all <= INT32_MAX);
    float *x = kvl_cpu_scratch((3 * all + 1) * sizeof *x);
    if (!x) return KVL_ENOMEM;
    int32_t *index = (int32_t *)(void *)(x + all), *keys = index + all;
    for (int32_t r = 0; r < a->n_rows; r++) {
        float *row = x + (size_t)r * n;
        memcpy(row, a->x + (size_t)r * a->x_stride, n * sizeof *row);
        if (a->safe > 0 && !share_protect(a, row, index, keys)) return KVL_ENUMERIC;
    }
    if (!kvl_kern()->topk_row(index, x, (int32_t)all, a->k, keys)) return KVL_ENUMERIC;
    for (int32_t r = 0; r < a->n_rows; r++) a->count[r] = 0;
    for (int32_t i = 0; i < a->k; i++) a->count[index[i] / a->n]++;
    return KVL_OK;
}
