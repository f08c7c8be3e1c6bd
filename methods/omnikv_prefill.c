/* omnikv_prefill - a chunked prefill in which a few filter layers find what the others read.
 *
 * Hao et al.: OmniKV: Dynamic Context Selection for Efficient Long-Context LLMs, ICLR 2025: what omnikv.c
 * does while decoding, done to chunks of the context.  A filter layer attends densely; of window_size
 * queries of the chunk, its last ones or some spread evenly over it (query_from), the largest weight of
 * any head on every earlier token is summed (the selector `uniform`), and the k best tokens before the
 * chunk, the window_size before it always among them (as in the selector), are read by the layers up to
 * the next filter, beside the chunk itself.  r = k / chunk.
 *
 * Layers before the first filter, filters and num_wait_load_layers behind each are dense, as in omnikv.
 * filter_layers=auto takes those of the tables beside the model's file; without tables, and with
 * filter_layers=measured, they are measured on the first chunk, which every layer reads densely, having
 * nothing before it: by its last 32 queries.  The rules are in parts/filter_roles.h.
 *
 * Decoding is dense: what is lost is lost by the prefill alone.
 * Budget B: a query of a sparse layer reads at most B tokens, the chunk included: chunk = B / (1 + r), in
 * whole 64s from 64 on, k = B - chunk.  Without a budget: chunks of 1024, r = 1.  B >= context: one chunk.
 *
 * The score of a chunk, the spread of its queries and r = 1 are ours: no code of such a prefill is published. */
#include "parts/filter_roles.h"

#include <string.h>

enum { OKP_CHUNK = 1024, OKP_ALIGN = 64 };

struct okp_opts {
    struct kvl_filter_options filters;
    int32_t chunk, num_of_selected_tokens, window_size, query_from;
    double r;
    int32_t room; /* not an option: tokens that a list holds */
};

enum { OKP_SPREAD = 0, OKP_LAST };
static const char *const okp_query_from[] = { "spread", "last", NULL };

static const struct kvl_opt okp_options[] = {
    KVL_FILTER_ROWS(okp_opts, "the first chunk"),
    KVL_ROW_FLOAT(okp_opts, r, "1", 0.01, 100,
                  "selected tokens / tokens of a chunk, where one of them is auto"),
    KVL_ROW_INT(okp_opts, chunk, "auto", 16, 1 << 30,
                "tokens of a chunk; auto = budget / (1 + r), 1024 without"),
    KVL_ROW_INT(okp_opts, num_of_selected_tokens, "auto", 0, 1 << 30,
                "tokens before the chunk that sparse layers read; auto = budget - chunk, r * chunk "
                "without"),
    KVL_ROW_INT(okp_opts, window_size, "16", 1, 1024,
                "queries of a chunk that score, and tokens before it that are always selected "
                "(paper: 16, decoding)"),
    KVL_ROW_ENUM(okp_opts, query_from, "last", okp_query_from,
                 "these queries: spread over the chunk, or its last (as the selector does)"),
    KVL_FILTER_SUM_ROW(okp_opts),
    { 0 },
};

struct okp_state {
    bool known;     /* the filters */
    int32_t n_list; /* of the chunk at hand, by the latest filter */
    int64_t n_chunks;
    struct kvl_filter_role role[KVL_FILTER_MAX_LAYERS];
    int32_t list[]; /* [k] */
};

/* ---- plan ---------------------------------------------------------------------------------- */

static int32_t okp_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    (void)opts;
    return 32;
}

