#include "kvl/rng.h"
#include "ref.h"

/* The upper 24 bits of the SplitMix64 hash of (seed, index): every float of the grid 2^-24. */
int kvl_ref_random_fill(const struct kvl_random_fill_args *a)
{
    for (size_t i = 0; i < a->n; i++) a->y[i] = (float)(kvl_seed_mix(a->seed, i) >> 40) * 0x1p-24f;
    return KVL_OK;
}
