/* random - as many tokens as the budget allows, picked blindly: the lower bound of every table.
 *
 * Not a method.  A method that does not beat it has found nothing.
 *   mode=select  every step and layer reads a fresh uniform sample (keeps all, reads a part)
 *   mode=evict   one uniform sample of the context stays, drawn when the context is complete;
 *                tokens that come later stay too
 * Budget B: B - 1 sampled tokens and the current one.  In mode=evict the cache grows by every token
 * after the context, as with every one-shot evictor.
 */
#include "kvl/policy.h"

enum { RANDOM_SELECT = 0, RANDOM_EVICT = 1 };

struct random_opts {
    int32_t mode;
    int32_t scope; /* enum kvl_scope */
};

static const char *const random_modes[] = { "select", "evict", NULL };
static const char *const random_scopes[] = { "layer", "kv_head", "q_head", NULL };

static const struct kvl_opt random_options[] = {
    KVL_ROW_ENUM(random_opts, mode, "select", random_modes,
                 "select: a fresh sample per step; evict: one sample, fixed after prefill"),
    KVL_ROW_ENUM(random_opts, scope, "kv_head", random_scopes,
                 "who shares a sample; q_head lists can add up to a group's size times the budget"),
    { 0 },
};

static int random_plan(struct kvl_plan *plan)
{
    const struct random_opts *o = plan->opts;
    KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->mode == RANDOM_EVICT && o->scope == KVL_SCOPE_Q_HEAD)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "scope=q_head with mode=evict; storage is per kv head, so give "
                        "scope=kv_head or scope=layer");
    return KVL_OK;
}

static int random_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct random_opts *o = ctx->opts;
    if (o->mode != RANDOM_EVICT) {
        scores->keep_tok = scores->n_tok;
        return KVL_OK;
    }
    scores->keep_tok = ctx->budget_tok - 1;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        uint64_t lane = o->scope == KVL_SCOPE_LAYER ? 0 : (uint64_t)h;
        struct kvl_random_fill_args fill = {
            .y = scores->score + (size_t)h * (size_t)scores->n_tok,
            .n = (size_t)scores->n_tok,
            .seed = kvl_seed_mix(kvl_seed_mix(ctx->seed, (uint64_t)layer), lane),
        };
        KVL_TRY(ctx->ops->random_fill(&fill));
    }
    return KVL_OK;
}

static int32_t random_lists(const struct kvl_shape *shape, int32_t scope)
{
    if (scope == KVL_SCOPE_LAYER) return 1;
    return scope == KVL_SCOPE_KV_HEAD ? shape->n_kv_heads : shape->n_heads;
}

static int random_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct random_opts *o = ctx->opts;
    (void)q;
    if (o->mode != RANDOM_SELECT || step->pos < ctx->budget_tok) return KVL_OK;
    size_t n = (size_t)random_lists(ctx->shape, o->scope) * (size_t)step->pos;
    float *score;
    KVL_TRY(kvl_scratch_get(ctx, n, &score));
    struct kvl_random_fill_args fill = {
        .y = score,
        .n = n,
        .seed = kvl_seed_mix(kvl_seed_mix(ctx->seed, (uint64_t)step->layer), (uint64_t)step->pos),
    };
    KVL_TRY(ctx->ops->random_fill(&fill));
    return kvl_sel_top_tokens(sel, (enum kvl_scope)o->scope, score, step->pos, ctx->budget_tok - 1);
}

static const struct kvl_policy random = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "random",
    .title = "Random tokens",
    .paper = "none (bound)",
    .help = "reads or keeps a uniform random set of the budget's size",
    .follows =
        "A bound of our own: a method that does not beat it has found nothing. mode=select reads "
        "a fresh uniform sample per step and layer, mode=evict keeps one sample of the context "
        "and all that comes later.",
    .deviations =
        "None, there is no paper. The sample follows from seed, layer, position and kv head "
        "alone, so that chunks, batches and forks do not change it.",
    .cost = "Per step and layer n random numbers and a top-k for each list; mode=evict one sample, "
            "once, when the context is complete. No memory.",
    .version = 1,
    .caps = KVL_CAP_BOUND | KVL_CAP_SELECTS | KVL_CAP_EVICTS | KVL_CAP_SAMPLES | KVL_CAP_ASYNC,
    .opts = random_options,
    .opts_size = sizeof(struct random_opts),
    .plan = random_plan,
    .score = random_score,
    .select = random_select,
};

KVL_POLICY_EXPORT(random)
