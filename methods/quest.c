/* quest - reads the pages whose keys could match the query best.
 *
 * Tang et al.: Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference, ICML 2024
 * (arXiv 2406.10774), section 3.3, Algorithm 1.  Per page of S tokens and channel c the minimum and
 * the maximum of the keys after RoPE bound the page's best score from above:
 *     UB(page) = sum_c max(q_c max_c, q_c min_c)  >=  max over the page of q.k
 * Every step reads the K pages of largest bound.  Nothing is dropped.
 *
 * The two official implementations differ; we follow the *kernel* path:
 *   - the newest page is always read and counts: K = floor(B / S), K - 1 chosen (the accuracy path
 *     lets it compete, and never reads fewer than 3 pages)
 *   - everything is read when all pages fit
 *   - the first dense_layers layers read everything.  The paper's 2 are of 32; auto keeps 2 from 8
 *     layers on and a quarter of the layers below that, min(2, n_layers / 4), so that small models
 *     are not mostly dense
 * Grouped queries: the kernel path knows one kv head per query head only, and the accuracy path
 * gives every query head its own pages on repeated keys (reduce=none; a lane then reads up to group
 * size times B).  Default is reduce=sum, one list per kv head: what Sparse Frontier, KTransformers
 * and MagicPIG's baseline do, and still a bound (of the group's summed scores).  reduce=max is
 * Sparse-vLLM's first half; reduce=mean_q averages queries first (SGLang), where opposite heads
 * cancel and the bound is lost.
 * Metadata has the type of the stored keys, of which minima and maxima are some: exact in it
 * (of keys in q8_0: f16, to which they are rounded).
 * Cost per step and layer: 2 * head_dim values of metadata per page and kv head read, K pages of
 * keys and values; a new token updates one metadata row.
 */
#include "kvl/policy.h"

struct quest_opts {
    int32_t page, dense_layers;
    int32_t reduce; /* index into quest_reduces */
    bool offload;
    int32_t table; /* not an option: the metadata's handle, from plan */
};

static const char *const quest_reduce_names[] = { "none", "sum", "max", "mean_q", NULL };
static const enum kvl_reduce quest_reduces[] = { KVL_REDUCE_NONE, KVL_REDUCE_SUM, KVL_REDUCE_MAX,
                                                 KVL_REDUCE_MEAN_Q };

static const struct kvl_opt quest_options[] = {
    KVL_ROW_INT(quest_opts, page, "16", 1, 4096, "tokens per page (paper: 16)"),
    KVL_ROW_INT(quest_opts, dense_layers, "auto", 0, 1024,
                "first layers that read everything; auto = min(2, layers / 4) (paper: 2 of 32)"),
    KVL_ROW_ENUM(
        quest_opts, reduce, "sum", quest_reduce_names,
        "bounds of the query heads of a kv head (paper: none, one kv head per query head)"),
    KVL_ROW_BOOL(
        quest_opts, offload, "false",
        "keys and values of selecting layers live on the host; as many pages as a step reads "
        "stay on the device (paper: all on the device)"),
    { 0 },
};

/* The newest page, and one to choose. */
static int32_t quest_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    return 2 * ((const struct quest_opts *)opts)->page;
}

static int quest_plan(struct kvl_plan *plan)
{
    struct quest_opts *o = plan->opts;
    uint8_t *selects;
    KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->dense_layers == KVL_AUTO) o->dense_layers = KVL_MIN(2, plan->shape->n_layers / 4);
    KVL_TRY(kvl_plan_layers(plan, "dense_layers", o->dense_layers, 1, &selects));
    plan->replay = KVL_REPLAY_KEYS;
    if (o->offload)
        KVL_TRY(kvl_plan_offload(
            plan, &(struct kvl_offload){ .layers = selects,
                                         .keep_last = 1, /* a page goes when it is full */
                                         .unit_tok = o->page,
                                         .cache_tok = plan->budget_tok / o->page * o->page }));
    return kvl_plan_table(plan, &o->table, .unit = KVL_UNIT_PAGE, .unit_tok = o->page,
                          .row_elems = 2 * plan->shape->head_dim, .elem = KVL_ELEM_KEY,
                          .layers = selects);
}

/* Algorithm 1, when keys come: minima and maxima of their pages. */
static int quest_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                        const float *v)
{
    const struct quest_opts *o = ctx->opts;
    (void)v;
    return step->layer < o->dense_layers ? KVL_OK : kvl_table_minmax(ctx, o->table, step, k);
}

static int quest_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    const struct quest_opts *o = ctx->opts;
    return step->layer < o->dense_layers ? KVL_DENSE : KVL_SELECT;
}

/* Algorithm 1, a step: the K - 1 pages of largest UB, and the newest. */
static int quest_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct quest_opts *o = ctx->opts;
    bool each = quest_reduces[o->reduce] == KVL_REDUCE_NONE;
    int32_t n_pages = step->pos / o->page + 1, k = ctx->budget_tok / o->page;
    int32_t n_lists = each ? ctx->shape->n_heads : ctx->shape->n_kv_heads;
    float *bound;
    if (n_pages <= k) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_lists * (size_t)n_pages, &bound));
    KVL_TRY(kvl_table_bounds(ctx, &(struct kvl_table_bounds){ .table = o->table,
                                                              .layer = step->layer,
                                                              .n_rows = n_pages,
                                                              .q = q->q,
                                                              .reduce = quest_reduces[o->reduce],
                                                              .bound = bound }));
    return kvl_sel_top_pages(sel, each ? KVL_SCOPE_Q_HEAD : KVL_SCOPE_KV_HEAD, bound, n_pages, k,
                             o->page, true);
}

static const struct kvl_policy quest = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "quest",
    .title = "Quest",
    .paper = "Tang et al., ICML 2024, arXiv 2406.10774",
    .help = "keeps all, reads the pages whose key bounds match the query best",
    .follows =
        "The official kernels: the newest page is always read and counts, everything is read when "
        "all pages fit, and the first dense_layers layers are dense. One list per kv head by the "
        "group's summed bounds, as Sparse Frontier and KTransformers do. Options: reduce=none "
        "lists per query head, reduce=max the maximum over the group, reduce=mean_q queries "
        "averaged first (SGLang), where opposite heads cancel; offload=true keeps pages on the "
        "host, and as many as a step reads on the device.",
    .deviations =
        "The first layers that read everything are the paper's 2 of 32 from 8 layers on, and a "
        "quarter of the layers below that. Left out: the accuracy script, where the newest page "
        "competes and at least 3 pages are read, so that its budget 32 was 48.",
    .cost =
        "Per step and layer 2 d values for each of n / page pages per kv head, a top-k of the "
        "pages, and one row updated. Once minima and maxima of all keys. Memory: 2 d values per "
        "page and kv head in the type of the cache, 1 / page of the cache's element count.",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_SHARES_META | KVL_CAP_OFFLOADS | KVL_CAP_ASYNC,
    .opts = quest_options,
    .opts_size = sizeof(struct quest_opts),
    .min_budget = quest_min_budget,
    .plan = quest_plan,
    .append = quest_append,
    .schedule = quest_schedule,
    .select = quest_select,
};

KVL_POLICY_EXPORT(quest)
