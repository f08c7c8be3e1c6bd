/* duo_attention - heads that retrieve keep everything, the others stream.
 *
 * Xiao, Tang, Zuo et al.: DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming
 * Heads, ICLR 2025 (arXiv 2410.10819), section 2; and its code.  Every kv head has a gate, trained in the
 * paper.  The gates below their `sparsity` quantile (over all layers, linear between two values) make
 * streaming heads: they keep the first `sink` and the latest `recent` tokens, at their original positions.
 * The others keep all.
 *
 * gates=measure takes the share of attention outside sink and measure_window: behind a shared prefill exact
 * over all queries, in an own one by the last 32 queries of the first chunk, which is dense.
 * prefill: own streams in the prefill, as in the paper: queries of streaming heads read sink and window.
 * prefill: shared is dense and evicts once when the context is complete; then both slide at every step.
 *
 * Budget B: the mean over all lanes of what a step reads, with 64 tokens behind the context.  With sparsity
 * given, streaming lanes get what full ones leave; with none, as many lanes are full as B pays when the
 * others read B / 4 tokens, or the deployed 320 where that is less, and what is over goes to these.
 * sink : recent is 1 : 4.  Without a budget: sparsity 0.5, sink 64, recent 256, as deployed. */
#include "kvl/policy.h"
#include "parts/gates.h"
#include "parts/head_file.h"

#include <stdio.h>

enum { DUO_MEASURE = 32, DUO_TAIL = 64, DUO_CHUNK = 128 };

struct duo_opts {
    char sparsity[KVL_OPT_STR_SIZE], table[KVL_OPT_STR_SIZE], table_sum[KVL_OPT_STR_SIZE];
    int32_t sink, recent, gates, measure_window, chunk;
    bool report_gates;
    double share; /* not options: sparsity as a number, prefill: own */
    bool own;
};

enum { DUO_AUTO = 0, DUO_TABLE, DUO_MEASURED };
static const char *const duo_gates[] = { "auto", "table", "measure", NULL };

static const struct kvl_opt duo_options[] = {
    KVL_ROW_STR(duo_opts, sparsity, "auto",
                "share of kv heads that stream, 0 to 1; auto = what the budget pays, 0.5 without "
                "(paper: 0.5 with grouped queries, 0.75 without)"),
    KVL_ROW_INT(duo_opts, sink, "auto", 0, 1 << 30,
                "first tokens that a streaming head keeps; auto = a fifth of its tokens, 64 "
                "without a budget (paper: 64 deployed, 128 trained)"),
    KVL_ROW_INT(duo_opts, recent, "auto", 1, 1 << 30,
                "latest tokens that it reads, the current one included; auto = the others, 256 "
                "without a budget (paper: 256)"),
    KVL_ROW_ENUM(duo_opts, gates, "auto", duo_gates,
                 "table: of the file, or of the model's tables (kvlab tables); measure: on the "
                 "sample's own context; auto = table if there is one"),
    KVL_ROW_INT(duo_opts, measure_window, "auto", 1, 1 << 30,
                "latest tokens that measured gates leave out; auto = context / 8, 16 to 256"),
    KVL_ROW_STR(duo_opts, table, "",
                "file of gates: a line per layer with a number per kv head; see kvlab tables"),
    KVL_ROW_STR(duo_opts, table_sum, "", "checksum of the table, written when it is read"),
    KVL_ROW_BOOL(duo_opts, report_gates, "false", "report the gate of every kv head"),
    KVL_ROW_INT(duo_opts, chunk, "auto", 16, 1 << 30,
                "prefill: own: tokens of a chunk, the first of which measures; auto = 4 (sink + "
                "recent), at least 128"),
    { 0 },
};

struct duo_state {
    bool known;
    double threshold;
    float gate[]; /* [n_layers][n_kv_heads], then 1 = full, 0 = streaming, likewise */
};

