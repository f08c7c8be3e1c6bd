/* Errors, the device, streams, events, copies: work waits in its stream until somebody waits for it. */
#include "cuda_host_streams.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct kvl_emu_counts kvl_emu_count;

namespace
{
/* Not destroyed at the end: others may still call. */
struct CUstream_st &null_stream = *new struct CUstream_st();
cudaError_t last_error, sticky_error;
int64_t fail_at[KVL_EMU_CALLS];
cudaError_t fail_with[KVL_EMU_CALLS];
uint64_t random_state = 1;
pid_t owner;
bool no_device;
int64_t n_pending;
} // namespace

std::vector<struct CUstream_st *> &kvl_emu_streams =
    *new std::vector<struct CUstream_st *>(1, &null_stream);
bool kvl_emu_eager_on;

/* ---- small things ------------------------------------------------------------------------------------ */

void kvl_emu_die(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    fputs("cuda_host: ", stderr);
    vfprintf(stderr, format, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}

/* xorshift64* */
uint64_t kvl_emu_random(void)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545f4914f6cdd1du;
}

uint64_t kvl_emu_below(uint64_t n)
{
    __extension__ typedef unsigned __int128 wide; /* no division, which costs more than the rest */
    return (uint64_t)((wide)kvl_emu_random() * n >> 64);
}

void kvl_emu_seed(uint64_t seed)
{
    random_state = (seed + 1) * 0x9e3779b97f4a7c15u;
    if (random_state == 0) random_state = 1;
}

void kvl_emu_eager(int on)
{
    kvl_emu_eager_on = on != 0;
}

void kvl_emu_counts(struct kvl_emu_counts *out)
{
    *out = kvl_emu_count;
}

int64_t kvl_emu_pending(void)
{
    return n_pending;
}

void kvl_emu_fail(enum kvl_emu_call what, int64_t n, int error)
{
    fail_at[what] = n;
    fail_with[what] = (cudaError_t)error;
}

void kvl_emu_adopt(void)
{
    owner = owner ? getpid() : 0;
    kvl_emu_open(); /* and the handler of faults with it */
    kvl_emu_close();
}

void kvl_emu_revive(void)
{
    sticky_error = last_error = cudaSuccess;
}

/* ---- errors ------------------------------------------------------------------------------------------ */

static void read_environment(void)
{
    static const char *const names[] = { "launch", "run", "malloc", "host_alloc", "copy", "sync" };
    const char *seed = getenv("KVL_EMU_SEED"), *eager = getenv("KVL_EMU_EAGER"),
               *devices = getenv("KVL_EMU_DEVICES"), *fail = getenv("KVL_EMU_FAIL");
    char what[16];
    long long n;
    int error;
    owner = getpid();
    kvl_emu_seed(seed ? strtoull(seed, nullptr, 10) : 1);
    if (eager) kvl_emu_eager_on = *eager != '0';
    no_device = devices && *devices == '0';
    if (fail && sscanf(fail, "%15[a-z_]:%lld:%d", what, &n, &error) == 3)
        for (int i = 0; i < KVL_EMU_CALLS; i++)
            if (strcmp(what, names[i]) == 0) kvl_emu_fail((enum kvl_emu_call)i, n, error);
}

/* Errors after which a context is lost. */
static bool stays(cudaError_t e)
{
    return e == cudaErrorIllegalAddress || e == cudaErrorLaunchFailure ||
           e == cudaErrorMisalignedAddress || e == cudaErrorAssert || e == cudaErrorLaunchTimeout ||
           e == cudaErrorECCUncorrectable || e == cudaErrorUnknown;
}

void kvl_emu_stick(cudaError_t e)
{
    if (stays(e) && sticky_error == cudaSuccess) sticky_error = e;
    last_error = e;
}

bool kvl_emu_lost(void)
{
    return sticky_error != cudaSuccess;
}

cudaError_t kvl_emu_return(cudaError_t e)
{
    if (e != cudaSuccess) kvl_emu_stick(e);
    return e;
}

bool kvl_emu_fails(enum kvl_emu_call what, cudaError_t *e)
{
    if (fail_at[what] == 0 || --fail_at[what] > 0) return false;
    *e = fail_with[what];
    return true;
}

cudaError_t kvl_emu_enter(enum kvl_emu_call what)
{
    cudaError_t e;
    if (owner == 0) read_environment();
    if (*kvl_emu_where()) kvl_emu_die("a kernel calls the runtime, %s", kvl_emu_where());
    if (owner != getpid())
        return cudaErrorInitializationError; /* a GPU's state does not survive fork */
    if (no_device) return kvl_emu_return(cudaErrorNoDevice);
    if (sticky_error != cudaSuccess) return sticky_error;
    if (what < KVL_EMU_CALLS && kvl_emu_fails(what, &e)) return kvl_emu_return(e);
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = sticky_error != cudaSuccess ? sticky_error : last_error;
    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    return sticky_error != cudaSuccess ? sticky_error : last_error;
}

#define KVL_EMU_X(name, value, text)                                                               \
    case name: return #name;
