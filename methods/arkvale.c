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
#include "page_bounds.h"

#include <string.h>

enum { ARKVALE_MAX_LAYERS = 1024, ARKVALE_MAX_PAGES = 1 << 24 };

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
    { .name = "page_size",
      .type = KVL_OPT_INT,
      .off = offsetof(struct arkvale_opts, page_size),
      .def = "32",
      .min = 1,
      .max = 4096,
      .help = "tokens per page (paper: 32)" },
    { .name = "page_topks",
      .type = KVL_OPT_INT,
      .off = offsetof(struct arkvale_opts, page_topks),
      .def = "auto",
      .min = 1,
      .max = ARKVALE_MAX_PAGES,
      .help = "pages read in a step, sink and window included; auto = budget / page_size",
      .not_in_tables = true },
    { .name = "page_budgets",
      .type = KVL_OPT_INT,
      .off = offsetof(struct arkvale_opts, page_budgets),
      .def = "auto",
      .min = 1,
      .max = ARKVALE_MAX_PAGES,
      .help = "pages of a lane on the device; auto = 4 page_topks (paper: 128 for 32)",
      .not_in_tables = true },
    { .name = "sink",
      .type = KVL_OPT_INT,
      .off = offsetof(struct arkvale_opts, sink),
      .def = "2",
      .min = 0,
      .max = 4096,
      .help = "first pages that are always read",
      .not_in_tables = true },
    { .name = "window",
      .type = KVL_OPT_INT,
      .off = offsetof(struct arkvale_opts, window),
      .def = "2",
      .min = 1,
      .max = 4096,
      .help = "newest pages that are always read, the unfinished one among them",
      .not_in_tables = true },
    { .name = "dense_layers",
      .type = KVL_OPT_INT,
      .off = offsetof(struct arkvale_opts, dense_layers),
      .def = "0",
      .min = 0,
      .max = ARKVALE_MAX_LAYERS,
      .help = "first layers that read everything and stay on the device" },
    { .name = "reduce",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct arkvale_opts, reduce),
      .def = "sum",
      .choices = arkvale_reduce_names,
      .help = "scores of the query heads of a kv head",
      .not_in_tables = true },
    { .name = "replace",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct arkvale_opts, replace),
      .def = "score",
      .choices = arkvale_replace_names,
      .help =
          "whose place a recalled page takes: last chosen longest ago, least often, least score",
      .not_in_tables = true },
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
        return kvl_fail(
            plan->err, KVL_EINVAL,
            "%d pages of %d tokens a step, %d of them sink and window; give a budget of %d "
            "or more, or smaller pages",
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
    if (o->dense_layers >= plan->shape->n_layers || plan->shape->n_layers > ARKVALE_MAX_LAYERS)
        return kvl_fail(
            plan->err, KVL_EINVAL,
            "dense_layers=%d; the model has %d layers (at most %d are served), give less",
            o->dense_layers, plan->shape->n_layers, ARKVALE_MAX_LAYERS);
    if (o->replace == KVL_REPLACE_SCORE && arkvale_reduces[o->reduce] == KVL_REDUCE_NONE)
        return kvl_fail(
            plan->err, KVL_EINVAL,
            "replace=score with reduce=none: a page has no one score; give replace=lru");
    return KVL_OK;
}

static int arkvale_plan(struct kvl_plan *plan)
{
    struct arkvale_opts *o = plan->opts;
    uint8_t selects[ARKVALE_MAX_LAYERS] = { 0 };
    KVL_TRY(arkvale_sizes(plan, o));
    memset(selects + o->dense_layers, 1, (size_t)(plan->shape->n_layers - o->dense_layers));
    plan->replay = KVL_REPLAY_NONE;
    KVL_TRY(kvl_plan_offload(
        plan,
        &(struct kvl_offload){ .layers = selects,
                               .keep_first = o->sink * o->page_size,
                               .keep_last = (o->window - 1) * o->page_size +
                                            1, /* a page goes when it leaves the window */
                               .unit_tok = o->page_size,
                               .cache_tok = (o->page_budgets - o->sink - o->window) * o->page_size,
                               .replace = (enum kvl_replace)o->replace }));
    return kvl_plan_meta_desc(plan,
                              &(struct kvl_meta_desc){ .unit = KVL_META_PAGE,
                                                       .unit_tok = o->page_size,
                                                       .row_elems = 2 * plan->shape->head_dim,
                                                       .elem = KVL_META_F32,
                                                       .layers = selects },
                              &o->table);
}

/* ---- digests --------------------------------------------------------------------------------------- */

/* Pages first .. last - 1 of one kv head, a few at a time. */
static int arkvale_digest_head(const struct kvl_pctx *ctx, int32_t layer, int32_t head,
                               int32_t first, int32_t last, float *digest)
{
    enum { STEP = 8 };
    int32_t page = ((const struct arkvale_opts *)ctx->opts)->page_size, dim = ctx->shape->head_dim;
    size_t room = (size_t)KVL_MIN(STEP, last - first) * (size_t)page;
    int32_t *pos = (void *)kvl_scratch(ctx, room);
    float *k = kvl_scratch(ctx, room * (size_t)dim);
    if (!pos || !k) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for pages of %d keys", page);
    for (int32_t p = first, n; p < last; p += n) {
        n = KVL_MIN(STEP, last - p);
        for (int32_t i = 0; i < n * page; i++) pos[i] = p * page + i;
        KVL_TRY(kvl_read_keys(ctx, layer, head, pos, n * page, false, k));
        KVL_TRY(ctx->ops->page_digest(&(struct kvl_page_digest_args){
            .digest = digest + (size_t)(p - first) * 2 * (size_t)dim,
            .k = k,
            .n_pages = n,
            .page_tok = page,
            .head_dim = dim }));
    }
    return KVL_OK;
}

