/* A cache that is counted and holds nothing: which units would be on the device. */
#include "counted_cache.h"

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

void kvl_counted_add(const struct kvl_pctx *ctx, struct kvl_counted_cache *cache,
                     const int32_t *unit, int32_t n, int32_t unit_tok, const float *const *probs,
                     int32_t first)
{
    for (int32_t i = 0; i < n; i++, first += unit_tok) {
        struct kvl_counted_unit *u = kvl_counted_find(cache, unit[i]);
        for (int32_t j = 0; u && j < ctx->shape->n_heads * unit_tok; j++)
            u->rank += probs[j / unit_tok][first + j % unit_tok];
    }
}

int kvl_counted_report(const struct kvl_pctx *ctx, struct kvl_report *r,
                       const struct kvl_state_part *caches, int32_t block_tok)
{
    double hits = 0, misses = 0, requests = 0, cached = 0, n_layers = ctx->shape->n_layers;
    double block_bytes = (double)block_tok * ctx->shape->n_kv_heads * kvl_token_bytes(ctx);
    for (int32_t l = 0; l < ctx->shape->n_layers; l++) {
        const struct kvl_counted_cache *cache = kvl_state_of(ctx, caches, l);
        hits += (double)cache->n_hits;
        misses += (double)cache->n_misses;
        requests += cache->n_requests;
        cached += cache->n;
    }
    KVL_TRY(kvl_report_num(r, "cached_blocks", cached / n_layers));
    if (requests * (hits + misses) <= 0) return KVL_OK;
    KVL_TRY(kvl_report_num(r, "cache_hits", hits));
    KVL_TRY(kvl_report_num(r, "cache_misses", misses));
    KVL_TRY(kvl_report_num(r, "cache_hit_share", hits / (hits + misses)));
    return kvl_report_num(r, "cache_load_bytes_per_tok",
                          block_bytes * misses * n_layers / requests);
}
