/* gates.h - kv heads that look far and those that do not: a number for each, its gate, and which are far enough
 * (DuoAttention).
 *
 * Gates come from a file or from the tables beside the model (kvl_head_gates, kvl/head_file.h), or are measured here.
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_GATES_H
#define KVL_GATES_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* gate [n_kv_heads] of a layer: the share of attention outside the first `sink` and the latest `window` tokens, a query's
 * own among them, as a mean over queries and query heads.  By column sums, which plan asked for (KVL_OBS_COLUMNS of 0 and
 * of `window`): of all queries of the context; in prefilled and score. */
int kvl_gates_by_columns(const struct kvl_pctx *ctx, int32_t layer, int32_t sink, int32_t window,
                         float *gate);
/* The same of the last n_queries of n tokens that were observed (KVL_OBS_WINDOW of n_queries). */
int kvl_gates_by_window(const struct kvl_pctx *ctx, int32_t layer, int32_t n_queries, int32_t n,
                        int32_t sink, int32_t window, float *gate);
/* How many of n gates lie strictly below their quantile `share` (0 to 1), were all different; all of them for 1. */
int32_t kvl_gates_below(double share, int32_t n);
/* above [n]: 0 for the kvl_gates_below smallest, else 1; of equal gates the later ones are smaller.  Returns the quantile,
 * linear between two gates. */
double kvl_gates_split(const float *gate, int32_t n, double share, float *above);

#ifdef __cplusplus
}
#endif

#endif
