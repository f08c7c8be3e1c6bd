/* worker.h - a process that answers contexts of a sweep, or times its cells, one unit at a time.
 *
 * It is a fork of the sweep's process, so that model, plan and what the log had are there already.  It
 * is handed units over a socket and sends frames back: what runs next, commits (lines of JSON that the
 * sweep's process appends), the end of a unit.  One commit is one frame, so that commits of workers
 * never mix.  It never writes to the log, ignores the signals that stop a sweep (the sweep's process
 * tells it), and dies with that process.
 *
 * A worker may use OpenMP only when the process it was forked from never has: libgomp's threads do not
 * survive a fork.
 */
#ifndef KVL_WORKER_H
#define KVL_WORKER_H

#include "runner.h"

/* One context of one group; of speed cells the whole group. */
struct kvl_unit {
    size_t group;
    int32_t context;
};

/* What a worker did since its last frame. */
struct kvl_worker_count {
    struct kvl_run_stats stats;
    size_t n_done, n_errors;
    int64_t n_answers, n_loaded, n_saved;
};

enum kvl_worker_says {
    KVL_WORKER_NEXT = 1, /* payload: what runs from here on, for the progress line */
    KVL_WORKER_AMID,     /* payload: the same, with how far a prefill is */
    KVL_WORKER_COMMIT,   /* payload: records, one per line */
    KVL_WORKER_DONE,     /* payload: a struct kvl_err, code KVL_OK when all is well */
    KVL_WORKER_LOST,     /* payload: the same, why its device is of no use any more: it ends */
};

/* Frames are for processes of one program: as they lie in memory. */
struct kvl_worker_frame {
    uint64_t says, bytes; /* of the payload behind it */
    struct kvl_worker_count count;
};

/* What a worker and the sweep's process both see. */
struct kvl_worker_shared {
    const char *volatile policy; /* or task, that runs: where its name lies (kvl_guard_share) */
    volatile int harm;           /* enum kvl_harm_kind: why it has ended itself */
};

struct kvl_worker {
    struct kvl_runner *r;
    int32_t threads;
    int fd;                   /* both ways */
    const volatile int *stop; /* shared with the sweep's process */
    struct kvl_worker_shared *shared;
};

/* The life of a worker, right after the fork; `parent` is the process that forked it. */
_Noreturn void kvl_worker_live(struct kvl_worker *w, struct kvl_unit first, int64_t parent);

/* What one context of a group lacks, in this process. */
int kvl_runner_answer(struct kvl_runner *r, const struct kvl_group *g, int32_t context,
                      struct kvl_err *err);
/* All contexts of this shard, or its timed cells, by worker processes (runner_workers.c). */
int kvl_runner_workers(struct kvl_runner *r, bool speed, struct kvl_err *err);

/* From the sweep's process to a worker: a unit, and which cells of its group have failed meanwhile.
 * False: the worker is gone. */
bool kvl_worker_hand(int fd, const struct kvl_runner *r, struct kvl_unit u);

#endif
