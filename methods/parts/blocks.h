/* blocks.h - a step reads blocks of tokens: the first ones, the latest ones and the best of the others, in layers
 * and steps of which some share a list (KTransformers).
 *
 * A block is block_size positions.  Full blocks before that of the current token count; the current one is read from
 * its first token on.  A block is there while its first token is live: where preselect dropped blocks, the first and
 * the latest ones are those of what is left.
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_BLOCKS_H
#define KVL_BLOCKS_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The options that say which: the first member of a policy's, and rows of its table; what is auto is written back. */
struct kvl_blocks {
    int32_t block_size, local_windows_len, second_block_count, init_block_num;
    bool preselect_block;
    int32_t preselect_block_count, token_step, layer_step, dense_layer_num;
    int32_t head_select_mode; /* 0: one list for the layer, 1: one per kv head */
    bool offload;
    int32_t representative_type, representative_num, importance_window;
    /* not options */
    int32_t local; /* blocks of local_windows_len, from plan */
    int32_t table; /* representatives; a policy's to declare */
};
/* What stands for a block: of its keys the channel maximum, the sum of all, minimum and maximum, the mean of the most
 * important ones under each query head, the sum of those at a fixed stride. */
enum { KVL_BLOCK_MAX, KVL_BLOCK_MEAN, KVL_BLOCK_QUEST, KVL_BLOCK_DYNAMIC, KVL_BLOCK_FIXED };
#define KVL_BLOCK_TYPES ((const char *const[]){ "MAX", "MEAN", "QUEST", "DYNAMIC", "FIXED", NULL })
#define KVL_BLOCK_MODES ((const char *const[]){ "SHARED", "SEPARATE", NULL })
#define KVL_BLOCK_ROWS                                                                             \
    KVL_ROW_INT(kvl_blocks, block_size, "auto", 1, 4096,                                           \
                "tokens per block (published: 128); auto = largest power of two up to budget / "   \
                "32, within 4 and 128"),                                                           \
        KVL_ROW_INT(kvl_blocks, local_windows_len, "auto", 0, 1 << 30,                             \
                    "latest tokens that are always read, in whole blocks (published: 4096); auto " \
                    "= a quarter of the blocks"),                                                  \
        KVL_ROW_INT(kvl_blocks, second_block_count, "auto", 1, 1 << 24,                            \
                    "blocks picked by a selection (published: 96, shipped: 32); auto = what the "  \
                    "budget leaves",                                                               \
                    .alias = "second_select_num"),                                                 \
        KVL_ROW_INT(kvl_blocks, init_block_num, "auto", 0, 1 << 20,                                \
                    "first blocks that are always read; auto = published: 1, or 64 tokens of "     \
                    "blocks up to 32, at most an eighth of the blocks"),                           \
        KVL_ROW_BOOL(kvl_blocks, preselect_block, "false",                                         \
                     "drop all but the best blocks when the context is complete (tutorial: "       \
                     "false, shipped: true)"),                                                     \
        KVL_ROW_INT(kvl_blocks, preselect_block_count, "auto", 1, 1 << 24,                         \
                    "blocks that preselect keeps beside the local ones; auto = init_block_num + "  \
                    "second_block_count"),                                                         \
        KVL_ROW_INT(kvl_blocks, token_step, "1", 1, 1 << 20,                                       \
                    "steps that a selection serves (tutorial: 1, shipped: 100)"),                  \
        KVL_ROW_INT(kvl_blocks, layer_step, "1", 1, 1024,                                          \
                    "layers that a selection serves (published: 1)"),                              \
        KVL_ROW_INT(kvl_blocks, dense_layer_num, "0", 0, 1024,                                     \
                    "first layers that read everything (tutorial: 0, shipped: 2)"),                \
        KVL_ROW_ENUM(kvl_blocks, head_select_mode, "SHARED", KVL_BLOCK_MODES,                      \
                     "SHARED: one list per layer; SEPARATE: one per kv head (published: SHARED)"), \
        KVL_ROW_BOOL(kvl_blocks, offload, "false",                                                 \
                     "blocks but the first and the local ones live on the host, where --device "   \
                     "hybrid attends them, as published; other devices fetch what a step reads"),  \
        KVL_ROW_ENUM(kvl_blocks, representative_type, "DYNAMIC", KVL_BLOCK_TYPES,                  \
                     "what stands for a block: channel maximum, mean key, minimum and maximum, "   \
                     "mean of the most important tokens of each query head, mean of tokens at a "  \
                     "fixed stride (published: DYNAMIC)",                                          \
                     .alias = "anchor_type"),                                                      \
        KVL_ROW_INT(kvl_blocks, representative_num, "auto", 1, 4096,                               \
                    "tokens of DYNAMIC and FIXED (published: 1); auto = 1, QUEST: 2",              \
                    .alias = "anchor_num"),                                                        \
        KVL_ROW_INT(kvl_blocks, importance_window, "128", 1, 65536,                                \
                    "last queries of the context whose attention is a token's importance "         \
                    "(published: 128)")

