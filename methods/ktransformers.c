/* ktransformers - blocks of tokens, chosen by representative keys: KTransformers' long-context mode.
 *
 * kvcache-ai/ktransformers: "A Survey of Sparse Attention for Long Context" and the long-context mode of
 * its tutorial (2024-08); C++ in kt-kernel/operators/kvcache.  A framework that has several methods as
 * corners: block_size=1 with preselect is SnapKV without pooling, QUEST with SEPARATE is Quest with
 * summed heads.
 *   1. Per block and kv head (DYNAMIC: per query head) one vector, or two, stands for the keys of the
 *      block.  MAX: channel maximum.  MEAN: mean key.  QUEST: channel maximum and minimum.  FIXED: mean
 *      of representative_num tokens at a fixed stride.  DYNAMIC: mean of the representative_num most
 *      important tokens; importance is the attention of the last 128 queries of the context
 *   2. preselect: when the context is complete, all but the preselect_block_count blocks of largest mean
 *      importance (with a quarter of a block on either side) and the local ones are dropped
 *   3. A step reads the first blocks, the latest local_windows_len tokens in whole blocks, the block of
 *      the current token, and the second_block_count others of largest score
 *      sum over heads and channels of max over representatives of q_c r_c; SHARED: all heads together,
 *      one list for the layer, SEPARATE: one per kv head.  Everything is read when all blocks fit, or
 *      when more are to be picked than preselect leaves
 *   4. A selection serves layer_step layers and token_step steps, and the tokens that come meanwhile are
 *      read too; the first dense_layer_num layers read everything
 * Defaults are those of the tutorial (block 128, local 4096, 96 picked, every step and layer, DYNAMIC,
 * SHARED, no preselect); the configuration that was shipped is preselect_block=true, token_step=100,
 * dense_layer_num=2 and 32 blocks.
 *
 * compat=true reproduces what the published code does wrong:
 *   - representatives are computed once, after the prefill, the partial block padded with zeros; blocks
 *     that fill up later keep them, those made later have zeros
 *   - MAX and the maximum of QUEST begin at zero: channels that are negative throughout count as 0
 *   - QUEST on grouped queries: boxes are filled for the first n_kv_heads query heads only, from the kv
 *     head of the same number; the others score every block as infinite.  Ties go to later blocks, so
 *     that it reads the latest ones
 *   - DYNAMIC with several tokens: their sum, and products below zero count nothing
 *   - importance: the last queries see each other's keys (no causal mask), and those of the last prefill
 *     chunk of 4096 alone count
 *   - preselected blocks lie in the order of their importance, so that the "first" blocks of a step are
 *     the most important ones
 * Not reproduced: a block appended to a reused list once per sharing layer (a list that names a block
 * twice is an error here, and reads it twice there); lists that dense layers overwrite, and SEPARATE lists
 * that are cut when reused (both depend on stale memory); ranks 1 to 5 of layer 31 forced on all others (of
 * models with 32 layers); DYNAMIC's division by 4 on quantised keys; half floats; softmax without its
 * maximum and -|lse| < 1e-6 as "empty" in the attention kernel.
 *
 * Deviations: blocks that fill up while decoding are represented under DYNAMIC by the mean of their keys, as
 * no query of the context has seen them.  The block of the current token is read beside the local ones
 * also when it is full.  Published: blocks lie in host memory, where the CPU attends to them.  With
 * offload=true all but the first, the local and the current block do: under --device hybrid the CPU attends
 * to what is read of them, the GPU to the others, and both results are merged; elsewhere they are fetched.
 * Budget B: floor(B / block_size) blocks with the current one (token_step - 1 tokens less).
 * Cost per step and selecting layer: d values (QUEST, MAX: 2 d and d; DYNAMIC: d per query head) for each
 * block and kv head, those that preselect dropped included; a top-k per list.  A new token updates one
 * row.  Once: DYNAMIC and preselect: 128 queries over the context for all heads.
 */
#include "ktransformers_options.h"

#include "ktransformers_importance.h"

#include "ktransformers_rows.h"

/* ---- plan ---------------------------------------------------------------------------------------- */

