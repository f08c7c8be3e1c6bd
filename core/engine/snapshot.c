/* Snapshots: a prefilled session on disk.  What is written is what policies can see of it: keys and
 * values as they are stored, and the observers; a session that was never under a policy holds every
 * position in its slot, so that positions need no bytes.
 *
 * Content, little-endian: a head of numbers; the ids of the tokens; of a model with layers of a window, how many
 * blocks each layer has freed; per layer the full blocks, CHUNK_BLOCKS of each kv head
 * in turn, as they lie in memory, sealed ones of a type that seals as such; per layer, kv head and part the rows of the
 * tokens after the last full block;
 * the ring of queries and that of their log-sum-exp; the column sums with their carries; the moments.
 * Only the store knows the layout of a block: nothing is converted, and a load costs little more than
 * decoding the file. */
#include "snapshot_file.h"

#include "engine_impl.h"
#include "kvl_core_id.h"
#include "place.h"
#include "restore.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

/* Blocks of one kv head that are made room for before their bytes are read. */
enum { CHUNK_BLOCKS = 16 };

/* ---- key ------------------------------------------------------------------------------------------- */

/* Repetitions of a context are not stored: they are made anew from the cache when a policy asks. */
static bool observer_has_bytes(const struct kvl_observer_set *set, int32_t i)
{
    return !kvl_observes_replay(set->column[i].what);
}

/* Observers are part of the key: a snapshot without them could not serve a policy that asks. */
static int key_observers(const struct kvl_observer_set *set, struct kvl_buf *out)
{
    KVL_TRY(kvl_buf_printf(out, "observe window=%d", set->window));
    for (int32_t i = 0; i < set->n_columns; i++)
        if (observer_has_bytes(set, i))
            KVL_TRY(kvl_buf_printf(out, " %s=%d", kvl_observer_name(set->column[i].what),
                                   set->column[i].param));
    return kvl_buf_adds(out, "\n");
}

/* They may be switched off when a model is opened. */
static int key_windows(const struct kvl_shape *sh, struct kvl_buf *out)
{
    if (!sh->window) return KVL_OK;
    XXH128_hash_t hash = XXH3_128bits(sh->window, (size_t)sh->n_layers * sizeof *sh->window);
    return kvl_buf_printf(out, "windows %016" PRIx64 "\n", hash.low64);
}

/* Whatever may change a bit of the content: model, code, operators and their machine, store, windows, observers, tokens.
 * A key without one of its lines would be that of something else. */
static int key_lines(const struct kvl_engine *e, const int32_t *id, int32_t n, struct kvl_buf *out)
{
    const struct kvl_store_desc *d = kvl_store_desc(e->store);
    XXH128_hash_t hash = XXH3_128bits(id, (size_t)n * sizeof *id);
    struct kvl_device_info info;
    e->dev->info(&info);
    KVL_TRY(kvl_buf_printf(out, "kvlab snapshot 5\nmodel %s\ncode %s%s\nops %s %s\n",
                           kvl_model_hash(e->model), KVL_CORE_ID,
                           e->dev->discrete ? "-" KVL_CUDA_ID : "", e->ops->name,
                           e->dev->discrete ? info.name : kvl_ops_isa()));
    KVL_TRY(kvl_buf_printf(out, "kv %s block=%d%s\n", kvl_kv_name(d->type).text, d->block_tok,
                           d->raw_keys ? " raw_keys" : ""));
    KVL_TRY(key_windows(&e->model->shape, out));
    if (e->model->w.n_ctx_short > 0)
        KVL_TRY(kvl_buf_printf(out, "rope %s\n", e->rope_long ? "long" : "short"));
    KVL_TRY(key_observers(&e->desc.observers, out));
    if (kvl_prefills_bf16(e)) KVL_TRY(kvl_buf_adds(out, "prefill bf16\n"));
    /* The size of a chunk only with OpenBLAS: elsewhere a row does not depend on those beside
     * it. */
    if (e->desc.prefill_type == KVL_PREFILL_BLAS)
        KVL_TRY(
            kvl_buf_printf(out, "prefill blas chunk=%d %s\n", e->desc.chunk_tok, kvl_ops_blas()));
    return kvl_buf_printf(out, "tokens %d %016" PRIx64 "%016" PRIx64 "\n", n, hash.high64,
                          hash.low64);
}

