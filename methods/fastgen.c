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
 * The authors' code was never published.  Two readings of "recovers" (kvl/nested.h):
 *   mass    cold-compress: the share of the attention that falls on what is kept, a mean over all queries
 *           of the context; exact, from two column sums (all queries; the next r_l n queries)
 *   renorm  the paper: 1 - |A - softmax(Q K_C^T)|, where the kept weights grow to sum up to 1; taken as
 *           the sum of a query's absolute differences, a mean over the last `rows` queries
 *
 * While decoding, after every step (a question that runs as one block: at its end), a head keeps what its
 * policy keeps of the text so far: tokens that are none of its kinds go, sums go on, the most frequent are
 * chosen anew, the window moves on.
 *
 * Budget B: threshold=budget takes, when the profile is known, the largest T with which lanes hold at most
 * B - 1 tokens on average, `horizon` steps on.  With a threshold given B counts for nothing. */
#include "kvl/policy.h"
#include "parts/live_scores.h"
#include "parts/nested.h"

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

struct fastgen_state {
    double threshold;
    int32_t n_lanes;
    struct kvl_nested_lane lane[]; /* [n_layers][n_kv_heads]; chosen: enum fastgen_policy */
};

static const char *const fastgen_recoveries[] = { "mass", "renorm", NULL };

static const struct kvl_opt fastgen_options[] = {
    KVL_ROW_STR(fastgen_opts, threshold, "budget",
                "part of the attention to recover, T, 0 to 1, or budget (paper: 0.85 and more)"),
    KVL_ROW_ENUM(fastgen_opts, recovery, "mass", fastgen_recoveries,
                 "how: mass kept (cold-compress), distance of kept weights (paper)"),
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

static int32_t fastgen_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct fastgen_opts *o = opts;
    (void)shape;
    return strcmp(o->threshold, "budget") == 0 ? o->global_tokens + 2 : 1;
}

static int fastgen_plan(struct kvl_plan *plan)
{
    struct fastgen_opts *o = plan->opts;
    size_t lanes = (size_t)plan->shape->n_layers * (size_t)plan->shape->n_kv_heads;
    KVL_TRY(kvl_plan_share(plan, "threshold", o->threshold, "budget", &o->given));
    if (o->given < 0) KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->local == KVL_AUTO) o->local = KVL_MAX(1, (int32_t)(o->r_l * plan->context_tok));
    plan->state_bytes = sizeof(struct fastgen_state) + lanes * sizeof(struct kvl_nested_lane);
    KVL_TRY(kvl_plan_table(plan, &o->table, .unit = KVL_UNIT_LIVE, .unit_tok = 1,
                           .row_elems = FASTGEN_COLUMNS));
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_COLUMNS, 0));
    if (o->recovery == FASTGEN_RENORM) return kvl_plan_observe(plan, KVL_OBS_WINDOW, o->rows);
    return kvl_plan_observe(plan, KVL_OBS_COLUMNS, o->local);
}

static struct kvl_nested_lane *fastgen_lane(const struct kvl_pctx *ctx, int32_t layer,
                                            int32_t kv_head)
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

