/* kvl/device.h - where a model, its KV store and its operators live: the CPU, or a CUDA GPU.
 *
 * Vocabulary
 *   place   where an allocation lives
 *             HOST    ordinary memory
 *             PINNED  host memory that a device copies from and to without the host
 *             SHARED  both sides may touch it, at different times, at one address: what a device was asked to write
 *                     is there for the host after sync, and what the host writes then, before it gives work that
 *                     reads it, is there for the device.  A discrete device has a twin of it, and copies are made where
 *                     they are due
 *             TABLE   the same, but sync brings nothing: the host says what it is about to touch (`host`), so that
 *                     the rest never travels
 *             DEVICE  the device alone may touch it; on the CPU it is ordinary memory
 *   stream  work in one stream runs in the order in which it was given.  Operators are given to MAIN;
 *           copies of the host tier to COPY
 *
 * A device may work behind the caller's back: operators and copies return before they have run, and errors
 * of the device may come with a later call.  What the host passes by pointer and is not in memory of
 * another place has been read, and written, when the call returns.
 *
 * Errors: KVL_ENOMEM, KVL_EDEVICE.  After KVL_EDEVICE every further call gives it again (`error` says why):
 * the process must end, or give the device up.
 * Thread-safe: no.  A device belongs to one thread.
 */
#ifndef KVL_DEVICE_H
#define KVL_DEVICE_H

#include "kvl/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum kvl_place {
    KVL_PLACE_HOST = 0,
    KVL_PLACE_PINNED,
    KVL_PLACE_SHARED,
    KVL_PLACE_TABLE,
    KVL_PLACE_DEVICE,
    KVL_PLACES
};

enum kvl_stream { KVL_STREAM_MAIN = 0, KVL_STREAM_COPY, KVL_STREAMS };

/* What a device has and what this process took of it. */
struct kvl_device_memory {
    size_t total_bytes, free_bytes; /* of the device */
    size_t place_bytes[KVL_PLACES]; /* allocated now, through this table */
    size_t peak_bytes[KVL_PLACES];
};

struct kvl_device_info {
    char name[128];      /* "NVIDIA H200", or of the processor */
    char driver[64];     /* "580.82, CUDA 13.0"; empty on the CPU */
    char toolkit[32];    /* "13.0", with which the program was built; empty on the CPU */
    char class_name[16]; /* "cpu", "cuda": part of a cell's id */
    int32_t compute_major, compute_minor, n_sm;
    double memory_gbs; /* of its data sheet's clock and width; 0: not known */
    double clock_mhz;  /* of its multiprocessors, at most; 0: not known */
    /* Steps are gathered; false: the driver refuses, KVL_CUDA_GRAPH=0, or every operator waits
     * (KVL_CUDA_CHECKS; a build with asserts). */
    bool graphs;
};

/* Copies that were given to a device, for records and tests. */
struct kvl_device_traffic {
    int64_t h2d_bytes, h2d_calls, d2h_bytes, d2h_calls, d2d_bytes, d2d_calls;
    int64_t n_launches, n_syncs; /* of kernels, those of graphs among them; waits */
    int64_t n_graphs;            /* started */
};

/* Rows of new keys and values for a block: rows row .. row + n - 1 of kv head `kv_head` of the arrays
 * go to slots slot .. slot + n - 1 of the block whose parts lie at `data`, which goes to *link. */
struct kvl_kv_span {
    uint8_t *data;
    const uint8_t **link; /* memory of the device, or NULL */
    int32_t slot, n, row, kv_head;
};
struct kvl_kv_put_args {
    const struct kvl_layout *layout;
    const float *part[3]; /* by enum kvl_kv_part: [...][n_kv_heads][head_dim]; NULL = not stored */
    const struct kvl_kv_span *span; /* host memory */
    int32_t n_spans, n_kv_heads;
    /* Keys and values become what is stored of them, where they lie (kvl_store_round); those before RoPE stay. */
    bool rounds;
};

/* n slots of all parts from one block to another, or inside one.  All reads of a call come before its
 * writes, and no slot is written twice. */
struct kvl_kv_move {
    uint8_t *to;
    const uint8_t *from;
    int32_t to_slot, from_slot, n;
    int32_t at; /* slots of the moves before it in the call */
};
struct kvl_kv_move_args {
    const struct kvl_layout *layout;
    const struct kvl_kv_move *move; /* host memory */
    int32_t n_moves;
    void *stage; /* memory of the device for all slots of the call: all parts of each */
    size_t stage_bytes;
};

/* Elements of the columns of a lane close ranks: of every column, elements from .. from + n - 1 of a run go to `to` and up
 * (to <= from; runs ascend and do not overlap); those from n_kept to n_live become zero. */
struct kvl_rows_run {
    int32_t from, to, n;
};
struct kvl_rows_lane {
    uint8_t *data; /* of column 0 */
    size_t column_bytes;
    int32_t elem_bytes, n_columns, first_run, n_runs, n_kept, n_live;
};
struct kvl_rows_keep_args {
    const struct kvl_rows_lane *lane; /* both host memory */
    const struct kvl_rows_run *run;
    int32_t n_lanes, n_runs;
};

/* n pieces of SHARED or TABLE memory, `stride` bytes apart, that the host is to have; writes: and may write. */
struct kvl_pieces {
    uint8_t *data;
    size_t bytes, stride, n;
    bool writes;
};

