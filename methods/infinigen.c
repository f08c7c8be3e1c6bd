/* infinigen - the layer before says which tokens this one will read, and they are fetched ahead.
 *
 * Lee et al.: InfiniGen: Efficient Generative Inference of Large Language Models with Dynamic KV Cache
 * Management, OSDI 2024, sections 4.2 and 4.3.  Keys and values live on the host.  Attention inputs of
 * neighbouring layers are alike, so that layer l - 1 guesses the query of layer l:
 *     q^ = W_q(l) x(l-1)                     turned to the token's position
 *     s(i) = (A q^).(A k_i) / sqrt(d)        in r = partial_weight_ratio d directions A
 * A: directions that carry most, so that few of them tell large products: eigenvectors of the sum of
 * q q^T over sampled queries (the singular vectors V of Q), of which those r with the largest
 * sum |Q a| + sum |K a| stay.  skewing=false: plain channels.  Keys A k_i are kept on the device.
 * Tokens with s > max s - alpha are counted per query head; the mean over the heads, at most max_num_kv,
 * is how many tokens every kv head fetches: its best, by the largest s - max s of its query heads.  What
 * was fetched is what is read, and the current token; a wrong guess is not corrected, as in the paper.
 *
 * Budget B: max_num_kv = B - 1, which takes the place of the paper's 20 % of the tokens; without a budget
 * it is that.  What alpha leaves is read, often much less than B: large alpha (1000) reads B always. */
#include "kvl/policy.h"

#include <math.h>
#include <string.h>

enum { INFINIGEN_KEYS = 256 };

struct infinigen_opts {
    double alpha, partial_weight_ratio;
    int32_t max_num_kv, sample, cache_tok;
    bool skewing;
    int32_t r, basis, keys; /* not options: directions, handles of tables; from plan */
};

/* A guess: n tokens of every kv head, for one layer of one step. */
struct infinigen_state {
    int32_t layer, index, n, asked; /* asked: the layer that select was asked for last */
    int32_t pos[1];                 /* [n_kv_heads][n] */
};

static const struct kvl_opt infinigen_options[] = {
    KVL_ROW_FLOAT(
        infinigen_opts, alpha, "5", 0, 1e6,
        "tokens within alpha of the largest guessed score are read (paper: Llama 5, OPT 4)"),
    KVL_ROW_FLOAT(infinigen_opts, partial_weight_ratio, "0.3", 0.001, 1,
                  "directions used, as a share of the head's (paper: 0.3)"),
    KVL_ROW_INT(infinigen_opts, max_num_kv, "auto", 1, 1 << 24,
                "most tokens read besides the current one; auto = budget - 1, without a budget a "
                "fifth of the context (paper)"),
    KVL_ROW_BOOL(infinigen_opts, skewing, "yes",
                 "directions are singular vectors of queries; false: channels"),
    KVL_ROW_INT(infinigen_opts, sample, "auto", 1, 4096,
                "last queries of the context that directions come from; auto = min(64, context)"),
    KVL_ROW_INT(infinigen_opts, cache_tok, "0", 0, 1 << 30,
                "tokens of a lane that stay on the device once fetched (paper: 0)"),
    { 0 },
};

static int32_t infinigen_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    return ((const struct infinigen_opts *)opts)->max_num_kv == KVL_AUTO ? 2 : 1;
}

static int infinigen_sizes(struct kvl_plan *plan, struct infinigen_opts *o)
{
    const struct kvl_shape *sh = plan->shape;
    if (sh->n_layers < 2)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "a model of %d layers; guesses are made from the second on", sh->n_layers);
    if (o->max_num_kv == KVL_AUTO)
        o->max_num_kv = plan->budget_tok > 0 ? plan->budget_tok - 1 : plan->context_tok / 5;
    if (o->max_num_kv < 1)
        return kvl_fail(plan->err, KVL_EINVAL, "max_num_kv=%d; give a budget of 2 or more",
                        o->max_num_kv);
    if (o->sample == KVL_AUTO) o->sample = KVL_MAX(1, KVL_MIN(64, plan->context_tok));
    o->r = (int32_t)lround(o->partial_weight_ratio * sh->head_dim);
    o->r = KVL_MIN(KVL_MAX(o->r, 1), sh->head_dim);
    if (!o->skewing || sh->head_dim <= KVL_SYM_EIG_MAX) return KVL_OK;
    return kvl_fail(plan->err, KVL_EINVAL, "skewing=true with heads of %d; give skewing=false",
                    sh->head_dim);
}

