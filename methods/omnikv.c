/* omnikv - a few filter layers find the tokens that the layers behind them read.
 *
 * Hao et al.: OmniKV: Dynamic Context Selection for Efficient Long-Context LLMs, ICLR 2025.
 * Neighbouring layers attend to much the same tokens, so a *filter layer* reads everything, and its
 * own attention, computed once, is the index: one list of k tokens per step serves all layers up to
 * the next filter.  The prefilled keys and values of those layers may live on the host (the
 * context bank), loaded by one packed copy per filter layer.
 *
 * Layers before the first filter, filters, and num_wait_load_layers behind each (to hide the load)
 * are dense: 32 layers, filters 2+8+18, one wait layer give DDDDSSSSDDSSSSSSSSDDSSSSSSSSSSSS.
 *
 * Token context selector, of the context's tokens t and the query heads h of the filter layer:
 *   last     s_t = max_h q_h.k_t / sqrt(d), raw logits (from weights and their log-sum-exp)
 *   softmax  s_t = max_h P_h,t (official: softmax_before_last), P the softmax over the candidates
 *   uniform  s_t = sum of max_h P_j,h,t over the last window_size queries j, the current one too
 *   exp      the same with weight 2^-(distance of j from the newest)
 * For uniform and exp, tokens of the context that are still in the window are no candidates and are
 * read anyway: until the window has left the context, every step has one candidate more, and the
 * softmax of all its queries is another.  Tokens that come after the context (the decode tail) are
 * always read.
 *
 * The official num_of_selected_tokens (a number, or a share of the context) comes without the tail; auto stays
 * inside the budget B: k = B - 1 - tail.  lazy=true is the official lazy cache: the old list is read on while
 * more than lazy_overlap of the union of old and new is in both; with k from the budget it is cut to its best k.
 * filter_layers=auto (the papers' sets are of 32 to 80 layers): kvl/filters.h.  Where measured filters capture
 * less than four fifths of what lists of their own would have, a note says so.
 *
 * The bank is counted (kvl/bank.h).  With offload=true it is executed, and answers stay the same: the context of
 * the layers that read lists lives on the host, a list of each of them, the tail and the dense layers on the device.
 * `last` ranks by exp(s_t), from weights and their log-sum-exp: tokens 103 below that of their head, or 147
 * below the largest of all heads, rank last. */
#include "kvl/bank.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { OMNIKV_LAST, OMNIKV_SOFTMAX, OMNIKV_UNIFORM, OMNIKV_EXP };

struct omnikv_opts {
    struct kvl_filter_options filters;
    char num_of_selected_tokens[KVL_OPT_STR_SIZE];
    int32_t selector, window_size;
    bool lazy, offload;
    double lazy_overlap;
    /* Not options, from plan.  A row of the table is a token of the context: the step
     * of the last list that had it, then what window queries gave. */
    int32_t table, k; /* k: selected tokens, 0 = by the budget */
    int32_t heads; /* table: weights of the window's queries, [window_size][n_heads][context_tok] */
    double k_share; /* > 0: k is this share of the context */
};

static const char *const omnikv_selectors[] = { "last", "softmax", "uniform", "exp", NULL };

static const struct kvl_opt omnikv_options[] = {
    KVL_FILTER_ROWS(omnikv_opts, "this context"),
    KVL_ROW_STR(omnikv_opts, num_of_selected_tokens, "auto",
                "tokens of the context per step: auto, budget = budget - 1 - tail; a number, or a "
                "share with a point (0.067), comes without the tail (official: 0.067, 2048)"),
    KVL_ROW_ENUM(omnikv_opts, selector, "last", omnikv_selectors,
                 "score of a token: last query's logits, its softmax, or the last window_size "
                 "queries (paper: last and exp; official: selector_cls)"),
    KVL_ROW_INT(omnikv_opts, window_size, "16", 1, 1024,
                "queries that score in uniform and exp (paper: 16)"),
    KVL_ROW_BOOL(
        omnikv_opts, lazy, "false",
        "keep the old list while it overlaps the new one enough (official: cache_cls lazy)"),
    KVL_ROW_FLOAT(
        omnikv_opts, lazy_overlap, "0.4", 0, 1,
        "intersection / union of two lists above which lazy keeps the old (official: 0.4)"),
    KVL_ROW_BOOL(omnikv_opts, offload, "false",
                 "the context of the layers that read lists lives on the host; one packed load per "
                 "filter layer (official: real_offload)"),
    KVL_FILTER_SUM_ROW(omnikv_opts),
    { 0 },
};

