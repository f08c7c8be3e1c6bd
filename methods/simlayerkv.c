/* simlayerkv - layers whose last queries look at the first and the latest tokens keep these alone.
 *
 * Zhang et al.: SimLayerKV: A Simple Framework for Layer-Level KV Cache Reduction, 2024 (arXiv 2410.13846), section 3.
 *   1. the weight that the last n_last queries of the context put on the first n_initial and the last n_recent tokens,
 *      mean over queries and heads of a layer
 *   2. a layer of more than `threshold` is lazy: it keeps the first n_initial and the last n_recent - n_last tokens
 *   3. all other layers keep everything
 * threshold=budget takes, of all layers, the laziest, as many as the budget asks for: lazy layers keep a window of half the
 * budget at least, and what the others leave.
 * Budget B: B - 1 tokens of the context, as the mean of all layers, and the current one; with `threshold` given it counts
 * for nothing but the auto n_recent.
 */
#include "parts/layer_state.h"

struct simlayerkv_opts {
    char threshold[KVL_OPT_STR_SIZE];
    int32_t n_initial, n_recent, n_last;
    double limit;               /* not options, here and below: -1 = auto */
    struct kvl_state_part kept; /* int32_t: tokens that a layer keeps */
};

static const struct kvl_opt simlayerkv_options[] = {
    KVL_ROW_STR(simlayerkv_opts, threshold, "budget",
                "weight from which a layer is lazy (paper: Llama 3 0.9, Llama 2 0.65, Mistral 0.8, "
                "Qwen 0.85); budget = as many layers as the budget asks for"),
    KVL_ROW_INT(simlayerkv_opts, n_initial, "4", 0, 65536,
                "first tokens of a lazy layer (paper: 4)"),
    KVL_ROW_INT(simlayerkv_opts, n_recent, "auto", 1, 1 << 30,
                "latest tokens of a lazy layer, with the last queries' own (paper: 1024); auto = "
                "half the budget, at most 1024"),
    KVL_ROW_INT(simlayerkv_opts, n_last, "1", 1, 1024, "queries that decide (paper: 1)"),
    { 0 },
};

static int32_t simlayerkv_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct simlayerkv_opts *o = opts;
    (void)shape;
    return o->n_recent == KVL_AUTO ? 2 * (o->n_initial + 2) : o->n_initial + 2;
}

static int simlayerkv_plan(struct kvl_plan *plan)
{
    struct simlayerkv_opts *o = plan->opts;
    KVL_TRY(kvl_plan_share(plan, "threshold", o->threshold, "budget", &o->limit));
    if (o->limit < 0 || o->n_recent == KVL_AUTO) KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->n_recent == KVL_AUTO)
        o->n_recent = KVL_MAX(o->n_last + 1, KVL_MIN(1024, plan->budget_tok / 2 - o->n_initial));
    if (o->n_recent <= o->n_last)
        return kvl_fail(plan->err, KVL_EINVAL, "n_recent=%d with n_last=%d; give more", o->n_recent,
                        o->n_last);
    kvl_plan_state(plan, sizeof(int32_t), &o->kept);
    return kvl_plan_observe(plan, KVL_OBS_WINDOW, o->n_last);
}

/* is_lazy(), step 1. */
static int simlayerkv_weight(const struct kvl_pctx *ctx, int32_t layer, double *weight)
{
    const struct simlayerkv_opts *o = ctx->opts;
    const float *mass;
    int32_t n, n_heads = ctx->shape->n_heads;
    double sum = 0;
    KVL_TRY(kvl_obs_window_mass(ctx, layer, o->n_last, &mass, &n));
    for (int32_t h = 0; h < n_heads; h++, mass += n) {
        /* The keys of the last queries themselves are no part of what is looked at, here as there. */
        int32_t end = n - o->n_last, first = KVL_MAX(0, end - o->n_recent);
        for (int32_t i = 0; i < KVL_MIN(o->n_initial, end); i++) sum += (double)mass[i];
        for (int32_t i = first; i < end; i++) sum += (double)mass[i];
    }
    *weight = sum / ((double)n_heads * o->n_last);
    return KVL_OK;
}

