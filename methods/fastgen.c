/* fastgen - every head keeps what kind of token it looks at, as cheaply as recovers its attention.
 *
 * Ge et al.: Model Tells You What to Discard: Adaptive KV Cache Compression for LLMs, ICLR 2024 (arXiv
 * 2310.01801), section 3 and Algorithms 1 and 2.  When the context is complete, every head is profiled on
 * its attention map.  Of five policies, each keeping more than the one before,
 *     special < + punctuation < + frequent < + local < full
 * it takes the first that recovers `threshold` (T) of the attention.  special: special tokens of the
 * tokenizer, and the first global_tokens; frequent: the ceil(r_f n) others with the most attention so
 * far, as a mean over the queries that saw them; local: the latest r_l n.
 *
 * The authors' code was never published.  Two readings of "recovers":
 *   mass    cold-compress: the share of the attention that falls on what is kept, a mean over all queries
 *           of the context; exact, from two column sums (all queries; the next r_l n queries)
 *   renorm  the paper: 1 - |A - softmax(Q K_C^T)|, where the kept weights grow to sum up to 1; taken as
 *           the sum of a query's absolute differences (twice the mass that is dropped), a mean over the
 *           last `rows` queries
 * Attention is the mean of the group's query heads (cold-compress), since a kv head is kept or not.
 *
 * While decoding, after every step (a question that runs as one block: at its end), a head keeps what its
 * policy keeps of the text so far: tokens that are none of its kinds go, sums go on, the most frequent are
 * chosen anew, the window moves on.
 *
 * Budget B: T is not a budget.  threshold=budget takes, when the profile is known, the largest T with which
 * lanes hold at most B - 1 tokens on average, `horizon` steps on; heads that recover only with everything
 * keep everything at the others' cost.  With a threshold given B counts for nothing.
 * Deviations: sums are of all steps (cold-compress: the last 400 and the prompt).  r_l n is of the length
 * that was planned for, and stays as it is.  cold-compress profiles with the prompt's length and fills up
 * to the cache's; here both are the prompt's.  Its paper's models had no grouped heads.
 * Cost: a second pass of all queries over all keys twice, shared; an entry of 8 bytes per live token and kv
 * head; per step and head with frequent tokens a division and a top-k of what is live.
 */
#include "fastgen_profile.h"

#include <string.h>

enum { FASTGEN_MASS = 0, FASTGEN_RENORM };
enum { FASTGEN_SUM = 0, FASTGEN_LEVEL, FASTGEN_COLUMNS }; /* of the table of live tokens */

struct fastgen_opts {
    char threshold[KVL_OPT_STR_SIZE];
    double r_f, r_l;
    int32_t global_tokens, recovery, rows, horizon, local;
    /* not options: from plan */
    double given; /* threshold; negative: from the budget */
    int32_t table;
};

static const char *const fastgen_recoveries[] = { "mass", "renorm", NULL };

static const struct kvl_opt fastgen_options[] = {
    { .name = "threshold",
      .type = KVL_OPT_STR,
      .off = offsetof(struct fastgen_opts, threshold),
      .def = "budget",
      .help = "part of the attention that a head must recover, T, 0 to 1 (paper: 0.85 and more); "
              "budget = "
              "what the budget allows" },
    { .name = "recovery",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct fastgen_opts, recovery),
      .def = "mass",
      .choices = fastgen_recoveries,
      .help = "how that is measured: mass kept (cold-compress), distance of kept weights (paper)" },
    { .name = "r_f",
      .type = KVL_OPT_FLOAT,
      .off = offsetof(struct fastgen_opts, r_f),
      .def = "0.3",
      .min = 0,
      .max = 1,
      .help = "frequent tokens, as a share of the text (paper: 0.3)" },
    { .name = "r_l",
      .type = KVL_OPT_FLOAT,
      .off = offsetof(struct fastgen_opts, r_l),
      .def = "0.3",
      .min = 0,
      .max = 1,
      .help = "local tokens, as a share of the context (paper: 0.3)" },
    { .name = "local",
      .type = KVL_OPT_INT,
      .off = offsetof(struct fastgen_opts, local),
      .def = "auto",
      .min = 1,
      .max = 1 << 30,
      .help = "local tokens as a number; auto = r_l times the planned context, 1 or more" },
    { .name = "global_tokens",
      .type = KVL_OPT_INT,
      .off = offsetof(struct fastgen_opts, global_tokens),
      .def = "4",
      .min = 0,
      .max = 65536,
      .help = "first tokens that count as special (cold-compress: 4; paper: 0)" },
    { .name = "rows",
      .type = KVL_OPT_INT,
      .off = offsetof(struct fastgen_opts, rows),
      .def = "32",
      .min = 1,
      .max = 1024,
      .help = "last queries that recovery=renorm looks at (paper: all)" },
    { .name = "horizon",
      .type = KVL_OPT_INT,
      .off = offsetof(struct fastgen_opts, horizon),
      .def = "32",
      .min = 0,
      .max = 1 << 20,
      .help = "steps for which threshold=budget leaves room" },
    { 0 },
};

