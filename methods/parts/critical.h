/* critical.h - two stages of a selection: the best by score, then by score and what the output makes of the value
 * (CriticalKV, DefensiveKV).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_CRITICAL_H
#define KVL_CRITICAL_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* norm [n]: of tokens first .. first + n - 1 of a lane, the mean over the group's query heads of |W_o v|_1. */
int kvl_projected_norms(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, int32_t first,
                        int32_t n, float *norm);
/* Of a lane's scores [n] the k best become infinite, the others (score + epsilon) norm: its best are then the k, and
 * the best of the second stage. */
int kvl_critical_stages(const struct kvl_pctx *ctx, float *score, const float *norm, int32_t n,
                        int32_t k, float epsilon);

#ifdef __cplusplus
}
#endif

#endif
