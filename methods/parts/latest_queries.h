/* latest_queries.h - the latest queries of every layer, kept while decoding (decode, R-KV).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_LATEST_QUERIES_H
#define KVL_LATEST_QUERIES_H

#include "layer_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* n of them, after RoPE and, with `raw`, before it: floats of the policy's state.  The plan observes a window of as
 * many, so that the last queries of the context are the first ones. */
struct kvl_latest {
    struct kvl_state_part part;
    int32_t n;
    bool raw;
};
int kvl_plan_latest(struct kvl_plan *plan, int32_t n, bool raw, struct kvl_latest *out);
/* In prefilled: those of the context, of which nobody knows the ones before RoPE. */
int kvl_latest_begin(const struct kvl_pctx *ctx, const struct kvl_latest *l, int32_t layer);
/* In select: the query of this step. */
int kvl_latest_add(const struct kvl_pctx *ctx, const struct kvl_latest *l,
                   const struct kvl_step *step, const struct kvl_query *q);
/* asked->q and what goes with it: all that are kept, in scratch, oldest first. */
int kvl_latest_read(const struct kvl_pctx *ctx, const struct kvl_latest *l, int32_t layer,
                    struct kvl_asked *asked);

#ifdef __cplusplus
}
#endif

#endif
