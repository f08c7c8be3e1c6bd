#include "ref.h"

#include <assert.h>
#include <math.h>

static int32_t chunk_len(const struct kvl_chunk_mean_args *a, int32_t c)
{
    return KVL_MIN(a->chunk, a->n - c * a->chunk);
}

static float chunk_value(const struct kvl_chunk_mean_args *a, int32_t c)
{
    double sum = 0;
    for (int32_t r = 0; r < a->n_rows; r++)
        for (int32_t i = 0; i < chunk_len(a, c); i++)
            sum += (double)a->x[(size_t)r * a->stride + (size_t)(c * a->chunk + i)];
    return (float)(sum / chunk_len(a, c));
}

/* A chunk is among the best when fewer than k are better; of equals the earlier
 * is. */
int kvl_ref_chunk_mean(const struct kvl_chunk_mean_args *a)
{
    int32_t n_chunks = (a->n + a->chunk - 1) / a->chunk;
    assert(a->chunk > 0);
    float *value = kvl_alloc((size_t)n_chunks + 1, sizeof *value);
    if (!value) return KVL_ENOMEM;
    int status = KVL_OK;
    for (int32_t c = 0; c < n_chunks; c++) {
        value[c] = chunk_value(a, c);
        if (isnan(value[c])) status = KVL_ENUMERIC;
    }
    *a->n_best = 0;
    for (int32_t c = 0; c < n_chunks; c++) {
        int32_t better = 0;
        for (int32_t d = 0; d < c; d++) better += !(value[d] < value[c]);
        for (int32_t d = c + 1; d < n_chunks; d++) better += value[d] > value[c];
        if (better < a->k) *a->n_best += chunk_len(a, c);
        for (int32_t r = 0; r < a->n_rows; r++)
            for (int32_t i = 0; i < chunk_len(a, c); i++)
                a->x[(size_t)r * a->stride + (size_t)(c * a->chunk + i)] = value[c];
    }
    kvl_free(value);
    return status;
}
