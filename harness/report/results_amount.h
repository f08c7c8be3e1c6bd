/* results_amount.h - how much of their sweeps logs hold: a table of half a sweep must say so.
 *
 * Of one sweep, model and shard the newest run counts: it says how much there is and how much there was, and what it
 * did itself stands in the log.  Where one log has shards of several ways to part a sweep, each cell counts once.
 *
 * Thread-safe: as results.h.
 */
#ifndef KVL_RESULTS_AMOUNT_H
#define KVL_RESULTS_AMOUNT_H

#include "results.h"

#include <stdio.h>

struct kvl_results_amount {
    int64_t cells, done, answers, answered; /* zeros: no run says how much there is */
    int64_t stopped;                        /* of these cells, by an error */
    size_t without; /* runs that are left out: they do not say how much there is */
};

int kvl_results_amount(const struct kvl_results *r, struct kvl_results_amount *out,
                       struct kvl_err *err);
/* Adds what the logs have of what one run says that there is. */
int kvl_results_run_amount(const struct kvl_results *r, const json_t *run,
                           struct kvl_results_amount *sum, struct kvl_err *err);
/* Whether all of the sweep and model of a run is there, in whatever shards it was done. */
int kvl_results_all_done(const struct kvl_results *r, const json_t *run, bool *done,
                         struct kvl_err *err);
/* Whether a run says of how many cells it is; a shard may be of none. */
bool kvl_results_run_says(const json_t *run);
/* One line where cells are missing, with `before` in front; nothing where none is. */
int kvl_results_partial(const struct kvl_results *r, const char *before, FILE *out,
                        struct kvl_err *err);

#endif
