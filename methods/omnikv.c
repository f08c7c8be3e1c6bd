/* omnikv - a few filter layers find the tokens that the layers behind them read.
 *
 * Hao et al.: OmniKV: Dynamic Context Selection for Efficient Long-Context LLMs, ICLR 2025.
 * Neighbouring layers attend to much the same tokens, so a *filter layer* reads everything, and its own attention,
 * computed once, is the index: one list of k tokens per step serves all layers up to the next filter.  The prefilled
 * keys and values of those layers may live on the host (the context bank), loaded by one packed copy per filter layer.
 * By the names of the official evaluation code:
 * do_select_layers: layers before the first filter, filters, and num_wait_load_layers behind each (to hide the load)
 * are dense: 32 layers, filters 2+8+18, one wait layer give DDDDSSSSDDSSSSSSSSDDSSSSSSSSSSSS.
 *
 * selector_cls: scores of the context's tokens t by the query heads h of the filter layer:
 *   last     s_t = max_h q_h.k_t / sqrt(d), raw logits (from weights and their log-sum-exp)
 *   softmax  s_t = max_h P_h,t (softmax_before_last), P the softmax over the candidates
 *   uniform  s_t = sum of max_h P_j,h,t over the last window_size queries j, the current one too
 *   exp      the same with weight 2^-(distance of j from the newest)
 * For uniform and exp, tokens of the context that are still in the window are no candidates and are read anyway.
 * Tokens that come after the context (the decode tail) are always read.
 *
 * num_of_selected_tokens (a number, or a share of the context) comes without the tail; auto stays inside the budget B:
 * k = B - 1 - tail.  cache_cls lazy: the old list is read on while more than lazy_overlap of the union of old and new
 * is in both; with k from the budget it is cut to its best k.
 *
 * Counted, or executed with offload=true (real_offload), the bank changes no answer: kvl/bank.h.  filter_layers=auto
 * (the papers' sets are of 32 to 80 layers): parts/filter_roles.h. */
#include "parts/bank.h"

#include <string.h>

enum { OMNIKV_LAST, OMNIKV_SOFTMAX, OMNIKV_UNIFORM, OMNIKV_EXP };

struct omnikv_opts {
    struct kvl_filter_options filters;
    char num_of_selected_tokens[KVL_OPT_STR_SIZE];
    int32_t selector, window_size;
    bool lazy, offload;
    double lazy_overlap;
    /* Not options, from plan. */
    struct kvl_bank_scores scores;
    int32_t k;      /* selected tokens, 0 = by the budget */
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

static int32_t omnikv_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const char *k = ((const struct omnikv_opts *)opts)->num_of_selected_tokens;
    (void)shape;
    return strcmp(k, "auto") == 0 || strcmp(k, "budget") == 0 ? 2 : 1;
}

static int omnikv_plan_tokens(struct kvl_plan *plan)
{
    struct omnikv_opts *o = plan->opts;
    const char *text = o->num_of_selected_tokens;
    int64_t k = 0;
    if (omnikv_min_budget(plan->shape, o) == 2) {
        KVL_TRY(kvl_plan_needs_budget(plan));
        memcpy(o->num_of_selected_tokens, "budget", sizeof "budget");
        return KVL_OK;
    }
    bool whole = kvl_parse_i64(text, &k) == KVL_OK && k >= 1 && k <= INT32_MAX;
    bool share = !whole && strchr(text, '.') && kvl_parse_f64(text, &o->k_share) == KVL_OK;
    if (whole) o->k = (int32_t)k;
    if (whole || (share && o->k_share > 0 && o->k_share <= 1)) return KVL_OK;
    return kvl_fail(plan->err, KVL_EINVAL,
                    "num_of_selected_tokens=%s; give auto, a whole number from 1, or a share with "
                    "a point up to 1.0",
                    text);
}

/* num_of_selected_tokens: the longest list where `budget` is left of the budget. */
static int32_t omnikv_most(const struct omnikv_opts *o, int32_t budget, int32_t context_tok)
{
    int32_t k = budget - 1;
    if (o->k > 0) k = o->k;
    if (o->k_share > 0) k = (int32_t)(o->k_share * context_tok);
    return KVL_MAX(0, KVL_MIN(k, context_tok));
}

/* selector_cls: whose weights are scores. */
static void omnikv_scores(struct omnikv_opts *o)
{
    o->scores.logits = o->selector == OMNIKV_LAST;
    o->scores.halve = o->selector == OMNIKV_EXP;
    o->scores.window = o->selector >= OMNIKV_UNIFORM ? o->window_size : 0;
}