struct omnikv_state {
    int64_t n_steps, n_over; /* n_over: the tail alone was longer than the budget */
    struct kvl_bank bank;
    struct kvl_filter_role role[]; /* [n_layers] */
};

/* ---- plan ---------------------------------------------------------------------------------- */

static bool omnikv_windowed(const struct omnikv_opts *o)
{
    return o->selector == OMNIKV_UNIFORM || o->selector == OMNIKV_EXP;
}

static int32_t omnikv_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const char *k = ((const struct omnikv_opts *)opts)->num_of_selected_tokens;
    (void)shape;
    return strcmp(k, "auto") == 0 || strcmp(k, "budget") == 0 ? 2 : 1;
}

/* The longest list where `budget` is left of the budget. */
static int32_t omnikv_most(const struct omnikv_opts *o, int32_t budget, int32_t context_tok)
{
    int32_t k = budget - 1;
    if (o->k > 0) k = o->k;
    if (o->k_share > 0) k = (int32_t)(o->k_share * context_tok);
    return KVL_MAX(0, KVL_MIN(k, context_tok));
}

static int omnikv_plan_tokens(struct kvl_plan *plan)
{
    struct omnikv_opts *o = plan->opts;
    const char *text = o->num_of_selected_tokens;
    int64_t k;
    if (omnikv_min_budget(plan->shape, o) == 2) {
        KVL_TRY(kvl_plan_needs_budget(plan));
        memcpy(o->num_of_selected_tokens, "budget", sizeof "budget");
        return KVL_OK;
    }
    if (kvl_parse_i64(text, &k) == KVL_OK && k >= 1 && k <= INT32_MAX) {
        o->k = (int32_t)k;
        return KVL_OK;
    }
    if (strchr(text, '.') && kvl_parse_f64(text, &o->k_share) == KVL_OK && o->k_share > 0 &&
        o->k_share <= 1)
        return KVL_OK;
    return kvl_fail(plan->err, KVL_EINVAL,
                    "num_of_selected_tokens=%s; give auto, a whole number from 1, or a share with "
                    "a point up to 1.0",
                    text);
}

static int omnikv_plan(struct kvl_plan *plan)
{
    struct omnikv_opts *o = plan->opts;
    int32_t window = omnikv_windowed(o) ? o->window_size : 0;
    uint8_t *has_rows;
    KVL_TRY(omnikv_plan_tokens(plan));
    KVL_TRY(kvl_plan_filters(plan, &o->filters, &has_rows));
    if (o->offload) /* room for a list; which layers go is said when their filters are known */
        KVL_TRY(kvl_plan_offload(
            plan,
            &(struct kvl_offload){ .unit_tok = 1,
                                   .cache_tok = omnikv_most(o, plan->budget_tok, plan->context_tok),
                                   .context_only = true }));
    if (window > 0) KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, window));
    plan->state_bytes = sizeof(struct omnikv_state) +
                        (size_t)plan->shape->n_layers * sizeof(struct kvl_filter_role);
    /* In one piece, of as many tokens as there are: the context may be longer than was planned. */
    if (window > 0)
        KVL_TRY(kvl_plan_table(plan, &o->heads, .unit = KVL_META_PAGE, .unit_tok = 1,
                               .row_elems = window * plan->shape->n_heads, .layers = has_rows,
                               .per_layer = true));
    return kvl_plan_table(plan, &o->table, .unit = KVL_META_PAGE, .unit_tok = 1,
                          .row_elems = 1 + window, .layers = has_rows, .per_layer = true);
}

/* ---- filter layers -------------------------------------------------------------------------- */

/* Tokens of the context that a list may have at position `pos`. */
static int32_t omnikv_k(const struct kvl_pctx *ctx, int32_t pos)
{
    return omnikv_most(ctx->opts, ctx->budget_tok - (pos - ctx->context_tok), ctx->context_tok);
}

