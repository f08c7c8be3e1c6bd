/* results_parts.h - the files that read logs into results, to each other. */
#ifndef KVL_RESULTS_PARTS_H
#define KVL_RESULTS_PARTS_H

#include "results.h"

/* Fails with KVL_ENOMEM. */
int kvl_results_memory(struct kvl_err *err);

/* Sets the newest run, and the code that each engine, policy and task has in the newest run that
 * tells. */
int kvl_results_runs(struct kvl_results *r, struct kvl_err *err);
/* The record of a run, borrowed; NULL: there is none. */
const json_t *kvl_result_run(const struct kvl_results *r, const char *id);

/* Gives scores the intervals that all cells of their task allow for. */
int kvl_results_intervals(struct kvl_results *r, struct kvl_err *err);
/* Gives each result the speed of its point [n_speed]; speeds without a cell become results, for
 * which r->result has room.  Scratch: used, v [n_speed]. */
void kvl_results_join(struct kvl_results *r, const struct kvl_result *speed, size_t n_speed,
                      bool *used, double *v);

#endif
