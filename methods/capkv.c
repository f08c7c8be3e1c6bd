/* capkv - keeps the tokens without which the span of the values would shrink most.
 *
 * CAPKV, 2026 (arXiv 2604.25975), with kvpress' CapPress.  Per layer and query head, over the context behind its first
 * n_sink tokens:
 *   1. the anchor: the mean of the context's queries, turned by the mean of the rotations of the next n_future positions
 *   2. w_i = exp(tau cos(k_i, anchor)), divided by the largest
 *   3. score_i = w_i v_i' A^-1 v_i with A = I + sum_j (w_j + 1e-6) v_j v_j': how much of the weighted span of the values
 *      depends on token i
 * then the mean over a group's query heads.  The first n_sink tokens stay, and the best of the others.
 * Budget B: B - 1 tokens of the context, the sinks among them, and the current one; tokens that come later stay.
 */
#include "parts/future_rotation.h"
#include "parts/row_leverage.h"

#include <math.h>
#include <string.h>

#define CAPKV_EPSILON 1e-6f

struct capkv_opts {
    double tau;
    int32_t n_future, n_sink;
};

static const struct kvl_opt capkv_options[] = {
    KVL_ROW_FLOAT(capkv_opts, tau, "5", 0, 1000, "sharpness of the weights (kvpress: 5)"),
    KVL_ROW_INT(capkv_opts, n_future, "512", 1, 65536,
                "positions behind the context that the anchor is turned to (kvpress: 512)"),
    KVL_ROW_INT(capkv_opts, n_sink, "4", 0, 65536,
                "first tokens that stay, and whose queries do not count (kvpress: 4)"),
    { 0 },
};

static int32_t capkv_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    return ((const struct capkv_opts *)opts)->n_sink + 2;
}

static int capkv_plan(struct kvl_plan *plan)
{
    const struct capkv_opts *o = plan->opts;
    KVL_TRY(kvl_plan_needs_budget(plan));
    return kvl_plan_observe(plan, KVL_OBS_MOMENTS, o->n_sink);
}

/* CapPress._query_anchor(), step 1: anchors of a layer [n_heads][dim]. */
static int capkv_anchors(const struct kvl_pctx *ctx, int32_t layer, float *anchor)
{
    const struct capkv_opts *o = ctx->opts;
    int32_t dim = ctx->shape->head_dim, n;
    const float *mean, *cov;
    float *r;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)dim * (size_t)dim, &r));
    KVL_TRY(kvl_future_rotation(ctx, layer, ctx->context_tok, o->n_future, r));
    KVL_TRY(kvl_obs_moments(ctx, layer, o->n_sink, &mean, &cov, &n));
    return kvl_product(ctx, mean, ctx->shape->n_heads, r, dim, dim, anchor);
}

struct capkv_room {
    float *anchor, *key, *value, *norm, *weight, *leverage;
};

/* CapPress._compute_query_relevance_weights(), step 2. */
static int capkv_weights(const struct kvl_pctx *ctx, const struct capkv_room *r,
                         const float *anchor, int32_t n)
{
    const struct capkv_opts *o = ctx->opts;
    int32_t dim = ctx->shape->head_dim;
    float length = 0, best = -INFINITY;
    for (int32_t c = 0; c < dim; c++) length += anchor[c] * anchor[c];
    length = fmaxf(sqrtf(length), 1e-12f);
    KVL_TRY(kvl_product(ctx, r->key, n, anchor, 1, dim, r->weight));
    for (int32_t i = 0; i < n; i++) {
        float cosine = r->weight[i] / length / fmaxf(r->norm[i], 1e-12f);
        r->weight[i] = (float)o->tau * fminf(1, fmaxf(-1, cosine));
        best = fmaxf(best, r->weight[i]);
    }
    for (int32_t i = 0; i < n; i++) r->weight[i] = expf(r->weight[i] - best);
    return KVL_OK;
}

/* CapPress.score(), step 3, of one kv head. */
static int capkv_lane(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                      const struct capkv_room *r, int32_t n, float *score)
{
    const struct capkv_opts *o = ctx->opts;
    int32_t group = ctx->shape->group, dim = ctx->shape->head_dim;
    KVL_TRY(kvl_read_key_span(ctx, layer, kv_head, o->n_sink, n, false, r->key));
    KVL_TRY(kvl_read_value_span(ctx, layer, kv_head, o->n_sink, n, r->value));
    KVL_TRY(ctx->ops->row_norms(
        &(struct kvl_row_norms_args){ .y = r->norm, .x = r->key, .n = n, .dim = dim, .norm = 2 }));
    memset(score, 0, (size_t)n * sizeof *score);
    for (int32_t g = 0; g < group; g++) {
        const float *anchor = r->anchor + (size_t)(kv_head * group + g) * (size_t)dim;
        KVL_TRY(capkv_weights(ctx, r, anchor, n));
        for (int32_t i = 0; i < n; i++) r->weight[i] += CAPKV_EPSILON;
        KVL_TRY(kvl_leverage(ctx, r->value, r->weight, n, dim, 1, r->leverage));
        for (int32_t i = 0; i < n; i++)
            score[i] += (r->weight[i] - CAPKV_EPSILON) * r->leverage[i] / (float)group;
    }
    return KVL_OK;
}

static int capkv_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct capkv_opts *o = ctx->opts;
    int32_t n = scores->n_tok - o->n_sink;
    size_t dim = (size_t)ctx->shape->head_dim, rows = (size_t)scores->n_tok;
    struct capkv_room r;
    scores->keep_tok = ctx->budget_tok - 1;
    scores->protect_first = o->n_sink;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_heads * dim, &r.anchor));
    KVL_TRY(kvl_scratch_get(ctx, rows * dim, &r.key));
    KVL_TRY(kvl_scratch_get(ctx, rows * dim, &r.value));
    KVL_TRY(kvl_scratch_get(ctx, rows, &r.norm));
    KVL_TRY(kvl_scratch_get(ctx, rows, &r.weight));
    KVL_TRY(kvl_scratch_get(ctx, rows, &r.leverage));
    KVL_TRY(capkv_anchors(ctx, layer, r.anchor));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(capkv_lane(ctx, layer, h, &r, n, scores->score + (size_t)h * rows + o->n_sink));
    return KVL_OK;
}

static const struct kvl_policy capkv = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "capkv",
    .title = "CAPKV",
    .paper = "CAPKV, 2026, arXiv 2604.25975",
    .help = "keeps the values that span most, weighted by expected attention, evicts the rest once",
    .follows =
        "kvpress' CapPress: keys and the anchor brought to length 1, weights divided by the "
        "largest, the values themselves for directions of the output, the anchor turned by the "
        "mean rotation of the next 512 positions, mean over the group, four sinks.",
    .deviations = "The sum of products and the factorisation in double, the rest in 32-bit floats.",
    .cost =
        "In the prefill d^2 / 2 products for each of n queries and H heads, in double, shared by "
        "all that ask for the same n_sink. Once keys and values, d^2 products in double and d^2 "
        "more for each of n values and H heads, a top-k of n per kv head. Nothing while decoding; "
        "no memory after that.",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .opts = capkv_options,
    .opts_size = sizeof(struct capkv_opts),
    .min_budget = capkv_min_budget,
    .plan = capkv_plan,
    .score = capkv_score,
};

KVL_POLICY_EXPORT(capkv)
