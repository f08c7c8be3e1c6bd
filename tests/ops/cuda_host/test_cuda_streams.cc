/* Streams, memory, graphs and errors of the emulated GPU: cuda_host.h. */
#include "cuda_host_test.h"

__global__ void set_all(int *p, int n, int value)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) p[i] = value;
}
__global__ void append(int *log, int value)
{
    log[1 + log[0]++] = value;
}
__global__ void add_one(int *p)
{
    (*p)++;
}
__global__ void twice_plus(int *p, int add)
{
    *p = 2 * *p + add;
}

static struct kvl_emu_counts counts(void)
{
    struct kvl_emu_counts c;
    kvl_emu_counts(&c);
    return c;
}

static cudaStream_t stream_of(unsigned flags)
{
    cudaStream_t s;
    assert_int_equal(cudaStreamCreateWithFlags(&s, flags), cudaSuccess);
    return s;
}

static cudaEvent_t event_new(void)
{
    cudaEvent_t e;
    assert_int_equal(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), cudaSuccess);
    return e;
}

/* ---- nothing runs before somebody waits --------------------------------------------------------------- */

static void test_early_read(void **)
{
    int *pinned = pinned_array<int>(4), *device = device_array<int>(4), *managed, own[4] = { 0 };
    cudaStream_t s = stream_of(cudaStreamNonBlocking);
    assert_int_equal(cudaMallocManaged(&managed, 4 * sizeof(int)), cudaSuccess);
    memset(pinned, 0, 4 * sizeof(int));
    memset(managed, 0, 4 * sizeof(int));
    LAUNCH(set_all, 1, 32, 0, s, device, 4, 7);
    LAUNCH(set_all, 1, 32, 0, s, managed, 4, 8);
    assert_int_equal(cudaMemcpyAsync(pinned, device, 4 * sizeof(int), cudaMemcpyDeviceToHost, s),
                     0);
    assert_int_equal(pinned[0], 0);
    assert_int_equal(managed[0], 0);
    assert_int_equal(kvl_emu_pending(), 3);
    assert_int_equal(cudaStreamQuery(s), cudaErrorNotReady);
    assert_int_equal(cudaStreamSynchronize(s), cudaSuccess);
    assert_int_equal(cudaStreamQuery(s), cudaSuccess);
    assert_int_equal(pinned[3], 7);
    assert_int_equal(managed[3], 8);
    /* A copy from pinned memory reads it when it runs; one from ordinary memory when it is given. */
    pinned[0] = own[0] = 1;
    cudaMemcpyAsync(device, pinned, sizeof(int), cudaMemcpyHostToDevice, s);
    cudaMemcpyAsync(device + 1, own, sizeof(int), cudaMemcpyHostToDevice, s);
    pinned[0] = own[0] = 2;
    assert_int_equal(kvl_emu_pending(), 2);
    /* One to ordinary memory waits. */
    cudaMemcpyAsync(own, device, 2 * sizeof(int), cudaMemcpyDeviceToHost, s);
    assert_int_equal(own[0], 2);
    assert_int_equal(own[1], 1);
    /* Eagerly it runs at once. */
    kvl_emu_eager(1);
    LAUNCH(set_all, 1, 32, 0, s, managed, 4, 9);
    assert_int_equal(managed[0], 9);
    kvl_emu_eager(0);
    cudaFree(device);
    cudaFree(managed);
    cudaFreeHost(pinned);
    cudaStreamDestroy(s);
}

/* The order in which 3 streams append to a log. */
static void log_of(int *log, cudaStream_t a, cudaStream_t b, cudaEvent_t event)
{
    int *device = device_array<int>(8);
    cudaMemset(device, 0, sizeof *device);
    cudaDeviceSynchronize();
    LAUNCH(append, 1, 1, 0, a, device, 1);
    if (event) {
        cudaEventRecord(event, a);
        cudaStreamWaitEvent(b, event, 0);
    }
    LAUNCH(append, 1, 1, 0, b, device, 2);
    LAUNCH(append, 1, 1, 0, a, device, 3);
    cudaDeviceSynchronize();
    to_host(log, device, 4);
    cudaFree(device);
}

