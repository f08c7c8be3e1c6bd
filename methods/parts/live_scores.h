/* live_scores.h - what live tokens received, in a table of them, and the cut by it (H2O, TOVA, FastGen).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_LIVE_SCORES_H
#define KVL_LIVE_SCORES_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In prefilled: scores of live tokens begin as what every token of the context received (KVL_OBS_COLUMNS of all
 * queries), a column for each query head of a group. */
int kvl_live_begin(const struct kvl_pctx *ctx, int32_t table, int32_t layer);
/* Adds what observe got, weights probs [n_heads] -> [n], to the scores of live tokens: per_head: each query head of a
 * group has a column of its own, else they share column 0.  Before, these columns are multiplied by *factor; NULL = 1. */
int kvl_live_add(const struct kvl_pctx *ctx, int32_t table, int32_t layer, bool per_head,
                 const float *const *probs, const int32_t *n, const float *factor);
/* *score [n_kv_heads][n] in scratch: the first n_columns columns of all n live tokens of a layer whose lanes hold as
 * many, counted as read, reduced to one for each kv head. */
int kvl_live_scores(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t n_columns,
                    int32_t n, enum kvl_reduce reduce, float **score);

/* In evict: of the n live tokens of every lane of a layer, which hold as many, the newest `recent` and the k best of
 * the others stay (ties: the lower position).  score [lists of scope][n], of KVL_SCOPE_LAYER (one list for all heads)
 * or KVL_SCOPE_KV_HEAD; a trace is told them. */
int kvl_keep_best(const struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep,
                  enum kvl_scope scope, const float *score, int32_t n, int32_t k, int32_t recent);

#ifdef __cplusplus
}
#endif

#endif
