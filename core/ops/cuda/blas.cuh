/* blas.cuh - cuBLAS, as gemm.cu uses it: one call, always the same for one matrix.
 *
 * cuBLAS gives the same bits for the same call on the same GPU.  That a row's bits also do not depend on where
 * in the call it stands rests on kernels that sum every element alike, over the whole depth: calls have a fixed
 * number of rows, atomics stay off (the default), sums are not reduced in a shorter type, and the workspace is
 * the least that cuBLAS asks for, without room for sums split over the depth (2 KiB a row of W and part).
 * tests/ops/test_matmul checks it on the GPU. */
#ifndef KVL_CUDA_BLAS_CUH
#define KVL_CUDA_BLAS_CUH

#include "cuda.cuh"

#ifdef KVL_CUDA_HOST
#include "cuda_host_blas.h" /* tests/ops/cuda_host */
enum { KVL_BLAS_ROWS = 48 };
#else
#include <cublas_v2.h>
enum { KVL_BLAS_ROWS = 512 }; /* of a call: a chunk of prefill */
#endif

#include <stdio.h>

struct kvl_blas_calls {
    decltype(&cublasCreate) create;
    decltype(&cublasSetStream) set_stream;
    decltype(&cublasSetMathMode) set_math_mode;
    decltype(&cublasSetWorkspace) set_workspace;
    cublasStatus_t (*gemm_ex)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                              const void *, const void *, cudaDataType_t, int, const void *,
                              cudaDataType_t, int, const void *, void *, cudaDataType_t, int,
                              cublasComputeType_t, cublasGemmAlgo_t);
};
/* NULL: kvl_cuda_check has the reason. */
const struct kvl_blas_calls *kvl_blas_load(void);

static int kvl_blas_check(cublasStatus_t status, const char *what)
{
    char text[96];
    if (status == CUBLAS_STATUS_SUCCESS) return KVL_OK;
    (void)snprintf(text, sizeof text, "%s: cuBLAS status %d", what, (int)status);
    return kvl_cuda_check(
        status == CUBLAS_STATUS_ALLOC_FAILED ? cudaErrorMemoryAllocation : cudaErrorUnknown, text);
}

/* The one of this process, at the end of MAIN; KVL_ENOMEM, KVL_EDEVICE. */
int kvl_blas_handle(cublasHandle_t *out);

/* y [KVL_BLAS_ROWS][ld_y] = x [KVL_BLAS_ROWS][n_cols] times the transpose of w [n_rows][n_cols]; rows of x and w
 * ld apart.  All begin at multiples of 16 bytes. */
static inline int kvl_blas_bf16(float *y, int32_t ld_y, const __nv_bfloat16 *x,
                                const __nv_bfloat16 *w, int32_t ld, int32_t n_rows, int32_t n_cols)
{
    const float one = 1, zero = 0;
    cublasHandle_t handle;
    KVL_TRY(kvl_blas_handle(&handle));
    /* cuBLAS has columns innermost: its Y' = W X'. */
    return kvl_blas_check(kvl_blas_load()->gemm_ex(handle, CUBLAS_OP_T, CUBLAS_OP_N, n_rows,
                                                   KVL_BLAS_ROWS, n_cols, &one, w, CUDA_R_16BF, ld,
                                                   x, CUDA_R_16BF, ld, &zero, y, CUDA_R_32F, ld_y,
                                                   CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                          "cublasGemmEx");
}

#endif
