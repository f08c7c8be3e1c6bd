/* Blocks in two pieces: their slots that move, and the tables by which a device finds their parts.
 *
 * Positions move at once.  Keys and values wait in lists and go in one call of the device, through staging memory of the
 * store, so that nothing runs short in the middle of an eviction. */
#include "store.h"

#include <assert.h>
#include <string.h>

enum { MOVES_MAX = 4096, MOVES_BLOCKS = 1024, LINKS_MIN = 64, LINKS_STEP = 256 };
#define MOVES_STAGE_BYTES ((size_t)8 << 20)

/* The device may have failed before, which then is the reason to tell. */
static int device_take(const struct kvl_store *store, size_t n, size_t item, void **out,
                       struct kvl_err *err)
{
    *out = store->device->alloc(KVL_PLACE_DEVICE, n, item);
    if (*out) return KVL_OK;
    if (store->device->error()[0]) return kvl_device_fail(store, KVL_EDEVICE, err);
    return kvl_fail(err, KVL_ENOMEM, "KV store: no memory for %zu x %zu bytes on the device", n,
                    item);
}

/* The staging memory is taken when the store is created: an eviction must not fail half way for want of it. It
 * holds one block at least, so that every single move fits. */
int kvl_moves_open(struct kvl_store *store, struct kvl_err *err)
{
    size_t block = kvl_layout_slot(&store->layout) * (size_t)store->layout.block_tok;
    size_t bytes = KVL_MIN(MOVES_STAGE_BYTES, MOVES_BLOCKS * block);
    if (store->desc.limit_bytes) bytes = KVL_MIN(bytes, store->desc.limit_bytes);
    store->stage_bytes = KVL_MAX(bytes, block);
    KVL_TRY(device_take(store, 1, store->stage_bytes, &store->stage, err));
    for (int kind = 0; kind < KVL_MOVES_KINDS; kind++) {
        store->moves[kind].move = kvl_alloc(MOVES_MAX, sizeof *store->moves[kind].move);
        if (!store->moves[kind].move)
            return kvl_fail(err, KVL_ENOMEM, "KV store: no memory for %d moves", MOVES_MAX);
    }
    return KVL_OK;
}

void kvl_moves_close(struct kvl_store *store)
{
    kvl_free(store->gone);
    if (store->stage) store->device->free(KVL_PLACE_DEVICE, store->stage);
    for (int kind = 0; kind < KVL_MOVES_KINDS; kind++) kvl_free(store->moves[kind].move);
}

void kvl_store_settle(const struct kvl_store *store)
{
    /* A failure is the device's: what is given to it next tells. */
    if (store->places.n_blocks > 0) (void)store->device->order(KVL_STREAM_COPY, KVL_STREAM_MAIN);
}

void kvl_moves_run(struct kvl_store *store)
{
    if (store->moves[0].n + store->moves[1].n > 0) kvl_store_settle(store);
    for (int kind = 0; kind < KVL_MOVES_KINDS; kind++) {
        struct kvl_moves *m = &store->moves[kind];
        if (m->n > 0 && store->moves_rc == KVL_OK)
            store->moves_rc = store->device->kv_move(
                &(struct kvl_kv_move_args){ .layout = &store->layout,
                                            .move = m->move,
                                            .n_moves = m->n,
                                            .stage = store->stage,
                                            .stage_bytes = store->stage_bytes });
        m->n = 0;
        m->n_slots = 0;
    }
}

/* While moves are held, several evictions share one launch; kvl_store_release carries them out. */
int kvl_moves_end(struct kvl_store *store, struct kvl_err *err)
{
    if (!store->device || store->held) return KVL_OK;
    kvl_moves_run(store);
    int rc = store->moves_rc;
    store->moves_rc = KVL_OK;
    return rc == KVL_OK ? rc : kvl_device_fail(store, rc, err);
}

void kvl_store_hold(struct kvl_store *store)
{
    store->held = true;
}

int kvl_store_release(struct kvl_store *store, struct kvl_err *err)
{
    store->held = false;
    int rc = kvl_moves_end(store, err);
    for (int32_t i = 0; i < store->n_gone; i++) kvl_block_unref(store->gone[i]);
    store->n_gone = 0;
    return rc;
}

/* A block that goes may still be read by moves that wait. Where there is no memory to remember it, they run
 * now. */
void kvl_moves_unref(struct kvl_store *store, uint8_t *block)
{
    void *gone = store->gone;
    bool holds = store->held && store->device;
    int rc = holds ? kvl_grow(&gone, &store->cap_gone, store->n_gone, store->n_gone + 1,
                              sizeof *store->gone, NULL)
                   : KVL_OK;
    store->gone = gone;
    if (holds && rc == KVL_OK) {
        store->gone[store->n_gone++] = block;
        return;
    }
    kvl_moves_run(store);
    kvl_block_unref(block);
}

