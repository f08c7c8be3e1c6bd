/* How much memory a model wants before any of it is taken. */
#include "local.h"

#include "kvl/kvstore.h"

/* Blocks of a lane that are open, at most. */
static int32_t footprint_open(enum kvl_kv_type type, int32_t block_tok)
{
    int32_t k = kvl_kv_facts(kvl_kv_keys(type))->open_tok;
    int32_t v = kvl_kv_facts(kvl_kv_values(type))->open_tok;
    return (KVL_MAX(k, v) + block_tok - 1) / block_tok + 1;
}

/* Blocks in every lane of a layer are what the store says they are, padding and positions included. */
struct footprint_block {
    size_t bytes, open; /* of a block as it stays, and of what an open one is larger */
    int32_t block_tok, n_open;
};

static int footprint_block(const struct kvl_engine_desc *d, struct footprint_block *out,
                           struct kvl_err *err)
{
    const struct kvl_shape *s = &d->model->shape;
    const struct kvl_store_desc desc = { .n_layers = s->n_layers,
                                         .n_kv_heads = s->n_kv_heads,
                                         .head_dim = s->head_dim,
                                         .block_tok = d->block_tok,
                                         .type = d->kv_type,
                                         .raw_keys = d->raw_keys };
    struct kvl_store *store;
    struct kvl_store_stats stats;
    KVL_TRY(kvl_store_create(&desc, &store, err));
    kvl_store_stats(store, &stats);
    *out = (struct footprint_block){ .bytes = stats.block_bytes * (size_t)s->n_kv_heads,
                                     .block_tok = kvl_store_desc(store)->block_tok };
    if (stats.sealed_block_bytes > 0) {
        out->open = (stats.block_bytes - stats.sealed_block_bytes) * (size_t)s->n_kv_heads;
        out->bytes -= out->open;
        out->n_open = footprint_open(d->kv_type, out->block_tok);
    }
    kvl_store_destroy(store);
    return KVL_OK;
}

/* Layers that hold every token, and blocks of a lane that all others hold for n_tok tokens, at most. */
static void footprint_layers(const struct kvl_shape *s, int32_t block_tok, int64_t n_tok,
                             int64_t *layers, int64_t *blocks)
{
    /* A prefill frees in whole tiles, and a window may begin inside a block. */
    int64_t spare = KVL_LOCAL_TILE + block_tok;
    *layers = *blocks = 0;
    for (int32_t l = 0; l < s->n_layers; l++) {
        int64_t most = s->window ? s->window[l] : 0;
        *layers += most == 0;
        most = most == 0 ? 0 : KVL_MIN(most + spare, n_tok);
        *blocks += (most + block_tok - 1) / block_tok;
    }
}

/* By the same arithmetic as the store and the engine, which are asked rather than copied. */
int kvl_footprint(const struct kvl_engine_desc *desc, int64_t n_tok, struct kvl_footprint *out,
                  struct kvl_err *err)
{
    struct kvl_footprint f = { 0 };
    struct footprint_block block;
    int32_t chunk = desc->chunk_tok ? desc->chunk_tok : KVL_ENGINE_CHUNK;
    int64_t layers, blocks;
    KVL_TRY(footprint_block(desc, &block, err));
    f.block_tok = block.block_tok;
    footprint_layers(&desc->model->shape, f.block_tok, n_tok, &layers, &blocks);
    /* The layer that a chunk goes through holds all of it before it forgets. */
    if (blocks > 0) blocks += (KVL_MIN((int64_t)chunk, n_tok) + f.block_tok - 1) / f.block_tok;
    f.block_bytes = (size_t)layers * block.bytes;
    f.window_bytes = (size_t)blocks * (block.bytes + block.open) +
                     (size_t)layers * (size_t)block.n_open * block.open;
    f.weight_bytes = desc->model->bytes;
    f.weights_cached = kvl_gguf_mapped(desc->model->file);
    f.kv_bytes = (size_t)((n_tok + f.block_tok - 1) / f.block_tok) * f.block_bytes + f.window_bytes;
    if (desc->kv_limit_bytes) f.kv_bytes = KVL_MIN(f.kv_bytes, desc->kv_limit_bytes);
    f.work_bytes = kvl_engine_row_bytes(desc->model) * (size_t)KVL_MIN((int64_t)chunk, n_tok);
    *out = f;
    return KVL_OK;
}

/* Windows take their share first: they are needed whatever the length. */
int64_t kvl_footprint_fits(const struct kvl_footprint *f, int64_t free_bytes)
{
    if (f->block_bytes == 0) return INT32_MAX; /* windows in all layers */
    return KVL_MAX(free_bytes - (int64_t)f->window_bytes, 0) / (int64_t)f->block_bytes *
           f->block_tok;
}
