/* runtime.cuh - what the files of the runtime share (device.cu, memory.cu, twin.cu, transfer.cu,
 * call.cu, step.cu, table.cu);
 * operators need cuda.cuh alone.
 *
 * One process works with one GPU, from one thread: its state is one object. */
#ifndef KVL_CUDA_RUNTIME_CUH
#define KVL_CUDA_RUNTIME_CUH

#include "cuda.cuh"

#include <sys/types.h>

enum { KVL_RING_SEGMENTS = 4 };

/* Pinned memory that uploads pass through.  A segment is written again once the copies that left from it
 * have run. */
struct kvl_cuda_ring {
    uint8_t *base;
    cudaEvent_t left[KVL_RING_SEGMENTS];
    bool waits[KVL_RING_SEGMENTS];
    int32_t segment;
    size_t used; /* of the segment */
};

struct kvl_cuda_runtime {
    bool open;
    pid_t pid;   /* that opened it */
    bool checks; /* every operator waits and looks for errors */
    bool failed;
    char error[512];
    const char *op_name, *kernel_name; /* under way, or the last one; NULL: none yet */
    int32_t gpu;
    int32_t compute_major, compute_minor, block_bytes, n_sm;
    cudaStream_t stream[KVL_STREAMS];
    enum kvl_stream launches; /* where kernels go: MAIN, but for those of kv_gather */
    bool busy[KVL_STREAMS];   /* was given work since the last sync */
    cudaEvent_t mark[KVL_STREAMS];
    struct kvl_cuda_ring ring[KVL_STREAMS];
    int32_t *not_finite;       /* on the device; behind it one for trials */
    int32_t *marks;            /* pinned: of KVL_DEVICE_MARKS rows, and of a call that waits */
    int32_t mark_row, n_marks; /* the row at hand; rows that may have one */
    bool now;                  /* an operator of ops_now is under way */
    bool pull_tables;          /* it wrote TABLE memory, which its caller may look at */
    size_t place_bytes[KVL_PLACES], peak_bytes[KVL_PLACES];
    struct kvl_device_traffic traffic;
};

extern struct kvl_cuda_runtime kvl_cuda_rt;

/* Opens the GPU at the first call; KVL_EDEVICE once something failed. */
int kvl_cuda_ready(void);
/* All streams have run, and what waited to be freed is. */
int kvl_cuda_rest(void);
/* The first failure's text. */
int kvl_cuda_fail(const char *fmt, ...) KVL_PRINTF(1, 2);

/* ---- memory.cu ---- */

/* Where the device finds p, or NULL for ordinary host memory; *place: HOST for a mirror. */
void *kvl_cuda_find(const void *p, size_t bytes, enum kvl_place *place);
/* Not cleared; KVL_ENOMEM, KVL_EDEVICE. */
int kvl_cuda_alloc(enum kvl_place place, size_t bytes, void **out);
/* Freed at the next sync. */
void kvl_cuda_release(enum kvl_place place, void *p);
/* All streams have run: what waits to be freed is. */
int kvl_cuda_flush(void);
int kvl_cuda_mirror(const void *p, size_t bytes);
void kvl_cuda_unmirror(const void *p);

/* ---- twin.cu ---- */

static inline bool kvl_cuda_is_twin(enum kvl_place place)
{
    return place == KVL_PLACE_SHARED || place == KVL_PLACE_TABLE;
}
/* Of SHARED and TABLE memory that kvl_cuda_find has found: before a kernel reads it, or writes it (keep: some of it may
 * stay as it is). */
int kvl_cuda_twin_in(const void *p, size_t bytes);
int kvl_cuda_twin_out(void *p, size_t bytes, bool keep);
/* Whether the host's side has all of it. */
bool kvl_cuda_twin_is_host(const void *p, size_t bytes);
/* Gives the copies that bring to the host what sync brings; it is there when MAIN has run. */
int kvl_cuda_twin_pull(void);
/* Of struct kvl_device. */
int kvl_cuda_twin_host(const struct kvl_pieces *list, int32_t n);
void kvl_cuda_twin_settle(void);
void kvl_cuda_twin_fresh(void *p, size_t bytes, bool ahead);

/* ---- transfer.cu ---- */

/* The ring of MAIN is opened with the device; others when they are needed. */
int kvl_cuda_ring_open(struct kvl_cuda_ring *r);
/* From ordinary memory, read when it returns. */
int kvl_cuda_upload_to(void *to, const void *host, size_t bytes, enum kvl_stream stream);
/* The same for who knows that no step takes it: kvl_cuda_step_put gave NULL. */
int kvl_cuda_ring_upload(void *to, const void *host, size_t bytes, enum kvl_stream stream);
/* To ordinary memory, without waiting for it. */
int kvl_cuda_download(void *host, const void *from, size_t bytes, enum kvl_stream stream);
int kvl_cuda_wait(enum kvl_stream stream);

int kvl_cuda_copy(void *to, const void *from, size_t bytes, enum kvl_stream stream);
int kvl_cuda_fill(void *p, uint8_t byte, size_t bytes, enum kvl_stream stream);
int kvl_cuda_order(enum kvl_stream earlier, enum kvl_stream later);

/* ---- call.cu ---- */

/* The first piece of temporary memory, so that small calls do not run short of it. */
int kvl_cuda_temp_open(void);

/* ---- step.cu ---- */

int kvl_cuda_step_begin(void);
int kvl_cuda_step_end(void);
/* Whether steps can become graphs; tries it at the first call. */
bool kvl_cuda_step_able(void);
/* Starts what a step has gathered, if one has; its rest runs as it comes.  A failure is given again until the step
 * ends: later calls would not find what was lost.  Before whatever waits for MAIN, or orders
 * it with another stream. */
int kvl_cuda_step_start(void);
/* Between calls: starts what fills a graph, and goes on with the next. */
int kvl_cuda_step_pace(void);
/* Reads `bytes` of ordinary memory for the step that is gathered: *twin is where its kernels find them; NULL: none
 * is gathered, or has no room left. */
int kvl_cuda_step_put(const void *host, size_t bytes, const void **twin);

/* ---- kv.cu ---- */

int kvl_cuda_kv_put(const struct kvl_kv_put_args *a);
int kvl_cuda_kv_move(const struct kvl_kv_move_args *a);
int kvl_cuda_kv_gather(const struct kvl_kv_move_args *a);

/* ---- rows_keep.cu ---- */

int kvl_cuda_rows_keep(const struct kvl_rows_keep_args *a);

/* ---- peak.cu ---- */

int kvl_cuda_peak_read(const void *p, size_t bytes);
int kvl_cuda_peak_gemm(float *c, const uint16_t *a, const uint16_t *w, int32_t m, int32_t n,
                       int32_t k);

/* ---- table.cu ---- */

extern const struct kvl_ops kvl_ops_cuda_now;

#endif