static int omnikv_plan(struct kvl_plan *plan)
{
    struct omnikv_opts *o = plan->opts;
    uint8_t *has_rows;
    KVL_TRY(omnikv_plan_tokens(plan));
    KVL_TRY(kvl_plan_filters(plan, &o->filters, &has_rows));
    struct kvl_offload bank = { .unit_tok = 1, .context_only = true };
    bank.cache_tok = omnikv_most(o, plan->budget_tok, plan->context_tok); /* room for a list */
    if (o->offload) KVL_TRY(kvl_plan_offload(plan, &bank));
    plan->state_bytes = sizeof(struct omnikv_state) +
                        (size_t)plan->shape->n_layers * sizeof(struct kvl_filter_role);
    omnikv_scores(o);
    return kvl_plan_bank_scores(plan, &o->scores, has_rows);
}

/* ---- filter layers: do_select_layers ---------------------------------------------------------- */

static int omnikv_open(struct kvl_pctx *ctx)
{
    const struct omnikv_opts *o = ctx->opts;
    struct omnikv_state *state = ctx->state;
    if (o->filters.measured) return KVL_OK;
    KVL_TRY(kvl_filter_roles(ctx, &o->filters, state->role));
    return o->offload ? kvl_filter_offload(ctx, state->role) : KVL_OK;
}

/* Tokens of the context that a list may have at position `pos`. */
static int32_t omnikv_k(const struct kvl_pctx *ctx, int32_t pos)
{
    return omnikv_most(ctx->opts, ctx->budget_tok - (pos - ctx->context_tok), ctx->context_tok);
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
        if (o->offload) KVL_TRY(kvl_filter_offload(ctx, state->role));
    }
    for (int32_t l = 0; l < ctx->shape->n_layers; l++)
        if (state->role[l].first >= 0) KVL_TRY(kvl_bank_window(ctx, &o->scores, l));
    return KVL_OK;
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

/* ---- a filter layer's list: selector_cls, cache_cls ------------------------------------------- */

/* From scores to the list: the best of the context, those in the window, the tail. */
static int omnikv_open_list(const struct kvl_pctx *ctx, struct kvl_bank_list *list)
{
    int32_t pos = list->step->pos, k = omnikv_k(ctx, pos), tail = pos - ctx->context_tok;
    int32_t forced = KVL_MIN(k, kvl_bank_in_window(ctx, list->scores, pos));
    int32_t searched = ctx->context_tok - forced;
    list->n = k;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)k + (size_t)tail, &list->item));
    struct kvl_scored scored = { .unit_tok = 1, .n = searched, .score = list->score };
    KVL_TRY(kvl_tap_scores(ctx, list->step, &scored));
    KVL_TRY(kvl_topk(ctx, list->score, 1, searched, k - forced, list->item));
    KVL_TRY(kvl_look_at(ctx, list->item, (size_t)(k + tail), sizeof *list->item));
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
    (void)n; /* a dense layer reads every position */
    if (state->role[step->layer].first < 0) return KVL_OK;
    struct kvl_bank_list list = { .step = step,
                                  .role = &state->role[step->layer],
                                  .scores = &o->scores,
                                  .overlap = o->lazy ? o->lazy_overlap : 1,
                                  .offload = o->offload };
    KVL_TRY(kvl_bank_open(ctx, &list));
    KVL_TRY(kvl_bank_score(ctx, &list, probs, lse));
    return omnikv_open_list(ctx, &list);
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

/* Where measured filters capture less than four fifths of what lists of their own would, a note says so. */
static int omnikv_report(struct kvl_pctx *ctx, struct kvl_report *r)
{
    const struct omnikv_state *state = ctx->state;
    const struct omnikv_opts *o = ctx->opts;
    const struct kvl_filter_sums sum = kvl_filter_sum(ctx, state->role);
    KVL_TRY(kvl_filter_report(ctx, r, &o->filters, state->role));
    KVL_TRY(kvl_report_num(r, "host_share", sum.n / ctx->shape->n_layers));
    if (state->n_steps > 0) KVL_TRY(kvl_bank_report(r, &state->bank, state->n_steps));
    KVL_TRY(omnikv_report_tail(ctx, r));
    KVL_TRY(kvl_filter_note(ctx, r, &o->filters));
    if (!o->filters.measured || sum.capture >= 0.8 * sum.own) return KVL_OK;
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
