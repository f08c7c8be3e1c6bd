/* defensive.h - scores against the worst case of a window's queries (DefensiveKV and its layer form).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_DEFENSIVE_H
#define KVL_DEFENSIVE_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvl_defensive {
    int32_t window, kernel; /* queries; pooling, odd */
    double mass;            /* part of the attention that goes first, by its mean */
    int32_t most;           /* tokens of a lane that may go first */
};
/* score [n_kv_heads][n_tok - window], rows `stride` apart, of a context of n_tok tokens, whose last `window` queries
 * were asked for in plan. */
int kvl_defensive_scores(const struct kvl_pctx *ctx, int32_t layer, const struct kvl_defensive *d,
                         int32_t n_tok, float *score, size_t stride);

#ifdef __cplusplus
}
#endif

#endif
