/* The GPU as a kvl_device: opening it, its streams, its errors.
 *
 * CUDA tells of a failure with some later call, and after most of them nothing works any more.  So the first
 * one is kept with the names of the call, the operator and the kernel, and every later call gives it again. */
#include "prefill.cuh"
#include "runtime.cuh"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COMPUTE_MAJOR_MIN = 8 };

struct kvl_cuda_runtime kvl_cuda_rt = {};

static struct kvl_device device_cuda;

static __global__ void probe_kernel(int32_t *one)
{
    *one = 1;
}

/* ---- errors --------------------------------------------------------------------------------------- */

int kvl_cuda_fail(const char *fmt, ...)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    va_list ap;
    if (rt->failed) return KVL_EDEVICE;
    rt->failed = true;
    va_start(ap, fmt);
    vsnprintf(rt->error, sizeof rt->error, fmt, ap);
    va_end(ap);
    return KVL_EDEVICE;
}

int kvl_cuda_check(cudaError_t e, const char *what)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    if (rt->failed) return KVL_EDEVICE;
    if (e == cudaSuccess) return KVL_OK;
    (void)cudaGetLastError(); /* the next call is not to find it again */
    if (e == cudaErrorMemoryAllocation) return KVL_ENOMEM;
    return kvl_cuda_fail("device cuda: %s: %s (%s)%s%s%s%s", what, cudaGetErrorString(e),
                         cudaGetErrorName(e), rt->op_name ? ", last operator " : "",
                         rt->op_name ? rt->op_name : "", rt->kernel_name ? ", last kernel " : "",
                         rt->kernel_name ? rt->kernel_name : "");
}

static const char *device_error(void)
{
    return kvl_cuda_rt.error;
}

/* ---- streams -------------------------------------------------------------------------------------- */

cudaStream_t kvl_cuda_main(void)
{
    kvl_cuda_rt.busy[KVL_STREAM_MAIN] = true;
    return kvl_cuda_rt.stream[KVL_STREAM_MAIN];
}

cudaStream_t kvl_cuda_launch(const char *kernel)
{
    kvl_cuda_rt.kernel_name = kernel;
    kvl_cuda_rt.traffic.n_launches++;
    kvl_cuda_rt.busy[kvl_cuda_rt.launches] = true;
    return kvl_cuda_rt.stream[kvl_cuda_rt.launches];
}

int kvl_cuda_rest(void)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    KVL_TRY(kvl_cuda_ready());
    KVL_TRY(kvl_cuda_step_start());
    for (int s = 0; s < KVL_STREAMS; s++) {
        if (!rt->busy[s]) continue;
        KVL_TRY(kvl_cuda_wait(static_cast<enum kvl_stream>(s)));
    }
    return kvl_cuda_flush();
}

int kvl_cuda_sync(void)
{
    KVL_TRY(kvl_cuda_ready());
    KVL_TRY(kvl_cuda_twin_pull());
    return kvl_cuda_rest();
}

/* ---- opening -------------------------------------------------------------------------------------- */

static const char *open_visible(void)
{
    const char *v = getenv("CUDA_VISIBLE_DEVICES");
    return v ? v : "not set";
}

/* cudaGetDeviceCount gives much the same error for causes that want different cures. */
static int open_no_device(cudaError_t e)
{
    static const char node[] = "/dev/nvidiactl";
    int driver = 0, runtime = 0;
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (access(node, F_OK) == 0 && access(node, R_OK | W_OK) != 0 && errno == EACCES)
        return kvl_cuda_fail("device cuda: this user may not open %s; want read and write "
                             "permission there, or --device cpu",
                             node);
    if (driver == 0)
        return kvl_cuda_fail("device cuda: no NVIDIA driver here (%s); install one, or give the "
                             "container the GPU, or use --device cpu",
                             cudaGetErrorString(e));
    if (e == cudaErrorInsufficientDriver)
        return kvl_cuda_fail("device cuda: the driver is for CUDA %d.%d, this program was built "
                             "with %d.%d; update the driver, or build with an older toolkit",
                             driver / 1000, driver % 1000 / 10, runtime / 1000,
                             runtime % 1000 / 10);
    return kvl_cuda_fail("device cuda: no GPU is visible (CUDA_VISIBLE_DEVICES %s; %s); want one "
                         "GPU, or --device cpu",
                         open_visible(), e == cudaSuccess ? "0 found" : cudaGetErrorString(e));
}

