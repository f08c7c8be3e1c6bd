/* nested.h - sets of a context's tokens, each with what the one before keeps: what they hold of the attention of a
 * kv head, and which of them a budget pays (FastGen).
 *
 * Of n_sets sets, set p has the tokens whose level is p or less; the last but one has, of what a query sees, its newest
 * `window` tokens too, its own among them, and the last has everything.  A token of level n_sets - 2 is kept for being
 * recent alone.  Attention of a kv head is the mean of its query heads.
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_NESTED_H
#define KVL_NESTED_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVL_NESTED_MAX = 5 };

struct kvl_nested {
    const uint8_t *level;      /* [n], 0 to n_sets - 2 */
    int32_t n, n_sets, window; /* n_sets: 2 to KVL_NESTED_MAX */
};
/* Of a kv head and every set: the part of the attention that it keeps, tokens that it has at the end. */
struct kvl_nested_lane {
    float kept[KVL_NESTED_MAX];
    int32_t size[KVL_NESTED_MAX];
    int32_t chosen; /* the policy's to set */
};

/* size of every set. */
void kvl_nested_sizes(const struct kvl_nested *s, int32_t *size);
/* kept: mass, a mean over all queries.  `all` [n] is what every token received from all of them, `near` [n] from the
 * `window` queries from its own on: a query's window holds a token exactly while the query is among those. */
void kvl_nested_mass(const struct kvl_nested *s, const float *all, const float *near, float *kept);
/* Adds the sum of absolute differences of one query to distance [n_sets]: between its weights a on the positions up to
 * `at` and those that a softmax over what a set keeps of them gives. */
void kvl_nested_distance(const struct kvl_nested *s, const float *a, int32_t at, double *distance);
/* kept by mass, from two column sums that plan asked for (KVL_OBS_COLUMNS of 0 and of the window); in prefilled.  room
 * [2][n]. */
int kvl_nested_by_columns(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                          const struct kvl_nested *s, float *room, float *kept);
/* kept: 1 - the mean distance of the last n_queries queries (KVL_OBS_WINDOW of n_queries).  room [n_heads + 1][n]. */
int kvl_nested_by_window(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                         const struct kvl_nested *s, int32_t n_queries, float *room, float *kept);
/* The first set that keeps `part` or more; 1: the last, whatever sums are rounded to. */
int32_t kvl_nested_choose(const struct kvl_nested_lane *lane, int32_t n_sets, double part);
/* The largest part with which lanes hold at most `most` tokens on average after `more` steps behind n tokens, if kinds of
 * token go on as they were; when there is none, 0, or less where that is what all lanes keep with the first set
 * (distances go up to 2); 1 when all of the n fit. */
double kvl_nested_part(const struct kvl_nested_lane *lane, int32_t n_lanes, int32_t n_sets,
                       int32_t n, int32_t more, int32_t most);

#ifdef __cplusplus
}
#endif

#endif