/* Hooks of such a policy: the least budget that the options fit into; layers that read everything. */
int32_t kvl_blocks_min_budget(const struct kvl_shape *shape, const void *opts);
int kvl_blocks_schedule(struct kvl_pctx *ctx, const struct kvl_step *step);
/* In plan: sizes from the budget, what lives on the host, the observer that preselect and DYNAMIC ask for.
 * selects [n_layers]: layers that make a list, for themselves and those that share it; lives until plan returns.
 * KVL_EINVAL where the budget leaves nothing to pick, or representative_num does not suit its type. */
int kvl_plan_blocks(struct kvl_plan *plan, struct kvl_blocks *b, uint8_t **selects);
/* Such a layer. */
bool kvl_blocks_selects(const struct kvl_blocks *b, int32_t layer);

/* ---- representatives --------------------------------------------------------------------------- */

/* They are a minimum and a maximum: rows of b->table are [2][head_dim]; of the others [head_dim], of DYNAMIC a vector
 * for each query head of a group. */
bool kvl_blocks_pair(const struct kvl_blocks *b);
/* In append: keys k of this step go into b->table.  MEAN and FIXED: sums, in proportion to their mean since all blocks
 * are of one size.  DYNAMIC: the mean key of a block that is full, for every query head. */
int kvl_blocks_keys(const struct kvl_pctx *ctx, const struct kvl_blocks *b,
                    const struct kvl_step *step, const float *k);
/* score [n_kv_heads][n] of the first n blocks: sum over query heads and channels of the maximum over representatives of
 * q_c r_c. */
int kvl_blocks_scores(const struct kvl_pctx *ctx, const struct kvl_blocks *b, int32_t layer,
                      const float *q, int32_t n, float *score);

/* ---- preselect --------------------------------------------------------------------------------- */

/* *mass [n_heads][context_tok]: what is put on each token of the context. */
typedef int (*kvl_importance_fn)(const struct kvl_pctx *ctx, int32_t layer, const float **mass);
/* In score: of the blocks of the context that are not local, where they are more, the preselect_block_count stay for
 * which the mean of `importance` is largest: over a block, a quarter of a block on either side, and the heads of a
 * list.  It is not asked where everything stays. */
int kvl_blocks_preselect(const struct kvl_pctx *ctx, const struct kvl_blocks *b, int32_t layer,
                         kvl_importance_fn importance, struct kvl_scores *scores);
/* In prefilled: these means go into a table of one float per block. */
int kvl_blocks_remember(const struct kvl_pctx *ctx, const struct kvl_blocks *b, int32_t layer,
                        const float *mass, int32_t table);

/* ---- selection --------------------------------------------------------------------------------- */

struct kvl_block_choice {
    float *score; /* [n_kv_heads][n], n = step->pos / block_size */
    bool later;   /* of equal scores the later block, not the earlier one */
    /* NULL: the first blocks are so by position.  Else the table of kvl_blocks_remember: as far as there are blocks in
     * it, they are those of largest mean. */
    const int32_t *order;
};
/* In select: room for choice->score; NULL: everything is read, for all blocks of every list are to be read, or more are
 * to be picked than preselect leaves. */
int kvl_blocks_room(const struct kvl_pctx *ctx, const struct kvl_blocks *b,
                    const struct kvl_step *step, struct kvl_block_choice *choice);
/* The selection of this layer, and of the layers and steps that share it: by the scores of a kv head, or their sum
 * over the kv heads. */
int kvl_sel_blocks(const struct kvl_pctx *ctx, const struct kvl_blocks *b,
                   const struct kvl_step *step, const struct kvl_block_choice *choice,
                   struct kvl_sel *sel);

#ifdef __cplusplus
}
#endif

#endif
