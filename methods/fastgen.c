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
 * cold-compress profiles with the prompt's length and fills up to the cache's, and sums the last 400 steps
 * and the prompt; here both lengths are the prompt's, and sums are of all steps.
 */
#include "kvl/policy.h"

#include <math.h>
#include <string.h>

enum { FASTGEN_MASS = 0, FASTGEN_RENORM };
enum { FASTGEN_SUM = 0, FASTGEN_LEVEL, FASTGEN_COLUMNS }; /* of the table of live tokens */

/* A chain: each keeps what the one before it keeps. */
enum fastgen_policy {
    FASTGEN_SPECIAL = 0,
    FASTGEN_PUNCT,
    FASTGEN_FREQUENT,
    FASTGEN_LOCAL,
    FASTGEN_FULL,
    FASTGEN_POLICIES,
};

struct fastgen_opts {
    char threshold[KVL_OPT_STR_SIZE];
    double r_f, r_l;
    int32_t global_tokens, recovery, rows, horizon, local;
    double given; /* not options, from plan: threshold; negative: from the budget */
    int32_t table;
};

/* One kv head: of each policy, the part of the attention that it keeps, and tokens kept at the end. */
struct fastgen_lane {
    float recovery[FASTGEN_POLICIES];
    int32_t size[FASTGEN_POLICIES];
    int32_t taken; /* enum fastgen_policy */
};

struct fastgen_state {
    double threshold;
    int32_t n_lanes;
    struct fastgen_lane lane[]; /* [n_layers][n_kv_heads] */
};

static const char *const fastgen_recoveries[] = { "mass", "renorm", NULL };

static const struct kvl_opt fastgen_options[] = {
    KVL_ROW_STR(fastgen_opts, threshold, "budget",
                "part of the attention that a head must recover, T, 0 to 1 (paper: 0.85 and more); "
                "budget = what the budget allows"),
    KVL_ROW_ENUM(
        fastgen_opts, recovery, "mass", fastgen_recoveries,
        "how that is measured: mass kept (cold-compress), distance of kept weights (paper)"),
    KVL_ROW_FLOAT(fastgen_opts, r_f, "0.3", 0, 1,
                  "frequent tokens, as a share of the text (paper: 0.3)"),
    KVL_ROW_FLOAT(fastgen_opts, r_l, "0.3", 0, 1,
                  "local tokens, as a share of the context (paper: 0.3)"),
    KVL_ROW_INT(fastgen_opts, local, "auto", 1, 1 << 30,
                "local tokens as a number; auto = r_l times the planned context, 1 or more"),
    KVL_ROW_INT(fastgen_opts, global_tokens, "4", 0, 65536,
                "first tokens that count as special (cold-compress: 4; paper: 0)"),
    KVL_ROW_INT(fastgen_opts, rows, "32", 1, 1024,
                "last queries that recovery=renorm looks at (paper: all)"),
    KVL_ROW_INT(fastgen_opts, horizon, "32", 0, 1 << 20,
                "steps for which threshold=budget leaves room"),
    { 0 },
};

/* ---- plan -------------------------------------------------------------------------------------------- */

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
    if (strcmp(o->threshold, "budget") == 0) return kvl_plan_needs_budget(plan);
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
    plan->state_bytes = sizeof(struct fastgen_state) + lanes * sizeof(struct fastgen_lane);
    KVL_TRY(kvl_plan_meta(plan, KVL_META_LIVE, 1, FASTGEN_COLUMNS, &o->table));
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_COLUMNS, 0));
    if (o->recovery == FASTGEN_RENORM) return kvl_plan_observe(plan, KVL_OBS_WINDOW, o->rows);
    return kvl_plan_observe(plan, KVL_OBS_COLUMNS, o->local);
}

/* ---- what tokens are --------------------------------------------------------------------------------- */

static struct fastgen_lane *fastgen_lane(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head)
{
    return &((struct fastgen_state *)ctx->state)->lane[layer * ctx->shape->n_kv_heads + kv_head];
}

