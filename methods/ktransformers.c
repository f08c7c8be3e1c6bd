/* ktransformers - blocks of tokens, chosen by representative keys: KTransformers' long-context mode.
 *
 * kvcache-ai/ktransformers: "A Survey of Sparse Attention for Long Context" and the long-context mode of
 * its tutorial (2024-08); C++ in kt-kernel/operators/kvcache.
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
 *
 * compat=true reproduces what the published code does wrong, each where its comment says "compat", and that
 * representatives are computed once, after the prefill: blocks that fill up later keep them, those made later
 * have zeros.  Not reproduced: lists that name a block twice, what depends on stale memory (lists that dense
 * layers overwrite, SEPARATE lists that are cut when reused), ranks 1 to 5 of layer 31 forced on all others,
 * DYNAMIC's division by 4 on quantised keys, and in the attention kernel half floats, softmax without its
 * maximum and -|lse| < 1e-6 as "empty".
 *
 * Budget B: (init + picked + local + 1) block_size + token_step - 1, the block of the current token and
 * what comes until the next selection included. */
#include "kvl/policy.h"

#include <math.h>
#include <string.h>

enum { KT_SHARED, KT_SEPARATE };
enum { KT_MAX, KT_MEAN, KT_QUEST, KT_DYNAMIC, KT_FIXED };
enum { KT_CHUNK_TOK = 4096 }; /* of the published prefill */

struct kt_opts {
    int32_t block_size, local_windows_len, second_block_count, init_block_num;
    bool preselect_block;
    int32_t preselect_block_count, token_step, layer_step, dense_layer_num, head_select_mode;
    int32_t representative_type, representative_num, importance_window;
    bool compat, offload;
    /* not options, from plan */
    int32_t local_blocks;
    int32_t table; /* representatives of layers that select */
    int32_t order; /* compat, preselect: importance of every block of the context */
};

static const char *const kt_modes[] = { "SHARED", "SEPARATE", NULL };
static const char *const kt_types[] = { "MAX", "MEAN", "QUEST", "DYNAMIC", "FIXED", NULL };

static const struct kvl_opt kt_options[] = {
    KVL_ROW_INT(kt_opts, block_size, "auto", 1, 4096,
                "tokens per block (published: 128); auto = largest power of two up to budget / 32, "
                "within 4 and 128"),
    KVL_ROW_INT(kt_opts, local_windows_len, "auto", 0, 1 << 30,
                "latest tokens that are always read, in whole blocks (published: 4096); auto = a "
                "quarter of the blocks"),
    KVL_ROW_INT(
        kt_opts, second_block_count, "auto", 1, 1 << 24,
        "blocks picked by a selection (published: 96, shipped: 32); auto = what the budget leaves",
        .alias = "second_select_num"),
    KVL_ROW_INT(kt_opts, init_block_num, "auto", 0, 1 << 20,
                "first blocks that are always read; auto = published: 1, or 64 tokens of blocks up "
                "to 32, at most an eighth of the blocks"),
    KVL_ROW_BOOL(kt_opts, preselect_block, "false",
                 "drop all but the best blocks when the context is complete (tutorial: false, "
                 "shipped: true)"),
    KVL_ROW_INT(kt_opts, preselect_block_count, "auto", 1, 1 << 24,
                "blocks that preselect keeps beside the local ones; auto = init_block_num + "
                "second_block_count"),
    KVL_ROW_INT(kt_opts, token_step, "1", 1, 1 << 20,
                "steps that a selection serves (tutorial: 1, shipped: 100)"),
    KVL_ROW_INT(kt_opts, layer_step, "1", 1, 1024, "layers that a selection serves (published: 1)"),
    KVL_ROW_INT(kt_opts, dense_layer_num, "0", 0, 1024,
                "first layers that read everything (tutorial: 0, shipped: 2)"),
    KVL_ROW_ENUM(kt_opts, head_select_mode, "SHARED", kt_modes,
                 "SHARED: one list per layer; SEPARATE: one per kv head (published: SHARED)"),
    KVL_ROW_ENUM(kt_opts, representative_type, "DYNAMIC", kt_types,
                 "what stands for a block: channel maximum, mean key, minimum and maximum, mean of "
                 "the most important tokens of each query head, mean of tokens at a fixed stride "
                 "(published: DYNAMIC)",
                 .alias = "anchor_type"),
    KVL_ROW_INT(kt_opts, representative_num, "auto", 1, 4096,
                "tokens of DYNAMIC and FIXED (published: 1); auto = 1, QUEST: 2",
                .alias = "anchor_num"),
    KVL_ROW_INT(
        kt_opts, importance_window, "128", 1, 65536,
        "last queries of the context whose attention is a token's importance (published: 128)"),
    KVL_ROW_BOOL(kt_opts, compat, "false", "reproduce what the published code does wrong"),
    KVL_ROW_BOOL(kt_opts, offload, "false",
                 "blocks but the first and the local ones live on the host, where --device hybrid "
                 "attends them, as published; other devices fetch what a step reads"),
    { 0 },
};

