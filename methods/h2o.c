/* h2o - keeps the tokens that have received the most attention, and the latest.
 *
 * Zhang et al.: H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
 * Models, NeurIPS 2023 (arXiv 2306.14048), section 4, Algorithm 1.  The score of token j in a query
 * head is all the attention that it has received so far:
 *     A_j = sum over the queries i >= j that read it of softmax(q_i . k / sqrt(d))_j
 * When the context is complete, and then after every step, a lane keeps its last `recent` tokens and
 * the `heavy` best-scored of the others (ties: the lower position).  What is dropped is gone, its
 * score with it.  A new token starts with what it gave itself.
 *
 * `variant` names the published behaviours that really drop; those that mask are the method h2o_sim.
 *   realdrop            the summarization and streaming code (utils_real_drop)
 *   llama_recipes       the author's later port: window_length = heavy + recent, num_hh_tokens =
 *                       heavy; only the first query head of a group is asked (sets reduce=first)
 *   flexgen             the throughput code: K = heavy, and K - 1 recent ones of the prompt; then a
 *                       token that leaves the ring of recent ones takes the place of the lightest,
 *                       so that the best K - 1 and the last K stay.  Its order of ties is its own
 *   prefill_only        KVCache-Factory after its fix of June 2026: one cut of the prompt, 8 recent
 *                       tokens (its needle script: 32), nothing drops or is scored while decoding.
 *                       Per query head there by default; reduce=mean is its kv_head mode
 *   observed_attention  kvpress: one cut by A_j / (number of queries that can see j), the group's
 *                       mean, no recent tokens protected
 * Kept keys have their original positions, or ranks in the cache (positions=in_cache: the streaming
 * code, `position rolling` of the port).
 *
 * Budget B: a step attends to heavy + recent + `every` tokens, the current one among them: heavy +
 * recent = B - every, halved (one cut: B - 1, and the cache grows by what comes later).
 * With its own prefill H2O streams from the first token.
 */
#include "parts/live_scores.h"

enum { H2O_REALDROP = 0, H2O_LLAMA_RECIPES, H2O_FLEXGEN, H2O_PREFILL_ONLY, H2O_OBSERVED };
enum { H2O_ORIGINAL = 0, H2O_IN_CACHE = 1 };
enum { H2O_MEAN = 0, H2O_MAX, H2O_FIRST };
enum { H2O_MAX_SHARES = 16, H2O_FACTORY_WINDOW = 8, H2O_MAX_TOKENS = 1 << 28 };

struct h2o_opts {
    int32_t heavy, recent, variant, reduce, positions, every;
    double decay;
    char layer_budgets[KVL_OPT_STR_SIZE];
    int32_t table, n_shares;      /* not options: from plan */
    double share[H2O_MAX_SHARES]; /* over depth, their mean over the layers is 1 */
};

static const char *const h2o_variants[] = { "realdrop",     "llama_recipes",      "flexgen",
                                            "prefill_only", "observed_attention", NULL };
static const char *const h2o_reduce_names[] = { "mean", "max", "first", NULL };
static const enum kvl_reduce h2o_reduces[] = { KVL_REDUCE_MEAN, KVL_REDUCE_MAX, KVL_REDUCE_FIRST };
static const char *const h2o_positions[] = { "original", "in_cache", NULL };

