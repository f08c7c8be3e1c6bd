/* tova - the newest query decides: the token that it attends to least goes.
 *
 * Oren, Hassid, Yarden, Adi, Schwartz: Transformers are Multi-State RNNs, EMNLP 2024 (arXiv
 * 2401.06104), section 3.2, policy TOVA.  After every step, per layer:
 *   1. the attention weights of the last query over all that is in the cache, mean over all query heads
 *   2. the cache_size tokens of largest weight stay, the same for every head (ties: the lower position)
 * No sums over time, no pooling, and nothing is protected: neither the first tokens nor the newest.
 *
 * mode=stepwise is the paper and its code.  Their prompt goes through in one call, so that its last
 * token alone decides about all of it; the same happens here after a shared prefill, and at the end of a
 * question that runs as a block.  prefill: own decides after every token from the first on, as the
 * paper describes it: another set, and another result.
 * mode=oneshot is kvpress: one cut when the context is complete, none while decoding; its press also
 * keeps the newest token (keep_newest=true).
 *
 * Budget B: cache_size = B - 1, since a step attends to cache_size + 1 tokens.
 */
#include "parts/live_scores.h"

#include <string.h>

enum { TOVA_STEPWISE = 0, TOVA_ONESHOT = 1 };

struct tova_opts {
    int32_t mode, cache_size;
    bool keep_newest;
    int32_t
        table; /* not an option: weights of the newest query, summed over the heads of a group */
};

static const char *const tova_modes[] = { "stepwise", "oneshot", NULL };

static const struct kvl_opt tova_options[] = {
    KVL_ROW_ENUM(
        tova_opts, mode, "stepwise", tova_modes,
        "stepwise: after every step (paper); oneshot: when the context is complete (kvpress)"),
    KVL_ROW_INT(tova_opts, cache_size, "auto", 1, 1 << 30,
                "tokens that stay after a step, the paper's number of states (code: 512); auto = "
                "budget - 1"),
    KVL_ROW_BOOL(tova_opts, keep_newest, "false",
                 "the newest token stays whatever its weight (paper: false; kvpress: true)"),
    { 0 },
};

static int32_t tova_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct tova_opts *o = opts;
    (void)shape;
    return o->cache_size == KVL_AUTO ? 2 : 1;
}

static int tova_plan(struct kvl_plan *plan)
{
    struct tova_opts *o = plan->opts;
    if (o->cache_size == KVL_AUTO) {
        KVL_TRY(kvl_plan_needs_budget(plan));
        o->cache_size = plan->budget_tok - 1;
    }
    if (plan->own_prefill && o->mode == TOVA_ONESHOT)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "mode=oneshot cuts a finished context; give prefill: shared");
    if (o->mode == TOVA_STEPWISE)
        KVL_TRY(
            kvl_plan_table(plan, &o->table, .unit = KVL_UNIT_LIVE, .unit_tok = 1, .row_elems = 1));
    return plan->own_prefill ? KVL_OK : kvl_plan_observe(plan, KVL_OBS_WINDOW, 1);
}

/* The context, cut by its last query. */
static int tova_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct tova_opts *o = ctx->opts;
    int32_t n = scores->n_tok, n_heads = ctx->shape->n_heads;
    float *probs, *mean = scores->score;
    scores->keep_tok = o->cache_size;
    scores->protect_last = o->keep_newest;
    if (n <= scores->keep_tok) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_heads * (size_t)n, &probs));
    KVL_TRY(kvl_obs_window_probs(ctx, layer, 0, probs, n));
    KVL_TRY(kvl_layer_scores(ctx, probs, n_heads, n, KVL_REDUCE_MEAN, mean));
    for (int32_t h = 1; h < ctx->shape->n_kv_heads; h++)
        memcpy(mean + (size_t)h * (size_t)n, mean, (size_t)n * sizeof *mean);
    return KVL_OK;
}

/* Weights of the newest query in place of those of the one before. */
static int tova_observe(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const float *const *probs, const int32_t *n, const float *lse)
{
    const struct tova_opts *o = ctx->opts;
    static const float forget = 0.0f;
    (void)lse;
    if (o->mode == TOVA_ONESHOT) return KVL_OK;
    return kvl_live_add(ctx, o->table, step->layer, false, probs, n, &forget);
}

/* TOVACache.reduce(): after every step, by the mean over all heads: all lanes of a layer hold the same positions. */
static int tova_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    const struct tova_opts *o = ctx->opts;
    int32_t n, newest = o->keep_newest, n_lanes = ctx->shape->n_kv_heads;
    const int32_t *live;
    float *lane, *mean;
    if (step->replay || o->mode == TOVA_ONESHOT) return KVL_OK;
    KVL_TRY(kvl_live(ctx, step->layer, 0, &live, &n));
    if (n <= o->cache_size) return KVL_OK;
    KVL_TRY(kvl_live_scores(ctx, o->table, step->layer, 1, n, KVL_REDUCE_SUM, &lane));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &mean));
    KVL_TRY(kvl_layer_scores(ctx, lane, n_lanes, n, KVL_REDUCE_MEAN, mean));
    return kvl_keep_best(ctx, step, keep, KVL_SCOPE_LAYER, mean, n, o->cache_size - newest, newest);
}

static const struct kvl_policy tova = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "tova",
    .title = "TOVA",
    .paper = "Oren et al., EMNLP 2024, arXiv 2401.06104",
    .help = "drops what the newest query attends to least, after every step",
    .follows =
        "Paper and official code: mean weight of the last query over all query heads, one set per "
        "layer, nothing protected. mode=oneshot,keep_newest=true is kvpress; prefill=own goes "
        "token by token from the first on, as the paper describes it.",
    .deviations =
        "32-bit floats. After a shared prefill the last token of the context decides about all of "
        "it, as in the code; with prefill=own every token does.",
    .cost =
        "Per step and layer H additions of cache_size + 1 weights and a top-k of them. Once one "
        "query over n keys and a top-k of n. Memory: a float per live token and kv head; "
        "mode=oneshot: none.",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_ASYNC,
    .prefill = KVL_PREFILL_EITHER,
    .opts = tova_options,
    .opts_size = sizeof(struct tova_opts),
    .min_budget = tova_min_budget,
    .plan = tova_plan,
    .score = tova_score,
    .observe = tova_observe,
    .evict = tova_evict,
};

KVL_POLICY_EXPORT(tova)
