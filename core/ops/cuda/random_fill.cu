/* One hash an element (rng.c has its constants), from the element's index alone.  Limit: writing y. */
#include "rows.cuh"

/* kvl_seed_mix */
static __device__ inline uint64_t random_mix(uint64_t seed, uint64_t value)
{
    uint64_t z = seed + 0x9e3779b97f4a7c15u * (value + 1);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static __global__ void __launch_bounds__(KVL_LINEAR_THREADS)
    random_elements(float *y, size_t n, uint64_t seed)
{
    for (size_t i = kvl_linear_first(); i < n; i += kvl_linear_step())
        y[i] = (float)(random_mix(seed, i) >> 40) * (1.0f / 16777216);
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_random_fill(const struct kvl_random_fill_args *a)
{
    struct kvl_cuda_call c;
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    float *y = kvl_cuda_out(&c, a->y, a->n);
    if (c.rc == KVL_OK)
        KVL_LAUNCH(random_elements, kvl_linear_blocks(a->n), KVL_LINEAR_THREADS, 0, y, a->n,
                   a->seed);
    return kvl_cuda_end(&c);
}