static size_t duo_lanes(const struct kvl_shape *sh)
{
    return (size_t)sh->n_layers * (size_t)sh->n_kv_heads;
}

static bool duo_full(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head)
{
    const struct duo_state *state = ctx->state;
    size_t lane = (size_t)layer * (size_t)ctx->shape->n_kv_heads + (size_t)kv_head;
    return state->gate[duo_lanes(ctx->shape) + lane] > 0;
}

/* ---- section 2, sparsify_attention_heads(): which lanes are full ------------------------------ */

static void duo_settle(const struct kvl_pctx *ctx)
{
    const struct duo_opts *o = ctx->opts;
    struct duo_state *state = ctx->state;
    size_t n = duo_lanes(ctx->shape);
    state->threshold = kvl_gates_split(state->gate, (int32_t)n, o->share, state->gate + n);
    state->known = true;
}

/* ---- plan ---------------------------------------------------------------------------------------- */

static int32_t duo_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct duo_opts *o = opts;
    (void)shape;
    return 8 + KVL_MAX(0, o->sink) + KVL_MAX(0, o->recent);
}

/* The budget of all lanes, to how many are full and what the others read. */
static int duo_plan_budget(struct kvl_plan *plan)
{
    struct duo_opts *o = plan->opts;
    int32_t n_lanes = (int32_t)duo_lanes(plan->shape), given = o->sink != KVL_AUTO ? o->sink : 0;
    int64_t total = (int64_t)plan->budget_tok * n_lanes,
            all = (int64_t)plan->context_tok + DUO_TAIL;
    int64_t window = KVL_MIN(64 + 256, plan->budget_tok / 4), n_full;
    bool sized = o->sink != KVL_AUTO && o->recent != KVL_AUTO;
    if (sized) window = o->sink + o->recent;
    if (o->share >= 0)
        n_full = n_lanes - kvl_gates_below(o->share, n_lanes);
    else
        n_full = (total - window * n_lanes) / KVL_MAX(1, all - window);
    n_full = KVL_MAX(0, KVL_MIN(n_lanes, n_full));
    if (!sized && n_full < n_lanes) window = (total - n_full * all) / (n_lanes - n_full);
    int64_t least = sized ? window : given + 2, want = n_full * all + (n_lanes - n_full) * least;
    if (window < least || n_full * all + (n_lanes - n_full) * window > total)
        return kvl_fail(
            plan->err, KVL_EINVAL,
            "budget %d with sparsity=%s: %lld full of %d lanes read %lld tokens each, the others "
            "%lld or more; give a budget of %lld or more, or a larger sparsity",
            plan->budget_tok, o->sparsity, (long long)n_full, n_lanes, (long long)all,
            (long long)least, (long long)((want + n_lanes - 1) / n_lanes));
    kvl_plan_pair((int32_t)KVL_MIN(window, INT32_MAX / 4), 1, 4, 0, &o->sink, &o->recent);
    /* Between two ranks, so that rounding does not turn it. */
    if (o->share < 0)
        o->share = n_full == 0 ? 1 : ((double)(n_lanes - n_full) - 0.5) / KVL_MAX(1, n_lanes - 1);
    return KVL_OK;
}

static int duo_plan_sizes(struct kvl_plan *plan)
{
    struct duo_opts *o = plan->opts;
    bool budget = plan->budget_tok > 0, all = budget && plan->budget_tok >= plan->context_tok;
    if (all && o->share < 0) o->share = 0;
    if (budget && !all) KVL_TRY(duo_plan_budget(plan));
    kvl_plan_pair(budget ? plan->budget_tok : 64 + 256, 1, 4, 0, &o->sink, &o->recent);
    if (o->share < 0) o->share = 0.5;
    o->share = KVL_MAX(0, o->share);
    snprintf(o->sparsity, sizeof o->sparsity, "%.6g", o->share);
    int64_t chunk = KVL_MAX((int64_t)DUO_CHUNK, 4 * ((int64_t)o->sink + o->recent));
    if (o->chunk == KVL_AUTO) o->chunk = (int32_t)KVL_MIN(chunk, 32768);
    plan->prefill_chunk_tok = o->chunk;
    return KVL_OK;
}