/* ---- plan and state ---------------------------------------------------------------------------------- */

/* Behind it, for every lane: struct fastgen_lane, then the policy that it took. */
struct fastgen_state {
    double threshold;
    int32_t n_lanes;
};

static struct fastgen_lane *fastgen_lanes(const struct kvl_pctx *ctx)
{
    return (struct fastgen_lane *)(void *)((struct fastgen_state *)ctx->state + 1);
}

static int32_t *fastgen_taken(const struct kvl_pctx *ctx, int32_t layer)
{
    const struct fastgen_state *state = ctx->state;
    return (int32_t *)(void *)(fastgen_lanes(ctx) + state->n_lanes) +
           (size_t)layer * (size_t)ctx->shape->n_kv_heads;
}

static int32_t fastgen_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct fastgen_opts *o = opts;
    (void)shape;
    return strcmp(o->threshold, "budget") == 0 ? o->global_tokens + 2 : 1;
}

static int fastgen_parse(struct kvl_plan *plan)
{
    struct fastgen_opts *o = plan->opts;
    o->given = -1;
    if (strcmp(o->threshold, "budget") == 0) {
        if (plan->budget_tok >= o->global_tokens + 2) return KVL_OK;
        return kvl_fail(plan->err, KVL_EINVAL,
                        "budget %d with global_tokens=%d; give %d or more, or a threshold",
                        plan->budget_tok, o->global_tokens, o->global_tokens + 2);
    }
    if (kvl_parse_f64(o->threshold, &o->given) == KVL_OK && o->given >= 0 && o->given <= 1)
        return KVL_OK;
    return kvl_fail(plan->err, KVL_EINVAL, "threshold=%s; give budget or a number from 0 to 1",
                    o->threshold);
}

static int fastgen_plan(struct kvl_plan *plan)
{
    struct fastgen_opts *o = plan->opts;
    size_t lanes = (size_t)plan->shape->n_layers * (size_t)plan->shape->n_kv_heads;
    KVL_TRY(fastgen_parse(plan));
    if (o->local == KVL_AUTO) o->local = KVL_MAX(1, (int32_t)(o->r_l * plan->context_tok));
    plan->state_bytes =
        sizeof(struct fastgen_state) + lanes * (sizeof(struct fastgen_lane) + sizeof(int32_t));
    KVL_TRY(kvl_plan_meta(plan, KVL_META_LIVE, 1, FASTGEN_COLUMNS, &o->table));
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_COLUMNS, 0));
    if (o->recovery == FASTGEN_RENORM) return kvl_plan_observe(plan, KVL_OBS_WINDOW, o->rows);
    return kvl_plan_observe(plan, KVL_OBS_COLUMNS, o->local);
}

/* ---- what tokens are --------------------------------------------------------------------------------- */

static float *fastgen_column(const struct kvl_meta_view *meta, int32_t kv_head, int32_t column)
{
    return meta->base + (size_t)kv_head * meta->head_stride + (size_t)column * meta->column_stride;
}

/* SPECIAL, PUNCT, or LOCAL for all others. */
static int fastgen_kind(const struct kvl_pctx *ctx, int32_t pos, int32_t id)
{
    const struct fastgen_opts *o = ctx->opts;
    uint32_t class = kvl_token_class(ctx, id);
    if (pos < o->global_tokens || class & KVL_TOKEN_SPECIAL) return FASTGEN_SPECIAL;
    return class & KVL_TOKEN_PUNCT ? FASTGEN_PUNCT : FASTGEN_LOCAL;
}

