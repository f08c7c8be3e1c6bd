#include "ref.h"

/* Tables in which vector i is in the bucket of query q. */
static int32_t find_hits(const struct kvl_lsh_find_args *a, int32_t q, int32_t i)
{
    int32_t n_codes = 1 << a->n_bits, hits = 0;
    for (int32_t l = 0; l < a->n_tables; l++) {
        const int32_t *start = a->start[q] + (size_t)l * ((size_t)n_codes + 1);
        int32_t code = a->code[(size_t)q * (size_t)a->n_tables + (size_t)l];
        for (int32_t j = start[code]; j < start[code + 1]; j++)
            hits += a->id[q][(size_t)l * (size_t)a->n + (size_t)j] == i;
    }
    return hits;
}

int kvl_ref_lsh_find(const struct kvl_lsh_find_args *a)
{
    for (int32_t q = 0; q < a->n_q; q++) {
        a->n_found[q] = 0;
        a->n_visited[q] = 0;
        for (int32_t i = 0; i < a->n; i++) {
            int32_t hits = find_hits(a, q, i);
            a->n_visited[q] += hits;
            if (hits >= a->min_hits)
                a->found[(size_t)q * (size_t)a->n + (size_t)a->n_found[q]++] = i;
        }
    }
    return KVL_OK;
}
