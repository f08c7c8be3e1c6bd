/* twilight - of what another policy chose, the fewest tokens whose weight is p.
 *
 * Lin et al.: Twilight: Adaptive Attention Sparsity with Hierarchical Top-p Pruning, 2025 (arXiv
 * 2502.02770), sections 3 and 4.  How many tokens a query needs differs by head, layer and query; a
 * budget cannot know.  Every step and layer:
 *   1. the inner policy selects candidates, conservatively (Select)
 *   2. weights of the candidates are estimated with a copy of the keys in 4 bits: softmax(q k4 / sqrt(d))
 *      (SpGEMV)
 *   3. per query head the fewest candidates whose weights sum to p stay (Top-p), found by the sums of
 *      what exceeds a threshold, without sorting
 * Attention reads the exact keys and values of these.
 *
 * Grouped queries: what a kv head reads is the union of its query heads' sets, each of which then has at
 * least p.  An inner policy with lists per query head gives a kv head's heads their union to choose from.
 * The first layers are dense as in the paper (2 of 32), which is what its base policy Quest does, too.
 * Budget B: at most B tokens per lane remain, the current one included: of a larger union those whose
 * weights, summed over the group, are the largest.  While everything fits, everything is read.  The inner
 * policy gets `candidates` tokens; auto = a quarter of the context, at least B (the paper: a quarter).
 * Keys are quantised as they are stored, per token and head between their minimum and maximum (official:
 * per block of a page).
 */
#include "kvl/policy.h"

struct twilight_opts {
    double p;
    int32_t candidates, dense_layers;
    int32_t table; /* not an option: keys in 4 bits, from plan */
};

static const struct kvl_opt twilight_options[] = {
    KVL_ROW_FLOAT(twilight_opts, p, "0.85", 0.01, 1,
                  "part of the candidates' weight that stays (paper: 0.85)", .not_in_tables = true),
    KVL_ROW_INT(twilight_opts, candidates, "auto", 1, 1 << 30,
                "budget of the inner policy in tokens; auto = a quarter of the context, at least "
                "the budget (paper: a quarter)",
                .not_in_tables = true),
    KVL_ROW_INT(twilight_opts, dense_layers, "auto", 0, 1024,
                "first layers that read everything; auto = min(2, layers / 4) (paper: 2 of 32)"),
    { 0 },
};

/* What the inner policy needs, it needs of its candidates. */
static int32_t twilight_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    (void)opts;
    return 2;
}

static int twilight_plan(struct kvl_plan *plan)
{
    struct twilight_opts *o = plan->opts;
    const struct kvl_shape *sh = plan->shape;
    uint8_t *selects;
    KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->candidates == KVL_AUTO) o->candidates = KVL_MAX(plan->budget_tok, plan->context_tok / 4);
    if (o->candidates < plan->budget_tok)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "candidates=%d at budget %d; give as many or more, or auto", o->candidates,
                        plan->budget_tok);
    if (o->dense_layers == KVL_AUTO) o->dense_layers = KVL_MIN(2, sh->n_layers / 4);
    KVL_TRY(kvl_plan_layers(plan, "dense_layers", o->dense_layers, 1, &selects));
    plan->inner_budget_tok = o->candidates;
    plan->replay = KVL_REPLAY_KEYS;
    return kvl_plan_table(plan, &o->table, .unit = KVL_UNIT_PAGE, .unit_tok = 1,
                          .row_elems = (int32_t)KVL_KEY4_BYTES(sh->head_dim), .elem = KVL_ELEM_U8,
                          .layers = selects);
}

/* Keys of this step in 4 bits, into the table. */
static int twilight_quantize(const struct kvl_pctx *ctx, const struct kvl_step *step,
                             const float *k)
{
    const struct twilight_opts *o = ctx->opts;
    struct kvl_rows rows;
    KVL_TRY(kvl_table_operand_out(ctx, o->table, step->layer, step->pos, &rows));
    return ctx->ops->key4_put(&(struct kvl_key4_put_args){ .rows = rows.part[0].data,
                                                           .head_stride = rows.part[0].head_bytes,
                                                           .k = k,
                                                           .n = step->n_tok,
                                                           .n_kv_heads = ctx->shape->n_kv_heads,
                                                           .head_dim = ctx->shape->head_dim });
}

static int twilight_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                           const float *v)
{
    const struct twilight_opts *o = ctx->opts;
    (void)v;
    return step->layer < o->dense_layers ? KVL_OK : twilight_quantize(ctx, step, k);
}

static int twilight_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    const struct twilight_opts *o = ctx->opts;
    return step->layer < o->dense_layers ? KVL_DENSE : KVL_SELECT;
}

/* Of every kv head: the candidates, and how many and which of them stay. */
struct twilight_lists {
    const int32_t **pos;
    int32_t *n, *index; /* [n_kv_heads], and behind them [n_kv_heads][budget] */
};

static int twilight_room(const struct kvl_pctx *ctx, struct twilight_lists *t)
{
    size_t lanes = (size_t)ctx->shape->n_kv_heads;
    void *room;
    KVL_TRY(kvl_scratch_items(ctx, lanes, sizeof *t->pos, &room));
    t->pos = room;
    KVL_TRY(kvl_scratch_get(ctx, lanes * (1 + (size_t)ctx->budget_tok), &t->n));
    t->index = t->n + lanes;
    return KVL_OK;
}

/* SpGEMV: logit [group][n] = q . key / sqrt(d) of the query heads q [n_heads][head_dim] of a kv head and its keys at n
 * ascending positions; these alone are counted as read. */
