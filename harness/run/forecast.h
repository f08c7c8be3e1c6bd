/* forecast.h - what is left of a sweep, and what it will take: memory by arithmetic, time by rates.
 *
 * Thread-safe: no.
 */
#ifndef KVL_FORECAST_H
#define KVL_FORECAST_H

#include "memory.h"
#include "rates.h"

struct kvl_forecast {
    bool *left;                       /* [n_cells] of this shard, neither done nor failed */
    size_t n_cells, n_failed, n_left; /* of this shard */
    int64_t prefill_tok;              /* of contexts that are left, once for all that share them */
    int64_t n_answers;                /* questions; texts under a policy */
    size_t n_timed;                   /* speed cells */
    struct kvl_memory memory;
};

/* Reads work, state and jobs of the runner.  KVL_ENOMEM. */
int kvl_forecast(struct kvl_runner *r, struct kvl_forecast *out, struct kvl_err *err);
/* Of the shard of `r`, of which its state says what is done. */
struct kvl_run_amount kvl_forecast_amount(const struct kvl_runner *r);
void kvl_forecast_free(struct kvl_forecast *f);
/* Lines on standard output: what is left, and its memory.  `log` is its path, free_bytes of the memory that
 * `what` names (0: not known). */
void kvl_forecast_print(const struct kvl_forecast *f, const struct kvl_runner *r, const char *log,
                        int64_t free_bytes, const char *what);
/* The line of the time; `from`: what the rates were taken of. */
void kvl_forecast_print_time(const struct kvl_rates *rates, const struct kvl_runner *r,
                             const char *from);

#endif
