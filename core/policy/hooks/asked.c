/* Inner policies asked about tokens of a wrapper's choice, in place of a whole context (decode, block, chunk). */
#include "policy_impl.h"

#include <string.h>

static int asked_check(const struct kvl_pctx *ctx, const struct kvl_policy *inner,
                       const struct kvl_asked *asked)
{
    const struct kvl_policy *outer = ctx->host->session->planned->policy;
    if (!(outer->caps & KVL_CAP_ASKS))
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "asks about single tokens without KVL_CAP_ASKS: want it in caps");
    if (ctx->host->asked || !inner->score)
        return kvl_fail(ctx->err, KVL_EPOLICY, "asks %s for scores, which %s", inner->name,
                        inner->score ? "is being asked already" : "gives none");
    if (asked->n < 1 || asked->keep < 0 || asked->n_queries < 0)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "asks about %d tokens of which %d stay, by %d queries, want 1 or more, 0 "
                        "or more, 0 or more",
                        asked->n, asked->keep, asked->n_queries);
    return KVL_OK;
}

/* The inner policy's own words for how many stay are its answer about a context: the outer one decides here. */
int kvl_inner_score_tokens(const struct kvl_pctx *ctx, int32_t layer, const struct kvl_asked *asked,
                           struct kvl_scores *scores)
{
    size_t heads = (size_t)ctx->shape->n_kv_heads;
    struct kvl_pctx in;
    const struct kvl_policy *inner;
    KVL_TRY(kvl_inner_ctx(ctx, &in, &inner));
    KVL_TRY(asked_check(ctx, inner, asked));
    *scores = (struct kvl_scores){ .n_tok = asked->n, .keep_tok = asked->keep + 1 };
    KVL_TRY(kvl_scratch_get(ctx, heads * (size_t)asked->n, &scores->score));
    KVL_TRY(kvl_scratch_get(ctx, heads, &scores->keep_lane));
    memset(scores->score, 0, heads * (size_t)asked->n * sizeof *scores->score);
    for (size_t h = 0; h < heads; h++) scores->keep_lane[h] = -1;
    in.budget_tok = asked->keep + 1;
    in.context_tok = ctx->host->n_visible;
    return kvl_call_asked(&in, inner, layer, asked, scores);
}
