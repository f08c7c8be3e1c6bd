/* kvzap - a small network tells from a token's hidden state what KVzip would say of it.
 *
 * Jegou and Jeblick: KVzap: Fast, Adaptive, and Faithful KV Cache Pruning, 2026 (arXiv 2601.07891).
 *   1. once per model: of every layer a linear map, or one with a hidden layer, from what enters the layer (after its
 *      norm) to the logarithm of the KVzip+ score of every kv head
 *   2. of a context its scores are made as it goes by; the best stay
 * weights=FILE has the networks, as KVzapModel saves them (`kvlab tables kvzap MODEL` fits linear ones).  Without
 * networks the score is what they learn: the logarithm of the KVzip+ score itself, for which the context is read twice.
 * The published method drops what is below a threshold: dms(kvzap).
 * Budget B: B - 1 tokens of the context and the current one; tokens that come later stay.
 */
#include "kvl/policy.h"
#include "parts/input_net.h"

#include <float.h>
#include <math.h>
#include <string.h>

struct kvzap_opts {
    char weights[KVL_OPT_PATH_SIZE], weights_sum[KVL_OPT_STR_SIZE];
    int32_t chunk_size;
    int32_t key, table; /* not options: of the observer; of scores that are asked for */
    enum kvl_asking asked;
};

static const struct kvl_opt kvzap_options[] = {
    KVL_ROW_PATH(kvzap_opts, weights, "",
                 "safetensors file, or folder, of networks; see kvlab tables"),
    KVL_ROW_STR(kvzap_opts, weights_sum, "",
                "checksum of the networks, written when they are read"),
    KVL_ROW_INT(kvzap_opts, chunk_size, "2048", 16, 65536,
                "without networks: tokens that are repeated at a time, as kvzip"),
    { 0 },
};

static int32_t kvzap_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    (void)opts;
    return 2;
}

/* A wrapper that asks gets scores by position: of the answer the networks run at every step. */
static int kvzap_plan(struct kvl_plan *plan)
{
    struct kvzap_opts *o = plan->opts;
    KVL_TRY(kvl_plan_needs_budget(plan));
    plan->replay = KVL_REPLAY_NONE;
    o->asked = plan->asked;
    if (!o->weights[0]) return kvl_plan_observe(plan, KVL_OBS_REPLAY_PLUS, o->chunk_size);
    if (o->asked != KVL_ASKS_NOTHING)
        KVL_TRY(
            kvl_plan_table(plan, &o->table, .unit = KVL_UNIT_PAGE, .unit_tok = 1, .row_elems = 1));
    return kvl_plan_input_net(plan, o->weights, o->weights_sum, &o->key);
}

static int kvzap_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct kvzap_opts *o = ctx->opts;
    const float *score;
    int32_t n;
    struct kvl_rows rows;
    if (o->asked == KVL_ASKS_NOTHING) return KVL_OK;
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_INPUTS, o->key, &score, &n));
    KVL_TRY(kvl_table_write(ctx, o->table, layer, 0, &rows));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        for (int32_t i = 0; i < n; i++) *(float *)kvl_table_row_out(&rows, h, i) = *score++;
    return KVL_OK;
}

static int kvzap_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                        const float *v)
{
    const struct kvzap_opts *o = ctx->opts;
    struct kvl_rows rows;
    float *score;
    (void)k;
    (void)v;
    if (o->asked != KVL_ASKS_LATER) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_kv_heads, &score));
    KVL_TRY(kvl_step_inputs(ctx, step->layer, o->key, score));
    KVL_TRY(kvl_table_write(ctx, o->table, step->layer, step->pos, &rows));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        *(float *)kvl_table_row_out(&rows, h, 0) = score[h];
    return KVL_OK;
}

/* Scores of the tokens that a wrapper asks about, wherever they lie. */
static int kvzap_rows(const struct kvl_pctx *ctx, int32_t layer, const struct kvl_scores *scores)
{
    const struct kvzap_opts *o = ctx->opts;
    struct kvl_rows rows;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        float *to = scores->score + (size_t)h * (size_t)scores->n_tok;
        const int32_t *pos;
        int32_t n;
        KVL_TRY(kvl_live(ctx, layer, h, &pos, &n));
        KVL_TRY(kvl_table_peek(ctx, o->table, layer, pos[n - 1] + 1, &rows));
        for (int32_t i = 0; i < n; i++) to[i] = *(const float *)kvl_table_row(&rows, h, pos[i]);
    }
    return kvl_table_count(ctx, o->table, (int64_t)ctx->shape->n_kv_heads * scores->n_tok);
}

/* What networks learn; a weight that is too small for a float counts as the smallest. */
static int kvzap_target(const struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct kvzap_opts *o = ctx->opts;
    const float *score;
    int32_t n;
    KVL_TRY(kvl_obs_replay(ctx, layer, KVL_OBS_REPLAY_PLUS, o->chunk_size, &score, &n));
    for (size_t i = 0; i < (size_t)ctx->shape->n_kv_heads * (size_t)n; i++)
        scores->score[i] = logf(fmaxf(score[i], FLT_MIN));
    return KVL_OK;
}

/* KVzapPress.score(). */
static int kvzap_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct kvzap_opts *o = ctx->opts;
    const float *score;
    int32_t n;
    scores->keep_tok = ctx->budget_tok - 1;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    if (!o->weights[0]) return kvzap_target(ctx, layer, scores);
    if (o->asked != KVL_ASKS_NOTHING) return kvzap_rows(ctx, layer, scores);
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_INPUTS, o->key, &score, &n));
    memcpy(scores->score, score, (size_t)ctx->shape->n_kv_heads * (size_t)n * sizeof *score);
    return KVL_OK;
}

static int kvzap_report(struct kvl_pctx *ctx, struct kvl_report *report)
{
    const struct kvzap_opts *o = ctx->opts;
    if (o->weights[0]) return KVL_OK;
    return kvl_report_note(report, "kvzap without weights: scores are those that its networks "
                                   "learn, made by reading the context again");
}

static const struct kvl_policy kvzap = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "kvzap",
    .title = "KVzap",
    .paper = "Jegou and Jeblick, 2026, arXiv 2601.07891",
    .help = "keeps what a small network over hidden states scores best, evicts the rest once",
    .follows =
        "The official code (kvpress): a linear map, or one with a hidden layer and GELU, from what "
        "enters a layer after its norm to the logarithm of KVzip+ of each kv head; published "
        "weights with weights=FILE. The paper's rule, a threshold behind a window of 128, is "
        "dms(kvzap):threshold=-4.",
    .deviations =
        "By itself it keeps a budget, where the paper has a threshold. Without weights scores are "
        "what networks learn, log KVzip+. Networks run in 32 bits.",
    .cost = "In the prefill K products of n_embd for each token and layer, times the hidden layer "
            "where there is one; once a top-k of n per kv head. Nothing while decoding, unless a "
            "wrapper judges the answer too: then the same for each token, and one float a lane.",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_ASYNC,
    .opts = kvzap_options,
    .opts_size = sizeof(struct kvzap_opts),
    .min_budget = kvzap_min_budget,
    .plan = kvzap_plan,
    .append = kvzap_append,
    .prefilled = kvzap_prefilled,
    .score = kvzap_score,
    .report = kvzap_report,
};

KVL_POLICY_EXPORT(kvzap)