/* Marks what is frequent among n tokens at `pos` [n] that are of no kind: level [n] gets FREQUENT where
 * it was LOCAL.  sums [n]: what they received from the group.  `end`: tokens of the text.  room: 2 n. */
static int fastgen_frequent(const struct kvl_pctx *ctx, const float *sums, const int32_t *pos,
                            int32_t n, int32_t end, uint8_t *level, float *room)
{
    const struct fastgen_opts *o = ctx->opts;
    float *score = room;
    int32_t *best = (int32_t *)(void *)(room + n), n_free = 0;
    for (int32_t i = 0; i < n; i++) {
        score[i] = level[i] == FASTGEN_LOCAL ? sums[i] / (float)(end - pos[i]) : -1;
        n_free += level[i] == FASTGEN_LOCAL;
    }
    int32_t k = (int32_t)ceil(fmin(o->r_f * end, n_free));
    KVL_TRY(ctx->ops->topk(&(struct kvl_topk_args){
        .index = best, .x = score, .x_stride = (size_t)n, .n_rows = 1, .n = n, .k = k }));
    for (int32_t i = 0; i < k; i++) level[best[i]] = FASTGEN_FREQUENT;
    return KVL_OK;
}

/* ---- the profile --------------------------------------------------------------------------------------- */

/* Sums of a group's query heads, [n] apart, into y [n]. */
static int fastgen_group(const struct kvl_pctx *ctx, const float *x, int32_t kv_head, int32_t n,
                         enum kvl_reduce reduce, float *y)
{
    int32_t group = ctx->shape->n_heads / ctx->shape->n_kv_heads;
    return ctx->ops->group_reduce(
        &(struct kvl_group_reduce_args){ .y = y,
                                         .x = x + (size_t)(kv_head * group) * (size_t)n,
                                         .x_stride = (size_t)n,
                                         .n = n,
                                         .n_heads = group,
                                         .n_kv_heads = 1,
                                         .reduce = reduce });
}

/* Sums and kinds of the context's tokens into the table of a layer. */
static int fastgen_fill(const struct kvl_pctx *ctx, int32_t layer)
{
    const struct fastgen_opts *o = ctx->opts;
    struct kvl_meta_view meta;
    const float *sums;
    const int32_t *id;
    int32_t n, n_id;
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, 0, &sums, &n));
    KVL_TRY(kvl_tokens(ctx, &id, &n_id));
    KVL_TRY(kvl_meta(ctx, o->table, layer, &meta));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(
            fastgen_group(ctx, sums, h, n, KVL_REDUCE_SUM, fastgen_column(&meta, h, FASTGEN_SUM)));
    float *level = fastgen_column(&meta, 0, FASTGEN_LEVEL);
    for (int32_t i = 0; i < n; i++) level[i] = (float)fastgen_kind(ctx, i, id[i]);
    for (int32_t h = 1; h < ctx->shape->n_kv_heads; h++)
        memcpy(fastgen_column(&meta, h, FASTGEN_LEVEL), level, (size_t)n * sizeof *level);
    return KVL_OK;
}

/* Mean over the last queries of the distance to what is left of their weights. */
static int fastgen_renorm(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                          const struct fastgen_context *c, float *probs, float *recovery)
{
    const struct fastgen_opts *o = ctx->opts;
    double distance[FASTGEN_POLICIES] = { 0 };
    int32_t rows = KVL_MIN(o->rows, c->n);
    float *mean = probs + (size_t)ctx->shape->n_heads * (size_t)c->n;
    for (int32_t back = 0; back < rows; back++) {
        KVL_TRY(kvl_obs_window_probs(ctx, layer, back, probs, c->n));
        KVL_TRY(fastgen_group(ctx, probs, kv_head, c->n, KVL_REDUCE_MEAN, mean));
        fastgen_distance(c, mean, c->n - 1 - back, distance);
    }
    for (int p = 0; p < FASTGEN_FULL; p++) recovery[p] = (float)(1 - distance[p] / rows);
    recovery[FASTGEN_FULL] = 1;
    return KVL_OK;
}

/* Mean over all queries of the mass that stays. */
static int fastgen_kept_mass(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                             const struct fastgen_context *c, float *room, float *recovery)
{
    const struct fastgen_opts *o = ctx->opts;
    const float *all, *near;
    int32_t n;
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, 0, &all, &n));
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, o->local, &near, &n));
    KVL_TRY(fastgen_group(ctx, all, kv_head, n, KVL_REDUCE_MEAN, room));
    KVL_TRY(fastgen_group(ctx, near, kv_head, n, KVL_REDUCE_MEAN, room + n));
    fastgen_mass(c, room, room + n, recovery);
    return KVL_OK;
}

