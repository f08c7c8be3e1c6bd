/* Steps of decoding as graphs.
 *
 * A token is some hundred short kernels, and giving them to the GPU one by one takes longer than some of them
 * run.  Between step_begin and step_end MAIN is captured: its work becomes the nodes of graphs of STEP_LAUNCHES
 * kernels each, so that the GPU runs one while the next is gathered.  A graph is prepared (instantiated) once for
 * each kind of step; later steps of that kind only put their arguments in, which the driver refuses where the
 * kinds differ.
 *
 * What calls upload meanwhile is put into pinned memory, at its next free place; kernels get the address of the
 * same place in a twin on the device, and one copy brings it there before a graph starts.  So it is read when
 * the call is made, as ever.  The pinned memory of a step waits for these copies before it is written again:
 * there are two that take turns.
 *
 * Who waits, or orders MAIN and COPY, starts what there is first (kvl_cuda_step_start), and the rest of the step
 * runs as it comes: the results are the same.  Times of whole tokens: results/gpu.md. */
#include "runtime.cuh"

#include <stdlib.h>
#include <string.h>

enum {
    STEP_LAUNCHES = 64, /* of a graph, unless KVL_CUDA_GRAPH says another number */
    STEP_PARTS = 32,    /* graphs of a step; the next one is as the first */
    STEP_GRAPHS = 4,    /* kinds of steps that are kept */
    STEP_MISSES = 8,    /* steps in a row that were of no kind */
    STEP_REST = 64,     /* steps that run as they come then */
    STEP_ALIGN = 256,
    STEP_MIN_BYTES = 256 << 10,
    STEP_MAX_BYTES = 64 << 20
};

struct step_graph {
    cudaGraphExec_t exec;
    size_t n_nodes;
    int64_t used; /* by the clock of steps */
};

static struct {
    bool asked, able; /* whether graphs can be had */
    bool under_way;   /* between begin and end */
    bool gathers;     /* MAIN is captured */
    uint8_t *pinned;  /* [2][bytes], in turn */
    uint8_t *twin;    /* [bytes] on the device */
    cudaEvent_t left[2];
    bool waits[2];
    int32_t turn;
    size_t bytes, taken, sent;
    size_t wanted;           /* by the step; between steps, by the last one */
    int64_t launches, first; /* of a graph; how many there were before the one at hand */
    int32_t part;            /* the graph at hand */
    struct step_graph graph[STEP_PARTS][STEP_GRAPHS];
    int64_t clock;
    bool missed; /* one of the step's was of no kind */
    int rc;      /* of the step: what did not start is missing from all that follows */
    int32_t misses, rest;
} step;

/* ---- can it be done? ------------------------------------------------------------------------------ */

/* A capture of a fill, prepared twice, run and waited for; the first error. */
static cudaError_t step_try(cudaStream_t stream)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaGraphExecUpdateResultInfo info;
    cudaError_t e = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (e != cudaSuccess) return e;
    e = cudaMemsetAsync(kvl_cuda_rt.not_finite + 1, 0, sizeof(int32_t), stream);
    cudaError_t end = cudaStreamEndCapture(stream, &graph);
    if (e == cudaSuccess) e = end;
    if (e == cudaSuccess) e = cudaGraphInstantiate(&exec, graph, 0);
    if (e == cudaSuccess) e = cudaGraphExecUpdate(exec, graph, &info);
    if (e == cudaSuccess) e = cudaGraphLaunch(exec, stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    if (exec) (void)cudaGraphExecDestroy(exec);
    if (graph) (void)cudaGraphDestroy(graph);
    return e;
}

/* A driver that refuses is no error, as long as nothing was gathered. */
bool kvl_cuda_step_able(void)
{
    const char *v = getenv("KVL_CUDA_GRAPH");
    if (step.asked || kvl_cuda_ready() != KVL_OK) return step.able;
    step.asked = true;
    char *end = NULL;
    long wanted = v ? strtol(v, &end, 10) : 0;
    step.launches = !v || end == v || *end ? STEP_LAUNCHES : (int32_t)KVL_MIN(wanted, 1000000L);
    if (step.launches <= 0 || kvl_cuda_rt.checks) return false;
    step.rest = 1; /* the first step loads kernels and takes memory */
    step.able = step_try(kvl_cuda_rt.stream[KVL_STREAM_MAIN]) == cudaSuccess;
    (void)cudaGetLastError();
    return step.able;
}

