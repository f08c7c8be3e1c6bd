/* analyzer.h - a sweep of full attention whose answers are looked at (analysis.h), task by task and length by length.
 *
 * Thread-safe: no.
 */
#ifndef KVL_ANALYZER_H
#define KVL_ANALYZER_H

#include "analysis.h"
#include "log.h"
#include "progress.h"
#include "record.h"

struct kvl_analyzer {
    /* set before the run; borrowed */
    const struct kvl_sweep *s; /* its `analyze` says what is looked at */
    const struct kvl_work *work;
    struct kvl_model *model;
    const struct kvl_device *device;
    const struct kvl_machine *machine;
    const char *log_path; /* NULL: no log */
    bool allow_overlong;
    int argc; /* for the log */
    char **argv;
    int (*show)(const json_t *record, struct kvl_err *err); /* NULL: nothing is shown */
    struct kvl_err *err;
    /* private */
    struct kvl_engine *engine;
    struct kvl_log *log;
    json_t *done; /* of the log: id -> analysis of this build */
    bool announced;
    struct kvl_analysis *analysis; /* of the group at hand */
    const struct kvl_group *group;
    int64_t n_answers;
    float *logits;
    struct kvl_progress progress;
    double did, to_do; /* units of prefill */
};

/* Analyses that the log has already are shown, not run again. */
int kvl_analyzer_run(struct kvl_analyzer *z);
/* err NULL: why the log does not close is of no interest. */
int kvl_analyzer_close(struct kvl_analyzer *z, struct kvl_err *err);

#endif
