/* sweep_models.h - a sweep over several models, or several types of their keys and values, one after the other.
 *
 * Each has a process of its own: its plan, its contexts, its workers, its memory.  What ends that process, or
 * keeps a model from being opened or from fitting, is the failure of its own cells: an error record in the
 * log, and the others run.
 */
#ifndef KVL_SWEEP_MODELS_H
#define KVL_SWEEP_MODELS_H

#include "config.h"

/* What the sweep of one model did. */
struct kvl_sweep_done {
    int64_t n_samples, n_speed, n_errors;
    size_t n_failed; /* cells with failures, of this run or an earlier one */
};

/* One of them: types are the inner axis. */
struct kvl_sweep_part {
    const char *model;
    enum kvl_kv_type kv_type;
    bool last_type; /* of the model */
};
size_t kvl_sweep_n_parts(const struct kvl_sweep *s);
struct kvl_sweep_part_name {
    char text[512];
};
struct kvl_sweep_part_name kvl_sweep_part_name(const struct kvl_sweep *s,
                                               const struct kvl_sweep_part *p);

struct kvl_sweep_models {
    const struct kvl_sweep *sweep;
    const char *log; /* where failures of parts are recorded; NULL: nowhere (--dry-run) */
    /* Runs one part, in the child. */
    int (*run)(void *user, const struct kvl_sweep_part *part, struct kvl_sweep_done *done,
               struct kvl_err *err);
    void *user;
};

/* *sum: over all of them; *n_failed: parts that failed.  KVL_ESTOP; failures of the log; that of the first
 * part when all failed. */
int kvl_sweep_models(const struct kvl_sweep_models *m, struct kvl_sweep_done *sum, size_t *n_failed,
                     struct kvl_err *err);

#endif
