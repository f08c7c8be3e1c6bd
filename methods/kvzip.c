/* kvzip - keeps what the model needs to write the context down again.
 *
 * Kim et al.: KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction, NeurIPS 2025 (arXiv
 * 2505.23416), section 3.  When the context is complete, it is run once more, after itself, in chunks: a
 * request to repeat, then the chunk.  The score of a pair (layer, kv head, position) is the largest weight
 * that a query of its chunk's repetition puts on it, over the group's query heads, where the softmax sees
 * the first keys of the context, the chunk's own, and the repetition up to the query (the engine:
 * KVL_OBS_REPLAY).  The best pairs stay, wherever they are: lanes keep different numbers.
 * plus: KVzip+ (kvpress): weights over the norm of the layer's input, times that of the projected value.
 * Budget B: lanes keep B - 1 tokens of the context on average, and attend to the current one; the
 * first n_sink stay in every lane (kvpress: score 1), and tokens that come later. */
#include "kvl/policy.h"

#include <math.h>
#include <string.h>

struct kvzip_opts {
    int32_t chunk_size, n_sink, ties;
    bool layerwise, plus;
    enum kvl_observer observer; /* from plan */
};

enum { KVZIP_EXACT = 0, KVZIP_STRICT };
static const char *const kvzip_ties[] = { "exact", "strict", NULL };

static const struct kvl_opt kvzip_options[] = {
    KVL_ROW_INT(kvzip_opts, chunk_size, "2048", 16, 65536,
                "tokens that are repeated at a time (paper: 2000; kvpress: 2048)"),
    KVL_ROW_BOOL(kvzip_opts, layerwise, "false", "pairs compete in their layer only (paper: no)"),
    KVL_ROW_BOOL(kvzip_opts, plus, "false",
                 "KVzip+: norms of inputs and projected values (kvpress)"),
    KVL_ROW_INT(kvzip_opts, n_sink, "4", 0, 65536,
                "first tokens that stay (kvpress: 4; official: the system prompt)"),
    KVL_ROW_ENUM(kvzip_opts, ties, "exact", kvzip_ties,
                 "equal to the last that fits: exact = as many as fit, strict = none (official)"),
    { 0 },
};

/* Pairs after the sink that each lane keeps: [n_layers][n_kv_heads]. */
static int32_t *kvzip_count(const struct kvl_pctx *ctx, int32_t layer)
{
    return (int32_t *)ctx->state + (size_t)layer * (size_t)ctx->shape->n_kv_heads;
}

static int32_t kvzip_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    return ((const struct kvzip_opts *)opts)->n_sink + 2;
}

static int kvzip_plan(struct kvl_plan *plan)
{
    struct kvzip_opts *o = plan->opts;
    KVL_TRY(kvl_plan_needs_budget(plan));
    plan->state_bytes = (size_t)(plan->shape->n_layers * plan->shape->n_kv_heads) * sizeof(int32_t);
    o->observer = o->plus ? KVL_OBS_REPLAY_PLUS : KVL_OBS_REPLAY;
    return kvl_plan_observe(plan, o->observer, o->chunk_size);
}

/* Section 3: scores (score_kvzip()) after the sink of lanes that compete, one lane after the other. */
static int kvzip_gather(const struct kvl_pctx *ctx, int32_t layer, int32_t n_layers, int32_t n,
                        float *to)
{
    const struct kvzip_opts *o = ctx->opts;
    size_t heads = (size_t)ctx->shape->n_kv_heads, row = (size_t)n;
    for (int32_t l = layer; l < layer + n_layers; l++) {
        const float *score;
        int32_t n_tok;
        KVL_TRY(kvl_obs_replay(ctx, l, o->observer, o->chunk_size, &score, &n_tok));
        for (size_t h = 0; h < heads; h++, to += row)
            memcpy(to, score + h * (size_t)n_tok + (size_t)o->n_sink, row * sizeof *to);
    }
    return KVL_OK;
}

/* compress_post(): shares the budget of n_layers layers out to their lanes: the pairs of each among the k best, or,
 * strictly, those better than the last of them. */