int kvl_snapshot_key(const struct kvl_engine *e, const int32_t *id, int32_t n, struct kvl_buf *out,
                     struct kvl_err *err)
{
    if (n < 1) return kvl_fail(err, KVL_EINVAL, "snapshot of %d tokens, want at least 1", n);
    int rc = key_lines(e, id, n, out);
    return rc == KVL_OK ? KVL_OK : kvl_fail(err, rc, "out of memory for the key of a snapshot");
}

/* ---- head ------------------------------------------------------------------------------------------ */

/* What the content declares; everything but the three lengths must be as in the engine.  Members are of one size, so
 * that there is no padding: heads are written and compared as they lie. */
struct snapshot_head {
    int32_t n_layers, n_kv_heads, head_dim, n_heads, type, raw_keys;
    int32_t window, n_columns, column[2 * KVL_MAX_COLUMNS];
    int32_t n_pos;         /* tokens */
    int32_t n_seen, n_tok; /* by the observers; room of their columns */
};

/* Zeroed first, since heads are compared byte by byte. */
static struct snapshot_head head_of(const struct kvl_engine *e)
{
    const struct kvl_shape *sh = &e->model->shape;
    const struct kvl_store_desc *d = kvl_store_desc(e->store);
    const struct kvl_observer_set *set = &e->desc.observers;
    struct snapshot_head h = { .n_layers = sh->n_layers,
                               .n_kv_heads = sh->n_kv_heads,
                               .head_dim = sh->head_dim,
                               .n_heads = sh->n_heads,
                               .type = (int32_t)d->type,
                               .raw_keys = d->raw_keys,
                               .window = set->window };
    for (int32_t i = 0; i < set->n_columns; i++) {
        if (!observer_has_bytes(set, i)) continue;
        h.column[2 * h.n_columns] = (int32_t)set->column[i].what;
        h.column[2 * h.n_columns++ + 1] = set->column[i].param;
    }
    return h;
}

/* The key said already that it fits; this keeps a damaged head from being believed. */
static int head_check(const struct kvl_engine *e, const struct snapshot_head *h,
                      const struct kvl_snapshot_reader *r, struct kvl_err *err)
{
    struct snapshot_head want = head_of(e);
    int32_t most = e->desc.allow_overlong ? INT32_MAX - 65536 : e->model->shape.n_ctx_train;
    want.n_pos = h->n_pos;
    want.n_seen = h->n_seen;
    want.n_tok = h->n_tok;
    if (memcmp(&want, h, sizeof want) != 0)
        return kvl_snapshot_damaged(r, "made for another store or other observers", err);
    if (h->n_pos < 1 || h->n_pos > most || h->n_seen < 0 || h->n_seen > h->n_pos || h->n_tok < 0 ||
        h->n_tok > h->n_pos)
        return kvl_snapshot_damaged(r, "impossible lengths", err);
    return KVL_OK;
}

/* ---- keys and values ------------------------------------------------------------------------------- */

struct snapshot_lanes {
    const struct kvl_layout *layout;
    int32_t n_layers, n_heads; /* kv heads */
    int32_t n_blocks, n_tail;  /* full blocks of n_pos tokens, tokens after them */
    const int32_t *gone; /* [n_layers] of these, blocks that a layer of a window has not; or NULL */
    size_t off, bytes;   /* of what a block holds */
    uint8_t **block;     /* [n_heads][CHUNK_BLOCKS] */
    /* Pinned, as many blocks: where the store's device has memory of its own, else NULL. */
    const struct kvl_device *device;
    uint8_t *stage;
};

/* Members that were not taken are NULL. */
static void lanes_free(struct snapshot_lanes *ls)
{
    kvl_free(ls->block);
    if (ls->stage) ls->device->free(KVL_PLACE_PINNED, ls->stage);
}

