/* expected_attention - keeps what queries that are still to come will look at, as far as one can expect.
 *
 * Devoto et al.: Expected Attention: KV Cache Compression by Estimating Attention from Future Queries
 * Distribution, 2025 (arXiv 2510.00636), section 3.  Queries of a head are taken for normal, with the mean
 * mu and the covariance S that they have in the context before RoPE, from position n_sink on (divided by
 * their number).  The next n_future positions turn them by R, the mean of those rotations, which is no
 * rotation itself: what turns fast shrinks.  For a key k after RoPE
 *     logit = k.(R mu) / sqrt(d) + k^T (R S R^T) k / (2 d)
 * is the logarithm of the expected exp(q.k / sqrt(d)).  Softmax over the keys behind the sink, mean over
 * the group's query heads, and
 *     score = (p + epsilon) |v|_2
 * The first n_sink tokens stay, then the best (ties: the lower position).  No window of recent tokens.
 *
 * kvpress' ExpectedAttentionPress is followed; its leaderboard entry is adakv(expected_attention) with
 * epsilon 0.01, in whose place epsilon here is 0, its default.  The softmax runs in 32-bit floats: in half
 * floats the quadratic term overflows.  In other models that normalise queries the moments are those
 * after it; models served here do not.
 * Budget B: B - 1 tokens of the context and the current one; tokens that come later stay.
 * Deviations: compression is not repeated while decoding.
 * Cost: d^2 / 2 multiply-adds for every query of the prefill, in double (shared by all policies that ask
 * for the same n_sink); then d^2 for every key and query head, a top-k of n per kv head.  Nothing while
 * decoding.
 */
#include "kvl/policy.h"

#include <math.h>
#include <string.h>

struct expected_opts {
    int32_t n_future, n_sink;
    double epsilon;
    bool use_covariance, use_vnorm;
};

static const struct kvl_opt expected_options[] = {
    { .name = "n_future",
      .type = KVL_OPT_INT,
      .off = offsetof(struct expected_opts, n_future),
      .def = "512",
      .min = 1,
      .max = 65536,
      .help = "positions behind the context whose queries are expected (paper: 512)" },
    { .name = "n_sink",
      .type = KVL_OPT_INT,
      .off = offsetof(struct expected_opts, n_sink),
      .def = "4",
      .min = 0,
      .max = 65536,
      .help = "first tokens that stay, and whose queries do not count (paper: 4)" },
    { .name = "epsilon",
      .type = KVL_OPT_FLOAT,
      .off = offsetof(struct expected_opts, epsilon),
      .def = "0",
      .min = 0,
      .max = 1,
      .help =
          "added to the probability before the norm of the value (kvpress: 0; 0.01 under AdaKV)" },
    { .name = "use_covariance",
      .type = KVL_OPT_BOOL,
      .off = offsetof(struct expected_opts, use_covariance),
      .def = "true",
      .help = "count how queries vary, not their mean alone (paper: true)" },
    { .name = "use_vnorm",
      .type = KVL_OPT_BOOL,
      .off = offsetof(struct expected_opts, use_vnorm),
      .def = "true",
      .help = "multiply by the norm of the value (paper: true)" },
    { 0 },
};

static int32_t expected_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct expected_opts *o = opts;
    (void)shape;
    return o->n_sink + 2;
}

static int expected_plan(struct kvl_plan *plan)
{
    const struct expected_opts *o = plan->opts;
    size_t dim = (size_t)plan->shape->head_dim;
    plan->state_bytes = dim * dim * sizeof(float);
    if (plan->budget_tok < o->n_sink + 2)
        return kvl_fail(plan->err, KVL_EINVAL, "budget %d with n_sink=%d; give %d or more",
                        plan->budget_tok, o->n_sink, o->n_sink + 2);
    return kvl_plan_observe(plan, KVL_OBS_MOMENTS, o->n_sink);
}

/* R into the state, [head_dim][head_dim]: the mean of the rotations by the next n_future positions.
 * Every unit vector is turned; what becomes of the j-th is column j of R. */
static int expected_open(struct kvl_pctx *ctx)
{
    const struct expected_opts *o = ctx->opts;
    size_t dim = (size_t)ctx->shape->head_dim;
    float *mean = ctx->state, *unit = kvl_scratch(ctx, 2 * dim * dim), *turned = unit + dim * dim;
    if (!unit) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for a rotation");
    memset(unit, 0, dim * dim * sizeof *unit);
    for (size_t j = 0; j < dim; j++) unit[j * dim + j] = 1;
    for (int32_t p = ctx->context_tok; p < ctx->context_tok + o->n_future; p++) {
        KVL_TRY(kvl_rotate(ctx, unit, ctx->shape->head_dim, p, turned));
        for (size_t j = 0; j < dim; j++)
            for (size_t c = 0; c < dim; c++) mean[c * dim + j] += turned[j * dim + c];
    }
    for (size_t i = 0; i < dim * dim; i++) mean[i] /= (float)o->n_future;
    return KVL_OK;
}

/* y [n_rows][dim] = x m^T for a square matrix m. */
static int expected_times(const struct kvl_pctx *ctx, float *y, const float *x, const float *m,
                          int32_t n_rows)
{
    int32_t dim = ctx->shape->head_dim;
    struct kvl_weight w = { .data = m,
                            .type = KVL_W_F32,
                            .n_rows = dim,
                            .n_cols = dim,
                            .row_bytes = (size_t)dim * sizeof *m };
    return ctx->ops->gemm(&(struct kvl_gemm_args){ .y = y, .x = x, .w = &w, .n = n_rows });
}

