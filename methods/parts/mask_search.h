/* mask_search.h - which of several masks suits a query head of a prefill: what each would capture of its attention.
 *
 * Queries of a chunk, spread evenly over its part behind the length of the budget, are asked for their exact weights;
 * a kind of mask captures what of these falls on the keys that it names.  Sums over chunks lie in the policy's state;
 * whoever runs it sums over contexts (kvlab tables).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_MASK_SEARCH_H
#define KVL_MASK_SEARCH_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvl_mask_search {
    const char *const *kinds;   /* names, words */
    int32_t n_kinds, n_queries; /* of a chunk, that are asked */
    /* Says what all heads of the layer would read under a kind, as prefill_mask says it. */
    int (*say)(const struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
               int32_t kind, struct kvl_prefill_mask *mask);
};
/* Zeroed on arrival. */
struct kvl_mask_captured {
    int64_t n_queries; /* per head */
    double sum[];      /* [n_layers][n_heads][n_kinds] */
};
size_t kvl_mask_captured_bytes(const struct kvl_shape *shape, int32_t n_kinds);
/* In prefill_mask: asks the queries of this chunk and layer.  `mask` stays as it is.  Exact weights are counted as pairs
 * that were scored, as is what `say` asks for. */
int kvl_mask_search(const struct kvl_pctx *ctx, const struct kvl_step *step,
                    const struct kvl_query *q, struct kvl_prefill_mask *mask,
                    const struct kvl_mask_search *how, struct kvl_mask_captured *captured);
/* Shares of the weight as "capture.<layer>.<head>.<kind>"; nothing where nothing was asked. */
int kvl_mask_search_report(const struct kvl_pctx *ctx, struct kvl_report *r,
                           const struct kvl_mask_search *how,
                           const struct kvl_mask_captured *captured);

#ifdef __cplusplus
}
#endif

#endif
