/* The keys and values that a sweep has to hold. */
#include "memory.h"

#include "kvl/kvstore.h"

/* Layers that hold every token, and blocks of a lane that all others hold for n_tok tokens, at most. */
static void memory_windows(const struct kvl_shape *s, int32_t n_tok, int64_t *layers,
                           int64_t *blocks)
{
    enum { SPARE_TOK = 128 + KVL_MEMORY_BLOCK }; /* freed later than they could be */
    *layers = *blocks = 0;
    for (int32_t l = 0; l < s->n_layers; l++) {
        int64_t most = s->window ? s->window[l] : 0;
        *layers += most == 0;
        most = most == 0 ? 0 : KVL_MIN(most + SPARE_TOK, (int64_t)n_tok);
        *blocks += (most + KVL_MEMORY_BLOCK - 1) / KVL_MEMORY_BLOCK;
    }
}

static int memory_block(const struct kvl_work *w, int64_t *out, struct kvl_err *err)
{
    const struct kvl_shape *s = kvl_model_shape(w->model);
    struct kvl_store_desc desc = { .n_layers = s->n_layers,
                                   .n_kv_heads = s->n_kv_heads,
                                   .head_dim = s->head_dim,
                                   .block_tok = KVL_MEMORY_BLOCK,
                                   .type = w->sweep->kv_type,
                                   .raw_keys = w->raw_keys };
    struct kvl_store *store;
    struct kvl_store_stats stats;
    KVL_TRY(kvl_store_create(&desc, &store, err));
    kvl_store_stats(store, &stats);
    kvl_store_destroy(store);
    *out = (int64_t)stats.block_bytes * s->n_kv_heads; /* of one layer */
    return KVL_OK;
}

/* Tokens that are held at once when a cell is answered, at least. */
static int32_t memory_held(const struct kvl_cell *c)
{
    const struct kvl_reading *r = c->speed ? NULL : kvl_point_reading(c->task);
    bool evicts = c->policy->policy->caps & KVL_CAP_EVICTS;
    if (evicts && kvl_planned_own_prefill(c->planned)) return 0; /* as little as its budget */
    return r && evicts ? kvl_reading_before(r, c->length) : c->length;
}

static int32_t memory_longest(const struct kvl_runner *r)
{
    int32_t longest = 0;
    for (size_t i = 0; i < r->work->n_groups; i++) {
        const struct kvl_group *g = &r->work->group[i];
        int32_t n = g->speed ? 1 : r->work->sweep->contexts;
        for (int32_t context = 0; g->mine && context < n; context++)
            for (size_t c = g->first; c < g->first + g->n; c++)
                if (kvl_runner_wants(r, context, c))
                    longest = KVL_MAX(longest, memory_held(&r->work->cell[c]));
    }
    return longest;
}

int kvl_memory_plan(const struct kvl_runner *r, struct kvl_memory *out, struct kvl_err *err)
{
    struct kvl_memory m = { .length_tok = memory_longest(r) };
    int64_t limit = (int64_t)r->work->sweep->kv_limit_mib << 20;
    int64_t layers, blocks, layer;
    KVL_TRY(memory_block(r->work, &layer, err));
    memory_windows(kvl_model_shape(r->work->model), m.length_tok, &layers, &blocks);
    m.block_bytes = layers * layer;
    m.window_bytes = blocks * layer;
    m.kv_bytes = (m.length_tok + (int64_t)KVL_MEMORY_BLOCK - 1) / KVL_MEMORY_BLOCK * m.block_bytes +
                 m.window_bytes;
    if (limit > 0) m.kv_bytes = KVL_MIN(m.kv_bytes, limit); /* the store sees to that */
    *out = m;
    return KVL_OK;
}

int64_t kvl_memory_fits_tok(const struct kvl_memory *m, int64_t free_bytes)
{
    if (m->block_bytes == 0) return INT32_MAX; /* windows in all layers */
    return KVL_MAX(0, free_bytes - m->window_bytes) / m->block_bytes * KVL_MEMORY_BLOCK;
}

int kvl_memory_check(const struct kvl_memory *m, const struct kvl_sweep *s, int64_t free_bytes,
                     const char *what, const char *instead, struct kvl_err *err)
{
    if (free_bytes <= 0 || m->kv_bytes <= free_bytes) return KVL_OK;
    return kvl_fail(
        err, KVL_ENOMEM,
        "%s: lengths: %d tokens: their keys and values take %.1f GiB, %.1f GiB of %s are "
        "free: want at most %lld tokens%s",
        s->file ? s->file : s->name, m->length_tok, (double)m->kv_bytes / 0x1p30,
        (double)free_bytes / 0x1p30, what, (long long)kvl_memory_fits_tok(m, free_bytes), instead);
}
