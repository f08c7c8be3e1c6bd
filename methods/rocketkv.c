/* rocketkv - drops most of the context once, then chooses among what is left, by a few channels.
 *
 * Behnam et al.: RocketKV: Accelerating Long-Context LLM Inference via Two-Stage KV Cache Compression,
 * ICML 2025 (arXiv 2502.14051).  With a context of L tokens and a budget of T:
 *   split    c = L / T, alpha = min(0.2 + 0.06 log2 c, 0.8); stage 1 keeps floor(L / c^alpha) tokens,
 *            stage 2 reads k = T / 2 of them; the other half of T is what its index costs
 *   stage 1  SnapKV with window 32, maximum pooling over 63 tokens, sums over the query heads of a kv
 *            head: the best tokens and the window stay, the rest is dropped
 *   stage 2  hybrid attention: pages of p consecutive kept tokens have the minimum and maximum of their
 *            keys per channel.  Of a query group the r channels of largest sum of |q| count; in each, the
 *            maximum where the sum of q is not negative, else the minimum:
 *            score_h(page) = sum over these channels of q_h,c bound_c / sqrt(d)
 *            softmax over pages per query head, mean over the group; the best pages are read.  With
 *            c2 = kept / T:  p = min(floor(c2), ceil(sqrt(c2))), r = round(d p / c2)
 * Pages of tokens that come later join those of the context as they fill up; the page of the current token
 * is always read.  Budget B: k = B tokens in whole pages, the newest page among them, so T = 2 B.
 * multi_turn=true (RocketKV-MT) keeps all tokens; stage 1 only says which ones stage 2 may choose. */
#include "parts/boxes.h"
#include "parts/window_scores.h"

#include <math.h>

enum { ROCKET_MAX_PAGE = 16 };

struct rocket_opts {
    int32_t token_budget, stage1_tok, page, channels, window, kernel;
    bool multi_turn;
    /* not options: tables of pages' boxes and, for multi_turn, of positions that stage 1 leaves to stage 2 */
    int32_t boxes, filter;
};

static const struct kvl_opt rocket_options[] = {
    KVL_ROW_INT(rocket_opts, token_budget, "auto", 2, 1 << 30,
                "T of the paper (256 to 2048), half of it tokens; auto = 2 budget"),
    KVL_ROW_INT(rocket_opts, stage1_tok, "auto", 1, 1 << 30,
                "tokens that stage 1 keeps; auto = the paper's split"),
    KVL_ROW_INT(rocket_opts, page, "auto", 1, ROCKET_MAX_PAGE,
                "tokens per page; auto = the paper's split"),
    KVL_ROW_INT(rocket_opts, channels, "auto", 1, 65536,
                "channels that score a page; auto = the paper's split"),
    KVL_ROW_INT(rocket_opts, window, "auto", 1, 1024,
                "last queries that vote, and stay (paper: 32); auto = min(32, stage1_tok / 2)"),
    KVL_ROW_INT(rocket_opts, kernel, "63", 1, 1023,
                "width of the pooling in tokens, odd (paper: 63)"),
    KVL_ROW_BOOL(rocket_opts, multi_turn, "false",
                 "keep all tokens, stage 1 only filters (paper: RocketKV-MT)"),
    { 0 },
};

static int32_t rocket_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct rocket_opts *o = opts;
    (void)shape;
    return o->token_budget != KVL_AUTO ? 1 : o->page == KVL_AUTO ? 8 : 2 * o->page;
}

/* The paper's split (sizes of stages 1 and 2) of a context of `length` tokens. */
static void rocket_split(struct rocket_opts *o, int32_t length, int32_t head_dim)
{
    double budget = o->token_budget, ratio = KVL_MAX(1.0, length / budget);
    double alpha = KVL_MIN(0.2 + 0.06 * log2(ratio), 0.8);
    if (o->stage1_tok == KVL_AUTO) /* one token has no window */
        o->stage1_tok = KVL_MAX(2, (int32_t)floor(length / pow(ratio, alpha)));
    double rest = KVL_MAX(1.0, o->stage1_tok / budget);
    double page = KVL_MIN(floor(rest), ceil(sqrt(rest)));
    if (o->page == KVL_AUTO) o->page = (int32_t)KVL_MIN(page, (double)ROCKET_MAX_PAGE);
    double channels = floor(head_dim * o->page / rest + 0.5);
    if (o->channels == KVL_AUTO)
        o->channels = (int32_t)KVL_MAX(1.0, KVL_MIN(channels, (double)head_dim));
    if (o->window == KVL_AUTO) o->window = KVL_MAX(1, KVL_MIN(32, o->stage1_tok / 2));
}