static void test_streams_mix(void **)
{
    cudaStream_t a = stream_of(cudaStreamNonBlocking), b = stream_of(cudaStreamNonBlocking);
    cudaEvent_t event = event_new();
    int first[4] = { 0 }, last[4] = { 0 };
    for (int seed = 0; seed < 40; seed++) {
        int log[4];
        kvl_emu_seed((uint64_t)seed);
        log_of(log, a, b, nullptr);
        assert_int_equal(log[0], 3);
        first[log[1]]++;
        log_of(log, a, b, event);
        assert_int_equal(log[1], 1);
        last[log[3]]++;
        assert_true(log[2] != 1 && log[3] != 1);
    }
    assert_true(first[1] && first[2] && !first[3]); /* 3 comes after 1 */
    assert_true(last[2] && last[3]);
    cudaEventDestroy(event);
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
}

/* The default stream waits for streams that block, and they for it; others do not care. */
static void test_default_stream(void **)
{
    cudaStream_t blocking = stream_of(cudaStreamDefault),
                 free_one = stream_of(cudaStreamNonBlocking);
    int early = 0;
    for (int seed = 0; seed < 20; seed++) {
        int log[4];
        kvl_emu_seed((uint64_t)seed);
        log_of(log, blocking, nullptr, nullptr);
        assert_true(log[1] == 1 && log[2] == 2 && log[3] == 3);
        log_of(log, nullptr, blocking, nullptr);
        assert_true(log[1] == 1 && log[2] == 2 && log[3] == 3);
        log_of(log, free_one, nullptr, nullptr);
        early |= log[1] == 2;
    }
    assert_true(early);
    cudaStreamDestroy(blocking);
    cudaStreamDestroy(free_one);
}

static void test_events(void **)
{
    cudaStream_t s = stream_of(cudaStreamNonBlocking), t = stream_of(cudaStreamNonBlocking);
    cudaEvent_t never = event_new(), e = event_new();
    int *p = device_array<int>(1), h;
    cudaMemset(p, 0, sizeof *p);
    cudaDeviceSynchronize();
    assert_int_equal(cudaStreamWaitEvent(s, never, 0), cudaSuccess);
    assert_int_equal(cudaEventQuery(never), cudaSuccess);
    LAUNCH(add_one, 1, 1, 0, s, p);
    cudaEventRecord(e, s);
    cudaStreamWaitEvent(t, e, 0); /* what it recorded so far; not what comes next */
    LAUNCH(twice_plus, 1, 1, 0, t, p, 5);
    cudaEventRecord(e, t);
    assert_int_equal(cudaEventQuery(e), cudaErrorNotReady);
    assert_int_equal(cudaEventSynchronize(e), cudaSuccess);
    assert_int_equal(cudaEventQuery(e), cudaSuccess);
    to_host(&h, p, 1);
    assert_int_equal(h, 7);
    cudaEventDestroy(never);
    cudaEventDestroy(e);
    cudaStreamDestroy(s);
    cudaStreamDestroy(t);
    cudaFree(p);
}

/* ---- memory ------------------------------------------------------------------------------------------ */

static int *guarded;
static void touch(int which)
{
    if (which == 0)
        guarded[3] = 1;
    else
        printf("%d", *(volatile int *)guarded);
}

static void test_guard(void **)
{
    guarded = device_array<int>(16);
    expect_death(touch, 0, "the host touched the device's memory");
    expect_death(touch, 0, "byte 12 of an allocation of 64");
    expect_death(touch, 1, "the host touched the device's memory");
    cudaDeviceSynchronize();
    expect_death(touch, 1, "the host touched the device's memory");
    cudaFree(guarded);
}

