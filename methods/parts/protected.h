/* protected.h - scores of tokens that the inner policy protects, where they compete with the others (kvpress' ChunkKVPress).
 *
 * Thread-safe: yes. */
#ifndef KVL_PROTECTED_H
#define KVL_PROTECTED_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One above the best of any head, where scores are means over queries; the number of queries above it, where they are sums
 * (n_summed): kvpress has means alone. */
float kvl_protected_score(int32_t n_heads, const struct kvl_scores *scores);

#ifdef __cplusplus
}
#endif

#endif
