/* mask_estimates.h - what a prefill mask is guessed from: mean keys and queries of blocks, sums along columns and diagonals (MInference).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_MASK_ESTIMATES_H
#define KVL_MASK_ESTIMATES_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* *mean [blocks][head_dim], in scratch: means of blocks of block_tok keys of positions 0 .. n - 1, all of which are
 * live, the last of those that are left.  Counted as read. */
int kvl_key_means(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, int32_t n,
                  int32_t block_tok, float **mean);
/* In prefill_mask: the same of the chunk's queries of a query head. */
int kvl_query_means(const struct kvl_pctx *ctx, const struct kvl_step *step,
                    const struct kvl_query *q, int32_t head, int32_t block_tok, float **mean);

/* In prefill_mask: weights (kvl_mask_weights) of the chunk's last `last` queries, or as many as it has, summed along columns
 * (positions) and diagonals (distances of a query to a key): *column, *diagonal [n_heads][step->pos + step->n_tok], in
 * scratch. */
int kvl_mask_sums(const struct kvl_pctx *ctx, const struct kvl_step *step,
                  const struct kvl_query *q, int32_t last, float **column, float **diagonal);

#ifdef __cplusplus
}
#endif

#endif