/* With offload the context of the layers that read lists goes to the host. */
static int omnikv_host(const struct kvl_pctx *ctx)
{
    const struct kvl_filter_role *role = ((const struct omnikv_state *)ctx->state)->role;
    uint8_t reads_list[KVL_FILTER_MAX_LAYERS];
    if (!((const struct omnikv_opts *)ctx->opts)->offload) return KVL_OK;
    for (int32_t l = 0; l < ctx->shape->n_layers; l++)
        reads_list[l] = role[l].filter >= 0 && role[l].filter != l;
    return kvl_offload_layers(ctx, reads_list);
}

static int omnikv_open(struct kvl_pctx *ctx)
{
    const struct omnikv_opts *o = ctx->opts;
    struct omnikv_state *state = ctx->state;
    if (o->filters.measured) return KVL_OK;
    KVL_TRY(kvl_filter_roles(ctx, &o->filters, state->role));
    return omnikv_host(ctx);
}

/* ---- what window queries gave ---------------------------------------------------------------- */

/* The column of a query in a row: its position modulo the window, behind the tag. */
static size_t omnikv_column(const struct omnikv_opts *o, int32_t pos)
{
    return 1 + (size_t)(pos % o->window_size);
}

static size_t omnikv_row(const struct omnikv_opts *o)
{
    return 1 + (omnikv_windowed(o) ? (size_t)o->window_size : 0);
}

/* Weights of the query at `pos`, [n_heads][context_tok], in the table of heads. */
static float *omnikv_heads(const struct kvl_pctx *ctx, float *heads, int32_t pos)
{
    int32_t slot = pos % ((const struct omnikv_opts *)ctx->opts)->window_size;
    return heads + (size_t)(slot * ctx->shape->n_heads) * (size_t)ctx->context_tok;
}

/* The last queries of the context, for one filter layer. */
static int omnikv_fill_window(const struct kvl_pctx *ctx, int32_t layer)
{
    const struct omnikv_opts *o = ctx->opts;
    struct kvl_meta_view heads;
    KVL_TRY(kvl_meta_from(ctx, o->heads, layer, 0, &heads));
    for (int32_t b = 0; b < KVL_MIN(o->window_size, ctx->context_tok); b++)
        KVL_TRY(kvl_obs_window_probs(ctx, layer, b,
                                     omnikv_heads(ctx, heads.base, ctx->context_tok - 1 - b),
                                     ctx->context_tok));
    return KVL_OK;
}

/* Once all layers are replayed: a filter is judged by the layers behind it. */
static int omnikv_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct omnikv_opts *o = ctx->opts;
    struct omnikv_state *state = ctx->state;
    int32_t n = ctx->context_tok;
    if (layer < ctx->shape->n_layers - 1) return KVL_OK;
    if (o->filters.measured) {
        KVL_TRY(kvl_filter_measure(ctx, &o->filters, n, omnikv_k(ctx, n), state->role));
        KVL_TRY(omnikv_host(ctx));
    }
    for (int32_t l = 0; omnikv_windowed(o) && l < ctx->shape->n_layers; l++)
        if (state->role[l].first >= 0) KVL_TRY(omnikv_fill_window(ctx, l));
    return KVL_OK;
}

/* ---- a filter layer's list ------------------------------------------------------------------- */

enum { OMNIKV_STEP = 4096 }; /* scores of so many tokens stay in L1 while the heads pass */

/* What makes weights of a head those of a softmax over the first n tokens alone; 0 where these have none. */
static float omnikv_among(const float *probs, int32_t n)
{
    double sum = 0;
    for (int32_t t = 0; t < n; t++) sum += (double)probs[t];
    return sum > (double)FLT_MIN ? (float)(1 / sum) : 0.0f;
}

/* With lse: exp of the largest logit of any head, but for a factor that all tokens share.  Else the largest
 * weight of any head among the first n_among tokens. */
