/* future_rotation.h - the mean of the rotations that queries to come will have (Expected Attention, CAPKV).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_FUTURE_ROTATION_H
#define KVL_FUTURE_ROTATION_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* mean [head_dim][head_dim]: of the rotations to positions first .. first + n - 1 of a layer.  It is no rotation itself:
 * what turns fast shrinks. */
int kvl_future_rotation(const struct kvl_pctx *ctx, int32_t layer, int32_t first, int32_t n,
                        float *mean);

#ifdef __cplusplus
}
#endif

#endif
