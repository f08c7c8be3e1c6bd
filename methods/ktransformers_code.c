/* ktransformers_code - KTransformers' long-context mode as the published code computes it, with its errors.
 *
 * kvcache-ai/ktransformers, kt-kernel/operators/kvcache.  Steps and budget are those of ktransformers.c; otherwise are
 *   importance              only queries of the last chunk of the prefill count, without a causal mask among them
 *   calc_anchor_all_layers  representatives are made once, after the prefill: blocks that fill up later keep them, new
 *       ones have zeros.  Maxima begin at zero, and the partial block has zeros in it.  DYNAMIC is a sum, not a mean; of
 *       several representatives all but the first are zero, which clips products at zero, channel by channel.  QUEST
 *       fills the boxes of as many query heads as there are kv heads, each with that of the kv head of its number; the
 *       others have maximum 0 and an infinite minimum
 *   preselection            leaves blocks in the order of their importance: the first blocks are the most important
 *   select_block_layer_     its heap keeps the later of two blocks of one score
 * Not reproduced: lists that name a block twice, what depends on stale memory (lists that dense layers overwrite,
 * SEPARATE lists that are cut when reused), ranks 1 to 5 of layer 31 forced on all others, DYNAMIC's division by 4 on
 * quantised keys, and in the attention kernel half floats, softmax without its maximum, -|lse| < 1e-6 as "empty". */
#include "parts/blocks.h"

#include <string.h>

enum { KTC_CHUNK_TOK = 4096 }; /* of the published prefill */

struct ktc_opts {
    struct kvl_blocks blocks;
    int32_t order; /* not an option: preselect's table, importance of every block of the context */
};

static const struct kvl_opt ktc_options[] = { KVL_BLOCK_ROWS, { 0 } };

/* Several representatives of which all but the first are zero: rows are boxes, of what is negative and what is
 * positive in a vector. */
static bool ktc_clips_products(const struct ktc_opts *o)
{
    return o->blocks.representative_type == KVL_BLOCK_DYNAMIC && o->blocks.representative_num > 1;
}

static int ktc_plan(struct kvl_plan *plan)
{
    struct ktc_opts *o = plan->opts;
    int32_t group = o->blocks.representative_type == KVL_BLOCK_DYNAMIC ? plan->shape->group : 1;
    uint8_t *selects;
    KVL_TRY(kvl_plan_blocks(plan, &o->blocks, &selects));
    int32_t vectors = kvl_blocks_pair(&o->blocks) || ktc_clips_products(o) ? 2 * group : group;
    KVL_TRY(kvl_plan_table(plan, &o->blocks.table, .unit = KVL_META_PAGE,
                           .unit_tok = o->blocks.block_size,
                           .row_elems = vectors * plan->shape->head_dim, .layers = selects));
    if (!o->blocks.preselect_block) return KVL_OK;
    return kvl_plan_table(plan, &o->order, .unit = KVL_META_PAGE, .unit_tok = o->blocks.block_size,
                          .row_elems = 1, .layers = selects);
}

/* mass [n_heads][context_tok]. */
static int ktc_importance(const struct kvl_pctx *ctx, int32_t layer, const float **mass)
{
    const struct ktc_opts *o = ctx->opts;
    int32_t chunk = (ctx->context_tok - 1) % KTC_CHUNK_TOK + 1;
    return kvl_obs_window_unmasked(ctx, layer, KVL_MIN(o->blocks.importance_window, chunk), mass);
}

/* ---- calc_anchor_all_layers() ------------------------------------------------------------------------ */

static int ktc_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                      const float *v)
{
    const struct ktc_opts *o = ctx->opts;
    (void)v;
    if (!kvl_blocks_selects(&o->blocks, step->layer) || !step->replay) return KVL_OK;
    return o->blocks.representative_type == KVL_BLOCK_DYNAMIC
               ? KVL_OK
               : kvl_blocks_keys(ctx, &o->blocks, step, k);
}

/* Per query head the sum of the most important keys of each block of the context, the partial one, too. */
static int ktc_dynamic(const struct kvl_pctx *ctx, int32_t layer)
{
    const struct ktc_opts *o = ctx->opts;
    int32_t size = o->blocks.block_size;
    struct kvl_table_top_keys top = { .table = o->blocks.table,
                                      .layer = layer,
                                      .n = ctx->context_tok / size,
                                      .unit_tok = size,
                                      .k = o->blocks.representative_num,
                                      .sum = true,
                                      .stride = (size_t)ctx->context_tok };
    KVL_TRY(ktc_importance(ctx, layer, &top.score));
    KVL_TRY(kvl_table_top_keys(ctx, &top));
    if (ctx->context_tok % size == 0) return KVL_OK;
    top.row = top.n;
    top.first_tok = top.n * size;
    top.score += top.first_tok;
    top.n = 1;
    top.unit_tok = ctx->context_tok % size;
    return kvl_table_top_keys(ctx, &top);
}

/* Maxima begin at zero, and the partial block has zeros in it; what clips products becomes a box of what is negative
 * and what is positive in a vector. */
