/* jobs.h - how many processes answer the contexts of a sweep.
 *
 * Contexts are independent, and a small model has too little work per token for a team of threads:
 * then one worker process per core takes a context at a time, and a policy that crashes costs its own
 * cells and no other.  For that a plug-in gets a worker, if only one.  The cores of the sweep (--threads) are shared out
 * among the workers.
 */
#ifndef KVL_JOBS_H
#define KVL_JOBS_H

#include "sweep_plan.h"

/* One step reads every weight once.  Below this many bytes that takes a core about a millisecond, cut in
 * pieces that a team takes as long to share out as to do. */
enum { KVL_JOBS_SMALL_BYTES = 32 << 20 };
/* Seconds that a cell has where nothing else was asked for (kvl_sweep.cell_limit_s). */
enum { KVL_CELL_LIMIT_S = 24 * 3600 };

struct kvl_jobs {
    int32_t n;        /* that answer contexts at the same time */
    int32_t threads;  /* of each */
    bool apart;       /* in processes of their own; false: n = 1, the sweep's process does it */
    int32_t left_out; /* so many more there was no memory for */
    bool all_apart;   /* timed cells, too, one worker at a time */
    bool watched;     /* plug-ins run: what they do to their process is looked at (harm.h) */
};

/* "auto" (also NULL) or 1 to 1024; auto is 0. */
int kvl_jobs_parse(const char *text, int32_t *out, struct kvl_err *err);

struct kvl_jobs_ask {
    int32_t asked;      /* 0 = auto: one per GPU; `threads` of them for a small model; else 1 */
    int32_t threads;    /* of the whole sweep */
    int32_t n_contexts; /* there is work for so many */
    int64_t weight_bytes;
    int64_t kv_bytes;   /* that one process takes beside the weights */
    int64_t free_bytes; /* 0 = unknown; of the first GPU */
    int32_t
        n_gpus; /* that have the work, each as much memory as the first: processes are always apart; 0: the CPU has it */
    bool plugin; /* plug-ins run: always apart */
    bool limit;  /* a time limit of cells was asked for: apart, too */
};
/* Fewer than asked where there is no work or no memory for all. */
struct kvl_jobs kvl_jobs_choose(const struct kvl_jobs_ask *a);

/* Whether answers or texts are compared with full attention over keys and values of another type than the sweep's:
 * then their contexts are held in that type, too (kvl_kv_reference). */
bool kvl_work_compares(const struct kvl_work *w);

#endif
