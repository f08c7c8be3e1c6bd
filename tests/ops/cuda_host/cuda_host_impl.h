/* cuda_host_impl.h - what the files of the emulation share. */
#ifndef KVL_CUDA_HOST_IMPL_H
#define KVL_CUDA_HOST_IMPL_H

#include "cuda_host.h"

#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define KVL_EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVL_EMU_ASAN 1
#endif
#endif
#ifdef KVL_EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define KVL_EMU_POISON(p, n)   __asan_poison_memory_region(p, n)
#define KVL_EMU_UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define KVL_EMU_POISON(p, n)   ((void)0)
#define KVL_EMU_UNPOISON(p, n) ((void)0)
#endif

[[noreturn]] void kvl_emu_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint64_t kvl_emu_random(void);
uint64_t kvl_emu_below(uint64_t n);
extern struct kvl_emu_counts kvl_emu_count;

/* ---- errors ----------------------------------------------------------------------------------------- */

/* Every function of the runtime begins with it: sets up, and gives a sticky error or one that was asked for.
 * KVL_EMU_CALLS: of no kind. */
cudaError_t kvl_emu_enter(enum kvl_emu_call what);
/* Remembers what cudaGetLastError tells. */
cudaError_t kvl_emu_return(cudaError_t e);
/* From work that runs: every later call gives it. */
void kvl_emu_stick(cudaError_t e);
/* Such an error is there: nothing runs any more. */
bool kvl_emu_lost(void);
bool kvl_emu_fails(enum kvl_emu_call what, cudaError_t *e);

/* ---- kernels ---------------------------------------------------------------------------------------- */

void kvl_emu_grid(const struct kvl_emu_kernel *k, const std::function<void()> &body);
/* "in kernel k, block (0, 0, 0), thread (0, 0, 0)", or "" outside of kernels. */
const char *kvl_emu_where(void);

/* ---- memory ----------------------------------------------------------------------------------------- */

enum kvl_emu_place { KVL_EMU_PAGEABLE = 0, KVL_EMU_PINNED, KVL_EMU_MANAGED, KVL_EMU_DEVICE };
/* Where [p, p + bytes) lies; false: partly outside of an allocation of the device. */
bool kvl_emu_place_of(const void *p, size_t bytes, enum kvl_emu_place *place);
/* The device's memory is there between these, which nest. */
void kvl_emu_open(void);
void kvl_emu_close(void);

/* ---- streams ---------------------------------------------------------------------------------------- */

typedef std::shared_ptr<bool> kvl_emu_flag; /* whether something has been done */

enum kvl_emu_node {
    KVL_EMU_NODE_KERNEL = 0,
    KVL_EMU_NODE_COPY,
    KVL_EMU_NODE_FILL,
    KVL_EMU_NODE_HOST
};
struct kvl_emu_job {
    std::function<void()> run;
    std::vector<kvl_emu_flag> needs;
    kvl_emu_flag done;
    enum kvl_emu_node kind;
    const void *fn; /* of a kernel */
};

struct kvl_emu_graph_node {
    std::function<void()> run;
    std::vector<int> after; /* earlier nodes */
    enum kvl_emu_node kind;
    const void *fn;
};
typedef std::shared_ptr<const std::vector<kvl_emu_graph_node>> kvl_emu_nodes;

/* A capture that goes on. */
struct kvl_emu_capture {
    cudaStream_t origin;
    enum cudaStreamCaptureMode mode;
    bool invalid;
    std::vector<kvl_emu_graph_node> nodes;
};
typedef std::shared_ptr<kvl_emu_capture> kvl_emu_captured;

struct CUstream_st;
struct CUstream_st *kvl_emu_stream(cudaStream_t handle);
/* Gives work to a stream, or to the graph that it captures. */
cudaError_t kvl_emu_give(cudaStream_t stream, enum kvl_emu_node kind, const void *fn,
                         std::function<void()> run);
cudaError_t kvl_emu_give_after(cudaStream_t stream, const kvl_emu_flag &other,
                               std::function<void()> run, kvl_emu_flag *done);
bool kvl_emu_capturing(cudaStream_t stream);
/* An unsafe call while something captures: the capture is lost. */
bool kvl_emu_spoils_capture(bool relaxed_allows);
void kvl_emu_drain_stream(cudaStream_t stream);
void kvl_emu_drain_all(void);

#endif
