/* pyramidkv - low layers keep more tokens than high ones; which ones, another policy says.
 *
 * Cai et al.: PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling, 2024
 * (arXiv 2406.02069), section 4.  Attention spreads over many tokens in low layers and settles on few
 * in high ones, so the budgets of the layers fall linearly.  With C tokens a layer on average, W of them
 * the window, and b = C - W:
 *     the last layer keeps b / beta (+ W), the first one 2 b - b / beta (+ W), straight in between
 * and no layer more than there are.  The tokens are chosen by SnapKV (window 8, kernel 7, maximum), or
 * by any other policy that scores tokens once: pyramidkv(keydiff).  All heads of a layer keep as many.
 * schedule: ways to make numbers of it (pyramidkv_caps.h)
 *   strict    real-valued, rounded by largest remainders: the layers' budgets sum to layers x C.  Ours
 *   factory   KVCache-Factory, the code of the paper: integers, the step between layers rounded down, so
 *             that the sum overshoots (by 12 % at C = 64 and 32 layers, 0.02 % at 2048)
 *   kvpress   PyramidKVPress with the ratio 1 - C / n, to the double
 * Budget B: C = B - 1 tokens of the context and the current one, as the mean of all layers (strict). */
#include "kvl/policy.h"
#include "pyramidkv_caps.h"

struct pyramidkv_opts {
    int32_t schedule, beta;
};

static const char *const pyramidkv_schedules[] = { "strict", "factory", "adakv", "kvpress", NULL };

static const struct kvl_opt pyramidkv_options[] = {
    KVL_ROW_ENUM(
        pyramidkv_opts, schedule, "strict", pyramidkv_schedules,
        "of the layers: exact sum, KVCache-Factory (the paper's code), AdaKV's copy, kvpress"),
    KVL_ROW_INT(pyramidkv_opts, beta, "20", 1, 1000,
                "the last layer keeps 1 / beta of the mean; 1 = all layers alike (paper: 20)"),
    { 0 },
};

static int pyramidkv_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct pyramidkv_opts *o = ctx->opts;
    bool evicts;
    KVL_TRY(kvl_inner_even_score(ctx, layer, scores, &evicts));
    if (!evicts) return KVL_OK;
    const struct pyramid p = { .schedule = (enum pyramid_schedule)o->schedule,
                               .n_layers = ctx->shape->n_layers,
                               .n_tok = scores->n_tok,
                               .capacity = scores->keep_tok,
                               .window = scores->protect_first + scores->protect_last,
                               .beta = o->beta };
    scores->keep_tok = pyramid_keep(&p, layer); /* section 4 */
    return KVL_OK;
}

static const struct kvl_policy pyramidkv = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "pyramidkv",
    .title = "PyramidKV",
    .paper = "Cai et al., 2024, arXiv 2406.02069",
    .help = "budgets that fall from layer to layer, for tokens that another policy scores",
    .follows =
        "The paper's linear, real-valued schedule (beta 20) over SnapKV with window 8, kernel 7 "
        "and maximum, as in its scripts. Options: schedule=factory is KVCache-Factory to the "
        "integer, with its overshoot and its uniform middle; schedule=adakv the copy in AdaKV's "
        "repository, but for its schedule frozen at a run's first prompt; schedule=kvpress "
        "PyramidKVPress, over pyramidkv(snapkv:window=64,kernel=5,pool=avg,pool_first=true). Any "
        "policy that scores tokens once may be wrapped.",
    .deviations =
        "The default, schedule=strict, rounds the paper's real-valued budgets by largest "
        "remainders so that they sum to the budget, which the published code overshoots. One set "
        "per kv head, where KVCache-Factory keeps one per query head on repeated keys.",
    .cost = "Once that of the inner policy. Nothing while decoding; no memory after that.",
    .inner = "snapkv:window=8",
    .version = 2,
    .caps = KVL_CAP_EVICTS | KVL_CAP_RAGGED,
    .opts = pyramidkv_options,
    .opts_size = sizeof(struct pyramidkv_opts),
    .score = pyramidkv_score,
};

KVL_POLICY_EXPORT(pyramidkv)
