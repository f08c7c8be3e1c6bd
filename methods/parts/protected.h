/* protected.h - scores of tokens that the inner policy protects, where they compete with the others (kvpress' ChunkKVPress).
 *
 * Thread-safe: yes. */
#ifndef KVL_PROTECTED_H
#define KVL_PROTECTED_H

#include "kvl/policy.h"

#include <math.h>

/* One above the best of any head, where scores are means over queries; the number of queries above it, where they are sums
 * (n_summed): kvpress has means alone. */
static inline float kvl_protected_score(int32_t n_heads, const struct kvl_scores *scores)
{
    int32_t n = scores->n_tok, last = n - scores->protect_last;
    float best = -INFINITY;
    for (int32_t h = 0; h < n_heads; h++)
        for (int32_t i = scores->protect_first; i < last; i++)
            best = fmaxf(best, scores->score[h * n + i]);
    return best + (float)KVL_MAX(1, scores->n_summed);
}

#endif
