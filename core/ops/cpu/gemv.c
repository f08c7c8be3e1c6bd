#include "ops/cpu/cpu.h"

int kvl_cpu_gemv(const struct kvl_gemv_args *a)
{
    const struct kvl_kern *kern = kvl_kern();
    int threads = kvl_team((double)a->n * a->w->n_rows * a->w->n_cols / 16);
    int32_t step = KVL_MAX(1, a->w->n_rows / (threads * 4));
    int32_t n_items = (a->w->n_rows + step - 1) / step;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < n_items; i++)
        kern->gemv_rows(a, i * step, KVL_MIN((i + 1) * step, a->w->n_rows));
    return KVL_OK;
}
