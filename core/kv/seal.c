/* Blocks of two sizes: of a store whose type seals (kvtypes.def, lane.h).
 *
 * A lane of n slots has sealed all blocks but the one that grows and the open_blocks before it; nothing else decides, so
 * that a lane is the same however its slots came.  A block is sealed when the block that makes it too old begins: its rows are
 * written to a block of the other size, and the open one goes back to its pool.  Another sequence that has it
 * keeps it and seals its own.
 *
 * An eviction opens what it moves, closes up and seals again: what was quantised once is quantised twice, in groups of
 * neighbours that stayed.  Nothing before the first slot that goes is touched, but for sealed blocks that are too many for
 * the shorter lane: they are opened. */
#include "seal.h"

#include "kv_rows.h"

#include <assert.h>
#include <string.h>

int32_t kvl_sealed_of(const struct kvl_store *store, int32_t n_slots)
{
    if (!store->layout.sealed) return 0;
    return KVL_MAX(0, kvl_blocks_for(&store->layout, n_slots) - 1 - store->open_blocks);
}

bool kvl_seq_seals(const struct kvl_seq *seq, int32_t layer, int32_t n)
{
    const struct kvl_store *store = seq->store;
    for (int32_t h = 0; store->layout.sealed && h < store->desc.n_kv_heads; h++) {
        const struct kvl_table *t = kvl_seq_table(seq, layer, h);
        if (kvl_sealed_of(store, t->n_slots + n) > t->n_sealed) return true;
    }
    return false;
}

/* ---- a block ------------------------------------------------------------------------------------------------ */

void kvl_kept_get(const struct kvl_kept *k, float *x, int32_t n)
{
    if (k->token >= 0)
        kvl_group_get(k->type, x, k->at, n, k->token);
    else
        kvl_row_get(k->type, x, k->at, n);
}

/* Rows of a part, as they are where their type stays: turned ones would not come back bit for bit. */
static void part_rows(const struct kvl_layout *l, enum kvl_kv_part part, uint8_t *to,
                      const struct kvl_kept *from, int32_t n, float *x)
{
    for (int32_t i = 0; i < n; i++, to += l->row_bytes[part]) {
        if (from[i].token < 0 && from[i].type == l->type[part]) {
            memcpy(to, from[i].at, l->row_bytes[part]);
            continue;
        }
        kvl_kept_get(&from[i], x, l->head_dim);
        kvl_row_put(l->type[part], to, x, l->head_dim);
    }
}

static void part_groups(const struct kvl_layout *l, enum kvl_kv_part part, uint8_t *to,
                        const struct kvl_kept *from, int32_t n, float *x)
{
    assert(n % KVL_KV_GROUP == 0);
    for (int32_t i = 0; i < n; i += KVL_KV_GROUP) {
        for (int32_t t = 0; t < KVL_KV_GROUP; t++)
            kvl_kept_get(&from[i + t], x + (size_t)t * (size_t)l->head_dim, l->head_dim);
        kvl_group_put(l->type[part], to + (size_t)i * l->row_bytes[part], x, l->head_dim);
    }
}

/* n slots of a lane to a block of layout l, from its start on. */
static void block_fill(const struct kvl_store *store, const struct kvl_table *t,
                       const struct kvl_layout *l, uint8_t *to, const int32_t *slot, int32_t n)
{
    struct kvl_kept from[KVL_BLOCK_TOK_MAX];
    for (int part = 0; part < 3; part++) {
        if (l->part_off[part] == SIZE_MAX) continue;
        for (int32_t i = 0; i < n; i++)
            from[i] = kvl_table_kept(&store->layout, t, (enum kvl_kv_part)part, slot[i]);
        (kvl_layout_groups(l, (enum kvl_kv_part)part) ? part_groups : part_rows)(
            l, (enum kvl_kv_part)part, to + l->part_off[part], from, n, store->group);
    }
    for (int32_t i = 0; i < n; i++)
        kvl_block_pos(l, to)[i] = kvl_table_pos(&store->layout, t, slot[i]);
}

/* ---- an append ---------------------------------------------------------------------------------------------- */

