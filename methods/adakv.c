/* adakv - heads of a layer share their budgets as their scores ask; which tokens, another policy says.
 *
 * Feng et al.: Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM
 * Inference, 2024 (arXiv 2407.11550), Algorithm 1.  The inner policy scores the tokens of H heads, of
 * which each would keep b (protected ones, such as SnapKV's window, come on top):
 *   1. of all scores of the layer the H b largest; c_h of them are of head h
 *   2. B_h = (1 - alpha) c_h + alpha b: a mixture with the even budget, so that no head starves
 *   3. head h keeps its B_h best
 * Scores must be comparable across heads, as probabilities are.  Budgets move within a layer only.
 *
 * totals: what is made of fractions
 *   strict    largest remainders (ties: the lower head): the heads keep H b together.  Ours, and the
 *             default, so that methods are compared at the same number of tokens
 *   official  B_h = round(c_h (1 - alpha) + floor(b alpha)), half to even, as in the repository: the
 *             sum misses H b by up to H tokens
 *   kvpress   AdaKVPress: the best floor(alpha keep) of every head, protected ones among them, are safe,
 *             and the rest of the H keep go to the best of all others: exact, and a guaranteed minimum
 *             in place of the mixture
 * Published codes differ in the inner scores, too: the repository scores with SnapKV (window 32, kernel
 * 7, maximum; its mean over the window orders like SnapKV's sum, and gqa_support takes the group's mean
 * before pooling, as snapkv does here); kvpress' expected_attention entry is this policy over
 * ExpectedAttention with epsilon 0.01.
 * Budget B: B - 1 tokens of the context and the current one, as the mean of a layer's heads.
 * Deviations: the repository has heads of its own per *query* head on repeated keys unless gqa_support is
 * given; here storage is per kv head.  Its normalisation of scores, off in all its scripts: no.
 * Cost: that of the inner policy and a top-k of H n scores per layer, once.
 */
#include "kvl/policy.h"

#include <math.h>

enum { ADAKV_STRICT = 0, ADAKV_OFFICIAL, ADAKV_KVPRESS };

struct adakv_opts {
    double floor_alpha;
    int32_t totals;
};

static const char *const adakv_totals[] = { "strict", "official", "kvpress", NULL };

static const struct kvl_opt adakv_options[] = {
    KVL_ROW_FLOAT(adakv_opts, floor_alpha, "0.2", 0, 1,
                  "part of the budget that is the same for all heads; 1 = all of it (paper: 0.2)"),
    KVL_ROW_ENUM(
        adakv_opts, totals, "strict", adakv_totals,
        "how fractions become tokens: exact sums, the official rounding, kvpress' safeguard"),
    { 0 },
};

/* Algorithm 1, step 2: what head h would get with fractions. */
static double adakv_mixture(const struct adakv_opts *o, int32_t count, int32_t b)
{
    return count * (1 - o->floor_alpha) + b * o->floor_alpha;
}

/* Rounds down and gives what is left to the largest remainders. */
static int adakv_strict(const struct kvl_pctx *ctx, int32_t b, int32_t n_heads, int32_t *count)
{
    const struct adakv_opts *o = ctx->opts;
    double *rest;
    int64_t left = (int64_t)n_heads * b;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_heads, &rest));
    for (int32_t h = 0; h < n_heads; h++) {
        double v = adakv_mixture(o, count[h], b);
        count[h] = (int32_t)floor(v);
        rest[h] = v - floor(v);
        left -= count[h];
    }
    for (; left > 0; left--) {
        int32_t best = 0;
        for (int32_t h = 1; h < n_heads; h++)
            if (rest[h] > rest[best]) best = h;
        rest[best] -= 1;
        count[best]++;
    }
    return KVL_OK;
}

static void adakv_official(const struct adakv_opts *o, int32_t b, int32_t n_heads, int32_t *count)
{
    double even = floor(b * o->floor_alpha);
    for (int32_t h = 0; h < n_heads; h++)
        count[h] = (int32_t)nearbyint(count[h] * (1 - o->floor_alpha) + even);
}

/* Algorithm 1: joint_share counts the largest scores of the layer (step 1); core keeps the best of each head (3). */
static int adakv_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct adakv_opts *o = ctx->opts;
    int32_t n_heads = ctx->shape->n_kv_heads, *count;
    bool evicts;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_heads, &count));
    KVL_TRY(kvl_inner_even_score(ctx, layer, scores, &evicts));
    int32_t guarded = scores->protect_first + scores->protect_last;
    int32_t b = scores->keep_tok - guarded;
    if (!evicts || b <= 0) return KVL_OK;
    int32_t safe = (int32_t)(scores->keep_tok * o->floor_alpha) - guarded;
    const struct kvl_joint_share_args share = {
        .count = count,
        .x = scores->score + scores->protect_first,
        .x_stride = (size_t)scores->n_tok,
        .n_rows = n_heads,
        .n = scores->n_tok - guarded,
        .k = n_heads * b,
        .safe = o->totals == ADAKV_KVPRESS ? KVL_MAX(safe, 0) : 0,
    };
    int rc = ctx->ops->joint_share(&share);
    if (rc == KVL_ENUMERIC) return kvl_fail(ctx->err, KVL_EPOLICY, "a score is not a number (NaN)");
    KVL_TRY(rc);
    if (o->totals == ADAKV_STRICT) KVL_TRY(adakv_strict(ctx, b, n_heads, count));
    if (o->totals == ADAKV_OFFICIAL) adakv_official(o, b, n_heads, count);
    for (int32_t h = 0; h < n_heads; h++) scores->keep_lane[h] = guarded + count[h];
    return KVL_OK;
}

static const struct kvl_policy adakv = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "adakv",
    .title = "Ada-KV",
    .paper = "Feng et al., 2024, arXiv 2407.11550",
    .help = "heads share a layer's budget by their scores, which another policy gives",
    .follows =
        "Algorithm 1 with floor_alpha 0.2 over SnapKV (window 32, kernel 7, maximum), one set per "
        "kv head as gqa_support of the repository. totals=official rounds as the repository does, "
        "totals=kvpress is AdaKVPress, a guaranteed minimum in place of the mixture. Any policy "
        "that scores tokens once may be wrapped; kvpress' leaderboard entry expected_attention is "
        "adakv(expected_attention:epsilon=0.01).",
    .deviations =
        "The default, totals=strict, rounds by largest remainders, so that a layer's heads keep "
        "the budget together; the official rounding misses it by up to a token per head. Left out: "
        "one set per query head on repeated keys.",
    .cost =
        "Once that of the inner policy, and a top-k of the K n scores of a layer. Nothing while "
        "decoding; no memory after that.",
    .inner = "snapkv",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_RAGGED,
    .opts = adakv_options,
    .opts_size = sizeof(struct adakv_opts),
    .score = adakv_score,
};

KVL_POLICY_EXPORT(adakv)
