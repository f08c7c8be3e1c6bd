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
    if (b != 0 && (b < 8 || b > KVL_BLOCK_TOK_MAX || (b & (b - 1)) != 0))
        return kvl_fail(err, KVL_EINVAL,
                        "KV store: block_tok is %d, want a power of two from 8 to %d", b,
                        KVL_BLOCK_TOK_MAX);
    return kvl_kv_check(d->type, d->head_dim, err);
}

static size_t align64(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* Where the parts of a block lie. For a discrete device keys and values are a piece of their own, in its
 * memory; the head and the positions stay with the host, which looks them up without waiting for the device. */
static struct kvl_layout store_layout(const struct kvl_store_desc *d, enum kvl_kv_type type)
{
    struct kvl_layout l = { .head_dim = d->head_dim, .block_tok = d->block_tok };
    while (1 << l.block_shift < l.block_tok) l.block_shift++;
    bool apart = d->device && d->device->discrete, seals = kvl_kv_seals(d->type);
    size_t n_pos = (size_t)d->block_tok * sizeof(int32_t);
    /* Positions come first where blocks are of two sizes, so that they are at the same place in both. */
    size_t first = apart ? 0 : KVL_BLOCK_HEAD + (seals ? n_pos : 0), end = first;
    for (int part = 0; part < 3; part++) {
        bool stored = part != KVL_PART_K_RAW || d->raw_keys;
        l.type[part] = part == KVL_PART_V ? kvl_kv_values(type) : kvl_kv_keys(type);
        l.row_bytes[part] = kvl_kv_row_bytes(l.type[part], d->head_dim);
        l.part_off[part] = stored ? end : SIZE_MAX;
        if (stored) end += (size_t)d->block_tok * l.row_bytes[part]; /* a multiple of 16 */
    }
    size_t parts = end - first;
    l.pos_off = KVL_BLOCK_HEAD + (apart || seals ? 0 : parts);
    l.host_bytes = align64(KVL_BLOCK_HEAD + n_pos + (apart ? 0 : parts));
    l.data_bytes = apart ? align64(parts) : 0;
    l.bytes = l.host_bytes + l.data_bytes;
    return l;
}

/* Blocks of a type that seals are two layouts; a group of keys is a whole block or several are. */
static int store_seals(struct kvl_store *store, struct kvl_err *err)
{
    struct kvl_store_desc *d = &store->desc;
    int32_t open = KVL_MAX(kvl_kv_facts(kvl_kv_keys(d->type))->open_tok,
                           kvl_kv_facts(kvl_kv_values(d->type))->open_tok);
    if (d->device && d->device->discrete)
        return kvl_fail(
            err, KVL_EINVAL,
            "%s in memory of a GPU, which has blocks of one size; want a type whose rows "
            "stand alone (f16, q8_0, q4_0 ...), or the CPU",
            kvl_kv_name(d->type).text);
    d->block_tok = KVL_MAX(d->block_tok, KVL_KV_GROUP);
    store->open_blocks = (open + d->block_tok - 1) / d->block_tok;
    store->layout = store_layout(d, kvl_kv_open(d->type));
    store->sealed_layout = store_layout(d, d->type);
    store->sealed_layout.grouped = true;
    store->layout.sealed = &store->sealed_layout;
    store->group = kvl_alloc((size_t)KVL_KV_GROUP * (size_t)d->head_dim, sizeof *store->group);
    return store->group ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "KV store: no memory for a group");
}

/* A device has two more pools: pinned memory for blocks that were moved to the host, and room for copies of
 * what is fetched from it. The limit is of the first alone; the peak is of the first two together, which know
 * each other for that. */
static void store_pools(struct kvl_store *store)
{
    const struct kvl_layout *l = &store->layout;
    size_t limit = store->desc.limit_bytes;
    kvl_pool_init(&store->pool, l, store->device, KVL_PLACE_DEVICE, limit);
    if (l->sealed) {
        kvl_pool_init(&store->sealed, l->sealed, NULL, KVL_PLACE_DEVICE, limit);
        store->pool.other = &store->sealed;
        store->sealed.other = &store->pool;
    }
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
    int rc = KVL_OK;
    if (kvl_kv_seals(desc->type))
        rc = store_seals(store, err);
    else
        store->layout = store_layout(&store->desc, desc->type);
    if (rc != KVL_OK) {
        kvl_free(store);
        return rc;
    }
    if (desc->device && desc->device->discrete) store->device = desc->device;
    store_pools(store);
    if (store->device) rc = kvl_moves_open(store, err);
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
    kvl_pool_close(&store->sealed);
    kvl_moves_close(store);
    kvl_free(store->spans);
    kvl_free(store->group);
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
    const struct kvl_pool *p = &store->pool, *all[] = { p, &store->host, &store->sealed };
    *out = (struct kvl_store_stats){ .n_sequences = store->n_seqs,
                                     .block_bytes = p->block_bytes,
                                     .sealed_block_bytes = store->sealed.block_bytes,
                                     .limit_bytes = p->limit_bytes };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        out->n_blocks += all[i]->n_blocks;
        out->n_refs += all[i]->n_refs;
        out->bytes += (size_t)all[i]->n_blocks * all[i]->block_bytes;
        out->peak_bytes = KVL_MAX(out->peak_bytes, all[i]->peak_bytes);
    }
}

void kvl_store_reset_peak(struct kvl_store *store)
{
    store->pool.peak_bytes = kvl_pool_bytes(&store->pool);
    store->host.peak_bytes = store->sealed.peak_bytes = 0;
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