/* A page of managed memory moves when the side that touched it last was the other. */
static void test_moves(void **)
{
    enum { N = 4096 }; /* four pages */
    int *p;
    assert_int_equal(cudaMallocManaged(&p, N * sizeof *p), cudaSuccess);
    kvl_emu_watch(1);
    struct kvl_emu_counts c = counts();
    for (int i = 0; i < N; i++) p[i] = 1;
    assert_int_equal(counts().n_moves - c.n_moves, 0); /* new memory is the host's */
    LAUNCH(set_all, N / 64, 64, 0, nullptr, p, N, 2);
    cudaDeviceSynchronize();
    assert_int_equal(counts().n_moves - c.n_moves, 4);
    LAUNCH(set_all, N / 64, 64, 0, nullptr, p, N, 3);
    cudaDeviceSynchronize();
    assert_int_equal(counts().n_moves - c.n_moves, 4);
    assert_int_equal(p[0] + p[1] + p[N - 1], 9); /* two pages come back */
    assert_int_equal(counts().n_moves - c.n_moves, 6);
    LAUNCH(set_all, N / 64, 64, 0, nullptr, p, N, 4);
    cudaDeviceSynchronize();
    assert_int_equal(counts().n_moves - c.n_moves, 8);
    kvl_emu_watch(0);
    assert_int_equal(p[0], 4);
    assert_int_equal(counts().n_moves - c.n_moves, 8);
    cudaFree(p);
}

static void test_allocations(void **)
{
    size_t before_free, after_free, total;
    char *p[8], *q;
    struct kvl_emu_counts c = counts();
    kvl_emu_memory_limit(1 << 20);
    cudaMemGetInfo(&before_free, &total);
    assert_int_equal(total, 1 << 20);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(cudaMalloc(&p[i], 100000), cudaSuccess);
        assert_int_equal((uintptr_t)p[i] % 256, 0);
    }
    cudaMemGetInfo(&after_free, &total);
    assert_int_equal(before_free - after_free, 800000);
    assert_int_equal(cudaMalloc(&q, 300000), cudaErrorMemoryAllocation);
    assert_null(q);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaSuccess); /* does not stay */
    cudaFree(p[2]);
    cudaFree(p[3]);
    assert_int_equal(cudaMalloc(&q, 200000), cudaSuccess); /* where these two were */
    assert_ptr_equal(q, p[2]);
    assert_int_equal(cudaFree(q + 256), cudaErrorInvalidValue);
    for (int i = 0; i < 8; i++)
        if (i != 2 && i != 3) cudaFree(p[i]);
    cudaFree(q);
    assert_int_equal(counts().device_bytes, c.device_bytes);
    assert_int_equal(counts().n_device_allocs, c.n_device_allocs);
    kvl_emu_memory_limit(0);
    cudaGetLastError();
}