/* Pages that a step reads, the newest among them. */
static int32_t rocket_pages(const struct rocket_opts *o)
{
    return o->token_budget / 2 / o->page;
}

static int rocket_check(const struct kvl_plan *plan)
{
    const struct rocket_opts *o = plan->opts;
    if (o->kernel % 2 == 0)
        return kvl_fail(plan->err, KVL_EINVAL, "kernel=%d; give an odd number", o->kernel);
    if (o->channels > plan->shape->head_dim)
        return kvl_fail(plan->err, KVL_EINVAL, "channels=%d; a head has %d", o->channels,
                        plan->shape->head_dim);
    if (rocket_pages(o) < 2)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "%d tokens (half of token_budget=%d) with page=%d; give %d or more (the "
                        "newest page and one)",
                        o->token_budget / 2, o->token_budget, o->page, 2 * o->page);
    if (o->window >= o->stage1_tok)
        return kvl_fail(plan->err, KVL_EINVAL, "window=%d with stage1_tok=%d; give less", o->window,
                        o->stage1_tok);
    return KVL_OK;
}

static int rocket_plan(struct kvl_plan *plan)
{
    struct rocket_opts *o = plan->opts;
    int32_t dim = plan->shape->head_dim;
    if (o->token_budget == KVL_AUTO) {
        KVL_TRY(kvl_plan_needs_budget(plan));
        o->token_budget = 2 * KVL_MIN(plan->budget_tok, 1 << 29);
    }
    rocket_split(o, plan->context_tok, dim);
    KVL_TRY(rocket_check(plan));
    plan->replay = KVL_REPLAY_NONE;
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, o->window));
    KVL_TRY(kvl_plan_table(plan, &o->boxes, .unit = KVL_UNIT_LIVE, .unit_tok = 1,
                           .row_elems = KVL_BOX_ELEMS(dim, o->page), .elem = KVL_ELEM_KEY));
    if (!o->multi_turn) return KVL_OK;
    return kvl_plan_table(plan, &o->filter, .unit = KVL_UNIT_LANE, .unit_tok = 1,
                          .row_elems = o->stage1_tok, .elem = KVL_ELEM_I32);
}

/* ---- stage 1 --------------------------------------------------------------------------------------- */

/* multi_turn: what would have been kept, for stage 2. */
static int rocket_filter(const struct kvl_pctx *ctx, int32_t layer, const struct kvl_scores *scores)
{
    const struct rocket_opts *o = ctx->opts;
    int32_t n = scores->n_tok - o->window, k = o->stage1_tok - o->window;
    struct kvl_rows rows;
    KVL_TRY(kvl_table_write(ctx, o->filter, layer, 0, &rows));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        int32_t *pos = kvl_table_row_out(&rows, h, 0);
        KVL_TRY(kvl_topk(ctx, scores->score + (size_t)h * (size_t)scores->n_tok, 1, n, k, pos));
        for (int32_t i = 0; i < o->window; i++) pos[k + i] = n + i;
    }
    return KVL_OK;
}

static int rocket_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct rocket_opts *o = ctx->opts;
    struct kvl_window_scores window = { o->window, o->kernel, .reduce = KVL_REDUCE_SUM };
    scores->keep_tok = o->stage1_tok;
    scores->protect_last = scores->n_summed = o->window;
    if (scores->n_tok <= o->stage1_tok) return KVL_OK;
    KVL_TRY(kvl_window_scores(ctx, layer, &window, scores->score, scores->n_tok));
    if (!o->multi_turn) return KVL_OK;
    scores->keep_tok = scores->n_tok;
    return rocket_filter(ctx, layer, scores);
}

