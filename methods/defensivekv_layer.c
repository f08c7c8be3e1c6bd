/* defensivekv_layer - keeps what some query of the window may need, with budgets shared over all layers.
 *
 * Feng et al.: Taming the Fragility of KV Cache Eviction in LLM Inference (DefensiveKV), ICLR 2026, with the authors'
 * kvpress fork.  Of the last `window` queries of the context, per layer:
 *   1. weights over the tokens before the window, pooled (average of `kernel`) and brought back to their sum, for every
 *      query and query head; of a kv head the largest over its queries and heads: the worst case, and not the mean
 *   2. raised to the mean of the lane where they are below it
 *   3. times |W_o v|_1 of the token, divided by its sum over the kv heads (CriticalKV)
 *   4. tokens that carry 90 % of the mean attention, less what falls on the last tokens before the window, score as the
 *      best does
 *   5. the best of all kv heads of all layers stay
 * and the window stays.
 * Budget B: B - 1 tokens of the context, the window among them, and the current one, as the mean of all lanes.
 */
#include "parts/defensive.h"
#include "parts/layer_state.h"

struct defensivekv_layer_opts {
    int32_t window, kernel;
    double mass;
    struct kvl_state_part kept; /* not an option: int32_t [n_kv_heads], tokens that a lane keeps */
};

static const struct kvl_opt defensivekv_layer_options[] = {
    KVL_ROW_INT(defensivekv_layer_opts, window, "auto", 1, 1024,
                "last queries that vote, and stay (official: 32); auto = min(32, budget / 2)"),
    KVL_ROW_INT(defensivekv_layer_opts, kernel, "5", 1, 255,
                "width of the pooling in tokens, odd; 1 = none (official: 5)"),
    KVL_ROW_FLOAT(defensivekv_layer_opts, mass, "0.9", 0, 1,
                  "part of the mean attention whose tokens go first (official: 0.9)"),
    { 0 },
};

static int32_t defensivekv_layer_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct defensivekv_layer_opts *o = opts;
    (void)shape;
    return o->window == KVL_AUTO ? 4 : o->window + 2;
}

static int defensivekv_layer_plan(struct kvl_plan *plan)
{
    struct defensivekv_layer_opts *o = plan->opts;
    if (o->kernel % 2 == 0)
        return kvl_fail(plan->err, KVL_EINVAL, "kernel=%d; give an odd number", o->kernel);
    KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->window == KVL_AUTO) o->window = KVL_MIN(32, plan->budget_tok / 2);
    kvl_plan_state(plan, (size_t)plan->shape->n_kv_heads * sizeof(int32_t), &o->kept);
    return kvl_plan_observe(plan, KVL_OBS_WINDOW, o->window);
}

/* EfficientDefensiveKVPress.score(), steps 1 to 4; a row has room for the context. */
static int defensivekv_layer_layer(const struct kvl_pctx *ctx, int32_t layer, int32_t n_tok,
                                   float *score)
{
    const struct defensivekv_layer_opts *o = ctx->opts;
    struct kvl_defensive d = { .window = o->window,
                               .kernel = o->kernel,
                               .mass = o->mass,
                               .most = KVL_MAX(0, ctx->budget_tok - 1 - o->window) };
    return kvl_defensive_scores(ctx, layer, &d, n_tok, score, (size_t)n_tok);
}

/* Step 5: how many of the best of all rows each has. */
static int defensivekv_layer_share(const struct kvl_pctx *ctx, const float *score, int32_t n_rows,
                                   int32_t n_tok, int32_t *count)
{
    const struct defensivekv_layer_opts *o = ctx->opts;
    int32_t n = n_tok - o->window;
    struct kvl_joint_share_args share = { .count = count,
                                          .x = score,
                                          .x_stride = (size_t)n_tok,
                                          .n_rows = n_rows,
                                          .n = n,
                                          .k = n_rows * (ctx->budget_tok - 1 - o->window) };
    int rc = ctx->ops->joint_share(&share);
    if (rc != KVL_ENUMERIC) return rc;
    return kvl_fail(ctx->err, KVL_EPOLICY, "a score is not a number (NaN)");
}

/* EfficientAdaGlobalScorerPress.compress(): before the first layer is cut, all of them are scored. */
static int defensivekv_layer_budgets(const struct kvl_pctx *ctx, int32_t n_tok)
{
    const struct defensivekv_layer_opts *o = ctx->opts;
    int32_t n_kv = ctx->shape->n_kv_heads, n_lanes = ctx->shape->n_layers * n_kv, *count;
    size_t rows = (size_t)n_kv * (size_t)n_tok;
    float *score;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_lanes, &count));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_layers * rows, &score));
    for (int32_t l = 0; l < ctx->shape->n_layers; l++)
        KVL_TRY(defensivekv_layer_layer(ctx, l, n_tok, score + (size_t)l * rows));
    KVL_TRY(defensivekv_layer_share(ctx, score, n_lanes, n_tok, count));
    for (int32_t i = 0; i < n_lanes; i++)
        ((int32_t *)kvl_state_of(ctx, &o->kept, i / n_kv))[i % n_kv] = count[i];
    return KVL_OK;
}

static int defensivekv_layer_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct defensivekv_layer_opts *o = ctx->opts;
    const int32_t *count = kvl_state_of(ctx, &o->kept, layer);
    scores->keep_tok = ctx->budget_tok - 1;
    scores->protect_last = o->window;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    if (layer == 0) KVL_TRY(defensivekv_layer_budgets(ctx, scores->n_tok));
    KVL_TRY(defensivekv_layer_layer(ctx, layer, scores->n_tok, scores->score));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        scores->keep_lane[h] = o->window + count[h];
    return KVL_OK;
}

static const struct kvl_policy defensivekv_layer = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "defensivekv_layer",
    .title = "Layer-DefensiveKV",
    .paper = "Feng et al., ICLR 2026",
    .help = "DefensiveKV with one budget for all layers and heads",
    .follows =
        "The authors' kvpress fork: window 32, average over 5, largest weight over the window and "
        "the group, raised to the mean, CriticalKV's norm as a part of its sum over the kv heads, "
        "tokens of 90 % of the mean attention first, budgets shared over all heads of all layers "
        "without a floor.",
    .deviations =
        "The window always stays, where the fork scores it as the best. It shrinks with budgets "
        "below 64. What the fork calls the window's mass, and takes from the 90 %, is that of the "
        "last tokens before the window; so here.",
    .cost =
        "Once, twice over, W queries over n keys for each of H heads, one by one, values, E d "
        "products for "
        "each of n values and H heads, E the width of the model, and a top-k of the n scores of "
        "all lanes. Nothing while decoding; no memory after that.",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_RAGGED,
    .opts = defensivekv_layer_options,
    .opts_size = sizeof(struct defensivekv_layer_opts),
    .min_budget = defensivekv_layer_min_budget,
    .plan = defensivekv_layer_plan,
    .score = defensivekv_layer_score,
};

KVL_POLICY_EXPORT(defensivekv_layer)