static void test_copies(void **)
{
    int own[64], *d = device_array<int>(64), *e = device_array<int>(64),
                 *pinned = pinned_array<int>(64);
    struct kvl_emu_counts a = counts();
    for (int i = 0; i < 64; i++) own[i] = i;
    assert_int_equal(cudaMemcpy(d, own, 256, cudaMemcpyDefault), 0);
    assert_int_equal(cudaMemcpyAsync(e, d, 128, cudaMemcpyDeviceToDevice), 0);
    assert_int_equal(cudaMemcpy2DAsync(pinned, 16, e, 32, 8, 4, cudaMemcpyDeviceToHost), 0);
    assert_int_equal(counts().d2h_bytes, a.d2h_bytes);
    cudaDeviceSynchronize();
    assert_int_equal(pinned[0], 0);
    assert_int_equal(pinned[4 * 3 + 1], 8 * 3 + 1);
    assert_int_equal(counts().h2d_bytes - a.h2d_bytes, 256);
    assert_int_equal(counts().h2d_calls - a.h2d_calls, 1);
    assert_int_equal(counts().d2d_bytes - a.d2d_bytes, 128);
    assert_int_equal(counts().d2h_bytes - a.d2h_bytes, 32);
    assert_int_equal(counts().d2h_calls - a.d2h_calls, 1);
    /* Wrong ones. */
    assert_int_equal(cudaMemcpy(d, own, 260, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(d, own, 256, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(d + 60, e, 20, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(d + 60, 0, 20), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(own, 0, 20), cudaErrorInvalidValue);
    int *gone = d;
    cudaFree(d);
    assert_int_equal(cudaMemcpy(e, gone, 4, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
    cudaGetLastError();
    struct cudaPointerAttributes at;
    assert_int_equal(cudaPointerGetAttributes(&at, own), 0);
    assert_int_equal(at.type, cudaMemoryTypeUnregistered);
    assert_int_equal(cudaPointerGetAttributes(&at, pinned + 3), 0);
    assert_int_equal(at.type, cudaMemoryTypeHost);
    assert_int_equal(cudaPointerGetAttributes(&at, e + 3), 0);
    assert_int_equal(at.type, cudaMemoryTypeDevice);
    cudaFree(e);
    cudaFreeHost(pinned);
}

/* ---- graphs ------------------------------------------------------------------------------------------ */

/* p = 2 (p + 1) + add on one stream, with q += 1 on another beside it. */
static cudaGraph_t capture(cudaStream_t a, cudaStream_t b, int *p, int *q, int add, bool join)
{
    cudaEvent_t fork_at = event_new(), join_at = event_new();
    cudaGraph_t graph = nullptr;
    assert_int_equal(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal), 0);
    cudaEventRecord(fork_at, a);
    cudaStreamWaitEvent(b, fork_at, 0);
    LAUNCH(add_one, 1, 1, 0, a, p);
    LAUNCH(add_one, 1, 1, 0, b, q);
    LAUNCH(twice_plus, 1, 1, 0, a, p, add);
    cudaEventRecord(join_at, b);
    if (join) cudaStreamWaitEvent(a, join_at, 0);
    LAUNCH(add_one, 1, 1, 0, a, q);
    assert_int_equal(cudaStreamEndCapture(a, &graph),
                     join ? cudaSuccess : cudaErrorStreamCaptureUnjoined);
    cudaEventDestroy(fork_at);
    cudaEventDestroy(join_at);
    return graph;
}

static void test_graphs(void **)
{
    cudaStream_t a = stream_of(cudaStreamNonBlocking), b = stream_of(cudaStreamNonBlocking);
    int *v = device_array<int>(2), h[2];
    cudaMemset(v, 0, 2 * sizeof *v);
    cudaDeviceSynchronize();
    struct kvl_emu_counts c = counts();
    cudaGraph_t graph = capture(a, b, v, v + 1, 10, true), other;
    cudaGraphExec_t exec;
    size_t n;
    assert_int_equal(cudaGraphGetNodes(graph, nullptr, &n), 0);
    assert_int_equal(n, 4);
    cudaDeviceSynchronize();
    to_host(h, v, 2);
    assert_true(h[0] == 0 && h[1] == 0); /* captured, not run */
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), 0);
    for (int i = 0; i < 3; i++) assert_int_equal(cudaGraphLaunch(exec, a), 0);
    assert_int_equal(cudaStreamSynchronize(a), 0);
    to_host(h, v, 2);
    assert_int_equal(h[0], ((0 + 1) * 2 + 10 + 1) * 2 * 2 + (10 * 2 + 2) + 10);
    assert_int_equal(h[1], 6);
    assert_int_equal(counts().n_kernels_run - c.n_kernels_run, 12);
    assert_int_equal(counts().n_graph_launches - c.n_graph_launches, 3);
    /* The same shape with another number. */
    struct cudaGraphExecUpdateResultInfo info;
    other = capture(a, b, v, v + 1, 100, true);
    assert_int_equal(cudaGraphExecUpdate(exec, other, &info), 0);
    cudaMemset(v, 0, 2 * sizeof *v);
    cudaDeviceSynchronize();
    assert_int_equal(cudaGraphLaunch(exec, a), 0);
    cudaStreamSynchronize(a);
    to_host(h, v, 2);
    assert_int_equal(h[0], 102);
    cudaGraphDestroy(other);
    /* Another shape. */
    cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal);
    LAUNCH(add_one, 1, 1, 0, a, v);
    assert_int_equal(cudaStreamEndCapture(a, &other), 0);
    assert_int_equal(cudaGraphExecUpdate(exec, other, &info), cudaErrorGraphExecUpdateFailure);
    assert_int_equal(info.result, cudaGraphExecUpdateErrorTopologyChanged);
    cudaGraphDestroy(other);
    cudaGraphDestroy(graph);
    cudaGraphExecDestroy(exec);
    cudaGetLastError();
    cudaFree(v);
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
}

static void test_captures_that_cannot_be(void **)
{
    cudaStream_t a = stream_of(cudaStreamNonBlocking), b = stream_of(cudaStreamNonBlocking);
    int *v = device_array<int>(2), own, *p;
    cudaGraph_t graph;
    assert_null(capture(a, b, v, v + 1, 1, false));
    cudaGetLastError();
    for (int which = 0; which < 6; which++) {
        cudaEvent_t e = event_new();
        cudaEventRecord(e, b);
        assert_int_equal(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal), 0);
        cudaError_t got = which == 0   ? cudaStreamSynchronize(a)
                          : which == 1 ? cudaDeviceSynchronize()
                          : which == 2 ? cudaMalloc(&p, 4)
                          : which == 5 ? cudaStreamQuery(a)
                          : which == 3 ? cudaMemcpyAsync(&own, v, 4, cudaMemcpyDeviceToHost, a)
                                       : cudaStreamWaitEvent(a, e, 0);
        assert_int_equal(got, which == 4 ? cudaErrorStreamCaptureIsolation
                                         : cudaErrorStreamCaptureUnsupported);
        assert_int_equal(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
        cudaEventDestroy(e);
    }
    cudaGetLastError();
    LAUNCH(add_one, 1, 1, 0, a, v); /* the stream works as before */
    assert_int_equal(cudaStreamSynchronize(a), 0);
    cudaFree(v);
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
}

/* ---- faults ------------------------------------------------------------------------------------------ */

static void test_faults(void **)
{
    int *v = device_array<int>(1), *p;
    kvl_emu_fail(KVL_EMU_MALLOC, 2, cudaErrorMemoryAllocation);
    assert_int_equal(cudaMalloc(&p, 4), 0);
    cudaFree(p);
    assert_int_equal(cudaMalloc(&p, 4), cudaErrorMemoryAllocation);
    assert_int_equal(cudaMalloc(&p, 4), 0);
    cudaFree(p);
    cudaGetLastError();
    kvl_emu_fail(KVL_EMU_LAUNCH, 1, cudaErrorLaunchOutOfResources);
    LAUNCH(add_one, 1, 1, 0, nullptr, v);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchOutOfResources);
    LAUNCH(add_one, 1, 1, 0, nullptr, v);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    /* A kernel that fails while it runs shows at the next wait, and from then on everywhere. */
    kvl_emu_fail(KVL_EMU_RUN, 2, cudaErrorIllegalAddress);
    LAUNCH(add_one, 1, 1, 0, nullptr, v);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    assert_int_equal(cudaMalloc(&p, 4), cudaErrorIllegalAddress);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
    kvl_emu_revive();
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_string_equal(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress");
    cudaFree(v);
}

static void in_a_child(int)
{
    int *p;
    fprintf(stderr, "gives %s\n", cudaGetErrorName(cudaMalloc(&p, 4)));
    abort();
}

static void test_fork(void **)
{
    cudaDeviceSynchronize();
    expect_death(in_a_child, 0, "gives cudaErrorInitializationError", false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_early_read),     cmocka_unit_test(test_streams_mix),
        cmocka_unit_test(test_default_stream), cmocka_unit_test(test_events),
        cmocka_unit_test(test_guard),          cmocka_unit_test(test_moves),
        cmocka_unit_test(test_allocations),    cmocka_unit_test(test_copies),
        cmocka_unit_test(test_graphs),         cmocka_unit_test(test_captures_that_cannot_be),
        cmocka_unit_test(test_faults),         cmocka_unit_test(test_fork),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
