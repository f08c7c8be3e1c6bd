/* results_left.h - what of their sweeps logs lack, as the numbers of shards that must run again.
 *
 * Of one sweep and model the run that began last says in how many shards it is.  A shard is done when the newest of its
 * runs holds as many cells as it says, with those that ended in an error; one that no log has a run of is left.
 *
 * Thread-safe: as results.h.
 */
#ifndef KVL_RESULTS_LEFT_H
#define KVL_RESULTS_LEFT_H

#include "log_shards.h"
#include "results.h"

struct kvl_results_left {
    bool any;       /* work is left */
    int64_t shards; /* of the sweeps that are in shards; 0: none is */
    bool mixed; /* they are in other numbers of shards: `shards` and `number` are of one of them */
    struct kvl_log_ranges number; /* of shards that are left: "3,7-9" */
    int64_t
        n_failed; /* cells that an error ended, not those that a method refuses, and failed answers */
};
int kvl_results_left(const struct kvl_results *r, struct kvl_results_left *out,
                     struct kvl_err *err);
void kvl_results_left_free(struct kvl_results_left *l);

#endif
