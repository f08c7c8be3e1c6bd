/* finch - keeps what the question looks at, and moves it together.
 *
 * Corallo, Papotti: FINCH: Prompt-guided Key-Value Cache Compression, TACL 2024 (arXiv 2408.00167), Algorithm 1.  Of the
 * last `window` queries of the context, which should be a question about it, per layer and kv head:
 *   1. the weight that each puts on the tokens before the window, times the number of tokens that it sees (a late query
 *      spreads its weight over more)
 *   2. the mean over queries and the group's query heads; the best stay, and the window
 *   3. chunk > 0: of every chunk of so many tokens the same part, in place of the best of all
 *   4. keys are turned to the positions that their tokens have among those kept, and the text goes on behind them
 * Budget B: B - 1 tokens of the context, the window among them, and the current one; tokens that come later stay.
 */
#include "kvl/policy.h"

#include <math.h>
#include <string.h>

enum { FINCH_IN_CACHE = 0, FINCH_ORIGINAL };

struct finch_opts {
    int32_t window, chunk, positions;
    bool normalize;
};

static const char *const finch_positions[] = { "in_cache", "original", NULL };

static const struct kvl_opt finch_options[] = {
    KVL_ROW_INT(
        finch_opts, window, "auto", 1, 4096,
        "last queries, those of the question (paper: its length); auto = min(32, budget / 2)"),
    KVL_ROW_INT(finch_opts, chunk, "0", 0, 1 << 20,
                "tokens of a chunk, of which each keeps the same part (kvpress: none); 0 = one"),
    KVL_ROW_BOOL(finch_opts, normalize, "true",
                 "times the number of tokens that a query sees (paper: true)"),
    KVL_ROW_ENUM(finch_opts, positions, "in_cache", finch_positions,
                 "in_cache: ranks among the kept tokens (paper); original: as before"),
    { 0 },
};

static int32_t finch_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct finch_opts *o = opts;
    (void)shape;
    return o->window == KVL_AUTO ? 4 : o->window + 2;
}

static int finch_plan(struct kvl_plan *plan)
{
    struct finch_opts *o = plan->opts;
    KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->window == KVL_AUTO) o->window = KVL_MIN(32, plan->budget_tok / 2);
    plan->raw_keys = o->positions == FINCH_IN_CACHE;
    return kvl_plan_observe(plan, KVL_OBS_WINDOW, o->window);
}

/* FinchPress.score(), steps 1 and 2; the number that kvpress takes for the first query is n - window. */
static int finch_lanes(const struct kvl_pctx *ctx, int32_t layer, int32_t n_tok, float *score)
{
    const struct finch_opts *o = ctx->opts;
    int32_t n = n_tok - o->window, group = ctx->shape->group;
    float *probs;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_heads * (size_t)n_tok, &probs));
    memset(score, 0, (size_t)ctx->shape->n_kv_heads * (size_t)n_tok * sizeof *score);
    for (int32_t back = 0; back < o->window; back++) {
        float seen = o->normalize ? (float)(n_tok - 1 - back) : 1;
        float part = seen / (float)(o->window * group);
        KVL_TRY(kvl_obs_window_probs(ctx, layer, back, probs, n_tok));
        for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
            const float *row = probs + (size_t)h * (size_t)n_tok;
            float *to = score + (size_t)(h / group) * (size_t)n_tok;
            for (int32_t i = 0; i < n; i++) to[i] += part * row[i];
        }
    }
    return KVL_OK;
}

/* Step 3: of every chunk its best are raised above all others: of what lies before the window each keeps the same part,
 * rounded down, and what that leaves of the budget goes to the best of the rest. */
static int finch_chunks(const struct kvl_pctx *ctx, int32_t n_tok, int32_t keep, float *score)
{
    const struct finch_opts *o = ctx->opts;
    int32_t n = n_tok - o->window, *best;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)KVL_MIN(o->chunk, n), &best));
    for (int32_t at = 0; at < n; at += o->chunk) {
        int32_t len = KVL_MIN(o->chunk, n - at);
        int32_t k = (int32_t)((int64_t)len * (keep - o->window) / n);
        KVL_TRY(kvl_topk(ctx, score + at, 1, len, k, best));
        for (int32_t i = 0; i < k; i++) score[at + best[i]] = INFINITY;
    }
    return KVL_OK;
}

static int finch_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct finch_opts *o = ctx->opts;
    scores->keep_tok = ctx->budget_tok - 1;
    scores->protect_last = o->window;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    KVL_TRY(finch_lanes(ctx, layer, scores->n_tok, scores->score));
    for (int32_t h = 0; o->chunk > 0 && h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(finch_chunks(ctx, scores->n_tok, scores->keep_tok,
                             scores->score + (size_t)h * (size_t)scores->n_tok));
    return KVL_OK;
}

/* KeyRerotationPress.rerotate_keys(), step 4. */
static int finch_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct finch_opts *o = ctx->opts;
    (void)step;
    (void)q;
    return o->positions == FINCH_ORIGINAL ? KVL_OK : kvl_sel_positions(sel, KVL_POS_IN_CACHE, 0);
}

static const struct kvl_policy finch = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "finch",
    .title = "FINCH",
    .paper = "Corallo and Papotti, TACL 2024, arXiv 2408.00167",
    .help = "keeps what the question attends to, at positions that follow each other, evicts the "
            "rest once",
    .follows =
        "kvpress' FinchPress: weights of the window's queries times what they see, mean over "
        "window and group, no pooling, keys turned to their ranks. The window is the question "
        "where the protocol has one in the context.",
    .deviations =
        "The window has a given length, where the paper's is the question's. One cut of the whole "
        "context, where the paper compresses chunk by chunk what the next chunk then sees; chunk "
        "cuts chunks of one dense prefill, as kvpress does, to the budget in all.",
    .cost =
        "Once W queries over n keys for each of H heads, one by one, and a top-k of n per kv head. "
        "Per step and layer the live keys are rotated anew. Memory: keys before RoPE, half the "
        "cache again; with positions=original neither.",
    .version = 2,
    .caps = KVL_CAP_EVICTS | KVL_CAP_REPOSITIONS,
    .opts = finch_options,
    .opts_size = sizeof(struct finch_opts),
    .min_budget = finch_min_budget,
    .plan = finch_plan,
    .score = finch_score,
    .select = finch_select,
};

KVL_POLICY_EXPORT(finch)
