/* cuBLAS, looked for when it is first needed: the program starts and runs on the CPU where there is none. */
#include "blas.cuh"
#include "runtime.cuh"

/* With less, says its manual, it may refuse calls. */
enum { BLAS_WORKSPACE_BYTES = 16 << 10 };

#ifdef KVL_CUDA_HOST

const struct kvl_blas_calls *kvl_blas_load(void)
{
    static const struct kvl_blas_calls calls = {
        .create = cublasCreate,
        .set_stream = cublasSetStream,
        .set_math_mode = cublasSetMathMode,
        .set_workspace = cublasSetWorkspace,
        .gemm_ex = cublasGemmEx,
    };
    return &calls;
}

#else

#include <dlfcn.h>

#ifndef KVL_BLAS_DIR /* where the toolkit of this build has it */
#define KVL_BLAS_DIR "/usr/local/cuda/lib64"
#endif

#define KVL_BLAS_TEXT(x) #x
#define KVL_BLAS_NAME(x) KVL_BLAS_TEXT(x)
#define KVL_BLAS_FILE    "libcublas.so." KVL_BLAS_NAME(CUBLAS_VER_MAJOR)

template <class F> static bool blas_find(void *library, const char *name, F *out)
{
    *out = reinterpret_cast<F>(dlsym(library, name));
    return *out != NULL;
}

/* Names of the library are those that the header's macros give. */
const struct kvl_blas_calls *kvl_blas_load(void)
{
    static struct kvl_blas_calls calls;
    static bool loaded;
    if (loaded) return &calls;
    void *library = dlopen(KVL_BLAS_FILE, RTLD_NOW | RTLD_LOCAL);
    if (!library) library = dlopen(KVL_BLAS_DIR "/" KVL_BLAS_FILE, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        (void)kvl_cuda_check(cudaErrorSharedObjectInitFailed,
                             KVL_BLAS_FILE ": not found; add its folder to LD_LIBRARY_PATH");
        return NULL;
    }
    loaded = blas_find(library, KVL_BLAS_NAME(cublasCreate), &calls.create) &&
             blas_find(library, KVL_BLAS_NAME(cublasSetStream), &calls.set_stream) &&
             blas_find(library, KVL_BLAS_NAME(cublasSetMathMode), &calls.set_math_mode) &&
             blas_find(library, KVL_BLAS_NAME(cublasSetWorkspace), &calls.set_workspace) &&
             blas_find(library, KVL_BLAS_NAME(cublasGemmEx), &calls.gemm_ex);
    if (!loaded)
        (void)kvl_cuda_check(cudaErrorSharedObjectSymbolNotFound,
                             KVL_BLAS_FILE ": lacks functions of cuBLAS");
    return loaded ? &calls : NULL;
}

#endif

static int blas_create(const struct kvl_blas_calls *blas, cublasHandle_t *out)
{
    cublasHandle_t h;
    KVL_TRY(kvl_cuda_step_start()); /* it may wait for the device */
    KVL_TRY(kvl_blas_check(blas->create(&h), "cublasCreate"));
    KVL_TRY(kvl_blas_check(blas->set_math_mode(h, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION),
                           "cublasSetMathMode"));
    *out = h;
    return KVL_OK;
}

int kvl_blas_handle(cublasHandle_t *out)
{
    static cublasHandle_t handle;
    static void *workspace;
    const struct kvl_blas_calls *blas = kvl_blas_load();
    if (!blas) return KVL_EDEVICE;
    if (!workspace) KVL_TRY(kvl_cuda_alloc(KVL_PLACE_DEVICE, BLAS_WORKSPACE_BYTES, &workspace));
    if (!handle) KVL_TRY(blas_create(blas, &handle));
    KVL_TRY(kvl_blas_check(blas->set_stream(handle, kvl_cuda_main()), "cublasSetStream"));
    /* After the stream, which brings the default one back. */
    KVL_TRY(kvl_blas_check(blas->set_workspace(handle, workspace, BLAS_WORKSPACE_BYTES),
                           "cublasSetWorkspace"));
    *out = handle;
    return KVL_OK;
}