static int kt_plan(struct kvl_plan *plan)
{
    struct kt_opts *o = plan->opts;
    uint8_t selects[KT_MAX_LAYERS];
    KVL_TRY(kt_plan_blocks(plan));
    KVL_TRY(kt_plan_representatives(plan));
    KVL_TRY(kt_plan_layers(plan, selects));
    KVL_TRY(kt_plan_offload(plan));
    plan->replay = KVL_REPLAY_KEYS;
    bool looks = o->preselect_block || o->representative_type == KT_DYNAMIC;
    if (looks) KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, o->importance_window));
    struct kvl_meta_desc rows = { .unit = KVL_META_PAGE,
                                  .unit_tok = o->block_size,
                                  .row_elems = kt_row_elems(o, plan->shape),
                                  .elem = kt_pair(o) && !o->compat ? KVL_META_KEY : KVL_META_F32,
                                  .layers = selects };
    KVL_TRY(kvl_plan_meta_desc(plan, &rows, &o->table));
    if (!o->compat || !o->preselect_block) return KVL_OK;
    rows.row_elems = 1;
    rows.elem = KVL_META_F32;
    return kvl_plan_meta_desc(plan, &rows, &o->order);
}

/* Blocks of the context that are not local, of which preselect keeps the best. */
static int32_t kt_far_blocks(const struct kt_opts *o, int32_t n_tok)
{
    return KVL_MAX(0, n_tok / o->block_size - kt_local_blocks(o));
}

/* compat: blocks are remembered with their importance. */
static int kt_remember_order(const struct kvl_pctx *ctx, int32_t layer)
{
    const struct kt_opts *o = ctx->opts;
    int32_t n_far = kt_far_blocks(o, ctx->context_tok), n_lists = kt_lists(ctx);
    struct kvl_meta_view order;
    float *blocks;
    KVL_TRY(kt_block_importance(ctx, layer, n_far, &blocks));
    KVL_TRY(kvl_meta(ctx, o->order, layer, &order));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        memcpy(order.base + (size_t)h * order.head_stride,
               blocks + (size_t)(n_lists > 1 ? h : 0) * (size_t)n_far,
               (size_t)n_far * sizeof *blocks);
    return KVL_OK;
}

static int kt_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct kt_opts *o = ctx->opts;
    struct kvl_meta_view meta;
    if (!kt_selects(o, layer)) return KVL_OK;
    if (o->compat && o->preselect_block) KVL_TRY(kt_remember_order(ctx, layer));
    if (o->representative_type != KT_DYNAMIC && !(o->compat && kt_pair(o))) return KVL_OK;
    KVL_TRY(kvl_meta(ctx, o->table, layer, &meta));
    if (o->representative_type == KT_DYNAMIC) return kt_dynamic(ctx, layer, &meta);
    kt_clip(ctx, &meta);
    return KVL_OK;
}

/* ---- preselect -------------------------------------------------------------------------------------- */

/* A block's importance is that of each of its tokens: core keeps whole blocks. */
static int kt_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct kt_opts *o = ctx->opts;
    int32_t n_far = kt_far_blocks(o, scores->n_tok);
    scores->keep_tok = scores->n_tok;
    if (!o->preselect_block || n_far <= o->preselect_block_count) return KVL_OK;
    scores->protect_last = scores->n_tok - n_far * o->block_size;
    scores->keep_tok = scores->protect_last + o->preselect_block_count * o->block_size;
    float *blocks;
    int32_t n_lists = kt_lists(ctx);
    KVL_TRY(kt_block_importance(ctx, layer, n_far, &blocks));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        float *token = scores->score + (size_t)h * (size_t)scores->n_tok;
        const float *block = blocks + (size_t)(n_lists > 1 ? h : 0) * (size_t)n_far;
        for (int32_t t = 0; t < n_far * o->block_size; t++) token[t] = block[t / o->block_size];
    }
    return KVL_OK;
}

/* ---- scores ------------------------------------------------------------------------------------------ */

static int kt_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    const struct kt_opts *o = ctx->opts;
    return step->layer < o->dense_layer_num ? KVL_DENSE : KVL_SELECT;
}

/* Rows of one part of the table: of kv head h from data + h * head_stride. */
struct kt_rows {
    const struct kvl_meta_part *part;
    const float *q; /* [n_heads][head_dim] */
    float *score;   /* [n_kv_heads][score_stride] */
    size_t score_stride;
};