/* Scratch for n tokens of a lane, or of several in a row. */
struct fastgen_room {
    /* The first policy that keeps a token for what it is or has received; LOCAL: only being recent does. */
    uint8_t *level;
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
 * Of those of no kind the most attended are FREQUENT, if wanted: *k of them, which an operator puts into r->index. */
static int fastgen_levels(const struct kvl_pctx *ctx, const struct kvl_rows *rows, int32_t kv_head,
                          const int32_t *pos, int32_t n, int32_t end, bool frequent,
                          const struct fastgen_room *r, int32_t *k)
{
    const struct fastgen_opts *o = ctx->opts;
    const float *sum = kvl_table_column(rows, kv_head, FASTGEN_SUM);
    const float *kind = kvl_table_column(rows, kv_head, FASTGEN_LEVEL);
    int32_t n_free = 0;
    for (int32_t i = 0; i < n; i++) {
        bool none = kind[i] >= FASTGEN_LOCAL;
        r->level[i] = (uint8_t)kind[i];
        r->score[i] = none ? sum[i] / (float)(end - (pos ? pos[i] : i)) : -1;
        n_free += none;
    }
    *k = frequent ? (int32_t)ceil(fmin(o->r_f * end, n_free)) : 0;
    return frequent ? kvl_topk(ctx, r->score, 1, n, *k, r->index) : KVL_OK;
}

/* They are there. */
static void fastgen_frequent(const struct fastgen_room *r, int32_t k)
{
    for (int32_t i = 0; i < k; i++) r->level[r->index[i]] = FASTGEN_FREQUENT;
}

/* ---- Algorithm 1: the profile ------------------------------------------------------------------------- */

/* Sums and kinds of the context's tokens into the table of a layer; then what each policy recovers. */
static int fastgen_profile(const struct kvl_pctx *ctx, int32_t layer, const struct fastgen_room *r)
{
    const struct fastgen_opts *o = ctx->opts;
    struct kvl_nested sets = {
        .level = r->level, .n = ctx->context_tok, .n_sets = FASTGEN_POLICIES, .window = o->local
    };
    struct kvl_rows rows;
    const float *sums;
    const int32_t *id;
    int32_t n, k;
    KVL_TRY(kvl_tokens(ctx, &id, &n));
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, 0, &sums, &n));
    KVL_TRY(kvl_table_all(ctx, o->table, layer, &rows));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        struct kvl_nested_lane *lane = fastgen_lane(ctx, layer, h);
        float *sum = kvl_table_column(&rows, h, FASTGEN_SUM);
        float *kind = kvl_table_column(&rows, h, FASTGEN_LEVEL);
        const float *group = sums + (size_t)(h * ctx->shape->group) * (size_t)n;
        KVL_TRY(kvl_layer_scores(ctx, group, ctx->shape->group, n, KVL_REDUCE_SUM, sum));
        for (int32_t i = 0; i < n; i++) kind[i] = (float)fastgen_kind(ctx, i, id[i]);
        KVL_TRY(fastgen_levels(ctx, &rows, h, NULL, n, n, true, r, &k));
        fastgen_frequent(r, k);
        kvl_nested_sizes(&sets, lane->size);
        if (o->recovery == FASTGEN_RENORM)
            KVL_TRY(kvl_nested_by_window(ctx, layer, h, &sets, o->rows, r->rows, lane->kept));
        else
            KVL_TRY(kvl_nested_by_columns(ctx, layer, h, &sets, r->rows, lane->kept));
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
    s->threshold = o->given;
    if (o->given < 0)
        s->threshold = kvl_nested_part(s->lane, s->n_lanes, FASTGEN_POLICIES, ctx->context_tok,
                                       o->horizon, ctx->budget_tok - 1);
    for (int32_t i = 0; i < s->n_lanes; i++)
        s->lane[i].chosen = kvl_nested_choose(&s->lane[i], FASTGEN_POLICIES, s->threshold);
    return KVL_OK;
}

/* ---- Algorithm 2: steps ------------------------------------------------------------------------------- */

/* What the newest query gave to all that is live. */
static int fastgen_observe(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const float *const *probs, const int32_t *n, const float *lse)
{
    const struct fastgen_opts *o = ctx->opts;
    (void)lse;
    return kvl_live_add(ctx, o->table, step->layer, false, probs, n, NULL);
}

/* Of a lane that does not keep everything: its live tokens, what they are and have received, and how many are frequent. */
struct fastgen_lane {
    const int32_t *live;
    int32_t n, n_frequent;
    struct fastgen_room room;
};

