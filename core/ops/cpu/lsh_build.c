#include "cpu.h"

#include <string.h>

/* A counting sort: start [b + 1] is first the number of codes b, then where the next of them goes. */
static void build_table(const struct kvl_lsh_build_args *a, int32_t l)
{
    size_t n_codes = (size_t)1 << a->n_bits, n_tables = (size_t)a->n_tables;
    int32_t *start = a->start + (size_t)l * (n_codes + 1), *id = a->id + (size_t)l * (size_t)a->n;
    const uint16_t *code = a->code + l;
    memset(start, 0, (n_codes + 1) * sizeof *start);
    for (int32_t i = 0; i < a->n; i++) start[code[(size_t)i * n_tables] + 1]++;
    for (size_t b = 0; b < n_codes; b++) start[b + 1] += start[b];
    for (int32_t i = 0; i < a->n; i++) id[start[code[(size_t)i * n_tables]]++] = i;
    memmove(start + 1, start, n_codes * sizeof *start); /* every bucket's end was left behind */
    start[0] = 0;
}

int kvl_cpu_lsh_build(const struct kvl_lsh_build_args *a)
{
    int threads = kvl_team((double)a->n * a->n_tables * 4);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t l = 0; l < a->n_tables; l++) build_table(a, l);
    return KVL_OK;
}
