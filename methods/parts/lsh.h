/* lsh.h - keys in hash tables, and those that collide with queries (MagicPIG).
 *
 * Codes are signs of products with hyperplanes h of normal numbers, shared by the kv heads of a layer: code_l of x =
 * bits [x . h_(l,j) > 0], j < K, in each of L tables.  Keys are hashed once, when the context is complete, as
 * k' = k - mean(k) over what is hashed; queries as they are.  Two vectors at an angle share a code with probability
 * (1 - angle / pi)^K.
 *
 * What is hashed are positions first .. context_tok - behind - 1; of a context that is longer than planned the first
 * that were planned.  Here it is counted from 0: item i is position first + i.
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_LSH_H
#define KVL_LSH_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a lane first entries of buckets, entries, |k'|, mean(k); of a layer h. */
enum { KVL_LSH_START, KVL_LSH_ID, KVL_LSH_NORM, KVL_LSH_MEAN, KVL_LSH_PLANE, KVL_LSH_ROWS };

/* Lies in the policy's options. */
struct kvl_lsh {
    int32_t K, L;          /* bits of a code, 1 to 16; tables */
    int32_t min_hits;      /* tables in which a key shares the query's code, 1 to 255 and to L */
    int32_t first, behind; /* tokens before and behind what is hashed */
    int32_t seed;          /* of the hyperplanes; 0 = the sample's */
    bool centre;           /* false: mean(k) is taken for 0 */
    /* kvl_plan_lsh: the most tokens that are hashed; tables */
    int32_t n_most, handle[KVL_LSH_ROWS];
};

/* In plan: declares the tables for `layers` [n_layers] (NULL: all).  KVL_EINVAL where they have too many buckets or
 * entries. */
int kvl_plan_lsh(struct kvl_plan *plan, const uint8_t *layers, struct kvl_lsh *lsh);
/* Tokens of this context that are hashed, 0 or more. */
int32_t kvl_lsh_hashed(const struct kvl_pctx *ctx, const struct kvl_lsh *lsh);
/* In prefilled: hashes a layer's keys, one or more. */
int kvl_lsh_build(const struct kvl_pctx *ctx, const struct kvl_lsh *lsh, int32_t layer);

/* What the queries of a token find.  All in scratch. */
struct kvl_lsh_hits {
    const struct kvl_pctx *ctx;
    const struct kvl_lsh *lsh;
    int32_t layer, n; /* items that are hashed */
    int32_t n_tables; /* the first of L, in use */
    int32_t *found;   /* [n_heads][n], ascending items: the first n_found of a row */
    int32_t *n_found; /* [n_heads] */
    int32_t *pos;     /* [n], by kvl_lsh_union */
    /* the room's own */
    struct kvl_rows rows[KVL_LSH_ROWS];
    const int32_t **start, **id;
    int64_t *n_visited;
    uint8_t *mark;
    uint16_t *code;
    float *side;
};
/* Once for a layer, where something is hashed. */
int kvl_lsh_open(const struct kvl_pctx *ctx, const struct kvl_lsh *lsh, int32_t layer,
                 struct kvl_lsh_hits *out);
/* found and n_found of queries q [n_heads][head_dim], by the first n_tables tables.  Not counted. */
int kvl_lsh_find(struct kvl_lsh_hits *hits, const float *q, int32_t n_tables);
/* Counts hyperplanes, buckets and entries that the last kvl_lsh_find read. */
int kvl_lsh_count(const struct kvl_lsh_hits *hits);
/* pos [*n], ascending: what any query head of a kv head found. */
int kvl_lsh_union(const struct kvl_lsh_hits *hits, int32_t kv_head, int32_t *n);
/* In prefilled, of a policy that observes `n_queries` queries (KVL_OBS_WINDOW): the most of L tables with which what
 * all query heads of a lane find together, a mean over lanes and queries, is at most `room` tokens; min_hits where even
 * these are too many.  Not counted. */
int kvl_lsh_fit(const struct kvl_pctx *ctx, const struct kvl_lsh *lsh, int32_t layer,
                int32_t n_queries, double room, int32_t *n_tables);
/* *cosine [group][n], in scratch, of the query heads q [n_heads][head_dim] of a kv head with k' of hashed positions
 * pos [n]; 0 where one of them is 0.  Keys, norms and mean are counted as read. */
int kvl_lsh_cosines(const struct kvl_lsh_hits *hits, int32_t kv_head, const float *q,
                    const int32_t *pos, int32_t n, double **cosine);

#ifdef __cplusplus
}
#endif

#endif
