#include "cpu.h"
#include "kvl/rng.h"

int kvl_cpu_random_fill(const struct kvl_random_fill_args *a)
{
    int threads = kvl_team((double)a->n * 2);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < (int64_t)a->n; i++)
        a->y[i] = (float)(kvl_seed_mix(a->seed, (uint64_t)i) >> 40) * 0x1p-24f;
    return KVL_OK;
}
