/* topk.cuh - the radix select of topk.cu for operators that have their values on the device. */
#ifndef KVL_CUDA_TOPK_CUH
#define KVL_CUDA_TOPK_CUH

#include "ops/cuda/select.cuh"

/* As the operator, inside a call: index [n_rows][k] and x on the device.  Gives flags on the device, one
 * per row, not 0 where it has something that is no number (which counts as its bits say: kvl_key_none last);
 * NULL where there is nothing to look at or after a failure (c->rc). */
const int32_t *kvl_cuda_topk_rows(struct kvl_cuda_call *c, int32_t *index, const float *x,
                                  size_t x_stride, int32_t n_rows, int32_t n, int32_t k);

#endif