const char *cudaGetErrorName(cudaError_t e)
{
    switch (e) {
        KVL_EMU_ERRORS(KVL_EMU_X)
    }
    return "unrecognized error code";
}
#undef KVL_EMU_X
#define KVL_EMU_X(name, value, text)                                                               \
    case name: return text;
const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
        KVL_EMU_ERRORS(KVL_EMU_X)
    }
    return "unrecognized error code";
}
#undef KVL_EMU_X

/* ---- running ----------------------------------------------------------------------------------------- */

static bool runnable(const struct CUstream_st *s)
{
    if (s->queue.empty()) return false;
    for (const kvl_emu_flag &f : s->queue.front().needs)
        if (f && !*f) return false;
    return true;
}

static void run_one(struct CUstream_st *s)
{
    struct kvl_emu_job job = std::move(s->queue.front());
    s->queue.pop_front();
    n_pending--;
    if (sticky_error == cudaSuccess) job.run();
    *job.done = true;
}

/* Runs what it likes until `until` holds. */
static void drain(const std::function<bool()> &until)
{
    if (until()) return;
    kvl_emu_open();
    while (!until()) {
        struct CUstream_st *can[64];
        size_t n = 0;
        for (struct CUstream_st *s : kvl_emu_streams)
            if (n < 64 && runnable(s)) can[n++] = s;
        if (n == 0) kvl_emu_die("streams wait for each other");
        run_one(can[kvl_emu_below(n)]);
    }
    kvl_emu_close();
}

void kvl_emu_drain_stream(cudaStream_t handle)
{
    struct CUstream_st *s = kvl_emu_stream(handle);
    kvl_emu_flag last = s->last;
    if (last) drain([last] { return *last; });
}

void kvl_emu_drain_all(void)
{
    drain([] { return n_pending == 0; });
}

static void drain_flag(const kvl_emu_flag &flag)
{
    drain([flag] { return *flag; });
}

struct CUstream_st *kvl_emu_stream(cudaStream_t handle)
{
    if (!handle) return &null_stream;
    for (struct CUstream_st *s : kvl_emu_streams)
        if (s == handle) return s;
    return nullptr;
}

/* The legacy stream waits for all blocking streams, and they for it. */
static void order_with_null(struct CUstream_st *s, struct kvl_emu_job *job)
{
    if (s == &null_stream) {
        for (struct CUstream_st *o : kvl_emu_streams)
            if (o != s && !o->nonblocking) job->needs.push_back(o->last);
    } else if (!s->nonblocking) {
        job->needs.push_back(null_stream.last);
    }
}

static void queue(struct CUstream_st *s, struct kvl_emu_job job)
{
    job.done = std::make_shared<bool>(false);
    order_with_null(s, &job);
    s->last = job.done;
    s->queue.push_back(std::move(job));
    n_pending++;
    if (kvl_emu_eager_on) drain_flag(s->last);
}

static void capture_node(struct CUstream_st *s, enum kvl_emu_node kind, const void *fn,
                         std::function<void()> run)
{
    struct kvl_emu_capture *c = s->capture.get();
    c->nodes.push_back({ std::move(run), s->tail, kind, fn });
    s->tail = { (int)c->nodes.size() - 1 };
    kvl_emu_count.n_captured++;
}

cudaError_t kvl_emu_give(cudaStream_t handle, enum kvl_emu_node kind, const void *fn,
                         std::function<void()> run)
{
    struct CUstream_st *s = kvl_emu_stream(handle);
    if (!s) return cudaErrorInvalidResourceHandle;
    if (s->capture) {
        if (s->capture->invalid) return cudaErrorStreamCaptureInvalidated;
        capture_node(s, kind, fn, std::move(run));
        return cudaSuccess;
    }
    if (s == &null_stream)
        for (struct CUstream_st *o : kvl_emu_streams)
            if (o->capture && !o->nonblocking) {
                o->capture->invalid = true;
                return cudaErrorStreamCaptureImplicit;
            }
    queue(s, { std::move(run), {}, nullptr, kind, fn });
    return cudaSuccess;
}

cudaError_t kvl_emu_give_after(cudaStream_t handle, const kvl_emu_flag &other,
                               std::function<void()> run, kvl_emu_flag *done)
{
    struct CUstream_st *s = kvl_emu_stream(handle);
    if (!s) return cudaErrorInvalidResourceHandle;
    queue(s, { std::move(run), { other }, nullptr, KVL_EMU_NODE_HOST, nullptr });
    *done = s->last;
    return cudaSuccess;
}

