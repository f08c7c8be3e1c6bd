/* decode - a policy that scores tokens once scores them again and again while the text grows.
 *
 * NVIDIA: kvpress, DecodingPress, PrefillDecodingPress and CompressionRatioDecodingPress, 2025.  Every `interval` tokens
 *   1. the inner policy scores all tokens of the cache, context and answer alike; where it looks at queries, those are
 *      the latest ones, of which `buffer` are kept
 *   2. of every lane the `target` best stay, what the inner policy protects among them
 * Between two cuts the cache grows by every token.
 *
 * cut_context=true cuts the context to `target`, too, by the same policy (PrefillDecodingPress with one scorer for both);
 * false leaves it whole until the first cut (DecodingPress).  ratio: the target is that part of all tokens so far that
 * does not go, and grows with the text (CompressionRatioDecodingPress).
 * Budget B: target + interval, for the step before a cut attends to as many; interval is a fifth of it, at most 512, so
 * that B = 2560 gives the published 2048 and 512.
 */
#include "parts/asked_lists.h"
#include "parts/latest_queries.h"
#include "parts/live_scores.h"

struct decode_opts {
    int32_t target, interval, buffer;
    double ratio;
    bool cut_context;
    struct kvl_latest latest;   /* not options, here and below */
    struct kvl_state_part last; /* int32_t: position of a layer's last cut */
};

static const struct kvl_opt decode_options[] = {
    KVL_ROW_INT(decode_opts, target, "auto", 1, 1 << 30,
                "tokens that a cut leaves (kvpress: 2048); auto = budget - interval"),
    KVL_ROW_INT(decode_opts, interval, "auto", 1, 1 << 20,
                "tokens between two cuts (kvpress: 512); auto = budget / 5, 1 to 512"),
    KVL_ROW_INT(
        decode_opts, buffer, "auto", 1, 65536,
        "latest queries that are kept for the inner policy (kvpress: 256); auto = interval, "
        "64 to 256"),
    KVL_ROW_FLOAT(decode_opts, ratio, "0", 0, 0.999,
                  "part of all tokens so far that a cut drops, in place of target (kvpress: 0.5); "
                  "0 = by target"),
    KVL_ROW_BOOL(decode_opts, cut_context, "true",
                 "cut the context too, when it is complete (PrefillDecodingPress); false: "
                 "DecodingPress"),
    { 0 },
};

static int32_t decode_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    (void)opts;
    return 8;
}

static int decode_plan(struct kvl_plan *plan)
{
    struct decode_opts *o = plan->opts;
    if (o->target == KVL_AUTO || o->interval == KVL_AUTO) KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->interval == KVL_AUTO)
        o->interval = o->target == KVL_AUTO ? KVL_MAX(1, KVL_MIN(512, plan->budget_tok / 5))
                                            : plan->budget_tok - o->target;
    if (o->target == KVL_AUTO) o->target = plan->budget_tok - o->interval;
    if (o->target < 1 || o->interval < 1)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "target=%d and interval=%d of a budget of %d; give less of one", o->target,
                        o->interval, plan->budget_tok);
    if (o->buffer == KVL_AUTO) o->buffer = KVL_MAX(64, KVL_MIN(256, o->interval));
    plan->inner_budget_tok = o->target + 1;
    kvl_plan_state(plan, sizeof(int32_t), &o->last);
    return kvl_plan_latest(plan, o->buffer, true, &o->latest);
}

/* What a cut leaves of n_seen tokens. */
static int32_t decode_target(const struct decode_opts *o, int32_t n_seen)
{
    return o->ratio > 0 ? KVL_MAX(1, (int32_t)(n_seen * (1 - o->ratio))) : o->target;
}

static int decode_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct decode_opts *o = ctx->opts;
    *(int32_t *)kvl_state_of(ctx, &o->last, layer) = ctx->context_tok - 1;
    return kvl_latest_begin(ctx, &o->latest, layer);
}

/* PrefillDecodingPress.compress(): the context, by the inner policy's own words. */
static int decode_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct decode_opts *o = ctx->opts;
    bool evicts;
    if (!o->cut_context) {
        scores->keep_tok = scores->n_tok;
        return KVL_OK;
    }
    KVL_TRY(kvl_inner_even_score(ctx, layer, scores, &evicts));
    if (o->ratio > 0) scores->keep_tok = decode_target(o, scores->n_tok);
    return KVL_OK;
}

/* DecodingPress.forward_hook(): keeps what the inner policy may want to see. */
static int decode_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct decode_opts *o = ctx->opts;
    (void)sel;
    return kvl_latest_add(ctx, &o->latest, step, q);
}

/* Step 1: the scores of all live tokens; protected ones are better than any other. */
static int decode_ask(struct kvl_pctx *ctx, int32_t layer, int32_t target,
                      struct kvl_scores *scores)
{
    const struct decode_opts *o = ctx->opts;
    struct kvl_asked asked = { .keep = target };
    KVL_TRY(kvl_ask_live(ctx, layer, 0, -1, &asked));
    KVL_TRY(kvl_latest_read(ctx, &o->latest, layer, &asked));
    KVL_TRY(kvl_inner_score_tokens(ctx, layer, &asked, scores));
    kvl_scores_protect(ctx, scores);
    return KVL_OK;
}

/* DecodingPress.compress(), step 2. */
static int decode_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    const struct decode_opts *o = ctx->opts;
    int32_t *last = kvl_state_of(ctx, &o->last, step->layer);
    int32_t n, target = decode_target(o, step->pos + 1);
    const int32_t *live;
    struct kvl_scores scores;
    if (step->replay || step->pos - *last < o->interval) return KVL_OK;
    *last = step->pos;
    KVL_TRY(kvl_live(ctx, step->layer, 0, &live, &n));
    if (n <= target) return KVL_OK;
    KVL_TRY(decode_ask(ctx, step->layer, target, &scores));
    return kvl_keep_best(ctx, step, keep, KVL_SCOPE_KV_HEAD, scores.score, n, target, 0);
}

static const struct kvl_policy decode = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "decode",
    .title = "Decoding-time eviction",
    .paper = "NVIDIA, kvpress, DecodingPress, 2025",
    .help = "cuts context and answer again and again while decoding, by scores of another policy",
    .follows =
        "kvpress: every `interval` tokens the inner policy scores all that is in the cache, by the "
        "latest queries where it looks at queries, and target tokens of each lane stay. "
        "cut_context=true is PrefillDecodingPress with one scorer for both, cut_context=false "
        "DecodingPress, ratio CompressionRatioDecodingPress. Any policy that scores tokens once by "
        "keys, values and the last queries may be wrapped.",
    .deviations =
        "Tokens of a question count one by one, where kvpress counts the call. Of the queries "
        "those before the last cut are kept too, and the context's behind those, where kvpress "
        "begins anew and may have fewer than the inner policy wants. A policy that works with "
        "positions of the text (expected_attention) gets the true ones, where kvpress takes the "
        "buffer's length for the text's.",
    .cost =
        "Once in `interval` steps and layer that of the inner policy for B tokens, and a top-k of "
        "B per kv head. Once that of the inner policy. Memory: 2 d floats for each of buffer "
        "queries and H heads of a layer.",
    .inner = "snapkv",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_ASKS,
    .opts = decode_options,
    .opts_size = sizeof(struct decode_opts),
    .min_budget = decode_min_budget,
    .plan = decode_plan,
    .prefilled = decode_prefilled,
    .score = decode_score,
    .select = decode_select,
    .evict = decode_evict,
};

KVL_POLICY_EXPORT(decode)