static int32_t simlayerkv_lazy(const struct simlayerkv_opts *o)
{
    return o->n_initial + o->n_recent - o->n_last;
}

/* Layers that have to be lazy for the mean to be the budget's, and what lazy ones then keep. */
static int32_t simlayerkv_number(const struct kvl_pctx *ctx, int32_t n, int32_t *kept)
{
    int32_t n_layers = ctx->shape->n_layers, lazy = simlayerkv_lazy(ctx->opts), number = 0;
    int64_t room = (int64_t)n_layers * (ctx->budget_tok - 1);
    while (number < n_layers && (int64_t)(n_layers - number) * n + (int64_t)number * lazy > room)
        number++;
    int64_t left = number > 0 ? (room - (int64_t)(n_layers - number) * n) / number : n;
    *kept = (int32_t)KVL_MIN(n, left);
    return number;
}

/* compress(), steps 2 and 3: before the first layer is cut, all of them are judged. */
static int simlayerkv_judge(const struct kvl_pctx *ctx, int32_t n)
{
    const struct simlayerkv_opts *o = ctx->opts;
    int32_t n_layers = ctx->shape->n_layers, lazy = simlayerkv_lazy(o), *order;
    float *weight;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_layers, &weight));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_layers + 1, &order));
    for (int32_t l = 0; l < n_layers; l++) {
        double w;
        KVL_TRY(simlayerkv_weight(ctx, l, &w));
        weight[l] = (float)w;
        bool is_lazy = o->limit >= 0 && w > o->limit && n > o->n_initial + o->n_recent + o->n_last;
        *(int32_t *)kvl_state_of(ctx, &o->kept, l) = is_lazy ? lazy : n;
    }
    if (o->limit >= 0) return KVL_OK;
    int32_t number = simlayerkv_number(ctx, n, &lazy);
    if (number == 0) return KVL_OK;
    KVL_TRY(kvl_topk(ctx, weight, 1, n_layers, number, order));
    for (int32_t i = 0; i < number; i++) *(int32_t *)kvl_state_of(ctx, &o->kept, order[i]) = lazy;
    return KVL_OK;
}

/* Positions are their own scores: the latest are the best. */
static int simlayerkv_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct simlayerkv_opts *o = ctx->opts;
    const int32_t *kept = kvl_state_of(ctx, &o->kept, layer);
    if (layer == 0) KVL_TRY(simlayerkv_judge(ctx, scores->n_tok));
    scores->keep_tok = *kept;
    scores->protect_first = KVL_MIN(o->n_initial, *kept);
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        for (int32_t i = 0; i < scores->n_tok; i++)
            scores->score[(size_t)h * (size_t)scores->n_tok + (size_t)i] = (float)i;
    return KVL_OK;
}

static const struct kvl_policy simlayerkv = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "simlayerkv",
    .title = "SimLayerKV",
    .paper = "Zhang et al., 2024, arXiv 2410.13846",
    .help = "lazy layers keep the first and the latest tokens, the others everything",
    .follows =
        "kvpress' SimLayerKVPress, with threshold given: a layer whose last query puts more than "
        "that on the first 4 and the last 1024 tokens before it keeps 4 + 1023.",
    .deviations =
        "threshold=budget, the default, takes the laziest layers until the mean of all is the "
        "budget, so that methods are compared at the same number of tokens. Decided once, when the "
        "context is complete, and not again while decoding.",
    .cost =
        "Once n_last queries over n keys for each of H heads of all layers, shared by all policies "
        "that observe as many. Nothing while decoding; no memory after that.",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_RAGGED,
    .opts = simlayerkv_options,
    .opts_size = sizeof(struct simlayerkv_opts),
    .min_budget = simlayerkv_min_budget,
    .plan = simlayerkv_plan,
    .score = simlayerkv_score,
};

KVL_POLICY_EXPORT(simlayerkv)