/* Memory of a chunk and no more: a snapshot of a million tokens takes as little as one of a thousand. */
static int lanes_get(struct kvl_session *s, int32_t n_pos, struct snapshot_lanes *out,
                     struct kvl_err *err)
{
    const struct kvl_store_desc *d = kvl_store_desc(s->engine->store);
    struct snapshot_lanes ls = { .layout = kvl_seq_lane(s->seq, 0, 0).layout,
                                 .n_layers = d->n_layers,
                                 .n_heads = d->n_kv_heads };
    ls.n_blocks = n_pos >> ls.layout->block_shift;
    ls.n_tail = n_pos & (ls.layout->block_tok - 1);
    ls.off = kvl_layout_data(ls.layout, &ls.bytes);
    ls.block = kvl_alloc((size_t)d->n_kv_heads * CHUNK_BLOCKS, sizeof *ls.block);
    bool ok = ls.block != NULL;
    if (ls.layout->data_bytes > 0) {
        ls.device = d->device;
        ls.stage =
            d->device->alloc(KVL_PLACE_PINNED, (size_t)d->n_kv_heads * CHUNK_BLOCKS, ls.bytes);
        ok = ok && ls.stage;
    }
    *out = ls;
    return ok ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "out of memory for a snapshot");
}

/* Full blocks of a layer's lanes. */
static int32_t lanes_of(const struct snapshot_lanes *ls, int32_t layer)
{
    return ls->n_blocks - (ls->gone ? ls->gone[layer] : 0);
}

/* Slots of one of them, with the tail. */
static int32_t lanes_slots(const struct snapshot_lanes *ls, int32_t layer)
{
    return (lanes_of(ls, layer) << ls->layout->block_shift) + ls->n_tail;
}

static int lanes_sync(const struct snapshot_lanes *ls, struct kvl_err *err)
{
    int rc = ls->device->sync();
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "snapshot: %s", ls->device->error());
}

/* Width of the numbers in a row, by which its bytes are split before they are compressed. Quantised
 * rows are scales of two bytes and packed numbers: pairs serve both. */
static size_t row_width(enum kvl_kv_type type)
{
    return type == KVL_KV_F32 ? 4 : 2;
}

/* A block goes as one piece of memory, so one width must fit its keys and its values. */
static size_t block_width(const struct kvl_layout *l)
{
    return KVL_MIN(row_width(l->type[KVL_PART_K]), row_width(l->type[KVL_PART_V]));
}

/* What a block of a lane holds, whose layout depends on its place where the store's type seals. */
static size_t block_data(const struct kvl_lane *lane, int32_t b, size_t *off)
{
    size_t bytes;
    *off = kvl_layout_data(kvl_lane_layout(lane, b), &bytes);
    return bytes;
}

/* From a device through pinned memory, which copies at full speed and is free once the chunk is compressed. */
static int save_staged(struct kvl_session *s, struct kvl_snapshot_writer *w,
                       const struct snapshot_lanes *ls, int32_t layer, int32_t b0, int32_t n,
                       struct kvl_err *err)
{
    for (int32_t h = 0; h < ls->n_heads; h++)
        KVL_TRY(kvl_blocks_read(s->engine->store, kvl_seq_lane(s->seq, layer, h).blocks + b0, n,
                                ls->stage + (size_t)(h * n) * ls->bytes, err));
    KVL_TRY(lanes_sync(ls, err));
    for (int32_t i = 0; i < ls->n_heads * n; i++)
        KVL_TRY(kvl_snapshot_put(w, ls->stage + (size_t)i * ls->bytes, ls->bytes,
                                 block_width(ls->layout), err));
    return KVL_OK;
}

/* Head by head, as they lie: blocks that were taken together are read together. */
static int save_chunk(struct kvl_session *s, struct kvl_snapshot_writer *w,
                      const struct snapshot_lanes *ls, int32_t layer, int32_t b0, int32_t n,
                      struct kvl_err *err)
{
    if (ls->stage) return save_staged(s, w, ls, layer, b0, n, err);
    for (int32_t h = 0; h < ls->n_heads; h++) {
        struct kvl_lane lane = kvl_seq_lane(s->seq, layer, h);
        for (int32_t b = b0; b < b0 + n; b++) {
            size_t off, bytes = block_data(&lane, b, &off);
            KVL_TRY(kvl_snapshot_put(w, lane.blocks[b] + off, bytes,
                                     block_width(kvl_lane_layout(&lane, b)), err));
        }
    }
    return KVL_OK;
}