/* ---- plan ---------------------------------------------------------------------------------------- */

/* The least budget that these options fit into. */
static int32_t kt_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct kt_opts *o = opts;
    (void)shape;
    if (o->second_block_count != KVL_AUTO) return 1;
    int64_t size = o->block_size == KVL_AUTO ? 4 : o->block_size;
    int64_t init = o->init_block_num == KVL_AUTO ? 1 : o->init_block_num;
    int64_t local = o->local_windows_len == KVL_AUTO ? 0 : o->local_windows_len / size;
    return (int32_t)KVL_MIN((init + local + 2) * size + o->token_step - 1, (int64_t)INT32_MAX);
}

static int kt_plan_blocks(struct kvl_plan *plan)
{
    struct kt_opts *o = plan->opts;
    int32_t budget = plan->budget_tok;
    if (o->block_size == KVL_AUTO)
        for (o->block_size = 4; o->block_size < 128 && o->block_size * 64 <= budget;)
            o->block_size *= 2;
    int32_t published = o->block_size > 32 ? 1 : 64 / o->block_size;
    /* Blocks beside the current one. */
    int32_t room = KVL_MAX(0, (budget - (o->token_step - 1)) / o->block_size - 1);
    if (o->init_block_num == KVL_AUTO) o->init_block_num = KVL_MIN(published, KVL_MAX(1, room / 8));
    if (o->local_windows_len == KVL_AUTO) o->local_windows_len = room / 4 * o->block_size;
    o->local_blocks = o->local_windows_len / o->block_size;
    if (o->second_block_count == KVL_AUTO)
        o->second_block_count = room - o->init_block_num - o->local_blocks;
    if (o->second_block_count < 1)
        return kvl_fail(
            plan->err, KVL_EINVAL,
            "budget %d is %d blocks of %d besides the current one, init_block_num=%d and "
            "local_windows_len=%d leave none to pick; give a larger budget or smaller blocks",
            budget, room, o->block_size, o->init_block_num, o->local_windows_len);
    if (o->preselect_block_count == KVL_AUTO)
        o->preselect_block_count = o->init_block_num + o->second_block_count;
    return KVL_OK;
}

static int kt_plan_representatives(struct kvl_plan *plan)
{
    struct kt_opts *o = plan->opts;
    static const char *const wants[] = { "1", "1", "2", "a number within the block size",
                                         "a divisor of the block size" };
    int32_t type = o->representative_type, own = type == KT_QUEST ? 2 : 1, n;
    if (o->representative_num == KVL_AUTO) o->representative_num = own;
    n = o->representative_num;
    bool fits = type == KT_DYNAMIC ? n <= o->block_size
                : type == KT_FIXED ? o->block_size % n == 0
                                   : n == own;
    if (fits) return KVL_OK;
    return kvl_fail(plan->err, KVL_EINVAL,
                    "representative_num=%d with representative_type=%s and block_size=%d; give %s",
                    n, kt_types[type], o->block_size, wants[type]);
}

/* A block goes when it is not local any more. */
static int kt_plan_offload(struct kvl_plan *plan)
{
    const struct kt_opts *o = plan->opts;
    int64_t first = (int64_t)o->init_block_num * o->block_size, most = (int64_t)1 << 30;
    int64_t local = ((int64_t)o->local_blocks + 1) * o->block_size;
    uint8_t *layers;
    KVL_TRY(kvl_plan_layers(plan, "dense_layer_num", o->dense_layer_num, 1, &layers));
    return kvl_plan_offload(plan,
                            &(struct kvl_offload){ .layers = layers,
                                                   .keep_first = (int32_t)KVL_MIN(first, most),
                                                   .keep_last = (int32_t)KVL_MIN(local, most),
                                                   .unit_tok = o->block_size });
}

