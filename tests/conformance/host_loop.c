/* host_loop - pages by how far their summed keys overlap the query: a method with loops of its own.
 *
 * An example to copy, and a test (conformance.host_loop): no operator has this arithmetic, so host_loop.op.c
 * computes it on the host, and kvl_host_op waits before it.  That wait is all that this file does to run ahead
 * of a GPU (KVL_CAP_ASYNC).  Budget B: floor(B / 16) pages, the newest among them. */
#include "kvl/policy.h"

#include "host_loop.op.h"

enum { PAGE_TOK = 16 };

struct host_loop_opts {
    int32_t table; /* not an option: the handle, from plan */
};

static const struct kvl_opt host_loop_options[] = { { 0 } };

static int32_t host_loop_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    (void)opts;
    return 2 * PAGE_TOK;
}

static int host_loop_plan(struct kvl_plan *plan)
{
    struct host_loop_opts *o = plan->opts;
    KVL_TRY(kvl_plan_needs_budget(plan));
    plan->replay = KVL_REPLAY_KEYS;
    return kvl_plan_table(plan, &o->table, .unit = KVL_UNIT_PAGE, .unit_tok = PAGE_TOK,
                          .row_elems = plan->shape->head_dim);
}

static int host_loop_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                            const float *v)
{
    const struct host_loop_opts *o = ctx->opts;
    const struct kvl_shape *shape = ctx->shape;
    struct kvl_rows rows;
    (void)v;
    KVL_TRY(kvl_table_write(ctx, o->table, step->layer, step->pos / PAGE_TOK, &rows));
    return kvl_host_op(ctx, host_loop_add,
                       &(struct host_loop_add_args){ .rows = &rows,
                                                     .k = k,
                                                     .first = step->pos,
                                                     .n_tok = step->n_tok,
                                                     .page_tok = PAGE_TOK,
                                                     .n_kv_heads = shape->n_kv_heads,
                                                     .dim = shape->head_dim });
}

static int host_loop_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                            const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct host_loop_opts *o = ctx->opts;
    const struct kvl_shape *shape = ctx->shape;
    int32_t n_pages = step->pos / PAGE_TOK + 1, k = ctx->budget_tok / PAGE_TOK;
    struct kvl_rows rows;
    float *score;
    if (n_pages <= k) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)shape->n_kv_heads * (size_t)n_pages, &score));
    KVL_TRY(kvl_table_read(ctx, o->table, step->layer, n_pages, &rows));
    KVL_TRY(kvl_host_op(ctx, host_loop_score,
                        &(struct host_loop_score_args){ .score = score,
                                                        .rows = &rows,
                                                        .q = q->q,
                                                        .n_pages = n_pages,
                                                        .n_kv_heads = shape->n_kv_heads,
                                                        .group = shape->group,
                                                        .dim = shape->head_dim }));
    return kvl_sel_top_pages(sel, KVL_SCOPE_KV_HEAD, score, n_pages, k, PAGE_TOK, true);
}

static const struct kvl_policy host_loop = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "host_loop",
    .title = "A loop of its own",
    .paper = "none (example)",
    .help = "keeps all, reads the pages whose summed keys overlap the query most",
    .follows = "No paper: an example of loops of a method's own on the host.",
    .deviations = "None, there is no paper.",
    .cost =
        "Per step and layer d values for each of n / 16 pages per kv head, on the host. Once all "
        "keys. Memory: d / 16 floats per token and kv head.",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_SHARES_META | KVL_CAP_ASYNC,
    .opts = host_loop_options,
    .opts_size = sizeof(struct host_loop_opts),
    .min_budget = host_loop_min_budget,
    .plan = host_loop_plan,
    .append = host_loop_append,
    .select = host_loop_select,
};

KVL_POLICY_EXPORT(host_loop)
