#include "cpu.h"

enum { MIX_AHEAD = 4 };

/* Rows lie anywhere: the processor does not guess the next one. */
static void mix_ask(const struct kvl_mix_rows_args *a, int32_t j)
{
    const float *x = a->x + (size_t)a->row[j] * (size_t)a->dim;
    for (int32_t c = 0; c < a->dim; c += 16) __builtin_prefetch(x + c);
}

int kvl_cpu_mix_rows(const struct kvl_mix_rows_args *a)
{
    size_t dim = (size_t)a->dim;
    int threads = kvl_team((double)a->n * a->k * a->dim * 0.3);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < a->n; i++) {
        float *y = a->y + (size_t)i * dim;
        for (int32_t j = i * a->k; j < (i + 1) * a->k; j++) {
            const float *x = a->x + (size_t)a->row[j] * dim;
            float w = a->weight[j];
            if (j + MIX_AHEAD < a->n * a->k) mix_ask(a, j + MIX_AHEAD);
            if (j == i * a->k)
                for (size_t c = 0; c < dim; c++) y[c] = w * x[c];
            else
                for (size_t c = 0; c < dim; c++) y[c] += w * x[c];
        }
        for (size_t c = 0; a->k == 0 && c < dim; c++) y[c] = 0;
    }
    return KVL_OK;
}
