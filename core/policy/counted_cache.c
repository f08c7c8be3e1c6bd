/* A cache that is counted and holds nothing: which units would be on the device. */
#include "kvl/plan.h"

#include <stdbool.h>

size_t kvl_counted_bytes(int32_t capacity)
{
    size_t bytes =
        sizeof(struct kvl_counted_cache) + (size_t)capacity * sizeof(struct kvl_counted_unit);
    return (bytes + 7) / 8 * 8; /* another may follow */
}

struct kvl_counted_unit *kvl_counted_find(struct kvl_counted_cache *cache, int32_t unit)
{
    for (int32_t i = 0; i < cache->n; i++)
        if (cache->in[i].unit == unit) return &cache->in[i];
    return NULL;
}

static bool counted_names(const int32_t *unit, int32_t n, int32_t one)
{
    for (int32_t i = 0; i < n; i++)
        if (unit[i] == one) return true;
    return false;
}

/* A place for a unit that has none: a free one, or that of the least rank that the request does not name. */
static struct kvl_counted_unit *counted_room(struct kvl_counted_cache *cache, int32_t capacity,
                                             const int32_t *unit, int32_t n)
{
    struct kvl_counted_unit *victim = NULL;
    if (cache->n < capacity) return &cache->in[cache->n++];
    for (struct kvl_counted_unit *u = cache->in; u < cache->in + cache->n; u++) {
        bool lower = !victim || u->rank < victim->rank ||
                     (u->rank <= victim->rank && u->unit < victim->unit);
        if (lower && !counted_names(unit, n, u->unit)) victim = u;
    }
    return victim;
}

int kvl_counted_request(struct kvl_counted_cache *cache, int32_t capacity, const int32_t *unit,
                        int32_t n, float decay)
{
    if (n > capacity) return KVL_EINVAL;
    cache->n_requests++;
    for (int32_t i = 0; decay >= 0 && i < cache->n; i++) cache->in[i].rank *= decay;
    for (int32_t i = 0; i < n; i++) {
        struct kvl_counted_unit *u = kvl_counted_find(cache, unit[i]);
        *(u ? &cache->n_hits : &cache->n_misses) += 1;
        if (!u) {
            u = counted_room(cache, capacity, unit, n);
            *u = (struct kvl_counted_unit){ .unit = unit[i] };
        }
        if (decay < 0) u->rank = (float)cache->n_requests;
    }
    return KVL_OK;
}
