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
 * Deviations: queries are not scaled by the logarithm of their position (an option of the code).  From a
 * shared prefill the context was read with its own positions; prefill: own reads it grouped, token by
 * token, which the code does in one call for the whole prompt.
 * Budget: none, everything is read.
 * Cost per step and layer: all keys farther than W are rotated anew from their form before RoPE, 2 n d
 * values are read per kv head as in full attention.
 */
#include "kvl/policy.h"

struct self_extend_opts {
    int32_t group, window;
};

static const struct kvl_opt self_extend_options[] = {
    { .name = "group_size",
      .alias = "G",
      .type = KVL_OPT_INT,
      .off = offsetof(struct self_extend_opts, group),
      .def = "8",
      .min = 1,
      .max = 1024,
      .help = "far positions that become one, G (code: 8); 1 = plain attention" },
    { .name = "window_size",
      .alias = "W",
      .type = KVL_OPT_INT,
      .off = offsetof(struct self_extend_opts, window),
      .def = "1024",
      .min = 1,
      .max = 1 << 24,
      .help = "keys at their own distance, W, a multiple of G (code: 1024)" },
    { 0 },
};

static int self_extend_plan(struct kvl_plan *plan)
{
    struct self_extend_opts *o = plan->opts;
    if (o->window % o->group != 0)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "window_size=%d with group_size=%d; give a multiple of %d", o->window,
                        o->group, o->group);
    int64_t farthest = (int64_t)plan->context_tok / o->group + o->window - o->window / o->group;
    int32_t trained = plan->shape->n_ctx_train;
    if (plan->context_tok > KVL_MAX(o->window, trained) && farthest >= trained)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "group_size=%d and window_size=%d put %d tokens at distances up to %lld, "
                        "the model knows %d; give larger groups or a smaller window",
                        o->group, o->window, plan->context_tok, (long long)farthest, trained);
    plan->raw_keys = true;
    return KVL_OK;
}

static int self_extend_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                              const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct self_extend_opts *o = ctx->opts;
    int32_t near = step->pos - o->window + 1; /* the first at its own distance */
    (void)q;
    if (near <= 0) return KVL_OK;
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, near, step->pos + 1));
    KVL_TRY(kvl_sel_segment(sel));
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, 0, near));
    KVL_TRY(kvl_sel_positions(sel, KVL_POS_GROUPED, o->group));
    return kvl_sel_query_position(sel, step->pos / o->group + o->window - o->window / o->group);
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