static const void *kt_row(const struct kt_rows *r, int32_t head, size_t elem)
{
    size_t bytes = (size_t)kvl_kv_elem_bytes(r->part->type);
    return (const uint8_t *)r->part->data + ((size_t)head * r->part->head_stride + elem) * bytes;
}

/* score = rows of `dim` elements, `elem` elements into each row, times x. */
static int kt_products(const struct kvl_pctx *ctx, const struct kt_rows *r, int32_t head,
                       const float *x, int32_t dim, size_t elem)
{
    static const enum kvl_wtype types[] = {
        [KVL_KV_F32] = KVL_W_F32, [KVL_KV_F16] = KVL_W_F16, [KVL_KV_BF16] = KVL_W_BF16
    };
    size_t row = (size_t)kt_row_elems(ctx->opts, ctx->shape);
    struct kvl_weight w = { .data = kt_row(r, head, elem),
                            .type = types[r->part->type],
                            .n_rows = r->part->n_rows,
                            .n_cols = dim,
                            .row_bytes = row * (size_t)kvl_kv_elem_bytes(r->part->type) };
    return ctx->ops->gemv(&(struct kvl_gemv_args){
        .y = r->score + (size_t)head * r->score_stride, .x = x, .w = &w, .n = 1 });
}

/* Bounds of boxes [2][dim]: the sum over n_heads query heads that share the boxes of one kv head. */
static int kt_bounds(const struct kvl_pctx *ctx, const struct kt_rows *r, int32_t box,
                     const float *q, int32_t n_heads, int32_t dim, float *out)
{
    struct kvl_page_bound_args bound = { .bound = out,
                                         .bound_stride = r->score_stride,
                                         .q = q,
                                         .minmax = kt_row(r, box, 0),
                                         .type = r->part->type,
                                         .head_stride = r->part->head_stride,
                                         .n_pages = r->part->n_rows,
                                         .n_heads = n_heads,
                                         .n_kv_heads = 1,
                                         .head_dim = dim,
                                         .reduce = KVL_REDUCE_SUM };
    return ctx->ops->page_bound(&bound);
}

/* compat: query head h finds the box of kv head h, or one that was never filled: its maximum is 0, its
 * minimum infinite. */
static int kt_unfilled_boxes(const struct kvl_pctx *ctx, const struct kt_rows *r, int32_t kv_head)
{
    int32_t group = ctx->shape->n_heads / ctx->shape->n_kv_heads, n = r->part->n_rows;
    int32_t dim = ctx->shape->head_dim;
    float *score = r->score + (size_t)kv_head * r->score_stride;
    float *one = kvl_scratch(ctx, (size_t)n);
    if (!one) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %d bounds", n);
    memset(score, 0, (size_t)n * sizeof *score);
    for (int32_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
        const float *q = r->q + (size_t)h * (size_t)dim;
        if (h < ctx->shape->n_kv_heads) {
            KVL_TRY(kt_bounds(ctx, r, h, q, 1, dim, one));
        } else {
            bool infinite = false;
            for (int32_t c = 0; c < dim; c++) infinite = infinite || q[c] > 0.0f;
            for (int32_t b = 0; b < n; b++) one[b] = infinite ? 1e30f : 0.0f;
        }
        KVL_TRY(ctx->ops->add(&(struct kvl_add_args){ .y = score, .x = one, .n = (size_t)n }));
    }
    return KVL_OK;
}

/* Scores of one kv head: the sum over its query heads. */
static int kt_score_head(const struct kvl_pctx *ctx, const struct kt_rows *r, int32_t kv_head)
{
    const struct kt_opts *o = ctx->opts;
    int32_t group = ctx->shape->n_heads / ctx->shape->n_kv_heads, dim = ctx->shape->head_dim;
    size_t elems = (size_t)dim;
    const float *q = r->q + (size_t)(kv_head * group) * elems;
    float *score = r->score + (size_t)kv_head * r->score_stride;
    if (o->representative_type == KT_QUEST && o->compat && group > 1)
        return kt_unfilled_boxes(ctx, r, kv_head);
    if (o->representative_type == KT_QUEST) return kt_bounds(ctx, r, kv_head, q, group, dim, score);
    /* A row holds a vector for each query head: one long product. */
    if (kt_clips_products(o)) return kt_bounds(ctx, r, kv_head, q, 1, group * dim, score);
    if (o->representative_type == KT_DYNAMIC)
        return kt_products(ctx, r, kv_head, q, group * dim, 0);
    float *sum = kvl_scratch(ctx, elems);
    if (!sum) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for a query");
    for (int32_t g = 0; g < group; g++)
        KVL_TRY(kt_add_key(ctx, sum, q + (size_t)g * elems, g == 0));
    return kt_products(ctx, r, kv_head, sum, dim, o->representative_type == KT_MAX ? elems : 0);
}

