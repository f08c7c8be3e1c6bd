/* kvl/rng.h - random numbers that are the same on every machine.
 *
 * PCG32 (O'Neill 2014, XSH-RR) seeded through SplitMix64, so that neighbouring seeds give unrelated
 * streams.  A sample's seed is the hash of what it is (task, length, depth, index), never a counter
 * of what ran before: resume, sharding and order cannot change data.
 *
 * Thread-safe: yes (the state is the caller's).
 */
#ifndef KVL_RNG_H
#define KVL_RNG_H

#include "kvl/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvl_rng {
    uint64_t state, inc;
};

KVL_API void kvl_rng_seed(struct kvl_rng *r, uint64_t seed);
KVL_API uint32_t kvl_rng_u32(struct kvl_rng *r);
/* Uniform in 0..n-1 without modulo bias; n > 0. */
KVL_API uint32_t kvl_rng_below(struct kvl_rng *r, uint32_t n);
/* Uniform in [0, 1). */
KVL_API double kvl_rng_f64(struct kvl_rng *r);
/* Fisher-Yates. */
KVL_API void kvl_rng_shuffle(struct kvl_rng *r, int32_t *v, int32_t n);
/* SplitMix64 finaliser: mixes a value into a seed. */
KVL_API uint64_t kvl_seed_mix(uint64_t seed, uint64_t value);
/* Mixes a string into a seed. */
KVL_API uint64_t kvl_seed_str(uint64_t seed, const char *s);

#ifdef __cplusplus
}
#endif

#endif
