#include "cpu.h"

#include <math.h>

int kvl_cpu_scale(const struct kvl_scale_args *a)
{
    int threads = kvl_team((double)a->n * (a->cap > 0 ? 10 : 0.1));
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (size_t i = 0; i < a->n; i++) {
        float x = a->y[i] * a->factor;
        a->y[i] = a->cap > 0 ? a->cap * tanhf(x / a->cap) : x;
    }
    return KVL_OK;
}
