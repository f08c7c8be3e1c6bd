/* Blocks that move between memory of the device and pinned memory of the host, whole and in both directions. */
#include "place.h"

#include "store.h"

#include <assert.h>
#include <string.h>

enum { PLACE_STEP = 1024 }; /* blocks that are there twice while they move */

/* How many of n moves follow each other on both sides: one copy serves them. */
static int32_t place_run(const struct kvl_store *store, uint8_t *const *from, uint8_t *const *to,
                         int32_t n)
{
    const struct kvl_layout *l = &store->layout;
    int32_t i = 1;
    while (i < n && kvl_block_follows(l, from[0], from[i], i) &&
           kvl_block_follows(l, to[0], to[i], i))
        i++;
    return i;
}

/* Positions of both kinds of blocks are in ordinary memory, and move at once; parts go over the bus
 * in order with other work of the device. */
static int place_copy(const struct kvl_store *store, uint8_t *const *from, uint8_t *const *to,
                      int32_t n)
{
    const struct kvl_layout *l = &store->layout;
    for (int32_t i = 0; i < n; i++)
        memcpy(kvl_block_pos(l, to[i]), kvl_block_pos(l, from[i]),
               (size_t)l->block_tok * sizeof(int32_t));
    for (int32_t i = 0, run; i < n; i += run) {
        run = place_run(store, from + i, to + i, n - i);
        KVL_TRY(store->device->copy(kvl_block_head(to[i])->data, kvl_block_head(from[i])->data,
                                    (size_t)run * l->data_bytes, KVL_STREAM_MAIN));
    }
    return KVL_OK;
}

/* At most PLACE_STEP blocks, none of which is in `to`.  A block that moves counts once. */
static int place_move(struct kvl_store *store, uint8_t **block, int32_t n, struct kvl_pool *to,
                      struct kvl_err *err)
{
    size_t peak = to->peak_bytes;
    KVL_TRY(kvl_scratch_blocks(&store->scratch, n, err));
    uint8_t **fresh = store->scratch.blocks;
    KVL_TRY(kvl_pool_take(to, n, fresh, err));
    /* The stream of copies may still read blocks that were given back to this pool: MAIN writes to
     * them after it. */
    kvl_store_settle(store);
    int rc = place_copy(store, block, fresh, n);
    for (int32_t i = 0; i < n; i++) {
        /* Only this table goes over to the new block: a fork that shares the old one keeps it where
         * it is. */
        kvl_block_unref(rc == KVL_OK ? block[i] : fresh[i]);
        if (rc == KVL_OK) block[i] = fresh[i];
    }
    to->peak_bytes = KVL_MAX(peak, kvl_pool_bytes(&store->pool));
    return rc == KVL_OK ? KVL_OK : kvl_device_fail(store, rc, err);
}

int kvl_table_move(struct kvl_store *store, struct kvl_table *t, int32_t first, int32_t end,
                   struct kvl_pool *to, struct kvl_err *err)
{
    assert(store->device && end <= kvl_blocks_for(&store->layout, t->n_slots));
    for (int32_t b = first, n; b < end; b += n) {
        /* Runs of blocks that have to move, in steps, since for the length of a copy a block is
         * there twice. */
        n = 1;
        if (kvl_block_of(to, t->blocks[b])) continue;
        while (b + n < end && n < PLACE_STEP && !kvl_block_of(to, t->blocks[b + n])) n++;
        KVL_TRY(place_move(store, t->blocks + b, n, to, err));
        kvl_table_changed(t, b, b + n);
    }
    return KVL_OK;
}

int kvl_seq_reserve(struct kvl_seq *seq, int32_t n_slots, struct kvl_err *err)
{
    return kvl_links_reserve(seq, kvl_blocks_for(&seq->store->layout, n_slots), err);
}

int kvl_seq_to_host(struct kvl_seq *seq, int32_t layer, struct kvl_err *err)
{
    struct kvl_store *store = seq->store;
    int64_t n_before = store->host.n_blocks;
    for (int32_t h = 0; store->device && h < store->desc.n_kv_heads; h++) {
        struct kvl_table *t = kvl_seq_table(seq, layer, h);
        int32_t n_full = t->n_slots >> store->layout.block_shift, first = n_full;
        /* Those before are there from an earlier call. */
        while (first > 0 && !kvl_block_of(&store->host, t->blocks[first - 1])) first--;
        KVL_TRY(kvl_table_move(store, t, first, n_full, &store->host, err));
    }
    if (store->host.n_blocks == n_before) return KVL_OK;
    int rc = store->device->sync(); /* what a device frees comes back with a wait */
    return rc == KVL_OK ? rc : kvl_device_fail(store, rc, err);
}

int kvl_seq_to_device(struct kvl_seq *seq, int32_t layer, struct kvl_err *err)
{
    struct kvl_store *store = seq->store;
    for (int32_t h = 0; store->device && h < store->desc.n_kv_heads; h++) {
        struct kvl_table *t = kvl_seq_table(seq, layer, h);
        int32_t n_blocks = kvl_blocks_for(&store->layout, t->n_slots);
        KVL_TRY(kvl_table_move(store, t, 0, n_blocks, &store->pool, err));
    }
    return KVL_OK;
}

int64_t kvl_seq_host_slots(const struct kvl_seq *seq, int32_t layer)
{
    const struct kvl_store *store = seq->store;
    const struct kvl_layout *l = &store->layout;
    int64_t n = 0;
    for (int32_t h = 0; store->device && h < store->desc.n_kv_heads; h++) {
        const struct kvl_table *t = kvl_seq_table(seq, layer, h);
        for (int32_t b = 0; b < kvl_blocks_for(l, t->n_slots); b++)
            if (kvl_block_of(&store->host, t->blocks[b]))
                n += KVL_MIN(l->block_tok, t->n_slots - (b << l->block_shift));
    }
    return n;
}