/* SPECIAL, PUNCT, or LOCAL for all others. */
static int fastgen_kind(const struct kvl_pctx *ctx, int32_t pos, int32_t id)
{
    const struct fastgen_opts *o = ctx->opts;
    uint32_t class = kvl_token_class(ctx, id);
    if (pos < o->global_tokens || class & KVL_TOKEN_SPECIAL) return FASTGEN_SPECIAL;
    return class & KVL_TOKEN_PUNCT ? FASTGEN_PUNCT : FASTGEN_LOCAL;
}

/* Scratch for n tokens of a lane. */
struct fastgen_room {
    uint8_t *
        level; /* the first policy of the chain that keeps a token for what it is or has received; LOCAL:
                       only being recent keeps it */
    int32_t *index;
    float *score, *rows; /* [n], [n_rows][n] */
};

static int fastgen_room(const struct kvl_pctx *ctx, int32_t n, int32_t n_rows,
                        struct fastgen_room *out)
{
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &out->level));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &out->index));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &out->score));
    return kvl_scratch_get(ctx, (size_t)n_rows * (size_t)n, &out->rows);
}

/* Levels of the n live tokens of a lane, at `pos` [n] (NULL: token i is at i), with `end` tokens of text.
 * Of those of no kind the most attended are FREQUENT, if wanted. */
static int fastgen_levels(const struct kvl_pctx *ctx, const struct kvl_meta_view *meta,
                          int32_t kv_head, const int32_t *pos, int32_t n, int32_t end,
                          bool frequent, const struct fastgen_room *r)
{
    const struct fastgen_opts *o = ctx->opts;
    const float *sum = kvl_live_column(meta, kv_head, FASTGEN_SUM);
    const float *kind = kvl_live_column(meta, kv_head, FASTGEN_LEVEL);
    int32_t n_free = 0;
    for (int32_t i = 0; i < n; i++) {
        bool none = kind[i] >= FASTGEN_LOCAL;
        r->level[i] = (uint8_t)kind[i];
        r->score[i] = none ? sum[i] / (float)(end - (pos ? pos[i] : i)) : -1;
        n_free += none;
    }
    int32_t k = (int32_t)ceil(fmin(o->r_f * end, n_free));
    if (!frequent) return KVL_OK;
    KVL_TRY(kvl_topk(ctx, r->score, 1, n, k, r->index));
    for (int32_t i = 0; i < k; i++) r->level[r->index[i]] = FASTGEN_FREQUENT;
    return KVL_OK;
}

/* ---- Algorithm 1: the profile ------------------------------------------------------------------------- */

struct fastgen_context {
    const uint8_t *level; /* [n] */
    int32_t n, window; /* newest tokens that LOCAL keeps of what a query sees, its own included */
};

static void fastgen_sizes(const struct fastgen_context *c, int32_t *size)
{
    for (int p = 0; p < FASTGEN_POLICIES; p++) size[p] = 0;
    for (int32_t j = 0; j < c->n; j++) {
        size[FASTGEN_FULL]++;
        size[FASTGEN_LOCAL] += c->level[j] < FASTGEN_LOCAL || j >= c->n - c->window;
        for (int p = c->level[j]; p < FASTGEN_LOCAL; p++) size[p]++;
    }
}

/* Mass that is kept, a mean over all queries: `all` [n] is what every token received from all of them,
 * `near` [n] from the `window` queries from its own on.  A query's window holds a token exactly while the
 * query is among those. */
static void fastgen_mass(const struct fastgen_context *c, const float *all, const float *near,
                         float *recovery)
{
    double kept[FASTGEN_POLICIES] = { 0 };
    for (int32_t j = 0; j < c->n; j++) {
        for (int p = c->level[j]; p < FASTGEN_LOCAL; p++) kept[p] += (double)all[j];
        kept[FASTGEN_LOCAL] += (double)(c->level[j] < FASTGEN_LOCAL ? all[j] : near[j]);
    }
    for (int p = 0; p < FASTGEN_FULL; p++) recovery[p] = (float)(kept[p] / c->n);
    recovery[FASTGEN_FULL] = 1;
}

/* Adds |a - b|, the sum of absolute differences, of one query to distance [FASTGEN_POLICIES]: a its weights
 * on the positions up to `at`, b those that a softmax over what a policy keeps of them gives.  Kept weights
 * grow to a sum of 1: they gain what the others lose. */