static int arkvale_digest(const struct kvl_pctx *ctx, int32_t layer, int32_t first, int32_t last)
{
    const struct arkvale_opts *o = ctx->opts;
    struct kvl_meta_view meta;
    if (layer < o->dense_layers || first >= last) return KVL_OK;
    KVL_TRY(kvl_meta_from(ctx, o->table, layer, first, &meta));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(arkvale_digest_head(ctx, layer, h, first, last,
                                    meta.base + (size_t)h * meta.head_stride));
    return KVL_OK;
}

static int arkvale_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct arkvale_opts *o = ctx->opts;
    return arkvale_digest(ctx, layer, 0, ctx->context_tok / o->page_size);
}

static int arkvale_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                          const float *v)
{
    const struct arkvale_opts *o = ctx->opts;
    (void)k;
    (void)v;
    int32_t full = (step->pos + 1) / o->page_size;
    return (step->pos + 1) % o->page_size ? KVL_OK
                                          : arkvale_digest(ctx, step->layer, full - 1, full);
}

/* ---- selection --------------------------------------------------------------------------------------- */

static int arkvale_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    const struct arkvale_opts *o = ctx->opts;
    return step->layer < o->dense_layers ? KVL_DENSE : KVL_SELECT;
}

/* Sink, the best between, window: page [page_topks] of every list, the best at their place. */
static int arkvale_name(const struct kvl_pctx *ctx, struct kvl_sel *sel, enum kvl_scope scope,
                        int32_t n_pages, int32_t *page)
{
    const struct arkvale_opts *o = ctx->opts;
    int32_t n_lists = scope == KVL_SCOPE_Q_HEAD ? ctx->shape->n_heads : ctx->shape->n_kv_heads;
    int32_t best = o->page_topks - o->sink - o->window;
    int32_t *list = page + (size_t)n_lists * (size_t)best; /* behind all of the best */
    for (int32_t i = 0; i < o->sink; i++) list[i] = i;
    for (int32_t i = 0; i < o->window; i++)
        list[o->page_topks - o->window + i] = n_pages - o->window + i;
    for (int32_t l = 0; l < n_lists; l++) {
        for (int32_t i = 0; i < best; i++) list[o->sink + i] = o->sink + page[l * best + i];
        KVL_TRY(kvl_sel_pages(sel, scope, l, o->page_size, list, o->page_topks));
    }
    return KVL_OK;
}

/* For who traces the run, and for the cache. */
static int arkvale_tell(const struct kvl_pctx *ctx, const struct kvl_step *step,
                        enum kvl_scope scope, const float *score, int32_t n)
{
    const struct arkvale_opts *o = ctx->opts;
    KVL_TRY(kvl_tap_scores(
        ctx, step,
        &(struct kvl_scored){ .scope = scope, .unit_tok = o->page_size, .n = n, .score = score }));
    for (int32_t h = 0; o->replace == KVL_REPLACE_SCORE && h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(kvl_offload_scores(ctx, step->layer, h, score + (size_t)h * (size_t)n, n));
    return KVL_OK;
}

static int arkvale_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct arkvale_opts *o = ctx->opts;
    bool each = arkvale_reduces[o->reduce] == KVL_REDUCE_NONE;
    enum kvl_scope scope = each ? KVL_SCOPE_Q_HEAD : KVL_SCOPE_KV_HEAD;
    int32_t n_lists = each ? ctx->shape->n_heads : ctx->shape->n_kv_heads;
    int32_t n_pages = step->pos / o->page_size + 1, n = n_pages - o->window;
    int32_t best = o->page_topks - o->sink - o->window;
    if (n_pages <= o->page_topks) return KVL_OK;
    float *score = kvl_scratch(ctx, (size_t)n_lists * (size_t)n);
    int32_t *page =
        (void *)kvl_scratch(ctx, (size_t)n_lists * (size_t)best + (size_t)o->page_topks);
    if (!score || !page) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %d pages", n);
    KVL_TRY(page_bounds(ctx, o->table, step->layer, q->q, n, arkvale_reduces[o->reduce], score));
    KVL_TRY(ctx->ops->topk(&(struct kvl_topk_args){ .index = page,
                                                    .x = score + o->sink,
                                                    .x_stride = (size_t)n,
                                                    .n_rows = n_lists,
                                                    .n = n - o->sink,
                                                    .k = best }));
    KVL_TRY(arkvale_tell(ctx, step, scope, score, n));
    return arkvale_name(ctx, sel, scope, n_pages, page);
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
    .caps = KVL_CAP_SELECTS | KVL_CAP_OFFLOADS | KVL_CAP_SHARES_META,
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
