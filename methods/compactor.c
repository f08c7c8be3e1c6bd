/* compactor - what is hard to combine from other keys, and what its block looks at.
 *
 * Chari, Van Durme: Compactor: Calibrated Query-Agnostic KV Cache Compression with Approximate Leverage Scores, 2025
 * (arXiv 2507.08143), section 3.  Of the context but its first 8 and last 4 tokens, per layer:
 *   1. the leverage of the keys before RoPE in a Gaussian sketch (as the policy leverage)
 *   2. what tokens receive in their block without a causal mask (as the policy noncausal)
 *   3. each brought to mean 0 and deviation 1 over the layer; score = blending x leverage + attention
 * The tokens at both ends stay, and the best of the others.
 * blending: kvpress takes the compression ratio, the part of the context that goes; auto does the same.
 * Budget B: B - 1 tokens of the context, the ends among them, and the current one; tokens that come later stay.
 */
#include "parts/block_scores.h"
#include "parts/row_leverage.h"

struct compactor_opts {
    int32_t first, last, chunk, sketch;
    double blending;
};

static const struct kvl_opt compactor_options[] = {
    KVL_ROW_INT(compactor_opts, first, "8", 0, 255, "first tokens that stay (kvpress: 8)"),
    KVL_ROW_INT(compactor_opts, last, "4", 0, 127, "last tokens that stay (kvpress: 4)"),
    KVL_ROW_INT(compactor_opts, chunk, "256", 1, 65535, "tokens of a block (paper: 256)"),
    KVL_ROW_INT(compactor_opts, sketch, "48", 0, 4096,
                "channels of the random sketch (paper: 48); 0 = exact leverage"),
    KVL_ROW_FLOAT(compactor_opts, blending, "-1", -1, 1000,
                  "weight of the leverage (paper: 0.35); -1 = the part of the context that goes "
                  "(kvpress)"),
    { 0 },
};

static int32_t compactor_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct compactor_opts *o = opts;
    (void)shape;
    return o->first + o->last + 2;
}

static int compactor_plan(struct kvl_plan *plan)
{
    const struct compactor_opts *o = plan->opts;
    plan->raw_keys = true;
    KVL_TRY(kvl_plan_needs_budget(plan));
    return kvl_plan_observe(plan, KVL_OBS_BLOCKS, KVL_BLOCKS(o->first, o->last, o->chunk));
}

/* CompactorPress.score(), steps 1 to 3. */
static int compactor_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct compactor_opts *o = ctx->opts;
    int32_t n_heads = ctx->shape->n_kv_heads, n = scores->n_tok - o->first - o->last;
    size_t stride = (size_t)scores->n_tok;
    float *leverage, *attention = scores->score + o->first;
    scores->keep_tok = ctx->budget_tok - 1;
    scores->protect_first = o->first;
    scores->protect_last = o->last;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    double gone = 1 - (double)scores->keep_tok / scores->n_tok;
    float blending = (float)(o->blending < 0 ? gone : o->blending);
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_heads * (size_t)n, &leverage));
    KVL_TRY(kvl_key_leverage(ctx, layer, o->first, n, o->sketch, leverage, (size_t)n));
    KVL_TRY(kvl_block_scores(ctx, layer, o->first, o->last, o->chunk, scores->n_tok, attention,
                             stride));
    kvl_z_scores(leverage, n_heads, n, (size_t)n);
    kvl_z_scores(attention, n_heads, n, stride);
    for (int32_t h = 0; h < n_heads; h++)
        for (int32_t i = 0; i < n; i++)
            attention[(size_t)h * stride + (size_t)i] += blending * leverage[h * n + i];
    return KVL_OK;
}

static const struct kvl_policy compactor = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "compactor",
    .title = "Compactor",
    .paper = "Chari and Van Durme, 2025, arXiv 2507.08143",
    .help = "keeps keys of large leverage and what the own block attends to, evicts the rest once",
    .follows =
        "kvpress' CompactorPress, by an author: leverage with a ridge and a factorisation, "
        "non-causal attention in blocks of 256, both brought to mean 0 and deviation 1 over the "
        "layer, blended by the part of the context that goes, the first 8 and last 4 tokens kept.",
    .deviations = "The sketch of a layer and kv head is the same for every context. Left out: the "
                  "paper's calibration of how much "
                  "a context may be compressed; the budget says that.",
    .cost =
        "In the prefill 2 d chunk products for each of n queries and H heads, shared by all that "
        "ask for the same blocks. Once keys before RoPE and values, d s + 2 s^2 products for each "
        "of n keys per kv head, s = sketch, and a top-k of n. Nothing while decoding. Memory: keys "
        "before RoPE, half the cache again.",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .opts = compactor_options,
    .opts_size = sizeof(struct compactor_opts),
    .min_budget = compactor_min_budget,
    .plan = compactor_plan,
    .score = compactor_score,
};

KVL_POLICY_EXPORT(compactor)