/* score [lists][n_blocks] in scratch. */
static int kt_scores(const struct kvl_pctx *ctx, const struct kvl_step *step, const float *q,
                     int32_t n_blocks, float **out)
{
    const struct kt_opts *o = ctx->opts;
    int32_t heads = ctx->shape->n_kv_heads, at = 0;
    struct kvl_meta_part part[2];
    size_t n = (size_t)n_blocks;
    float *score = kvl_scratch(ctx, (size_t)heads * n), *shared = kvl_scratch(ctx, n);
    if (!score || !shared)
        return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %d scores", n_blocks);
    KVL_TRY(kvl_meta_rows(ctx, o->table, step->layer, n_blocks, part));
    for (int i = 0; i < 2; at += part[i++].n_rows) {
        struct kt_rows rows = { .part = &part[i], .q = q, .score = score + at, .score_stride = n };
        for (int32_t h = 0; h < heads && part[i].n_rows > 0; h++)
            KVL_TRY(kt_score_head(ctx, &rows, h));
    }
    *out = score;
    if (o->head_select_mode == KT_SEPARATE) return KVL_OK;
    *out = shared;
    struct kvl_group_reduce_args sum = { .y = shared,
                                         .x = score,
                                         .x_stride = n,
                                         .n = n_blocks,
                                         .n_heads = heads,
                                         .n_kv_heads = 1,
                                         .reduce = KVL_REDUCE_SUM };
    return ctx->ops->group_reduce(&sum);
}

/* ---- selection ----------------------------------------------------------------------------------------- */

/* One list while it is made; all in scratch. */
struct kt_list {
    int32_t *
        block; /* [n] full blocks that are live, ascending; then the first ones moved to the front */
    int32_t n;
    float *x;       /* [n] */
    int32_t *best;  /* [n] */
    uint8_t *read;  /* [n_full] */
    int32_t n_full; /* blocks in front of that of the current token */
};

static int kt_list_get(const struct kvl_pctx *ctx, const struct kvl_step *step, struct kt_list *l)
{
    const struct kt_opts *o = ctx->opts;
    size_t n = (size_t)(l->n_full = step->pos / o->block_size);
    l->block = (int32_t *)(void *)kvl_scratch(ctx, n);
    l->best = (int32_t *)(void *)kvl_scratch(ctx, n);
    l->read = (uint8_t *)kvl_scratch(ctx, n / sizeof(float) + 1);
    l->x = kvl_scratch(ctx, n);
    if (!l->block || !l->best || !l->read || !l->x)
        return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %d blocks", l->n_full);
    return KVL_OK;
}

/* Full blocks of a lane.  Preselect drops whole ones; where a wrapper drops parts of some, a block is there
 * while its first token is. */
static int kt_list_live(const struct kvl_pctx *ctx, const struct kvl_step *step, int32_t kv_head,
                        struct kt_list *l)
{
    const struct kt_opts *o = ctx->opts;
    const int32_t *pos;
    int32_t n;
    l->n = 0;
    for (int32_t b = 0; b < l->n_full && !o->preselect_block; b++) l->block[l->n++] = b;
    if (!o->preselect_block) return KVL_OK;
    KVL_TRY(kvl_live(ctx, step->layer, kv_head, &pos, &n));
    for (int32_t i = 0; i < n && pos[i] < l->n_full * o->block_size; i++)
        if (pos[i] % o->block_size == 0) l->block[l->n++] = pos[i] / o->block_size;
    return KVL_OK;
}

