/* Snapshots: a prefilled session on disk.  What is written is what policies can see of it: keys and
 * values as they are stored, and the observers; a session that was never under a policy holds every
 * position in its slot, so that positions need no bytes.
 *
 * Body, little-endian: a head of numbers; per layer and CHUNK_TOK tokens the keys, the values and
 * the keys before RoPE, [n][n_kv_heads][head_dim] each in the store's element type; the ring of
 * queries; the column sums with their carries. */
#include "model/snapshot_file.h"

#include "kvl_core_id.h"
#include "model/host.h"
#include "ops/half.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

enum { CHUNK_TOK = 256 };

/* ---- key ------------------------------------------------------------------------------------------- */

static int key_observers(const struct kvl_observer_set *set, struct kvl_buf *out)
{
    KVL_TRY(kvl_buf_printf(out, "observe window=%d", set->window));
    for (int32_t i = 0; i < set->n_columns; i++)
        KVL_TRY(kvl_buf_printf(out, " %s=%d",
                               set->column[i].what == KVL_OBS_LOGITS ? "logits" : "columns",
                               set->column[i].param));
    return kvl_buf_adds(out, "\n");
}

/* A key without one of its lines would be that of something else. */
static int key_lines(const struct kvl_engine *e, const int32_t *id, int32_t n, struct kvl_buf *out)
{
    const struct kvl_store_desc *d = kvl_store_desc(e->store);
    XXH128_hash_t hash = XXH3_128bits(id, (size_t)n * sizeof *id);
    KVL_TRY(kvl_buf_printf(out, "kvlab snapshot 1\nmodel %s\ncode %s\nops %s %s\n",
                           kvl_model_hash(e->model), KVL_CORE_ID, e->ops->name, kvl_ops_isa()));
    KVL_TRY(kvl_buf_printf(out, "kv %s block=%d%s\n", d->type == KVL_KV_F16 ? "f16" : "f32",
                           d->block_tok, d->raw_keys ? " raw_keys" : ""));
    KVL_TRY(key_observers(&e->desc.observers, out));
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

/* What the body declares; everything but the three lengths must be as in the engine. */
struct snapshot_head {
    int32_t n_layers, n_kv_heads, head_dim, n_heads, type, raw_keys;
    int32_t window, n_columns, column[2 * KVL_MAX_COLUMNS];
    int32_t n_pos;         /* tokens */
    int32_t n_seen, n_tok; /* by the observers; room of their columns */
};

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
                               .window = set->window,
                               .n_columns = set->n_columns };
    for (int32_t i = 0; i < set->n_columns; i++) {
        h.column[2 * i] = (int32_t)set->column[i].what;
        h.column[2 * i + 1] = set->column[i].param;
    }
    return h;
}

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

struct snapshot_rows {
    const struct kvl_layout *layout;
    int32_t n_kv_heads, n_parts;
    size_t row_bytes; /* of one head of one token */
    uint8_t *bytes;   /* [CHUNK_TOK][n_kv_heads] rows as stored */
    float *part[3];   /* the same widened, by enum kvl_kv_part; reading only */
};

static void rows_free(struct snapshot_rows *rows)
{
    kvl_free(rows->bytes);
    for (int i = 0; i < 3; i++) kvl_free(rows->part[i]);
}

static int rows_get(struct kvl_session *s, bool reading, struct snapshot_rows *out,
                    struct kvl_err *err)
{
    const struct kvl_store_desc *d = kvl_store_desc(s->engine->store);
    struct snapshot_rows rows = { .layout = kvl_seq_lane(s->seq, 0, 0).layout,
                                  .n_kv_heads = d->n_kv_heads,
                                  .n_parts = d->raw_keys ? 3 : 2 };
    size_t floats = (size_t)CHUNK_TOK * (size_t)d->n_kv_heads * (size_t)d->head_dim;
    rows.row_bytes = (size_t)d->head_dim * rows.layout->elem_bytes;
    rows.bytes = kvl_alloc(floats, rows.layout->elem_bytes);
    bool ok = rows.bytes != NULL;
    for (int i = 0; reading && i < rows.n_parts; i++) {
        rows.part[i] = kvl_alloc(floats, sizeof(float));
        ok = ok && rows.part[i];
    }
    *out = rows;
    return ok ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "out of memory for a snapshot");
}

static int save_part(struct kvl_session *s, struct kvl_snapshot_writer *w,
                     const struct snapshot_rows *rows, int32_t layer, enum kvl_kv_part part,
                     int32_t slot0, int32_t n, struct kvl_err *err)
{
    const struct kvl_layout *l = rows->layout;
    uint8_t *to = rows->bytes;
    for (int32_t slot = slot0; slot < slot0 + n; slot++)
        for (int32_t h = 0; h < rows->n_kv_heads; h++, to += rows->row_bytes) {
            struct kvl_lane lane = kvl_seq_lane(s->seq, layer, h);
            const uint8_t *block = kvl_lane_rows(&lane, part, slot >> l->block_shift);
            memcpy(to, block + (size_t)(slot & (l->block_tok - 1)) * rows->row_bytes,
                   rows->row_bytes);
        }
    return kvl_snapshot_put(w, rows->bytes, (size_t)(to - rows->bytes), err);
}

