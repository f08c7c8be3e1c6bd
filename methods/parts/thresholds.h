/* thresholds.h - what another policy scores below a threshold goes, behind a window of the latest tokens (dms, dms_decode).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_THRESHOLDS_H
#define KVL_THRESHOLDS_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of the window as an option, which may be KVL_AUTO. */
int32_t kvl_threshold_min_budget(int32_t window);
/* The option `threshold`: *limit is the number that it is, or NaN for "budget", of which `horizon` tokens are left for later;
 * *window, where it is KVL_AUTO, follows from the budget.  KVL_EINVAL: it is neither, or there is no budget. */
int kvl_threshold_plan(struct kvl_plan *plan, const char *text, int32_t horizon, int32_t *window,
                       double *limit);
/* Of the context, in score: lanes keep the last `window` tokens, and of the others those whose inner score is not below
 * `given`, or, where that is NaN, as many as a budget comes to over the lanes of the layer.  *used: the limit; -INFINITY
 * where that is everything. */
int kvl_threshold_score(const struct kvl_pctx *ctx, int32_t layer, int32_t window, double given,
                        int32_t budget, struct kvl_scores *scores, float *used);

#ifdef __cplusplus
}
#endif

#endif