/* memmove, for an eviction moves slots within one block. */
void kvl_block_copy(const struct kvl_layout *l, uint8_t *dst, int32_t dst_slot, uint8_t *src,
                    int32_t src_slot, int32_t n)
{
    for (int part = 0; part < 3; part++) {
        size_t row = l->row_bytes[part];
        if (l->part_off[part] == SIZE_MAX) continue;
        memmove(dst + l->part_off[part] + (size_t)dst_slot * row,
                src + l->part_off[part] + (size_t)src_slot * row, (size_t)n * row);
    }
    memmove(kvl_block_pos(l, dst) + dst_slot, kvl_block_pos(l, src) + src_slot,
            (size_t)n * sizeof(int32_t));
}

/* Positions move at once, for the host looks at them before the device has moved the parts. */
void kvl_moves_add(struct kvl_store *store, enum kvl_moves_kind kind, uint8_t *dst,
                   int32_t dst_slot, uint8_t *src, int32_t src_slot, int32_t n)
{
    const struct kvl_layout *l = &store->layout;
    if (!store->device) {
        kvl_block_copy(l, dst, dst_slot, src, src_slot, n);
        return;
    }
    struct kvl_moves *m = &store->moves[kind];
    if (m->n == MOVES_MAX ||
        (size_t)(m->n_slots + n) * kvl_layout_slot(&store->layout) > store->stage_bytes)
        kvl_moves_run(store);
    memmove(kvl_block_pos(l, dst) + dst_slot, kvl_block_pos(l, src) + src_slot,
            (size_t)n * sizeof(int32_t));
    m->move[m->n++] = (struct kvl_kv_move){ .to = kvl_block_head(dst)->data,
                                            .from = kvl_block_head(src)->data,
                                            .to_slot = dst_slot,
                                            .from_slot = src_slot,
                                            .n = n,
                                            .at = m->n_slots };
    m->n_slots += n;
}

/* ---- tables of the device --------------------------------------------------------------------- */

static int32_t links_lanes(const struct kvl_store *store)
{
    return store->desc.n_layers * store->desc.n_kv_heads;
}

/* New memory knows nothing: all blocks of all lanes are told again when a view is taken. */
int kvl_links_reserve(struct kvl_seq *seq, int32_t n_blocks, struct kvl_err *err)
{
    struct kvl_store *store = seq->store;
    if (!store->device || n_blocks <= seq->cap_links) return KVL_OK;
    int64_t cap = KVL_MAX((int64_t)n_blocks, (int64_t)seq->cap_links + seq->cap_links / 2);
    cap = KVL_MIN(KVL_MAX(cap, LINKS_MIN), INT32_MAX);
    size_t n = (size_t)links_lanes(store) * (size_t)cap;
    void *links;
    KVL_TRY(device_take(store, n, sizeof *seq->links, &links, err));
    if (seq->links) store->device->free(KVL_PLACE_DEVICE, seq->links);
    seq->links = links;
    seq->cap_links = (int32_t)cap;
    for (int32_t i = 0; i < links_lanes(store); i++)
        kvl_table_changed(&seq->tables[i], 0,
                          kvl_blocks_for(&store->layout, seq->tables[i].n_slots));
    return KVL_OK;
}

/* Copied on the device, since the host keeps no copy to send. */
int kvl_links_fork(const struct kvl_seq *from, struct kvl_seq *to, struct kvl_err *err)
{
    struct kvl_store *store = from->store;
    if (!from->links) return KVL_OK;
    size_t n = (size_t)links_lanes(store) * (size_t)from->cap_links;
    void *links;
    KVL_TRY(device_take(store, n, sizeof *to->links, &links, err));
    to->links = links;
    to->cap_links = from->cap_links;
    int rc = store->device->copy(to->links, from->links, n * sizeof *to->links, KVL_STREAM_MAIN);
    return rc == KVL_OK ? rc : kvl_device_fail(store, rc, err);
}

/* A failure is the device's: whatever is given to it next tells. */
const uint8_t *const *kvl_links_view(const struct kvl_seq *seq, int32_t lane)
{
    const struct kvl_store *store = seq->store;
    struct kvl_table *t = &seq->tables[lane];
    if (!seq->links) return NULL;
    const uint8_t **links = seq->links + (size_t)lane * (size_t)seq->cap_links, *some[LINKS_STEP];
    int32_t end = KVL_MIN(t->link_hi, kvl_blocks_for(&store->layout, t->n_slots));
    for (int32_t b = t->link_lo; b < end; b += LINKS_STEP) {
        int32_t n = KVL_MIN(LINKS_STEP, end - b);
        for (int32_t i = 0; i < n; i++) some[i] = kvl_block_head(t->blocks[b + i])->data;
        (void)store->device->copy(links + b, some, (size_t)n * sizeof *some, KVL_STREAM_MAIN);
    }
    t->link_lo = t->link_hi = 0;
    return links;
}