static int open_select(void)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n < 1) return open_no_device(e);
    if (rt->gpu < 0 || rt->gpu >= n)
        return kvl_cuda_fail("device cuda:%d: GPUs that are visible: %d (CUDA_VISIBLE_DEVICES %s); "
                             "want a number from 0 to %d",
                             rt->gpu, n, open_visible(), n - 1);
    KVL_TRY(kvl_cuda_check(cudaSetDevice(rt->gpu), "choosing the GPU"));
    int major = 0, minor = 0;
    KVL_TRY(kvl_cuda_check(
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, rt->gpu), "asking"));
    KVL_TRY(kvl_cuda_check(
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, rt->gpu), "asking"));
    rt->compute_major = major;
    rt->compute_minor = minor;
    KVL_TRY(kvl_cuda_check(
        cudaDeviceGetAttribute(&rt->block_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, rt->gpu),
        "asking"));
    KVL_TRY(kvl_cuda_check(
        cudaDeviceGetAttribute(&rt->n_sm, cudaDevAttrMultiProcessorCount, rt->gpu), "asking"));
    if (major < COMPUTE_MAJOR_MIN)
        return kvl_cuda_fail("device cuda: the GPU has compute capability %d.%d, want %d.0 or "
                             "more; use another GPU, or --device cpu",
                             major, minor, COMPUTE_MAJOR_MIN);
    return KVL_OK;
}

/* KVL_CUDA_SM90A: kernels were built for sm_90a (CMakeLists.txt). */
#ifdef KVL_CUDA_HOST
#define KVL_CUDA_SM90A 1
#endif

bool kvl_cuda_has_wgmma(void)
{
    return KVL_CUDA_SM90A && kvl_cuda_rt.compute_major == 9 && kvl_cuda_rt.compute_minor == 0;
}

int32_t kvl_cuda_block_bytes(void)
{
    return kvl_cuda_rt.block_bytes;
}

int32_t kvl_cuda_multiprocessors(void)
{
    return kvl_cuda_rt.n_sm;
}

static int open_streams(void)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    for (int s = 0; s < KVL_STREAMS; s++) {
        KVL_TRY(kvl_cuda_check(cudaStreamCreateWithFlags(&rt->stream[s], cudaStreamNonBlocking),
                               "making a stream"));
        KVL_TRY(kvl_cuda_check(cudaEventCreateWithFlags(&rt->mark[s], cudaEventDisableTiming),
                               "making an event"));
    }
    return KVL_OK;
}

/* A kernel that does next to nothing: is there code for this GPU, and does it run?  The flag of check_finite
 * lies where it wrote. */
static int open_probe(void)
{
    void *one;
    int32_t got = 0;
    KVL_TRY(kvl_cuda_alloc(KVL_PLACE_DEVICE, 2 * sizeof got, &one));
    KVL_LAUNCH(probe_kernel, 1, 1, 0, static_cast<int32_t *>(one));
    cudaError_t e = cudaGetLastError();
    if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidDeviceFunction)
        return kvl_cuda_fail("device cuda: this program has no code for the GPU (%s); build with "
                             "its architecture in KVL_CUDA_ARCHS",
                             cudaGetErrorString(e));
    KVL_TRY(kvl_cuda_check(e, "starting the first kernel"));
    KVL_TRY(kvl_cuda_download(&got, one, sizeof got, KVL_STREAM_MAIN));
    KVL_TRY(kvl_cuda_wait(KVL_STREAM_MAIN));
    if (got != 1) return kvl_cuda_fail("device cuda: the first kernel gave %d, want 1", got);
    kvl_cuda_rt.not_finite = static_cast<int32_t *>(one);
    return kvl_cuda_fill(one, 0, 2 * sizeof got, KVL_STREAM_MAIN);
}

