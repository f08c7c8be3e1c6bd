/* row_leverage.h - statistical leverage of rows: how much of their span depends on each (Compactor, CAPKV).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_ROW_LEVERAGE_H
#define KVL_ROW_LEVERAGE_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* score [n]: x_i' (ridge I + sum_j weight_j x_j x_j')^-1 x_i for rows x [n][dim]; weight NULL: 1.  KVL_ENUMERIC: the
 * matrix is not positive, which a ridge above 0 prevents but for rounding. */
int kvl_leverage(const struct kvl_pctx *ctx, const float *x, const float *weight, int32_t n,
                 int32_t dim, double ridge, float *score);
/* Of the keys before RoPE of tokens first .. first + n - 1, per kv head: less their mean, in a Gaussian sketch of
 * `sketch` channels, the same for every context (0: the keys themselves), with the least ridge of 0.01, 0.1 ... that
 * works.  Row h of score begins at h * stride. */
int kvl_key_leverage(const struct kvl_pctx *ctx, int32_t layer, int32_t first, int32_t n,
                     int32_t sketch, float *score, size_t stride);
/* Rows of x [n_rows][n], `stride` apart: less the mean of all, divided by their deviation (of n - 1, at least 1e-6). */
void kvl_z_scores(float *x, int32_t n_rows, int32_t n, size_t stride);

#ifdef __cplusplus
}
#endif

#endif