/* Rows of a maximum and a minimum. */
static bool kt_pair(const struct kt_opts *o)
{
    return o->representative_type == KT_MAX || o->representative_type == KT_QUEST;
}

/* The published rule for several representatives of which all but the first are zero: rows are boxes, of what
 * is negative and what is positive in a vector. */
static bool kt_clips_products(const struct kt_opts *o)
{
    return o->compat && o->representative_type == KT_DYNAMIC && o->representative_num > 1;
}

static int kt_plan(struct kvl_plan *plan)
{
    struct kt_opts *o = plan->opts;
    int32_t group = o->representative_type == KT_DYNAMIC ? plan->shape->group : 1;
    uint8_t *selects;
    KVL_TRY(kvl_plan_needs_budget(plan));
    KVL_TRY(kt_plan_blocks(plan));
    KVL_TRY(kt_plan_representatives(plan));
    KVL_TRY(kvl_plan_layers(plan, "dense_layer_num", o->dense_layer_num, o->layer_step, &selects));
    if (o->offload) KVL_TRY(kt_plan_offload(plan));
    plan->replay = KVL_REPLAY_KEYS;
    if (o->preselect_block || o->representative_type == KT_DYNAMIC)
        KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, o->importance_window));
    bool boxes = kt_pair(o) || kt_clips_products(o);
    KVL_TRY(kvl_plan_table(plan, &o->table, .unit = KVL_META_PAGE, .unit_tok = o->block_size,
                           .row_elems = (boxes ? 2 : 1) * group * plan->shape->head_dim,
                           .elem = kt_pair(o) && !o->compat ? KVL_META_KEY : KVL_META_F32,
                           .layers = selects));
    if (!o->compat || !o->preselect_block) return KVL_OK;
    return kvl_plan_table(plan, &o->order, .unit = KVL_META_PAGE, .unit_tok = o->block_size,
                          .row_elems = 1, .layers = selects);
}

/* A layer that selects, for itself and those it shares with. */
static bool kt_selects(const struct kt_opts *o, int32_t layer)
{
    return layer >= o->dense_layer_num && (layer - o->dense_layer_num) % o->layer_step == 0;
}

static int32_t kt_lists(const struct kvl_pctx *ctx)
{
    const struct kt_opts *o = ctx->opts;
    return o->head_select_mode == KT_SHARED ? 1 : ctx->shape->n_kv_heads;
}

/* ---- importance of tokens and blocks ------------------------------------------------------------------ */

/* importance [n_heads][context_tok]: what the last queries attend to.  compat: they see each other's keys, and
 * only those of the last chunk of the prefill count. */
static int kt_importance(const struct kvl_pctx *ctx, int32_t layer, const float **importance)
{
    const struct kt_opts *o = ctx->opts;
    int32_t n = ctx->context_tok, chunk = (n - 1) % KT_CHUNK_TOK + 1;
    if (o->compat)
        return kvl_obs_window_unmasked(ctx, layer, KVL_MIN(o->importance_window, chunk),
                                       importance);
    return kvl_obs_window_mass(ctx, layer, KVL_MIN(o->importance_window, n), importance, &n);
}

/* Mean importance of a block and a quarter of a block on either side. */
static float kt_block_mean(const struct kvl_pctx *ctx, const float *token, int32_t block)
{
    int32_t size = ((const struct kt_opts *)ctx->opts)->block_size;
    int32_t first = KVL_MAX(0, block * size - size / 4);
    int32_t last = KVL_MIN(ctx->context_tok, (block + 1) * size + size / 4);
    if (last - first == 1) return token[first];
    double sum = 0;
    for (int32_t t = first; t < last; t++) sum += (double)token[t];
    return (float)(sum / (last - first));
}

