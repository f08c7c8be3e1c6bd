/* qfilters - keeps the keys that lie along the direction in which a head's queries point.
 *
 * Godey et al.: Q-Filters: Leveraging QK Geometry for Efficient KV Cache Compression, 2025 (arXiv 2503.02812), section 3.
 *   1. once per model: of the queries (after RoPE) of every query head the first right singular vector, turned so that
 *      most queries point along it; its mean over a group's query heads is the filter of the kv head
 *   2. a key's score is its product with the filter; the best stay
 * table=FILE has the filters (`kvlab tables qfilters MODEL` measures them on texts of their own); without one they are
 * measured on the last `samples` queries of the context itself.
 * Budget B: B - 1 tokens of the context and the current one; tokens that come later stay.
 */
#include "parts/head_file.h"
#include "parts/layer_state.h"

#include <string.h>

struct qfilters_opts {
    char table[KVL_OPT_PATH_SIZE], table_sum[KVL_OPT_STR_SIZE];
    int32_t samples;
    bool report_filters;
    struct kvl_state_part filter; /* not an option: float [n_kv_heads][head_dim] */
};

static const struct kvl_opt qfilters_options[] = {
    KVL_ROW_PATH(qfilters_opts, table, "",
                 "file of filters: a line \"layer kv_head number ...\" each; see kvlab tables"),
    KVL_ROW_STR(qfilters_opts, table_sum, "", "checksum of the table, written when it is read"),
    KVL_ROW_INT(qfilters_opts, samples, "512", 1, 65536,
                "last queries of the context that filters are measured on without a table (paper: "
                "3000 of other texts)"),
    KVL_ROW_BOOL(qfilters_opts, report_filters, "false", "report every filter"),
    { 0 },
};

static int32_t qfilters_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    (void)opts;
    return 2;
}

static int qfilters_plan(struct kvl_plan *plan)
{
    struct qfilters_opts *o = plan->opts;
    const struct kvl_shape *sh = plan->shape;
    KVL_TRY(kvl_plan_needs_budget(plan));
    kvl_plan_state(plan, (size_t)sh->n_kv_heads * (size_t)sh->head_dim * sizeof(float), &o->filter);
    if (o->table[0])
        return kvl_head_vectors(o->table, sh, sh->n_kv_heads, sh->head_dim, o->table_sum, plan->err,
                                NULL);
    o->samples = KVL_MIN(o->samples, plan->context_tok);
    return kvl_plan_observe(plan, KVL_OBS_WINDOW, o->samples);
}

static int qfilters_open(struct kvl_pctx *ctx)
{
    struct qfilters_opts o = *(const struct qfilters_opts *)ctx->opts;
    if (!o.table[0]) return KVL_OK;
    return kvl_head_vectors(o.table, ctx->shape, ctx->shape->n_kv_heads, ctx->shape->head_dim,
                            o.table_sum, ctx->err, kvl_state_of(ctx, &o.filter, 0));
}

/* The direction of queries q [n][dim], `stride` apart, of which `product` is the upper triangle of the sum of products:
 * added to filter. */
static int qfilters_direction(const struct kvl_pctx *ctx, const float *q, int32_t n, size_t stride,
                              const double *product, float *filter)
{
    size_t dim = (size_t)ctx->shape->head_dim;
    float *a, *vec;
    int32_t along = 0;
    KVL_TRY(kvl_scratch_get(ctx, dim * dim, &a));
    KVL_TRY(kvl_scratch_get(ctx, dim * dim, &vec));
    for (size_t r = 0; r < dim; r++)
        for (size_t c = r; c < dim; c++) a[c * dim + r] = a[r * dim + c] = (float)*product++;
    KVL_TRY(ctx->ops->sym_eig(
        &(struct kvl_sym_eig_args){ .vec = vec, .a = a, .n = ctx->shape->head_dim }));
    for (int32_t i = 0; i < n; i++, q += stride) {
        float along_v = 0;
        for (size_t c = 0; c < dim; c++) along_v += q[c] * vec[c];
        along += along_v > 0;
    }
    float part = (2 * along > n ? 1.0f : -1.0f) / (float)ctx->shape->group;
    for (size_t c = 0; c < dim; c++) filter[c] += part * vec[c];
    return KVL_OK;
}

