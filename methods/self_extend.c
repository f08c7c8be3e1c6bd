/* self_extend - near keys at their distance, far keys by groups: a longer window without training.
 *
 * Jin et al.: LLM Maybe LongLM: Self-Extend LLM Context Window Without Tuning, ICML 2024 (arXiv
 * 2401.01325), section 3.2, Equation 4.  For a query at i and a key at j, with group size G and
 * neighbour window W:
 *     i - j < W    the distance is i - j
 *     else         it is floor(i / G) + W - W / G - floor(j / G)
 * Both parts are one softmax.  Nothing is dropped and nothing selected: only positions change.  The
 * largest distance of an n-token text is about (n - W) / G + W; it must stay below the length that the
 * model was trained on, which holds up to (L - W) G + W tokens.  The paper's rule of thumb asks for
 * (1/2 to 2/3) L > W + (n - W) / G.
 *
 * Follows the paper: W / G is an integer.  The code divides in floating point (G = 3, W = 8, i = 20,
 * j = 0: 11.33 instead of 12); here G must divide W, where both agree.
 * Budget: none, everything is read. */
#include "kvl/policy.h"

struct self_extend_opts {
    int32_t group_size, window_size;
};

static const struct kvl_opt self_extend_options[] = {
    KVL_ROW_INT(self_extend_opts, group_size, "8", 1, 1024,
                "far positions that become one, G (code: 8); 1 = plain attention", .alias = "G"),
    KVL_ROW_INT(self_extend_opts, window_size, "1024", 1, 1 << 24,
                "keys at their own distance, W, a multiple of G (code: 1024)", .alias = "W"),
    { 0 },
};

static int self_extend_plan(struct kvl_plan *plan)
{
    struct self_extend_opts *o = plan->opts;
    if (o->window_size % o->group_size != 0)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "window_size=%d with group_size=%d; give a multiple of %d", o->window_size,
                        o->group_size, o->group_size);
    int64_t farthest = (int64_t)plan->context_tok / o->group_size + o->window_size -
                       o->window_size / o->group_size;
    int32_t trained = plan->shape->n_ctx_train;
    if (plan->context_tok > KVL_MAX(o->window_size, trained) && farthest >= trained)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "group_size=%d and window_size=%d put %d tokens at distances up to %lld, "
                        "the model knows %d; give larger groups or a smaller window",
                        o->group_size, o->window_size, plan->context_tok, (long long)farthest,
                        trained);
    plan->raw_keys = true;
    return KVL_OK;
}

static int self_extend_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                              const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct self_extend_opts *o = ctx->opts;
    int32_t near = step->pos - o->window_size + 1; /* the first at its own distance */
    (void)q;
    if (near <= 0) return KVL_OK;
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, near, step->pos + 1));
    KVL_TRY(kvl_sel_segment(sel));
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, 0, near));
    KVL_TRY(kvl_sel_positions(sel, KVL_POS_GROUPED, o->group_size));
    /* Equation 4: floor(i / G) + W - W / G. */
    return kvl_sel_query_position(sel, step->pos / o->group_size + o->window_size -
                                           o->window_size / o->group_size);
}

static const struct kvl_policy self_extend = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "self_extend",
    .title = "SelfExtend",
    .paper = "Jin et al., ICML 2024, arXiv 2401.01325",
    .help = "reads everything, far keys at positions shared by groups",
    .follows =
        "The paper: neighbours at their distance, far keys at floor(position / G), one softmax "
        "over both; G divides W, where paper and code agree.",
    .deviations =
        "No scaling of queries by the logarithm of their position. A shared prefill has read the "
        "context at its own positions; prefill=own groups it from the start. Left out: W / G in "
        "floating point where G does not divide W, and llama.cpp's --grp-attn-n, which moves "
        "stored keys and not queries.",
    .cost = "Per step and layer all keys are read, and those farther than W are rotated anew. Once "
            "nothing. Memory: keys before RoPE, half the cache again.",
    .version = 1,
    .caps = KVL_CAP_REPOSITIONS | KVL_CAP_ASYNC,
    .prefill = KVL_PREFILL_EITHER,
    .opts = self_extend_options,
    .opts_size = sizeof(struct self_extend_opts),
    .plan = self_extend_plan,
    .select = self_extend_select,
};

KVL_POLICY_EXPORT(self_extend)
