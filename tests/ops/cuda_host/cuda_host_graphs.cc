/* Captures, which make graphs of what streams are given, and graphs. */
#include "cuda_host_streams.h"

#include <stdlib.h>

/* ---- captures ---------------------------------------------------------------------------------------- */

bool kvl_emu_spoils_capture(bool relaxed_allows)
{
    bool spoilt = false;
    for (struct CUstream_st *s : kvl_emu_streams)
        if (s->capture && !(relaxed_allows && s->capture->mode == cudaStreamCaptureModeRelaxed)) {
            s->capture->invalid = true;
            spoilt = true;
        }
    return spoilt;
}

bool kvl_emu_capturing(cudaStream_t stream)
{
    struct CUstream_st *s = kvl_emu_stream(stream);
    return s && s->capture;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    struct CUstream_st *s = kvl_emu_stream(stream);
    if (!s) return kvl_emu_return(cudaErrorInvalidResourceHandle);
    const char *graphs = getenv("KVL_EMU_GRAPHS");
    if (graphs && *graphs == '0') return kvl_emu_return(cudaErrorNotSupported);
    if (s == kvl_emu_streams[0]) return kvl_emu_return(cudaErrorStreamCaptureUnsupported);
    if (s->capture) return kvl_emu_return(cudaErrorInvalidValue);
    s->capture = std::make_shared<kvl_emu_capture>();
    s->capture->origin = stream;
    s->capture->mode = mode;
    s->tail.clear();
    return cudaSuccess;
}

/* Everything that was captured comes before the end of the stream that began. */
static bool all_joined(const struct kvl_emu_capture *c, const std::vector<int> &tail)
{
    std::vector<char> seen(c->nodes.size(), 0);
    std::vector<int> todo = tail;
    while (!todo.empty()) {
        int i = todo.back();
        todo.pop_back();
        if (seen[(size_t)i]) continue;
        seen[(size_t)i] = 1;
        todo.insert(todo.end(), c->nodes[(size_t)i].after.begin(), c->nodes[(size_t)i].after.end());
    }
    for (char s : seen)
        if (!s) return false;
    return true;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    struct CUstream_st *s = kvl_emu_stream(stream);
    if (!s) return kvl_emu_return(cudaErrorInvalidResourceHandle);
    if (!s->capture) return kvl_emu_return(cudaErrorInvalidValue);
    kvl_emu_captured c = s->capture;
    *graph = nullptr;
    e = c->invalid                      ? cudaErrorStreamCaptureInvalidated
        : c->origin != stream           ? cudaErrorStreamCaptureUnmatched
        : !all_joined(c.get(), s->tail) ? cudaErrorStreamCaptureUnjoined
                                        : cudaSuccess;
    for (struct CUstream_st *o : kvl_emu_streams)
        if (o->capture == c) {
            o->capture = nullptr;
            o->tail.clear();
        }
    if (e == cudaSuccess) {
        *graph = new struct CUgraph_st();
        (*graph)->nodes =
            std::make_shared<const std::vector<kvl_emu_graph_node>>(std::move(c->nodes));
    }
    return kvl_emu_return(e);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    struct CUstream_st *s = kvl_emu_stream(stream);
    if (!s) return kvl_emu_return(cudaErrorInvalidResourceHandle);
    *status = !s->capture           ? cudaStreamCaptureStatusNone
              : s->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *)
{
    return kvl_emu_enter(KVL_EMU_CALLS);
}

/* ---- graphs ------------------------------------------------------------------------------------------ */

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    if (!exec || !graph) return kvl_emu_return(cudaErrorInvalidValue);
    *exec = new struct CUgraphExec_st();
    (*exec)->nodes = graph->nodes;
    kvl_emu_count.n_instantiated++;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    return e != cudaSuccess || exec ? e : kvl_emu_return(cudaErrorInvalidValue);
}

/* Any order that respects what comes after what. */
static void run_nodes(const std::vector<kvl_emu_graph_node> &nodes)
{
    std::vector<int> waits(nodes.size(), 0), can;
    std::vector<std::vector<int>> before(nodes.size());
    for (size_t i = 0; i < nodes.size(); i++) {
        for (int a : nodes[i].after) before[(size_t)a].push_back((int)i);
        waits[i] = (int)nodes[i].after.size();
        if (waits[i] == 0) can.push_back((int)i);
    }
    while (!can.empty() && !kvl_emu_lost()) {
        size_t pick = (size_t)kvl_emu_below(can.size());
        int at = can[pick];
        can[pick] = can.back();
        can.pop_back();
        nodes[(size_t)at].run();
        for (int next : before[(size_t)at])
            if (--waits[(size_t)next] == 0) can.push_back(next);
    }
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_LAUNCH);
    if (e != cudaSuccess) return e;
    if (!exec) return kvl_emu_return(cudaErrorInvalidValue);
    if (kvl_emu_capturing(stream)) return kvl_emu_return(cudaErrorStreamCaptureUnsupported);
    kvl_emu_nodes nodes = exec->nodes;
    kvl_emu_count.n_graph_launches++;
    return kvl_emu_return(kvl_emu_give_after(
        stream, exec->last, [nodes] { run_nodes(*nodes); }, &exec->last));
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                struct cudaGraphExecUpdateResultInfo *info)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    if (!exec || !graph) return kvl_emu_return(cudaErrorInvalidValue);
    const std::vector<kvl_emu_graph_node> &a = *exec->nodes, &b = *graph->nodes;
    enum cudaGraphExecUpdateResult r = cudaGraphExecUpdateSuccess;
    if (a.size() != b.size()) r = cudaGraphExecUpdateErrorTopologyChanged;
    for (size_t i = 0; i < a.size() && r == cudaGraphExecUpdateSuccess; i++) {
        if (a[i].after != b[i].after) r = cudaGraphExecUpdateErrorTopologyChanged;
        if (a[i].kind != b[i].kind) r = cudaGraphExecUpdateErrorNodeTypeChanged;
        if (a[i].fn != b[i].fn) r = cudaGraphExecUpdateErrorFunctionChanged;
    }
    if (info) *info = { r, nullptr, nullptr };
    if (r != cudaGraphExecUpdateSuccess) return kvl_emu_return(cudaErrorGraphExecUpdateFailure);
    exec->nodes = graph->nodes;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    if (!graph || nodes) return kvl_emu_return(cudaErrorInvalidValue); /* the number alone */
    *n = graph->nodes->size();
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return kvl_emu_enter(KVL_EMU_CALLS);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return kvl_emu_enter(KVL_EMU_CALLS);
}
