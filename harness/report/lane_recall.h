/* lane_recall.h - what share of the evidence each lane attended, cell by cell, and the headline recall
 * made of it.
 *
 * Recall of the best layer says whether anybody could read the evidence; it is 1 beside 0 % right
 * when one layer that retrieves nothing happens to hold it.  The headline is the mean over
 * *retrieving* lanes: those that look at the evidence when they are free to.  The `oracle` of the
 * same block tells, at its smallest budget: a lane retrieves if on average at least half of the
 * evidence is among the tokens of its own largest attention weights.  Layers that a policy left
 * dense read all of it and count so.
 *
 * Thread-safe: no.
 */
#ifndef KVL_LANE_RECALL_H
#define KVL_LANE_RECALL_H

#include "results.h"

#define KVL_LANE_RETRIEVES 0.5

/* Sums over the samples of each cell. */
struct kvl_lanes {
    struct kvl_lane_cell *cell; /* [n] */
    size_t n, cap;
    bool keep; /* lanes of each sample, too */
};

/* A sample record; one without `lane_recall` adds nothing.  Samples of a cell need not follow
 * each other. */
int kvl_lanes_add(struct kvl_lanes *l, const json_t *sample);
/* Fills `recall` of all results of the tables and, where lanes of samples were kept, `retrieved`
 * of their samples, which are in their order; NaN where there is no oracle, or the log has no
 * samples. */
void kvl_lanes_recall(struct kvl_lanes *l, struct kvl_results *r);
/* Why none of x [n] has a recall, as a clause. */
const char *kvl_lanes_lack(const struct kvl_results *r, const struct kvl_result *const *x,
                           size_t n);
void kvl_lanes_free(struct kvl_lanes *l);

#endif
