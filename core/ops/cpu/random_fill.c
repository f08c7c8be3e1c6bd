#include "cpu.h"

int kvl_cpu_random_fill(const struct kvl_random_fill_args *a)
{
    enum { PIECE = 4096 };
    const struct kvl_kern *kern = kvl_kern();
    int64_t n = (int64_t)a->n;
    int threads = kvl_team((double)n);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < n; i += PIECE)
        kern->random_fill(a->y + i, a->seed, (uint64_t)i, (size_t)KVL_MIN(PIECE, n - i));
    return KVL_OK;
}