/* The staging memory is the device's until the chunk before has arrived. */
static int load_staged(struct kvl_session *s, struct kvl_snapshot_reader *r,
                       const struct snapshot_lanes *ls, int32_t n, struct kvl_err *err)
{
    KVL_TRY(lanes_sync(ls, err));
    for (int32_t i = 0; i < ls->n_heads * n; i++)
        KVL_TRY(kvl_snapshot_get(r, ls->stage + (size_t)i * ls->bytes, ls->bytes, err));
    return kvl_blocks_write(s->engine->store, ls->block, ls->n_heads * n, ls->stage, err);
}

/* Blocks of a layer of a window begin where what it has freed ends. */
static int load_chunk(struct kvl_session *s, struct kvl_snapshot_reader *r,
                      const struct snapshot_lanes *ls, int32_t layer, int32_t n,
                      struct kvl_err *err)
{
    int32_t have = kvl_seq_len(s->seq, layer, 0);
    int32_t pos = have + (ls->n_blocks - lanes_of(ls, layer)) * ls->layout->block_tok;
    /* Blocks come into the lane before their bytes: a file that ends here fails the load, and the
     * half-filled session goes with it. */
    KVL_TRY(kvl_seq_restore(s->seq, layer, pos, n << ls->layout->block_shift,
                            lanes_slots(ls, layer), ls->block, err));
    if (ls->stage) return load_staged(s, r, ls, n, err);
    struct kvl_lane lane = kvl_seq_lane(s->seq, layer, 0); /* all heads are alike */
    for (int32_t i = 0; i < ls->n_heads * n; i++) {
        size_t off, bytes = block_data(&lane, (have >> ls->layout->block_shift) + i % n, &off);
        KVL_TRY(kvl_snapshot_get(r, ls->block[i] + off, bytes, err));
    }
    return KVL_OK;
}

/* Rows of the block after the last full one, which lie in memory of the host: its first key is at
 * `at`. */
static int save_rows(struct kvl_snapshot_writer *w, const struct snapshot_lanes *ls,
                     const uint8_t *at, struct kvl_err *err)
{
    const struct kvl_layout *l = ls->layout;
    for (int p = 0; p < 3; p++)
        if (l->part_off[p] != SIZE_MAX)
            KVL_TRY(kvl_snapshot_put(w, at + l->part_off[p] - ls->off,
                                     (size_t)ls->n_tail * l->row_bytes[p], row_width(l->type[p]),
                                     err));
    return KVL_OK;
}

static int load_rows(struct kvl_snapshot_reader *r, const struct snapshot_lanes *ls, uint8_t *at,
                     struct kvl_err *err)
{
    const struct kvl_layout *l = ls->layout;
    for (int p = 0; p < 3; p++)
        if (l->part_off[p] != SIZE_MAX)
            KVL_TRY(kvl_snapshot_get(r, at + l->part_off[p] - ls->off,
                                     (size_t)ls->n_tail * l->row_bytes[p], err));
    return KVL_OK;
}

static int save_tail(struct kvl_session *s, struct kvl_snapshot_writer *w,
                     const struct snapshot_lanes *ls, int32_t layer, struct kvl_err *err)
{
    for (int32_t h = 0; h < ls->n_heads && ls->n_tail > 0; h++) {
        const uint8_t *const *block = kvl_seq_lane(s->seq, layer, h).blocks + lanes_of(ls, layer);
        const uint8_t *at = *block + ls->off;
        if (ls->stage) {
            KVL_TRY(kvl_blocks_read(s->engine->store, block, 1, ls->stage, err));
            KVL_TRY(lanes_sync(ls, err));
            at = ls->stage;
        }
        KVL_TRY(save_rows(w, ls, at, err));
    }
    return KVL_OK;
}