static int duo_plan_gates(struct kvl_plan *plan)
{
    struct duo_opts *o = plan->opts;
    bool any = o->table[0] || (plan->shape->tables && plan->shape->tables->gate);
    if (o->gates == DUO_AUTO) o->gates = any ? DUO_TABLE : DUO_MEASURED;
    plan->prefill_layerwise = o->gates == DUO_TABLE; /* or the first chunk tells of all layers */
    if (o->gates == DUO_TABLE ? !any : o->table[0] != '\0')
        return kvl_fail(plan->err, KVL_EINVAL, "gates=%s with table=%s; give a table or measure",
                        duo_gates[o->gates], o->table[0] ? o->table : "(none)");
    if (o->gates == DUO_TABLE)
        return kvl_head_gates(o->table, plan->shape, o->table_sum, plan->err, NULL);
    if (o->measure_window == KVL_AUTO)
        o->measure_window = KVL_MAX(16, KVL_MIN(256, plan->context_tok / 8));
    if (plan->own_prefill) return kvl_plan_observe(plan, KVL_OBS_WINDOW, DUO_MEASURE);
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_COLUMNS, 0));
    return kvl_plan_observe(plan, KVL_OBS_COLUMNS, o->measure_window);
}

static int duo_plan(struct kvl_plan *plan)
{
    struct duo_opts *o = plan->opts;
    o->own = plan->own_prefill;
    KVL_TRY(kvl_plan_share(plan, "sparsity", o->sparsity, "auto", &o->share));
    KVL_TRY(duo_plan_sizes(plan));
    plan->state_bytes = sizeof(struct duo_state) + 2 * duo_lanes(plan->shape) * sizeof(float);
    return duo_plan_gates(plan);
}

/* All layers at once: a quantile is over all. */
static int duo_measure(const struct kvl_pctx *ctx, int32_t n)
{
    const struct duo_opts *o = ctx->opts;
    struct duo_state *state = ctx->state;
    for (int32_t l = 0; l < ctx->shape->n_layers; l++) {
        float *gate = state->gate + (size_t)l * (size_t)ctx->shape->n_kv_heads;
        KVL_TRY(o->own
                    ? kvl_gates_by_window(ctx, l, DUO_MEASURE, n, o->sink, o->measure_window, gate)
                    : kvl_gates_by_columns(ctx, l, o->sink, o->measure_window, gate));
    }
    duo_settle(ctx);
    return KVL_OK;
}

/* ---- hooks -------------------------------------------------------------------------------------------- */

static int duo_open(struct kvl_pctx *ctx)
{
    struct duo_opts o = *(const struct duo_opts *)ctx->opts;
    struct duo_state *state = ctx->state;
    if (o.gates != DUO_TABLE) return KVL_OK;
    KVL_TRY(kvl_head_gates(o.table, ctx->shape, o.table_sum, ctx->err, state->gate));
    duo_settle(ctx);
    return KVL_OK;
}

static int duo_prefill_mask(struct kvl_pctx *ctx, const struct kvl_step *step,
                            const struct kvl_query *q, struct kvl_prefill_mask *mask)
{
    const struct duo_opts *o = ctx->opts;
    const struct duo_state *state = ctx->state;
    int32_t group = ctx->shape->group;
    (void)q;
    if (!state->known && step->pos == 0) return KVL_OK;
    if (!state->known) KVL_TRY(duo_measure(ctx, step->pos));
    for (int32_t h = 0; h < ctx->shape->n_heads; h++)
        if (!duo_full(ctx, step->layer, h / group))
            KVL_TRY(kvl_mask_window(mask, h, o->sink, o->recent));
    return KVL_OK;
}

