/* cuBLAS by plain loops, queued on the handle's stream like a kernel. */
#include "cuda_host_blas.h"
#include "cuda_host_impl.h"

struct cublasContext {
    cudaStream_t stream;
    size_t workspace_bytes;
};

namespace
{
/* Of cuBLAS itself; what is enough that no call is refused for want of it, as its manual says. */
enum { WORKSPACE_DEFAULT = 4 << 20, WORKSPACE_LEAST = 16 << 10, WORKSPACE_ALIGN = 256 };

struct matrix {
    const void *p;
    cudaDataType_t type;
    int ld;
    bool across; /* element (i, l) lies at l + i ld */
};
struct product {
    struct matrix a, b; /* element (row or column, depth) */
    float *c;
    int m, n, k, ldc;
    float alpha, beta;
};

float element(const struct matrix *x, int i, int l)
{
    size_t at =
        x->across ? (size_t)l + (size_t)i * (size_t)x->ld : (size_t)i + (size_t)l * (size_t)x->ld;
    if (x->type == CUDA_R_32F) return ((const float *)x->p)[at];
    if (x->type == CUDA_R_16F) return (float)((const __half *)x->p)[at];
    return (float)((const __nv_bfloat16 *)x->p)[at];
}

/* Columns of op(b) side by side, WIDE of them a panel: WIDE sums of a row of c at once, four rows deep.  Each sum goes from
 * 0 to k - 1, as if there were no other. */
enum { WIDE = 16, DEEP = 4 };
typedef float wide __attribute__((vector_size(WIDE * sizeof(float))));

std::vector<float> panels(const struct matrix *b, int n, int k)
{
    std::vector<float> x((size_t)((n + WIDE - 1) / WIDE) * (size_t)k * WIDE);
    for (int j = 0; j < n; j++) {
        float *to = x.data() + (size_t)(j / WIDE) * (size_t)k * WIDE + j % WIDE;
        for (int l = 0; l < k; l++) to[(size_t)l * WIDE] = element(b, j, l);
    }
    return x;
}

void multiply_rows(const struct product *g, const float *panel, const float *row, int i, int j)
{
    wide sum[DEEP] = {}, b;
    for (int l = 0; l < g->k; l++, panel += WIDE, row += DEEP) {
        memcpy(&b, panel, sizeof b);
#pragma GCC unroll 4
        for (int r = 0; r < DEEP; r++) sum[r] += row[r] * b;
    }
    for (int r = 0; r < DEEP && i + r < g->m; r++)
        for (int w = 0; w < WIDE && j + w < g->n; w++) {
            float *c = g->c + (size_t)(i + r) + (size_t)(j + w) * (size_t)g->ldc;
            *c = g->alpha * sum[r][w] + (g->beta != 0 ? g->beta * *c : 0);
        }
}

void multiply(const struct product *g)
{
    std::vector<float> b = panels(&g->b, g->n, g->k), rows((size_t)g->k * DEEP);
    for (int i = 0; i < g->m; i += DEEP) {
        for (int r = 0; r < DEEP && i + r < g->m; r++)
            for (int l = 0; l < g->k; l++)
                rows[(size_t)l * DEEP + (size_t)r] = element(&g->a, i + r, l);
        for (int j = 0; j < g->n; j += WIDE)
            multiply_rows(g, b.data() + (size_t)j * (size_t)g->k, rows.data(), i, j);
    }
}

bool on_device(const void *p, size_t elements, size_t bytes)
{
    enum kvl_emu_place place;
    return kvl_emu_place_of(p, elements * bytes, &place) && place != KVL_EMU_PAGEABLE;
}

bool matrix_fits(const struct matrix *x, int n, int k)
{
    size_t inner = (size_t)(x->across ? k : n), outer = (size_t)(x->across ? n : k);
    return (size_t)x->ld >= inner &&
           on_device(x->p, (outer - 1) * (size_t)x->ld + inner, x->type == CUDA_R_32F ? 4 : 2);
}
} // namespace

cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
    if (kvl_emu_enter(KVL_EMU_CALLS) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = new cublasContext{ nullptr, WORKSPACE_DEFAULT };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    handle->workspace_bytes = WORKSPACE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, int)
{
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *p, size_t bytes)
{
    if ((uintptr_t)p % WORKSPACE_ALIGN != 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (bytes > 0 && !on_device(p, bytes, 1))
        kvl_emu_die("cublasSetWorkspace: it lies outside of the device's memory");
    handle->workspace_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                            int m, int n, int k, const void *alpha, const void *a,
                            cudaDataType_t a_type, int lda, const void *b, cudaDataType_t b_type,
                            int ldb, const void *beta, void *c, cudaDataType_t c_type, int ldc,
                            cublasComputeType_t, cublasGemmAlgo_t)
{
    struct product g = { { a, a_type, lda, op_a == CUBLAS_OP_T },
                         { b, b_type, ldb, op_b == CUBLAS_OP_N },
                         (float *)c,
                         m,
                         n,
                         k,
                         ldc,
                         *(const float *)alpha,
                         *(const float *)beta };
    if (kvl_emu_enter(KVL_EMU_LAUNCH) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (m < 0 || n < 0 || k < 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (handle->workspace_bytes < WORKSPACE_LEAST) return CUBLAS_STATUS_ALLOC_FAILED;
    if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
    if (c_type != CUDA_R_32F || a_type != b_type) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (ldc < m || !on_device(c, (size_t)(n - 1) * (size_t)ldc + (size_t)m, 4))
        kvl_emu_die("cublasGemmEx: c lies outside of the device's memory");
    if (k > 0 && (!matrix_fits(&g.a, m, k) || !matrix_fits(&g.b, n, k)))
        kvl_emu_die("cublasGemmEx: a or b lies outside of the device's memory");
    kvl_emu_count.n_launches++;
    return kvl_emu_give(handle->stream, KVL_EMU_NODE_KERNEL, (const void *)&multiply,
                        [g] { multiply(&g); }) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                           int m, int n, int k, const float *alpha, const float *a, int lda,
                           const float *b, int ldb, const float *beta, float *c, int ldc)
{
    return cublasGemmEx(handle, op_a, op_b, m, n, k, alpha, a, CUDA_R_32F, lda, b, CUDA_R_32F, ldb,
                        beta, c, CUDA_R_32F, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
