/* Whether all of x is finite, into a flag that somebody reads later.  Limit: reading x. */
#include "rows.cuh"

static __global__ void __launch_bounds__(KVL_LINEAR_THREADS)
    finite_elements(int32_t *flag, const float *x, size_t n)
{
    bool bad = false;
    for (size_t i = kvl_linear_first(); i < n; i += kvl_linear_step()) bad |= !isfinite(x[i]);
    if (bad) atomicAdd(flag, 1);
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_mark_not_finite(const float *x, size_t n, int32_t *flag)
{
    if (n == 0) return KVL_OK;
    KVL_LAUNCH(finite_elements, kvl_linear_blocks(n), KVL_LINEAR_THREADS, 0, flag, x, n);
    return kvl_cuda_check(cudaGetLastError(), "finite");
}
