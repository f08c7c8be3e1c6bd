/* glu.cuh - what gemv makes of its products, shared with glu and add: the same bits. */
#ifndef KVL_CUDA_GLU_CUH
#define KVL_CUDA_GLU_CUH

#include "cuda.cuh"

/* tanh of GELU as a sigmoid: 1 + tanh(u) = 2 / (1 + exp(-2 u)). */
template <int ACT> static __device__ inline float glu_act(float g)
{
    if (ACT == KVL_ACT_GELU_TANH)
        return g / (1.0f + expf(-1.5957691216f * (g + 0.044715f * g * g * g)));
    if (ACT == KVL_ACT_GELU) return 0.5f * g * (1.0f + erff(g * 0.70710678f));
    if (ACT == KVL_ACT_RELU) return g > 0 ? g : 0;
    if (ACT == KVL_ACT_SWISH_CLAMPED) return g / (1.0f + expf(-1.702f * g));
    return g / (1.0f + expf(-g));
}

template <int ACT> static __device__ inline float glu_one(float g, float u)
{
    if (ACT != KVL_ACT_SWISH_CLAMPED) return glu_act<ACT>(g) * u;
    return glu_act<ACT>(fminf(g, 7.0f)) * (fminf(fmaxf(u, -7.0f), 7.0f) + 1.0f);
}

/* y [n] = act(gate [n]) * up [n]; up NULL: without it. */
void kvl_cuda_glu_launch(float *y, const float *gate, const float *up, size_t n, enum kvl_act act);
/* y [n] = y * *factor + x; NULL: 1. */
void kvl_cuda_add_launch(float *y, const float *x, size_t n, const float *factor);

#endif
