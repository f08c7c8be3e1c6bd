/* One counter of a byte per vector, which stops at min_hits or before it runs over: buckets are read once, and a pass over
 * the counters gives the ids in order. */
#include "cpu.h"

#include <string.h>

enum { FIND_AHEAD = 4 }; /* tables; twice as many for their starts */

/* A bucket lies anywhere in its table: it is asked for some tables before, and where it begins before that. */
static void find_ask(const struct kvl_lsh_find_args *a, int32_t q, const uint16_t *code, int32_t l)
{
    size_t starts = ((size_t)1 << a->n_bits) + 1;
    int32_t far = l + 2 * FIND_AHEAD, near = l + FIND_AHEAD;
    if (far < a->n_tables) __builtin_prefetch(a->start[q] + (size_t)far * starts + code[far]);
    if (near >= a->n_tables) return;
    const int32_t *start = a->start[q] + (size_t)near * starts + code[near];
    const int32_t *id = a->id[q] + (size_t)near * (size_t)a->n;
    for (int32_t j = start[0]; j < start[1]; j += 16) __builtin_prefetch(id + j);
}

/* Counters of the ids of a bucket; they cannot run over where there are no more tables than a byte counts. */
static void find_count(uint8_t *hits, const int32_t *id, int32_t n, bool stops, uint8_t least)
{
    for (int32_t j = 0; !stops && j < n; j++) hits[id[j]]++;
    for (int32_t j = 0; stops && j < n; j++) {
        uint8_t hit = hits[id[j]];
        hits[id[j]] = (uint8_t)(hit + (hit < least));
    }
}

static void find_query(const struct kvl_lsh_find_args *a, int32_t q, uint8_t *hits)
{
    size_t n_codes = (size_t)1 << a->n_bits;
    const uint16_t *code = a->code + (size_t)q * (size_t)a->n_tables;
    int32_t *found = a->found + (size_t)q * (size_t)a->n, n = 0;
    const uint8_t least = (uint8_t)a->min_hits;
    int64_t visited = 0;
    memset(hits, 0, (size_t)a->n);
    for (int32_t l = 0; l < a->n_tables; l++) {
        const int32_t *start = a->start[q] + (size_t)l * (n_codes + 1) + code[l];
        const int32_t *id = a->id[q] + (size_t)l * (size_t)a->n;
        int32_t first = start[0], end = start[1];
        find_ask(a, q, code, l);
        find_count(hits, id + first, end - first, a->n_tables > UINT8_MAX, least);
        visited += end - first;
    }
    for (int32_t i = 0; i < a->n; i++) {
        found[n] = i;
        n += hits[i] >= least;
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
