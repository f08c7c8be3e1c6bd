/* context_shift - when the cache is full, half of it goes: what llama.cpp does with endless text.
 *
 * ggml-org/llama.cpp, context shift (tools/main and server; off by default since 2025-08, PR 15416):
 * before a token is decoded with n_past tokens in a cache of n_ctx, if n_past + 1 >= n_ctx, the first
 * n_keep tokens stay, of the n_left = n_past - n_keep others the oldest n_discard = n_left / 2 are
 * dropped, and the rest moves up: keys are turned to their new positions, values stay.  Unlike
 * StreamingLLM it forgets in steps and not one token at a time.
 *   mode=shift    n_keep = 1 (the BOS token, which llama.cpp adds to --keep 0), half is dropped, a key's
 *                 position is its rank in the cache
 *   mode=rolling  the rolling buffer of models with sliding-window attention: n_keep = 0, one token is
 *                 dropped per token, positions stay
 * Both are defaults of n_keep, n_discard and positions, each of which may be given.
 *
 * What is left after n tokens depends on n alone: with C = n_ctx - 1 the cache holds n of them up to
 * C - 1, then C - n_discard + (n - C) mod n_discard.  So a context of any length, a block of tokens and
 * single tokens leave the same.
 * Budget B: a step attends to at most n_ctx - 1 tokens, its own included: n_ctx = B + 1.
 * Deviations: keys are rotated from their form before RoPE in every step, exactly; llama.cpp turns the
 * stored keys by the shift each time, which rounds (and quantised keys round twice).  From a shared
 * prefill the context was read whole.
 * Cost per step and layer: two ranges; with positions=in_cache at most n_ctx - 1 keys are rotated anew.
 */
#include "kvl/policy.h"

enum { SHIFT_SHIFT = 0, SHIFT_ROLLING = 1 };
enum { SHIFT_POS_AUTO = 0, SHIFT_POS_IN_CACHE, SHIFT_POS_ORIGINAL };

struct shift_opts {
    int32_t mode, n_ctx, n_keep, n_discard, positions;
};

static const char *const shift_modes[] = { "shift", "rolling", NULL };
static const char *const shift_positions[] = { "auto", "in_cache", "original", NULL };

static const struct kvl_opt shift_options[] = {
    KVL_ROW_ENUM(shift_opts, mode, "shift", shift_modes,
                 "shift: llama.cpp's context shift; rolling: buffer of a sliding window"),
    KVL_ROW_INT(shift_opts, n_ctx, "auto", 4, 1 << 30,
                "size of the cache (llama.cpp: --ctx-size); auto = budget + 1"),
    KVL_ROW_INT(shift_opts, n_keep, "auto", 0, 1 << 30,
                "first tokens that stay (llama.cpp: --keep, and BOS); auto = 1, rolling: 0"),
    KVL_ROW_INT(shift_opts, n_discard, "auto", 1, 1 << 30,
                "tokens dropped at once; auto = half of those that may go, rolling: 1"),
    KVL_ROW_ENUM(
        shift_opts, positions, "auto", shift_positions,
        "in_cache: rank in the cache; original: as before; auto = in_cache, rolling: original"),
    { 0 },
};

static int32_t shift_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct shift_opts *o = opts;
    int32_t keep = o->mode == SHIFT_ROLLING ? 0 : 1;
    (void)shape;
    if (o->n_ctx != KVL_AUTO) return 1;
    return (o->n_keep == KVL_AUTO ? keep : o->n_keep) + 2;
}

static int shift_plan(struct kvl_plan *plan)
{
    struct shift_opts *o = plan->opts;
    bool rolling = o->mode == SHIFT_ROLLING;
    if (o->n_ctx == KVL_AUTO) {
        KVL_TRY(kvl_plan_needs_budget(plan));
        o->n_ctx = plan->budget_tok + 1;
    }
    if (o->n_keep == KVL_AUTO) o->n_keep = rolling ? 0 : 1;
    int32_t left = o->n_ctx - 1 - o->n_keep;
    if (left < 2)
        return kvl_fail(plan->err, KVL_EINVAL, "n_keep=%d with n_ctx=%d; give at most %d",
                        o->n_keep, o->n_ctx, o->n_ctx - 3);
    if (o->n_discard == KVL_AUTO) o->n_discard = rolling ? 1 : left / 2;
    if (o->n_discard > left)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "n_discard=%d with n_ctx=%d and n_keep=%d; give at most %d", o->n_discard,
                        o->n_ctx, o->n_keep, left);
    if (o->positions == SHIFT_POS_AUTO)
        o->positions = rolling ? SHIFT_POS_ORIGINAL : SHIFT_POS_IN_CACHE;
    plan->raw_keys = o->positions == SHIFT_POS_IN_CACHE;
    return KVL_OK;
}

/* llama_memory_seq_add(): what is left moves up. */
static int shift_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct shift_opts *o = ctx->opts;
    (void)step;
    (void)q;
    if (o->positions == SHIFT_POS_ORIGINAL) return KVL_OK;
    return kvl_sel_positions(sel, KVL_POS_IN_CACHE, 0);
}

/* llama_memory_seq_rm(): after every step, and once when the context is complete. */
static int shift_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    const struct shift_opts *o = ctx->opts;
    int32_t end = step->pos + step->n_tok, full = o->n_ctx - 1;
    if (end < full) return KVL_OK;
    int32_t n_live = full - o->n_discard + (end - full) % o->n_discard;
    KVL_TRY(kvl_keep_range(keep, -1, 0, o->n_keep));
    return kvl_keep_range(keep, -1, end - (n_live - o->n_keep), end);
}

static const struct kvl_policy context_shift = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "context_shift",
    .title = "Context shift",
    .paper = "llama.cpp, context shift (--context-shift, --keep)",
    .help = "keeps the first tokens, drops the older half of the others when the cache is full",
    .follows =
        "llama.cpp: keep n_keep, drop half of the rest when n_past + 1 reaches n_ctx, keys at "
        "their rank in the cache. mode=rolling is the buffer of sliding-window models, one token "
        "at a time at original positions.",
    .deviations =
        "Keys are rotated anew from their form before RoPE: exact, where llama.cpp's repeated "
        "shifts round. From a shared prefill the context was read whole.",
    .cost =
        "Per step and layer two ranges, and with positions=in_cache up to n_ctx - 1 keys rotated "
        "anew. Once two ranges. Memory with positions=in_cache: keys before RoPE, half the cache "
        "again.",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_REPOSITIONS | KVL_CAP_ASYNC,
    .prefill = KVL_PREFILL_EITHER,
    .opts = shift_options,
    .opts_size = sizeof(struct shift_opts),
    .min_budget = shift_min_budget,
    .plan = shift_plan,
    .select = shift_select,
    .evict = shift_evict,
};

KVL_POLICY_EXPORT(context_shift)
