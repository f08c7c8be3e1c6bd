/* The best in the order of their scores. */
#include "ranked.h"

#include <stdlib.h>

struct ranked {
    float score;
    int32_t index;
};

static int ranked_before(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

int kvl_topk_ranked(const struct kvl_pctx *ctx, const float *x, int32_t n_rows, int32_t n,
                    int32_t k, int32_t *index)
{
    void *room;
    KVL_TRY(kvl_topk(ctx, x, n_rows, n, k, index));
    KVL_TRY(kvl_scratch_items(ctx, (size_t)k, sizeof(struct ranked), &room));
    KVL_TRY(kvl_look(ctx)); /* the host reads what the operator wrote */
    struct ranked *rank = room;
    for (int32_t r = 0; r < n_rows; r++, x += n, index += k) {
        for (int32_t i = 0; i < k; i++) rank[i] = (struct ranked){ x[index[i]], index[i] };
        if (k > 0) qsort(rank, (size_t)k, sizeof *rank, ranked_before);
        for (int32_t i = 0; i < k; i++) index[i] = rank[i].index;
    }
    return KVL_OK;
}

static int number_order(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

void kvl_ascending(int32_t *x, int32_t n)
{
    if (n > 1) qsort(x, (size_t)n, sizeof *x, number_order);
}
