/* wrapped.h - what policies that change the scores of another one share. */
#ifndef KVL_METHODS_WRAPPED_H
#define KVL_METHODS_WRAPPED_H

#include "kvl/policy.h"

/* Scores of the inner policy, of which the outer one says how many are kept: an inner one that gives its
 * lanes budgets of its own is refused.  *evicts: something is to be left out. */
static inline int wrapped_score(const struct kvl_pctx *ctx, int32_t layer,
                                struct kvl_scores *scores, bool *evicts)
{
    KVL_TRY(kvl_inner_score(ctx, layer, scores));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        if (scores->keep_lane[h] >= 0)
            return kvl_fail(ctx->err, KVL_EINVAL,
                            "the inner policy gives its lanes budgets of its own (%d tokens to kv "
                            "head %d); want one that keeps as many everywhere",
                            scores->keep_lane[h], h);
    *evicts = scores->keep_tok < scores->n_tok;
    return KVL_OK;
}

#endif