static int infinigen_plan(struct kvl_plan *plan)
{
    struct infinigen_opts *o = plan->opts;
    uint8_t *selects;
    KVL_TRY(infinigen_sizes(plan, o));
    KVL_TRY(kvl_plan_layers(plan, "layer", 1, 1, &selects));
    plan->replay = KVL_REPLAY_NONE;
    plan->state_bytes = sizeof(struct infinigen_state) +
                        (size_t)o->max_num_kv * (size_t)plan->shape->n_kv_heads * sizeof(int32_t);
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, o->sample));
    KVL_TRY(kvl_plan_offload(
        plan, &(struct kvl_offload){ .keep_last = 1, .unit_tok = 1, .cache_tok = o->cache_tok }));
    KVL_TRY(kvl_plan_table(plan, &o->basis, .unit = KVL_UNIT_LANE, .unit_tok = 1,
                           .row_elems = o->r * plan->shape->head_dim, .layers = selects));
    return kvl_plan_table(plan, &o->keys, .unit = KVL_UNIT_PAGE, .unit_tok = 1, .row_elems = o->r,
                          .layers = selects);
}

static int infinigen_open(struct kvl_pctx *ctx)
{
    struct infinigen_state *s = ctx->state;
    s->layer = s->asked = -1;
    return KVL_OK;
}

/* ---- skew(), set_partial_cache(): directions A and keys A k_i ---------------------------------------------- */

/* The directions of every kv head, from the last queries and some keys. */
static int infinigen_directions(const struct kvl_pctx *ctx, int32_t layer)
{
    const struct infinigen_opts *o = ctx->opts;
    const struct kvl_shape *sh = ctx->shape;
    size_t dim = (size_t)sh->head_dim, row = dim * (size_t)sh->n_heads;
    int32_t n_q = KVL_MIN(o->sample, ctx->context_tok);
    int32_t n_k = KVL_MIN(INFINIGEN_KEYS, ctx->context_tok), pos[INFINIGEN_KEYS];
    struct kvl_rows basis;
    float *q, *k;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_q * row, &q));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_k * dim, &k));
    for (int32_t i = 0; i < n_q; i++)
        KVL_TRY(kvl_obs_window_query(ctx, layer, i, q + (size_t)i * row));
    for (int32_t i = 0; i < n_k; i++) pos[i] = (int32_t)((int64_t)i * ctx->context_tok / n_k);
    KVL_TRY(kvl_table_write(ctx, o->basis, layer, 0, &basis));
    for (int32_t h = 0; h < sh->n_kv_heads; h++) {
        KVL_TRY(kvl_read_keys(ctx, layer, h, pos, n_k, false, k));
        KVL_TRY(ctx->ops->partial_basis(
            &(struct kvl_partial_basis_args){ .basis = kvl_table_row_out(&basis, h, 0),
                                              .q = q + (size_t)(h * sh->group) * dim,
                                              .q_stride = row,
                                              .group = sh->group,
                                              .k = k,
                                              .n_q = n_q,
                                              .n_k = n_k,
                                              .dim = sh->head_dim,
                                              .r = o->r,
                                              .skew = o->skewing }));
    }
    return KVL_OK;
}

/* y [n][rows]: products of n vectors x [n][head_dim] with the rows of the directions of a kv head. */
static int infinigen_turn(const struct kvl_pctx *ctx, const struct kvl_rows *basis, int32_t kv_head,
                          const float *x, int32_t n, float *y)
{
    int32_t dim = ctx->shape->head_dim;
    struct kvl_weight w = { .data = kvl_table_row(basis, kv_head, 0),
                            .type = KVL_W_F32,
                            .n_rows = basis->row_elems / dim,
                            .n_cols = dim,
                            .row_bytes = (size_t)dim * sizeof *x };
    return ctx->ops->gemv(&(struct kvl_gemv_args){ .y = y, .x = x, .w = &w, .n = n });
}

