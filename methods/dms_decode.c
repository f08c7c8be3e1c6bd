/* dms_decode - what scores below a threshold goes once it has left a window of the latest tokens, in the answer too.
 *
 * Lancucki et al.: Inference-Time Hyper-Scaling with KV Cache Compression (DMS), 2025 (arXiv 2506.05345), with another
 * policy's scores in place of trained ones, as kvpress' DMSPress(decoding=True); with kvzap's scores the published
 * method of KVzap (arXiv 2601.07891).
 *   1. the context as dms: of the tokens before its last `window` those whose score is below the threshold go
 *   2. every token behind that is judged once, when it has left the window, by its own score
 * threshold=budget is, layer by layer, the score below which as many tokens of the context lie as a budget of B - horizon
 * wants to go; tokens of the answer are judged by it too.
 * Budget B: B - horizon - 1 tokens of the context, as the mean of a layer's heads, and the current one; a lane then grows
 * by the tokens that are not below.  With `threshold` given it counts for nothing.
 */
#include "parts/layer_state.h"
#include "parts/thresholds.h"

#include <string.h>

struct dms_decode_opts {
    char threshold[KVL_OPT_STR_SIZE];
    int32_t window, horizon;
    double limit;                /* not an option; NaN = by the budget */
    struct kvl_state_part judge; /* struct dms_decode_judge */
};

/* Of a layer: the limit, and the first position that has not been judged. */
struct dms_decode_judge {
    float limit;
    int32_t next;
};

static const struct kvl_opt dms_decode_options[] = {
    KVL_ROW_STR(
        dms_decode_opts, threshold, "budget",
        "score below which a token goes (kvpress: by scorer); budget = what the budget comes to"),
    KVL_ROW_INT(dms_decode_opts, window, "auto", 1, 65536,
                "latest tokens that stay (paper: 128); auto = min(128, budget / 4)"),
    KVL_ROW_INT(dms_decode_opts, horizon, "32", 0, 65536,
                "threshold=budget: tokens of the answer that the budget has room for"),
    { 0 },
};

/* What of the budget is for later. */
static int32_t dms_decode_later(const struct dms_decode_opts *o)
{
    return strcmp(o->threshold, "budget") == 0 ? o->horizon : 0;
}

static int32_t dms_decode_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct dms_decode_opts *o = opts;
    (void)shape;
    return kvl_threshold_min_budget(o->window) + dms_decode_later(o);
}

static int dms_decode_plan(struct kvl_plan *plan)
{
    struct dms_decode_opts *o = plan->opts;
    kvl_plan_state(plan, sizeof(struct dms_decode_judge), &o->judge);
    return kvl_threshold_plan(plan, o->threshold, dms_decode_later(o), &o->window, &o->limit);
}

/* Step 1. */
static int dms_decode_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct dms_decode_opts *o = ctx->opts;
    struct dms_decode_judge *j = kvl_state_of(ctx, &o->judge, layer);
    j->next = KVL_MAX(0, scores->n_tok - o->window);
    return kvl_threshold_score(ctx, layer, o->window, o->limit,
                               ctx->budget_tok - dms_decode_later(o), scores, &j->limit);
}

/* What a lane drops of n tokens from position `first` on; one that drops none is not named, and keeps all. */
static int dms_decode_lane(const struct kvl_pctx *ctx, const struct kvl_step *step,
                           struct kvl_keep *keep, int32_t kv_head, int32_t first, int32_t n,
                           const float *score, float limit)
{
    const int32_t *live;
    int32_t n_live, n_kept = 0, *kept;
    bool drops = false;
    for (int32_t i = 0; i < n; i++) drops |= score[i] < limit;
    if (!drops) return KVL_OK;
    KVL_TRY(kvl_live(ctx, step->layer, kv_head, &live, &n_live));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_live, &kept));
    for (int32_t i = 0; i < n_live; i++) {
        int32_t at = live[i] - first;
        if (at < 0 || at >= n || !(score[at] < limit)) kept[n_kept++] = live[i];
    }
    return kvl_keep_tokens(keep, kv_head, kept, n_kept);
}

/* DMSPress.forward_hook(), step 2.  What the inner policy protects are ends of a context. */
static int dms_decode_evict(struct kvl_pctx *ctx, const struct kvl_step *step,
                            struct kvl_keep *keep)
{
    const struct dms_decode_opts *o = ctx->opts;
    struct dms_decode_judge *j = kvl_state_of(ctx, &o->judge, step->layer);
    int32_t first = j->next, n = step->pos + 1 - o->window - first, *pos;
    struct kvl_scores scores;
    if (step->replay || n < 1) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_kv_heads * (size_t)n, &pos));
    for (int32_t i = 0; i < ctx->shape->n_kv_heads * n; i++) pos[i] = first + i % n;
    KVL_TRY(kvl_inner_score_tokens(ctx, step->layer, &(struct kvl_asked){ .pos = pos, .n = n },
                                   &scores));
    j->next += n;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(dms_decode_lane(ctx, step, keep, h, first, n, scores.score + (size_t)h * (size_t)n,
                                j->limit));
    return KVL_OK;
}

static const struct kvl_policy dms_decode = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "dms_decode",
    .title = "DMS thresholds while decoding",
    .paper = "Lancucki et al., 2025, arXiv 2506.05345",
    .help = "drops what scores below a threshold behind a window, of the answer too",
    .follows =
        "kvpress' DMSPress with decoding=True: the context as dms, then every token by its own "
        "score when it has left the window. Over kvzap it is KVzap's own rule (threshold -4 to -3, "
        "window 128). Any policy that scores by keys and values alone, or by hidden states, may be "
        "wrapped.",
    .deviations =
        "A scorer that compares tokens is asked about those that leave the window together, where "
        "kvpress asks about those that come together. threshold=budget, the default, is that of "
        "dms for the budget less horizon tokens. Left out: the trained evictors of the paper and "
        "its sparse prefill, as in kvpress.",
    .cost = "Per step and layer that of the inner policy for one token. Once that of the inner "
            "policy, and a sort of the K n scores of a layer. No memory after that, but what the "
            "inner policy keeps of its scores.",
    .inner = "knorm",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_RAGGED | KVL_CAP_ASKS,
    .opts = dms_decode_options,
    .opts_size = sizeof(struct dms_decode_opts),
    .min_budget = dms_decode_min_budget,
    .plan = dms_decode_plan,
    .score = dms_decode_score,
    .evict = dms_decode_evict,
};

KVL_POLICY_EXPORT(dms_decode)
