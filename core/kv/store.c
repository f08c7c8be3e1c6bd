/* Creation, layout, statistics. */
#include "store.h"

#include "half.h"
#include "kv_block.h"

#include <assert.h>
#include <string.h>

enum { STORE_MAX_DIM = 8192 }; /* layers, heads, head_dim: keeps products in range */

/* Sizes come from the file of a model, so each is refused by name; what this lets through multiplies without
 * overflow. */
static int store_check_desc(const struct kvl_store_desc *d, struct kvl_err *err)
{
    const struct {
        const char *name;
        int32_t value;
    } dims[] = { { "n_layers", d->n_layers },
                 { "n_kv_heads", d->n_kv_heads },
                 { "head_dim", d->head_dim } };
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
        if (dims[i].value < 1 || dims[i].value > STORE_MAX_DIM)
            return kvl_fail(err, KVL_EINVAL, "KV store: %s is %d, want 1 to %d", dims[i].name,
                            dims[i].value, STORE_MAX_DIM);
    int32_t b = d->block_tok;
    if (b != 0 && (b < 8 || b > 256 || (b & (b - 1)) != 0))
        return kvl_fail(err, KVL_EINVAL,
                        "KV store: block_tok is %d, want a power of two from 8 to 256", b);
    if ((unsigned)d->type > KVL_KV_Q8_0)
        return kvl_fail(err, KVL_EINVAL,
                        "KV store: element type %d, want f32 (0), f16 (1), bf16 (2) or q8_0 (3)",
                        (int)d->type);
    if (d->type == KVL_KV_Q8_0 && d->head_dim % KVL_KV_BLOCK != 0)
        return kvl_fail(err, KVL_EINVAL,
                        "keys and values in q8_0: a head has %d elements, want a multiple of %d; "
                        "another --kv-type holds them",
                        d->head_dim, KVL_KV_BLOCK);
    return KVL_OK;
}

