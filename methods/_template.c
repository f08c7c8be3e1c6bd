/* template - a sliding window: the smallest complete method, to copy.
 *
 * How to make a method of it (methods/README.md has the commands):
 *   1. Copy this file to methods/<name>.c and replace every "template" by <name>: letters, digits
 *      and underscores.  The file's name, `.name`, the object and KVL_POLICY_EXPORT must agree; the
 *      build finds the file by itself (files that begin with _ are left out).
 *   2. Rewrite this comment: the paper with equation or algorithm numbers, which of several
 *      published behaviours you follow, the cost per step, every deviation.
 *   3. Options: one KVL_ROW_INT, _FLOAT, _BOOL, _ENUM or _STR each, with the paper's name for it, and
 *      the paper's value in its help.  What follows from the budget is "auto", resolved in `plan` and
 *      written back, so that the log shows what ran.
 *   4. Set `caps` and the hooks you need; leave out the others.  The usual shapes:
 *        evict once after the context     score                       see snapkv.c
 *        evict while decoding             evict                       this file, streaming_llm.c
 *        select per step                  append, schedule, select    see quest.c
 *        a sparse prefill                 prefill_mask, .prefill      see minference.c
 *      Which call gives what: the cookbook in methods/README.md.  Hooks allocate nothing
 *      (kvl_scratch_get, plan->state_bytes, kvl_plan_table), keep nothing in globals, and give memory of
 *      the engine to operators (ctx->ops, kvl_topk, kvl_table_scores ...) instead of reading it.  If
 *      that holds for all hooks of a step, add KVL_CAP_ASYNC: on a GPU the engine does not wait for
 *      them.
 *      Arithmetic that no operator has begins as a loop in methods/<name>.op.c (kvl_host_op).
 *   5. Count the budget as everybody does: B tokens attended per lane, the current one included.
 *      `min_budget` is the least that makes sense; less is refused before `plan` is asked.
 *   6. Fill in help, follows, deviations and cost: plain sentences.  The tables of methods/README.md and cards.md are
 *      made of them (tests/structure/method_tables.sh); add the row of methods/budgets.md.
 *   7. Build, run ctest -L conformance, and write a golden test with numbers from the paper or from
 *      the official code in tests/golden/.
 *
 * This one: keeps the last `recent` tokens, at their original positions.  Budget B: recent = B - 1,
 * plus the current token.  Cost per step and layer: one range.  Deviations: none, there is no paper.
 */
#include "kvl/policy.h"

struct template_opts {
    int32_t recent;
};

static const struct kvl_opt template_options[] = {
    KVL_ROW_INT(template_opts, recent, "auto", 1, 1 << 30,
                "last tokens that stay after a step; auto = budget - 1"),
    { 0 },
};

static int32_t template_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    (void)opts;
    return 2;
}

static int template_plan(struct kvl_plan *plan)
{
    struct template_opts *o = plan->opts;
    if (o->recent != KVL_AUTO) return KVL_OK;
    KVL_TRY(kvl_plan_needs_budget(plan));
    o->recent = plan->budget_tok - 1;
    return KVL_OK;
}

/* After every step, and once when the context is complete (then n_tok is its length). */
static int template_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    const struct template_opts *o = ctx->opts;
    int32_t end = step->pos + step->n_tok;
    return kvl_keep_range(keep, -1, KVL_MAX(0, end - o->recent), end);
}

static const struct kvl_policy template = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "template",
    .title = "Sliding window",
    .paper = "none (example)",
    .help = "keeps the latest tokens",
    .follows = "No paper: keeps the last `recent` tokens at their original positions.",
    .deviations = "None.",
    .cost = "Per step and layer one range. Nothing once, no memory.",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .opts = template_options,
    .opts_size = sizeof(struct template_opts),
    .min_budget = template_min_budget,
    .plan = template_plan,
    .evict = template_evict,
};

KVL_POLICY_EXPORT(template)
