/* kvl/select.h - what attention reads and what is kept: selections, scores, evictions, masks of a prefill.
 *
 * Part of kvl/policy.h. */
#ifndef KVL_POLICY_SELECT_H
#define KVL_POLICY_SELECT_H

#include "kvl/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvl_pctx;
struct kvl_query;
struct kvl_step;

/* ---- selection ----------------------------------------------------------------------------- */

enum kvl_scope {
    KVL_SCOPE_LAYER = 0, /* one list for the layer */
    KVL_SCOPE_KV_HEAD,   /* one list per kv head */
    KVL_SCOPE_Q_HEAD,    /* one list per query head; reads of a kv head are counted per list */
};

enum kvl_pos_mode {
    KVL_POS_ORIGINAL = 0,
    KVL_POS_IN_CACHE, /* a key's position is its rank among the keys of the list, the query's is the
                         last rank (StreamingLLM); needs raw keys */
    KVL_POS_CONSTANT, /* every key at distance `arg` from the query (InfLLM); needs raw keys */
    /* A key's position is its own / arg, rounded down; the query's is what kvl_sel_query_position says
     * (SelfExtend); needs raw keys. */
    KVL_POS_GROUPED,
};

/* Arrives as one segment with everything live.  The first kvl_sel_* call that names items replaces
 * it.  The current token is added by the engine. */
struct kvl_sel;

/* A list is what its calls name, together: positions or pages once, and any number of ranges before or behind
 * them, which may overlap.  In place of a list, KVL_ALL_LISTS names the same ranges for all lists of `scope`. */
#define KVL_ALL_LISTS (-1)

/* One list of `scope`: n ascending, unique, live positions. */
KVL_API int kvl_sel_tokens(struct kvl_sel *sel, enum kvl_scope scope, int32_t list,
                           const int32_t *pos, int32_t n);
/* One list of pages of page_tok positions each, ascending and unique. */
KVL_API int kvl_sel_pages(struct kvl_sel *sel, enum kvl_scope scope, int32_t list, int32_t page_tok,
                          const int32_t *page, int32_t n);
/* All lists of `scope` at once: the k best of n scores [n_lists][n]; ties to the lower index. */
KVL_API int kvl_sel_top_tokens(struct kvl_sel *sel, enum kvl_scope scope, const float *score,
                               int32_t n, int32_t k);
/* The k best of n_pages pages.  `last` forces the newest page in (it counts as one of the k). */
KVL_API int kvl_sel_top_pages(struct kvl_sel *sel, enum kvl_scope scope, const float *score,
                              int32_t n_pages, int32_t k, int32_t page_tok, bool last);
/* Of the segment being built. */
KVL_API int kvl_sel_positions(struct kvl_sel *sel, enum kvl_pos_mode mode, int32_t arg);
/* Additive log-weights of a list of positions alone, as long as it is (MagicPIG, vAttention). */
KVL_API int kvl_sel_log_weights(struct kvl_sel *sel, enum kvl_scope scope, int32_t list,
                                const float *log_weight, int32_t n);
/* Positions first .. last - 1 that are live, added to one list of `scope`.  Costs O(1) where all of them are live
 * and the list is made of ranges that come in ascending order.  A range that includes the current token, in a
 * selection that is shared, also has the tokens that come later. */
KVL_API int kvl_sel_range(struct kvl_sel *sel, enum kvl_scope scope, int32_t list, int32_t first,
                          int32_t last);
/* The first n positions, or as many as there are; the last n, the current one included. */
KVL_API int kvl_sel_first(struct kvl_sel *sel, enum kvl_scope scope, int32_t list, int32_t n);
KVL_API int kvl_sel_recent(struct kvl_sel *sel, enum kvl_scope scope, int32_t list, int32_t n);
/* KVL_POS_GROUPED: where the query stands in the segment being built. */
KVL_API int kvl_sel_query_position(struct kvl_sel *sel, int32_t pos);
/* Keys that attention reads in place of the stored ones, for a list of positions alone, given before: keys
 * [n][head_dim] after RoPE, as float (ShadowKV: rebuilt from low rank); the current token, should the
 * engine add it to the list, has its own.  Not for a list of the whole layer.  Values are the stored ones
 * and alone are counted as read: what the keys were made of is the policy's to count. */
KVL_API int kvl_sel_keys(struct kvl_sel *sel, enum kvl_scope scope, int32_t list, const float *keys,
                         int32_t n);
/* Entries that stand for several tokens, for one kv head: with logit [group][n] and value
 * [n][head_dim], entry i weighs exp(logit) like a token (RetroInfer: logit = q.centroid / sqrt(d) +
 * ln(size), value = mean of the values).  A segment of its own in the merge, of which `observe` sees
 * nothing.  The values are counted here as index bytes, what the logits were made of is not. */
KVL_API int kvl_sel_pseudo(struct kvl_sel *sel, int32_t kv_head, const float *logit,
                           const float *value, int32_t n);
/* out = alpha out + (1 - alpha) value, for every query head, behind everything else (SparQ):
 * alpha [n_heads], value [n_kv_heads][head_dim]. */
KVL_API int kvl_sel_residual(struct kvl_sel *sel, const float *alpha, const float *value);
/* What all query heads of a kv head would read together of what `sel` holds now, and the current token: ascending
 * positions, valid until the hook returns.  For policies that prune what another chose. */
KVL_API int kvl_sel_view_group(struct kvl_sel *sel, int32_t kv_head, const int32_t **pos,
                               int32_t *n);
/* Empties the selection. */
KVL_API int kvl_sel_clear(struct kvl_sel *sel);
/* Starts another segment (empty); segments are merged by log-sum-exp and must not overlap. */
KVL_API int kvl_sel_segment(struct kvl_sel *sel);
/* Declares that this selection also serves the layers up to layer_last, and n_steps steps from this
 * one on; the engine does not ask again. */
