/* sweep_models.h - a sweep over several models, one after the other.
 *
 * Each has a process of its own: its plan, its contexts, its workers, its memory.  What ends that process, or
 * keeps a model from being opened or from fitting, is the failure of its own cells: an error record in the
 * log, and the other models run.
 */
#ifndef KVL_SWEEP_MODELS_H
#define KVL_SWEEP_MODELS_H

#include "config.h"

/* What the sweep of one model did. */
struct kvl_sweep_done {
    int64_t n_samples, n_speed, n_errors;
    size_t n_failed; /* cells with failures, of this run or an earlier one */
};

struct kvl_sweep_models {
    const struct kvl_sweep *sweep;
    const char *log; /* where failures of models are recorded; NULL: nowhere (--dry-run) */
    /* Runs the sweep of `model`, in the child. */
    int (*run)(void *user, const char *model, struct kvl_sweep_done *done, struct kvl_err *err);
    void *user;
};

/* *sum: over all of them; *n_failed: models that failed.  KVL_ESTOP; failures of the log; that of the first
 * model when all failed. */
int kvl_sweep_models(const struct kvl_sweep_models *m, struct kvl_sweep_done *sum, size_t *n_failed,
                     struct kvl_err *err);

#endif
