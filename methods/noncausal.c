/* noncausal - keeps what the queries of a block look at when they may look ahead.
 *
 * Chari, Van Durme: Compactor, 2025 (arXiv 2507.08143), section 3.2; alone it is kvpress' NonCausalAttnPress.  Per layer:
 *   1. the context in blocks of 256 tokens; in each, the softmax of q.k over the keys of the block, without a causal mask
 *      and without the scale of the logits, summed over its queries
 *   2. the mean over the query heads of a group, times the norm of the value
 *   3. the mean over three neighbouring tokens; all scores of the layer less their mean, divided by their deviation
 * and the best B - 1 stay.  Neither the first nor the latest tokens are protected.
 * Budget B: B - 1 tokens of the context and the current one; tokens that come later stay.
 */
#include "parts/block_scores.h"
#include "parts/row_leverage.h"

struct noncausal_opts {
    int32_t chunk;
};

static const struct kvl_opt noncausal_options[] = {
    KVL_ROW_INT(noncausal_opts, chunk, "256", 1, 65535, "tokens of a block (paper: 256)"),
    { 0 },
};

static int32_t noncausal_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    (void)opts;
    return 2;
}

static int noncausal_plan(struct kvl_plan *plan)
{
    const struct noncausal_opts *o = plan->opts;
    KVL_TRY(kvl_plan_needs_budget(plan));
    return kvl_plan_observe(plan, KVL_OBS_BLOCKS, KVL_BLOCKS(0, 0, o->chunk));
}

/* NonCausalAttnPress.score(). */
static int noncausal_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct noncausal_opts *o = ctx->opts;
    int32_t n = scores->n_tok;
    scores->keep_tok = ctx->budget_tok - 1;
    if (n <= scores->keep_tok) return KVL_OK;
    KVL_TRY(kvl_block_scores(ctx, layer, 0, 0, o->chunk, n, scores->score, (size_t)n));
    kvl_z_scores(scores->score, ctx->shape->n_kv_heads, n, (size_t)n);
    return KVL_OK;
}

static const struct kvl_policy noncausal = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "noncausal",
    .title = "Non-causal attention",
    .paper = "Chari and Van Durme, 2025, arXiv 2507.08143",
    .help = "keeps what queries of a block look at, those before it too, evicts the rest once",
    .follows =
        "kvpress' NonCausalAttnPress, to the letter: logits without their scale, a last block "
        "filled up with zero queries and keys that take part, mean over the group, times the norm "
        "of the value, averaged over three tokens.",
    .deviations = "None but 32-bit floats.",
    .cost =
        "In the prefill 2 d chunk products for each of n queries and H heads, shared by all that "
        "ask for the same blocks. Once the values, and a top-k of n per kv head. Nothing while "
        "decoding; no memory after that.",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .opts = noncausal_options,
    .opts_size = sizeof(struct noncausal_opts),
    .min_budget = noncausal_min_budget,
    .plan = noncausal_plan,
    .score = noncausal_score,
};

KVL_POLICY_EXPORT(noncausal)