/* compat: the most important blocks of the context come first. */
static int kt_list_reorder(const struct kvl_pctx *ctx, const struct kvl_step *step, int32_t kv_head,
                           struct kt_list *l)
{
    const struct kt_opts *o = ctx->opts;
    int32_t n_far = kt_far_blocks(o, ctx->context_tok), n = 0, m = 0;
    struct kvl_meta_view order;
    KVL_TRY(kvl_meta_read(ctx, o->order, step->layer, n_far, &order));
    const float *importance = order.base + (size_t)kv_head * order.head_stride;
    for (; n < l->n && l->block[n] < n_far; n++) l->x[n] = importance[l->block[n]];
    int32_t k = KVL_MIN(o->init_block_num, n);
    struct kvl_topk_args top = {
        .index = l->best, .x = l->x, .x_stride = (size_t)n, .n_rows = 1, .n = n, .k = k
    };
    KVL_TRY(ctx->ops->topk(&top));
    memset(l->read, 0, (size_t)l->n_full);
    for (int32_t i = 0; i < k; i++) {
        l->best[i] = l->block[l->best[i]];
        l->read[l->best[i]] = 1;
    }
    for (int32_t i = n - 1; i >= 0; i--) /* from the back, over what was read */
        if (!l->read[l->block[i]]) l->block[n - 1 - m++] = l->block[i];
    memcpy(l->block, l->best, (size_t)k * sizeof *l->block);
    return KVL_OK;
}

/* All blocks of the list are read. */
static bool kt_list_fits(const struct kvl_pctx *ctx, const struct kt_list *l)
{
    const struct kt_opts *o = ctx->opts;
    return l->n <= o->init_block_num + o->second_block_count + kt_local_blocks(o);
}

/* Marks the first blocks, the local ones and the best of the others; scores of the latter stay in x. */
static int kt_list_choose(const struct kvl_pctx *ctx, const float *score, struct kt_list *l)
{
    const struct kt_opts *o = ctx->opts;
    int32_t local = kt_local_blocks(o), n = l->n - o->init_block_num - local;
    memset(l->read, 0, (size_t)l->n_full);
    if (kt_list_fits(ctx, l)) {
        for (int32_t i = 0; i < l->n; i++) l->read[l->block[i]] = 1;
        return KVL_OK;
    }
    const int32_t *candidate = l->block + o->init_block_num;
    struct kvl_topk_args top = { .index = l->best,
                                 .x = l->x,
                                 .x_stride = (size_t)n,
                                 .n_rows = 1,
                                 .n = n,
                                 .k = o->second_block_count };
    /* The published heap prefers later blocks of one score: they are shown to top-k back to front. */
    for (int32_t i = 0; i < n; i++) l->x[i] = score[candidate[o->compat ? n - 1 - i : i]];
    int rc = ctx->ops->topk(&top);
    if (rc != KVL_OK) return kvl_fail(ctx->err, rc, "scores of %d blocks", n);
    for (int32_t i = 0; i < o->init_block_num; i++) l->read[l->block[i]] = 1;
    for (int32_t i = l->n - local; i < l->n; i++) l->read[l->block[i]] = 1;
    for (int32_t i = 0; i < top.k; i++)
        l->read[candidate[o->compat ? n - 1 - l->best[i] : l->best[i]]] = 1;
    return KVL_OK;
}

/* What was marked, and from the block of the current token on. */
static int kt_list_say(const struct kvl_pctx *ctx, const struct kvl_step *step,
                       const struct kt_list *l, enum kvl_scope scope, int32_t list,
                       struct kvl_sel *sel)
{
    const struct kt_opts *o = ctx->opts;
    for (int32_t b = 0; b < l->n_full; b++)
        if (l->read[b])
            KVL_TRY(kvl_sel_range(sel, scope, list, b * o->block_size, (b + 1) * o->block_size));
    return kvl_sel_range(sel, scope, list, l->n_full * o->block_size, step->pos + 1);
}

/* For whoever listens: blocks of a list that are not candidates could not be chosen. */
static void kt_list_hide(const struct kvl_pctx *ctx, const struct kt_list *l, float *score)
{
    const struct kt_opts *o = ctx->opts;
    int32_t last = l->n - kt_local_blocks(o);
    if (!kvl_tap_listens(ctx)) return;
    memset(l->read, 0, (size_t)l->n_full);
    for (int32_t i = o->init_block_num; i < last; i++) l->read[l->block[i]] = 1;
    for (int32_t b = 0; b < l->n_full; b++)
        if (!l->read[b]) score[b] = -INFINITY;
}