/* ---- memory that calls upload ----------------------------------------------------------------------- */

/* Room for as much as the step before wanted; less, where memory is short. */
static int step_room(void)
{
    size_t want = KVL_MIN(KVL_MAX(step.wanted, (size_t)STEP_MIN_BYTES), (size_t)STEP_MAX_BYTES);
    void *pinned = NULL, *twin = NULL;
    if (want <= step.bytes) return KVL_OK;
    want += want / 2;
    int rc = kvl_cuda_alloc(KVL_PLACE_DEVICE, want, &twin);
    if (rc == KVL_OK) rc = kvl_cuda_alloc(KVL_PLACE_PINNED, 2 * want, &pinned);
    if (rc != KVL_OK) {
        kvl_cuda_release(KVL_PLACE_DEVICE, twin);
        return rc == KVL_ENOMEM ? KVL_OK : rc;
    }
    kvl_cuda_release(KVL_PLACE_DEVICE, step.twin);
    kvl_cuda_release(KVL_PLACE_PINNED, step.pinned);
    step.twin = static_cast<uint8_t *>(twin);
    step.pinned = static_cast<uint8_t *>(pinned);
    step.bytes = want;
    step.waits[0] = step.waits[1] = false;
    return KVL_OK;
}

/* The other half, once what was in it has left. */
static int step_turn(void)
{
    step.turn = 1 - step.turn;
    cudaEvent_t *left = &step.left[step.turn];
    step.taken = step.sent = 0;
    if (!*left)
        return kvl_cuda_check(cudaEventCreateWithFlags(left, cudaEventDisableTiming),
                              "making an event");
    if (!step.waits[step.turn]) return KVL_OK;
    step.waits[step.turn] = false;
    return kvl_cuda_check(cudaEventSynchronize(*left), "waiting for an upload");
}

int kvl_cuda_step_put(const void *host, size_t bytes, const void **twin)
{
    size_t room = (KVL_MAX(bytes, (size_t)1) + STEP_ALIGN - 1) / STEP_ALIGN * STEP_ALIGN;
    *twin = NULL;
    if (step.under_way) step.wanted += room;
    if (!step.gathers) return step.rc;
    if (room > step.bytes - step.taken) return kvl_cuda_step_start();
    if (bytes > 0) memcpy(step.pinned + (size_t)step.turn * step.bytes + step.taken, host, bytes);
    *twin = step.twin + step.taken;
    step.taken += room;
    kvl_cuda_rt.traffic.h2d_bytes += (int64_t)bytes;
    return KVL_OK;
}

/* To the twin, ahead of the graph. */
static int step_upload(cudaStream_t stream)
{
    const uint8_t *from = step.pinned + (size_t)step.turn * step.bytes + step.sent;
    size_t bytes = step.taken - step.sent;
    if (bytes == 0) return KVL_OK;
    KVL_TRY(kvl_cuda_check(
        cudaMemcpyAsync(step.twin + step.sent, from, bytes, cudaMemcpyHostToDevice, stream),
        "copying a step's memory"));
    step.sent = step.taken;
    step.waits[step.turn] = true;
    kvl_cuda_rt.traffic.h2d_calls++;
    return kvl_cuda_check(cudaEventRecord(step.left[step.turn], stream), "recording an event");
}

/* ---- graphs ------------------------------------------------------------------------------------------- */

/* Puts the arguments of `graph` in a prepared one of its kind, the one used last first; NULL: there is none. */
static struct step_graph *step_update(struct step_graph *kinds, cudaGraph_t graph, size_t n_nodes)
{
    int64_t before = INT64_MAX;
    for (;;) {
        struct step_graph *best = NULL;
        for (int i = 0; i < STEP_GRAPHS; i++) {
            struct step_graph *g = &kinds[i];
            if (!g->exec || g->n_nodes != n_nodes || g->used >= before) continue;
            if (!best || g->used > best->used) best = g;
        }
        cudaGraphExecUpdateResultInfo info;
        if (!best || cudaGraphExecUpdate(best->exec, graph, &info) == cudaSuccess) return best;
        (void)cudaGetLastError(); /* of another kind */
        before = best->used;
    }
}

