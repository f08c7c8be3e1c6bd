/* arkvale - pages go to the host, and come back when their digest says so.
 *
 * Chen et al.: ArkVale: Efficient Generative LLM Inference with Recallable Key-Value Eviction, NeurIPS
 * 2024.  When a page of S keys (after RoPE) is full, its keys are summed up by the box around them, drawn
 * in to their mean distance from its centre, per channel:
 *     centre c = (max + min) / 2,   radius r = mean |k - c|
 *     score(page) = sum over channels max(q (c + r), q (c - r))
 * In every step the page_topks best pages are read: of these the first `sink` and the newest `window` (the
 * unfinished one is among them) always.  The others live in the host tier; page_budgets pages of a lane
 * are on the device, sink and window included, and a page that is chosen but not there is recalled and
 * takes the place of one that was not chosen: replace=score the one of least score in this step,
 * lru the one chosen longest ago.  Nothing is lost: "eviction" is from the device.
 *
 * The score is no bound (Quest's is): r < half the box, so that outliers of a page do not raise it.
 *
 * Budget B: page_topks = floor(B / S) pages, the newest counted whole.  page_budgets = 4 page_topks, the
 * published 4096 : 1024.
 * Which published behaviour: paper and README of the official code (page_size 32, page_budgets,
 * page_topks); sink 2, window 2.  Grouped queries: reduce=sum of the scores of a group, one list per kv
 * head; max, none: options.  dense_layers: 0; the others are ours to set.
 * Deviations: digests in 32-bit floats; a page is scored from the step on in which it leaves the window,
 * not before, since it is read anyway; scores of sink and window pages are not computed away: they are
 * chosen by range.
 * Cost per step and layer: 2 head_dim floats per page and kv head, a top-k of n / S per kv head; every S
 * tokens one page of keys is read again.  Recalled pages over the bus.
 */
#include "kvl/policy.h"

enum { ARKVALE_MAX_PAGES = 1 << 24, ARKVALE_BATCH = 8 };

struct arkvale_opts {
    int32_t page_size, page_topks, page_budgets, sink, window, dense_layers;
    int32_t reduce, replace; /* indexes */
    int32_t table;           /* not an option: the digests' handle, from plan */
};

static const char *const arkvale_reduce_names[] = { "none", "sum", "max", NULL };
static const enum kvl_reduce arkvale_reduces[] = { KVL_REDUCE_NONE, KVL_REDUCE_SUM,
                                                   KVL_REDUCE_MAX };
static const char *const arkvale_replace_names[] = { "lru", "lfu", "score", NULL };

static const struct kvl_opt arkvale_options[] = {
    KVL_ROW_INT(arkvale_opts, page_size, "32", 1, 4096, "tokens per page (paper: 32)"),
    KVL_ROW_INT(arkvale_opts, page_topks, "auto", 1, ARKVALE_MAX_PAGES,
                "pages read in a step, sink and window included; auto = budget / page_size",
                .not_in_tables = true),
    KVL_ROW_INT(arkvale_opts, page_budgets, "auto", 1, ARKVALE_MAX_PAGES,
                "pages of a lane on the device; auto = 4 page_topks (paper: 128 for 32)",
                .not_in_tables = true),
    KVL_ROW_INT(arkvale_opts, sink, "2", 0, 4096, "first pages that are always read",
                .not_in_tables = true),
    KVL_ROW_INT(arkvale_opts, window, "2", 1, 4096,
                "newest pages that are always read, the unfinished one among them",
                .not_in_tables = true),
    KVL_ROW_INT(arkvale_opts, dense_layers, "0", 0, 1024,
                "first layers that read everything and stay on the device"),
    KVL_ROW_ENUM(arkvale_opts, reduce, "sum", arkvale_reduce_names,
                 "scores of the query heads of a kv head", .not_in_tables = true),
    KVL_ROW_ENUM(
        arkvale_opts, replace, "score", arkvale_replace_names,
        "whose place a recalled page takes: last chosen longest ago, least often, least score",
        .not_in_tables = true),
    { 0 },
};

/* ---- plan -------------------------------------------------------------------------------------- */

static int32_t arkvale_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct arkvale_opts *o = opts;
    (void)shape;
    return o->page_topks != KVL_AUTO ? 1 : (o->sink + o->window + 1) * o->page_size;
}

