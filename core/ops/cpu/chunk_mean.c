#include "cpu.h"

#include <assert.h>

/* One pass over the scores, in the order of the definition. */
static float chunk_value(const struct kvl_chunk_mean_args *a, int32_t first, int32_t n)
{
    double sum = 0;
    for (int32_t r = 0; r < a->n_rows; r++) {
        const float *x = a->x + (size_t)r * a->stride + first;
        for (int32_t i = 0; i < n; i++) sum += (double)x[i];
    }
    return (float)(sum / n);
}

static void chunk_spread(const struct kvl_chunk_mean_args *a, int32_t first, int32_t n, float value)
{
    for (int32_t r = 0; r < a->n_rows; r++) {
        float *x = a->x + (size_t)r * a->stride + first;
        for (int32_t i = 0; i < n; i++) x[i] = value;
    }
}

int kvl_cpu_chunk_mean(const struct kvl_chunk_mean_args *a)
{
    int32_t n_chunks = (a->n + a->chunk - 1) / a->chunk, k = KVL_MIN(a->k, n_chunks);
    int threads = kvl_team((double)a->n_rows * a->n);
    size_t room = (size_t)n_chunks;
    assert(a->chunk > 0 && a->k >= 0);
    float *value = kvl_cpu_scratch((3 * room + 1) * sizeof *value);
    if (!value) return KVL_ENOMEM;
    int32_t *index = (int32_t *)(void *)(value + room), *keys = index + room;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t c = 0; c < n_chunks; c++) {
        int32_t first = c * a->chunk, n = KVL_MIN(a->chunk, a->n - first);
        value[c] = chunk_value(a, first, n);
        chunk_spread(a, first, n, value[c]);
    }
    *a->n_best = 0;
    if (!kvl_kern()->topk_row(index, value, n_chunks, k, keys)) return KVL_ENUMERIC;
    for (int32_t i = 0; i < k; i++) *a->n_best += KVL_MIN(a->chunk, a->n - index[i] * a->chunk);
    return KVL_OK;
}