static int omnikv_score_query(const struct kvl_pctx *ctx, const float *const *probs,
                              const float *lse, int32_t n_among, float *score)
{
    const float lift = 60.0f; /* keeps more of what would underflow */
    float *factor, top = -INFINITY;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_heads, &factor));
    for (int32_t h = 0; lse && h < ctx->shape->n_heads; h++) top = KVL_MAX(top, lse[h]);
    for (int32_t h = 0; h < ctx->shape->n_heads; h++)
        factor[h] = lse ? expf(lse[h] - top + lift) : omnikv_among(probs[h], n_among);
    memset(score, 0, (size_t)ctx->context_tok * sizeof *score);
    for (int32_t t = 0; t < ctx->context_tok; t += OMNIKV_STEP)
        for (int32_t h = 0; h < ctx->shape->n_heads; h++)
            KVL_TRY(ctx->ops->raise(
                &(struct kvl_raise_args){ .y = score + t,
                                          .x = probs[h] + t,
                                          .n = (size_t)KVL_MIN(OMNIKV_STEP, ctx->context_tok - t),
                                          .factor = factor[h] }));
    return KVL_OK;
}

/* What the query at `pos` gives, into its column. */
static void omnikv_put(const struct kvl_pctx *ctx, int32_t pos, const float *score, float *rows)
{
    size_t column = omnikv_column(ctx->opts, pos), row = omnikv_row(ctx->opts);
    for (size_t t = 0; t < (size_t)ctx->context_tok; t++) rows[t * row + column] = score[t];
}

/* The sum of the columns at `pos`. */
static void omnikv_sum(const struct kvl_pctx *ctx, int32_t pos, const float *rows, float *score)
{
    const struct omnikv_opts *o = ctx->opts;
    int32_t n_queries = KVL_MIN(o->window_size, pos + 1);
    for (int32_t t = 0; t < ctx->context_tok; t++) {
        const float *row = rows + (size_t)t * omnikv_row(o);
        float sum = 0.0f;
        for (int32_t b = n_queries - 1; b >= 0; b--) {
            float given = row[omnikv_column(o, pos - b)];
            sum += o->selector == OMNIKV_EXP ? ldexpf(given, -b) : given;
        }
        score[t] = sum;
    }
}

/* Tokens of the context that are still in the window. */
static int32_t omnikv_in_window(const struct kvl_pctx *ctx, int32_t pos)
{
    const struct omnikv_opts *o = ctx->opts;
    if (!omnikv_windowed(o)) return 0;
    return KVL_MAX(0, KVL_MIN(ctx->context_tok, ctx->context_tok - (pos + 1 - o->window_size)));
}

/* They are read whatever their score. */
static int32_t omnikv_forced(const struct kvl_pctx *ctx, int32_t pos, int32_t k)
{
    return KVL_MIN(k, omnikv_in_window(ctx, pos));
}

/* As long as the candidates change, what all queries of the window give changes with them: from their
 * weights, to which those of the current one are added. */
static int omnikv_renew(const struct kvl_pctx *ctx, const struct kvl_step *step,
                        const float *const *probs, float *rows, float *score)
{
    const struct omnikv_opts *o = ctx->opts;
    size_t n = (size_t)ctx->context_tok, n_heads = (size_t)ctx->shape->n_heads;
    int32_t n_queries = KVL_MIN(o->window_size, step->pos + 1);
    void *items;
    struct kvl_meta_view heads;
    KVL_TRY(kvl_scratch_items(ctx, n_heads, sizeof(float *), &items));
    const float **of = items;
    KVL_TRY(kvl_meta_read(ctx, o->heads, step->layer, 0, &heads));
    KVL_TRY(kvl_meta_count(ctx, o->heads, (int64_t)(n_queries - 1) * (int64_t)(n_heads * n)));
    float *current = omnikv_heads(ctx, heads.base, step->pos);
    for (size_t h = 0; h < n_heads; h++) memcpy(current + h * n, probs[h], n * sizeof *current);
    for (int32_t b = 0; b < n_queries; b++) {
        const float *weights = omnikv_heads(ctx, heads.base, step->pos - b);
        for (size_t h = 0; h < n_heads; h++) of[h] = weights + h * n;
        KVL_TRY(omnikv_score_query(ctx, of, NULL,
                                   ctx->context_tok - omnikv_in_window(ctx, step->pos), score));
        KVL_TRY(kvl_look(ctx));
        omnikv_put(ctx, step->pos - b, score, rows);
    }
    return KVL_OK;
}