/* Moments of a layer's queries where they will stand: mean [n_heads][dim], cov [n_heads][dim][dim]. */
static int expected_moments(const struct kvl_pctx *ctx, int32_t layer, float *mean, float *cov)
{
    const struct expected_opts *o = ctx->opts;
    size_t dim = (size_t)ctx->shape->head_dim;
    const float *r = ctx->state, *mu, *sigma;
    int32_t n;
    KVL_TRY(kvl_obs_moments(ctx, layer, o->n_sink, &mu, &sigma, &n));
    KVL_TRY(expected_times(ctx, mean, mu, r, ctx->shape->n_heads));
    if (!o->use_covariance) return KVL_OK;
    float *half = kvl_scratch(ctx, dim * dim);
    if (!half) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for a covariance");
    for (size_t h = 0; h < (size_t)ctx->shape->n_heads; h++) {
        /* R S, since S is symmetric; then (R S) R^T */
        KVL_TRY(expected_times(ctx, half, r, sigma + h * dim * dim, ctx->shape->head_dim));
        KVL_TRY(expected_times(ctx, cov + h * dim * dim, half, r, ctx->shape->head_dim));
    }
    return KVL_OK;
}

/* Expected attention of the group on the n keys k, into score. */
static int expected_weights(const struct kvl_pctx *ctx, const float *k, int32_t n,
                            const float *mean, const float *cov, float *logits, float *score)
{
    int32_t group = ctx->shape->n_heads / ctx->shape->n_kv_heads, dim = ctx->shape->head_dim;
    KVL_TRY(
        ctx->ops->gauss_logits(&(struct kvl_gauss_logits_args){ .y = logits,
                                                                .x = k,
                                                                .mean = mean,
                                                                .cov = cov,
                                                                .n = n,
                                                                .n_heads = group,
                                                                .dim = dim,
                                                                .scale = 1 / sqrtf((float)dim) }));
    KVL_TRY(ctx->ops->softmax(
        &(struct kvl_softmax_args){ .x = logits, .stride = (size_t)n, .n_rows = group, .n = n }));
    return ctx->ops->group_reduce(&(struct kvl_group_reduce_args){ .y = score,
                                                                   .x = logits,
                                                                   .x_stride = (size_t)n,
                                                                   .n = n,
                                                                   .n_heads = group,
                                                                   .n_kv_heads = 1,
                                                                   .reduce = KVL_REDUCE_MEAN });
}

/* Room of one layer. */
struct expected_room {
    float *mean, *cov, *rows, *logits, *norm;
};

static int expected_lane(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                         const struct expected_room *room, float *score)
{
    const struct expected_opts *o = ctx->opts;
    size_t dim = (size_t)ctx->shape->head_dim;
    size_t first = (size_t)kv_head * (size_t)(ctx->shape->n_heads / ctx->shape->n_kv_heads);
    const int32_t *pos;
    int32_t n;
    KVL_TRY(kvl_live(ctx, layer, kv_head, &pos, &n));
    n -= o->n_sink;
    score += o->n_sink;
    KVL_TRY(kvl_read_keys(ctx, layer, kv_head, pos + o->n_sink, n, false, room->rows));
    KVL_TRY(expected_weights(ctx, room->rows, n, room->mean + first * dim,
                             room->cov ? room->cov + first * dim * dim : NULL, room->logits,
                             score));
    if (!o->use_vnorm) return KVL_OK;
    KVL_TRY(kvl_read_values(ctx, layer, kv_head, pos + o->n_sink, n, room->rows));
    KVL_TRY(ctx->ops->row_norms(&(struct kvl_row_norms_args){
        .y = room->norm, .x = room->rows, .n = n, .dim = ctx->shape->head_dim, .norm = 2 }));
    for (int32_t i = 0; i < n; i++) score[i] = (score[i] + (float)o->epsilon) * room->norm[i];
    return KVL_OK;
}

static int expected_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct expected_opts *o = ctx->opts;
    size_t dim = (size_t)ctx->shape->head_dim, heads = (size_t)ctx->shape->n_heads,
           n = (size_t)scores->n_tok;
    scores->keep_tok = ctx->budget_tok - 1;
    scores->protect_first = o->n_sink;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    struct expected_room room = {
        .mean = kvl_scratch(ctx, heads * dim),
        .cov = o->use_covariance ? kvl_scratch(ctx, heads * dim * dim) : NULL,
        .rows = kvl_scratch(ctx, n * dim),
        .logits = kvl_scratch(ctx, n * heads / (size_t)ctx->shape->n_kv_heads),
        .norm = kvl_scratch(ctx, n),
    };
    if (!room.mean || (o->use_covariance && !room.cov) || !room.rows || !room.logits || !room.norm)
        return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %d keys", scores->n_tok);
    KVL_TRY(expected_moments(ctx, layer, room.mean, room.cov));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(expected_lane(ctx, layer, h, &room, scores->score + (size_t)h * n));
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
    .open = expected_open,
    .score = expected_score,
};

KVL_POLICY_EXPORT(expected_attention)