static void fastgen_distance(const struct fastgen_context *c, const float *a, int32_t at,
                             double *distance)
{
    double mass[FASTGEN_FULL] = { 0 }, all = 0;
    for (int32_t j = 0; j <= at; j++) {
        all += (double)a[j];
        for (int p = 0; p < FASTGEN_FULL; p++) {
            bool local = p == FASTGEN_LOCAL && j > at - c->window;
            bool kept = c->level[j] <= KVL_MIN(p, FASTGEN_FREQUENT) || local;
            mass[p] += kept ? (double)a[j] : 0;
        }
    }
    for (int p = 0; p < FASTGEN_FULL; p++) {
        double gained = mass[p] > 0 ? fmax(0, 1 - mass[p]) : 0;
        distance[p] += gained + fmax(0, all - mass[p]);
    }
}

/* The cheapest policy that recovers enough; 1: everything, whatever sums are rounded to. */
static enum fastgen_policy fastgen_choose(const struct fastgen_lane *lane, double threshold)
{
    int p = 0;
    while (p < FASTGEN_FULL && (threshold >= 1 || (double)lane->recovery[p] < threshold)) p++;
    return (enum fastgen_policy)p;
}

/* The largest threshold with which lanes hold at most `most` tokens on average after `more` steps, if their
 * kinds of token go on as they were; when there is none, 0, or less where that is what all lanes recover
 * with the cheapest policy (distances go up to 2); 1 when all of the n fit. */
static double fastgen_threshold(const struct fastgen_lane *lane, int32_t n_lanes, int32_t n,
                                int32_t more, int32_t most)
{
    double low = 0, high = 1;
    if (n <= most) return high;
    for (int32_t i = 0; i < n_lanes; i++)
        low = KVL_MIN(low, (double)lane[i].recovery[FASTGEN_SPECIAL]);
    for (int step = 0; step < 40; step++) {
        double middle = (low + high) / 2, sum = 0;
        for (int32_t i = 0; i < n_lanes; i++)
            sum += lane[i].size[fastgen_choose(&lane[i], middle)] * (1 + (double)more / n);
        if (sum / n_lanes <= most)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* y [n]: the rows of a group's query heads, x [n_heads][n], as one. */
static int fastgen_group(const struct kvl_pctx *ctx, const float *x, int32_t kv_head, int32_t n,
                         enum kvl_reduce reduce, float *y)
{
    int32_t group = ctx->shape->group;
    return kvl_layer_scores(ctx, x + (size_t)(kv_head * group) * (size_t)n, group, n, reduce, y);
}

/* recovery=renorm: mean over the last queries of the distance to what is left of their weights. */
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

/* recovery=mass: mean over all queries of the mass that stays. */
static int fastgen_kept_mass(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                             const struct fastgen_context *c, float *mean, float *recovery)
{
    const struct fastgen_opts *o = ctx->opts;
    const float *all, *near;
    int32_t n;
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, 0, &all, &n));
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, o->local, &near, &n));
    KVL_TRY(fastgen_group(ctx, all, kv_head, n, KVL_REDUCE_MEAN, mean));
    KVL_TRY(fastgen_group(ctx, near, kv_head, n, KVL_REDUCE_MEAN, mean + n));
    fastgen_mass(c, mean, mean + n, recovery);
    return KVL_OK;
}