static int okp_plan_sizes(struct kvl_plan *plan)
{
    struct okp_opts *o = plan->opts;
    int32_t budget = plan->budget_tok, given = o->num_of_selected_tokens;
    bool all = budget > 0 && budget >= plan->context_tok;
    if (o->chunk == KVL_AUTO) {
        int32_t chunk = budget == 0         ? OKP_CHUNK
                        : given != KVL_AUTO ? budget - given
                                            : (int32_t)(budget / (1.0 + o->r));
        if (chunk >= OKP_ALIGN) chunk -= chunk % OKP_ALIGN;
        o->chunk = all ? KVL_MAX(1, plan->context_tok) : KVL_MAX(16, chunk);
    }
    if (given == KVL_AUTO)
        o->num_of_selected_tokens = budget > 0 ? budget - o->chunk : (int32_t)(o->r * o->chunk);
    if (all) o->num_of_selected_tokens = KVL_MAX(0, o->num_of_selected_tokens);
    if (o->num_of_selected_tokens < 0 ||
        (budget > 0 && !all && given != KVL_AUTO && o->chunk + given > budget))
        return kvl_fail(plan->err, KVL_EINVAL,
                        "chunk=%d and num_of_selected_tokens=%d with budget %d; want a sum of at "
                        "most the budget",
                        o->chunk, o->num_of_selected_tokens, budget);
    plan->prefill_chunk_tok = o->chunk;
    return KVL_OK;
}

static int okp_plan(struct kvl_plan *plan)
{
    struct okp_opts *o = plan->opts;
    uint8_t *may_be;
    KVL_TRY(okp_plan_sizes(plan));
    KVL_TRY(kvl_plan_filters(plan, &o->filters, &may_be));
    o->room = KVL_MIN(o->num_of_selected_tokens, plan->context_tok);
    plan->state_bytes = sizeof(struct okp_state) + (size_t)o->room * sizeof(int32_t);
    return KVL_OK;
}

/* ---- filters ---------------------------------------------------------------------------------- */

static int okp_open(struct kvl_pctx *ctx)
{
    const struct okp_opts *o = ctx->opts;
    struct okp_state *state = ctx->state;
    state->known = !o->filters.measured;
    if (o->filters.measured) return KVL_OK;
    return kvl_filter_roles(ctx, &o->filters, state->role);
}

/* The first chunk of n tokens has gone through all layers. */
static int okp_measure(const struct kvl_pctx *ctx, int32_t n)
{
    const struct okp_opts *o = ctx->opts;
    struct okp_state *state = ctx->state;
    /* No more than a quarter of the chunk, or lists would hold all that there is. */
    int32_t k = KVL_MAX(1, KVL_MIN(o->num_of_selected_tokens, n / 4));
    state->known = true;
    return kvl_filter_measure(ctx, &o->filters, n, k, state->role);
}

/* ---- a chunk ------------------------------------------------------------------------------------ */

/* The largest weight of any head on each of the first n_out of n positions. */
static int okp_max(const struct kvl_pctx *ctx, const float *probs, int32_t n, int32_t n_out,
                   float *most)
{
    return ctx->ops->group_reduce(&(struct kvl_group_reduce_args){ .y = most,
                                                                   .x = probs,
                                                                   .x_stride = (size_t)n,
                                                                   .n = n_out,
                                                                   .n_heads = ctx->shape->n_heads,
                                                                   .n_kv_heads = 1,
                                                                   .reduce = KVL_REDUCE_MAX });
}

/* The official selector uniform.  score [step->pos]: what the chunk's queries put on the tokens before it. */
static int okp_score(const struct kvl_pctx *ctx, const struct kvl_step *step,
                     const struct kvl_query *q, float *score)
{
    const struct okp_opts *o = ctx->opts;
    int32_t n_queries = KVL_MIN(o->window_size, step->n_tok), end = step->pos + step->n_tok;
    float *probs, *most;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_heads * (size_t)end, &probs));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)step->pos, &most));
    memset(score, 0, (size_t)step->pos * sizeof *score);
    for (int32_t i = 1; i <= n_queries; i++) {
        int32_t at = o->query_from == OKP_LAST
                         ? step->n_tok - i
                         : (int32_t)((int64_t)i * step->n_tok / n_queries) - 1;
        int32_t n = step->pos + at + 1;
        KVL_TRY(kvl_mask_weights(ctx, step, q, at, probs, n));
        KVL_TRY(okp_max(ctx, probs, n, step->pos, most));
        KVL_TRY(
            ctx->ops->add(&(struct kvl_add_args){ .y = score, .x = most, .n = (size_t)step->pos }));
    }
    return KVL_OK;
}