/* Parts of a block begin at cache lines: a row never shares one with the part before it. */
static size_t align64(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* Where the parts of a block lie. For a discrete device keys and values are a piece of their own, in its
 * memory; the head and the positions stay with the host, which looks them up without waiting for the device. */
static struct kvl_layout store_layout(const struct kvl_store_desc *d)
{
    struct kvl_layout l = { .head_dim = d->head_dim,
                            .block_tok = d->block_tok,
                            .type = d->type,
                            .row_bytes = kvl_kv_bytes(d->type, (size_t)d->head_dim) };
    while (1 << l.block_shift < l.block_tok) l.block_shift++;
    size_t part = align64((size_t)d->block_tok * l.row_bytes);
    size_t parts = part * (d->raw_keys ? 3 : 2);
    bool apart = d->device && d->device->discrete;
    l.part_off[KVL_PART_K] = apart ? 0 : KVL_BLOCK_HEAD;
    l.part_off[KVL_PART_V] = l.part_off[KVL_PART_K] + part;
    l.part_off[KVL_PART_K_RAW] = d->raw_keys ? l.part_off[KVL_PART_V] + part : SIZE_MAX;
    l.pos_off = KVL_BLOCK_HEAD + (apart ? 0 : parts);
    l.host_bytes = align64(l.pos_off + (size_t)d->block_tok * sizeof(int32_t));
    l.data_bytes = apart ? parts : 0;
    l.bytes = l.host_bytes + l.data_bytes;
    return l;
}

/* A device has two more pools: pinned memory for blocks that were moved to the host, and room for copies of
 * what is fetched from it. The limit is of the first alone; the peak is of the first two together, which know
 * each other for that. */
static void store_pools(struct kvl_store *store)
{
    const struct kvl_layout *l = &store->layout;
    size_t limit = store->desc.limit_bytes;
    kvl_pool_init(&store->pool, l, store->device, KVL_PLACE_DEVICE, limit);
    if (!store->device) return;
    kvl_pool_init(&store->host, l, store->device, KVL_PLACE_PINNED, 0);
    kvl_pool_init(&store->places, l, store->device, KVL_PLACE_DEVICE, 0);
    store->pool.other = &store->host;
    store->host.other = &store->pool;
}

int kvl_store_create(const struct kvl_store_desc *desc, struct kvl_store **out, struct kvl_err *err)
{
    KVL_TRY(store_check_desc(desc, err));
    struct kvl_store *store = kvl_alloc(1, sizeof *store);
    if (!store)
        return kvl_fail(err, KVL_ENOMEM, "KV store: no memory for %zu bytes", sizeof *store);
    store->desc = *desc;
    if (store->desc.block_tok == 0) store->desc.block_tok = 16;
    store->layout = store_layout(&store->desc);
    if (desc->device && desc->device->discrete) store->device = desc->device;
    store_pools(store);
    int rc = store->device ? kvl_moves_open(store, err) : KVL_OK;
    if (rc != KVL_OK) {
        kvl_store_destroy(store);
        return rc;
    }
    *out = store;
    return KVL_OK;
}

void kvl_store_destroy(struct kvl_store *store)
{
    if (!store) return;
    assert(store->n_seqs == 0);
    kvl_pool_close(&store->pool);
    kvl_pool_close(&store->host);
    kvl_pool_close(&store->places);
    kvl_moves_close(store);
    kvl_free(store->spans);
    kvl_free(store->scratch.blocks);
    kvl_free(store->scratch.ranks);
    kvl_free(store->scratch.dead);
    kvl_free(store);
}

const struct kvl_store_desc *kvl_store_desc(const struct kvl_store *store)
{
    return &store->desc;
}

void kvl_store_stats(const struct kvl_store *store, struct kvl_store_stats *out)
{
    const struct kvl_pool *p = &store->pool, *host = &store->host;
    int64_t n = p->n_blocks + host->n_blocks;
    int64_t peak = KVL_MAX(p->peak_blocks, host->peak_blocks);
    *out = (struct kvl_store_stats){ .n_blocks = n,
                                     .n_refs = p->n_refs + host->n_refs,
                                     .n_sequences = store->n_seqs,
                                     .block_bytes = p->block_bytes,
                                     .bytes = (size_t)n * p->block_bytes,
                                     .peak_bytes = (size_t)peak * p->block_bytes,
                                     .limit_bytes = p->limit_bytes };
}

void kvl_store_reset_peak(struct kvl_store *store)
{
    store->pool.peak_blocks = store->host.peak_blocks = store->pool.n_blocks + store->host.n_blocks;
}

/* What storing makes of values. Hooks are given keys and values rounded like this, so that what a method keeps
 * of them agrees with what attention reads later. */
void kvl_store_round(const struct kvl_store *store, float *v, size_t n)
{
    if (store->layout.type == KVL_KV_F16)
        for (size_t i = 0; i < n; i++) v[i] = kvl_f16_to_f32(kvl_f32_to_f16(v[i]));
    if (store->layout.type == KVL_KV_BF16)
        for (size_t i = 0; i < n; i++) v[i] = kvl_bf16_to_f32(kvl_f32_to_bf16(v[i]));
    for (size_t i = 0; store->layout.type == KVL_KV_Q8_0 && i < n; i += KVL_KV_BLOCK) {
        uint8_t block[KVL_KV_BLOCK_BYTES];
        kvl_q8_0_put(block, v + i);
        kvl_q8_0_get(v + i, block);
    }
}

void kvl_elems_narrow(enum kvl_kv_type type, void *dst, const float *src, size_t n)
{
    uint16_t *half = dst;
    switch (type) {
    case KVL_KV_F32: memcpy(dst, src, n * sizeof *src); break;
    case KVL_KV_F16:
        for (size_t i = 0; i < n; i++) half[i] = kvl_f32_to_f16(src[i]);
        break;
    case KVL_KV_BF16:
        for (size_t i = 0; i < n; i++) half[i] = kvl_f32_to_bf16(src[i]);
        break;
    case KVL_KV_Q8_0:
        for (size_t i = 0; i < n; i += KVL_KV_BLOCK)
            kvl_q8_0_put((uint8_t *)dst + kvl_kv_bytes(type, i), src + i);
        break;
    }
}

void kvl_elems_widen(enum kvl_kv_type type, float *dst, const void *src, size_t n)
{
    const uint16_t *half = src;
    switch (type) {
    case KVL_KV_F32: memcpy(dst, src, n * sizeof *dst); break;
    case KVL_KV_F16:
        for (size_t i = 0; i < n; i++) dst[i] = kvl_f16_to_f32(half[i]);
        break;
    case KVL_KV_BF16:
        for (size_t i = 0; i < n; i++) dst[i] = kvl_bf16_to_f32(half[i]);
        break;
    case KVL_KV_Q8_0:
        for (size_t i = 0; i < n; i += KVL_KV_BLOCK)
            kvl_q8_0_get(dst + i, (const uint8_t *)src + kvl_kv_bytes(type, i));
        break;
    }
}
