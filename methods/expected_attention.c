/* expected_attention - keeps what queries that are still to come will look at, as far as one can expect.
 *
 * Devoto et al.: Expected Attention: KV Cache Compression by Estimating Attention from Future Queries
 * Distribution, 2025 (arXiv 2510.00636), section 3.  Queries of a head are taken for normal, with the mean
 * mu and the covariance S that they have in the context before RoPE, from position n_sink on (divided by
 * their number).  The next n_future positions turn them by R, the mean of those rotations, which is no
 * rotation itself: what turns fast shrinks.  For a key k after RoPE
 *     logit = k.(R mu) / sqrt(d) + k^T (R S R^T) k / (2 d)
 * is the logarithm of the expected exp(q.k / sqrt(d)).  Softmax over the keys behind the sink, mean over
 * the group's query heads, and the score is (p + epsilon) |v|_2.
 * Budget B: the first n_sink tokens stay, then the best, B - 1 in all, and the current one. */
#include "parts/future_rotation.h"

struct expected_opts {
    int32_t n_future, n_sink;
    double epsilon;
    bool use_covariance, use_vnorm;
};

static const struct kvl_opt expected_options[] = {
    KVL_ROW_INT(expected_opts, n_future, "512", 1, 65536,
                "positions behind the context whose queries are expected (paper: 512)"),
    KVL_ROW_INT(expected_opts, n_sink, "4", 0, 65536,
                "first tokens that stay, and whose queries do not count (paper: 4)"),
    KVL_ROW_FLOAT(expected_opts, epsilon, "0", 0, 1,
                  "added to the probability, before the norm (kvpress: 0; 0.01 under AdaKV)"),
    KVL_ROW_BOOL(expected_opts, use_covariance, "true",
                 "count how queries vary, not their mean alone (paper: true)"),
    KVL_ROW_BOOL(expected_opts, use_vnorm, "true", "times the norm of the value (paper: true)"),
    { 0 },
};

static int32_t expected_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    return ((const struct expected_opts *)opts)->n_sink + 2;
}

static int expected_plan(struct kvl_plan *plan)
{
    const struct expected_opts *o = plan->opts;
    KVL_TRY(kvl_plan_needs_budget(plan));
    return kvl_plan_observe(plan, KVL_OBS_MOMENTS, o->n_sink);
}

/* Section 3: moments of a layer's queries where they will stand: mean [n_heads][dim], cov [n_heads][dim][dim]. */
static int expected_moments(const struct kvl_pctx *ctx, int32_t layer, float *mean, float *cov)
{
    const struct expected_opts *o = ctx->opts;
    int32_t dim = ctx->shape->head_dim, n;
    size_t size = (size_t)dim * (size_t)dim;
    const float *mu, *sigma;
    float *r, *half;
    KVL_TRY(kvl_scratch_get(ctx, size, &r));
    /* get_query_statistics(): R of a layer. */
    KVL_TRY(kvl_future_rotation(ctx, layer, ctx->context_tok, o->n_future, r));
    KVL_TRY(kvl_obs_moments(ctx, layer, o->n_sink, &mu, &sigma, &n));
    KVL_TRY(kvl_product(ctx, mu, ctx->shape->n_heads, r, dim, dim, mean));
    if (!o->use_covariance) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, size, &half));
    for (size_t h = 0; h < (size_t)ctx->shape->n_heads; h++) {
        /* R S, since S is symmetric; then (R S) R^T */
        KVL_TRY(kvl_product(ctx, r, dim, sigma + h * size, dim, dim, half));
        KVL_TRY(kvl_product(ctx, half, dim, r, dim, dim, cov + h * size));
    }
    return KVL_OK;
}

struct expected_room { /* of one layer */
    float *mean, *cov, *rows, *logits, *norm;
};

