/* progress.h - one line on standard error: how far, how fast, how long yet.
 *
 * How far and how long yet is told to it: by rates.h for a sweep, by kvl_progress_part where pieces of work are alike.
 */
#ifndef KVL_PROGRESS_H
#define KVL_PROGRESS_H

#include "kvl/model.h"

enum { KVL_PROGRESS_TTY_NS = 200000000 };

struct kvl_progress {
    size_t n_cells, n_done, n_errors;
    int64_t n_answers; /* of this run */
    uint64_t t_start, t_shown;
    double part, left_s; /* of the work that is done, 0 to 1; NaN where nothing is known yet */
    uint64_t t_known;    /* when both were; 0 = now */
    char what[96];       /* what runs, kvl_progress_name */
    uint64_t t_prefill;  /* when the prefill at hand began */
    int32_t n_layers;    /* of the engine that is watched */
    void (*tell)(const char *what, void *user); /* who shows the line; NULL: this process */
    void *tell_user;
    uint64_t t_spent; /* of this process, when what it did was last known as outcomes */
    double spent_ns,
        had_ns;        /* of all processes until then; of outcomes that were there at the start */
    uint64_t every_ns; /* so long at least between two lines */
    bool tty, shown, quiet;
};

/* What this process did until now is known as outcomes. */
void kvl_progress_spent(struct kvl_progress *p);
/* Whether the line is to be shown again. */
bool kvl_progress_due(const struct kvl_progress *p);
/* So much of the work is done, 0 to 1, and the rest takes as long. */
void kvl_progress_part(struct kvl_progress *p, double part);
/* Seconds that are left at `now`, from what was known a while ago: less by that while at first, never none; a prefill
 * that takes longer than all was to take is not at its end. */
double kvl_progress_left_s(const struct kvl_progress *p, uint64_t now);

void kvl_progress_begin(struct kvl_progress *p, bool quiet);
/* Shows the line: on a terminal at most every 0.2 s, else every 10 s. */
void kvl_progress_show(struct kvl_progress *p, const char *what);
/* What runs from here on, for the line amid a prefill. */
void kvl_progress_name(struct kvl_progress *p, const char *what);
/* Whenever the line is due amid a prefill of `e` it is shown, with how far that is and tokens per second.  `p` must
 * outlive the engine. */
void kvl_progress_watch(struct kvl_progress *p, struct kvl_engine *e);
/* A step of answers, 1 to `most`: the line is shown where it is due, so that it moves amid long ones. */
void kvl_progress_step(void *progress, int32_t step, int32_t most);
/* Wipes the line from a terminal, so that other text can follow. */
void kvl_progress_end(struct kvl_progress *p);
/* "1:02:03" or "2:03"; "?" for NaN.  At least 32 bytes. */
void kvl_progress_time(double s, char *out, size_t size);

#endif
