/* runner.h - runs the cells of a sweep that a log does not have yet.
 *
 * Per context: one prefill; then per protocol, policy and budget forks of it.  The samples of one
 * context under one protocol are one commit.  A sample that fails is a record; the sweep goes on.
 * Contexts are answered here or by worker processes (jobs.h); speed cells here, after all else.  What runs
 * on a GPU is answered by workers alone, speed cells too: a GPU that fails takes the process with it that
 * opened it.
 */
#ifndef KVL_RUNNER_H
#define KVL_RUNNER_H

#include "answer.h"
#include "context_prefill.h"
#include "jobs.h"
#include "log.h"
#include "measure.h"
#include "progress.h"
#include "quality.h"
#include "resume.h"

/* What a run did. */
struct kvl_run_stats {
    int64_t context_prefills;    /* contexts prefilled for accuracy cells */
    int64_t context_prefill_tok; /* their tokens */
    int64_t n_quality;           /* reference passes */
    int64_t own_prefills;        /* contexts that a policy read itself, for any cell */
    int64_t speed_prefills;      /* and for speed cells */
    int64_t n_samples, n_speed, n_errors;
};

struct kvl_worker;

struct kvl_runner {
    const struct kvl_work *work;
    struct kvl_state *state;
    struct kvl_log *log;
    struct kvl_engine *engine;
    const struct kvl_run_info *info; /* for the run record */
    const volatile int *stop;
    struct kvl_progress progress;
    struct kvl_run_stats stats;
    struct kvl_snapshots snapshots;
    struct kvl_kv_units units;
    bool allow_overlong;
    struct kvl_jobs jobs;      /* who answers contexts */
    struct kvl_worker *worker; /* this process is one; NULL: it runs the sweep */
    int32_t gpu;               /* of this process, counted from the sweep's first */
    struct kvl_ask_room room;
    const struct kvl_group *timing; /* its prefill is in memory, for timed cells; NULL: none is */
    uint64_t t_left;                /* from then on time left is worked out again */
    uint64_t t_begun, t_so_far; /* of the run; from then on what there is so far is told again */
    bool announced;             /* the run record is in the log */
};

/* Creates the engine, unless workers alone have one.  Everything that is set above must outlive the
 * runner. */
int kvl_runner_open(struct kvl_runner *r, struct kvl_err *err);
void kvl_runner_close(struct kvl_runner *r);
/* Contexts of this shard that some cell still wants. */
int32_t kvl_runner_n_contexts(const struct kvl_runner *r);
/* All groups of this shard.  KVL_ESTOP when the stop flag was raised: what is complete is
 * committed. */
int kvl_runner_run(struct kvl_runner *r, struct kvl_err *err);

/* ---- for the parts of the runner -------------------------------------------------------------- */

/* The engine of a worker that has none: on its own connection to the GPU. */
int kvl_runner_engine(struct kvl_runner *r, struct kvl_err *err);
/* Nothing more can run in this process: a stop, or a device that failed. */
static inline bool kvl_runner_ends(int rc)
{
    return rc == KVL_ESTOP || rc == KVL_EDEVICE;
}

/* Appends a record (stolen; NULL = out of memory), the run record before the first. */
int kvl_runner_append(struct kvl_runner *r, json_t *record, struct kvl_err *err);
/* Records that a cell failed for good. */
int kvl_runner_cell_error(struct kvl_runner *r, size_t cell, int32_t context,
                          const struct kvl_err *why, struct kvl_err *err);
/* The progress line with time left; flight_ns: of all processes, since what they did was last known. */
int kvl_runner_show(struct kvl_runner *r, const char *what, double flight_ns, struct kvl_err *err);
/* Shows what runs next; KVL_ESTOP as below. */
int kvl_runner_next(struct kvl_runner *r, size_t cell, struct kvl_err *err);
/* KVL_ESTOP once the flag is raised. */
int kvl_runner_check_stop(const struct kvl_runner *r, struct kvl_err *err);

/* Whether a cell lacks answers of a context, or its time. */
bool kvl_runner_wants(const struct kvl_runner *r, int32_t context, size_t cell);
bool kvl_runner_wants_any(const struct kvl_runner *r, const struct kvl_group *g, int32_t context);
/* No context, no cells of it: what `err` holds becomes an error record of each that wanted it. */
int kvl_runner_group_failed(struct kvl_runner *r, const struct kvl_group *g, int32_t context,
                            struct kvl_err *err);

/* What was observed of a session under a cell's policy: attended tokens and bytes.
 * `shared_blocks` as for kvl_kv_measure. */
void kvl_runner_observe(const struct kvl_runner *r, const struct kvl_cell *cell,
                        const struct kvl_session *s, int64_t shared_blocks, struct kvl_outcome *o);
/* Blocks that a session shares with others: to be taken right after its policy was attached. */
int64_t kvl_runner_shared_blocks(const struct kvl_session *s);

/* An empty session under a policy that reads the n tokens itself; counted from behind them.  *ns: what
 * that took. */
int kvl_runner_stream(struct kvl_runner *r, const struct kvl_cell *cell, uint64_t seed,
                      const int32_t *id, int32_t n, struct kvl_session **out, double *ns,
                      struct kvl_err *err);
/* Whether a cell lacks the reference pass of a question. */
bool kvl_runner_wants_quality(const struct kvl_runner *r, size_t cell, int32_t context,
                              int32_t question);
/* Runs and records one; `run` as for kvl_quality_measure, its workspace is filled in.  `failed`: the
 * policy's failure before it.  A failure of the pass is a record; KVL_ESTOP is the caller's
 * (runner_quality.c). */
int kvl_runner_quality(struct kvl_runner *r, size_t cell, int32_t context, int32_t question,
                       struct kvl_quality_run *run, const struct kvl_err *failed,
                       struct kvl_err *err);
/* Whether a cell that lacks something of this context needs the shared prefill. */
bool kvl_runner_shares(const struct kvl_runner *r, const struct kvl_group *g, int32_t context);

/* What one context of a group lacks: one of the next two. */
int kvl_runner_answer(struct kvl_runner *r, const struct kvl_group *g, int32_t context,
                      struct kvl_err *err);
/* Cell records of a group whose contexts are all done, and their commit. */
int kvl_runner_finish(struct kvl_runner *r, const struct kvl_group *g, struct kvl_err *err);
/* Not more often than that; and the first time. */
#define KVL_SO_FAR_NS ((uint64_t)60 * 1000000000)
/* Records of what unfinished cells of a group have so far, for who looks at the log meanwhile, and their commit: from
 * time to time, or `now`. */
int kvl_runner_so_far(struct kvl_runner *r, const struct kvl_group *g, bool now,
                      struct kvl_err *err);
/* All contexts of this shard, by worker processes (runner_workers.c). */
int kvl_runner_workers(struct kvl_runner *r, bool speed, struct kvl_err *err);
/* One context of a group: generated, prefilled, answered (runner_context.c). */
int kvl_runner_context(struct kvl_runner *r, const struct kvl_group *g, int32_t context,
                       struct kvl_err *err);
/* One text of a group: prefilled as far as its mode says, then read under each policy
 * (runner_text.c). */
int kvl_runner_text(struct kvl_runner *r, const struct kvl_group *g, int32_t context,
                    struct kvl_err *err);
/* The speed cells of one length (runner_speed.c). */
int kvl_runner_speed(struct kvl_runner *r, const struct kvl_group *g, struct kvl_err *err);

#endif