static const struct kvl_opt h2o_options[] = {
    KVL_ROW_INT(h2o_opts, heavy, "auto", 0, H2O_MAX_TOKENS,
                "tokens kept by score; auto = half of budget - every (paper: half)"),
    KVL_ROW_INT(h2o_opts, recent, "auto", 0, H2O_MAX_TOKENS,
                "latest tokens that stay; auto = what heavy leaves; prefill_only: 8; "
                "observed_attention: 0"),
    KVL_ROW_ENUM(h2o_opts, variant, "realdrop", h2o_variants,
                 "published behaviour; the last two cut the prompt once"),
    KVL_ROW_ENUM(h2o_opts, reduce, "mean", h2o_reduce_names,
                 "scores of the query heads of a kv head (official: one query head per kv head; "
                 "llama_recipes: first)"),
    KVL_ROW_ENUM(h2o_opts, positions, "original", h2o_positions,
                 "original: as before eviction; in_cache: rank in the cache (streaming code)"),
    KVL_ROW_INT(h2o_opts, every, "1", 1, 65536,
                "steps between two cuts; the cache grows meanwhile, inside the budget (paper: 1)"),
    KVL_ROW_FLOAT(h2o_opts, decay, "1", 0, 1, "factor of all scores per step (paper: 1 = none)"),
    KVL_ROW_STR(h2o_opts, layer_budgets, "1",
                "shares of the budget from the first layer to the last, such as 3/2/1, linear "
                "between them; their mean is the budget (paper: equal)"),
    { 0 },
};

/* ---- plan ---------------------------------------------------------------------------------------- */

/* Cuts the prompt once and lets the cache grow. */
static bool h2o_once(const struct h2o_opts *o)
{
    return o->variant == H2O_PREFILL_ONLY || o->variant == H2O_OBSERVED;
}

/* Tokens of a step that come on top of what the last cut left. */
static int32_t h2o_slack(const struct h2o_opts *o)
{
    return h2o_once(o) ? 1 : o->every;
}

static int32_t h2o_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct h2o_opts *o = opts;
    (void)shape;
    if (o->heavy != KVL_AUTO && o->recent != KVL_AUTO) return 1;
    if (o->heavy == KVL_AUTO && o->recent == KVL_AUTO) return h2o_slack(o) + 2;
    return h2o_slack(o) + KVL_MAX(1, KVL_MAX(o->heavy, o->recent));
}

/* Splits what a cut leaves into heavy and recent tokens. */
static int h2o_split(struct kvl_plan *plan)
{
    struct h2o_opts *o = plan->opts;
    bool flexgen = o->variant == H2O_FLEXGEN;
    int32_t room = plan->budget_tok - h2o_slack(o), heavy = flexgen ? (room + 1) / 2 : room / 2;
    if (o->heavy == KVL_AUTO || o->recent == KVL_AUTO) KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->variant == H2O_OBSERVED) heavy = room;
    if (o->variant == H2O_PREFILL_ONLY) heavy = room - KVL_MIN(H2O_FACTORY_WINDOW, room / 2);
    if (o->heavy == KVL_AUTO) o->heavy = o->recent == KVL_AUTO ? heavy : room - o->recent;
    if (o->recent == KVL_AUTO)
        o->recent = flexgen ? KVL_MIN(o->heavy - 1, room - o->heavy) : room - o->heavy;
    if (!flexgen || o->heavy >= 1) return KVL_OK;
    return kvl_fail(plan->err, KVL_EINVAL, "variant=flexgen with heavy=0; give 1 or more");
}

/* Share of a layer: linear between those given. */
static double h2o_share(const struct h2o_opts *o, int32_t layer, int32_t n_layers)
{
    if (o->n_shares == 1 || n_layers == 1) return o->share[0];
    double x = (double)layer * (o->n_shares - 1) / (n_layers - 1);
    int32_t i = KVL_MIN((int32_t)x, o->n_shares - 2);
    return o->share[i] + (x - i) * (o->share[i + 1] - o->share[i]);
}

/* Whole numbers with '/' between them. */
static int h2o_parse_shares(struct kvl_plan *plan)
{
    struct h2o_opts *o = plan->opts;
    const char *c = o->layer_budgets;
    for (o->n_shares = 0; o->n_shares < H2O_MAX_SHARES; c++) {
        int32_t share = 0;
        while (*c >= '0' && *c <= '9' && share < 10000) share = 10 * share + (*c++ - '0');
        if (share < 1) break;
        o->share[o->n_shares++] = share;
        if (*c == '\0') return KVL_OK;
        if (*c != '/') break;
    }
    return kvl_fail(plan->err, KVL_EINVAL,
                    "layer_budgets=%s; give at most %d whole numbers above 0, such as 3/2/1",
                    o->layer_budgets, H2O_MAX_SHARES);
}