/* Room of one layer's profile. */
struct fastgen_room {
    int32_t *pos;
    uint8_t *level;
    float *rows; /* [n_heads + 2][n] */
};

static int fastgen_profile(const struct kvl_pctx *ctx, int32_t layer, const struct fastgen_room *r)
{
    const struct fastgen_opts *o = ctx->opts;
    struct fastgen_context c = { .level = r->level, .n = ctx->context_tok, .window = o->local };
    struct kvl_meta_view meta;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        struct fastgen_lane *lane = &fastgen_lanes(ctx)[layer * ctx->shape->n_kv_heads + h];
        KVL_TRY(kvl_meta(ctx, o->table, layer, &meta));
        const float *level = fastgen_column(&meta, h, FASTGEN_LEVEL);
        for (int32_t i = 0; i < c.n; i++) r->level[i] = (uint8_t)level[i];
        KVL_TRY(fastgen_frequent(ctx, fastgen_column(&meta, h, FASTGEN_SUM), r->pos, c.n, c.n,
                                 r->level, r->rows));
        fastgen_sizes(&c, lane->size);
        if (o->recovery == FASTGEN_RENORM)
            KVL_TRY(fastgen_renorm(ctx, layer, h, &c, r->rows, lane->recovery));
        else
            KVL_TRY(fastgen_kept_mass(ctx, layer, h, &c, r->rows, lane->recovery));
    }
    return KVL_OK;
}

/* With the first layer: all heads are profiled before any of them drops a token. */
static int fastgen_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct fastgen_opts *o = ctx->opts;
    struct fastgen_state *state = ctx->state;
    size_t n = (size_t)ctx->context_tok;
    if (layer > 0) return KVL_OK;
    struct fastgen_room room = {
        .pos = (int32_t *)(void *)kvl_scratch(ctx, n),
        .level = (uint8_t *)kvl_scratch(ctx, n),
        .rows = kvl_scratch(ctx, ((size_t)ctx->shape->n_heads + 2) * n),
    };
    if (!room.pos || !room.level || !room.rows)
        return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %zu tokens", n);
    for (size_t i = 0; i < n; i++) room.pos[i] = (int32_t)i;
    state->n_lanes = ctx->shape->n_layers * ctx->shape->n_kv_heads;
    for (int32_t l = 0; l < ctx->shape->n_layers; l++) {
        KVL_TRY(fastgen_fill(ctx, l));
        KVL_TRY(fastgen_profile(ctx, l, &room));
    }
    const struct fastgen_lane *lane = fastgen_lanes(ctx);
    state->threshold = o->given;
    if (o->given < 0)
        state->threshold = fastgen_threshold(lane, state->n_lanes, ctx->context_tok, o->horizon,
                                             ctx->budget_tok - 1);
    for (int32_t i = 0; i < state->n_lanes; i++)
        fastgen_taken(ctx, 0)[i] = (int32_t)fastgen_choose(&lane[i], state->threshold);
    return KVL_OK;
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

/* What the newest query gave to all that is live, and what kind of token it is. */
static int fastgen_observe(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const float *const *probs, const int32_t *n, const float *lse)
{
    const struct fastgen_opts *o = ctx->opts;
    int32_t group = ctx->shape->n_heads / ctx->shape->n_kv_heads, n_id;
    struct kvl_meta_view meta;
    const int32_t *id;
    (void)lse;
    KVL_TRY(kvl_tokens(ctx, &id, &n_id));
    KVL_TRY(kvl_meta(ctx, o->table, step->layer, &meta));
    for (int32_t h = 0; h < ctx->shape->n_heads; h++)
        KVL_TRY(ctx->ops->add(
            &(struct kvl_add_args){ .y = fastgen_column(&meta, h / group, FASTGEN_SUM),
                                    .x = probs[h],
                                    .n = (size_t)n[h] }));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        fastgen_column(&meta, h, FASTGEN_LEVEL)[n[h * group] - 1] =
            (float)fastgen_kind(ctx, step->pos, id[step->pos]);
    return KVL_OK;
}