static int load_tail(struct kvl_session *s, struct kvl_snapshot_reader *r,
                     const struct snapshot_lanes *ls, int32_t layer, struct kvl_err *err)
{
    if (ls->n_tail == 0) return KVL_OK;
    KVL_TRY(kvl_seq_restore(s->seq, layer, ls->n_blocks * ls->layout->block_tok, ls->n_tail,
                            lanes_slots(ls, layer), ls->block, err));
    if (ls->stage) KVL_TRY(lanes_sync(ls, err));
    for (int32_t h = 0; h < ls->n_heads; h++) {
        uint8_t *at = ls->stage ? ls->stage + (size_t)h * ls->bytes : ls->block[h] + ls->off;
        KVL_TRY(load_rows(r, ls, at, err));
    }
    return ls->stage ? kvl_blocks_write(s->engine->store, ls->block, ls->n_heads, ls->stage, err)
                     : KVL_OK;
}

/* [n_layers]: blocks that layers of a window have freed; *out NULL: the model has none.  Freed by the caller. */
static int gone_get(const struct kvl_session *s, int32_t **out, struct kvl_err *err)
{
    const struct kvl_shape *sh = &s->engine->model->shape;
    *out = NULL;
    if (!sh->window) return KVL_OK;
    *out = kvl_alloc((size_t)sh->n_layers, sizeof **out);
    return *out ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "out of memory for a snapshot");
}

static int save_gone(struct kvl_session *s, struct kvl_snapshot_writer *w, int32_t *gone,
                     struct kvl_err *err)
{
    int32_t n_layers = s->engine->model->shape.n_layers;
    int32_t block_tok = kvl_store_desc(s->engine->store)->block_tok;
    if (!gone) return KVL_OK;
    /* Heads of a layer forget together, so the first tells for all. */
    for (int32_t l = 0; l < n_layers; l++)
        gone[l] = (s->n_pos - kvl_seq_len(s->seq, l, 0)) / block_tok;
    return kvl_snapshot_put(w, gone, (size_t)n_layers * sizeof *gone, sizeof *gone, err);
}

/* A layer keeps what its window needs, and others everything. */
static int load_gone(struct kvl_session *s, struct kvl_snapshot_reader *r, int32_t n_pos,
                     int32_t *gone, struct kvl_err *err)
{
    const struct kvl_shape *sh = &s->engine->model->shape;
    int32_t block_tok = kvl_store_desc(s->engine->store)->block_tok;
    if (!gone) return KVL_OK;
    KVL_TRY(kvl_snapshot_get(r, gone, (size_t)sh->n_layers * sizeof *gone, err));
    for (int32_t l = 0; l < sh->n_layers; l++) {
        int32_t most = sh->window[l] ? KVL_MAX(0, n_pos - sh->window[l] + 1) / block_tok : 0;
        if (gone[l] < 0 || gone[l] > most)
            return kvl_snapshot_damaged(r, "a layer without what it reads", err);
    }
    return KVL_OK;
}

static int save_lanes(struct kvl_session *s, struct kvl_snapshot_writer *w, struct kvl_err *err)
{
    struct snapshot_lanes ls;
    int32_t *gone;
    KVL_TRY(gone_get(s, &gone, err));
    int rc = lanes_get(s, s->n_pos, &ls, err);
    ls.gone = gone;
    if (rc == KVL_OK) rc = save_gone(s, w, gone, err);
    for (int32_t l = 0; rc == KVL_OK && l < ls.n_layers; l++)
        for (int32_t b = 0; rc == KVL_OK && b < lanes_of(&ls, l); b += CHUNK_BLOCKS)
            rc = save_chunk(s, w, &ls, l, b, KVL_MIN(CHUNK_BLOCKS, lanes_of(&ls, l) - b), err);
    for (int32_t l = 0; rc == KVL_OK && l < ls.n_layers; l++) rc = save_tail(s, w, &ls, l, err);
    lanes_free(&ls);
    kvl_free(gone);
    return rc;
}

/* Whole blocks a chunk at a time, so that loading needs no second copy of the cache, then the tails.  A layer that
 * belongs on the host goes there before the next one is read: the device never holds more than the prefill did. */
