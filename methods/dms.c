/* dms - what scores below a threshold goes once it has left a window of the latest tokens.
 *
 * Lancucki et al.: Inference-Time Hyper-Scaling with KV Cache Compression (DMS), 2025 (arXiv 2506.05345), with another
 * policy's scores in place of trained ones, as kvpress' DMSPress.
 * When the context is complete, of the tokens before its last `window` those whose score is below the threshold go.
 * threshold=budget is, layer by layer, the score below which as many tokens of the context lie as the budget wants to go.
 * Budget B: B - 1 tokens of the context, the window among them, as the mean of a layer's heads, and the current one; with
 * `threshold` given it counts for nothing.  Tokens that come later stay.
 */
#include "kvl/policy.h"
#include "parts/asked_lists.h"
#include "parts/ranked.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    const struct dms_opts *o = opts;
    (void)shape;
    return o->window == KVL_AUTO ? 8 : o->window + 2;
}

static int dms_plan(struct kvl_plan *plan)
{
    struct dms_opts *o = plan->opts;
    char *end;
    o->limit = strtod(o->threshold, &end);
    bool given = end != o->threshold && *end == '\0' && isfinite(o->limit);
    if (!given && strcmp(o->threshold, "budget") != 0)
        return kvl_fail(plan->err, KVL_EINVAL, "threshold=%s; give a number or budget",
                        o->threshold);
    if (!given) o->limit = NAN;
    if (!given || o->window == KVL_AUTO) KVL_TRY(kvl_plan_needs_budget(plan));
    if (given)
        plan->inner_budget_tok = KVL_MAX(2, plan->context_tok); /* it asks, and drops nothing */
    if (o->window == KVL_AUTO) o->window = KVL_MIN(128, plan->budget_tok / 4);
    return KVL_OK;
}

/* The score of rank keep among all that are judged: those below it go. */
static int dms_limit(const struct kvl_pctx *ctx, const struct kvl_scores *sc, int32_t open,
                     int32_t keep, float *limit)
{
    int32_t n_kv = ctx->shape->n_kv_heads, n = n_kv * open, *order;
    float *all;
    *limit = -INFINITY;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &all));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &order));
    for (int32_t i = 0; i < n; i++) all[i] = sc->score[i / open * sc->n_tok + i % open];
    KVL_TRY(kvl_topk_ranked(ctx, all, 1, n, n, order));
    if (keep < n) *limit = keep > 0 ? all[order[keep - 1]] : INFINITY;
    return KVL_OK;
}

/* What is above the limit stays, and of what is equal to it, lane after lane, as much as `keep` has room for. */
static void dms_lanes(struct kvl_scores *sc, int32_t open, int32_t n_kv, float limit, int32_t keep)
{
    int32_t window = sc->n_tok - open;
    for (int32_t h = 0; h < n_kv; h++) {
        const float *score = sc->score + (size_t)h * (size_t)sc->n_tok;
        sc->keep_lane[h] = window;
        for (int32_t i = 0; i < open; i++) sc->keep_lane[h] += score[i] > limit;
        keep -= sc->keep_lane[h] - window;
    }
    for (int32_t h = 0; h < n_kv; h++) {
        const float *score = sc->score + (size_t)h * (size_t)sc->n_tok;
        int32_t equal = 0;
        for (int32_t i = 0; i < open; i++) equal += !(score[i] < limit) && !(score[i] > limit);
        equal = KVL_MIN(equal, keep);
        sc->keep_lane[h] += equal;
        keep -= equal;
    }
}

/* DMSPress.forward_hook(). */
static int dms_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct dms_opts *o = ctx->opts;
    int32_t n = scores->n_tok, open = n - o->window, n_kv = ctx->shape->n_kv_heads;
    float limit = (float)o->limit;
    int32_t keep = n_kv * KVL_MAX(0, ctx->budget_tok - 1 - o->window);
    bool by_budget = isnan(o->limit), evicts;
    scores->keep_tok = n; /* lanes say how many */
    if (open <= 0) return KVL_OK;
    if (by_budget) {
        KVL_TRY(kvl_inner_even_score(ctx, layer, scores, &evicts));
    } else {
        struct kvl_asked asked = { .keep = n };
        struct kvl_scores all;
        KVL_TRY(kvl_ask_live(ctx, layer, 0, -1, &asked));
        asked.keep = 1;
        KVL_TRY(kvl_inner_score_tokens(ctx, layer, &asked, &all));
        memcpy(scores->score, all.score, (size_t)n_kv * (size_t)n * sizeof *all.score);
        scores->protect_first = all.protect_first;
        scores->protect_last = all.protect_last;
    }
    kvl_scores_protect(ctx, scores);
    scores->protect_first = 0;
    scores->protect_last = o->window;
    if (by_budget) KVL_TRY(dms_limit(ctx, scores, open, keep, &limit));
    dms_lanes(scores, open, n_kv, limit, by_budget ? keep : n_kv * open);
    return KVL_OK;
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
        "the trained evictors of the paper and its sparse prefill, as in kvpress, and kvpress' "
        "option to judge tokens that come later. Tokens that the inner policy protects stay.",
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