static int okp_filter(const struct kvl_pctx *ctx, const struct kvl_step *step,
                      const struct kvl_query *q)
{
    const struct okp_opts *o = ctx->opts;
    struct okp_state *state = ctx->state;
    float *score;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)step->pos, &score));
    KVL_TRY(okp_score(ctx, step, q, score));
    int32_t k = KVL_MIN(o->room, step->pos), forced = KVL_MIN(k, o->window_size);
    int32_t searched = step->pos - forced;
    KVL_TRY(kvl_tap_scores(ctx, step,
                           &(struct kvl_scored){ .unit_tok = 1, .n = searched, .score = score }));
    KVL_TRY(kvl_topk(ctx, score, 1, searched, k - forced, state->list));
    for (int32_t i = 0; i < forced; i++) state->list[k - forced + i] = searched + i;
    state->n_list = k;
    return KVL_OK;
}

static int okp_prefill_mask(struct kvl_pctx *ctx, const struct kvl_step *step,
                            const struct kvl_query *q, struct kvl_prefill_mask *mask)
{
    struct okp_state *state = ctx->state;
    state->n_chunks += step->layer == 0;
    if (step->pos == 0) return KVL_OK;
    if (!state->known) KVL_TRY(okp_measure(ctx, step->pos));
    int32_t filter = state->role[step->layer].filter;
    if (filter == step->layer) return okp_filter(ctx, step, q);
    if (filter < 0) return KVL_OK;
    return kvl_mask_tokens(mask, -1, state->list, state->n_list);
}

static int okp_report(struct kvl_pctx *ctx, struct kvl_report *r)
{
    const struct okp_opts *o = ctx->opts;
    const struct okp_state *state = ctx->state;
    const struct kvl_filter_sums sum = kvl_filter_sum(ctx, state->role);
    int32_t n = 0;
    for (int32_t l = 0; l < ctx->shape->n_layers; l++) n += state->role[l].filter == l;
    KVL_TRY(kvl_report_num(r, "chunks", (double)state->n_chunks));
    KVL_TRY(kvl_report_num(r, "r", (double)o->num_of_selected_tokens / o->chunk));
    if (!state->known)
        return kvl_report_note(r, "the context is one chunk, which every layer reads densely");
    KVL_TRY(kvl_report_num(r, "filters", n));
    KVL_TRY(kvl_report_num(r, "sparse_share", sum.n / ctx->shape->n_layers));
    KVL_TRY(kvl_filter_note(ctx, r, &o->filters));
    if (!o->filters.measured) return KVL_OK;
    KVL_TRY(kvl_report_num(r, "capture_mean", sum.capture / sum.n));
    return kvl_report_num(r, "capture_own", sum.own / sum.n);
}

static const struct kvl_policy omnikv_prefill = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "omnikv_prefill",
    .title = "OmniKV prefill",
    .paper = "Hao et al., ICLR 2025",
    .help =
        "filter layers choose, per chunk of the prefill, the earlier tokens that other layers read",
    .follows =
        "The selector uniform and the layer map of OmniKV's paper, applied to chunks of the "
        "context: layers after a filter read the selected tokens and the chunk itself. Decoding is "
        "dense. query_from=spread takes queries spread over the chunk.",
    .deviations =
        "No code of a prefill with filters is published: that the last 16 queries of a chunk "
        "score, and that as many tokens are selected as a chunk has (r=1), is ours. Filter layers "
        "that are not given are those of the model's tables, without tables measured on the first "
        "chunk.",
    .cost =
        "In the prefill, per chunk and filter layer, window_size queries over all keys again and a "
        "top-k of the tokens before the chunk; in sparse layers B keys per query. Per step "
        "nothing: decoding reads everything, 2 n d values per kv head. Memory: a list of "
        "num_of_selected_tokens.",
    .version = 1,
    .prefill = KVL_PREFILL_OWN,
    .opts = okp_options,
    .opts_size = sizeof(struct okp_opts),
    .min_budget = okp_min_budget,
    .plan = okp_plan,
    .open = okp_open,
    .prefill_mask = okp_prefill_mask,
    .report = okp_report,
};

KVL_POLICY_EXPORT(omnikv_prefill)
