/* What is found in results: the samples of a cell, by keys of names. */
#include "results_parts.h"

#include "kvl/rng.h"

#include <stdlib.h>

uint64_t kvl_result_key(const char *id)
{
    return kvl_seed_str(0, id);
}

int kvl_results_memory(struct kvl_err *err)
{
    return kvl_fail(err, KVL_ENOMEM, "no memory for the records of the log");
}

const struct kvl_result_sample *kvl_result_samples(const struct kvl_results *r,
                                                   const struct kvl_result *cell, size_t *n)
{
    uint64_t key = kvl_result_key(cell->id);
    size_t lo = 0, hi = r->n_samples;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (r->sample[mid].cell < key)
            lo = mid + 1;
        else
            hi = mid;
    }
    *n = 0;
    while (lo + *n < r->n_samples && r->sample[lo + *n].cell == key) ++*n;
    return r->sample + lo;
}
