/* leverage - keeps the tokens whose keys the others cannot be combined to.
 *
 * Chari, Van Durme: Compactor: Calibrated Query-Agnostic KV Cache Compression with Approximate Leverage Scores, 2025
 * (arXiv 2507.08143), section 3.1; alone it is kvpress' LeverageScorePress.  Per layer and kv head, on the keys before
 * RoPE:
 *   1. X = keys less their mean, times a Gaussian sketch of 48 channels
 *   2. score = the diagonal of X (X'X + 0.01 I)^-1 X': the statistical leverage of every token, from 0 to 1
 *   3. all scores of the layer less their mean, divided by their deviation, which changes no order
 * and the best B - 1 stay.  Neither the first nor the latest tokens are protected.
 * Budget B: B - 1 tokens of the context and the current one; tokens that come later stay.
 */
#include "parts/row_leverage.h"

struct leverage_opts {
    int32_t sketch;
};

static const struct kvl_opt leverage_options[] = {
    KVL_ROW_INT(leverage_opts, sketch, "48", 0, 4096,
                "channels of the random sketch (paper: 48); 0 = exact, by the keys themselves"),
    { 0 },
};

static int32_t leverage_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    (void)opts;
    return 2;
}

static int leverage_plan(struct kvl_plan *plan)
{
    plan->raw_keys = true;
    return kvl_plan_needs_budget(plan);
}

/* LeverageScorePress.score(). */
static int leverage_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct leverage_opts *o = ctx->opts;
    int32_t n = scores->n_tok;
    scores->keep_tok = ctx->budget_tok - 1;
    if (n <= scores->keep_tok) return KVL_OK;
    KVL_TRY(kvl_key_leverage(ctx, layer, 0, n, o->sketch, scores->score, (size_t)n));
    kvl_z_scores(scores->score, ctx->shape->n_kv_heads, n, (size_t)n);
    return KVL_OK;
}

static const struct kvl_policy leverage = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "leverage",
    .title = "Leverage scores",
    .paper = "Chari and Van Durme, 2025, arXiv 2507.08143",
    .help = "keeps the tokens with the largest leverage on the keys, evicts the rest once",
    .follows =
        "kvpress' LeverageScorePress: keys before RoPE, centred, a Gaussian sketch of 48 channels, "
        "leverage with a ridge of 0.01 (0.1 and more where that is too little), scores of a layer "
        "brought to mean 0 and deviation 1. sketch=0 is the exact leverage.",
    .deviations = "The sketch of a layer and kv head is the same for every context. Sums of "
                  "products and the factorisation in double.",
    .cost =
        "Once, when the context is complete, the keys before RoPE are read, d s products of the "
        "sketch and 2 s^2 more for each of n keys per kv head, s = sketch, and a top-k of n. "
        "Nothing while decoding. Memory: keys before RoPE, half the cache again.",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .opts = leverage_options,
    .opts_size = sizeof(struct leverage_opts),
    .min_budget = leverage_min_budget,
    .plan = leverage_plan,
    .score = leverage_score,
};

KVL_POLICY_EXPORT(leverage)
