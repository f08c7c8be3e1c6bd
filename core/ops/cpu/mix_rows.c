#include "cpu.h"

int kvl_cpu_mix_rows(const struct kvl_mix_rows_args *a)
{
    size_t dim = (size_t)a->dim;
    int threads = kvl_team((double)a->n * a->k * a->dim * 0.3);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < a->n; i++) {
        float *y = a->y + (size_t)i * dim;
        for (size_t c = 0; c < dim; c++) y[c] = 0;
        for (int32_t j = i * a->k; j < (i + 1) * a->k; j++) {
            const float *x = a->x + (size_t)a->row[j] * dim;
            float w = a->weight[j];
            for (size_t c = 0; c < dim; c++) y[c] += w * x[c];
        }
    }
    return KVL_OK;
}
