#include "ref.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

struct share_item {
    float x;
    int32_t row, i;
    bool safe;
};

/* Larger first, then the lower row, then the lower index. */
static int share_by_value(const void *pa, const void *pb)
{
    const struct share_item *a = pa, *b = pb;
    if (a->safe != b->safe) return a->safe ? -1 : 1;
    if (a->x != b->x) return a->x > b->x ? -1 : 1;
    if (a->row != b->row) return a->row < b->row ? -1 : 1;
    return a->i < b->i ? -1 : 1;
}

int kvl_ref_joint_share(const struct kvl_joint_share_args *a)
{
    size_t n = (size_t)a->n, all = (size_t)a->n_rows * n;
    assert(a->k >= 0 && (size_t)a->k <= all && a->safe <= a->n);
    struct share_item *item = kvl_alloc(all, sizeof *item);
    int status = item ? KVL_OK : KVL_ENOMEM;
    for (int32_t r = 0; r < a->n_rows && status == KVL_OK; r++) {
        struct share_item *row = item + (size_t)r * n;
        for (int32_t i = 0; i < a->n; i++) {
            row[i] = (struct share_item){ .x = a->x[(size_t)r * a->x_stride + (size_t)i],
                                          .row = r,
                                          .i = i };
            if (isnan(row[i].x)) status = KVL_ENUMERIC;
        }
        qsort(row, n, sizeof *row, share_by_value);
        for (int32_t i = 0; i < a->safe; i++) row[i].safe = true;
        a->count[r] = 0;
    }
    if (status == KVL_OK) {
        qsort(item, all, sizeof *item, share_by_value);
        for (int32_t i = 0; i < a->k; i++) a->count[item[i].row]++;
    }
    kvl_free(item);
    return status;
}