/* With asserts, but not under the emulation, which is to see what nobody waits for. */
static bool open_checks(void)
{
    const char *v = getenv("KVL_CUDA_CHECKS");
    if (v && v[0]) return strcmp(v, "0") != 0;
#if defined(NDEBUG) || defined(KVL_CUDA_HOST)
    return false;
#else
    return true;
#endif
}

/* Pinned, so that a mark costs nothing to leave and nothing to look for. */
static int open_marks(void)
{
    size_t bytes = (KVL_DEVICE_MARKS + 1) * sizeof(int32_t);
    void *marks;
    KVL_TRY(kvl_cuda_alloc(KVL_PLACE_PINNED, bytes, &marks));
    kvl_cuda_rt.marks = static_cast<int32_t *>(marks);
    memset(marks, 0, bytes);
    return KVL_OK;
}

static int open_all(void)
{
    KVL_TRY(open_select());
    KVL_TRY(open_streams());
    KVL_TRY(kvl_cuda_ring_open(&kvl_cuda_rt.ring[KVL_STREAM_MAIN]));
    KVL_TRY(kvl_cuda_temp_open());
    KVL_TRY(open_marks());
    return open_probe();
}

static int open_first(void)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    /* All kernels at once: what one of them loads when it first runs may not be loaded inside a capture. */
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    rt->open = true;
    rt->pid = getpid();
    rt->checks = open_checks();
    if (open_all() == KVL_ENOMEM)
        return kvl_cuda_fail("device cuda: no memory to begin with; another program may hold it");
    rt->kernel_name = NULL;
    return rt->failed ? KVL_EDEVICE : KVL_OK;
}

int kvl_cuda_ready(void)
{
    const struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    if (rt->failed) return KVL_EDEVICE;
    return rt->open ? KVL_OK : open_first();
}

/* ---- what there is -------------------------------------------------------------------------------- */

/* The driver's own version is not in the runtime's interface. */
static void info_driver(char *out, size_t room)
{
    char line[256] = "", version[32] = "";
    int cuda = 0;
    FILE *f = fopen("/proc/driver/nvidia/version", "r");
    if (f) {
        const char *at = fgets(line, sizeof line, f) ? strstr(line, "Kernel Module") : NULL;
        /* "... Kernel Module  580.82.07  ..." or "... Kernel Module for x86_64  580.82.07  ..." */
        for (; at && *at; at++)
            if (at[0] == ' ' && at[1] >= '0' && at[1] <= '9') break;
        if (at && sscanf(at, " %31s", version) != 1) version[0] = '\0';
        fclose(f);
    }
    (void)cudaDriverGetVersion(&cuda);
    snprintf(out, room, "%s%sCUDA %d.%d", version, version[0] ? ", " : "", cuda / 1000,
             cuda % 1000 / 10);
}

static int32_t info_attribute(enum cudaDeviceAttr attribute)
{
    int value = 0;
    return cudaDeviceGetAttribute(&value, attribute, kvl_cuda_rt.gpu) == cudaSuccess ? value : 0;
}

