/* ktransformers - blocks of tokens, chosen by representative keys: KTransformers' long-context mode.
 *
 * kvcache-ai/ktransformers: "KVCache Long Context" (doc/en/long_context_introduction.md, 2024), in the order of its
 * chapters "Framework Prototype" and "Further Optimizations".  What the published code computes otherwise is
 * ktransformers_code.
 *   KVCache Partitioning          Initial, Context, Local: a step reads the first blocks, the latest local_windows_len
 *                                 tokens in whole blocks and the block of the current token
 *   Context Block Partitioning    of the blocks between, one vector or two stand for the keys of each, per kv head
 *                                 (Dynamic: per query head):
 *       Max       channel maximum           Quest   channel maximum and minimum
 *       Mean      mean key                  Fix     mean of representative_num tokens at a fixed stride
 *       Dynamic   mean of the representative_num most important tokens; importance is the attention of the last 128
 *                 queries of the context
 *     and a step reads the second_block_count blocks of largest similarity, which is
 *       sum over heads and channels of max over representatives of q_c r_c
 *     SHARED: over all heads, one list for the layer; SEPARATE: one list per kv head
 *   Preselection                  when the context is complete, all but the preselect_block_count blocks of largest
 *                                 mean importance (with a quarter of a block on either side) and the local ones go
 *   token_step, layer_step        a selection serves layer_step layers and token_step steps, and the tokens that come
 *                                 meanwhile are read too; the first dense_layer_num layers read everything
 * Everything is read when all blocks fit, or when more are to be picked than preselection leaves.
 *
 * Budget B: (init + picked + local + 1) block_size + token_step - 1, the block of the current token and what comes
 * until the next selection included. */
#include "parts/blocks.h"
#include "parts/unit_keys.h"

static const struct kvl_opt kt_options[] = { KVL_BLOCK_ROWS, { 0 } };

static int kt_plan(struct kvl_plan *plan)
{
    struct kvl_blocks *b = plan->opts;
    int32_t vectors = kvl_blocks_pair(b)                            ? 2
                      : b->representative_type == KVL_BLOCK_DYNAMIC ? plan->shape->group
                                                                    : 1;
    uint8_t *selects;
    KVL_TRY(kvl_plan_blocks(plan, b, &selects));
    return kvl_plan_table(plan, &b->table, .unit = KVL_UNIT_PAGE, .unit_tok = b->block_size,
                          .row_elems = vectors * plan->shape->head_dim,
                          .elem = kvl_blocks_pair(b) ? KVL_ELEM_KEY : KVL_ELEM_F32,
                          .layers = selects);
}

/* mass [n_heads][context_tok]: importance, what the last queries attend to. */
static int kt_importance(const struct kvl_pctx *ctx, int32_t layer, const float **mass)
{
    const struct kvl_blocks *b = ctx->opts;
    int32_t n = ctx->context_tok;
    return kvl_obs_window_mass(ctx, layer, KVL_MIN(b->importance_window, n), mass, &n);
}

/* ---- Context Block Partitioning: get_representative_tokens(); code: calc_anchor_all_layers() --------- */

/* DYNAMIC: full blocks of the context are kt_prefilled's, the partial one goes on being filled. */
static int kt_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                     const float *v)
{
    const struct kvl_blocks *b = ctx->opts;
    int32_t full = ctx->context_tok / b->block_size * b->block_size;
    bool later = b->representative_type == KVL_BLOCK_DYNAMIC && step->replay;
    (void)v;
    if (!kvl_blocks_selects(b, step->layer)) return KVL_OK;
    if (later && step->pos + step->n_tok <= full) return KVL_OK;
    return kvl_blocks_keys(ctx, b, step, k);
}

/* DYNAMIC: per query head the mean of the most important keys of each block of the context. */
static int kt_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct kvl_blocks *b = ctx->opts;
    struct kvl_unit_top_keys top = { .table = b->table,
                                     .layer = layer,
                                     .n = ctx->context_tok / b->block_size,
                                     .unit_tok = b->block_size,
                                     .k = b->representative_num,
                                     .stride = (size_t)ctx->context_tok };
    if (b->representative_type != KVL_BLOCK_DYNAMIC || !kvl_blocks_selects(b, layer)) return KVL_OK;
    KVL_TRY(kt_importance(ctx, layer, &top.score));
    return kvl_unit_top_keys(ctx, &top);
}

/* ---- Further Optimizations: preselect_block() ------------------------------------------------------ */

static int kt_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    return kvl_blocks_preselect(ctx, ctx->opts, layer, kt_importance, scores);
}

/* ---- decode_attention(): retrieval_kvcache(); code: select_block_layer_() ----------------------------- */

/* By similarity, calculate_block_similarity_layer_(); kvl_sel_blocks keeps the list for the layers and steps that
 * it serves. */
static int kt_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                     struct kvl_sel *sel)
{
    const struct kvl_blocks *b = ctx->opts;
    struct kvl_block_choice choice = { 0 };
    KVL_TRY(kvl_blocks_room(ctx, b, step, &choice));
    if (!choice.score) return KVL_OK;
    KVL_TRY(kvl_blocks_scores(ctx, b, step->layer, q->q, step->pos / b->block_size, choice.score));
    return kvl_sel_blocks(ctx, b, step, &choice, sel);
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
               "preselect_block=true, token_step=100, dense_layer_num=2, second_block_count=32. "
               "block_size=1 with preselect is snapkv with kernel=1; QUEST with SEPARATE is quest. "
               "The errors of the published code are in the method ktransformers_code.",
    .deviations =
        "DYNAMIC: blocks that fill up while decoding are represented by their mean key. With as "
        "many blocks to pick as preselection leaves it chooses among them and later ones, as the "
        "code does; the document then reads what preselection left. The block "
        "of the current token is read beside the local ones. Blocks lie on the device; with "
        "offload=true all but the first and the local ones lie on the host, as published, where "
        "the CPU attends to them under --device hybrid.",
    .cost =
        "Per step and selecting layer one vector (QUEST two, DYNAMIC one per query head) of d for "
        "each of n / block_size blocks per kv head, and a top-k; a new token updates one row. "
        "Nothing in layers and steps that share a selection. Once the keys; with DYNAMIC or "
        "preselect 128 queries over n keys for each of H heads. Memory: d floats (QUEST and MAX 2 "
        "d of the cache's type, DYNAMIC H / K d) per block and kv head of the layers that select.",
    .version = 1,
    .caps =
        KVL_CAP_EVICTS | KVL_CAP_SELECTS | KVL_CAP_SHARES_META | KVL_CAP_OFFLOADS | KVL_CAP_ASYNC,
    .opts = kt_options,
    .opts_size = sizeof(struct kvl_blocks),
    .min_budget = kvl_blocks_min_budget,
    .plan = kt_plan,
    .append = kt_append,
    .prefilled = kt_prefilled,
    .schedule = kvl_blocks_schedule,
    .score = kt_score,
    .select = kt_select,
};

KVL_POLICY_EXPORT(ktransformers)
