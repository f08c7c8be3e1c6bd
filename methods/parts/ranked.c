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

/* One byte of the numbers after the other, the lowest first; bytes in which none differ are left out. */
int kvl_ascending(const struct kvl_pctx *ctx, int32_t *x, int32_t n)
{
    enum { BYTE = 256 };
    uint32_t *from, *to, differ = 0;
    void *room;
    KVL_TRY(kvl_scratch_items(ctx, 2 * (size_t)n, sizeof *from, &room));
    from = room;
    to = from + n;
    for (int32_t i = 0; i < n; i++) {
        from[i] = (uint32_t)x[i] ^ 0x80000000u; /* the order of numbers without a sign */
        differ |= from[i] ^ from[0];
    }
    for (int32_t shift = 0; shift < 32; shift += 8) {
        int32_t begin[BYTE + 1] = { 0 };
        if ((differ >> shift) % BYTE == 0) continue;
        for (int32_t i = 0; i < n; i++) begin[(from[i] >> shift) % BYTE + 1]++;
        for (int32_t i = 0; i < BYTE; i++) begin[i + 1] += begin[i];
        for (int32_t i = 0; i < n; i++) to[begin[(from[i] >> shift) % BYTE]++] = from[i];
        uint32_t *sorted = to;
        to = from;
        from = sorted;
    }
    for (int32_t i = 0; i < n; i++) x[i] = (int32_t)(from[i] ^ 0x80000000u);
    return KVL_OK;
}
