/* knorm - keeps the tokens whose keys are short.
 *
 * Devoto et al.: A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression, EMNLP 2024
 * (arXiv 2406.11430), section 3.  When the context is complete, per layer and kv head:
 *     score_j = -|k_j|_2
 * and the B - 1 best stay (ties: the lower position).  RoPE changes no norm.  No token is protected,
 * neither the first nor the latest: whether the first are kept is for their keys to say, which in most
 * models are short.
 *
 * skip_layers: the first layers keep everything, as in KVCache-Factory (2); kvpress and the default: 0.
 * Accuracy need not rise with the budget: long keys are not unimportant one by one.
 * Budget B: B - 1 tokens of the context and the current one; tokens that come later stay.
 * Deviations: none; norms of the keys as they are stored.
 * Cost: reads the keys once, d additions for each; a top-k of n per kv head.  Nothing while decoding.
 */
#include "kvl/policy.h"

struct knorm_opts {
    int32_t skip_layers;
};

static const struct kvl_opt knorm_options[] = {
    KVL_ROW_INT(knorm_opts, skip_layers, "0", 0, 1024,
                "first layers that keep everything (KVCache-Factory: 2; paper and kvpress: 0)"),
    { 0 },
};

static int32_t knorm_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    (void)opts;
    return 2;
}

static int knorm_plan(struct kvl_plan *plan)
{
    const struct knorm_opts *o = plan->opts;
    KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->skip_layers < plan->shape->n_layers) return KVL_OK;
    return kvl_fail(plan->err, KVL_EINVAL,
                    "skip_layers=%d of a model of %d layers; give fewer, or the policy full",
                    o->skip_layers, plan->shape->n_layers);
}

/* Section 3: minus the norm of each key. */
static int knorm_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct knorm_opts *o = ctx->opts;
    int32_t n, dim = ctx->shape->head_dim;
    const int32_t *pos;
    float *k;
    scores->keep_tok = layer < o->skip_layers ? scores->n_tok : ctx->budget_tok - 1;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)scores->n_tok * (size_t)dim, &k));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        float *score = scores->score + (size_t)h * (size_t)scores->n_tok;
        KVL_TRY(kvl_live(ctx, layer, h, &pos, &n));
        KVL_TRY(kvl_read_keys(ctx, layer, h, pos, n, false, k));
        KVL_TRY(ctx->ops->row_norms(
            &(struct kvl_row_norms_args){ .y = score, .x = k, .n = n, .dim = dim, .norm = 2 }));
        for (int32_t i = 0; i < n; i++) score[i] = -score[i];
    }
    return KVL_OK;
}

static const struct kvl_policy knorm = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "knorm",
    .title = "Knorm",
    .paper = "Devoto et al., EMNLP 2024, arXiv 2406.11430",
    .help = "keeps the tokens with the shortest keys, evicts the rest once",
    .follows =
        "The paper and kvpress: minus the 2-norm of the key, per kv head, in every layer, no token "
        "protected. skip_layers=2 leaves two layers whole, as KVCache-Factory does.",
    .deviations = "None.",
    .cost =
        "Once, when the context is complete, d products for each of n keys and a top-k of n per kv "
        "head. Nothing while decoding; no memory after that.",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .opts = knorm_options,
    .opts_size = sizeof(struct knorm_opts),
    .min_budget = knorm_min_budget,
    .plan = knorm_plan,
    .score = knorm_score,
};

KVL_POLICY_EXPORT(knorm)