/* out [n_kv_heads][n_blocks] of the first n_blocks blocks; SHARED: the same for all. */
static int kt_block_importance(const struct kvl_pctx *ctx, int32_t layer, int32_t n_blocks,
                               float **out)
{
    int32_t n_tok = ctx->context_tok, n_lists = kt_lists(ctx), n_heads = ctx->shape->n_heads;
    const float *importance;
    float *token;
    KVL_TRY(kt_importance(ctx, layer, &importance));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_lists * (size_t)n_tok, &token));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(ctx->shape->n_kv_heads * n_blocks), out));
    KVL_TRY(n_lists == 1 ? kvl_layer_scores(ctx, importance, n_heads, n_tok, KVL_REDUCE_MEAN, token)
                         : kvl_group_scores(ctx, importance, n_tok, KVL_REDUCE_MEAN, token));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        for (int32_t b = 0; b < n_blocks; b++)
            (*out)[h * n_blocks + b] =
                kt_block_mean(ctx, token + (size_t)(h % n_lists) * (size_t)n_tok, b);
    return KVL_OK;
}

/* ---- 1. representatives ------------------------------------------------------------------------------- */

/* MEAN and FIXED: sums of keys, in proportion to their mean since all blocks are of one size.  DYNAMIC: a
 * block that fills up while decoding gets the mean of its keys, for every query head. */
static int kt_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                     const float *v)
{
    const struct kt_opts *o = ctx->opts;
    bool dynamic = o->representative_type == KT_DYNAMIC, fixed = o->representative_type == KT_FIXED;
    int32_t every = fixed ? o->block_size / o->representative_num : 1;
    int32_t full = ctx->context_tok / o->block_size * o->block_size; /* kt_dynamic writes these */
    (void)v;
    if (!kt_selects(o, step->layer)) return KVL_OK;
    if (dynamic && step->replay && step->pos + step->n_tok <= full) return KVL_OK;
    if (o->compat && (dynamic || !step->replay)) return KVL_OK;
    if (kt_pair(o)) return kvl_table_minmax(ctx, o->table, step, k);
    return kvl_table_key_sums(ctx, o->table, step, k, every, dynamic);
}

/* DYNAMIC: per query head the mean of the most important keys of each block of the context; the partial block
 * goes on being filled.  compat: their sum, of the partial block, too. */
static int kt_dynamic(const struct kvl_pctx *ctx, int32_t layer)
{
    const struct kt_opts *o = ctx->opts;
    int32_t n_full = ctx->context_tok / o->block_size, n_tail = ctx->context_tok % o->block_size;
    struct kvl_table_top_keys top = { .table = o->table,
                                      .layer = layer,
                                      .n = n_full,
                                      .unit_tok = o->block_size,
                                      .k = o->representative_num,
                                      .sum = o->compat,
                                      .stride = (size_t)ctx->context_tok };
    KVL_TRY(kt_importance(ctx, layer, &top.score));
    KVL_TRY(kvl_table_top_keys(ctx, &top));
    if (!o->compat || n_tail == 0) return KVL_OK;
    top.row = n_full;
    top.first_tok = n_full * o->block_size;
    top.score += top.first_tok;
    top.n = 1;
    top.unit_tok = n_tail;
    return kvl_table_top_keys(ctx, &top);
}

/* compat: maxima begin at zero, and the partial block has zeros in it; what clips products is a box of what is
 * negative and what is positive in a vector. */
static int kt_clip(const struct kvl_pctx *ctx, int32_t layer)
{
    const struct kt_opts *o = ctx->opts;
    int32_t n_full = ctx->context_tok / o->block_size;
    struct kvl_rows rows;
    KVL_TRY(kvl_table_write(ctx, o->table, layer, 0, &rows));
    for (int32_t i = 0; i < ctx->shape->n_kv_heads * rows.n_rows; i++) {
        bool clips = kt_clips_products(o), partial = i % rows.n_rows >= n_full;
        float *low = kvl_table_row_out(&rows, i / rows.n_rows, i % rows.n_rows);
        float *high = low + rows.row_elems / 2;
        for (int32_t c = 0; c < rows.row_elems / 2; c++) {
            high[c] = KVL_MAX(clips ? low[c] : high[c], 0.0f);
            if (clips || partial) low[c] = KVL_MIN(low[c], 0.0f);
        }
    }
    return KVL_OK;
}

