/* Yardsticks of `kvlab bench`: memory read once, and a product of bf16 by cuBLAS alone. */
#include "blas.cuh"
#include "runtime.cuh"

enum { PEAK_THREADS = 256, PEAK_BLOCKS = 2048, PEAK_LOADS = 8 };

/* Eight loads of 16 bytes of a thread are under way at once, neighbours side by side; what is read is summed
 * so that it is read. */
static __global__ void peak_read_kernel(const uint4 *p, size_t n, uint32_t *sink)
{
    size_t step = (size_t)gridDim.x * PEAK_THREADS;
    size_t i = (size_t)blockIdx.x * PEAK_THREADS + threadIdx.x;
    uint32_t sum = 0;
    for (; i + (PEAK_LOADS - 1) * step < n; i += PEAK_LOADS * step) {
        uint4 v[PEAK_LOADS];
        for (int k = 0; k < PEAK_LOADS; k++) v[k] = p[i + (size_t)k * step];
        for (int k = 0; k < PEAK_LOADS; k++) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    for (; i < n; i += step) sum += p[i].x ^ p[i].y ^ p[i].z ^ p[i].w;
    if (sum == 0x9e3779b9u) *sink = sum; /* hardly ever; nobody reads it */
}

int kvl_cuda_peak_read(const void *p, size_t bytes)
{
    struct kvl_cuda_call c;
    size_t n = bytes / sizeof(uint4);
    kvl_cuda_begin(&c);
    const uint4 *data = static_cast<const uint4 *>(kvl_cuda_in_bytes(&c, p, bytes));
    uint32_t *sink = kvl_cuda_temp<uint32_t>(&c, 1);
    if (c.rc == KVL_OK && n > 0)
        KVL_LAUNCH(peak_read_kernel, PEAK_BLOCKS, PEAK_THREADS, 0, data, n, sink);
    return kvl_cuda_end(&c);
}

/* As a program would call it: a handle with cuBLAS's own workspace, all rows in one call. */
static int peak_handle(cublasHandle_t *out)
{
    static cublasHandle_t handle;
    const struct kvl_blas_calls *blas = kvl_blas_load();
    if (!blas) return KVL_EDEVICE;
    if (!handle) KVL_TRY(kvl_blas_check(blas->create(&handle), "cublasCreate"));
    *out = handle;
    return kvl_blas_check(blas->set_stream(handle, kvl_cuda_main()), "cublasSetStream");
}

int kvl_cuda_peak_gemm(float *c, const uint16_t *a, const uint16_t *w, int32_t m, int32_t n,
                       int32_t k)
{
    const float one = 1, zero = 0;
    cublasHandle_t handle;
    KVL_TRY(kvl_cuda_ready());
    KVL_TRY(peak_handle(&handle));
    return kvl_blas_check(kvl_blas_load()->gemm_ex(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one,
                                                   w, CUDA_R_16BF, k, a, CUDA_R_16BF, k, &zero, c,
                                                   CUDA_R_32F, n, CUBLAS_COMPUTE_32F,
                                                   CUBLAS_GEMM_DEFAULT),
                          "cublasGemmEx");
}
