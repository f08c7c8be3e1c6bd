/* progress.h - one line on standard error: how far, how fast, how long yet.
 *
 * Work is counted in the cost units of sweep_plan.h, and its time by kind: units of prefills and of answers take
 * times of their own, which a run learns from its first context on.  Time left is work left at these
 * rates, not contexts left: a context of 8192 tokens takes many times that of 512.
 */
#ifndef KVL_PROGRESS_H
#define KVL_PROGRESS_H

#include "kvl/model.h"

enum kvl_work_kind {
    KVL_WORK_PREFILL, /* that cells share */
    KVL_WORK_ANSWER,
    KVL_WORK_TIMED, /* speed cells and their prefills: one process, whatever the number of workers */
    KVL_WORK_KINDS
};

/* Of one kind, in cost units. */
struct kvl_progress_work {
    double total, done;
    double before; /* of `done`: by earlier runs, or not done at all */
    double ns;     /* that the rest of `done` took, over all processes */
};

enum { KVL_PROGRESS_TTY_NS = 200000000 };

struct kvl_progress {
    struct kvl_progress_work work[KVL_WORK_KINDS];
    uint64_t t_mark;    /* until then time was counted */
    int32_t n_parallel; /* processes, but for timed work; 0 = 1 */
    size_t n_cells, n_done, n_errors;
    int64_t n_answers; /* of this run */
    uint64_t t_start, t_shown;
    bool known; /* `part` and `left_s` come from elsewhere, and the work above does not count */
    double part, left_s; /* left_s: NaN where nothing is known yet */
    uint64_t t_known;    /* when both were; 0 = now */
    char what[96];       /* what runs, kvl_progress_name */
    uint64_t t_prefill;  /* when the prefill at hand began */
    /* Of a shared prefill at hand: its cost; what of it is done, and the time that took */
    double amid_cost, amid, amid_ns;
    int32_t n_layers;                           /* of the engine that is watched */
    void (*tell)(const char *what, void *user); /* who shows the line; NULL: this process */
    void *tell_user;
    uint64_t t_spent; /* of this process, when what it did was last known as outcomes */
    double spent_ns,
        had_ns;        /* of all processes until then; of outcomes that were there at the start */
    uint64_t every_ns; /* so long at least between two lines */
    bool tty, shown, quiet;
};

/* Time counts from here on. */
void kvl_progress_mark(struct kvl_progress *p);
/* So much was done since the last mark, and takes the time since then; a mark. */
void kvl_progress_did(struct kvl_progress *p, enum kvl_work_kind kind, double cost);
/* So much need not be done. */
void kvl_progress_skip(struct kvl_progress *p, enum kvl_work_kind kind, double cost);
/* What this process did until now is known as outcomes. */
void kvl_progress_spent(struct kvl_progress *p);
/* Whether the line is to be shown again. */
bool kvl_progress_due(const struct kvl_progress *p);
/* Part of the work that is done, 0 to 1, by time where rates are known. */
double kvl_progress_part(const struct kvl_progress *p);
/* Seconds that what is left takes; NaN before anything was done.  A kind that was not met yet is taken to
 * be as fast as the rest. */
double kvl_progress_left_s(const struct kvl_progress *p);

void kvl_progress_begin(struct kvl_progress *p, bool quiet);
/* Shows the line: on a terminal at most every 0.2 s, else every 10 s. */
void kvl_progress_show(struct kvl_progress *p, const char *what);
/* What runs from here on, for the line amid a prefill. */
void kvl_progress_name(struct kvl_progress *p, const char *what);
/* The next prefill is that of a context, and costs so much: until kvl_progress_did, what is done of it counts. */
void kvl_progress_amid(struct kvl_progress *p, double cost);
/* Whenever the line is due amid a prefill of `e` it is shown, with how far that is and tokens per second.  `p` must
 * outlive the engine. */
void kvl_progress_watch(struct kvl_progress *p, struct kvl_engine *e);
/* Wipes the line from a terminal, so that other text can follow. */
void kvl_progress_end(struct kvl_progress *p);
/* "1:02:03" or "2:03"; "?" for NaN.  At least 32 bytes. */
void kvl_progress_time(double s, char *out, size_t size);

#endif
