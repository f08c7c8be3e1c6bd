/* window_scores.h - scores of a context by what its last queries attend to (SnapKV), and what they would without a mask.
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_WINDOW_SCORES_H
#define KVL_WINDOW_SCORES_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* mass [n_heads][context_tok] in scratch: as kvl_obs_window_mass, of queries that also see each other's keys and those after them,
 * without a causal mask inside the window, as some published code computes it. */
int kvl_window_unmasked(const struct kvl_pctx *ctx, int32_t layer, int32_t window,
                        const float **mass);
/* How kvl_obs_window_mass becomes scores (SnapKV, section 4): reduced over the query heads of a kv head and pooled along the
 * tokens. */
struct kvl_window_scores {
    int32_t window, kernel; /* queries; width of the pooling, odd */
    bool average;           /* pooling: mean, else maximum */
    bool pool_first;        /* before the reduction */
    enum kvl_reduce reduce;
};
/* score [n_kv_heads][n_tok] of the tokens before the window; what stands for the window's is left as it is. */
int kvl_window_scores(const struct kvl_pctx *ctx, int32_t layer, const struct kvl_window_scores *w,
                      float *score, int32_t n_tok);

#ifdef __cplusplus
}
#endif

#endif