/* Blocks of the context that are not local, of which preselect keeps the best. */
static int32_t kt_far_blocks(const struct kvl_pctx *ctx)
{
    const struct kt_opts *o = ctx->opts;
    return KVL_MAX(0, ctx->context_tok / o->block_size - o->local_blocks);
}

/* compat: blocks are remembered with their importance. */
static int kt_remember_order(const struct kvl_pctx *ctx, int32_t layer)
{
    const struct kt_opts *o = ctx->opts;
    int32_t n_far = kt_far_blocks(ctx);
    struct kvl_rows order;
    float *block;
    KVL_TRY(kt_block_importance(ctx, layer, n_far, &block));
    KVL_TRY(kvl_table_write(ctx, o->order, layer, 0, &order));
    for (int32_t i = 0; i < ctx->shape->n_kv_heads * n_far; i++)
        *(float *)kvl_table_row_out(&order, i / n_far, i % n_far) = block[i];
    return KVL_OK;
}

static int kt_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct kt_opts *o = ctx->opts;
    if (!kt_selects(o, layer)) return KVL_OK;
    if (o->compat && o->preselect_block) KVL_TRY(kt_remember_order(ctx, layer));
    if (o->representative_type == KT_DYNAMIC) KVL_TRY(kt_dynamic(ctx, layer));
    return o->compat && (kt_pair(o) || kt_clips_products(o)) ? kt_clip(ctx, layer) : KVL_OK;
}

/* ---- 2. preselect -------------------------------------------------------------------------------------- */

/* A block's importance is that of each of its tokens: core keeps whole blocks. */
static int kt_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct kt_opts *o = ctx->opts;
    int32_t n_far = kt_far_blocks(ctx);
    float *block;
    scores->keep_tok = scores->n_tok;
    if (!o->preselect_block || n_far <= o->preselect_block_count) return KVL_OK;
    scores->protect_last = scores->n_tok - n_far * o->block_size;
    scores->keep_tok = scores->protect_last + o->preselect_block_count * o->block_size;
    KVL_TRY(kt_block_importance(ctx, layer, n_far, &block));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++, block += n_far)
        for (int32_t t = 0; t < n_far * o->block_size; t++)
            scores->score[(size_t)h * (size_t)scores->n_tok + (size_t)t] = block[t / o->block_size];
    return KVL_OK;
}

/* ---- 3. scores ------------------------------------------------------------------------------------------ */

/* compat: query head h finds the box of kv head h, or one that was never filled: its maximum is 0, its
 * minimum infinite.  `all`: bounds by every head. */
static int kt_unfilled_boxes(const struct kvl_pctx *ctx, const struct kvl_table_bounds *all)
{
    int32_t n = all->n_rows, n_filled = ctx->shape->n_kv_heads, dim = ctx->shape->head_dim;
    struct kvl_table_bounds filled = *all;
    filled.n_lists = n_filled;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_filled * (size_t)n, &filled.bound));
    KVL_TRY(kvl_table_bounds(ctx, &filled));
    memset(all->bound, 0, (size_t)n_filled * (size_t)n * sizeof *all->bound);
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        float *score = all->bound + (size_t)(h / ctx->shape->group) * (size_t)n;
        bool infinite = false;
        for (int32_t c = 0; c < dim; c++) infinite = infinite || all->q[h * dim + c] > 0.0f;
        for (int32_t b = 0; b < n; b++)
            score[b] += h < n_filled ? filled.bound[(size_t)h * (size_t)n + (size_t)b]
                        : infinite   ? 1e30f
                                     : 0.0f;
    }
    return KVL_OK;
}

