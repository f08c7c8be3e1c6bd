/* progress.h - one line on standard error: how far, how fast, how long yet. */
#ifndef KVL_PROGRESS_H
#define KVL_PROGRESS_H

#include "kvl/base.h"

struct kvl_progress {
    double total, done; /* cost units, see plan.h */
    double first;       /* `done` when this run started */
    size_t n_cells, n_done, n_errors;
    int64_t n_answers; /* of this run */
    uint64_t t_start, t_shown;
    bool tty, shown, quiet;
};

void kvl_progress_begin(struct kvl_progress *p, bool quiet);
/* Shows the line: on a terminal at most every 0.2 s, else every 10 s. */
void kvl_progress_show(struct kvl_progress *p, const char *what);
/* Wipes the line from a terminal, so that other text can follow. */
void kvl_progress_end(struct kvl_progress *p);

#endif
