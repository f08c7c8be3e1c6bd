/* lagkv - keeps the tokens that vary most against the block after them.
 *
 * Liang et al.: LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important, 2025
 * (arXiv 2504.04704), section 3.  When the context is complete, per layer and kv head: the tokens behind
 * the first n_sink are cut in blocks of lag_size.  Of a block, for keys and values apart:
 *   1. every channel is put between the minimum and the maximum that it has in the next block
 *   2. a token's deviation over the channels (divided by d - 1), softmax over the block
 * The mean of the two is the token's score; by default only its rank within the block counts, rank /
 * lag_size in [0, 1), so that every block loses the same share.  cross_scoring=true compares blocks by the
 * scores themselves.  The sink, the last whole block and what is behind it have no next block and score 1.
 * A context shorter than n_sink + 2 lag_size keeps its latest tokens.  The best B - 1 stay; equal scores
 * are the rule across blocks, and go to the lower position.
 *
 * Budget B: B - 1 tokens of the context and the current one.  What scores 1 is up to 2 lag_size tokens,
 * so lag_size=auto is 128, or a quarter of the budget where that is less.
 * Deviations: a channel that is the same throughout the next block counts 0 (kvpress divides by zero).
 * The paper compresses while decoding too, block by block; here, as in kvpress, once.
 * Cost: reads keys and values once, about 6 d operations for each, lag_size comparisons for its rank; a
 * top-k of n per kv head.  Nothing while decoding.
 */
#include "kvl/policy.h"

struct lagkv_opts {
    int32_t n_sink, lag_size;
    bool cross_scoring;
};

enum { LAGKV_SIZE = 128 };

static const struct kvl_opt lagkv_options[] = {
    KVL_ROW_INT(lagkv_opts, n_sink, "4", 0, 65536,
                "first tokens that stay (paper: 16; kvpress: 4)"),
    KVL_ROW_INT(lagkv_opts, lag_size, "auto", 1, 65536,
                "tokens of a block (paper, kvpress: 128); auto = min(128, budget / 4)"),
    KVL_ROW_BOOL(lagkv_opts, cross_scoring, "false",
                 "compare blocks by scores, not by ranks within them (kvpress: false)"),
    { 0 },
};

static int32_t lagkv_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct lagkv_opts *o = opts;
    (void)shape;
    return o->n_sink + 4;
}

static int lagkv_plan(struct kvl_plan *plan)
{
    struct lagkv_opts *o = plan->opts;
    KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->lag_size == KVL_AUTO) o->lag_size = KVL_MIN(LAGKV_SIZE, plan->budget_tok / 4);
    return KVL_OK;
}

/* Steps 1 and 2, _get_states_score(): scores of n_blocks blocks that begin at x, into y. */
static int lagkv_spread(const struct kvl_pctx *ctx, const float *x, int32_t n_blocks, float *y)
{
    const struct lagkv_opts *o = ctx->opts;
    return ctx->ops->lag_spread(&(struct kvl_lag_spread_args){
        .y = y, .x = x, .n_blocks = n_blocks, .lag = o->lag_size, .dim = ctx->shape->head_dim });
}

/* Scores of a block to ranks, the lower position first among equals: out may not be score. */
static void lagkv_ranks(const float *score, int32_t lag, float *out)
{
    for (int32_t i = 0; i < lag; i++) {
        int32_t rank = 0;
        for (int32_t j = 0; j < lag; j++)
            rank += score[j] < score[i] || (score[j] == score[i] && j < i);
        out[i] = (float)rank / (float)lag;
    }
}

/* LagKVPress.score().  room: for the keys or values of n tokens and 2 n floats behind them. */
static int lagkv_lane(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, float *score,
                      float *room)
{
    const struct lagkv_opts *o = ctx->opts;
    const int32_t *pos;
    int32_t n, lag = o->lag_size;
    KVL_TRY(kvl_live(ctx, layer, kv_head, &pos, &n));
    int32_t n_blocks = (n - o->n_sink) / lag - 1, n_scored = n_blocks * lag;
    float *of_keys = room + (size_t)n * (size_t)ctx->shape->head_dim, *of_values = of_keys + n;
    int32_t n_read = n_scored + lag;
    KVL_TRY(kvl_read_keys(ctx, layer, kv_head, pos + o->n_sink, n_read, false, room));
    KVL_TRY(lagkv_spread(ctx, room, n_blocks, of_keys));
    KVL_TRY(kvl_read_values(ctx, layer, kv_head, pos + o->n_sink, n_read, room));
    KVL_TRY(lagkv_spread(ctx, room, n_blocks, of_values));
    for (int32_t i = 0; i < n; i++) score[i] = 1;
    for (int32_t i = 0; i < n_scored; i++) of_keys[i] = (of_keys[i] + of_values[i]) / 2;
    for (int32_t i = 0; i < n_scored; i += o->cross_scoring ? 1 : lag) {
        if (o->cross_scoring)
            score[o->n_sink + i] = of_keys[i];
        else
            lagkv_ranks(of_keys + i, lag, score + o->n_sink + i);
    }
    return KVL_OK;
}

static int lagkv_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct lagkv_opts *o = ctx->opts;
    size_t n = (size_t)scores->n_tok;
    bool recency = scores->n_tok - o->n_sink < 2 * o->lag_size;
    float *room;
    scores->keep_tok = ctx->budget_tok - 1;
    scores->protect_first = o->n_sink;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, n * ((size_t)ctx->shape->head_dim + 2), &room));
    for (size_t h = 0; h < (size_t)ctx->shape->n_kv_heads; h++) {
        float *score = scores->score + h * n;
        for (size_t i = 0; recency && i < n; i++) score[i] = (float)i / (float)n;
        if (!recency) KVL_TRY(lagkv_lane(ctx, layer, (int32_t)h, score, room));
    }
    return KVL_OK;
}

static const struct kvl_policy lagkv = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "lagkv",
    .title = "LagKV",
    .paper = "Liang et al., 2025, arXiv 2504.04704",
    .help = "keeps the tokens that vary most against the block after them, evicts the rest once",
    .follows =
        "kvpress: keys and values between the minimum and maximum of the next block, deviation "
        "over channels, softmax in the block, mean of both, ranks within the block; sink 4, blocks "
        "of 128, sink, last block and rest kept first. cross_scoring=true compares scores across "
        "blocks. The paper's sink of 16 is an option.",
    .deviations =
        "A channel without spread in the next block counts 0, where kvpress divides by zero. "
        "lag_size shrinks with budgets below 512. Once, not again as the text grows. Of two equal "
        "tokens of a block the later ranks higher, as the sort that it follows has it.",
    .cost =
        "Once, when the context is complete, keys and values are read, lag_size comparisons for "
        "each of n tokens, a top-k of n per kv head. Nothing while decoding; no memory after that.",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .opts = lagkv_options,
    .opts_size = sizeof(struct lagkv_opts),
    .min_budget = lagkv_min_budget,
    .plan = lagkv_plan,
    .score = lagkv_score,
};

KVL_POLICY_EXPORT(lagkv)
