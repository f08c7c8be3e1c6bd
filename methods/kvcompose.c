/* kvcompose - heads choose their own tokens, of which a layer has as many in every head, and layers share a budget.
 *
 * Akulov et al.: KVCompose: Efficient Structured KV Cache Compression with Composite Tokens, 2025 (arXiv 2509.05165).  When
 * the context is complete it is read a second time, behind itself (the engine: KVL_OBS_REREAD):
 *   1. a token's score of a query head is the largest weight that the second reading puts on it; of a kv head the mean
 *      over the group, and the mean over the layer's kv heads on top
 *   2. each kv head ranks its tokens; those of rank r of a layer's heads are one composite token, whose score is their mean
 *   3. of the composite tokens of all layers the best stay: a layer keeps as many ranks as it has among them.  The first
 *      layer has, rank by rank, the largest score of all layers
 * structured=false: step 2 is left out, and the tokens of all heads and layers compete.
 * Budget B: B - 1 tokens of the context as the mean of the layers (structured=false: of all lanes), and the current one;
 * tokens that come later stay.
 */
#include "parts/layer_state.h"
#include "parts/ranked.h"

enum { KVCOMPOSE_MEAN = 0, KVCOMPOSE_MAX };

struct kvcompose_opts {
    int32_t group, heads;
    bool structured, v_norm, mean;
    struct kvl_state_part
        count; /* not an option: int32_t [n_kv_heads], tokens that a layer's lanes keep */
};

static const char *const kvcompose_reduces[] = { "mean", "max", NULL };

static const struct kvl_opt kvcompose_options[] = {
    KVL_ROW_BOOL(kvcompose_opts, structured, "true",
                 "as many tokens in all heads of a layer (paper: true)"),
    KVL_ROW_ENUM(kvcompose_opts, group, "mean", kvcompose_reduces,
                 "what query heads of a group make of their scores (kvpress: mean)"),
    KVL_ROW_ENUM(kvcompose_opts, heads, "mean", kvcompose_reduces,
                 "what kv heads make of the scores of a rank (kvpress: mean)"),
    KVL_ROW_BOOL(kvcompose_opts, mean, "true",
                 "add the mean over the layer's kv heads to a score (kvpress: true)"),
    KVL_ROW_BOOL(kvcompose_opts, v_norm, "false",
                 "multiply a score by the length of its value (kvpress: false)"),
    { 0 },
};

static int32_t kvcompose_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    (void)opts;
    return 2;
}

static int kvcompose_plan(struct kvl_plan *plan)
{
    struct kvcompose_opts *o = plan->opts;
    KVL_TRY(kvl_plan_needs_budget(plan));
    kvl_plan_state(plan, (size_t)plan->shape->n_kv_heads * sizeof(int32_t), &o->count);
    return kvl_plan_observe(plan, KVL_OBS_REREAD, 0);
}

static enum kvl_reduce kvcompose_reduce(int32_t how)
{
    return how == KVCOMPOSE_MAX ? KVL_REDUCE_MAX : KVL_REDUCE_MEAN;
}

/* Scratch of a hook: a layer's scores by rank, and rows [n] of it. */
struct kvcompose_room {
    float *score, *ranked, *mean, *value, *length;
    int32_t *order;
};

static int kvcompose_room(const struct kvl_pctx *ctx, int32_t n, struct kvcompose_room *r)
{
    size_t row = (size_t)n, all = (size_t)ctx->shape->n_kv_heads * row;
    KVL_TRY(kvl_scratch_get(ctx, all, &r->score));
    KVL_TRY(kvl_scratch_get(ctx, all, &r->ranked));
    KVL_TRY(kvl_scratch_get(ctx, all, &r->order));
    KVL_TRY(kvl_scratch_get(ctx, row, &r->mean));
    KVL_TRY(kvl_scratch_get(ctx, row, &r->length));
    return kvl_scratch_get(ctx, row * (size_t)ctx->shape->head_dim, &r->value);
}

/* enhance_scores(): lengths of values. */
static int kvcompose_lengths(const struct kvl_pctx *ctx, const struct kvcompose_room *r,
                             int32_t layer, int32_t n, float *score)
{
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++, score += n) {
        KVL_TRY(kvl_read_value_span(ctx, layer, h, 0, n, r->value));
        KVL_TRY(ctx->ops->row_norms(&(struct kvl_row_norms_args){
            .y = r->length, .x = r->value, .n = n, .dim = ctx->shape->head_dim, .norm = 2 }));
        for (int32_t i = 0; i < n; i++) score[i] *= r->length[i];
    }
    return KVL_OK;
}

/* compute_scores(), step 1: score [n_kv_heads][n]. */
static int kvcompose_scores(const struct kvl_pctx *ctx, const struct kvcompose_room *r,
                            int32_t layer, int32_t n, float *score)
{
    const struct kvcompose_opts *o = ctx->opts;
    const float *peak;
    int32_t n_tok, n_kv = ctx->shape->n_kv_heads;
    KVL_TRY(kvl_obs_replay(ctx, layer, KVL_OBS_REREAD, 0, &peak, &n_tok));
    if (n_tok != n)
        return kvl_fail(ctx->err, KVL_EPOLICY, "scores of %d tokens, want %d", n_tok, n);
    KVL_TRY(kvl_group_scores(ctx, peak, n, kvcompose_reduce(o->group), score));
    if (o->v_norm) KVL_TRY(kvcompose_lengths(ctx, r, layer, n, score));
    if (!o->mean) return KVL_OK;
    KVL_TRY(kvl_layer_scores(ctx, score, n_kv, n, KVL_REDUCE_MEAN, r->mean));
    for (int32_t i = 0; i < n_kv * n; i++) score[i] += r->mean[i % n];
    return KVL_OK;
}

