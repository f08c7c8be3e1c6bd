/* boxes.h - boxes of consecutive live tokens, and scores of them by a few channels (RocketKV).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_BOXES_H
#define KVL_BOXES_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Boxes in a table of live tokens, whose rows have KVL_BOX_ELEMS floats or stored keys: of box_tok consecutive tokens
 * of a lane the minimum and the maximum of their keys, per channel.  Boxes first .. first + n - 1 get those of tokens
 * pos [(first + n) * box_tok], live positions, ascending. */
#define KVL_BOX_ELEMS(head_dim, box_tok) ((2 * (head_dim) + (box_tok)-1) / (box_tok))
int kvl_boxes_put(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t kv_head,
                  int32_t box_tok, const int32_t *pos, int32_t first, int32_t n);
/* score [n_heads][n] of the first n boxes of every kv head by n_channels channels of the queries q
 * [n_heads][head_dim] (kvl_box_scores_args): these alone are counted as read.  box_tok is 16 at most. */
int kvl_boxes_scores(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t box_tok,
                     int32_t n, int32_t n_channels, const float *q, float *score);

#ifdef __cplusplus
}
#endif

#endif