static int infinigen_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct infinigen_opts *o = ctx->opts;
    int32_t dim = ctx->shape->head_dim;
    struct kvl_rows basis, keys;
    float *k;
    if (layer == 0) return KVL_OK;
    KVL_TRY(infinigen_directions(ctx, layer));
    KVL_TRY(kvl_table_read(ctx, o->basis, layer, 1, &basis));
    KVL_TRY(kvl_table_write(ctx, o->keys, layer, 0, &keys));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(INFINIGEN_KEYS * dim), &k));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        for (int32_t at = 0; at < ctx->context_tok; at += INFINIGEN_KEYS) {
            int32_t n = KVL_MIN(INFINIGEN_KEYS, ctx->context_tok - at);
            KVL_TRY(kvl_read_key_span(ctx, layer, h, at, n, false, k));
            KVL_TRY(infinigen_turn(ctx, &basis, h, k, n, kvl_table_row_out(&keys, h, at)));
        }
    return KVL_OK;
}

/* A of every kv head, for operators. */
static int infinigen_basis(const struct kvl_pctx *ctx, int32_t layer, struct kvl_rows *basis)
{
    const struct infinigen_opts *o = ctx->opts;
    KVL_TRY(kvl_table_operand(ctx, o->basis, layer, 1, basis));
    return kvl_table_count(ctx, o->basis,
                           (int64_t)o->r * ctx->shape->head_dim * ctx->shape->n_kv_heads);
}

static int infinigen_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                            const float *v)
{
    const struct infinigen_opts *o = ctx->opts;
    int32_t dim = ctx->shape->head_dim;
    struct kvl_rows basis, keys;
    (void)v;
    if (step->layer == 0) return KVL_OK;
    KVL_TRY(infinigen_basis(ctx, step->layer, &basis));
    KVL_TRY(kvl_table_operand_out(ctx, o->keys, step->layer, step->pos, &keys));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(infinigen_turn(ctx, &basis, h, k + h * dim, 1, kvl_table_row_out(&keys, h, 0)));
    return KVL_OK;
}

/* ---- speculate_attention(): the guess ---------------------------------------------------------------------- */

/* score [n_heads][n]: A q^ . A k_i, scaled where the model caps logits. */
static int infinigen_scores(const struct kvl_pctx *ctx, int32_t layer, const float *x, int32_t n,
                            float *score)
{
    const struct infinigen_opts *o = ctx->opts;
    const struct kvl_shape *sh = ctx->shape;
    int32_t dim = sh->head_dim;
    struct kvl_rows basis;
    float *q, *part;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(sh->n_heads * dim), &q));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(sh->n_heads * o->r), &part));
    KVL_TRY(kvl_project_query(ctx, layer, x, n, q));
    KVL_TRY(infinigen_basis(ctx, layer, &basis));
    for (int32_t h = 0; h < sh->n_heads; h++)
        KVL_TRY(infinigen_turn(ctx, &basis, h / sh->group, q + h * dim, 1, part + h * o->r));
    return kvl_table_scores(ctx,
                            &(struct kvl_table_scores){ .table = o->keys,
                                                        .layer = layer,
                                                        .n_rows = n,
                                                        .q = part,
                                                        .score = score,
                                                        .scale = sh->cap > 0 ? sh->scale : 0 });
}

