/* topk.cuh - the radix select of topk.cu for operators that have their values on the device. */
#ifndef KVL_CUDA_TOPK_CUH
#define KVL_CUDA_TOPK_CUH

#include "select.cuh"

/* As the operator, inside a call: index [n_rows][k] and x on the device.  Stores 1 to *nan (kvl_cuda_mark;
 * NULL: to nowhere) where a row has something that is no number, which counts as its bits say: kvl_key_none
 * last. */
void kvl_cuda_topk_rows(struct kvl_cuda_call *c, int32_t *index, const float *x, size_t x_stride,
                        int32_t n_rows, int32_t n, int32_t k, int32_t *nan);

#endif