/* score [n_kv_heads][n_blocks]: the sum over the query heads of each. */
static int kt_head_scores(const struct kvl_pctx *ctx, int32_t layer, const float *q,
                          int32_t n_blocks, float *score)
{
    const struct kt_opts *o = ctx->opts;
    int32_t n_kv = ctx->shape->n_kv_heads, dim = ctx->shape->head_dim,
            type = o->representative_type;
    float *sum;
    struct kvl_table_bounds bounds = { .table = o->table,
                                       .layer = layer,
                                       .n_rows = n_blocks,
                                       .q = q,
                                       .reduce = KVL_REDUCE_SUM,
                                       .bound = score };
    struct kvl_table_scores products = { .table = o->table,
                                         .layer = layer,
                                         .n_rows = n_blocks,
                                         .q = q,
                                         .n_lists = n_kv,
                                         .score = score };
    if (type == KT_QUEST && o->compat && ctx->shape->group > 1)
        return kt_unfilled_boxes(ctx, &bounds);
    if (kt_clips_products(o)) bounds.n_lists = n_kv;
    if (type == KT_QUEST || kt_clips_products(o)) return kvl_table_bounds(ctx, &bounds);
    /* A row holds a vector for each query head: one long product. */
    if (type == KT_DYNAMIC) return kvl_table_scores(ctx, &products);
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(n_kv * dim), &sum));
    KVL_TRY(kvl_group_scores(ctx, q, dim, KVL_REDUCE_SUM, sum));
    products.q = sum;
    products.elems = dim;
    products.first_elem = type == KT_MAX ? dim : 0;
    return kvl_table_scores(ctx, &products);
}

/* score [lists][n_blocks]. */
static int kt_scores(const struct kvl_pctx *ctx, const struct kvl_step *step, const float *q,
                     int32_t n_blocks, float **score)
{
    int32_t n_kv = ctx->shape->n_kv_heads;
    float *head;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_kv * (size_t)n_blocks, &head));
    KVL_TRY(kt_head_scores(ctx, step->layer, q, n_blocks, head));
    *score = head;
    if (((const struct kt_opts *)ctx->opts)->head_select_mode == KT_SEPARATE) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_blocks, score));
    return kvl_layer_scores(ctx, head, n_kv, n_blocks, KVL_REDUCE_SUM, *score);
}

/* ---- selection ----------------------------------------------------------------------------------------- */

/* A list knows of every block before that of the current token: it was dropped, is read in any case, or may be
 * picked. */
enum { KT_GONE, KT_OTHER, KT_READ };

/* state [n]; *n_live of them are not gone.  Preselect drops whole blocks; where a wrapper drops parts of some, a
 * block is there while its first token is. */
static int kt_live(const struct kvl_pctx *ctx, int32_t layer, int32_t list, int32_t n,
                   uint8_t *state, int32_t *n_live)
{
    const struct kt_opts *o = ctx->opts;
    const int32_t *pos;
    int32_t n_pos;
    memset(state, o->preselect_block ? KT_GONE : KT_OTHER, (size_t)n);
    *n_live = o->preselect_block ? 0 : n;
    if (!o->preselect_block) return KVL_OK;
    KVL_TRY(kvl_live(ctx, layer, list, &pos, &n_pos));
    for (int32_t i = 0; i < n_pos && pos[i] < n * o->block_size; i++) {
        if (pos[i] % o->block_size != 0) continue;
        state[pos[i] / o->block_size] = KT_OTHER;
        ++*n_live;
    }
    return KVL_OK;
}

/* compat: the most important blocks of the context come first; they are *n. */
static int kt_read_important(const struct kvl_pctx *ctx, int32_t layer, int32_t list,
                             uint8_t *state, int32_t *n)
{
    const struct kt_opts *o = ctx->opts;
    int32_t n_far = kt_far_blocks(ctx), n_live = 0, *best;
    struct kvl_rows order;
    float *x;
    KVL_TRY(kvl_table_read(ctx, o->order, layer, n_far, &order));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_far, &x));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_far, &best));
    for (int32_t b = 0; b < n_far; b++) {
        bool live = state[b] == KT_OTHER;
        x[b] = live ? *(const float *)kvl_table_row(&order, list, b) : -INFINITY;
        n_live += live;
    }
    *n = KVL_MIN(o->init_block_num, n_live);
    KVL_TRY(kvl_topk(ctx, x, 1, n_far, *n, best));
    for (int32_t i = 0; i < *n; i++) state[best[i]] = KT_READ;
    return KVL_OK;
}

/* The first blocks and the local ones are read in any case. */
static int kt_read_ends(const struct kvl_pctx *ctx, int32_t layer, int32_t list, int32_t n,
                        uint8_t *state)
{
    const struct kt_opts *o = ctx->opts;
    int32_t first = 0;
    if (o->compat && o->preselect_block)
        KVL_TRY(kt_read_important(ctx, layer, list, state, &first));
    for (int32_t b = 0; b < n && first < o->init_block_num; b++)
        if (state[b] == KT_OTHER) state[b] = KT_READ, first++;
    for (int32_t b = n - 1, last = 0; b >= 0 && last < o->local_blocks; b--)
        if (state[b] == KT_OTHER) state[b] = KT_READ, last++;
    return KVL_OK;
}

