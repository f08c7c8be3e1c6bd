/* criticalkv - half of the tokens by score, the other half by score and by what the output makes of their values.
 *
 * Feng et al.: Identify Critical KV Cache in LLM Inference from an Output Perturbation Perspective, 2025 (arXiv
 * 2502.03805), Algorithm 1.  The inner policy scores the tokens of a lane, of which b stay:
 *   1. the floor(b first_stage) best by these scores stay (at least one)
 *   2. the others are ranked by (score + epsilon) |W_o v|_1, the mean over the group's query heads of how far a value
 *      reaches behind the output projection, and fill b
 * What the inner policy protects stays, and counts in the first stage.
 * Budget B: that of the inner policy.
 */
#include "parts/critical.h"

struct criticalkv_opts {
    double first_stage, epsilon;
};

static const struct kvl_opt criticalkv_options[] = {
    KVL_ROW_FLOAT(criticalkv_opts, first_stage, "0.5", 0, 1,
                  "part of the budget that goes by scores alone (paper: 0.5)"),
    KVL_ROW_FLOAT(criticalkv_opts, epsilon, "0.0032", 0, 1,
                  "added to a score before it is multiplied (kvpress: 1e-4, for the mean over a "
                  "window; that times 32 for the sum, which snapkv gives)"),
    { 0 },
};

/* Algorithm 1, CriticalKVPress.score(). */
static int criticalkv_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct criticalkv_opts *o = ctx->opts;
    bool evicts;
    float *norm;
    KVL_TRY(kvl_inner_even_score(ctx, layer, scores, &evicts));
    if (!evicts) return KVL_OK;
    int32_t first = scores->protect_first, n = scores->n_tok - first - scores->protect_last;
    int32_t stage = KVL_MAX(o->first_stage > 0, (int32_t)(scores->keep_tok * o->first_stage));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &norm));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        float *score = scores->score + (size_t)h * (size_t)scores->n_tok + first;
        KVL_TRY(kvl_projected_norms(ctx, layer, h, first, n, norm));
        KVL_TRY(kvl_critical_stages(ctx, score, norm, n, stage - first - scores->protect_last,
                                    (float)o->epsilon));
    }
    return KVL_OK;
}

static const struct kvl_policy criticalkv = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "criticalkv",
    .title = "CriticalKV",
    .paper = "Feng et al., 2025, arXiv 2502.03805",
    .help =
        "half of the tokens by another policy's scores, half by these times the projected value",
    .follows =
        "kvpress' CriticalKVPress, by an author: first half by score, the rest by (score + "
        "epsilon) "
        "times the 1-norm of the value behind the output projection, mean over the group. Any "
        "policy that scores tokens once may be wrapped; expected_attention with use_vnorm=false.",
    .deviations =
        "Protected tokens of the inner policy stay even where the first stage has less room than "
        "they take. epsilon is meant for the sums that snapkv gives with a window of 32.",
    .cost =
        "Once that of the inner policy, values, E d products for each of n values and H heads, E "
        "the width of the model, and two top-k of n per kv head. Nothing while decoding; no memory "
        "after that.",
    .inner = "snapkv",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .opts = criticalkv_options,
    .opts_size = sizeof(struct criticalkv_opts),
    .score = criticalkv_score,
};

KVL_POLICY_EXPORT(criticalkv)
