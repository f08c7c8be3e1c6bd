/* gemm.cuh - products of matrices for other operators' launchers (gemm.cu). */
#ifndef KVL_CUDA_GEMM_CUH
#define KVL_CUDA_GEMM_CUH

#include "wtype.cuh"

/* y [n][w->n_rows] = x [n][w->n_cols] W': every element one chain of multiply-adds over the columns in
 * ascending order, as on the CPU.  y, x and data, which takes the place of w->data, are for kernels. */
void kvl_cuda_gemm_chain(float *y, const float *x, const struct kvl_weight *w, const void *data,
                         int32_t n);

#endif
