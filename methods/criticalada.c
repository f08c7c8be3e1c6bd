/* criticalada - CriticalKV with budgets that the heads of a layer share.
 *
 * Feng et al.: Identify Critical KV Cache in LLM Inference from an Output Perturbation Perspective, 2025 (arXiv
 * 2502.03805), over Ada-KV (arXiv 2407.11550).  The inner policy scores the tokens of H heads, of which each would keep b:
 *   1. the floor(alpha b) best of every head are safe (at least one); the rest of the H b go to the best of all others,
 *      so that head h keeps B_h
 *   2. of these the floor(B_h first_stage) best by score, or the safe ones where they are more
 *   3. the others by (score + epsilon) |W_o v|_1, as in criticalkv
 * What the inner policy protects counts among the safe ones.
 * Budget B: that of the inner policy, as the mean of a layer's heads.
 */
#include "parts/critical.h"

struct criticalada_opts {
    double floor_alpha, first_stage, epsilon;
};

static const struct kvl_opt criticalada_options[] = {
    KVL_ROW_FLOAT(criticalada_opts, floor_alpha, "0.2", 0, 1,
                  "part of the budget that every head has for certain (kvpress: 0.2)"),
    KVL_ROW_FLOAT(criticalada_opts, first_stage, "0.5", 0, 1,
                  "part of a head's budget that goes by scores alone (paper: 0.5)"),
    KVL_ROW_FLOAT(criticalada_opts, epsilon, "0.0032", 0, 1,
                  "added to a score before it is multiplied (kvpress: 1e-4, for the mean over a "
                  "window; that times 32 for the sum, which snapkv gives)"),
    { 0 },
};

/* CriticalAdaKVPress.compress(), step 1: how many of the tokens that are not protected each head keeps. */
static int criticalada_share(const struct kvl_pctx *ctx, const struct kvl_scores *scores, int32_t b,
                             int32_t safe, int32_t *count)
{
    int32_t n_heads = ctx->shape->n_kv_heads;
    int32_t n = scores->n_tok - scores->protect_first - scores->protect_last;
    const struct kvl_joint_share_args share = { .count = count,
                                                .x = scores->score + scores->protect_first,
                                                .x_stride = (size_t)scores->n_tok,
                                                .n_rows = n_heads,
                                                .n = n,
                                                .k = n_heads * b,
                                                .safe = safe };
    int rc = ctx->ops->joint_share(&share);
    if (rc != KVL_ENUMERIC) return rc;
    return kvl_fail(ctx->err, KVL_EPOLICY, "a score is not a number (NaN)");
}

static int criticalada_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct criticalada_opts *o = ctx->opts;
    int32_t *count;
    bool evicts;
    float *norm;
    KVL_TRY(kvl_inner_even_score(ctx, layer, scores, &evicts));
    int32_t guarded = scores->protect_first + scores->protect_last, n = scores->n_tok - guarded;
    int32_t b = scores->keep_tok - guarded;
    if (!evicts || b <= 0) return KVL_OK;
    int32_t safe = KVL_MAX(o->floor_alpha > 0, (int32_t)(scores->keep_tok * o->floor_alpha));
    safe = KVL_MAX(0, safe - guarded);
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_kv_heads, &count));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &norm));
    KVL_TRY(criticalada_share(ctx, scores, b, safe, count));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        float *score = scores->score + (size_t)h * (size_t)scores->n_tok + scores->protect_first;
        int32_t stage = (int32_t)((guarded + count[h]) * o->first_stage) - guarded; /* step 2 */
        KVL_TRY(kvl_projected_norms(ctx, layer, h, scores->protect_first, n, norm));
        KVL_TRY(kvl_critical_stages(ctx, score, norm, n, KVL_MAX(safe, stage), (float)o->epsilon));
        scores->keep_lane[h] = guarded + count[h];
    }
    return KVL_OK;
}

static const struct kvl_policy criticalada = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "criticalada",
    .title = "CriticalKV over Ada-KV",
    .paper = "Feng et al., 2025, arXiv 2502.03805",
    .help = "CriticalKV in which the heads of a layer share its budget by their scores",
    .follows =
        "kvpress' CriticalAdaKVPress, by an author: Ada-KV's safeguard of 20 % and joint budgets, "
        "then both stages of CriticalKV in every head. Any policy that scores tokens once may be "
        "wrapped.",
    .deviations =
        "Protected tokens of the inner policy stay whatever the stages say. epsilon is meant for "
        "the sums that snapkv gives with a window of 32.",
    .cost =
        "Once that of the inner policy, values, E d products for each of n values and H heads, E "
        "the width of the model, a top-k of the K n scores of a layer and two of n per kv head. "
        "Nothing while decoding; no memory after that.",
    .inner = "snapkv",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_RAGGED,
    .opts = criticalada_options,
    .opts_size = sizeof(struct criticalada_opts),
    .score = criticalada_score,
};

KVL_POLICY_EXPORT(criticalada)