static int load_lanes(struct kvl_session *s, struct kvl_snapshot_reader *r, int32_t n_pos,
                      struct kvl_err *err)
{
    struct snapshot_lanes ls;
    int32_t *gone;
    KVL_TRY(gone_get(s, &gone, err));
    int rc = lanes_get(s, n_pos, &ls, err);
    ls.gone = gone;
    if (rc == KVL_OK) rc = load_gone(s, r, n_pos, gone, err);
    for (int32_t l = 0; rc == KVL_OK && l < ls.n_layers; l++) {
        for (int32_t b = 0; rc == KVL_OK && b < lanes_of(&ls, l); b += CHUNK_BLOCKS)
            rc = load_chunk(s, r, &ls, l, KVL_MIN(CHUNK_BLOCKS, lanes_of(&ls, l) - b), err);
        bool stays = kvl_window_of(s->engine, l) > 0;
        if (rc == KVL_OK && s->engine->desc.prefill_kv_host && !stays)
            rc = kvl_seq_to_host(s->seq, l, err);
    }
    for (int32_t l = 0; rc == KVL_OK && l < ls.n_layers; l++) rc = load_tail(s, r, &ls, l, err);
    lanes_free(&ls);
    kvl_free(gone);
    return rc;
}

/* ---- observers --------------------------------------------------------------------------------------- */

static int save_array(const struct kvl_engine *e, void *of, float *data, size_t bytes,
                      struct kvl_err *err)
{
    int rc = kvl_engine_host(e, data, bytes, false);
    KVL_TRY(kvl_engine_failed(e, "observers", rc, err));
    return kvl_snapshot_put(of, data, bytes, sizeof *data, err);
}

static int load_array(const struct kvl_engine *e, void *of, float *data, size_t bytes,
                      struct kvl_err *err)
{
    int rc = kvl_engine_host(e, data, bytes, true);
    KVL_TRY(kvl_engine_failed(e, "observers", rc, err));
    return kvl_snapshot_get(of, data, bytes, err);
}

typedef int observer_array(const struct kvl_engine *e, void *of, float *data, size_t bytes,
                           struct kvl_err *err);

/* Calls each(of, array, bytes) for every array of the observers, in the order of the file. */
static int observers_each(const struct kvl_engine *e, const struct kvl_observers *o,
                          observer_array *each, void *of, struct kvl_err *err)
{
    const struct kvl_shape *sh = &e->model->shape;
    size_t heads = (size_t)sh->n_layers * (size_t)sh->n_heads;
    size_t window = heads * (size_t)o->set.window * sizeof(float);
    KVL_TRY(each(e, of, o->ring, window * (size_t)sh->head_dim, err));
    KVL_TRY(each(e, of, o->ring_lse, window, err));
    for (int32_t i = 0; i < o->set.n_columns; i++) {
        size_t bytes = heads * (size_t)o->n_tok * sizeof(float);
        if (!o->columns[i].sum) continue;
        KVL_TRY(each(e, of, o->columns[i].sum, bytes, err));
        if (o->columns[i].carry) KVL_TRY(each(e, of, o->columns[i].carry, bytes, err));
    }
    for (int32_t i = 0; i < o->set.n_columns; i++) {
        size_t dim = (size_t)sh->head_dim, bytes = heads * dim * sizeof(double);
        if (!o->moments[i].sum) continue;
        /* Doubles go as pairs of floats: a snapshot knows elements of up to 4 bytes. */
        KVL_TRY(each(e, of, (float *)(void *)o->moments[i].sum, bytes, err));
        KVL_TRY(each(e, of, (float *)(void *)o->moments[i].product, bytes * (dim + 1) / 2, err));
    }
    return KVL_OK;
}

/* ---- save and load ------------------------------------------------------------------------------------- */

static int save_check(const struct kvl_session *s, struct kvl_err *err)
{
    if (s->failed || s->planned)
        return kvl_fail(err, KVL_EINTERNAL,
                        "snapshot of a session that failed or is under a policy");
    if (s->n_pos < 1) return kvl_fail(err, KVL_EINVAL, "snapshot of an empty session");
    /* The key names the observers of the engine; a session that is older than kvl_engine_observe
     * has others. */
    struct kvl_observer_set has = s->obs ? s->obs->set : (struct kvl_observer_set){ 0 };
    if (memcmp(&has, &s->engine->desc.observers, sizeof has) != 0)
        return kvl_fail(err, KVL_EINTERNAL,
                        "snapshot of a session with other observers than its engine");
    return KVL_OK;
}