static int save_rows(struct kvl_session *s, struct kvl_snapshot_writer *w, struct kvl_err *err)
{
    struct snapshot_rows rows;
    int rc = rows_get(s, false, &rows, err);
    for (int32_t l = 0; rc == KVL_OK && l < s->engine->model->shape.n_layers; l++)
        for (int32_t at = 0; rc == KVL_OK && at < s->n_pos; at += CHUNK_TOK)
            for (int p = 0; rc == KVL_OK && p < rows.n_parts; p++)
                rc = save_part(s, w, &rows, l, (enum kvl_kv_part)p, at,
                               KVL_MIN(CHUNK_TOK, s->n_pos - at), err);
    rows_free(&rows);
    return rc;
}

/* A widened number is stored again as what it was. */
static void rows_widen(const struct snapshot_rows *rows, size_t n, float *out)
{
    if (rows->layout->type == KVL_KV_F32) {
        memcpy(out, rows->bytes, n * sizeof *out);
        return;
    }
    const uint16_t *half = (const uint16_t *)(const void *)rows->bytes;
    for (size_t i = 0; i < n; i++) out[i] = kvl_f16_to_f32(half[i]);
}

static int load_chunk(struct kvl_session *s, struct kvl_snapshot_reader *r,
                      const struct snapshot_rows *rows, int32_t layer, int32_t at, int32_t n,
                      struct kvl_err *err)
{
    int32_t pos[CHUNK_TOK];
    size_t floats = (size_t)n * (size_t)rows->n_kv_heads * (size_t)rows->layout->head_dim;
    for (int p = 0; p < rows->n_parts; p++) {
        KVL_TRY(kvl_snapshot_get(r, rows->bytes, floats * rows->layout->elem_bytes, err));
        rows_widen(rows, floats, rows->part[p]);
    }
    for (int32_t i = 0; i < n; i++) pos[i] = at + i;
    return kvl_seq_append(s->seq, layer, n, pos, rows->part[KVL_PART_K], rows->part[KVL_PART_K_RAW],
                          rows->part[KVL_PART_V], err);
}

static int load_rows(struct kvl_session *s, struct kvl_snapshot_reader *r, int32_t n_pos,
                     struct kvl_err *err)
{
    struct snapshot_rows rows;
    int rc = rows_get(s, true, &rows, err);
    for (int32_t l = 0; rc == KVL_OK && l < s->engine->model->shape.n_layers; l++)
        for (int32_t at = 0; rc == KVL_OK && at < n_pos; at += CHUNK_TOK)
            rc = load_chunk(s, r, &rows, l, at, KVL_MIN(CHUNK_TOK, n_pos - at), err);
    rows_free(&rows);
    return rc;
}

/* ---- observers --------------------------------------------------------------------------------------- */

/* Calls each(of, array, bytes) for every array of the observers, in the order of the file. */
static int observers_each(const struct kvl_engine *e, const struct kvl_observers *o,
                          int (*each)(void *of, float *data, size_t bytes, struct kvl_err *err),
                          void *of, struct kvl_err *err)
{
    const struct kvl_shape *sh = &e->model->shape;
    size_t heads = (size_t)sh->n_layers * (size_t)sh->n_heads;
    KVL_TRY(each(of, o->ring, heads * (size_t)sh->head_dim * (size_t)o->set.window * sizeof(float),
                 err));
    for (int32_t i = 0; i < o->set.n_columns; i++) {
        size_t bytes = heads * (size_t)o->n_tok * sizeof(float);
        KVL_TRY(each(of, o->columns[i].sum, bytes, err));
        KVL_TRY(each(of, o->columns[i].carry, bytes, err));
    }
    return KVL_OK;
}

static int save_array(void *of, float *data, size_t bytes, struct kvl_err *err)
{
    return kvl_snapshot_put(of, data, bytes, err);
}

static int load_array(void *of, float *data, size_t bytes, struct kvl_err *err)
{
    return kvl_snapshot_get(of, data, bytes, err);
}

/* ---- save and load ------------------------------------------------------------------------------------- */

static int save_check(const struct kvl_session *s, struct kvl_err *err)
{
    if (s->failed || s->planned)
        return kvl_fail(err, KVL_EINTERNAL,
                        "snapshot of a session that failed or is under a policy");
    if (s->n_pos < 1) return kvl_fail(err, KVL_EINVAL, "snapshot of an empty session");
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
    KVL_TRY(kvl_snapshot_put(w, &h, sizeof h, err));
    KVL_TRY(save_rows(s, w, err));
    return s->obs ? observers_each(s->engine, s->obs, save_array, w, err) : KVL_OK;
}

int kvl_session_save(struct kvl_session *s, const char *path, const char *key, struct kvl_err *err)
{
    struct kvl_snapshot_writer *w;
    KVL_TRY(save_check(s, err));
    KVL_TRY(kvl_snapshot_create(path, key, &w, err));
    int rc = save_body(s, w, err);
    if (rc == KVL_OK) rc = kvl_snapshot_commit(w, err);
    kvl_snapshot_close_writer(w);
    return rc;
}

static int load_body(struct kvl_session *s, struct kvl_snapshot_reader *r, struct kvl_err *err)
{
    struct snapshot_head h;
    KVL_TRY(kvl_snapshot_get(r, &h, sizeof h, err));
    KVL_TRY(head_check(s->engine, &h, r, err));
    KVL_TRY(load_rows(s, r, h.n_pos, err));
    s->n_pos = h.n_pos;
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
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_session_destroy(s);
    return rc;
}