static void step_forget(struct step_graph *g)
{
    if (g->exec) (void)cudaGraphExecDestroy(g->exec);
    g->exec = NULL;
    g->used = 0;
}

/* In place of the one that was used longest ago; of all, where memory is short. */
static int step_prepare(struct step_graph *kinds, cudaGraph_t graph, size_t n_nodes,
                        struct step_graph **out)
{
    struct step_graph *g = kinds;
    for (int i = 1; i < STEP_GRAPHS; i++)
        if (kinds[i].used < g->used) g = &kinds[i];
    step_forget(g);
    int rc = kvl_cuda_check(cudaGraphInstantiate(&g->exec, graph, 0), "preparing a graph");
    if (rc == KVL_ENOMEM) {
        for (int part = 0; part < STEP_PARTS; part++)
            for (int i = 0; i < STEP_GRAPHS; i++) step_forget(&step.graph[part][i]);
        rc = kvl_cuda_check(cudaGraphInstantiate(&g->exec, graph, 0), "preparing a graph");
    }
    KVL_TRY(rc);
    g->n_nodes = n_nodes;
    step.missed = true;
    *out = g;
    return KVL_OK;
}

static int step_launch(cudaGraph_t graph, cudaStream_t stream)
{
    struct step_graph *kinds = step.graph[step.part];
    size_t n_nodes = 0;
    KVL_TRY(kvl_cuda_check(cudaGraphGetNodes(graph, NULL, &n_nodes), "gathering a step"));
    /* Also for kernels that are still to come, of the call that is under way. */
    KVL_TRY(step_upload(stream));
    if (n_nodes == 0) return KVL_OK;
    struct step_graph *g = step_update(kinds, graph, n_nodes);
    if (!g) KVL_TRY(step_prepare(kinds, graph, n_nodes, &g));
    g->used = ++step.clock;
    step.part = (step.part + 1) % STEP_PARTS;
    kvl_cuda_rt.traffic.n_graphs++;
    return kvl_cuda_check(cudaGraphLaunch(g->exec, stream), "starting a step");
}

static int step_capture(void)
{
    cudaStream_t stream = kvl_cuda_rt.stream[KVL_STREAM_MAIN];
    KVL_TRY(kvl_cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed),
                           "beginning a step"));
    step.first = kvl_cuda_rt.traffic.n_launches;
    step.gathers = true;
    return KVL_OK;
}

int kvl_cuda_step_start(void)
{
    cudaStream_t stream = kvl_cuda_rt.stream[KVL_STREAM_MAIN];
    cudaGraph_t graph = NULL;
    if (!step.gathers) return step.rc;
    step.gathers = false;
    int rc = kvl_cuda_check(cudaStreamEndCapture(stream, &graph),
                            "gathering a step, which KVL_CUDA_GRAPH=0 does without");
    if (rc == KVL_OK) rc = step_launch(graph, stream);
    if (graph) (void)cudaGraphDestroy(graph);
    step.rc = rc;
    return rc;
}

int kvl_cuda_step_pace(void)
{
    if (!step.gathers) return step.rc;
    if (kvl_cuda_rt.traffic.n_launches - step.first < step.launches) return KVL_OK;
    KVL_TRY(kvl_cuda_step_start());
    return step_capture();
}

/* ---- steps -------------------------------------------------------------------------------------------- */

static int step_gather(void)
{
    KVL_TRY(step_room());
    step.wanted = 0;
    if (step.misses >= STEP_MISSES) {
        step.misses = 0;
        step.rest = STEP_REST;
    }
    if (step.rest > 0) {
        step.rest--;
        return KVL_OK;
    }
    if (step.bytes == 0) return KVL_OK;
    step.part = 0;
    KVL_TRY(step_turn());
    return step_capture();
}

int kvl_cuda_step_begin(void)
{
    KVL_TRY(kvl_cuda_ready());
    assert(!step.under_way);
    if (!kvl_cuda_step_able()) return KVL_OK;
    KVL_TRY(step_gather());
    step.under_way = true;
    return KVL_OK;
}

int kvl_cuda_step_end(void)
{
    int rc = kvl_cuda_step_start();
    if (step.under_way) step.misses = step.missed ? step.misses + 1 : 0;
    step.under_way = step.missed = false;
    step.rc = KVL_OK;
    return rc;
}
