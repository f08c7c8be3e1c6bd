/* The best in the order of their scores, numbers in theirs, and what has no score. */
#include "ranked.h"

#include <math.h>
#include <string.h>

/* A key in the upper half, what belongs to it in the lower one.  By one byte of the keys after the other, the lowest first,
 * from `a` to `b` and back, without bytes in which none differ; where equal keys stand stays so.  Where they are in the end. */
static uint64_t *ranked_sort(uint64_t *a, uint64_t *b, int32_t n)
{
    enum { BYTE = 256 };
    uint64_t differ = 0;
    for (int32_t i = 0; i < n; i++) differ |= a[i] ^ a[0];
    for (int shift = 32; shift < 64; shift += 8) {
        int32_t begin[BYTE + 1] = { 0 };
        if ((differ >> shift) % BYTE == 0) continue;
        for (int32_t i = 0; i < n; i++) begin[(a[i] >> shift) % BYTE + 1]++;
        for (int32_t i = 0; i < BYTE; i++) begin[i + 1] += begin[i];
        for (int32_t i = 0; i < n; i++) b[begin[(a[i] >> shift) % BYTE]++] = a[i];
        uint64_t *sorted = b;
        b = a;
        a = sorted;
    }
    return a;
}

/* Larger floats have smaller keys; both zeros have the same. */
static uint32_t ranked_key(float x)
{
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? bits : ~bits & INT32_MAX;
}

static int ranked_room(const struct kvl_pctx *ctx, int32_t n, uint64_t **a, uint64_t **b)
{
    void *room;
    KVL_TRY(kvl_scratch_items(ctx, 2 * (size_t)n, sizeof **a, &room));
    *a = room;
    *b = *a + n;
    return KVL_OK;
}

int kvl_topk_ranked(const struct kvl_pctx *ctx, const float *x, int32_t n_rows, int32_t n,
                    int32_t k, int32_t *index)
{
    uint64_t *a, *b;
    KVL_TRY(kvl_topk(ctx, x, n_rows, n, k, index));
    KVL_TRY(ranked_room(ctx, k, &a, &b));
    KVL_TRY(kvl_look(ctx)); /* the host reads what the operator wrote */
    for (int32_t r = 0; r < n_rows; r++, x += n, index += k) {
        for (int32_t i = 0; i < k; i++) /* ascending: of equal scores the first comes first */
            a[i] = (uint64_t)ranked_key(x[index[i]]) << 32 | (uint32_t)index[i];
        const uint64_t *sorted = ranked_sort(a, b, k);
        for (int32_t i = 0; i < k; i++) index[i] = (int32_t)(uint32_t)sorted[i];
    }
    return KVL_OK;
}

int kvl_ascending(const struct kvl_pctx *ctx, int32_t *x, int32_t n)
{
    uint64_t *a, *b;
    KVL_TRY(ranked_room(ctx, n, &a, &b));
    for (int32_t i = 0; i < n; i++) /* the order of numbers without a sign */
        a[i] = (uint64_t)((uint32_t)x[i] ^ 0x80000000u) << 32 | (uint32_t)x[i];
    const uint64_t *sorted = ranked_sort(a, b, n);
    for (int32_t i = 0; i < n; i++) x[i] = (int32_t)(uint32_t)sorted[i];
    return KVL_OK;
}