static int arkvale_sizes(struct kvl_plan *plan, struct arkvale_opts *o)
{
    int32_t least = o->sink + o->window + 1;
    if (o->page_topks == KVL_AUTO)
        o->page_topks = KVL_MIN(plan->budget_tok / o->page_size, ARKVALE_MAX_PAGES);
    if (o->page_topks < least)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "%d pages of %d tokens a step, %d of them sink and window; give a budget "
                        "of %d or more, or smaller pages",
                        o->page_topks, o->page_size, least - 1, least * o->page_size);
    if (o->page_budgets == KVL_AUTO)
        o->page_budgets = KVL_MIN(4 * o->page_topks, INT32_MAX / o->page_size);
    if (o->page_budgets < o->page_topks)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "page_budgets=%d; a step reads %d pages, give as many or more",
                        o->page_budgets, o->page_topks);
    if (o->page_budgets > INT32_MAX / o->page_size)
        return kvl_fail(plan->err, KVL_EINVAL, "page_budgets=%d; give at most %d", o->page_budgets,
                        INT32_MAX / o->page_size);
    if (o->replace == KVL_REPLACE_SCORE && arkvale_reduces[o->reduce] == KVL_REDUCE_NONE)
        return kvl_fail(
            plan->err, KVL_EINVAL,
            "replace=score with reduce=none: a page has no one score; give replace=lru");
    return KVL_OK;
}

static int arkvale_plan(struct kvl_plan *plan)
{
    struct arkvale_opts *o = plan->opts;
    int32_t page = o->page_size;
    uint8_t *selects;
    KVL_TRY(arkvale_sizes(plan, o));
    KVL_TRY(kvl_plan_layers(plan, "dense_layers", o->dense_layers, 1, &selects));
    plan->replay = KVL_REPLAY_NONE;
    struct kvl_offload offload = { .layers = selects,
                                   .keep_first = o->sink * page,
                                   .keep_last = (o->window - 1) * page +
                                                1, /* a page goes when it leaves it */
                                   .unit_tok = page,
                                   .cache_tok = (o->page_budgets - o->sink - o->window) * page,
                                   .replace = (enum kvl_replace)o->replace };
    KVL_TRY(kvl_plan_offload(plan, &offload));
    return kvl_plan_table(plan, &o->table, .unit = KVL_UNIT_PAGE, .unit_tok = page,
                          .row_elems = 2 * plan->shape->head_dim, .layers = selects);
}

/* ---- digests --------------------------------------------------------------------------------------- */

/* save_digests(): c + r and c - r of pages first .. last - 1, a few at a time. */
static int arkvale_digest(const struct kvl_pctx *ctx, int32_t layer, int32_t first, int32_t last)
{
    const struct arkvale_opts *o = ctx->opts;
    int32_t page = o->page_size, dim = ctx->shape->head_dim;
    struct kvl_rows rows;
    float *k;
    if (layer < o->dense_layers || first >= last) return KVL_OK;
    KVL_TRY(kvl_table_operand_out(ctx, o->table, layer, first, &rows));
    KVL_TRY(kvl_scratch_get(
        ctx, (size_t)KVL_MIN(ARKVALE_BATCH, last - first) * (size_t)page * (size_t)dim, &k));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        for (int32_t p = first; p < last; p += ARKVALE_BATCH) {
            int32_t n = KVL_MIN(ARKVALE_BATCH, last - p);
            KVL_TRY(kvl_read_key_span(ctx, layer, h, p * page, n * page, false, k));
            KVL_TRY(ctx->ops->page_digest(
                &(struct kvl_page_digest_args){ .digest = kvl_table_row_out(&rows, h, p - first),
                                                .k = k,
                                                .n_pages = n,
                                                .page_tok = page,
                                                .head_dim = dim }));
        }
    return KVL_OK;
}

static int arkvale_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct arkvale_opts *o = ctx->opts;
    return arkvale_digest(ctx, layer, 0, ctx->context_tok / o->page_size);
}

/* A page that has just filled up. */
static int arkvale_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                          const float *v)
{
    int32_t page = ((const struct arkvale_opts *)ctx->opts)->page_size, n = step->pos + 1;
    (void)k;
    (void)v;
    return n % page ? KVL_OK : arkvale_digest(ctx, step->layer, n / page - 1, n / page);
}

/* ---- selection --------------------------------------------------------------------------------------- */

static int arkvale_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    const struct arkvale_opts *o = ctx->opts;
    return step->layer < o->dense_layers ? KVL_DENSE : KVL_SELECT;
}

