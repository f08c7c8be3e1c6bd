#include "cpu.h"

#include <assert.h>
#include <omp.h>

int kvl_cpu_topk(const struct kvl_topk_args *a)
{
    const struct kvl_kern *kern = kvl_kern();
    int threads = kvl_team((double)a->n_rows * a->n), status = KVL_OK;
    size_t n = (size_t)a->n;
    assert(a->k >= 0 && a->k <= a->n);
    int32_t *keys = kvl_cpu_scratch((size_t)threads * n * sizeof *keys);
    if (!keys) return KVL_ENOMEM;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)                    \
    reduction(min                                                                                  \
              : status)
    for (int32_t r = 0; r < a->n_rows; r++) {
        size_t row = (size_t)r;
        if (!kern->topk_row(a->index + row * (size_t)a->k, a->x + row * a->x_stride, a->n, a->k,
                            keys + (size_t)omp_get_thread_num() * n))
            status = KVL_ENUMERIC;
    }
    return status;
}