static int twilight_logits(const struct kvl_pctx *ctx, const struct kvl_step *step, const float *q,
                           int32_t kv_head, const int32_t *pos, int32_t n, float *logit)
{
    const struct twilight_opts *o = ctx->opts;
    int32_t group = ctx->shape->group, dim = ctx->shape->head_dim, first = 0, at = 0;
    struct kvl_rows rows;
    KVL_TRY(kvl_table_operand(ctx, o->table, step->layer, step->pos + 1, &rows));
    for (int32_t i = 0; i < 2; i++) {
        int32_t last = first + rows.part[i].n_rows, end = at;
        while (end < n && pos[end] < last) end++;
        struct kvl_key4_logits_args a = { .logit = logit + at,
                                          .stride = (size_t)n,
                                          .q = q + (size_t)(kv_head * group) * (size_t)dim,
                                          .row = pos + at,
                                          .row0 = first,
                                          .n = end - at,
                                          .n_heads = group,
                                          .head_dim = dim,
                                          .scale = ctx->shape->scale };
        if (end > at) {
            a.rows = kvl_table_row(&rows, kv_head, first);
            KVL_TRY(ctx->ops->key4_logits(&a));
        }
        first = last;
        at = end;
    }
    return kvl_table_count(ctx, o->table, (int64_t)n * (int64_t)KVL_KEY4_BYTES(dim));
}

/* Top-p: index [*n_index]: of weights [n_rows][n], the fewest that sum to p in each row, the budget at most, all rows
 * together, ascending; the current token, which is the last one, whatever it weighs. */
static int twilight_top_p(const struct kvl_pctx *ctx, const float *weight, int32_t n_rows,
                          int32_t n, int32_t *index, int32_t *n_index)
{
    const struct twilight_opts *o = ctx->opts;
    int rc = ctx->ops->top_p(&(struct kvl_top_p_args){ .index = index,
                                                       .n_index = n_index,
                                                       .weight = weight,
                                                       .stride = (size_t)n,
                                                       .n_rows = n_rows,
                                                       .n = n,
                                                       .k = ctx->budget_tok,
                                                       .p = (float)o->p,
                                                       .last = true });
    return rc == KVL_ENUMERIC ? kvl_fail(ctx->err, rc, "a weight is not a number (NaN)") : rc;
}

/* Step 2, SpGEMV: weights of the n candidates by their keys in 4 bits; Top-p: what stays of them. */
static int twilight_prune(const struct kvl_pctx *ctx, const struct kvl_step *step, const float *q,
                          int32_t kv_head, int32_t n, const struct twilight_lists *t)
{
    int32_t group = ctx->shape->group;
    float *weight;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)group * (size_t)n, &weight));
    KVL_TRY(twilight_logits(ctx, step, q, kv_head, t->pos[kv_head], n, weight));
    KVL_TRY(kvl_cap(ctx, weight, (size_t)group * (size_t)n));
    KVL_TRY(kvl_softmax(ctx, weight, group, n));
    return twilight_top_p(ctx, weight, group, n,
                          t->index + (size_t)kv_head * (size_t)ctx->budget_tok, t->n + kv_head);
}

/* Sections 3 and 4: Select (step 1), SpGEMV (2), Top-p (3). */
static int twilight_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t n_lanes = ctx->shape->n_kv_heads, n;
    struct twilight_lists t;
    if (step->pos < ctx->budget_tok) return KVL_OK;
    KVL_TRY(kvl_inner_select(ctx, step, q, sel));
    KVL_TRY(twilight_room(ctx, &t));
    for (int32_t h = 0; h < n_lanes; h++) {
        KVL_TRY(kvl_sel_view_group(sel, h, &t.pos[h], &n));
        KVL_TRY(twilight_prune(ctx, step, q->q, h, n, &t));
    }
    size_t all = (size_t)n_lanes * (1 + (size_t)ctx->budget_tok);
    KVL_TRY(kvl_look_at(ctx, t.n, all, sizeof *t.n));
    KVL_TRY(kvl_sel_clear(sel));
    for (int32_t h = 0; h < n_lanes; h++) {
        int32_t *item = t.index + (size_t)h * (size_t)ctx->budget_tok;
        for (int32_t i = 0; i < t.n[h]; i++) item[i] = t.pos[h][item[i]];
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, h, item, t.n[h]));
    }
    return KVL_OK;
}

static const struct kvl_policy twilight = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "twilight",
    .title = "Twilight",
    .paper = "Lin et al., 2025, arXiv 2502.02770",
    .help = "prunes what another policy selected to the fewest tokens whose weight is p",
    .follows =
        "The paper: a conservative choice by Quest, weights of the candidates from keys in 4 bits, "
        "and per query head the fewest whose weights sum to 0.85. The first layers are dense. The "
        "published code has no licence and was not read. Any policy whose selections are tokens "
        "and nothing else may be wrapped.",
    .deviations =
        "A kv head reads the union of its query heads' sets, and never more than the budget. "
        "Keys are quantised per token. Everything is read while it fits the budget.",
    .cost =
        "Per step and layer that of the inner policy, d / 2 + 8 bytes for each of candidates "
        "tokens per kv head, a product of d channels for each of its query heads. Once keys in 4 "
        "bits of all tokens. Memory: d / 2 + 8 bytes per token and kv head.",
    .inner = "quest",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_SHARES_META | KVL_CAP_ASYNC,
    .opts = twilight_options,
    .opts_size = sizeof(struct twilight_opts),
    .min_budget = twilight_min_budget,
    .plan = twilight_plan,
    .append = twilight_append,
    .schedule = twilight_schedule,
    .select = twilight_select,
};

KVL_POLICY_EXPORT(twilight)