/* ---- streams ----------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    struct CUstream_st *s = new struct CUstream_st();
    s->nonblocking = flags & cudaStreamNonBlocking;
    kvl_emu_streams.push_back(s);
    *stream = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return kvl_emu_enter(KVL_EMU_CALLS);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    struct CUstream_st *s = kvl_emu_stream(stream);
    if (!s || !stream) return kvl_emu_return(cudaErrorInvalidResourceHandle);
    kvl_emu_drain_stream(stream);
    for (size_t i = 0; i < kvl_emu_streams.size(); i++)
        if (kvl_emu_streams[i] == s) {
            kvl_emu_streams.erase(kvl_emu_streams.begin() + (std::ptrdiff_t)i);
            break;
        }
    delete s;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_SYNC);
    if (e != cudaSuccess) return e;
    struct CUstream_st *s = kvl_emu_stream(stream);
    if (!s) return kvl_emu_return(cudaErrorInvalidResourceHandle);
    if (s->capture) {
        s->capture->invalid = true;
        return kvl_emu_return(cudaErrorStreamCaptureUnsupported);
    }
    kvl_emu_count.n_syncs++;
    if (s == &null_stream) {
        for (struct CUstream_st *o : kvl_emu_streams)
            if (!o->nonblocking) kvl_emu_drain_stream(o == &null_stream ? nullptr : o);
    } else {
        kvl_emu_drain_stream(stream);
    }
    return kvl_emu_return(sticky_error);
}

cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_SYNC);
    if (e != cudaSuccess) return e;
    if (kvl_emu_spoils_capture(false)) return kvl_emu_return(cudaErrorStreamCaptureUnsupported);
    kvl_emu_count.n_syncs++;
    kvl_emu_drain_all();
    return kvl_emu_return(sticky_error);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    struct CUstream_st *s = kvl_emu_stream(stream);
    if (!s) return kvl_emu_return(cudaErrorInvalidResourceHandle);
    if (s->capture) {
        s->capture->invalid = true;
        return kvl_emu_return(cudaErrorStreamCaptureUnsupported);
    }
    if (s->queue.empty()) return cudaSuccess;
    if (runnable(s)) drain_flag(s->queue.front().done); /* polling gets somewhere */
    return cudaErrorNotReady;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*fn)(void *), void *arg)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_LAUNCH);
    if (e != cudaSuccess) return e;
    return kvl_emu_return(
        kvl_emu_give(stream, KVL_EMU_NODE_HOST, (const void *)fn, [fn, arg] { fn(arg); }));
}

/* ---- events ------------------------------------------------------------------------------------------ */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    *event = new struct CUevent_st();
    (*event)->timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return kvl_emu_enter(KVL_EMU_CALLS);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    struct CUstream_st *s = kvl_emu_stream(stream);
    if (!s || !event) return kvl_emu_return(cudaErrorInvalidResourceHandle);
    event->capture = s->capture;
    event->tail = s->tail;
    if (s->capture) return cudaSuccess;
    std::shared_ptr<double> at = std::make_shared<double>(0);
    event->at = at;
    queue(s, { [at] { *at = seconds(); }, {}, nullptr, KVL_EMU_NODE_HOST, nullptr });
    event->done = s->last;
    return cudaSuccess;
}

static bool event_usable(cudaEvent_t event, cudaError_t *e)
{
    *e = cudaSuccess;
    if (!event) *e = cudaErrorInvalidResourceHandle;
    if (event && event->capture) {
        event->capture->invalid = true;
        *e = cudaErrorCapturedEvent;
    }
    return *e == cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_SYNC);
    if (e != cudaSuccess || !event_usable(event, &e)) return kvl_emu_return(e);
    kvl_emu_count.n_syncs++;
    if (event->done) drain_flag(event->done);
    return kvl_emu_return(sticky_error);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess || !event_usable(event, &e)) return kvl_emu_return(e);
    if (!event->done || *event->done) return cudaSuccess;
    for (struct CUstream_st *s : kvl_emu_streams)
        if (runnable(s)) {
            drain_flag(s->queue.front().done);
            break;
        }
    return cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    if (!from || !to || !from->timed || !to->timed || !from->done || !to->done)
        return kvl_emu_return(cudaErrorInvalidResourceHandle);
    if (!*from->done || !*to->done) return cudaErrorNotReady;
    *ms = (float)((*to->at - *from->at) * 1e3);
    return cudaSuccess;
}

/* In a capture an event joins streams: what is given later comes after what the event saw. */
static cudaError_t wait_captured(struct CUstream_st *s, cudaEvent_t event)
{
    if (s->capture && s->capture != event->capture) {
        s->capture->invalid = event->capture->invalid = true;
        return cudaErrorStreamCaptureMerge;
    }
    if (!s->capture) {
        s->capture = event->capture;
        s->tail.clear();
    }
    s->tail.insert(s->tail.end(), event->tail.begin(), event->tail.end());
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    struct CUstream_st *s = kvl_emu_stream(stream);
    if (!s || !event) return kvl_emu_return(cudaErrorInvalidResourceHandle);
    if (event->capture) return kvl_emu_return(wait_captured(s, event));
    if (s->capture) {
        if (!event->done) return cudaSuccess;
        s->capture->invalid = true;
        return kvl_emu_return(cudaErrorStreamCaptureIsolation);
    }
    if (event->done) queue(s, { [] {}, { event->done }, nullptr, KVL_EMU_NODE_HOST, nullptr });
    return cudaSuccess;
}