/* All blocks of a list are read. */
static bool kt_fits(const struct kt_opts *o, int32_t n_live)
{
    return n_live <= o->init_block_num + o->second_block_count + o->local_blocks;
}

/* The best of the others, and from the block of the current token on.  score [n]: for whoever listens, those that
 * could not be picked lose theirs. */
static int kt_list(const struct kvl_pctx *ctx, const struct kvl_step *step, int32_t list, int32_t n,
                   float *score, struct kvl_sel *sel)
{
    const struct kt_opts *o = ctx->opts;
    enum kvl_scope scope = o->head_select_mode == KT_SHARED ? KVL_SCOPE_LAYER : KVL_SCOPE_KV_HEAD;
    int32_t size = o->block_size, n_live, *best;
    uint8_t *state;
    float *x;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &state));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &best));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &x));
    KVL_TRY(kt_live(ctx, step->layer, list, n, state, &n_live));
    KVL_TRY(kt_read_ends(ctx, step->layer, list, n, state));
    for (int32_t b = 0; b < n; b++)
        if (state[b] != KT_OTHER) score[b] = -INFINITY;
    /* compat: the heap prefers later blocks of one score: they are shown to top-k back to front. */
    for (int32_t b = 0; b < n; b++) x[b] = score[o->compat ? n - 1 - b : b];
    int32_t k = kt_fits(o, n_live) ? 0 : o->second_block_count;
    KVL_TRY(kvl_topk(ctx, x, 1, n, k, best));
    for (int32_t i = 0; i < k; i++) state[o->compat ? n - 1 - best[i] : best[i]] = KT_READ;
    for (int32_t b = 0; b < n; b++)
        if (state[b] == KT_READ || (k == 0 && state[b] == KT_OTHER))
            KVL_TRY(kvl_sel_range(sel, scope, list, b * size, (b + 1) * size));
    return kvl_sel_range(sel, scope, list, n * size, step->pos + 1);
}

static int kt_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    const struct kt_opts *o = ctx->opts;
    return step->layer < o->dense_layer_num ? KVL_DENSE : KVL_SELECT;
}

static int kt_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                     struct kvl_sel *sel)
{
    const struct kt_opts *o = ctx->opts;
    int32_t n = step->pos / o->block_size, n_live; /* blocks before that of the current token */
    uint8_t *state;
    float *score;
    if (o->preselect_block && o->second_block_count > o->preselect_block_count) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &state));
    bool all = true; /* lanes differ where adakv wraps this policy */
    for (int32_t i = 0; i < kt_lists(ctx) && all; i++) {
        KVL_TRY(kt_live(ctx, step->layer, i, n, state, &n_live));
        all = kt_fits(o, n_live);
    }
    if (all) return KVL_OK;
    KVL_TRY(kt_scores(ctx, step, q->q, n, &score));
    for (int32_t i = 0; i < kt_lists(ctx); i++)
        KVL_TRY(kt_list(ctx, step, i, n, score + (size_t)i * (size_t)n, sel));
    struct kvl_scored scored = { .scope = kt_lists(ctx) > 1 ? KVL_SCOPE_KV_HEAD : KVL_SCOPE_LAYER,
                                 .unit_tok = o->block_size,
                                 .n = n,
                                 .score = score };
    KVL_TRY(kvl_tap_scores(ctx, step, &scored));
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
    .follows = "The long-context mode as its document describes it, every option, with the "
               "tutorial's values: block 128, local 4096, 96 blocks picked in every step and "
               "layer, DYNAMIC, SHARED. The shipped configuration is "
               "preselect_block=true,token_step=100,dense_layer_num=2,second_block_count=32. "
               "compat=true brings back the errors of the published code: clipped maxima, boxes "
               "not filled on grouped queries, representatives never updated, importance without a "
               "causal mask, first blocks by importance, sums clipped per channel. block_size=1 "
               "with preselect is snapkv with kernel=1; QUEST with SEPARATE is quest.",
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
