/* counted_cache.h - a cache that is counted and holds nothing, in a policy's state (InfLLM).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_COUNTED_CACHE_H
#define KVL_COUNTED_CACHE_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which units (blocks, pages) would be on the device if `capacity` of them were kept there: nothing moves.  It lies in
 * the policy's state, in kvl_counted_bytes(capacity) bytes; zeroed it is empty. */
struct kvl_counted_unit {
    int32_t unit;
    float rank; /* of the last request, or what the policy adds */
};
struct kvl_counted_cache {
    int64_t n_hits, n_misses;
    int32_t n_requests, n; /* n: units in it */
    struct kvl_counted_unit in[];
};
size_t kvl_counted_bytes(int32_t capacity);
/* A request of n units; KVL_EINVAL, and nothing changes, where they are more than `capacity`.  Of those that it does
 * not name the one of least rank gives way (ties: the lower unit).  A unit's rank is the number of its last request;
 * with decay >= 0 every rank is multiplied by it instead, a new unit's is 0, and the policy adds what it likes. */
int kvl_counted_request(struct kvl_counted_cache *cache, int32_t capacity, const int32_t *unit,
                        int32_t n, float decay);
/* The unit in the cache; NULL: it is not there. */
struct kvl_counted_unit *kvl_counted_find(struct kvl_counted_cache *cache, int32_t unit);
/* Adds to the ranks of n units in the cache, which a step read one behind the other, what all query heads gave to their
 * unit_tok tokens: of unit i probs [n_heads][first + i * unit_tok ...]. */
void kvl_counted_add(const struct kvl_pctx *ctx, struct kvl_counted_cache *cache,
                     const int32_t *unit, int32_t n, int32_t unit_tok, const float *const *probs,
                     int32_t first);
/* Of the caches of all layers, whose units are blocks of block_tok tokens: cached_blocks (mean), and, once there were
 * requests, cache_hits, cache_misses, cache_hit_share and cache_load_bytes_per_tok. */
int kvl_counted_report(const struct kvl_pctx *ctx, struct kvl_report *r,
                       const struct kvl_state_part *caches, int32_t block_tok);

#ifdef __cplusplus
}
#endif

#endif