static int kt_show(const struct kvl_pctx *ctx, const struct kvl_step *step, enum kvl_scope scope,
                   const float *score, int32_t n_blocks)
{
    const struct kt_opts *o = ctx->opts;
    struct kvl_scored scored = {
        .scope = scope, .unit_tok = o->block_size, .n = n_blocks, .score = score
    };
    return kvl_tap_listens(ctx) ? kvl_tap_scores(ctx, step, &scored) : KVL_OK;
}

static int kt_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                     struct kvl_sel *sel)
{
    const struct kt_opts *o = ctx->opts;
    enum kvl_scope scope = o->head_select_mode == KT_SHARED ? KVL_SCOPE_LAYER : KVL_SCOPE_KV_HEAD;
    struct kt_list l;
    float *score;
    if (o->preselect_block && o->second_block_count > o->preselect_block_count) return KVL_OK;
    KVL_TRY(kt_list_get(ctx, step, &l));
    bool all = true; /* lanes differ where adakv wraps this policy */
    for (int32_t i = 0; i < kt_lists(ctx) && all; i++) {
        KVL_TRY(kt_list_live(ctx, step, i, &l));
        all = kt_list_fits(ctx, &l);
    }
    if (all) return KVL_OK;
    KVL_TRY(kt_scores(ctx, step, q->q, l.n_full, &score));
    for (int32_t i = 0; i < kt_lists(ctx); i++) {
        float *row = score + (size_t)i * (size_t)l.n_full;
        KVL_TRY(kt_list_live(ctx, step, i, &l));
        if (o->compat && o->preselect_block) KVL_TRY(kt_list_reorder(ctx, step, i, &l));
        KVL_TRY(kt_list_choose(ctx, row, &l));
        KVL_TRY(kt_list_say(ctx, step, &l, scope, i, sel));
        kt_list_hide(ctx, &l, row);
    }
    KVL_TRY(kt_show(ctx, step, scope, score, l.n_full));
    int32_t last = KVL_MIN(step->layer + o->layer_step, ctx->shape->n_layers) - 1;
    if (last == step->layer && o->token_step == 1) return KVL_OK;
    return kvl_sel_share(sel, last, o->token_step - step->index % o->token_step);
}

static const struct kvl_policy ktransformers = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "ktransformers",
    .title = "KTransformers",
    .paper = "kvcache-ai, KTransformers, long-context mode, 2024",
    .help = "reads blocks chosen by representative keys; may drop blocks once before",
    .follows =
        "The long-context mode as its document describes it, every option, with the tutorial's "
        "values: block 128, local 4096, 96 blocks picked in every step and layer, DYNAMIC, SHARED. "
        "The shipped configuration is "
        "preselect_block=true,token_step=100,dense_layer_num=2,second_block_count=32. compat=true "
        "brings back the errors of the published code: clipped maxima, boxes not filled on grouped "
        "queries, representatives never updated, importance without a causal mask, first blocks by "
        "importance, sums clipped per channel. block_size=1 with preselect is snapkv with "
        "kernel=1; QUEST with SEPARATE is quest.",
    .deviations =
        "DYNAMIC: blocks that fill up while decoding are represented by their mean key. The block "
        "of the current token is read beside the local ones. Blocks lie on the device; with "
        "offload=true all but the first and the local ones lie on the host, as published, where "
        "the CPU attends to them under --device hybrid. compat leaves out what depends on stale "
        "memory, lists that name a block twice, and the rule for layer 31 of 32.",
    .cost =
        "Per step and selecting layer one vector (QUEST two, DYNAMIC one per query head) of d for "
        "each of n / block_size blocks per kv head, and a top-k; a new token updates one row. "
        "Nothing in layers and steps that share a selection. Once the keys; with DYNAMIC or "
        "preselect 128 queries over n keys for each of H heads. Memory: d floats (QUEST and MAX 2 "
        "d of the cache's type, DYNAMIC H / K d) per block and kv head of the layers that select.",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_SELECTS | KVL_CAP_SHARES_META | KVL_CAP_OFFLOADS,
    .opts = kt_options,
    .opts_size = sizeof(struct kt_opts),
    .min_budget = kt_min_budget,
    .plan = kt_plan,
    .append = kt_append,
    .prefilled = kt_prefilled,
    .schedule = kt_schedule,
    .score = kt_score,
    .select = kt_select,
};

KVL_POLICY_EXPORT(ktransformers)
