/* Creation, layout, statistics. */
#include "store.h"

#include "kv_rows.h"

#include <assert.h>
#include <string.h>

enum { STORE_MAX_DIM = KVL_ROW_MOST }; /* layers, heads, head_dim: keeps products in range */

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
    return kvl_kv_check(d->type, d->head_dim, err);
}

static size_t align64(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* Where the parts of a block lie. For a discrete device keys and values are a piece of their own, in its
 * memory; the head and the positions stay with the host, which looks them up without waiting for the device. */
static struct kvl_layout store_layout(const struct kvl_store_desc *d)
{
    struct kvl_layout l = { .head_dim = d->head_dim, .block_tok = d->block_tok };
    while (1 << l.block_shift < l.block_tok) l.block_shift++;
    bool apart = d->device && d->device->discrete;
    size_t first = apart ? 0 : KVL_BLOCK_HEAD, end = first;
    for (int part = 0; part < 3; part++) {
        bool stored = part != KVL_PART_K_RAW || d->raw_keys;
        l.type[part] = part == KVL_PART_V ? kvl_kv_values(d->type) : kvl_kv_keys(d->type);
        l.row_bytes[part] = kvl_kv_row_bytes(l.type[part], d->head_dim);
        l.part_off[part] = stored ? end : SIZE_MAX;
        if (stored) end += (size_t)d->block_tok * l.row_bytes[part]; /* a multiple of 16 */
    }
    size_t parts = end - first;
    l.pos_off = KVL_BLOCK_HEAD + (apart ? 0 : parts);
    l.host_bytes = align64(l.pos_off + (size_t)d->block_tok * sizeof(int32_t));
    l.data_bytes = apart ? align64(parts) : 0;
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
void kvl_store_round(const struct kvl_store *store, enum kvl_kv_part part, float *x, size_t n)
{
    const struct kvl_layout *l = &store->layout;
    uint8_t row[KVL_ROW_MOST * sizeof *x];
    if (l->type[part] == KVL_KV_F32) return;
    for (size_t i = 0; i < n; i += (size_t)l->head_dim) {
        kvl_row_put(l->type[part], row, x + i, l->head_dim);
        kvl_row_get(l->type[part], x + i, row, l->head_dim);
    }
}