static int kvzip_share(const struct kvl_pctx *ctx, int32_t layer, int32_t n_layers)
{
    const struct kvzip_opts *o = ctx->opts;
    int32_t n_lanes = n_layers * ctx->shape->n_kv_heads, n = ctx->context_tok - o->n_sink;
    int32_t *count = kvzip_count(ctx, layer), *index;
    int64_t k = (int64_t)n_lanes * (ctx->budget_tok - 1 - o->n_sink);
    float *score, last = INFINITY;
    if ((int64_t)n_lanes * n > INT32_MAX)
        return kvl_fail(ctx->err, KVL_EINVAL,
                        "%d lanes of %d tokens compete: too many; give layerwise=true", n_lanes, n);
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_lanes * (size_t)n, &score));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)k, &index));
    KVL_TRY(kvzip_gather(ctx, layer, n_layers, n, score));
    KVL_TRY(kvl_topk(ctx, score, 1, n_lanes * n, (int32_t)k, index));
    for (int64_t i = 0; i < k; i++) {
        last = fminf(last, score[index[i]]);
        if (o->ties == KVZIP_EXACT) count[index[i] / n]++;
    }
    for (int32_t i = 0; o->ties == KVZIP_STRICT && i < n_lanes * n; i++)
        count[i / n] += score[i] > last;
    return KVL_OK;
}

/* With the first layer all of them, unless layers keep to themselves. */
static int kvzip_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct kvzip_opts *o = ctx->opts;
    if (ctx->context_tok < ctx->budget_tok || (layer > 0 && !o->layerwise)) return KVL_OK;
    return kvzip_share(ctx, layer, o->layerwise ? 1 : ctx->shape->n_layers);
}

static int kvzip_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct kvzip_opts *o = ctx->opts;
    const float *score;
    int32_t n_tok;
    scores->keep_tok = ctx->budget_tok - 1;
    scores->protect_first = o->n_sink;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    KVL_TRY(kvl_obs_replay(ctx, layer, o->observer, o->chunk_size, &score, &n_tok));
    memcpy(scores->score, score, (size_t)ctx->shape->n_kv_heads * (size_t)n_tok * sizeof *score);
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        scores->keep_lane[h] = o->n_sink + kvzip_count(ctx, layer)[h];
    return KVL_OK;
}

static int kvzip_report(struct kvl_pctx *ctx, struct kvl_report *report)
{
    const struct kvzip_opts *o = ctx->opts;
    const int32_t *count = kvzip_count(ctx, 0);
    int32_t n = ctx->shape->n_layers * ctx->shape->n_kv_heads, lo = count[0], hi = count[0];
    if (ctx->context_tok < ctx->budget_tok) return KVL_OK;
    for (int32_t i = 1; i < n; i++) {
        lo = KVL_MIN(lo, count[i]);
        hi = KVL_MAX(hi, count[i]);
    }
    KVL_TRY(kvl_report_num(report, "lane_least_tok", o->n_sink + lo));
    return kvl_report_num(report, "lane_most_tok", o->n_sink + hi);
}

static const struct kvl_policy kvzip = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "kvzip",
    .title = "KVzip",
    .paper = "Kim et al., NeurIPS 2025, arXiv 2505.23416",
    .help = "keeps what the model looks up when it repeats the context, over all layers and heads",
    .follows =
        "The paper: largest weight over the group and the repetition, chunk by chunk, all layers "
        "and heads competing. chunk_size 2048, sinks and the softmax over first keys, chunk and "
        "repetition are kvpress'. Options: layerwise lets each layer keep the same number, "
        "plus=true is KVzip+, ties=strict is the official threshold, which drops ties.",
    .deviations =
        "The request to repeat has our own words and, as the context, no chat template. 32-bit "
        "weights (official: the model's type, with more ties). No system prompt is set apart: the "
        "first n_sink tokens stay instead. Left out: head scores measured once per model (KVzip's "
        "head-level mode).",
    .cost =
        "Once a second prefill over the full cache, and chunk_size more weights for each of n "
        "queries and H heads, shared by all policies and budgets and counted apart (replay_ns); a "
        "top-k over all lanes. Nothing while decoding; no memory after that.",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_RAGGED,
    .opts = kvzip_options,
    .opts_size = sizeof(struct kvzip_opts),
    .min_budget = kvzip_min_budget,
    .plan = kvzip_plan,
    .prefilled = kvzip_prefilled,
    .score = kvzip_score,
    .report = kvzip_report,
};

KVL_POLICY_EXPORT(kvzip)