/* Scores of a step, by the selector. */
static int omnikv_score(const struct kvl_pctx *ctx, const struct kvl_step *step,
                        const float *const *probs, const float *lse, float *rows, float *score)
{
    const struct omnikv_opts *o = ctx->opts;
    if (!omnikv_windowed(o))
        return omnikv_score_query(ctx, probs, o->selector == OMNIKV_LAST ? lse : NULL,
                                  ctx->context_tok, score);
    if (step->pos < ctx->context_tok + o->window_size) {
        KVL_TRY(omnikv_renew(ctx, step, probs, rows, score));
    } else {
        KVL_TRY(omnikv_score_query(ctx, probs, NULL, ctx->context_tok, score));
        KVL_TRY(kvl_look(ctx));
        omnikv_put(ctx, step->pos, score, rows);
    }
    omnikv_sum(ctx, step->pos, rows, score);
    return KVL_OK;
}

/* From scores to the list: the best of the context, what is forced, the tail. */
static int omnikv_open_list(const struct kvl_pctx *ctx, struct kvl_bank_list *list)
{
    int32_t pos = list->step->pos, k = omnikv_k(ctx, pos), tail = pos - ctx->context_tok;
    int32_t forced = omnikv_forced(ctx, pos, k), searched = ctx->context_tok - forced;
    list->n = k;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)k + (size_t)tail, &list->item));
    KVL_TRY(
        kvl_tap_scores(ctx, list->step,
                       &(struct kvl_scored){ .unit_tok = 1, .n = searched, .score = list->score }));
    KVL_TRY(kvl_topk(ctx, list->score, 1, searched, k - forced, list->item));
    KVL_TRY(kvl_look(ctx));
    for (int32_t i = 0; i < forced; i++) list->item[k - forced + i] = searched + i;
    KVL_TRY(kvl_bank_take(ctx, &((struct omnikv_state *)ctx->state)->bank, list));
    for (int32_t i = 0; i < tail; i++) list->item[list->n + i] = ctx->context_tok + i;
    return kvl_select_ahead(ctx, list->step, list->role->first, list->role->last, list->item,
                            list->n + tail);
}

static int omnikv_observe(struct kvl_pctx *ctx, const struct kvl_step *step,
                          const float *const *probs, const int32_t *n, const float *lse)
{
    const struct omnikv_opts *o = ctx->opts;
    struct omnikv_state *state = ctx->state;
    struct kvl_meta_view rows;
    (void)n; /* a dense layer reads every position */
    if (state->role[step->layer].first < 0) return KVL_OK;
    KVL_TRY(kvl_look(ctx));
    struct kvl_bank_list list = { .step = step,
                                  .role = &state->role[step->layer],
                                  .stride = omnikv_row(o),
                                  .overlap = o->lazy ? o->lazy_overlap : 1,
                                  .offload = o->offload };
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->context_tok, &list.score));
    KVL_TRY(kvl_meta_read(ctx, o->table, step->layer, omnikv_windowed(o) ? ctx->context_tok : 0,
                          &rows));
    list.tag = rows.base;
    KVL_TRY(omnikv_score(ctx, step, probs, lse, rows.base, list.score));
    return omnikv_open_list(ctx, &list);
}

static int omnikv_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    struct omnikv_state *state = ctx->state;
    const struct kvl_filter_role *role = &state->role[step->layer];
    bool reads = role->filter >= 0 && role->filter != step->layer;
    state->n_steps += step->layer == 0;
    state->n_over += step->layer == 0 && step->pos - ctx->context_tok >= ctx->budget_tok;
    return (reads ? KVL_SELECT : KVL_DENSE) | (role->first < 0 ? KVL_UNOBSERVED : 0);
}

/* The engine asks only where no filter layer has opened a list, and each of them does. */
static int omnikv_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    (void)q;
    (void)sel;
    return kvl_fail(ctx->err, KVL_EPOLICY, "layer %d has no list from its filter layer",
                    step->layer);
}

/* ---- report ---------------------------------------------------------------------------------- */

/* Of what lists of their own capture, what layers that share attention get from a filter's. */
#define OMNIKV_SHARED 0.8