static int ktc_clip(const struct kvl_pctx *ctx, int32_t layer)
{
    const struct ktc_opts *o = ctx->opts;
    int32_t n_full = ctx->context_tok / o->blocks.block_size;
    struct kvl_rows rows;
    KVL_TRY(kvl_table_write(ctx, o->blocks.table, layer, 0, &rows));
    for (int32_t i = 0; i < ctx->shape->n_kv_heads * rows.n_rows; i++) {
        bool clips = ktc_clips_products(o), partial = i % rows.n_rows >= n_full;
        float *low = kvl_table_row_out(&rows, i / rows.n_rows, i % rows.n_rows);
        float *high = low + rows.row_elems / 2;
        for (int32_t c = 0; c < rows.row_elems / 2; c++) {
            high[c] = KVL_MAX(clips ? low[c] : high[c], 0.0f);
            if (clips || partial) low[c] = KVL_MIN(low[c], 0.0f);
        }
    }
    return KVL_OK;
}

static int ktc_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct ktc_opts *o = ctx->opts;
    const float *mass;
    if (!kvl_blocks_selects(&o->blocks, layer)) return KVL_OK;
    if (o->blocks.preselect_block) {
        KVL_TRY(ktc_importance(ctx, layer, &mass));
        KVL_TRY(kvl_blocks_remember(ctx, &o->blocks, layer, mass, o->order));
    }
    if (o->blocks.representative_type == KVL_BLOCK_DYNAMIC) KVL_TRY(ktc_dynamic(ctx, layer));
    return kvl_blocks_pair(&o->blocks) || ktc_clips_products(o) ? ktc_clip(ctx, layer) : KVL_OK;
}

/* ---- preselection ------------------------------------------------------------------------------------- */

static int ktc_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    return kvl_blocks_preselect(ctx, ctx->opts, layer, ktc_importance, scores);
}

/* ---- calculate_block_similarity_layer_(), select_block_layer_() ---------------------------------------- */

/* QUEST on grouped queries: query head h finds the box of kv head h, or one that was never filled. */
static int ktc_unfilled_boxes(const struct kvl_pctx *ctx, const struct kvl_table_bounds *all)
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

static int ktc_head_scores(const struct kvl_pctx *ctx, int32_t layer, const float *q, int32_t n,
                           float *score)
{
    const struct ktc_opts *o = ctx->opts;
    struct kvl_table_bounds bounds = { .table = o->blocks.table,
                                       .layer = layer,
                                       .n_rows = n,
                                       .q = q,
                                       .reduce = KVL_REDUCE_SUM,
                                       .bound = score };
    if (o->blocks.representative_type == KVL_BLOCK_QUEST && ctx->shape->group > 1)
        return ktc_unfilled_boxes(ctx, &bounds);
    if (!ktc_clips_products(o)) return kvl_blocks_scores(ctx, &o->blocks, layer, q, n, score);
    bounds.n_lists = ctx->shape->n_kv_heads;
    return kvl_table_bounds(ctx, &bounds);
}

static int ktc_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                      struct kvl_sel *sel)
{
    const struct ktc_opts *o = ctx->opts;
    const struct kvl_blocks *b = &o->blocks;
    struct kvl_block_choice choice = { .later = true,
                                       .order = b->preselect_block ? &o->order : NULL };
    KVL_TRY(kvl_blocks_room(ctx, b, step, &choice));
    if (!choice.score) return KVL_OK;
    KVL_TRY(ktc_head_scores(ctx, step->layer, q->q, step->pos / b->block_size, choice.score));
    return kvl_sel_blocks(ctx, b, step, &choice, sel);
}

static const struct kvl_policy ktransformers_code = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "ktransformers_code",
    .title = "KTransformers (published code)",
    .paper = "kvcache-ai, KTransformers, long-context mode, 2024",
    .help = "ktransformers with the errors of the published code",
    .follows = "The published code where it errs: clipped maxima, boxes not filled on grouped "
               "queries, representatives never updated, importance without a causal mask, first "
               "blocks by importance, sums clipped per channel, later blocks of equal scores. All "
               "else, and the options, are those of ktransformers.",
    .deviations = "Left out: what depends on stale memory, lists that name a block twice, and the "
                  "rule for layer 31 of 32. The block of the current token is read beside the "
                  "local ones.",
    .cost = "As ktransformers; of layers that select 2 d floats per block and kv head with QUEST "
            "and MAX, with several representatives of DYNAMIC 2 H / K d, and with preselect one "
            "more per block, read in every step.",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_SELECTS | KVL_CAP_SHARES_META | KVL_CAP_OFFLOADS,
    .opts = ktc_options,
    .opts_size = sizeof(struct ktc_opts),
    .min_budget = kvl_blocks_min_budget,
    .plan = ktc_plan,
    .append = ktc_append,
    .prefilled = ktc_prefilled,
    .schedule = kvl_blocks_schedule,
    .score = ktc_score,
    .select = ktc_select,
};

KVL_POLICY_EXPORT(ktransformers_code)
