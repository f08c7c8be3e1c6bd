#include "cpu.h"

int kvl_cpu_softmax(const struct kvl_softmax_args *a)
{
    const struct kvl_kern *kern = kvl_kern();
    int threads = kvl_team((double)a->n_rows * a->n * 2);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t r = 0; r < a->n_rows; r++) kern->softmax_row(a->x + (size_t)r * a->stride, a->n);
    return KVL_OK;
}
