/* streaming_llm - attention sinks and a rolling window.
 *
 * Xiao, Tian, Chen, Han, Lewis: Efficient Streaming Language Models with Attention Sinks, ICLR 2024
 * (arXiv 2309.17453), section 3.2 and Figure 4.  Keeps the first S and the last R tokens of every
 * lane; what lies between is lost for good.  No scores.
 *
 * Published behaviours differ in the positions at which keys are attended:
 *   positions=in_cache  the paper and its code: a key's position is its rank in the cache, so no
 *                       distance ever exceeds S + R
 *   positions=original  kvpress (without its rotation wrapper) and KVCache-Factory
 * Both evict once when the context is complete, and then after every step.
 *
 * Budget B: the paper evicts down to S + R *after* a step, so that the step itself attends to
 * S + R + 1 tokens.  We count these: R = B - S - 1.
 * Deviations: from a shared dense prefill, keys of deep layers have seen what is dropped later; with
 * its own prefill the method streams from the first token, as in the paper.  After a shared prefill
 * a question that runs as one block evicts at its end: its own tokens exceed the budget meanwhile,
 * as in the paper's chat demo, which makes room before a prompt and not within it.
 * Cost per step and layer: two ranges; with in_cache positions S + R + 1 keys are rotated anew.
 */
#include "kvl/policy.h"

enum { STREAMING_IN_CACHE = 0, STREAMING_ORIGINAL = 1 };

struct streaming_opts {
    int32_t sink, recent, positions;
};

static const char *const streaming_positions[] = { "in_cache", "original", NULL };

static const struct kvl_opt streaming_options[] = {
    KVL_ROW_INT(streaming_opts, sink, "4", 0, 65536, "first tokens that stay (paper: S = 4)"),
    KVL_ROW_INT(streaming_opts, recent, "auto", 1, 1 << 30,
                "last tokens that stay after a step; auto = budget - sink - 1 (paper: R = cache - "
                "S, with caches of 256 to 4096)"),
    KVL_ROW_ENUM(streaming_opts, positions, "in_cache", streaming_positions,
                 "in_cache: rank in the cache (paper); original: as before eviction (kvpress)"),
    { 0 },
};

static int32_t streaming_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    return ((const struct streaming_opts *)opts)->sink + 2;
}

static int streaming_plan(struct kvl_plan *plan)
{
    struct streaming_opts *o = plan->opts;
    if (o->recent == KVL_AUTO) {
        KVL_TRY(kvl_plan_needs_budget(plan));
        o->recent = plan->budget_tok - o->sink - 1;
    }
    plan->raw_keys = o->positions == STREAMING_IN_CACHE;
    return KVL_OK;
}

/* Figure 4: positions within the cache. */
static int streaming_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                            const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct streaming_opts *o = ctx->opts;
    (void)step;
    (void)q;
    bool original = o->positions == STREAMING_ORIGINAL;
    return original ? KVL_OK : kvl_sel_positions(sel, KVL_POS_IN_CACHE, 0);
}

/* Section 3.2: after every step, and once when the context is complete (then n_tok is its length). */
static int streaming_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    const struct streaming_opts *o = ctx->opts;
    int32_t end = step->pos + step->n_tok;
    if (end <= o->sink + o->recent) return KVL_OK;
    KVL_TRY(kvl_keep_range(keep, -1, 0, o->sink));
    return kvl_keep_range(keep, -1, end - o->recent, end);
}

static const struct kvl_policy streaming_llm = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "streaming_llm",
    .title = "StreamingLLM",
    .paper = "Xiao et al., ICLR 2024, arXiv 2309.17453",
    .help = "keeps the first and the latest tokens, drops what lies between",
    .follows =
        "The paper and its official code: the first S and the last R tokens, S + R after every "
        "step, attended at their ranks in the cache. positions=original is what kvpress and "
        "KVCache-Factory do. prefill=own streams from the first token on, as in the paper.",
    .deviations =
        "R = B - S - 1, since the tokens that a step attends to are counted. After a shared "
        "prefill, keys of deep layers have seen what is dropped later, and a question that runs as "
        "one block is cut at its end; with prefill=own neither. Left out: the room that the chat "
        "demo makes before a prompt.",
    .cost =
        "Per step and layer two ranges; positions=in_cache rotates B keys anew. Once two ranges. "
        "Memory with positions=in_cache: keys before RoPE, half the cache again.",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_REPOSITIONS | KVL_CAP_ASYNC,
    .prefill = KVL_PREFILL_EITHER,
    .opts = streaming_options,
    .opts_size = sizeof(struct streaming_opts),
    .min_budget = streaming_min_budget,
    .plan = streaming_plan,
    .select = streaming_select,
    .evict = streaming_evict,
};

KVL_POLICY_EXPORT(streaming_llm)