/* What `layer` will read of the tokens before the current one, from input x of the layer before it. */
static int infinigen_guess(const struct kvl_pctx *ctx, const struct kvl_step *step, int32_t layer,
                           const float *x, struct infinigen_state *s)
{
    const struct infinigen_opts *o = ctx->opts;
    const struct kvl_shape *sh = ctx->shape;
    int32_t n = step->pos, *count;
    int64_t sum = 0, heads = sh->n_heads;
    struct kvl_step of = *step;
    float *score, *best;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)sh->n_heads * (size_t)n, &score));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)sh->n_kv_heads * (size_t)n, &best));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)sh->n_heads, &count));
    of.layer = layer;
    KVL_TRY(infinigen_scores(ctx, layer, x, n, score));
    KVL_TRY(kvl_cap(ctx, score, (size_t)sh->n_heads * (size_t)n));
    double unit = sh->cap > 0 ? 1 : (double)sh->scale;
    KVL_TRY(ctx->ops->near_max(&(struct kvl_near_max_args){ .x = score,
                                                            .count = count,
                                                            .n_rows = sh->n_heads,
                                                            .n = n,
                                                            .alpha = (float)(o->alpha / unit) }));
    KVL_TRY(kvl_group_scores(ctx, score, n, KVL_REDUCE_MAX, best));
    struct kvl_scored scored = { .scope = KVL_SCOPE_KV_HEAD, .unit_tok = 1, .n = n, .score = best };
    KVL_TRY(kvl_tap_scores(ctx, &of, &scored));
    s->layer = layer;
    s->index = step->index;
    KVL_TRY(kvl_look_at(ctx, count, (size_t)heads, sizeof *count));
    for (int64_t h = 0; h < heads; h++) sum += count[h];
    s->n = (int32_t)KVL_MIN((sum + heads - 1) / heads, (int64_t)o->max_num_kv); /* mean, up */
    return kvl_topk(ctx, best, sh->n_kv_heads, n, s->n, s->pos);
}

static int infinigen_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    (void)ctx;
    return step->layer == 0 ? KVL_DENSE : KVL_SELECT;
}

/* What was guessed; then the layer behind this one is guessed and fetched. */
static int infinigen_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                            const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct infinigen_opts *o = ctx->opts;
    struct infinigen_state *s = ctx->state;
    int32_t next = step->layer + 1, n_lanes = ctx->shape->n_kv_heads;
    bool block = s->asked == step->layer; /* of one token, layers follow each other */
    s->asked = step->layer;
    if (step->pos <= o->max_num_kv) return KVL_OK;
    if (s->layer != step->layer || s->index != step->index)
        KVL_TRY(infinigen_guess(ctx, step, step->layer, q->x_prev, s));
    int32_t n = s->n, *pos;
    bool guesses = !block && next < ctx->shape->n_layers;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(n_lanes * n), &pos));
    memcpy(pos, s->pos, (size_t)(n_lanes * n) * sizeof *pos);
    if (guesses) KVL_TRY(infinigen_guess(ctx, step, next, q->x, s));
    for (int32_t h = 0; h < n_lanes; h++)
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, h, pos + h * n, n));
    for (int32_t h = 0; guesses && h < n_lanes; h++)
        KVL_TRY(kvl_prefetch(ctx, next, h, s->pos + h * s->n, s->n));
    return KVL_OK;
}

static const struct kvl_policy infinigen = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "infinigen",
    .title = "InfiniGen",
    .paper = "Lee et al., OSDI 2024",
    .help = "the layer before guesses what this one will read; it is fetched ahead",
    .follows =
        "Paper: partial, skewed queries and keys, tokens within alpha 5 of the largest guess, "
        "their mean number over the heads, at most a share; partial weights of ratio 0.3; only "
        "what was guessed is read. Layer 0 reads all. alpha=4 is the paper's for OPT; "
        "skewing=false takes plain channels.",
    .deviations =
        "Directions come from the context's own queries, where OPT's weights are skewed offline. "
        "RoPE lies between W_q and the directions, so that W_q is read whole. A kv head ranks by "
        "the largest of its query heads. The guess for layer 1 is not fetched ahead, and in a "
        "block of tokens the first alone fetches ahead. Everything is read while it fits in "
        "max_num_kv. Left out: a pool of limited size on the host.",
    .cost =
        "Per step and layer W_q of the next layer; r = partial_weight_ratio d floats of each of n "
        "tokens per kv head, read by each of its query heads, a top-k of n; what is read comes "
        "over the bus. Once r d products per key, an eigenproblem of d per kv head. Memory: r "
        "floats per token and kv head.",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_OFFLOADS | KVL_CAP_ASYNC,
    .opts = infinigen_options,
    .opts_size = sizeof(struct infinigen_opts),
    .min_budget = infinigen_min_budget,
    .plan = infinigen_plan,
    .open = infinigen_open,
    .append = infinigen_append,
    .prefilled = infinigen_prefilled,
    .schedule = infinigen_schedule,
    .select = infinigen_select,
};

KVL_POLICY_EXPORT(infinigen)