/* What a cut leaves in a layer. */
struct h2o_cut {
    int32_t heavy, recent;
};

/* The little on top keeps 1/3 * 30 at 10; the bound keeps sums of two parts in range. */
static struct h2o_cut h2o_cut(const struct h2o_opts *o, const struct kvl_shape *shape,
                              int32_t layer)
{
    double share = h2o_share(o, layer, shape->n_layers), most = H2O_MAX_TOKENS;
    return (struct h2o_cut){ .heavy = (int32_t)KVL_MIN(share * o->heavy + 1e-6, most),
                             .recent = (int32_t)KVL_MIN(share * o->recent + 1e-6, most) };
}

/* Makes the mean of the shares 1, and checks that every layer keeps something. */
static int h2o_scale_shares(struct kvl_plan *plan)
{
    struct h2o_opts *o = plan->opts;
    int32_t n_layers = plan->shape->n_layers;
    double sum = 0;
    for (int32_t l = 0; l < n_layers; l++) sum += h2o_share(o, l, n_layers);
    for (int32_t i = 0; i < o->n_shares; i++) o->share[i] *= n_layers / sum;
    for (int32_t l = 0; l < n_layers; l++) {
        struct h2o_cut cut = h2o_cut(o, plan->shape, l);
        if (cut.heavy + cut.recent < 1)
            return kvl_fail(
                plan->err, KVL_EINVAL,
                "heavy=%d, recent=%d and layer_budgets=%s leave layer %d no token; give more",
                o->heavy, o->recent, o->layer_budgets, l);
    }
    return KVL_OK;
}

static int h2o_plan(struct kvl_plan *plan)
{
    struct h2o_opts *o = plan->opts;
    if (plan->own_prefill && h2o_once(o))
        return kvl_fail(plan->err, KVL_EINVAL,
                        "variant=%s cuts a finished prompt; give prefill: shared",
                        h2o_variants[o->variant]);
    if (o->variant == H2O_LLAMA_RECIPES) o->reduce = H2O_FIRST;
    KVL_TRY(h2o_split(plan));
    KVL_TRY(h2o_parse_shares(plan));
    KVL_TRY(h2o_scale_shares(plan));
    plan->raw_keys = o->positions == H2O_IN_CACHE;
    if (!h2o_once(o))
        KVL_TRY(kvl_plan_table(plan, &o->table, .unit = KVL_UNIT_LIVE, .unit_tok = 1,
                               .row_elems = plan->shape->group));
    return plan->own_prefill ? KVL_OK : kvl_plan_observe(plan, KVL_OBS_COLUMNS, 0);
}

/* ---- the prompt ---------------------------------------------------------------------------------- */

/* The column sums of the prompt become the scores that steps add to. */
static int h2o_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct h2o_opts *o = ctx->opts;
    return h2o_once(o) ? KVL_OK : kvl_live_begin(ctx, o->table, layer);
}

/* The first cut; the engine keeps the best and the protected ones. */
static int h2o_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct h2o_opts *o = ctx->opts;
    struct h2o_cut cut = h2o_cut(o, ctx->shape, layer);
    const float *sums;
    int32_t n_tok;
    scores->keep_tok = cut.heavy + cut.recent;
    scores->protect_last = cut.recent;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, 0, &sums, &n_tok));
    KVL_TRY(kvl_group_scores(ctx, sums, n_tok, h2o_reduces[o->reduce], scores->score));
    if (o->variant != H2O_OBSERVED) return KVL_OK;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        for (int32_t i = 0; i < n_tok; i++)
            scores->score[(size_t)h * (size_t)n_tok + (size_t)i] /= (float)(n_tok - i);
    return KVL_OK;
}

/* ---- steps --------------------------------------------------------------------------------------- */

