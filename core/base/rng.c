#include "kvl/rng.h"

/* SplitMix64 (Steele, Lea, Flood 2014): the constants and shifts are the published ones. */
uint64_t kvl_seed_mix(uint64_t seed, uint64_t value)
{
    uint64_t z = seed + 0x9e3779b97f4a7c15u * (value + 1);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t kvl_seed_str(uint64_t seed, const char *s)
{
    for (; *s; s++) seed = kvl_seed_mix(seed, (unsigned char)*s);
    return seed;
}

void kvl_rng_seed(struct kvl_rng *r, uint64_t seed)
{
    r->state = kvl_seed_mix(seed, 0);
    r->inc = kvl_seed_mix(seed, 1) | 1u;
    (void)kvl_rng_u32(r);
}

uint32_t kvl_rng_u32(struct kvl_rng *r)
{
    uint64_t old = r->state;
    r->state = old * 6364136223846793005u + r->inc;
    uint32_t x = (uint32_t)(((old >> 18) ^ old) >> 27);
    uint32_t rot = (uint32_t)(old >> 59);
    return (x >> rot) | (x << ((32 - rot) & 31));
}

/* Lemire's multiply-and-reject. */
uint32_t kvl_rng_below(struct kvl_rng *r, uint32_t n)
{
    uint32_t limit = (uint32_t)(-n) % n;
    for (;;) {
        uint64_t m = (uint64_t)kvl_rng_u32(r) * n;
        if ((uint32_t)m >= limit) return (uint32_t)(m >> 32);
    }
}

double kvl_rng_f64(struct kvl_rng *r)
{
    uint64_t hi = kvl_rng_u32(r) >> 5, lo = kvl_rng_u32(r) >> 6;
    return ((double)hi * 67108864.0 + (double)lo) / 9007199254740992.0;
}

void kvl_rng_shuffle(struct kvl_rng *r, int32_t *v, int32_t n)
{
    for (int32_t i = n - 1; i > 0; i--) {
        int32_t j = (int32_t)kvl_rng_below(r, (uint32_t)i + 1);
        int32_t t = v[i];
        v[i] = v[j];
        v[j] = t;
    }
}
