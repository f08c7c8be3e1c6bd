/* block_scores.h - scores by what tokens receive of the queries of their own block (Compactor).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_BLOCK_SCORES_H
#define KVL_BLOCK_SCORES_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of the tokens first .. n_tok - last - 1 of the context, by KVL_OBS_BLOCKS of KVL_BLOCKS(first, last, size), which
 * plan asked for: the mean over the group, times the norm of the value, averaged over three tokens (zeros beside the
 * ends).  Row h of score [n_kv_heads][n_tok - first - last] begins at h * stride. */
int kvl_block_scores(const struct kvl_pctx *ctx, int32_t layer, int32_t first, int32_t last,
                     int32_t size, int32_t n_tok, float *score, size_t stride);

#ifdef __cplusplus
}
#endif

#endif
