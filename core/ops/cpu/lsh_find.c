/* One counter of a byte per vector, which stops at min_hits: buckets are read once, and a pass over the
 * counters gives the ids in order. */
#include "cpu.h"

#include <string.h>

static void find_query(const struct kvl_lsh_find_args *a, int32_t q, uint8_t *hits)
{
    size_t n_codes = (size_t)1 << a->n_bits;
    const uint16_t *code = a->code + (size_t)q * (size_t)a->n_tables;
    int32_t *found = a->found + (size_t)q * (size_t)a->n, n = 0;
    int64_t visited = 0;
    memset(hits, 0, (size_t)a->n);
    for (int32_t l = 0; l < a->n_tables; l++) {
        const int32_t *start = a->start[q] + (size_t)l * (n_codes + 1) + code[l];
        const int32_t *id = a->id[q] + (size_t)l * (size_t)a->n;
        for (int32_t j = start[0]; j < start[1]; j++) {
            uint8_t *hit = &hits[id[j]];
            *hit = (uint8_t)(*hit + (*hit < a->min_hits));
        }
        visited += start[1] - start[0];
    }
    for (int32_t i = 0; i < a->n; i++) {
        found[n] = i;
        n += hits[i] >= a->min_hits;
    }
    a->n_found[q] = n;
    a->n_visited[q] = visited;
}

int kvl_cpu_lsh_find(const struct kvl_lsh_find_args *a)
{
    uint8_t *hits = kvl_cpu_scratch((size_t)a->n_q * (size_t)a->n);
    if (!hits) return KVL_ENOMEM;
    int threads = kvl_team((double)a->n_q * a->n);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int32_t q = 0; q < a->n_q; q++) find_query(a, q, hits + (size_t)q * (size_t)a->n);
    return KVL_OK;
}
