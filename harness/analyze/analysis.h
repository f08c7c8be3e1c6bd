/* analysis.h - what attention of a dense run looks like: how few tokens hold its mass, how alike layers
 * are, how fast its important tokens change.
 *
 * One observation is one decode step; its *important* tokens of a layer are the m largest weights,
 * reduced over the query heads by their maximum or their mean, of all tokens before the current one
 * (ties: the lower position).  The current token is always read, so it is never one of them, and its
 * weight always counts as captured.
 *
 *   mass        per layer and head: tokens that together hold 90, 95, 99 % of the weights, the
 *               largest first, the current one included
 *   similarity  capture[l1][l2], l2 >= l1: weight of layer l2, mean over its heads, that falls on the
 *               important tokens of l1 and the current one; hit[l]: share of the evidence needed at a
 *               step that is important in layer l
 *   drift       of the important tokens of a layer at two steps of one answer, `lag` apart: the share
 *               of the old ones that are important still, and intersection / union
 *
 * Thread-safe: no.
 */
#ifndef KVL_ANALYSIS_H
#define KVL_ANALYSIS_H

#include "measure.h"
#include "measured.h"

int kvl_analysis_create(const struct kvl_analysis_want *want, const struct kvl_shape *shape,
                        int32_t max_tok, struct kvl_analysis **out, struct kvl_err *err);
void kvl_analysis_destroy(struct kvl_analysis *a);

/* Steps that follow are of another answer: none of them is compared with those before. */
void kvl_analysis_answer(struct kvl_analysis *a);
/* One decode step of a session without a policy.  watch NULL: no evidence; else the step-th answer step
 * of it.  logits [n_vocab]. */
int kvl_analysis_decode(struct kvl_analysis *a, struct kvl_session *s, int32_t id,
                        const struct kvl_watch *watch, int32_t step, float *logits,
                        struct kvl_err *err);

#endif
