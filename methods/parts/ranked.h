/* ranked.h - the best in the order of their scores (RetroInfer).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_RANKED_H
#define KVL_RANKED_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* index [n_rows][k]: of each row of x [n_rows][n] the k largest, largest first; ties: the lower index first.  The hook has
 * looked then (kvl_look). */
int kvl_topk_ranked(const struct kvl_pctx *ctx, const float *x, int32_t n_rows, int32_t n,
                    int32_t k, int32_t *index);
/* Sorts n numbers, in place. */
int kvl_ascending(const struct kvl_pctx *ctx, int32_t *x, int32_t n);

#ifdef __cplusplus
}
#endif

#endif
