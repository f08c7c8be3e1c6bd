/* snapkv - keeps the part of the context that the last W queries look at.
 *
 * Li et al.: SnapKV: LLM Knows What You are Looking for Before Generation, NeurIPS 2024 (arXiv
 * 2404.14469), section 4 and Listing 1.  When the context is complete, per layer and kv head:
 *   1. the probability that the last W queries put on every position, softmax over all keys, causal
 *      inside the W x W corner, summed over the queries
 *   2. the W columns of the window itself are dropped
 *   3. scores of a group's query heads are reduced to one, then pooled along the positions with a
 *      stride-1 kernel (maximum: edges padded with -inf; average: padded with zeros that count)
 *   4. the C - W best positions and the window stay (ties: the lower position)
 * Once per sequence; tokens that come later stay, so the cache grows by each of them, as published.
 *
 * Published behaviours differ:
 *   - official code and the defaults of KVCache-Factory and AdaKV repeat the keys and keep one set
 *     per *query* head, a cache group-size times larger than C says.  Here storage is per kv head:
 *     reduce=mean before pooling is KVCache-Factory's kv_head mode and AdaKV's gqa_support.
 *     With one query head per kv head (MHA) all of these are the same.
 *   - kvpress pools the query heads first and then takes their mean: pool_first=true, pool=avg,
 *     kernel=5, window=64
 *   - window and kernel: 32 and 7, maximum (the LongBench configuration); the class default of the
 *     code is 64, 5, average; the paper's needle test 16, 5
 * Budget B: C = B - 1 context tokens, window included, and the current token.  No eviction when the
 * context fits.  window=auto is 32, or half the budget where that is less.
 */
#include "parts/window_scores.h"

struct snapkv_opts {
    int32_t window, kernel, pool, reduce;
    bool pool_first;
};

enum { SNAPKV_POOL_MAX = 0, SNAPKV_POOL_AVG = 1 };

static const char *const snapkv_pools[] = { "max", "avg", NULL };
static const char *const snapkv_reduce_names[] = { "mean", "max", "sum", "first", NULL };
static const enum kvl_reduce snapkv_reduces[] = { KVL_REDUCE_MEAN, KVL_REDUCE_MAX, KVL_REDUCE_SUM,
                                                  KVL_REDUCE_FIRST };

static const struct kvl_opt snapkv_options[] = {
    KVL_ROW_INT(snapkv_opts, window, "auto", 1, 1024,
                "last queries that vote, and stay (paper: 32); auto = min(32, budget / 2)"),
    KVL_ROW_INT(snapkv_opts, kernel, "7", 1, 255,
                "width of the pooling in tokens, odd; 1 = none (paper: 7)"),
    KVL_ROW_ENUM(snapkv_opts, pool, "max", snapkv_pools,
                 "pooling of scores along the tokens (paper: max; kvpress: avg)"),
    KVL_ROW_ENUM(snapkv_opts, reduce, "mean", snapkv_reduce_names,
                 "scores of the query heads of a kv head (official: none, on repeated keys; "
                 "KVCache-Factory kv_head: mean)"),
    KVL_ROW_BOOL(snapkv_opts, pool_first, "false",
                 "pool each query head before the reduction (kvpress)"),
    { 0 },
};

static int32_t snapkv_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct snapkv_opts *o = opts;
    (void)shape;
    return o->window == KVL_AUTO ? 4 : o->window + 2;
}

static int snapkv_plan(struct kvl_plan *plan)
{
    struct snapkv_opts *o = plan->opts;
    if (o->kernel % 2 == 0)
        return kvl_fail(plan->err, KVL_EINVAL, "kernel=%d; give an odd number", o->kernel);
    KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->window == KVL_AUTO) o->window = KVL_MIN(32, plan->budget_tok / 2);
    return kvl_plan_observe(plan, KVL_OBS_WINDOW, o->window);
}

/* Listing 1, update_kv(): steps 1 to 3 give the scores; core keeps the best and the window (4). */
static int snapkv_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct snapkv_opts *o = ctx->opts;
    struct kvl_window_scores window = {
        .window = o->window,
        .kernel = o->kernel,
        .average = o->pool == SNAPKV_POOL_AVG,
        .pool_first = o->pool_first,
        .reduce = snapkv_reduces[o->reduce],
    };
    scores->keep_tok = ctx->budget_tok - 1;
    scores->protect_last = scores->n_summed = o->window;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    return kvl_window_scores(ctx, layer, &window, scores->score, scores->n_tok);
}

static const struct kvl_policy snapkv = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "snapkv",
    .title = "SnapKV",
    .paper = "Li et al., NeurIPS 2024, arXiv 2404.14469",
    .help = "keeps what the last queries of the context attend to, evicts the rest once",
    .follows =
        "The LongBench configuration of the paper: window 32, kernel 7, maximum. Scores are summed "
        "over the window, and a group's heads share a set by their mean, taken before pooling "
        "(KVCache-Factory's kv_head mode, AdaKV's gqa_support). The class defaults are "
        "window=64,kernel=5,pool=avg; kvpress is window=64,kernel=5,pool=avg,pool_first=true.",
    .deviations =
        "Storage is per kv head, where the official code keeps a set per query head on repeated "
        "keys, which multiplies the cache by the group size. The window shrinks with budgets below "
        "64. The observed queries may include the question, as the protocol says. 32-bit floats, "
        "where the official code has half floats with many ties.",
    .cost =
        "Once W queries over the n keys of the context for each of H heads, shared by all policies "
        "that observe the same window, and a top-k of n per kv head. Nothing while decoding; no "
        "memory after that.",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .opts = snapkv_options,
    .opts_size = sizeof(struct snapkv_opts),
    .min_budget = snapkv_min_budget,
    .plan = snapkv_plan,
    .score = snapkv_score,
};

KVL_POLICY_EXPORT(snapkv)
