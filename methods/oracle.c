/* oracle - exact top-k by attention weight: what the best selection of that size could reach.
 *
 * Not a method: it computes every attention weight first (and is charged for reading every key), so
 * it saves nothing.  Its accuracy bounds every method that picks k tokens per step and layer by
 * weight.  It is no bound on methods that share a budget unevenly, and the largest weights are not
 * always the best answer.
 * Scope: one list per kv head by default, what the store can serve without reading a key twice; the
 * weights of a group's query heads are then reduced (mean = the mass that the lane captures).
 * Budget B: the B - 1 heaviest tokens and the current one.  With scope=q_head a lane reads the union
 * of its group's lists, up to group size times B.
 */
#include "kvl/policy.h"

struct oracle_opts {
    int32_t scope;  /* enum kvl_scope */
    int32_t reduce; /* index into oracle_reduces */
};

static const char *const oracle_scopes[] = { "layer", "kv_head", "q_head", NULL };
static const char *const oracle_reduce_names[] = { "mean", "max", "first", NULL };
static const enum kvl_reduce oracle_reduces[] = { KVL_REDUCE_MEAN, KVL_REDUCE_MAX,
                                                  KVL_REDUCE_FIRST };

static const struct kvl_opt oracle_options[] = {
    KVL_ROW_ENUM(oracle_opts, scope, "kv_head", oracle_scopes,
                 "who shares a list; q_head lists can add up to a group's size times the budget"),
    KVL_ROW_ENUM(oracle_opts, reduce, "mean", oracle_reduce_names,
                 "how the weights of the query heads that share a list become one"),
    { 0 },
};

static int32_t oracle_lists(const struct kvl_shape *shape, int32_t scope)
{
    if (scope == KVL_SCOPE_LAYER) return 1;
    return scope == KVL_SCOPE_KV_HEAD ? shape->n_kv_heads : shape->n_heads;
}

static int oracle_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct oracle_opts *o = ctx->opts;
    int32_t n_heads = ctx->shape->n_heads, n_live = step->pos + 1;
    int32_t n_lists = oracle_lists(ctx->shape, o->scope);
    if (n_live <= ctx->budget_tok) return KVL_OK;
    float *probs, *score;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_heads * (size_t)n_live, &probs));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_lists * (size_t)step->pos, &score));
    KVL_TRY(kvl_attn_weights(ctx, step, q, probs, n_live));
    /* The lists play the part of kv heads: 1, n_kv_heads or n_heads groups of query heads.  The
     * current token (the last column) is attended anyway and must not take a place. */
    struct kvl_group_reduce_args reduce = {
        .y = score,
        .x = probs,
        .x_stride = (size_t)n_live,
        .n = step->pos,
        .n_heads = n_heads,
        .n_kv_heads = n_lists,
        .reduce = oracle_reduces[o->reduce],
    };
    KVL_TRY(ctx->ops->group_reduce(&reduce));
    return kvl_sel_top_tokens(sel, (enum kvl_scope)o->scope, score, step->pos, ctx->budget_tok - 1);
}

static const struct kvl_policy oracle = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "oracle",
    .title = "Oracle top-k",
    .paper = "none (bound)",
    .help = "reads the tokens of largest attention weight, found by computing all of them",
    .follows =
        "A bound of our own: the exact top-k by attention weight, one list per kv head by the mean "
        "over its query heads, which is the mass that the lane captures. It bounds methods that "
        "pick k tokens per step and layer by weight, not those that share a budget unevenly. "
        "Options: per layer, per query head, the maximum over the group.",
    .deviations = "None, there is no paper. Top-p, the smallest set of a given mass, is left out.",
    .cost =
        "Per step and layer it reads all keys, n d values per kv head counted as index bytes, and "
        "takes a top-k of n per list: it saves nothing. Nothing once; no memory.",
    .version = 1,
    .caps = KVL_CAP_BOUND | KVL_CAP_SELECTS | KVL_CAP_ASYNC,
    .opts = oracle_options,
    .opts_size = sizeof(struct oracle_opts),
    .plan = kvl_plan_needs_budget,
    .select = oracle_select,
};

KVL_POLICY_EXPORT(oracle)
