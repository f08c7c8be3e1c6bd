/* Tables of a policy: rows per page and lane, grown by the engine, copied when a fork writes. */
#include "model/host.h"

#include <string.h>

/* Rows of one unit in one layer. */
static size_t layer_lanes(const struct kvl_shape *sh, const struct kvl_meta_decl *d)
{
    return d->per_layer ? 1 : (size_t)sh->n_kv_heads;
}

static size_t table_lanes(const struct kvl_engine *e, const struct kvl_meta_decl *d)
{
    return (size_t)d->n_layers * layer_lanes(&e->model->shape, d);
}

static int32_t table_rows(const struct kvl_meta_decl *d, int32_t n_pos)
{
    return n_pos / d->unit_tok + (n_pos % d->unit_tok != 0);
}

int kvl_meta_table_create(const struct kvl_engine *e, const struct kvl_meta_decl *decl,
                          int32_t n_pos, struct kvl_meta_table **out)
{
    struct kvl_meta_table *t = kvl_alloc(1, sizeof *t);
    if (!t) return KVL_ENOMEM;
    int32_t n_rows = table_rows(decl, n_pos);
    *t = (struct kvl_meta_table){
        .n_refs = 1, .decl = *decl, .n_rows = n_rows, .cap_rows = n_rows + n_rows / 8 + 16
    };
    t->data = kvl_alloc(table_lanes(e, decl) * (size_t)t->cap_rows,
                        (size_t)decl->row_elems * sizeof *t->data);
    if (!t->data) {
        kvl_free(t);
        return KVL_ENOMEM;
    }
    *out = t;
    return KVL_OK;
}

struct kvl_meta_table *kvl_meta_table_ref(struct kvl_meta_table *t)
{
    if (t) t->n_refs++;
    return t;
}

void kvl_meta_table_unref(struct kvl_meta_table *t)
{
    if (!t || --t->n_refs > 0) return;
    kvl_free(t->data);
    kvl_free(t);
}

int kvl_meta_table_reserve(const struct kvl_engine *e, struct kvl_meta_table **t, int32_t n_pos)
{
    struct kvl_meta_table *old = *t;
    int32_t n_rows = KVL_MAX(table_rows(&old->decl, n_pos), old->n_rows);
    if (old->n_refs == 1 && n_rows <= old->cap_rows) {
        old->n_rows = n_rows;
        return KVL_OK;
    }
    struct kvl_meta_table *copy;
    KVL_TRY(kvl_meta_table_create(e, &old->decl, n_pos, &copy));
    size_t row = (size_t)old->decl.row_elems;
    for (size_t lane = 0; lane < table_lanes(e, &old->decl); lane++)
        memcpy(copy->data + lane * (size_t)copy->cap_rows * row,
               old->data + lane * (size_t)old->cap_rows * row,
               (size_t)old->n_rows * row * sizeof *copy->data);
    copy->n_rows = n_rows;
    kvl_meta_table_unref(old);
    *t = copy;
    return KVL_OK;
}

size_t kvl_meta_table_bytes(const struct kvl_engine *e, const struct kvl_meta_table *t)
{
    return table_lanes(e, &t->decl) * (size_t)t->n_rows * (size_t)t->decl.row_elems *
           sizeof *t->data;
}

/* Rows that are counted as read by who takes a view of a layer to choose: a hook that selects sees
 * all, one that evicts those of live tokens. */
static int64_t rows_to_read(const struct kvl_session *s, const struct kvl_meta_table *t,
                            int32_t layer)
{
    int64_t sum = 0;
    size_t lanes = layer_lanes(&s->engine->model->shape, &t->decl);
    for (size_t h = 0; h < lanes; h++) {
        int32_t n_rows = table_rows(&t->decl, s->host.n_visible);
        int32_t n_live = kvl_seq_len(s->seq, layer, (int32_t)h);
        sum += s->host.evicting ? KVL_MIN(n_rows, n_live) : n_rows;
    }
    return sum;
}

int kvl_meta(const struct kvl_pctx *ctx, int32_t handle, int32_t layer, struct kvl_meta_view *out)
{
    struct kvl_session *s = ctx->host->session;
    if (handle < 0 || handle >= s->planned->p.n_meta || layer < 0 || layer >= ctx->shape->n_layers)
        return kvl_fail(ctx->err, KVL_EPOLICY, "table %d of layer %d, want a handle from plan",
                        handle, layer);
    const struct kvl_meta_table *t = ctx->host->table[handle];
    int32_t at = t->decl.at ? t->decl.at[layer] : layer;
    if (at < 0)
        return kvl_fail(ctx->err, KVL_EPOLICY, "table %d has no rows in layer %d, by plan", handle,
                        layer);
    size_t lanes = layer_lanes(ctx->shape, &t->decl);
    size_t stride = (size_t)t->cap_rows * (size_t)t->decl.row_elems;
    *out = (struct kvl_meta_view){ .base = t->data + (size_t)at * lanes * stride,
                                   .head_stride = t->decl.per_layer ? 0 : stride,
                                   .data = t->data + (size_t)at * lanes * stride,
                                   .n_rows = t->n_rows };
    if (ctx->host->selecting || ctx->host->evicting)
        s->count.index_read_bytes +=
            rows_to_read(s, t, layer) * t->decl.row_elems * (int64_t)sizeof(float);
    return KVL_OK;
}

int kvl_meta_read(const struct kvl_pctx *ctx, int32_t handle, int32_t layer, int32_t n_rows,
                  struct kvl_meta_view *out)
{
    int64_t *count = &ctx->host->session->count.index_read_bytes, before = *count;
    struct kvl_meta_view view;
    KVL_TRY(kvl_meta(ctx, handle, layer, &view));
    if (n_rows < 0 || n_rows > view.n_rows)
        return kvl_fail(ctx->err, KVL_EPOLICY, "%d rows of table %d, which has %d", n_rows, handle,
                        view.n_rows);
    const struct kvl_meta_decl *d = &ctx->host->table[handle]->decl;
    *count = before + (int64_t)n_rows * d->row_elems * (int64_t)layer_lanes(ctx->shape, d) *
                          (int64_t)sizeof(float); /* whatever kvl_meta counted */
    *out = view;
    return KVL_OK;
}