/* Sums and kinds of the context's tokens into the table of a layer; then what each policy recovers. */
static int fastgen_profile(const struct kvl_pctx *ctx, int32_t layer, const struct fastgen_room *r)
{
    const struct fastgen_opts *o = ctx->opts;
    struct fastgen_context c = { .level = r->level, .n = ctx->context_tok, .window = o->local };
    struct kvl_meta_view meta;
    const float *sums;
    const int32_t *id;
    int32_t n;
    KVL_TRY(kvl_tokens(ctx, &id, &n));
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, 0, &sums, &n));
    KVL_TRY(kvl_meta(ctx, o->table, layer, &meta));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        struct fastgen_lane *lane = fastgen_lane(ctx, layer, h);
        float *sum = kvl_live_column(&meta, h, FASTGEN_SUM);
        float *kind = kvl_live_column(&meta, h, FASTGEN_LEVEL);
        KVL_TRY(fastgen_group(ctx, sums, h, n, KVL_REDUCE_SUM, sum));
        for (int32_t i = 0; i < n; i++) kind[i] = (float)fastgen_kind(ctx, i, id[i]);
        KVL_TRY(fastgen_levels(ctx, &meta, h, NULL, n, n, true, r));
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
    struct fastgen_state *s = ctx->state;
    struct fastgen_room room;
    if (layer > 0) return KVL_OK;
    KVL_TRY(fastgen_room(ctx, ctx->context_tok, ctx->shape->n_heads + 1, &room));
    for (int32_t l = 0; l < ctx->shape->n_layers; l++) KVL_TRY(fastgen_profile(ctx, l, &room));
    s->n_lanes = ctx->shape->n_layers * ctx->shape->n_kv_heads;
    s->threshold = o->given >= 0 ? o->given
                                 : fastgen_threshold(s->lane, s->n_lanes, ctx->context_tok,
                                                     o->horizon, ctx->budget_tok - 1);
    for (int32_t i = 0; i < s->n_lanes; i++)
        s->lane[i].taken = (int32_t)fastgen_choose(&s->lane[i], s->threshold);
    return KVL_OK;
}

/* ---- Algorithm 2: steps ------------------------------------------------------------------------------- */

/* What the newest query gave to all that is live, and what kind of token it is. */
static int fastgen_observe(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const float *const *probs, const int32_t *n, const float *lse)
{
    const struct fastgen_opts *o = ctx->opts;
    int32_t group = ctx->shape->group, n_id;
    struct kvl_meta_view meta;
    const int32_t *id;
    (void)lse;
    KVL_TRY(kvl_tokens(ctx, &id, &n_id));
    KVL_TRY(kvl_meta(ctx, o->table, step->layer, &meta));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        kvl_live_column(&meta, h, FASTGEN_LEVEL)[n[h * group] - 1] =
            (float)fastgen_kind(ctx, step->pos, id[step->pos]);
    return kvl_live_add(ctx, o->table, step->layer, false, probs, n, NULL);
}

/* A lane that does not keep everything; `end`: tokens of the text so far. */
static int fastgen_cut(const struct kvl_pctx *ctx, const struct kvl_meta_view *meta, int32_t layer,
                       int32_t kv_head, int32_t end, struct kvl_keep *keep)
{
    const struct fastgen_opts *o = ctx->opts;
    int32_t policy = fastgen_lane(ctx, layer, kv_head)->taken, n, n_kept = 0;
    struct fastgen_room room;
    const int32_t *live;
    KVL_TRY(kvl_live(ctx, layer, kv_head, &live, &n));
    KVL_TRY(fastgen_room(ctx, n, 0, &room));
    KVL_TRY(fastgen_levels(ctx, meta, kv_head, live, n, end, policy >= FASTGEN_FREQUENT, &room));
    for (int32_t i = 0; i < n; i++) {
        bool local = policy == FASTGEN_LOCAL && live[i] >= end - o->local;
        if (room.level[i] <= KVL_MIN(policy, FASTGEN_FREQUENT) || local)
            room.index[n_kept++] = live[i];
    }
    return kvl_keep_tokens(keep, kv_head, room.index, n_kept);
}

static int fastgen_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    const struct fastgen_opts *o = ctx->opts;
    struct kvl_meta_view meta;
    KVL_TRY(kvl_meta(ctx, o->table, step->layer, &meta));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        if (fastgen_lane(ctx, step->layer, h)->taken != FASTGEN_FULL)
            KVL_TRY(fastgen_cut(ctx, &meta, step->layer, h, step->pos + step->n_tok, keep));
    return KVL_OK;
}

/* The threshold that ran, and the share of the lanes that took each policy. */
static int fastgen_report(struct kvl_pctx *ctx, struct kvl_report *report)
{
    static const char *const names[] = { "lanes_special", "lanes_punct", "lanes_frequent",
                                         "lanes_local", "lanes_full" };
    const struct fastgen_state *s = ctx->state;
    double share[FASTGEN_POLICIES] = { 0 };
    for (int32_t i = 0; i < s->n_lanes; i++) share[s->lane[i].taken] += 1.0 / s->n_lanes;
    KVL_TRY(kvl_report_num(report, "threshold", s->threshold));
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
