/* Blocks that come back from a snapshot: with ascending positions, taken at once for all heads of a layer. The
 * caller fills their parts, in as few copies as the blocks lie in a row. */
#include "restore.h"

#include "seal.h"

#include <assert.h>
#include <string.h>

size_t kvl_layout_data(const struct kvl_layout *l, size_t *bytes)
{
    *bytes = l->data_bytes;
    for (int part = 0; part < 3 && !l->data_bytes; part++)
        if (l->part_off[part] != SIZE_MAX) *bytes += (size_t)l->block_tok * l->row_bytes[part];
    return l->part_off[KVL_PART_K];
}

/* Blocks of kv head h, sealed ones first; those of the heads before go back where there are none. */
static int restore_take(struct kvl_store *store, int32_t n_sealed, int32_t n, int32_t h,
                        uint8_t **out, struct kvl_err *err)
{
    int32_t taken = h * n;
    int rc = kvl_pool_take(&store->sealed, n_sealed, out + taken, err);
    if (rc == KVL_OK) {
        taken += n_sealed;
        rc = kvl_pool_take(&store->pool, n - n_sealed, out + taken, err);
    }
    for (int32_t i = 0; rc != KVL_OK && i < taken; i++) kvl_block_unref(out[i]);
    return rc;
}

/* Everything that can run short comes first, so that a refusal leaves the sequence as it was. */
static int restore_reserve(struct kvl_seq *seq, int32_t layer, int32_t n, int32_t n_sealed,
                           uint8_t **out, struct kvl_err *err)
{
    struct kvl_store *store = seq->store;
    for (int32_t h = 0; h < store->desc.n_kv_heads; h++) {
        struct kvl_table *t = kvl_seq_table(seq, layer, h);
        int32_t have = kvl_blocks_for(&store->layout, t->n_slots);
        void *blocks = t->blocks;
        assert(t->sorted && t->n_slots % store->desc.block_tok == 0);
        int rc = kvl_grow(&blocks, &t->cap_blocks, have, have + n, sizeof *t->blocks, err);
        t->blocks = blocks;
        if (rc != KVL_OK) return rc;
        KVL_TRY(kvl_links_reserve(seq, have + n, err));
    }
    for (int32_t h = 0; h < store->desc.n_kv_heads && store->layout.sealed; h++)
        KVL_TRY(restore_take(store, n_sealed, n, h, out, err));
    if (store->layout.sealed) return KVL_OK;
    return kvl_pool_take(&store->pool, n * store->desc.n_kv_heads, out, err);
}

/* The next n slots of a lane, in blocks that are new. */
static void restore_lane(struct kvl_table *t, const struct kvl_layout *l, int32_t pos, int32_t n,
                         uint8_t *const *block)
{
    int32_t first = t->n_slots >> l->block_shift;
    for (int32_t i = 0; i < n; i++) {
        int32_t b = i >> l->block_shift;
        kvl_block_pos(l, block[b])[i & (l->block_tok - 1)] = pos + i;
        t->blocks[first + b] = block[b];
    }
    t->n_slots += n;
    t->max_pos = pos + n - 1;
    kvl_table_changed(t, first, kvl_blocks_for(l, t->n_slots));
}

/* A snapshot is of sessions that evicted nothing: lanes are sorted, so that positions follow from the first one. */
int kvl_seq_restore(struct kvl_seq *seq, int32_t layer, int32_t pos, int32_t n, int32_t n_all,
                    uint8_t **out, struct kvl_err *err)
{
    struct kvl_store *store = seq->store;
    int32_t n_blocks = kvl_blocks_for(&store->layout, n), all = kvl_sealed_of(store, n_all);
    int32_t have = kvl_seq_table(seq, layer, 0)->n_slots >> store->layout.block_shift;
    int32_t n_sealed = KVL_MAX(0, KVL_MIN(all - have, n_blocks));
    KVL_TRY(restore_reserve(seq, layer, n_blocks, n_sealed, out, err));
    for (int32_t h = 0; h < store->desc.n_kv_heads; h++) {
        struct kvl_table *t = kvl_seq_table(seq, layer, h);
        assert(t->n_slots == 0 || pos == t->max_pos + 1);
        restore_lane(t, &store->layout, pos, n, out + h * n_blocks);
        t->n_sealed += n_sealed;
    }
    return KVL_OK;
}

/* How many of n blocks have their parts in a row: blocks that were taken together often do. */
static int32_t blocks_run(const struct kvl_store *store, const uint8_t *const *block, int32_t n)
{
    int32_t i = 1;
    while (i < n && kvl_block_follows(&store->layout, block[0], block[i], i)) i++;
    return i;
}

/* One copy for each run of blocks: a copy to a device costs more than the bytes of a block. */
int kvl_blocks_write(struct kvl_store *store, uint8_t *const *block, int32_t n,
                     const uint8_t *bytes, struct kvl_err *err)
{
    const uint8_t *const *from = (const uint8_t *const *)block;
    for (int32_t i = 0, run; i < n; i += run) {
        run = blocks_run(store, from + i, n - i);
        size_t size = (size_t)run * store->layout.data_bytes;
        int rc = store->device->copy(kvl_block_head(block[i])->data, bytes, size, KVL_STREAM_MAIN);
        if (rc != KVL_OK) return kvl_device_fail(store, rc, err);
        bytes += size;
    }
    return KVL_OK;
}

int kvl_blocks_read(struct kvl_store *store, const uint8_t *const *block, int32_t n, uint8_t *bytes,
                    struct kvl_err *err)
{
    for (int32_t i = 0, run; i < n; i += run) {
        run = blocks_run(store, block + i, n - i);
        size_t size = (size_t)run * store->layout.data_bytes;
        int rc = store->device->copy(bytes, kvl_block_parts(block[i]), size, KVL_STREAM_MAIN);
        if (rc != KVL_OK) return kvl_device_fail(store, rc, err);
        bytes += size;
    }
    return KVL_OK;
}