/* make_filters.py: step 1, on the context's own queries. */
static int qfilters_measure(const struct kvl_pctx *ctx, int32_t layer, float *filter)
{
    const struct qfilters_opts *o = ctx->opts;
    size_t dim = (size_t)ctx->shape->head_dim, heads = (size_t)ctx->shape->n_heads;
    size_t half = dim * (dim + 1) / 2, row = heads * dim;
    double *sum, *product;
    float *q;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)o->samples * row, &q));
    KVL_TRY(kvl_scratch_get(ctx, row, &sum));
    KVL_TRY(kvl_scratch_get(ctx, heads * half, &product));
    memset(sum, 0, row * sizeof *sum);
    memset(product, 0, heads * half * sizeof *product);
    for (int32_t i = 0; i < o->samples; i++)
        KVL_TRY(kvl_obs_window_query(ctx, layer, i, q + (size_t)i * row));
    KVL_TRY(ctx->ops->moments(&(struct kvl_moments_args){ .sum = sum,
                                                          .product = product,
                                                          .x = q,
                                                          .n = o->samples,
                                                          .n_heads = ctx->shape->n_heads,
                                                          .dim = ctx->shape->head_dim }));
    memset(filter, 0, (size_t)ctx->shape->n_kv_heads * dim * sizeof *filter);
    for (size_t h = 0; h < heads; h++)
        KVL_TRY(qfilters_direction(ctx, q + h * dim, o->samples, row, product + h * half,
                                   filter + h / (size_t)ctx->shape->group * dim));
    return KVL_OK;
}

static int qfilters_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct qfilters_opts *o = ctx->opts;
    if (o->table[0]) return KVL_OK;
    return qfilters_measure(ctx, layer, kvl_state_of(ctx, &o->filter, layer));
}

/* QFilterPress.score(), step 2. */
static int qfilters_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct qfilters_opts *o = ctx->opts;
    int32_t n = scores->n_tok, dim = ctx->shape->head_dim;
    const float *filter = kvl_state_of(ctx, &o->filter, layer);
    float *k;
    scores->keep_tok = ctx->budget_tok - 1;
    if (n <= scores->keep_tok) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * (size_t)dim, &k));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        KVL_TRY(kvl_read_key_span(ctx, layer, h, 0, n, false, k));
        KVL_TRY(kvl_product(ctx, k, n, filter + (size_t)h * (size_t)dim, 1, dim,
                            scores->score + (size_t)h * (size_t)n));
    }
    return KVL_OK;
}

static int qfilters_report(struct kvl_pctx *ctx, struct kvl_report *report)
{
    const struct qfilters_opts *o = ctx->opts;
    for (int32_t l = 0; o->report_filters && l < ctx->shape->n_layers; l++)
        KVL_TRY(kvl_report_vectors(report, l, ctx->shape->n_kv_heads, ctx->shape->head_dim,
                                   kvl_state_of(ctx, &o->filter, l)));
    return KVL_OK;
}

static const struct kvl_policy qfilters = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "qfilters",
    .title = "Q-Filters",
    .paper = "Godey et al., 2025, arXiv 2503.02812",
    .help = "keeps the keys along the direction that a head's queries have, evicts the rest once",
    .follows =
        "The official code: the first right singular vector of a query head's queries after RoPE, "
        "turned to where most of them point, mean over the group; the product of a key with it. "
        "With table=FILE filters of other texts, as published.",
    .deviations =
        "Without a table the filters are those of the context's own last queries, not of other "
        "texts. kvlab tables takes the mean of the filters of its texts, where the official code "
        "decomposes queries of all texts together.",
    .cost =
        "Once d products for each of n keys per kv head, and a top-k of n; without a table d^2 / 2 "
        "products in double for each of samples queries and H heads, and an eigenproblem of d for "
        "each head. Nothing while decoding; no memory after that.",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .opts = qfilters_options,
    .opts_size = sizeof(struct qfilters_opts),
    .min_budget = qfilters_min_budget,
    .plan = qfilters_plan,
    .open = qfilters_open,
    .prefilled = qfilters_prefilled,
    .score = qfilters_score,
    .report = qfilters_report,
};

KVL_POLICY_EXPORT(qfilters)