static int omnikv_report_tail(const struct kvl_pctx *ctx, struct kvl_report *r)
{
    const struct omnikv_opts *o = ctx->opts;
    const struct omnikv_state *state = ctx->state;
    if (o->k > 0 || o->k_share > 0 || state->n_over == 0) return KVL_OK;
    KVL_TRY(kvl_report_num(r, "tail_over_share", (double)state->n_over / (double)state->n_steps));
    return kvl_report_note(r,
                           "reads all tokens behind the context: more than the budget in "
                           "{tail_over_share%} of the steps, where nothing of the context is read");
}

static int omnikv_report(struct kvl_pctx *ctx, struct kvl_report *r)
{
    const struct omnikv_state *state = ctx->state;
    const struct kvl_filter_sums sum = kvl_filter_sum(ctx, state->role);
    const struct omnikv_opts *o = ctx->opts;
    bool measured = o->filters.measured;
    KVL_TRY(kvl_filter_report(ctx, r, state->role));
    KVL_TRY(kvl_report_num(r, "host_share", sum.n / ctx->shape->n_layers));
    if (measured) {
        KVL_TRY(kvl_report_num(r, "capture_mean", sum.capture / sum.n));
        KVL_TRY(kvl_report_num(r, "capture_min", sum.least));
        KVL_TRY(kvl_report_num(r, "capture_own", sum.own / sum.n));
    }
    if (state->n_steps > 0) KVL_TRY(kvl_bank_report(r, &state->bank, state->n_steps));
    KVL_TRY(omnikv_report_tail(ctx, r));
    KVL_TRY(kvl_filter_note(ctx, r, &o->filters));
    if (!measured || sum.capture >= OMNIKV_SHARED * sum.own) return KVL_OK;
    return kvl_report_note(r, "layers behind its filters keep {capture_mean%} of their attention "
                              "in this model (lists of their own: {capture_own%})");
}

static const struct kvl_policy omnikv = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "omnikv",
    .title = "OmniKV",
    .paper = "Hao et al., ICLR 2025",
    .help = "keeps all; a few filter layers choose the tokens that the layers after them read",
    .follows =
        "The paper and its official evaluation code: candidates are the tokens of the context, the "
        "tail is always read, one list serves the layers up to the next filter, and first layers, "
        "filters and wait layers are dense. Options: the selectors last, softmax, uniform and exp, "
        "a softmax over the candidates alone, the lazy cache, and with offload=true the context "
        "bank on the host, one packed load per filter layer beside the wait layers.",
    .deviations =
        "Filter layers are by default those of the model's tables (kvlab tables), without tables "
        "measured on every context, where the official ones are given per model "
        "(filter_layers=2+8+18). num_wait_load_layers is 1 from 16 layers on, else 0 (official: "
        "1), since small models would be mostly dense. The context bank is counted, and executed "
        "with offload=true; tokens of a list that the one before had are not loaded again "
        "(official: the whole list). uniform and exp take the weights that each query had when it "
        "passed, where the official code turns old queries to the current position (a bug). Left "
        "out: the LightLLM port, sink and recent tokens forced (Sparse-vLLM).",
    .cost =
        "Per step a filter layer passes over the weights of all heads, H n, and takes a top-k of n "
        "(uniform and exp: also window_size + 1 floats for each of n, and in the first window_size "
        "steps, while candidates are added, H for each query of the window, all counted as index "
        "bytes); dense layers read 2 n d values per kv head; the others nothing. With offload=true "
        "one gather per filter layer, 2 d for each new token of its list, kv head and layer that "
        "reads it. Once, for measured filters, 32 queries over n keys in every layer; uniform and "
        "exp: window_size queries in filter layers. Memory: a float per context token and layer "
        "that may filter; uniform and exp: window_size (H + 1) more.",
    .version = 2,
    .caps = KVL_CAP_SELECTS | KVL_CAP_OFFLOADS | KVL_CAP_ASYNC,
    .opts = omnikv_options,
    .opts_size = sizeof(struct omnikv_opts),
    .min_budget = omnikv_min_budget,
    .plan = omnikv_plan,
    .open = omnikv_open,
    .prefilled = omnikv_prefilled,
    .schedule = omnikv_schedule,
    .select = omnikv_select,
    .observe = omnikv_observe,
    .report = omnikv_report,
};

KVL_POLICY_EXPORT(omnikv)
