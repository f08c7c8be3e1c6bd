#include "cpu.h"

int kvl_cpu_rmsnorm(const struct kvl_rmsnorm_args *a)
{
    const struct kvl_kern *kern = kvl_kern();
    int threads = kvl_team((double)a->n * a->dim * 0.3);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < a->n; i++) {
        size_t off = (size_t)i * (size_t)a->dim;
        kern->rmsnorm_row(a->y + off, a->x + off, a->w, a->dim, a->eps);
    }
    return KVL_OK;
}