/* A lane that does not keep everything; `end`: tokens of the text so far. */
static int fastgen_cut(const struct kvl_pctx *ctx, const struct kvl_meta_view *meta, int32_t layer,
                       int32_t kv_head, int32_t end, struct kvl_keep *keep)
{
    const struct fastgen_opts *o = ctx->opts;
    enum fastgen_policy policy = (enum fastgen_policy)fastgen_taken(ctx, layer)[kv_head];
    const int32_t *live;
    int32_t n, n_kept = 0;
    KVL_TRY(kvl_live(ctx, layer, kv_head, &live, &n));
    uint8_t *level = (uint8_t *)kvl_scratch(ctx, (size_t)n);
    int32_t *kept = (int32_t *)(void *)kvl_scratch(ctx, (size_t)n);
    float *room = kvl_scratch(ctx, 2 * (size_t)n);
    if (!level || !kept || !room)
        return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %d tokens", n);
    const float *kind = fastgen_column(meta, kv_head, FASTGEN_LEVEL);
    for (int32_t i = 0; i < n; i++) level[i] = (uint8_t)kind[i];
    if (policy >= FASTGEN_FREQUENT)
        KVL_TRY(fastgen_frequent(ctx, fastgen_column(meta, kv_head, FASTGEN_SUM), live, n, end,
                                 level, room));
    int most = policy == FASTGEN_LOCAL ? FASTGEN_FREQUENT : (int)policy;
    for (int32_t i = 0; i < n; i++) {
        bool local = policy == FASTGEN_LOCAL && live[i] >= end - o->local;
        if (level[i] <= most || local) kept[n_kept++] = live[i];
    }
    return kvl_keep_tokens(keep, kv_head, kept, n_kept);
}

static int fastgen_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    const struct fastgen_opts *o = ctx->opts;
    struct kvl_meta_view meta;
    KVL_TRY(kvl_meta(ctx, o->table, step->layer, &meta));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        if (fastgen_taken(ctx, step->layer)[h] != FASTGEN_FULL)
            KVL_TRY(fastgen_cut(ctx, &meta, step->layer, h, step->pos + step->n_tok, keep));
    return KVL_OK;
}

/* The threshold that ran, and the share of the lanes that took each policy. */
static int fastgen_report(struct kvl_pctx *ctx, struct kvl_report *report)
{
    static const char *const names[] = { "lanes_special", "lanes_punct", "lanes_frequent",
                                         "lanes_local", "lanes_full" };
    const struct fastgen_state *state = ctx->state;
    double share[FASTGEN_POLICIES] = { 0 };
    for (int32_t i = 0; i < state->n_lanes; i++)
        share[fastgen_taken(ctx, 0)[i]] += 1.0 / state->n_lanes;
    KVL_TRY(kvl_report_num(report, "threshold", state->threshold));
    for (int p = 0; p < FASTGEN_POLICIES; p++) KVL_TRY(kvl_report_num(report, names[p], share[p]));
    return KVL_OK;
}

static const struct kvl_policy fastgen = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "fastgen",
    .title = "FastGen",
    .paper = "Ge et al., ICLR 2024, arXiv 2310.01801",
    .help =
        "each head keeps special tokens, punctuation, frequent, local or all tokens, as it needs",
    .follows =
        "The paper's five policies and choice; frequent tokens, group mean, first tokens and "
        "recovery=mass as in cold-compress, since the authors' code was never published. "
        "recovery=renorm is the paper's distance after renormalising, on the last rows queries.",
    .deviations =
        "threshold=budget takes T from the budget, which the paper does not have. Attention of a "
        "kv head is its group's mean. Sums are of all steps, not of the last 400 as in "
        "cold-compress. The window is a share of the planned context and does not grow.",
    .cost =
        "Per step and layer H additions of what is live; where frequent tokens are kept, a "
        "division and a top-k of it. Once two column sums over all queries, shared, and a top-k of "
        "n per kv head. Memory: 8 bytes per live token and kv head.",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_TOKENS | KVL_CAP_RAGGED,
    .opts = fastgen_options,
    .opts_size = sizeof(struct fastgen_opts),
    .min_budget = fastgen_min_budget,
    .plan = fastgen_plan,
    .prefilled = fastgen_prefilled,
    .observe = fastgen_observe,
    .evict = fastgen_evict,
    .report = fastgen_report,
};

KVL_POLICY_EXPORT(fastgen)
