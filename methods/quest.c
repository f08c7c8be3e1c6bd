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
 * Metadata has the type of the stored keys, of which minima and maxima are some: exact in it.
 * Cost per step and layer: 2 * head_dim values of metadata per page and kv head read, K pages of
 * keys and values; a new token updates one metadata row.
 */
#include "page_bounds.h"

#include <string.h>

enum { QUEST_MAX_LAYERS = 1024 };

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
    { .name = "page",
      .type = KVL_OPT_INT,
      .off = offsetof(struct quest_opts, page),
      .def = "16",
      .min = 1,
      .max = 4096,
      .help = "tokens per page (paper: 16)" },
    { .name = "dense_layers",
      .type = KVL_OPT_INT,
      .off = offsetof(struct quest_opts, dense_layers),
      .def = "auto",
      .min = 0,
      .max = QUEST_MAX_LAYERS,
      .help = "first layers that read everything; auto = min(2, layers / 4) (paper: 2 of 32)" },
    { .name = "reduce",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct quest_opts, reduce),
      .def = "sum",
      .choices = quest_reduce_names,
      .help = "bounds of the query heads of a kv head (paper: none, one kv head per query head)" },
    { .name = "offload",
      .type = KVL_OPT_BOOL,
      .off = offsetof(struct quest_opts, offload),
      .def = "false",
      .help = "keys and values of selecting layers live on the host; as many pages as a step reads "
              "stay on the device (paper: all on the device)" },
    { 0 },
};

static int32_t quest_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    return 2 * ((const struct quest_opts *)opts)->page;
}

static int quest_plan(struct kvl_plan *plan)
{
    struct quest_opts *o = plan->opts;
    if (plan->budget_tok < 2 * o->page)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "budget %d with page=%d; give %d or more (the newest page and one)",
                        plan->budget_tok, o->page, 2 * o->page);
    if (o->dense_layers == KVL_AUTO) o->dense_layers = KVL_MIN(2, plan->shape->n_layers / 4);
    if (o->dense_layers >= plan->shape->n_layers)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "dense_layers=%d; the model has %d layers, give less", o->dense_layers,
                        plan->shape->n_layers);
    if (plan->shape->n_layers > QUEST_MAX_LAYERS)
        return kvl_fail(plan->err, KVL_EINVAL, "a model of %d layers; quest serves up to %d",
                        plan->shape->n_layers, QUEST_MAX_LAYERS);
    uint8_t selects[QUEST_MAX_LAYERS] = { 0 };
    memset(selects + o->dense_layers, 1, (size_t)(plan->shape->n_layers - o->dense_layers));
    plan->replay = KVL_REPLAY_KEYS;
    if (o->offload)
        KVL_TRY(kvl_plan_offload(
            plan, &(struct kvl_offload){ .layers = selects,
                                         .keep_last = 1, /* a page goes when it is full */
                                         .unit_tok = o->page,
                                         .cache_tok = plan->budget_tok / o->page * o->page }));
    return kvl_plan_meta_desc(plan,
                              &(struct kvl_meta_desc){ .unit = KVL_META_PAGE,
                                                       .unit_tok = o->page,
                                                       .row_elems = 2 * plan->shape->head_dim,
                                                       .elem = KVL_META_KEY,
                                                       .layers = selects },
                              &o->table);
}

static int quest_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                        const float *v)
{
    const struct quest_opts *o = ctx->opts;
    struct kvl_meta_view meta;
    (void)v;
    if (step->layer < o->dense_layers) return KVL_OK;
    int32_t page = step->pos / o->page;
    KVL_TRY(kvl_meta_from(ctx, o->table, step->layer, page, &meta));
    struct kvl_page_minmax_args minmax = {
        .minmax = meta.data,
        .type = meta.type,
        .head_stride = meta.head_stride,
        .k = k,
        .pos0 = step->pos - page * o->page,
        .n = step->n_tok,
        .n_kv_heads = ctx->shape->n_kv_heads,
        .head_dim = ctx->shape->head_dim,
        .page_tok = o->page,
    };
    return ctx->ops->page_minmax(&minmax);
}

static int quest_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    const struct quest_opts *o = ctx->opts;
    return step->layer < o->dense_layers ? KVL_DENSE : KVL_SELECT;
}

static int quest_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct quest_opts *o = ctx->opts;
    bool each = quest_reduces[o->reduce] == KVL_REDUCE_NONE;
    int32_t n_pages = step->pos / o->page + 1, k = ctx->budget_tok / o->page;
    int32_t n_lists = each ? ctx->shape->n_heads : ctx->shape->n_kv_heads;
    if (n_pages <= k) return KVL_OK;
    float *bound = kvl_scratch(ctx, (size_t)n_lists * (size_t)n_pages);
    if (!bound) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %d bounds", n_pages);
    KVL_TRY(
        page_bounds(ctx, o->table, step->layer, q->q, n_pages, quest_reduces[o->reduce], bound));
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
        "group's summed bounds, as Sparse Frontier and KTransformers do.",
    .deviations =
        "The first layers that read everything are the paper's 2 of 32 from 8 layers on, and a "
        "quarter of the layers below that.",
    .cost =
        "Per step and layer 2 d values for each of n / page pages per kv head, a top-k of the "
        "pages, and one row updated. Once minima and maxima of all keys. Memory: 2 d values per "
        "page and kv head, in the type of the cache.",
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