static void device_info(struct kvl_device_info *out)
{
    struct cudaDeviceProp prop;
    *out = {};
    snprintf(out->class_name, sizeof out->class_name, "cuda");
    if (kvl_cuda_ready() != KVL_OK) return;
    if (cudaGetDeviceProperties(&prop, kvl_cuda_rt.gpu) == cudaSuccess)
        snprintf(out->name, sizeof out->name, "%.127s", prop.name);
    info_driver(out->driver, sizeof out->driver);
    int toolkit = 0;
    (void)cudaRuntimeGetVersion(&toolkit);
    snprintf(out->toolkit, sizeof out->toolkit, "%d.%d", toolkit / 1000, toolkit % 1000 / 10);
    out->compute_major = info_attribute(cudaDevAttrComputeCapabilityMajor);
    out->compute_minor = info_attribute(cudaDevAttrComputeCapabilityMinor);
    out->n_sm = info_attribute(cudaDevAttrMultiProcessorCount);
    /* kHz, bits, two transfers a clock */
    out->memory_gbs = 2.0e3 * info_attribute(cudaDevAttrMemoryClockRate) *
                      info_attribute(cudaDevAttrGlobalMemoryBusWidth) / 8 / 1e9;
    out->clock_mhz = 1e-3 * info_attribute(cudaDevAttrClockRate);
    (void)cudaGetLastError();
    out->graphs = kvl_cuda_step_able();
}

static void device_memory(struct kvl_device_memory *out)
{
    const struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    *out = {};
    if (kvl_cuda_ready() != KVL_OK) return;
    (void)kvl_cuda_check(cudaMemGetInfo(&out->free_bytes, &out->total_bytes), "asking for memory");
    memcpy(out->place_bytes, rt->place_bytes, sizeof out->place_bytes);
    memcpy(out->peak_bytes, rt->peak_bytes, sizeof out->peak_bytes);
}

static void device_traffic(struct kvl_device_traffic *out)
{
    *out = kvl_cuda_rt.traffic;
}

/* ---- memory --------------------------------------------------------------------------------------- */

/* Zeros must be there for the host and for the other stream as well. */
static int alloc_clear(enum kvl_place place, void *p, size_t bytes)
{
    enum kvl_place ignored;
    if (place == KVL_PLACE_SHARED) return KVL_OK; /* the host's side is */
    if (place == KVL_PLACE_PINNED) {
        memset(p, 0, bytes);
        return KVL_OK;
    }
    kvl_cuda_rt.busy[KVL_STREAM_MAIN] = true;
    KVL_TRY(kvl_cuda_check(cudaMemsetAsync(kvl_cuda_find(p, bytes, &ignored), 0, bytes,
                                           kvl_cuda_rt.stream[KVL_STREAM_MAIN]),
                           "filling"));
    return kvl_cuda_order(KVL_STREAM_MAIN, KVL_STREAM_COPY);
}

static void *device_alloc(enum kvl_place place, size_t n, size_t item)
{
    size_t bytes;
    void *p;
    if (place == KVL_PLACE_HOST) return kvl_alloc(n, item);
    if (kvl_cuda_ready() != KVL_OK || kvl_mul_size(n, item, &bytes) != KVL_OK) return NULL;
    bytes = KVL_MAX(bytes, (size_t)1);
    if (kvl_cuda_alloc(place, bytes, &p) != KVL_OK) return NULL;
    if (alloc_clear(place, p, bytes) == KVL_OK) return p;
    kvl_cuda_release(place, p);
    return NULL;
}

static void device_free(enum kvl_place place, void *p)
{
    if (place == KVL_PLACE_HOST)
        kvl_free(p);
    else
        kvl_cuda_release(place, p);
}

static int device_zero(void *p, size_t bytes, enum kvl_stream stream)
{
    return kvl_cuda_fill(p, 0, bytes, stream);
}

/* ---- results that are not finite ------------------------------------------------------------------ */

static int device_check_finite(const float *x, size_t n)
{
    struct kvl_cuda_call c;
    kvl_cuda_begin(&c);
    x = kvl_cuda_in(&c, x, n);
    if (c.rc == KVL_OK && n > 0) c.rc = kvl_cuda_mark_not_finite(x, n, kvl_cuda_rt.not_finite);
    return kvl_cuda_end(&c);
}

