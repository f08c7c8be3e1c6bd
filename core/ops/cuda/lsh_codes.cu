/* A thread per code.  Reads n_tables * n_bits floats of a vector once, which is the limit: the n_bits loads
 * of a warp go through the same lines one after the other, so all of a line is used while it is in L1.
 * Not timed yet. */
#include "cuda.cuh"

static __global__ void codes_kernel(uint16_t *code, const float *side, size_t n, int32_t n_bits)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float *s = side + i * (size_t)n_bits;
    uint32_t bits = 0;
    for (int32_t j = 0; j < n_bits; j++) bits |= (uint32_t)(s[j] > 0) << j;
    code[i] = (uint16_t)bits;
}

/* Blocks of 256: codes are independent, any size does. */
static void codes_launch(uint16_t *code, const float *side, size_t n, int32_t n_bits)
{
    KVL_LAUNCH(codes_kernel, (unsigned)kvl_ceil_div((int64_t)n, 256), 256, 0, code, side, n,
               n_bits);
}

int kvl_cuda_lsh_codes(const struct kvl_lsh_codes_args *a)
{
    struct kvl_cuda_call c;
    size_t n = (size_t)a->n * (size_t)a->n_tables;
    assert(a->n >= 0 && a->n_tables >= 1 && a->n_bits >= 1 && a->n_bits <= 16);
    kvl_cuda_begin(&c);
    const float *side = kvl_cuda_in(&c, a->side, n * (size_t)a->n_bits);
    uint16_t *code = kvl_cuda_out(&c, a->code, n);
    if (c.rc == KVL_OK && n > 0) codes_launch(code, side, n, a->n_bits);
    return kvl_cuda_end(&c);
}
