/* dms - what scores below a threshold goes once it has left a window of the latest tokens.
 *
 * Lancucki et al.: Inference-Time Hyper-Scaling with KV Cache Compression (DMS), 2025 (arXiv 2506.05345), with another
 * policy's scores in place of trained ones, as kvpress' DMSPress.
 * When the context is complete, of the tokens before its last `window` those whose score is below the threshold go.
 * threshold=budget is, layer by layer, the score below which as many tokens of the context lie as the budget wants to go.
 * Budget B: B - 1 tokens of the context, the window among them, as the mean of a layer's heads, and the current one; with
 * `threshold` given it counts for nothing.  Tokens that come later stay.
 */
#include "parts/thresholds.h"

struct dms_opts {
    char threshold[KVL_OPT_STR_SIZE];
    int32_t window;
    double limit; /* not an option; NaN = by the budget */
};

static const struct kvl_opt dms_options[] = {
    KVL_ROW_STR(
        dms_opts, threshold, "budget",
        "score below which a token goes (kvpress: by scorer); budget = what the budget comes to"),
    KVL_ROW_INT(dms_opts, window, "auto", 1, 65536,
                "latest tokens that stay (paper: 128); auto = min(128, budget / 4)"),
    { 0 },
};

static int32_t dms_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    return kvl_threshold_min_budget(((const struct dms_opts *)opts)->window);
}

static int dms_plan(struct kvl_plan *plan)
{
    struct dms_opts *o = plan->opts;
    return kvl_threshold_plan(plan, o->threshold, 0, &o->window, &o->limit);
}

/* DMSPress.forward_hook(). */
static int dms_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct dms_opts *o = ctx->opts;
    float used;
    return kvl_threshold_score(ctx, layer, o->window, o->limit, ctx->budget_tok, scores, &used);
}

static const struct kvl_policy dms = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "dms",
    .title = "DMS thresholds",
    .paper = "Lancucki et al., 2025, arXiv 2506.05345",
    .help = "drops what scores below a threshold behind a window, by scores of another policy",
    .follows =
        "kvpress' DMSPress: a dense prefill, a threshold on another policy's scores, the latest "
        "128 tokens kept. Any policy that scores by keys and values alone may be wrapped.",
    .deviations =
        "threshold=budget, the default, is the layer's score that the budget comes to. Left out: "
        "the trained evictors of the paper and its sparse prefill, as in kvpress. kvpress' option "
        "to judge tokens that come later is dms_decode. Tokens that the inner policy protects "
        "stay.",
    .cost = "Once that of the inner policy, and a sort of the K n scores of a layer. Nothing while "
            "decoding; no memory after that.",
    .inner = "knorm",
    .version = 2,
    .caps = KVL_CAP_EVICTS | KVL_CAP_RAGGED | KVL_CAP_ASKS,
    .opts = dms_options,
    .opts_size = sizeof(struct dms_opts),
    .min_budget = dms_min_budget,
    .plan = dms_plan,
    .score = dms_score,
};

KVL_POLICY_EXPORT(dms)