static int save_body(struct kvl_session *s, struct kvl_snapshot_writer *w, struct kvl_err *err)
{
    struct snapshot_head h = head_of(s->engine);
    h.n_pos = s->n_pos;
    h.n_seen = s->obs ? (int32_t)s->obs->n_seen : 0;
    h.n_tok = s->obs ? s->obs->n_tok : 0;
    KVL_TRY(kvl_snapshot_put(w, &h, sizeof h, sizeof h.n_pos, err));
    KVL_TRY(kvl_snapshot_put(w, s->id, (size_t)s->n_pos * sizeof *s->id, sizeof *s->id, err));
    KVL_TRY(save_lanes(s, w, err));
    return s->obs ? observers_each(s->engine, s->obs, save_array, w, err) : KVL_OK;
}

int kvl_session_save(struct kvl_session *s, const char *path, const char *key, struct kvl_err *err)
{
    struct kvl_snapshot_writer *w;
    KVL_TRY(save_check(s, err));
    KVL_TRY(kvl_engine_wait(s->engine, err));
    KVL_TRY(kvl_snapshot_create(path, key, &w, err));
    /* close_writer removes what was not committed, so an error on the way leaves no file. */
    int rc = save_body(s, w, err);
    if (rc == KVL_OK) rc = kvl_snapshot_commit(w, err);
    kvl_snapshot_close_writer(w);
    return kvl_engine_memory(s->engine, rc, err);
}

/* A declared number makes room only as bytes come. n_pos counts the ids while they come, since
 * kvl_session_note adds at n_pos, and goes back to 0: lanes hold nothing yet. */
static int load_ids(struct kvl_session *s, struct kvl_snapshot_reader *r, int32_t n,
                    struct kvl_err *err)
{
    int32_t id[1024], n_vocab = s->engine->model->shape.n_vocab;
    for (int32_t m; s->n_pos < n; s->n_pos += m) {
        m = KVL_MIN(1024, n - s->n_pos);
        KVL_TRY(kvl_snapshot_get(r, id, (size_t)m * sizeof *id, err));
        for (int32_t i = 0; i < m; i++)
            if (id[i] < 0 || id[i] >= n_vocab)
                return kvl_snapshot_damaged(r, "a token that the model does not have", err);
        KVL_TRY(kvl_session_note(s, id, m, err));
    }
    s->n_pos = 0;
    return KVL_OK;
}

static int load_body(struct kvl_session *s, struct kvl_snapshot_reader *r, struct kvl_err *err)
{
    struct snapshot_head h;
    KVL_TRY(kvl_snapshot_get(r, &h, sizeof h, err));
    KVL_TRY(head_check(s->engine, &h, r, err));
    KVL_TRY(load_ids(s, r, h.n_pos, err));
    KVL_TRY(load_lanes(s, r, h.n_pos, err));
    s->engine->pending = true;
    s->n_pos = h.n_pos;
    if (s->engine->desc.prefill_kv_host) kvl_host_count(s);
    if (s->obs) {
        /* As many columns as there were tokens read: no declared size makes room. */
        if (kvl_observers_own(s->engine, &s->obs, h.n_tok) != KVL_OK)
            return kvl_fail(err, KVL_ENOMEM, "out of memory for observers");
        s->obs->n_seen = h.n_seen;
        KVL_TRY(observers_each(s->engine, s->obs, load_array, r, err));
    }
    return kvl_snapshot_end(r, err);
}

int kvl_session_load(struct kvl_engine *engine, const char *path, const char *key,
                     struct kvl_session **out, struct kvl_err *err)
{
    struct kvl_snapshot_reader *r;
    struct kvl_session *s = NULL;
    KVL_TRY(kvl_snapshot_open(path, key, &r, err));
    if (!r) {
        *out = NULL;
        return KVL_OK;
    }
    int rc = kvl_session_create(engine, &s, err);
    if (rc == KVL_OK) rc = load_body(s, r, err);
    kvl_snapshot_close_reader(r);
    /* The checksum of the content comes last (kvl_snapshot_end): no caller sees a session before it
     * was right. */
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_session_destroy(s);
    return kvl_engine_memory(engine, rc, err);
}