KVL_API int kvl_sel_share(struct kvl_sel *sel, int32_t layer_last, int32_t n_steps);
/* In observe: what layers layer_first .. layer_last, behind this one, read in this step: one list of n
 * ascending, unique, live positions and the current token.  `select` is not asked there. */
KVL_API int kvl_select_ahead(const struct kvl_pctx *ctx, const struct kvl_step *step,
                             int32_t layer_first, int32_t layer_last, const int32_t *pos,
                             int32_t n);

/* ---- keep: eviction while decoding ---------------------------------------------------------- */

/* Arrives as "keep everything live"; a lane that is not named keeps all.  kv_head -1 = all heads. */
struct kvl_keep;
/* Keeps the live positions in [first, last). Several calls add up. */
KVL_API int kvl_keep_range(struct kvl_keep *keep, int32_t kv_head, int32_t first, int32_t last);
/* Keeps n ascending, unique, live positions. */
KVL_API int kvl_keep_tokens(struct kvl_keep *keep, int32_t kv_head, const int32_t *pos, int32_t n);
/* Keeps the k best of the first n live tokens by score [n], ties to the lower position; once per kv head, and not
 * beside kvl_keep_tokens.  A hook that looks at nothing (KVL_CAP_ASYNC) is not waited for: the lane is cut when the
 * step's results are there. */
KVL_API int kvl_keep_top(struct kvl_keep *keep, int32_t kv_head, const float *score, int32_t n,
                         int32_t k);

/* ---- sparse prefill ----------------------------------------------------------------------------- */

/* What the queries of a chunk of the context may read, per query head (-1: all heads): arrives as
 * dense; always within the causal triangle, and always the token itself.  Several calls for a head add
 * up.  Lists are ascending and unique, and are copied. */
struct kvl_prefill_mask;
KVL_API int kvl_mask_window(struct kvl_prefill_mask *mask, int32_t q_head, int32_t sink,
                            int32_t window);
/* Columns (positions) and diagonals (distance of a query to a key). */
KVL_API int kvl_mask_vertical_slash(struct kvl_prefill_mask *mask, int32_t q_head,
                                    const int32_t *vertical, int32_t n_vertical,
                                    const int32_t *slash, int32_t n_slash);
/* Blocks of block_tok keys for every block of block_tok queries of the chunk: CSR, off [n_blocks + 1]. */
KVL_API int kvl_mask_blocks(struct kvl_prefill_mask *mask, int32_t q_head, int32_t block_tok,
                            const int32_t *off, const int32_t *block, int32_t n_blocks);
/* Ranges of positions in place of blocks: range [off[n_blocks]][2], first and last + 1, ascending, with a gap
 * between two; a head has blocks or ranges, once. */
KVL_API int kvl_mask_ranges(struct kvl_prefill_mask *mask, int32_t q_head, int32_t block_tok,
                            const int32_t *off, const int32_t *range, int32_t n_blocks);
/* Diagonals as a kernel reads them that works on whole blocks (MInference): for block_tok queries from position m on
 * diagonal d is the block_tok keys from m - d on (the first ones where d > m); where these touch or overlap the range
 * of a farther diagonal, that grows by block_tok.  slash: ascending and unique.  These are ranges. */
KVL_API int kvl_mask_slash_blocks(struct kvl_prefill_mask *mask, int32_t q_head, int32_t block_tok,
                                  const int32_t *slash, int32_t n_slash);
/* Positions before the chunk, and all of the chunk itself. */
KVL_API int kvl_mask_tokens(struct kvl_prefill_mask *mask, int32_t q_head, const int32_t *pos,
                            int32_t n);

/* In prefill_mask: exact weights of query i of the chunk over positions 0 .. n - 1, n = step->pos + i + 1:
 * probs [n_heads][n].  Counted as pairs that were scored. */
KVL_API int kvl_mask_weights(const struct kvl_pctx *ctx, const struct kvl_step *step,
                             const struct kvl_query *q, int32_t i, float *probs, int32_t n);
/* A mask of its own for the chunk, to which calls say what could be read: nothing of it is. */
KVL_API int kvl_mask_trial(struct kvl_prefill_mask *mask, struct kvl_prefill_mask **out);
/* captured [n_heads]: of the weights probs [n_heads][step->pos + i + 1] of query i of the chunk (kvl_mask_weights),
 * what falls on the keys that a mask names for it.  Its own token always counts; a head of which nothing was said
 * captures everything. */
KVL_API int kvl_mask_captures(struct kvl_prefill_mask *mask, int32_t i, const float *probs,
                              float *captured);

/* ---- scores: one-shot eviction ------------------------------------------------------------- */

/* Filled by the `score` hook: the engine keeps, in every lane, protected positions and then the
 * best-scored of the rest until keep_tok are kept (ties: the lower position), evicts the others. */
struct kvl_scores {
    float *score;          /* [n_kv_heads][n_tok], to fill; zero on arrival */
    int32_t n_tok;         /* positions 0 .. n_tok - 1 */
    int32_t keep_tok;      /* kept per lane, protected ones included; the budget on arrival */
    int32_t protect_first; /* kept whatever their score; 0 on arrival */
    int32_t protect_last;
    /* [n_kv_heads], to fill where lanes keep different numbers: protected ones included; -1 on arrival:
     * keep_tok */
    int32_t *keep_lane;
    /* Queries whose weights a score is the sum of; 0 on arrival: it is none, or a mean. */
    int32_t n_summed;
};

#ifdef __cplusplus
}
#endif

#endif