int32_t kvl_seal_need(const struct kvl_store *store, const struct kvl_table *t, int32_t n)
{
    return kvl_sealed_of(store, t->n_slots + n) - t->n_sealed;
}

void kvl_seal_lane(struct kvl_store *store, struct kvl_table *t, uint8_t ***fresh)
{
    const struct kvl_layout *l = &store->layout;
    int32_t slot[KVL_BLOCK_TOK_MAX], target = kvl_sealed_of(store, t->n_slots);
    for (int32_t b = t->n_sealed; b < target; b++) {
        for (int32_t i = 0; i < l->block_tok; i++) slot[i] = (b << l->block_shift) + i;
        uint8_t *to = *(*fresh)++;
        block_fill(store, t, l->sealed, to, slot, l->block_tok);
        kvl_block_unref(t->blocks[b]);
        t->blocks[b] = to;
        t->n_sealed = b + 1;
    }
}

/* ---- an eviction -------------------------------------------------------------------------------------------- */

/* New blocks of a lane that keeps n of its slots: all from `first` on. */
struct rebuild {
    int32_t n_new, first, n_blocks,
        n_sealed; /* slots; blocks: as they are before, all, sealed ones of all */
};

static struct rebuild rebuild_plan(const struct kvl_store *store, const struct kvl_table *t,
                                   int32_t first_gone, int32_t n_new)
{
    const struct kvl_layout *l = &store->layout;
    struct rebuild r = { .n_new = n_new,
                         .n_blocks = kvl_blocks_for(l, n_new),
                         .n_sealed = kvl_sealed_of(store, n_new) };
    r.first = KVL_MIN(first_gone >> l->block_shift, r.n_blocks);
    /* A shorter lane has fewer sealed blocks: some of those before are opened, too. */
    if (t->n_sealed > r.n_sealed) r.first = KVL_MIN(r.first, r.n_sealed);
    return r;
}

/* Everything that can run short; room for blocks [n_blocks]. */
static int rebuild_take(struct kvl_store *store, const struct rebuild *r, struct kvl_err *err)
{
    int32_t sealed = KVL_MAX(0, r->n_sealed - r->first), n = r->n_blocks - r->first;
    KVL_TRY(kvl_scratch_blocks(&store->scratch, n, err));
    uint8_t **fresh = store->scratch.blocks;
    KVL_TRY(kvl_pool_take(&store->sealed, sealed, fresh, err));
    int rc = kvl_pool_take(&store->pool, n - sealed, fresh + sealed, err);
    for (int32_t i = 0; rc != KVL_OK && i < sealed; i++) kvl_block_unref(fresh[i]);
    return rc;
}

int kvl_seal_keep(struct kvl_store *store, struct kvl_table *t, int32_t n_gone, struct kvl_err *err)
{
    const struct kvl_layout *l = &store->layout;
    const int32_t *gone = store->scratch.ranks; /* slots: the lane is in order */
    int32_t slot[KVL_BLOCK_TOK_MAX], have = kvl_blocks_for(l, t->n_slots), g = 0;
    const struct rebuild r = rebuild_plan(store, t, gone[0], t->n_slots - n_gone);
    KVL_TRY(rebuild_take(store, &r, err));
    uint8_t **fresh = store->scratch.blocks;
    assert(t->sorted);
    for (int32_t b = r.first, at = r.first << l->block_shift; b < r.n_blocks; b++) {
        int32_t n = KVL_MIN(l->block_tok, r.n_new - (b << l->block_shift)), i = 0;
        for (; i < n; at++) {
            if (g < n_gone && gone[g] == at)
                g++;
            else
                slot[i++] = at;
        }
        block_fill(store, t, b < r.n_sealed ? l->sealed : l, fresh[b - r.first], slot, n);
    }
    for (int32_t b = r.first; b < have; b++) kvl_block_unref(t->blocks[b]);
    for (int32_t b = r.first; b < r.n_blocks; b++) t->blocks[b] = fresh[b - r.first];
    t->n_slots = r.n_new;
    t->n_sealed = r.n_sealed;
    t->max_pos = r.n_new > 0 ? kvl_table_pos(l, t, r.n_new - 1) : -1;
    return KVL_OK;
}