/* ---- stage 2: pages --------------------------------------------------------------------------------- */

/* Not all that is live may be chosen. */
static bool rocket_filters(const struct kvl_pctx *ctx)
{
    const struct rocket_opts *o = ctx->opts;
    return o->multi_turn && ctx->context_tok > o->stage1_tok;
}

/* How many tokens of a lane stage 2 may choose, up to position `newest`. */
static int32_t rocket_count(const struct kvl_pctx *ctx, int32_t newest)
{
    const struct rocket_opts *o = ctx->opts;
    return KVL_MIN(o->stage1_tok, ctx->context_tok) + newest + 1 - ctx->context_tok;
}

/* These tokens, ascending. */
static int rocket_tokens(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, int32_t newest,
                         const int32_t **pos, int32_t *n)
{
    const struct rocket_opts *o = ctx->opts;
    struct kvl_rows rows;
    int32_t *all;
    if (!rocket_filters(ctx)) return kvl_live(ctx, layer, kv_head, pos, n);
    KVL_TRY(kvl_table_peek(ctx, o->filter, layer, 1, &rows));
    const int32_t *kept = kvl_table_row(&rows, kv_head, 0);
    *n = rocket_count(ctx, newest);
    KVL_TRY(kvl_scratch_get(ctx, (size_t)*n, &all));
    for (int32_t i = 0; i < *n; i++)
        all[i] = i < o->stage1_tok ? kept[i] : ctx->context_tok + i - o->stage1_tok;
    *pos = all;
    return KVL_OK;
}

/* Pages of all lanes: all that are full, or one that has just filled up. */
static int rocket_put(const struct kvl_pctx *ctx, int32_t layer, int32_t newest, bool all)
{
    const struct rocket_opts *o = ctx->opts;
    const int32_t *pos;
    int32_t n;
    if (!all && rocket_count(ctx, newest) % o->page != 0) return KVL_OK;
    if (rocket_filters(ctx)) KVL_TRY(kvl_look(ctx)); /* the host reads the list */
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        KVL_TRY(rocket_tokens(ctx, layer, h, newest, &pos, &n));
        int32_t n_pages = n / o->page, first = all ? 0 : n_pages - 1;
        KVL_TRY(kvl_boxes_put(ctx, o->boxes, layer, h, o->page, pos, first, n_pages - first));
    }
    return KVL_OK;
}

/* What stage 1 leaves becomes pages. */
static int rocket_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    (void)keep;
    return step->replay ? rocket_put(ctx, step->layer, step->n_tok - 1, true) : KVL_OK;
}

static int rocket_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                         const float *v)
{
    (void)k;
    (void)v;
    return rocket_put(ctx, step->layer, step->pos, false);
}

/* ---- stage 2: selection -------------------------------------------------------------------------------- */

/* share [n_kv_heads][n_pages] in scratch: softmax over pages per query head, mean over the group. */
static int rocket_shares(const struct kvl_pctx *ctx, int32_t layer, const float *q, int32_t n_pages,
                         float **share)
{
    const struct rocket_opts *o = ctx->opts;
    size_t n = (size_t)n_pages, n_scores = (size_t)ctx->shape->n_heads * n;
    float *score;
    KVL_TRY(kvl_scratch_get(ctx, n_scores, &score));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_kv_heads * n, share));
    KVL_TRY(kvl_boxes_scores(ctx, o->boxes, layer, o->page, n_pages, o->channels, q, score));
    KVL_TRY(kvl_cap(ctx, score, n_scores));
    KVL_TRY(kvl_softmax(ctx, score, ctx->shape->n_heads, n_pages));
    return kvl_group_scores(ctx, score, n_pages, KVL_REDUCE_MEAN, *share);
}

/* Of the shares of all lanes the best pages, *page [n_kv_heads][pages but the newest]: chosen at once, waited for once. */
static int rocket_best(const struct kvl_pctx *ctx, const float *share, int32_t n_pages,
                       int32_t **page)
{
    int32_t k = rocket_pages(ctx->opts) - 1, n_kv = ctx->shape->n_kv_heads;
    size_t n = (size_t)n_kv * (size_t)k;
    KVL_TRY(kvl_scratch_get(ctx, n, page));
    KVL_TRY(kvl_topk(ctx, share, n_kv, n_pages, k, *page));
    return kvl_look_at(ctx, *page, n, sizeof **page);
}

