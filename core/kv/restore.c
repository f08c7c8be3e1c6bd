#include "kv/restore.h"

#include "kv/store.h"

#include <assert.h>

size_t kvl_layout_data(const struct kvl_layout *l, size_t *bytes)
{
    *bytes = l->pos_off - l->part_off[KVL_PART_K];
    return l->part_off[KVL_PART_K];
}

static int restore_reserve(struct kvl_seq *seq, int32_t layer, int32_t n, uint8_t **out,
                           struct kvl_err *err)
{
    struct kvl_store *store = seq->store;
    for (int32_t h = 0; h < store->desc.n_kv_heads; h++) {
        struct kvl_table *t = kvl_seq_table(seq, layer, h);
        int32_t have = kvl_blocks_for(&store->layout, t->n_slots);
        void *blocks = t->blocks;
        assert(t->sorted && t->max_pos == t->n_slots - 1 &&
               t->n_slots % store->desc.block_tok == 0);
        int rc = kvl_grow(&blocks, &t->cap_blocks, have, have + n, sizeof *t->blocks, err);
        t->blocks = blocks;
        if (rc != KVL_OK) return rc;
    }
    return kvl_pool_take(&store->pool, n * store->desc.n_kv_heads, out, err);
}

int kvl_seq_restore(struct kvl_seq *seq, int32_t layer, int32_t n, uint8_t **out,
                    struct kvl_err *err)
{
    struct kvl_store *store = seq->store;
    const struct kvl_layout *l = &store->layout;
    KVL_TRY(restore_reserve(seq, layer, n, out, err));
    for (int32_t h = 0; h < store->desc.n_kv_heads; h++) {
        struct kvl_table *t = kvl_seq_table(seq, layer, h);
        for (int32_t b = 0; b < n; b++, t->n_slots += l->block_tok) {
            uint8_t *block = out[h * n + b];
            for (int32_t i = 0; i < l->block_tok; i++) kvl_block_pos(l, block)[i] = t->n_slots + i;
            t->blocks[t->n_slots >> l->block_shift] = block;
        }
        t->max_pos = t->n_slots - 1;
    }
    return KVL_OK;
}
