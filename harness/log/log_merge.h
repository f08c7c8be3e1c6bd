/* log_merge.h - several logs as one.
 *
 * What comes out depends on the logs alone, not on their names or order: runs in the order in which they began, each
 * run's records as they stand.  Of two answers to one question the first without an error stays, else the last one;
 * the same for results of one cell.  The logs stay as they are.
 *
 * Thread-safe: no; memory for the text of all logs.
 */
#ifndef KVL_LOG_MERGE_H
#define KVL_LOG_MERGE_H

#include "log.h"

struct kvl_log_merged {
    uint64_t n_records, n_same,
        n_again; /* written; left out: the same line, another answer to the same */
    size_t n_runs;
    json_t
        *missing; /* of sweeps in shards: "NAME: shards 2, 3 of 4 are in no log"; lines to print */
};
void kvl_log_merged_free(struct kvl_log_merged *m);

/* KVL_EINVAL: `to` is there already, or shards of two plans.  KVL_ELOG: a log is damaged or of another schema; torn
 * tails are none.  KVL_EIO. */
int kvl_log_merge(const struct kvl_log_paths *from, const char *to, struct kvl_log_merged *out,
                  struct kvl_log_health *health, struct kvl_err *err);

#endif