/* The pages of a lane whose n tokens are pos, and from the newest page on; page NULL: all of them. */
static int rocket_list(const struct kvl_pctx *ctx, struct kvl_sel *sel, int32_t kv_head,
                       const int32_t *pos, int32_t n, const int32_t *page, int32_t n_pages)
{
    const struct rocket_opts *o = ctx->opts;
    int32_t m = 0, k = rocket_pages(o) - 1, *list;
    if (!page) return kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, kv_head, pos, n);
    KVL_TRY(kvl_scratch_get(ctx, (size_t)((k + 1) * o->page), &list));
    page += (size_t)kv_head * (size_t)k;
    for (int32_t i = 0; i < k * o->page; i++)
        list[m++] = pos[page[i / o->page] * o->page + i % o->page];
    for (int32_t i = n_pages * o->page; i < n; i++) list[m++] = pos[i];
    return kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, kv_head, list, m);
}

static int rocket_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct rocket_opts *o = ctx->opts;
    int32_t n_pages = (rocket_count(ctx, step->pos) - 1) / o->page; /* before the current one */
    bool fits = n_pages < rocket_pages(o);
    struct kvl_rows filter;
    float *share = NULL, *shown = NULL;
    int32_t *page = NULL;
    if (fits && !rocket_filters(ctx)) return KVL_OK;
    if (rocket_filters(ctx)) KVL_TRY(kvl_table_read(ctx, o->filter, step->layer, 1, &filter));
    if (!fits) KVL_TRY(rocket_shares(ctx, step->layer, q->q, n_pages, &share));
    if (!fits) KVL_TRY(rocket_best(ctx, share, n_pages, &page));
    if (fits) KVL_TRY(kvl_look(ctx));
    if (!fits) KVL_TRY(kvl_tap_room(ctx, step, KVL_SCOPE_KV_HEAD, &shown));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        const float *row = share ? share + (size_t)h * (size_t)n_pages : NULL;
        const int32_t *pos;
        int32_t n;
        KVL_TRY(rocket_tokens(ctx, step->layer, h, step->pos, &pos, &n));
        KVL_TRY(rocket_list(ctx, sel, h, pos, n, page, n_pages));
        for (int32_t i = 0; shown && i < n_pages * o->page; i++) /* a token has its page's score */
            shown[(size_t)h * ((size_t)step->pos + 1) + (size_t)pos[i]] = row[i / o->page];
    }
    return kvl_tap_positions(ctx, step, KVL_SCOPE_KV_HEAD, shown);
}

static const struct kvl_policy rocketkv = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "rocketkv",
    .title = "RocketKV",
    .paper = "Behnam et al., ICML 2025, arXiv 2502.14051",
    .help = "drops most of the context once, then reads the best pages of what is left",
    .follows =
        "The paper: SnapKV with window 32 and maximum pooling over 63 tokens, then pages by "
        "minimum and maximum in the channels of largest summed magnitude of the query, split by "
        "the formulas for alpha, page and channels. multi_turn is the variant that keeps all.",
    .deviations = "Budget B is the attended half of the paper's token budget, T = 2 B. multi_turn "
                  "keeps all tokens but does not filter anew at each turn. 32-bit floats.",
    .cost =
        "Per step and layer r elements for each page of what was kept per kv head, a softmax and a "
        "top-k of the pages; a new page every page tokens. Once 32 queries over n keys for each of "
        "H heads, a top-k of n, and the keys of what stays. Memory: 2 d / page elements per kept "
        "token and kv head; multi_turn: per token, and a position for each kept one.",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_SELECTS | KVL_CAP_ASYNC,
    .opts = rocket_options,
    .opts_size = sizeof(struct rocket_opts),
    .min_budget = rocket_min_budget,
    .plan = rocket_plan,
    .append = rocket_append,
    .score = rocket_score,
    .select = rocket_select,
    .evict = rocket_evict,
};

KVL_POLICY_EXPORT(rocketkv)
