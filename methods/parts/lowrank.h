/* lowrank.h - keys of a layer at low rank, and what they give back (ShadowKV).
 *
 * Keys before RoPE of all kv heads side by side are K [n][width], width = n_kv_heads * head_dim.  At rank r the nearest
 * product A B has in B [r][width] the first r right singular vectors of K (eigenvectors of K'K), and A = K B' [n][r].
 * A is a table of a row per token of the context, B of one row per layer, both of floats.
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_LOWRANK_H
#define KVL_LOWRANK_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Lies in the policy's options; zero before plan. */
struct kvl_lowrank {
    int32_t rank;
    int32_t left, right; /* handles of the tables of A and B */
};

/* In plan: declares the tables and asks for keys before RoPE.  KVL_EINVAL where the keys of a layer are less wide than
 * `rank`, or wider than KVL_SYM_EIG_MAX. */
int kvl_plan_lowrank(struct kvl_plan *plan, int32_t rank, struct kvl_lowrank *out);
/* In prefilled: factors the keys of the context, one token or more. */
int kvl_lowrank_fit(const struct kvl_pctx *ctx, const struct kvl_lowrank *k, int32_t layer);
/* key [n][head_dim] after RoPE: rotate(A B) of n positions of the context (any order), of one kv head.  n rows of A and
 * the kv head's part of B are counted as read. */
int kvl_lowrank_keys(const struct kvl_pctx *ctx, const struct kvl_lowrank *k, int32_t layer,
                     int32_t kv_head, const int32_t *pos, int32_t n, float *key);

#ifdef __cplusplus
}
#endif

#endif
