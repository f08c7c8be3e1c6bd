/* Thresholds on another policy's scores. */
#include "thresholds.h"

#include "asked_lists.h"
#include "ranked.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int32_t kvl_threshold_min_budget(int32_t window)
{
    return window == KVL_AUTO ? 8 : window + 2;
}

int kvl_threshold_plan(struct kvl_plan *plan, const char *text, int32_t horizon, int32_t *window,
                       double *limit)
{
    char *end;
    *limit = strtod(text, &end);
    bool given = end != text && *end == '\0' && isfinite(*limit);
    if (!given && strcmp(text, "budget") != 0)
        return kvl_fail(plan->err, KVL_EINVAL, "threshold=%s; give a number or budget", text);
    if (!given) *limit = NAN;
    if (!given || *window == KVL_AUTO) KVL_TRY(kvl_plan_needs_budget(plan));
    if (given)
        plan->inner_budget_tok = KVL_MAX(2, plan->context_tok); /* it asks, and drops nothing */
    else
        plan->inner_budget_tok = plan->budget_tok - horizon;
    if (*window == KVL_AUTO) *window = KVL_MIN(128, (plan->budget_tok - (given ? 0 : horizon)) / 4);
    return KVL_OK;
}

/* The score of rank keep among all that are judged: those below it go. */
static int threshold_rank(const struct kvl_pctx *ctx, const struct kvl_scores *sc, int32_t open,
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
static void threshold_lanes(struct kvl_scores *sc, int32_t open, int32_t n_kv, float limit,
                            int32_t keep)
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

int kvl_threshold_score(const struct kvl_pctx *ctx, int32_t layer, int32_t window, double given,
                        int32_t budget, struct kvl_scores *scores, float *used)
{
    int32_t n = scores->n_tok, open = n - window, n_kv = ctx->shape->n_kv_heads;
    int32_t keep = n_kv * KVL_MAX(0, budget - 1 - window);
    bool by_budget = isnan(given), evicts;
    float limit = by_budget ? -INFINITY : (float)given;
    *used = limit;
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
    scores->protect_last = window;
    if (by_budget) KVL_TRY(threshold_rank(ctx, scores, open, keep, &limit));
    threshold_lanes(scores, open, n_kv, limit, by_budget ? keep : n_kv * open);
    *used = limit;
    return KVL_OK;
}