/* For who traces the run, and for the cache. */
static int arkvale_tell(const struct kvl_pctx *ctx, const struct kvl_step *step,
                        enum kvl_scope scope, const float *score, int32_t n)
{
    const struct arkvale_opts *o = ctx->opts;
    struct kvl_scored scored = { .scope = scope, .unit_tok = o->page_size, .n = n, .score = score };
    KVL_TRY(kvl_tap_scores(ctx, step, &scored));
    for (int32_t h = 0; o->replace == KVL_REPLACE_SCORE && h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(kvl_offload_scores(ctx, step->layer, h, score + (size_t)h * (size_t)n, n));
    return KVL_OK;
}

/* Room for score [n_lists][n], and page [n_lists][k] behind it: the host waits for both at once. */
static int arkvale_room(const struct kvl_pctx *ctx, size_t n_scores, size_t n_pages, float **score,
                        int32_t **page)
{
    void *room;
    KVL_TRY(kvl_scratch_items(ctx, n_scores + n_pages, sizeof **score, &room));
    *score = room;
    *page = (int32_t *)room + n_scores;
    return KVL_OK;
}

/* page [n_lists][k]: of the pages behind the sink.  The cache is told scores, which the host then has too. */
static int arkvale_best(const struct kvl_pctx *ctx, const float *score, int32_t n_lists, int32_t n,
                        int32_t k, int32_t *page)
{
    const struct arkvale_opts *o = ctx->opts;
    size_t n_scores = (size_t)n_lists * (size_t)n, n_best = (size_t)n_lists * (size_t)k;
    int rc = ctx->ops->topk(&(struct kvl_topk_args){ .index = page,
                                                     .x = score + o->sink,
                                                     .x_stride = (size_t)n,
                                                     .n_rows = n_lists,
                                                     .n = n - o->sink,
                                                     .k = k });
    if (rc == KVL_ENUMERIC) return kvl_fail(ctx->err, rc, "a score is not a number (NaN)");
    KVL_TRY(rc);
    if (o->replace == KVL_REPLACE_SCORE)
        KVL_TRY(kvl_look_at(ctx, score, n_scores + n_best, sizeof *score));
    else
        KVL_TRY(kvl_look_at(ctx, page, n_best, sizeof *page));
    for (size_t i = 0; i < n_best; i++) page[i] += o->sink;
    return KVL_OK;
}

/* estimate_scores(): sink, the best of the pages between, window. */
static int arkvale_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct arkvale_opts *o = ctx->opts;
    enum kvl_reduce reduce = arkvale_reduces[o->reduce];
    enum kvl_scope scope = reduce == KVL_REDUCE_NONE ? KVL_SCOPE_Q_HEAD : KVL_SCOPE_KV_HEAD;
    int32_t n_lists = reduce == KVL_REDUCE_NONE ? ctx->shape->n_heads : ctx->shape->n_kv_heads;
    int32_t n_pages = step->pos / o->page_size + 1, n = n_pages - o->window, *page;
    int32_t k = o->page_topks - o->sink - o->window;
    float *score;
    if (n_pages <= o->page_topks) return KVL_OK;
    KVL_TRY(
        arkvale_room(ctx, (size_t)n_lists * (size_t)n, (size_t)n_lists * (size_t)k, &score, &page));
    struct kvl_table_bounds bounds = { .table = o->table,
                                       .layer = step->layer,
                                       .n_rows = n,
                                       .q = q->q,
                                       .reduce = reduce,
                                       .bound = score };
    KVL_TRY(kvl_table_bounds(ctx, &bounds));
    KVL_TRY(arkvale_best(ctx, score, n_lists, n, k, page));
    KVL_TRY(arkvale_tell(ctx, step, scope, score, n));
    KVL_TRY(kvl_sel_first(sel, scope, KVL_ALL_LISTS, o->sink * o->page_size));
    KVL_TRY(kvl_sel_recent(sel, scope, KVL_ALL_LISTS, step->pos + 1 - n * o->page_size));
    for (int32_t l = 0; l < n_lists; l++, page += k)
        KVL_TRY(kvl_sel_pages(sel, scope, l, o->page_size, page, k));
    return KVL_OK;
}

static const struct kvl_policy arkvale = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "arkvale",
    .title = "ArkVale",
    .paper = "Chen et al., NeurIPS 2024",
    .help = "pages live on the host and are recalled when their digest matches the query",
    .follows =
        "Paper and README of the official code: pages of 32 tokens, digest of centre and mean "
        "distance, page budget and page top-k apart, 2 sink and 2 window pages always read, "
        "recalled pages take the places of those not chosen. Options: lists per query head or the "
        "maximum over the group (reduce), the least recent or the least frequent page leaves "
        "(replace).",
    .deviations =
        "Digests are 32-bit floats, not half floats. Scores of the query heads of a kv head are "
        "summed, one list per kv head (reduce). No dense layers unless asked for.",
    .cost =
        "Per step and layer 2 d floats are read for each of n / page_size pages per kv head, and a "
        "top-k of the pages is taken; recalled pages come over the bus. Every page_size tokens a "
        "page of keys is read again. Once all keys. Memory: 2 d / page_size floats per token and "
        "kv head, page_budgets pages of a lane on the device.",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_OFFLOADS | KVL_CAP_SHARES_META | KVL_CAP_ASYNC,
    .opts = arkvale_options,
    .opts_size = sizeof(struct arkvale_opts),
    .min_budget = arkvale_min_budget,
    .plan = arkvale_plan,
    .append = arkvale_append,
    .prefilled = arkvale_prefilled,
    .schedule = arkvale_schedule,
    .select = arkvale_select,
};

KVL_POLICY_EXPORT(arkvale)