static int h2o_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                      struct kvl_sel *sel)
{
    const struct h2o_opts *o = ctx->opts;
    (void)step;
    (void)q;
    return o->positions == H2O_ORIGINAL ? KVL_OK : kvl_sel_positions(sel, KVL_POS_IN_CACHE, 0);
}

/* _update_hh_score(): adds the weights of a step to the scores of what it read: all that is live. */
static int h2o_observe(struct kvl_pctx *ctx, const struct kvl_step *step, const float *const *probs,
                       const int32_t *n, const float *lse)
{
    const struct h2o_opts *o = ctx->opts;
    float decay = (float)o->decay;
    (void)lse;
    if (h2o_once(o)) return KVL_OK;
    return kvl_live_add(ctx, o->table, step->layer, true, probs, n, decay < 1 ? &decay : NULL);
}

/* Algorithm 1, after every step and at the end of a block: recent tokens, and the best of the others.
 * The lanes of a layer are cut together. */
static int h2o_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    const struct h2o_opts *o = ctx->opts;
    struct h2o_cut cut = h2o_cut(o, ctx->shape, step->layer);
    const int32_t *live;
    float *score;
    int32_t n;
    if (step->replay || h2o_once(o)) return KVL_OK; /* the prompt was cut by its scores */
    KVL_TRY(kvl_live(ctx, step->layer, 0, &live, &n));
    if (n < cut.heavy + cut.recent + o->every) return KVL_OK;
    /* The newest heavy token has just left the ring, and has not had to compete yet. */
    bool ring = o->variant == H2O_FLEXGEN && cut.heavy > 0;
    KVL_TRY(kvl_live_scores(ctx, o->table, step->layer, ctx->shape->group, n,
                            h2o_reduces[o->reduce], &score));
    return kvl_keep_best(ctx, step, keep, KVL_SCOPE_KV_HEAD, score, n, cut.heavy - ring,
                         cut.recent + ring);
}

static const struct kvl_policy h2o = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "h2o",
    .title = "H2O",
    .paper = "Zhang et al., NeurIPS 2023, arXiv 2306.14048",
    .help = "keeps the tokens that received the most attention, and the latest",
    .follows =
        "Real dropping of the official code: column sums of the whole prompt, then the weights of "
        "every step; half heavy tokens, half recent ones, at original positions. "
        "positions=in_cache rolls positions as the streaming code does. variant names its other "
        "behaviours that really drop (llama_recipes, flexgen), KVCache-Factory (prompt only, after "
        "its fix of June 2026) and kvpress' ObservedAttention. The official code fails on grouped "
        "queries: here sums are kept per query head and reduced when a lane decides, by mean, max "
        "or first (reduce; first is the port's).",
    .deviations =
        "The context comes from a dense prefill, as in the official code, unless prefill=own. Sums "
        "of the prompt know original positions and no decay; a block of several tokens is cut at "
        "its end; 32-bit floats, where the official code has the model's type. decay, every and "
        "layer_budgets are published nowhere. Left out: KVCache-Factory before its fix (early "
        "queries saw later keys), and its default of one set per query head on repeated keys.",
    .cost =
        "Per step and layer B additions for each of H heads and, once in `every` steps, a top-k of "
        "B per kv head; positions=in_cache rotates B keys anew. Once a second pass of all queries "
        "over all keys, shared by all policies that want column sums, and a top-k of n per kv "
        "head. Memory: a float per live token and query head, for the variants of one cut none; "
        "with positions=in_cache keys before RoPE, half the cache again.",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_REPOSITIONS | KVL_CAP_ASYNC,
    .prefill = KVL_PREFILL_EITHER,
    .opts = h2o_options,
    .opts_size = sizeof(struct h2o_opts),
    .min_budget = h2o_min_budget,
    .plan = h2o_plan,
    .prefilled = h2o_prefilled,
    .score = h2o_score,
    .select = h2o_select,
    .observe = h2o_observe,
    .evict = h2o_evict,
};

KVL_POLICY_EXPORT(h2o)
