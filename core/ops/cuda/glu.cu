/* Four neighbouring elements a thread.  Limit: 12 bytes an element. */
#include "glu.cuh"
#include "rows.cuh"

template <bool WIDE, int ACT>
static __global__ void __launch_bounds__(KVL_LINEAR_THREADS)
    glu_fours(float *y, const float *gate, const float *up, size_t n)
{
    for (size_t i = kvl_linear_first(); 4 * i < n; i += kvl_linear_step()) {
        float g[4], u[4] = { 1, 1, 1, 1 };
        kvl_four<WIDE>(g, gate, i, n);
        if (up) kvl_four<WIDE>(u, up, i, n);
        for (int j = 0; j < 4; j++) g[j] = glu_one<ACT>(g[j], u[j]);
        kvl_put_four<WIDE>(y, i, n, g);
    }
}

/* ---- launch ---------------------------------------------------------------------------------------- */

template <int ACT> static void glu_start(float *y, const float *gate, const float *up, size_t n)
{
    unsigned blocks = kvl_linear_blocks((n + 3) / 4);
    if (kvl_aligned16(y) && kvl_aligned16(gate) && kvl_aligned16(up))
        KVL_LAUNCH((glu_fours<true, ACT>), blocks, KVL_LINEAR_THREADS, 0, y, gate, up, n);
    else
        KVL_LAUNCH((glu_fours<false, ACT>), blocks, KVL_LINEAR_THREADS, 0, y, gate, up, n);
}

void kvl_cuda_glu_launch(float *y, const float *gate, const float *up, size_t n, enum kvl_act act)
{
    switch (act) {
    case KVL_ACT_SILU: glu_start<KVL_ACT_SILU>(y, gate, up, n); break;
    case KVL_ACT_GELU_TANH: glu_start<KVL_ACT_GELU_TANH>(y, gate, up, n); break;
    case KVL_ACT_GELU: glu_start<KVL_ACT_GELU>(y, gate, up, n); break;
    case KVL_ACT_RELU: glu_start<KVL_ACT_RELU>(y, gate, up, n); break;
    case KVL_ACT_SWISH_CLAMPED: glu_start<KVL_ACT_SWISH_CLAMPED>(y, gate, up, n); break;
    }
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_glu(const struct kvl_glu_args *a)
{
    struct kvl_cuda_call c;
    assert(a->up || a->act != KVL_ACT_SWISH_CLAMPED);
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    const float *gate = kvl_cuda_in(&c, a->gate, a->n);
    const float *up = a->up ? kvl_cuda_in(&c, a->up, a->n) : NULL;
    float *y = kvl_cuda_out(&c, a->y, a->n);
    if (c.rc == KVL_OK) kvl_cuda_glu_launch(y, gate, up, a->n, a->act);
    return kvl_cuda_end(&c);
}