/* Rows of a step that marks tell apart; what comes for later ones counts for the last. */
enum { KVL_DEVICE_MARKS = 1024 };

struct kvl_device {
    const char *name; /* as it was opened */
    bool
        discrete; /* DEVICE memory is not the host's, and calls may return before their work is done */
    /* Attention of keys and values in the host tier is computed on the host, where they lie; else they are
     * fetched. */
    bool attends_host;
    int32_t max_head_dim;      /* of a model that it runs; 0: of any that loads */
    const struct kvl_ops *ops; /* given to MAIN */
    const struct kvl_ops
        *ops_now; /* the same, done when they return: for callers that look at results */

    /* 64-byte aligned (256 on a device), zero; NULL: no memory. */
    void *(*alloc)(enum kvl_place place, size_t n, size_t item);
    void (*free)(enum kvl_place place, void *p); /* the room comes back with the next sync */

    /* Any two places.  What comes from HOST memory has been read when it returns, what goes there is
     * there. */
    int (*copy)(void *to, const void *from, size_t bytes, enum kvl_stream stream);
    int (*zero)(void *p, size_t bytes, enum kvl_stream stream);
    int (*fill)(void *p, uint8_t byte, size_t bytes, enum kvl_stream stream);
    /* What `later` is given from now on runs after what `earlier` was given so far. */
    int (*order)(enum kvl_stream earlier, enum kvl_stream later);
    int (*sync)(void); /* all streams */
    /* The same, but SHARED memory is not there for the host before the next sync: for who looks at none of it. */
    int (*rest)(void);

    /* NULL where all memory is the host's.  host: what operators wrote of these pieces is there, waited for once; what
     * the host may write stays its own until `settle`.  fresh: of SHARED memory, nobody asks for what was there;
     * `ahead`: a cache line of it is written by the host or by operators, not by both. */
    int (*host)(const struct kvl_pieces *list, int32_t n);
    void (*settle)(void);
    void (*fresh)(void *p, size_t bytes, bool ahead);

    /* Makes operators read [p, p + bytes) of host memory (weights of a mapped file) from a copy on the
     * device, until it is given up. */
    int (*mirror)(const void *p, size_t bytes);
    void (*unmirror)(const void *p);

    /* NULL on the CPU, where core/kv does it itself. */
    int (*kv_put)(const struct kvl_kv_put_args *a);
    int (*kv_move)(const struct kvl_kv_move_args *a);
    /* As kv_move, given to COPY, where nothing of the call is read and written both; no stage. */
    int (*kv_gather)(const struct kvl_kv_move_args *a);

    /* Given to MAIN; NULL on the CPU, where tables do it themselves. */
    int (*rows_keep)(const struct kvl_rows_keep_args *a);

    /* Marks a flag of the device where x [n] has an infinity or NaN; `finite` waits, tells whether the
     * flag was clear, and clears it.  NULL on the CPU. */
    int (*check_finite)(const float *x, size_t n);
    int (*finite)(bool *out);

    /* A NaN that an operator refuses with KVL_ENUMERIC: a call that waits (of ops_now, or with something in
     * HOST memory) returns it; another returns KVL_OK before it is known, its results are then indices in
     * range, and it leaves a mark for the row that mark_row named last (0 at first).  `marked` waits and
     * gives the first marked row, -1: none; marks are gone then.  NULL on the CPU, which always returns it. */
    void (*mark_row)(int32_t row);
    int (*marked)(int32_t *row);

    /* One step of decoding.  In between, what MAIN is given may be gathered and started as graphs; a call
     * that waits starts what was gathered, and the rest of the step runs as it comes.  The results are the
     * same with and without.  step_end also ends a step that failed.  NULL on the CPU. */
    int (*step_begin)(void);
    int (*step_end)(void);

    /* Yardsticks of `kvlab bench`, given to MAIN; NULL on the CPU, which has kvl/peak.h.  One read of memory
     * of the device; c [m][n] = a [m][k] w [n][k]^T of bf16 by the vendor's library alone, sums in float. */
    int (*peak_read)(const void *p, size_t bytes);
    int (*peak_gemm)(float *c, const uint16_t *a, const uint16_t *w, int32_t m, int32_t n,
                     int32_t k);

    void (*info)(struct kvl_device_info *out);
    void (*memory)(struct kvl_device_memory *out);
    void (*traffic)(struct kvl_device_traffic *out); /* since the process began */
    const char *(*error)(void);                      /* of the first KVL_EDEVICE; "" before */
};

/* Never fails, never NULL. */
const struct kvl_device *kvl_device_cpu(void);
/* "cpu", "cuda", or one that attends_host: "hybrid" is the GPU and the CPU, "cpu-hybrid" the CPU in both
 * places, which counts what a GPU and its host would exchange.  KVL_EINVAL: no such name.  KVL_EDEVICE: no
 * GPU, no driver, or built without CUDA; the message says which, and what to do. */
int kvl_device_open(const char *name, const struct kvl_device **out, struct kvl_err *err);
/* The same on GPU number `gpu` of those that are visible; a process has one, for good: KVL_EDEVICE where it has opened
 * another.  Of the CPU every number is the same. */
int kvl_device_open_gpu(const char *name, int32_t gpu, const struct kvl_device **out,
                        struct kvl_err *err);

#ifdef __cplusplus
}
#endif

#endif