static int device_finite(bool *out)
{
    int32_t *flag = kvl_cuda_rt.not_finite, set = 0;
    KVL_TRY(kvl_cuda_ready());
    KVL_TRY(kvl_cuda_download(&set, flag, sizeof set, KVL_STREAM_MAIN));
    KVL_TRY(kvl_cuda_wait(KVL_STREAM_MAIN));
    if (set != 0) KVL_TRY(kvl_cuda_fill(flag, 0, sizeof set, KVL_STREAM_MAIN));
    *out = set == 0;
    return KVL_OK;
}

static void device_mark_row(int32_t row)
{
    kvl_cuda_rt.mark_row = KVL_MIN(KVL_MAX(row, 0), KVL_DEVICE_MARKS - 1);
}

static int device_marked(int32_t *row)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    int32_t first = -1;
    KVL_TRY(kvl_cuda_ready());
    if (rt->n_marks > 0 && rt->busy[KVL_STREAM_MAIN]) KVL_TRY(kvl_cuda_wait(KVL_STREAM_MAIN));
    for (int32_t i = rt->n_marks - 1; i >= 0; i--) {
        if (rt->marks[i] != 0) first = i;
        rt->marks[i] = 0;
    }
    rt->n_marks = 0;
    *row = first;
    return KVL_OK;
}

/* ---- the table ------------------------------------------------------------------------------------ */

static void device_fill_table(struct kvl_device *d)
{
    d->name = "cuda";
    d->discrete = true;
    d->max_head_dim = PF_MAX_DIM;
    d->ops = &kvl_ops_cuda;
    d->ops_now = &kvl_ops_cuda_now;
    d->alloc = device_alloc;
    d->free = device_free;
    d->copy = kvl_cuda_copy;
    d->zero = device_zero;
    d->fill = kvl_cuda_fill;
    d->order = kvl_cuda_order;
    d->sync = kvl_cuda_sync;
    d->rest = kvl_cuda_rest;
    d->host = kvl_cuda_twin_host;
    d->settle = kvl_cuda_twin_settle;
    d->fresh = kvl_cuda_twin_fresh;
    d->mirror = kvl_cuda_mirror;
    d->unmirror = kvl_cuda_unmirror;
    d->kv_put = kvl_cuda_kv_put;
    d->kv_move = kvl_cuda_kv_move;
    d->kv_gather = kvl_cuda_kv_gather;
    d->rows_keep = kvl_cuda_rows_keep;
    d->check_finite = device_check_finite;
    d->finite = device_finite;
    d->mark_row = device_mark_row;
    d->marked = device_marked;
    d->step_begin = kvl_cuda_step_begin;
    d->step_end = kvl_cuda_step_end;
    d->peak_read = kvl_cuda_peak_read;
    d->peak_gemm = kvl_cuda_peak_gemm;
    d->info = device_info;
    d->memory = device_memory;
    d->traffic = device_traffic;
    d->error = device_error;
}

extern "C" int kvl_cuda_open(int32_t gpu, const struct kvl_device **out, struct kvl_err *err)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    if (!rt->open) rt->gpu = gpu; /* of those that CUDA_VISIBLE_DEVICES lets us see */
    if (rt->open && rt->gpu != gpu)
        return kvl_fail(err, KVL_EDEVICE,
                        "device cuda:%d: this process works on cuda:%d already; want one GPU in "
                        "a process",
                        gpu, rt->gpu);
    if (rt->open && rt->pid != getpid())
        return kvl_fail(err, KVL_EDEVICE,
                        "device cuda: opened before this process was forked; want it opened after");
    if (kvl_cuda_ready() != KVL_OK) return kvl_fail(err, KVL_EDEVICE, "%s", rt->error);
    device_fill_table(&device_cuda);
    *out = &device_cuda;
    return KVL_OK;
}