/* compute_composite_scores(), step 2: of a layer, by rank: out [n]. */
static int kvcompose_composite(const struct kvl_pctx *ctx, const struct kvcompose_room *r,
                               int32_t layer, int32_t n, float *out)
{
    const struct kvcompose_opts *o = ctx->opts;
    int32_t n_kv = ctx->shape->n_kv_heads;
    KVL_TRY(kvcompose_scores(ctx, r, layer, n, r->score));
    KVL_TRY(kvl_topk_ranked(ctx, r->score, n_kv, n, n, r->order));
    for (int32_t i = 0; i < n_kv * n; i++) r->ranked[i] = r->score[i / n * n + r->order[i]];
    return kvl_layer_scores(ctx, r->ranked, n_kv, n, kvcompose_reduce(o->heads), out);
}

/* Scores that compete, all [n_rows][n]: composite tokens of the layers, or those of the heads. */
static int kvcompose_gather(const struct kvl_pctx *ctx, int32_t n, int32_t rows, float *all)
{
    const struct kvcompose_opts *o = ctx->opts;
    int32_t n_layers = ctx->shape->n_layers;
    struct kvcompose_room r;
    KVL_TRY(kvcompose_room(ctx, n, &r));
    for (int32_t l = 0; l < n_layers; l++) {
        float *to = all + (size_t)l * (size_t)rows * (size_t)n;
        KVL_TRY(o->structured ? kvcompose_composite(ctx, &r, l, n, to)
                              : kvcompose_scores(ctx, &r, l, n, to));
    }
    for (int32_t i = n; o->structured && i < n_layers * n; i++)
        all[i % n] = KVL_MAX(all[i % n], all[i]);
    return KVL_OK;
}

/* compute_important_per_layer(), step 3: with the first layer all of them. */
static int kvcompose_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct kvcompose_opts *o = ctx->opts;
    int32_t n = ctx->context_tok, n_kv = ctx->shape->n_kv_heads, rows = o->structured ? 1 : n_kv;
    int32_t n_rows = ctx->shape->n_layers * rows, *index;
    int64_t k = (int64_t)n_rows * (ctx->budget_tok - 1);
    float *all;
    if (n < ctx->budget_tok || layer > 0) return KVL_OK;
    if ((int64_t)n_rows * n > INT32_MAX)
        return kvl_fail(ctx->err, KVL_EINVAL, "%d rows of %d tokens compete: too many", n_rows, n);
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_rows * (size_t)n, &all));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)k, &index));
    KVL_TRY(kvcompose_gather(ctx, n, rows, all));
    KVL_TRY(kvl_topk(ctx, all, 1, n_rows * n, (int32_t)k, index));
    for (int64_t i = 0; i < k; i++) {
        int32_t row = index[i] / n;
        ((int32_t *)kvl_state_of(ctx, &o->count, row / rows))[row % rows]++;
    }
    return KVL_OK;
}

/* prepare_important_masks(): the best of every kv head; one at least where a layer has none. */
static int kvcompose_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct kvcompose_opts *o = ctx->opts;
    const int32_t *count = kvl_state_of(ctx, &o->count, layer);
    struct kvcompose_room r;
    scores->keep_tok = ctx->budget_tok - 1;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    KVL_TRY(kvcompose_room(ctx, scores->n_tok, &r));
    KVL_TRY(kvcompose_scores(ctx, &r, layer, scores->n_tok, scores->score));
    scores->keep_tok = KVL_MAX(1, count[0]);
    for (int32_t h = 0; !o->structured && h < ctx->shape->n_kv_heads; h++)
        scores->keep_lane[h] = count[h];
    return KVL_OK;
}

static const struct kvl_policy kvcompose = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "kvcompose",
    .title = "KVCompose",
    .paper = "Akulov et al., 2025, arXiv 2509.05165",
    .help = "heads keep what a second reading looks up, layers share the budget rank by rank",
    .follows =
        "kvpress' KVComposePress: a second reading behind the first, the largest weight of each "
        "query head, mean over the group, the layer's mean on top, composite tokens by rank, the "
        "first layer with the largest scores, as many tokens in all heads of a layer. "
        "structured=false lets heads keep different numbers.",
    .deviations =
        "Left out: prompts in place of the second reading, the mean over its queries in place of "
        "the largest weight, and a least number of tokens per layer above one.",
    .cost =
        "Once a second prefill over the full cache, and n more weights for each of n queries and "
        "H heads, shared by all budgets and counted apart (replay_ns); a sort of n per kv head and "
        "a top-k over all layers. Nothing while decoding; no memory after that.",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_RAGGED,
    .opts = kvcompose_options,
    .opts_size = sizeof(struct kvcompose_opts),
    .min_budget = kvcompose_min_budget,
    .plan = kvcompose_plan,
    .prefilled = kvcompose_prefilled,
    .score = kvcompose_score,
};

KVL_POLICY_EXPORT(kvcompose)
