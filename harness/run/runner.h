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
    /* Of the dense sessions that answers and texts are compared with, where their keys and values are of another type
     * than the sweep's (kvl_kv_reference): contexts are prefilled there, too.  NULL: `engine`. */
    struct kvl_engine *reference;
    const struct kvl_run_info *info; /* for the run record */
    const volatile int *stop;
    struct kvl_progress progress;
    struct kvl_run_stats stats;
    struct kvl_snapshots snapshots;
    struct kvl_kv_units units;
    bool allow_overlong;
    struct kvl_jobs jobs;      /* who answers contexts */
    struct kvl_worker *worker; /* this process is one; NULL: it runs the sweep */
    /* From a worker to the sweep's process: what runs next.  KVL_ESTOP: it is gone. */
    int (*tell)(struct kvl_worker *w, const char *what, struct kvl_err *err);
    int32_t gpu; /* of this process, counted from the sweep's first */
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

/* ---- for the parts of the runner -------------------------------------------------------------- */

/* The engine of a worker that has none: on its own connection to the GPU. */
int kvl_runner_engine(struct kvl_runner *r, struct kvl_err *err);
/* Nothing more can run in this process: a stop, or a device that failed. */
static inline bool kvl_runner_ends(int rc)
{
    return rc == KVL_ESTOP || rc == KVL_EDEVICE;
}

/* The progress line with time left; flight_ns: of all processes, since what they did was last known. */
int kvl_runner_show(struct kvl_runner *r, const char *what, double flight_ns, struct kvl_err *err);
/* Shows what runs next; KVL_ESTOP as below. */
int kvl_runner_next(struct kvl_runner *r, size_t cell, struct kvl_err *err);
/* KVL_ESTOP once the flag is raised. */
int kvl_runner_check_stop(const struct kvl_runner *r, struct kvl_err *err);

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

#endif