/* What kinds of token have come since the prompt is noted here, where the host has the table. */
static int fastgen_rank(const struct kvl_pctx *ctx, const struct kvl_rows *rows, int32_t layer,
                        int32_t kv_head, int32_t end, struct fastgen_lane *l)
{
    bool frequent = fastgen_lane(ctx, layer, kv_head)->chosen >= FASTGEN_FREQUENT;
    float *kind = kvl_table_column(rows, kv_head, FASTGEN_LEVEL);
    const int32_t *id;
    int32_t n_id;
    KVL_TRY(kvl_tokens(ctx, &id, &n_id));
    KVL_TRY(kvl_live(ctx, layer, kv_head, &l->live, &l->n));
    for (int32_t i = l->n - 1; i >= 0 && l->live[i] >= ctx->context_tok; i--)
        kind[i] = (float)fastgen_kind(ctx, l->live[i], id[l->live[i]]);
    return fastgen_levels(ctx, rows, kv_head, l->live, l->n, end, frequent, &l->room,
                          &l->n_frequent);
}

static int fastgen_cut(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, int32_t end,
                       const struct fastgen_lane *l, struct kvl_keep *keep)
{
    const struct fastgen_opts *o = ctx->opts;
    int32_t policy = fastgen_lane(ctx, layer, kv_head)->chosen, n_kept = 0, *kept;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)l->n, &kept));
    fastgen_frequent(&l->room, l->n_frequent);
    for (int32_t i = 0; i < l->n; i++) {
        bool local = policy == FASTGEN_LOCAL && l->live[i] >= end - o->local;
        if (l->room.level[i] <= KVL_MIN(policy, FASTGEN_FREQUENT) || local)
            kept[n_kept++] = l->live[i];
    }
    return kvl_keep_tokens(keep, kv_head, kept, n_kept);
}

/* Waits for the table, then for what is frequent in any of the lanes. */
static int fastgen_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    const struct fastgen_opts *o = ctx->opts;
    int32_t n_kv = ctx->shape->n_kv_heads, end = step->pos + step->n_tok, most = 0, n, *index;
    struct fastgen_lane *lane;
    struct kvl_rows rows;
    const int32_t *live;
    void *room;
    for (int32_t h = 0; h < n_kv; h++, most = KVL_MAX(most, n))
        KVL_TRY(kvl_live(ctx, step->layer, h, &live, &n));
    KVL_TRY(kvl_table_all(ctx, o->table, step->layer, &rows));
    KVL_TRY(kvl_scratch_items(ctx, (size_t)n_kv, sizeof *lane, &room));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_kv * (size_t)most, &index));
    KVL_TRY(kvl_look_at(ctx, index, 0, sizeof *index));
    lane = room;
    for (int32_t h = 0; h < n_kv; h++) {
        if (fastgen_lane(ctx, step->layer, h)->chosen == FASTGEN_FULL) continue;
        KVL_TRY(fastgen_room(ctx, most, 0, &lane[h].room));
        lane[h].room.index = index + (size_t)h * (size_t)most;
        KVL_TRY(fastgen_rank(ctx, &rows, step->layer, h, end, &lane[h]));
    }
    KVL_TRY(kvl_look_at(ctx, index, (size_t)n_kv * (size_t)most, sizeof *index));
    for (int32_t h = 0; h < n_kv; h++)
        if (fastgen_lane(ctx, step->layer, h)->chosen != FASTGEN_FULL)
            KVL_TRY(fastgen_cut(ctx, step->layer, h, end, &lane[h], keep));
    return KVL_OK;
}

/* The threshold that ran, and the share of the lanes that took each policy. */
static int fastgen_report(struct kvl_pctx *ctx, struct kvl_report *report)
{
    static const char *const names[] = { "lanes_special", "lanes_punct", "lanes_frequent",
                                         "lanes_local", "lanes_full" };
    const struct fastgen_state *s = ctx->state;
    double share[FASTGEN_POLICIES] = { 0 };
    for (int32_t i = 0; i < s->n_lanes; i++) share[s->lane[i].chosen] += 1.0 / s->n_lanes;
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
    .caps = KVL_CAP_EVICTS | KVL_CAP_TOKENS | KVL_CAP_RAGGED | KVL_CAP_ASYNC,
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
