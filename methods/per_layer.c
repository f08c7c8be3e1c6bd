/* per_layer - every layer keeps the part that a list says; which tokens, another policy says.
 *
 * NVIDIA: kvpress, PerLayerCompressionPress, 2024.  `kept` is a list of numbers, one for every layer, or fewer, between
 * which it is linear:
 *   1. layer l keeps kept_l (B - 1) divided by the mean of all kept, and no more than there is; what a layer has no use
 *      for goes to the others
 *   2. the inner policy scores its tokens
 * kvpress' list of ratios r_l is the list of 1 - r_l, with the budget that their mean is.
 * Budget B: B - 1 tokens of the context, as the mean of all layers, and the current one.
 */
#include "kvl/policy.h"

enum { PER_LAYER_MAX = 128 };

struct per_layer_opts {
    char kept[KVL_OPT_STR_SIZE];
    int32_t share[PER_LAYER_MAX], n_shares; /* not options, here and below */
};

static const struct kvl_opt per_layer_options[] = {
    KVL_ROW_STR(per_layer_opts, kept, "3/1",
                "what layers keep relative to each other: whole numbers, '/' between them, linear "
                "from layer to layer (kvpress: a ratio for every layer)"),
    { 0 },
};

/* Whole numbers with '/' between them. */
static int per_layer_plan(struct kvl_plan *plan)
{
    struct per_layer_opts *o = plan->opts;
    const char *c = o->kept;
    KVL_TRY(kvl_plan_needs_budget(plan));
    for (o->n_shares = 0; o->n_shares < PER_LAYER_MAX; c++) {
        int32_t share = 0;
        while (*c >= '0' && *c <= '9' && share < 100000) share = 10 * share + (*c++ - '0');
        if (share < 1) break;
        o->share[o->n_shares++] = share;
        if (*c == '\0') return KVL_OK;
        if (*c != '/') break;
    }
    return kvl_fail(plan->err, KVL_EINVAL,
                    "kept=%s; give at most %d whole numbers above 0, such as 3/2/1", o->kept,
                    PER_LAYER_MAX);
}

/* Linear between the numbers of the list. */
static double per_layer_share(const struct per_layer_opts *o, int32_t layer, int32_t n_layers)
{
    if (o->n_shares == 1 || n_layers == 1) return o->share[0];
    double x = (double)layer * (o->n_shares - 1) / (n_layers - 1);
    int32_t i = KVL_MIN((int32_t)x, o->n_shares - 2);
    return o->share[i] + (x - i) * (o->share[i + 1] - o->share[i]);
}

/* Step 1: kept [n_layers] of n tokens, at least `least` each, total in all; layers that are full or at their least leave
 * the rest to the others, and fractions go to the first layers. */
static void per_layer_split(const struct per_layer_opts *o, int32_t n_layers, int32_t n,
                            int32_t least, int64_t total, int32_t *kept)
{
    double low = 0, high = 1e9;
    for (int round = 0; round < 200; round++) {
        double factor = (low + high) / 2, sum = 0;
        for (int32_t l = 0; l < n_layers; l++)
            sum += KVL_MAX(least, KVL_MIN(n, factor * per_layer_share(o, l, n_layers)));
        *(sum > (double)total ? &high : &low) = factor;
    }
    for (int32_t l = 0; l < n_layers; l++) {
        double want = low * per_layer_share(o, l, n_layers) + 1e-6;
        kept[l] = (int32_t)KVL_MAX(least, KVL_MIN(n, want));
        total -= kept[l];
    }
    for (int32_t l = 0; l < n_layers; l++) {
        int32_t more = total > 0 && kept[l] < n;
        kept[l] += more;
        total -= more;
    }
}

/* PerLayerCompressionPress.forward_hook(): the inner policy's scores at the layer's own number, step 2. */
static int per_layer_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    int32_t n_layers = ctx->shape->n_layers, *kept;
    bool evicts;
    KVL_TRY(kvl_inner_even_score(ctx, layer, scores, &evicts));
    if (!evicts) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_layers, &kept));
    per_layer_split(ctx->opts, n_layers, scores->n_tok,
                    KVL_MAX(1, scores->protect_first + scores->protect_last),
                    (int64_t)n_layers * scores->keep_tok, kept);
    scores->keep_tok = kept[layer];
    return KVL_OK;
}

static const struct kvl_policy per_layer = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "per_layer",
    .title = "Budgets per layer",
    .paper = "NVIDIA, kvpress, PerLayerCompressionPress, 2024",
    .help = "budgets of the layers by a list, for tokens that another policy scores",
    .follows =
        "kvpress' PerLayerCompressionPress: a part for every layer, tokens by any policy that "
        "scores them once.",
    .deviations =
        "The list says how layers stand to each other and the budget how many tokens they have "
        "together, where kvpress' ratios say both; layers that have no room leave theirs to the "
        "others. The default, 3/1, is ours.",
    .cost = "Once that of the inner policy. Nothing while decoding; no memory after that.",
    .inner = "snapkv",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_RAGGED,
    .opts = per_layer_options,
    .opts_size = sizeof(struct per_layer_opts),
    .plan = per_layer_plan,
    .score = per_layer_score,
};

KVL_POLICY_EXPORT(per_layer)
