/* Four neighbouring elements a thread.  Limit: 12 bytes an element. */
#include "rows.cuh"

template <bool WIDE>
static __global__ void __launch_bounds__(KVL_LINEAR_THREADS)
    swiglu_fours(float *y, const float *gate, const float *up, size_t n)
{
    for (size_t i = kvl_linear_first(); 4 * i < n; i += kvl_linear_step()) {
        float g[4], u[4];
        kvl_four<WIDE>(g, gate, i, n);
        kvl_four<WIDE>(u, up, i, n);
        for (int j = 0; j < 4; j++) g[j] = g[j] / (1.0f + expf(-g[j])) * u[j];
        kvl_put_four<WIDE>(y, i, n, g);
    }
}

/* ---- launch ---------------------------------------------------------------------------------------- */

static void swiglu_launch(float *y, const float *gate, const float *up, size_t n)
{
    unsigned blocks = kvl_linear_blocks((n + 3) / 4);
    if (kvl_aligned16(y) && kvl_aligned16(gate) && kvl_aligned16(up))
        KVL_LAUNCH(swiglu_fours<true>, blocks, KVL_LINEAR_THREADS, 0, y, gate, up, n);
    else
        KVL_LAUNCH(swiglu_fours<false>, blocks, KVL_LINEAR_THREADS, 0, y, gate, up, n);
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_swiglu(const struct kvl_swiglu_args *a)
{
    struct kvl_cuda_call c;
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    const float *gate = kvl_cuda_in(&c, a->gate, a->n), *up = kvl_cuda_in(&c, a->up, a->n);
    float *y = kvl_cuda_out(&c, a->y, a->n);
    if (c.rc == KVL_OK) swiglu_launch(y, gate, up, a->n);
    return kvl_cuda_end(&c);
}
