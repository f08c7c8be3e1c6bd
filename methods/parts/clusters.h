/* clusters.h - keys of a layer in clusters, each with its mean key, its mean value and its tokens (RetroInfer).
 *
 * Tokens are clustered in segments, of every lane apart: k-means in angle of keys minus the mean key of the segment; so
 * many clusters that one has per_cluster tokens on average, one at least.  Clusters are numbered in the order of their
 * segments, which follow one another without a gap.  Tables: a row of floats per cluster for mean keys and mean values,
 * where a cluster's tokens begin and how many they are, and the list of all tokens, cluster by cluster.
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_CLUSTERS_H
#define KVL_CLUSTERS_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Lies in the policy's options. */
struct kvl_clusters {
    int32_t first;              /* position of the first token that is clustered */
    int32_t per_cluster, iters; /* tokens on average; rounds of k-means */
    int32_t keys, values, spans,
        order; /* from kvl_plan_clusters: tables; keys and values: [head_dim] */
};

/* In plan: declares the tables. */
int kvl_plan_clusters(struct kvl_plan *plan, struct kvl_clusters *c);
/* Clusters that a segment of n tokens has. */
int32_t kvl_clusters_of(const struct kvl_clusters *c, int32_t n);
/* Positions first .. first + n - 1 of all lanes become a segment, whose clusters are `cluster` and up. */
int kvl_clusters_add(const struct kvl_pctx *ctx, const struct kvl_clusters *c, int32_t layer,
                     int32_t first, int32_t n, int32_t cluster);

/* What a step reads of the clusters of a layer. */
struct kvl_cluster_rows {
    struct kvl_rows spans, values, order;
};
/* Of the first n clusters, which have n_tok tokens; sizes are counted as read, values and tokens are not. */
int kvl_clusters_read(const struct kvl_pctx *ctx, const struct kvl_clusters *c, int32_t layer,
                      int32_t n, int32_t n_tok, struct kvl_cluster_rows *out);
int32_t kvl_cluster_size(const struct kvl_cluster_rows *rows, int32_t kv_head, int32_t cluster);
/* Its mean value will be read: clusters lie apart, and the processor does not guess them. */
void kvl_cluster_ask(const struct kvl_cluster_rows *rows, int32_t kv_head, int32_t cluster);
/* pos [size]: its positions, ascending. */
void kvl_cluster_tokens(const struct kvl_cluster_rows *rows, int32_t kv_head, int32_t cluster,
                        int32_t *pos);

#ifdef __cplusplus
}
#endif

#endif