/* ExpectedAttentionPress.score(): (p + epsilon) |v|, p the expected attention of the group, of one lane. */
static int expected_lane(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                         const struct expected_room *room, const struct kvl_scores *scores)
{
    const struct expected_opts *o = ctx->opts;
    int32_t group = ctx->shape->group, dim = ctx->shape->head_dim, n = scores->n_tok - o->n_sink;
    float *score = scores->score + (size_t)kv_head * (size_t)scores->n_tok + o->n_sink;
    size_t first = (size_t)kv_head * (size_t)group * (size_t)dim;
    KVL_TRY(kvl_read_key_span(ctx, layer, kv_head, o->n_sink, n, false, room->rows));
    KVL_TRY(ctx->ops->gauss_logits(&(struct kvl_gauss_logits_args){
        .y = room->logits,
        .x = room->rows,
        .mean = room->mean + first,
        .cov = o->use_covariance ? room->cov + first * (size_t)dim : NULL,
        .n = n,
        .n_heads = group,
        .dim = dim,
        .scale = ctx->shape->scale }));
    KVL_TRY(kvl_cap(ctx, room->logits, (size_t)group * (size_t)n));
    KVL_TRY(kvl_softmax(ctx, room->logits, group, n));
    KVL_TRY(kvl_layer_scores(ctx, room->logits, group, n, KVL_REDUCE_MEAN, score));
    if (!o->use_vnorm) return KVL_OK;
    KVL_TRY(kvl_read_value_span(ctx, layer, kv_head, o->n_sink, n, room->rows));
    KVL_TRY(ctx->ops->row_norms(&(struct kvl_row_norms_args){
        .y = room->norm, .x = room->rows, .n = n, .dim = dim, .norm = 2 }));
    for (int32_t i = 0; i < n; i++) score[i] = (score[i] + (float)o->epsilon) * room->norm[i];
    return KVL_OK;
}

static int expected_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct expected_opts *o = ctx->opts;
    size_t dim = (size_t)ctx->shape->head_dim, heads = (size_t)ctx->shape->n_heads;
    size_t n = (size_t)scores->n_tok;
    struct expected_room room;
    scores->keep_tok = ctx->budget_tok - 1;
    scores->protect_first = o->n_sink;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, heads * dim, &room.mean));
    KVL_TRY(kvl_scratch_get(ctx, o->use_covariance ? heads * dim * dim : 0, &room.cov));
    KVL_TRY(kvl_scratch_get(ctx, n * dim, &room.rows));
    KVL_TRY(kvl_scratch_get(ctx, n * (size_t)ctx->shape->group, &room.logits));
    KVL_TRY(kvl_scratch_get(ctx, n, &room.norm));
    KVL_TRY(expected_moments(ctx, layer, room.mean, room.cov));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(expected_lane(ctx, layer, h, &room, scores));
    return KVL_OK;
}

static const struct kvl_policy expected_attention = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "expected_attention",
    .title = "Expected Attention",
    .paper = "Devoto et al., 2025, arXiv 2510.00636",
    .help = "keeps what future queries are expected to attend to, evicts the rest once",
    .follows =
        "kvpress: moments of the queries before RoPE of the positions from n_sink on, turned by "
        "the mean rotation of the next 512 positions, softmax per query head, mean over the group, "
        "times the norm of the value; 4 sinks, epsilon 0. Without covariance or norms: options. "
        "The leaderboard's entry is adakv(expected_attention) with epsilon=0.01.",
    .deviations = "32-bit floats throughout; not repeated while decoding.",
    .cost =
        "In the prefill d^2 / 2 products for each of n queries and H heads, in double, shared by "
        "all that ask for the same n_sink. Once d^2 products for each of n keys and H heads, keys "
        "and values read, a top-k of n per kv head. Nothing while decoding; no memory after that.",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .opts = expected_options,
    .opts_size = sizeof(struct expected_opts),
    .min_budget = expected_min_budget,
    .plan = expected_plan,
    .score = expected_score,
};

KVL_POLICY_EXPORT(expected_attention)