/* Layer 0 decides for all, before anything is evicted. */
static int duo_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct duo_state *state = ctx->state;
    (void)layer;
    return state->known ? KVL_OK : duo_measure(ctx, ctx->context_tok);
}

/* After every step, and once when the context is complete: what the next query can still read. */
static int duo_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    const struct duo_opts *o = ctx->opts;
    int32_t end = step->pos + step->n_tok;
    if (end < o->sink + o->recent) return KVL_OK;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        if (duo_full(ctx, step->layer, h)) continue;
        KVL_TRY(kvl_keep_range(keep, h, 0, o->sink));
        KVL_TRY(kvl_keep_range(keep, h, end - o->recent + 1, end));
    }
    return KVL_OK;
}

static int duo_report(struct kvl_pctx *ctx, struct kvl_report *r)
{
    const struct duo_opts *o = ctx->opts;
    const struct duo_state *state = ctx->state;
    int32_t n_lanes = (int32_t)duo_lanes(ctx->shape), n_full = 0;
    if (!state->known) return KVL_OK;
    for (int32_t i = 0; i < n_lanes; i++) n_full += state->gate[n_lanes + i] > 0;
    KVL_TRY(kvl_report_num(r, "full_lanes", n_full));
    KVL_TRY(kvl_report_num(r, "full_share", (double)n_full / n_lanes));
    KVL_TRY(kvl_report_num(r, "threshold", state->threshold));
    if (o->gates == DUO_TABLE && !o->table[0]) {
        char text[KVL_OPT_STR_SIZE + 64];
        snprintf(text, sizeof text, "gates by the model's tables (%s)", o->table_sum);
        KVL_TRY(kvl_report_note(r, text));
    }
    for (int32_t i = 0; o->report_gates && i < n_lanes; i++) {
        char name[40];
        snprintf(name, sizeof name, "gate.%d.%d", i / ctx->shape->n_kv_heads,
                 i % ctx->shape->n_kv_heads);
        KVL_TRY(kvl_report_num(r, name, (double)state->gate[i]));
    }
    return KVL_OK;
}

static const struct kvl_policy duo_attention = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "duo_attention",
    .title = "DuoAttention",
    .paper = "Xiao et al., ICLR 2025, arXiv 2410.10819",
    .help = "retrieval heads keep everything, the others the first and the latest tokens",
    .follows =
        "The paper's heads by gates and quantile, sink 64 and recent 256 as deployed, original "
        "positions, sliding while decoding. With prefill=own streaming heads stream in the prefill "
        "too, as in the official code; with prefill=shared the prefill is dense, as in kvpress, "
        "whose windows are fixed while decoding. table=FILE takes trained gates; "
        "sink=128,recent=256 are the sizes of the training.",
    .deviations =
        "Without table=FILE gates are measured (share of attention outside sink and window; those "
        "of the model's tables, without tables on the context), not trained; equal gates go by "
        "lane, where the official code adds random noise; the budget, a mean over lanes, sets "
        "sparsity and windows where they are not given.",
    .cost =
        "Per step and layer two ranges for each streaming lane; full lanes read everything, 2 n d "
        "values. Once, where gates are measured, a second pass of all queries over all keys for "
        "two column sums, shared by all policies that want column sums; with prefill=own 32 "
        "queries of the first chunk. Memory: two floats per lane.",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_RAGGED | KVL_CAP_ASYNC,
    .prefill = KVL_PREFILL_EITHER,
    .opts = duo_options,
    .opts_size = sizeof(struct duo_opts),
    .min_budget = duo_min_budget,
    .plan = duo_plan,
    .open = duo_open,
    .prefill_mask = duo_prefill_mask,
    .prefilled = duo_prefilled,
    .evict = duo_evict,
    .report = duo_report,
};

KVL_POLICY_EXPORT(duo_attention)
