/* Rows made of keys: boxes of live tokens (ops.h, kvl_box_put_args), and of units of positions the sum of all keys or
 * the mean of those that matter. */
#include "policy_impl.h"

/* ---- boxes -------------------------------------------------------------------------------------- */

enum { BOX_BATCH = 64 }; /* boxes whose keys are read together */

static int boxes_check(const struct kvl_pctx *ctx, int32_t table, int32_t box_tok)
{
    const struct kvl_plan_private *p = &ctx->host->session->planned->p;
    int32_t elems = box_tok > 0 ? KVL_BOX_ELEMS(ctx->shape->head_dim, box_tok) : 0;
    if (elems > 0 && table >= 0 && table < p->n_meta && p->meta[table].unit == KVL_META_LIVE &&
        p->meta[table].elem <= KVL_META_KEY && p->meta[table].row_elems >= elems)
        return KVL_OK;
    return kvl_fail(ctx->err, KVL_EPOLICY,
                    "boxes of %d tokens in table %d: want a table of live tokens with rows of %d "
                    "floats or stored keys",
                    box_tok, table, elems);
}

int kvl_table_boxes(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t kv_head,
                    int32_t box_tok, const int32_t *pos, int32_t first, int32_t n)
{
    struct kvl_meta_view boxes;
    float *k;
    KVL_TRY(boxes_check(ctx, table, box_tok));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(BOX_BATCH * box_tok * ctx->shape->head_dim), &k));
    KVL_TRY(kvl_rows_from(ctx, table, layer, 0, &boxes));
    size_t head = (size_t)kv_head * boxes.head_stride * (size_t)kvl_kv_elem_bytes(boxes.type);
    for (int32_t at = 0; at < n; at += BOX_BATCH) {
        struct kvl_box_put_args put = { .boxes = (uint8_t *)boxes.data + head,
                                        .type = boxes.type,
                                        .column_stride = boxes.column_stride,
                                        .k = k,
                                        .box0 = first + at,
                                        .n = KVL_MIN(BOX_BATCH, n - at),
                                        .box_tok = box_tok,
                                        .head_dim = ctx->shape->head_dim };
        KVL_TRY(kvl_read_keys(ctx, layer, kv_head, pos + put.box0 * box_tok, put.n * box_tok, false,
                              k));
        KVL_TRY(ctx->ops->box_put(&put));
    }
    return KVL_OK;
}

int kvl_table_box_scores(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t box_tok,
                         int32_t n, int32_t n_channels, const float *q, float *score)
{
    const struct kvl_shape *sh = ctx->shape;
    struct kvl_meta_view boxes;
    KVL_TRY(boxes_check(ctx, table, box_tok));
    /* Rows that are as much as the chosen channels of all boxes. */
    int64_t elems = KVL_BOX_ELEMS(sh->head_dim, box_tok);
    int64_t rows = ((int64_t)n * n_channels + elems - 1) / elems;
    KVL_TRY(kvl_rows_read(ctx, table, layer, (int32_t)rows, &boxes));
    return ctx->ops->box_scores(&(struct kvl_box_scores_args){ .score = score,
                                                               .score_stride = (size_t)n,
                                                               .q = q,
                                                               .boxes = boxes.data,
                                                               .type = boxes.type,
                                                               .head_stride = boxes.head_stride,
                                                               .column_stride = boxes.column_stride,
                                                               .n = n,
                                                               .box_tok = box_tok,
                                                               .n_channels = n_channels,
                                                               .n_heads = sh->n_heads,
                                                               .n_kv_heads = sh->n_kv_heads,
                                                               .head_dim = sh->head_dim,
                                                               .scale = sh->scale });
}

/* ---- units --------------------------------------------------------------------------------------- */

/* Rows of floats per unit of positions and kv head, of `parts` vectors or more; 0 = of whole vectors. */
static int units_check(const struct kvl_pctx *ctx, int32_t table, int32_t parts)
{
    const struct kvl_plan_private *p = &ctx->host->session->planned->p;
    const struct kvl_meta_decl *d = table >= 0 && table < p->n_meta ? &p->meta[table] : NULL;
    int32_t dim = ctx->shape->head_dim;
    if (d && d->unit == KVL_META_PAGE && d->elem == KVL_META_F32 && !d->per_layer &&
        (parts > 0 ? d->row_elems >= parts * dim : d->row_elems % dim == 0))
        return KVL_OK;
    return kvl_fail(ctx->err, KVL_EPOLICY,
                    "keys of units in table %d: want rows of %d x %d floats per page and kv head",
                    table, KVL_MAX(1, parts), dim);
}

/* ---- units: sums ---------------------------------------------------------------------------------------- */

static void row_add(float *row, size_t row_elems, const float *key, size_t dim, bool first)
{
    for (size_t at = 0; at < row_elems; at += dim)
        for (size_t c = 0; c < dim; c++) row[at + c] = (first ? 0.0f : row[at + c]) + key[c];
}

int kvl_table_key_sums(const struct kvl_pctx *ctx, int32_t table, const struct kvl_step *step,
                       const float *k, int32_t every, bool mean)
{
    size_t dim = (size_t)ctx->shape->head_dim;
    int32_t n_kv = ctx->shape->n_kv_heads;
    struct kvl_rows rows;
    KVL_TRY(units_check(ctx, table, 0));
    int32_t unit = ctx->host->session->planned->p.meta[table].unit_tok, first = step->pos / unit;
    if (every < 1)
        return kvl_fail(ctx->err, KVL_EPOLICY, "keys of every %d-th token, want 1 or more", every);
    KVL_TRY(kvl_table_write(ctx, table, step->layer, first, &rows));
    for (int32_t i = 0; i < step->n_tok * n_kv; i++, k += dim) {
        int32_t pos = step->pos + i / n_kv, in = pos % unit;
        float *row = kvl_table_row_out(&rows, i % n_kv, pos / unit - first);
        if (in % every == 0) row_add(row, (size_t)rows.row_elems, k, dim, in == 0);
        for (int32_t c = 0; mean && in == unit - 1 && c < rows.row_elems; c++)
            row[c] *= 1.0f / (float)((unit + every - 1) / every);
    }
    return KVL_OK;
}

/* ---- units: keys of largest score ------------------------------------------------------------------------- */

/* out [dim]: the sum of n of the keys [...][dim], divided. */
static void keys_add(const float *key, const int32_t *index, int32_t n, size_t dim, float divisor,
                     float *out)
{
    for (size_t c = 0; c < dim; c++) {
        float sum = 0;
        for (int32_t i = 0; i < n; i++) sum += key[(size_t)index[i] * dim + c];
        out[c] = sum / divisor;
    }
}

int kvl_table_top_keys(const struct kvl_pctx *ctx, const struct kvl_table_top_keys *t)
{
    int32_t group = ctx->shape->group, k = KVL_MIN(t->k, t->unit_tok), *best;
    size_t dim = (size_t)ctx->shape->head_dim, unit = (size_t)t->unit_tok;
    struct kvl_rows rows;
    float *key;
    KVL_TRY(units_check(ctx, t->table, group));
    if (t->n < 0 || k < 1)
        return kvl_fail(ctx->err, KVL_EPOLICY, "the %d best keys of each of %d units of %d tokens",
                        t->k, t->n, t->unit_tok);
    KVL_TRY(kvl_table_write(ctx, t->table, t->layer, t->row, &rows));
    if (t->n > rows.n_rows)
        return kvl_fail(ctx->err, KVL_EPOLICY, "%d units from row %d of table %d on, which has %d",
                        t->n, t->row, t->table, rows.n_rows);
    KVL_TRY(kvl_scratch_get(ctx, (size_t)k, &best));
    KVL_TRY(kvl_scratch_get(ctx, unit * dim, &key));
    for (int32_t i = 0; i < t->n * ctx->shape->n_kv_heads; i++) {
        int32_t unit_at = i % t->n, kv_head = i / t->n,
                first = t->first_tok + unit_at * t->unit_tok;
        float *row = kvl_table_row_out(&rows, kv_head, unit_at);
        KVL_TRY(kvl_read_key_span(ctx, t->layer, kv_head, first, t->unit_tok, t->raw, key));
        for (int32_t g = 0; g < group; g++, row += dim) {
            const float *score = t->score + (size_t)(kv_head * group + g) * t->stride;
            KVL_TRY(kvl_topk(ctx, score + (size_t)unit_at * unit, 1, t->unit_tok, k, best));
            KVL_TRY(kvl_look(ctx)); /* the host reads what operators wrote */
            keys_add(key, best, k, dim, t->sum ? 1.0f : (float)k, row);
        }
    }
    return KVL_OK;
}

/* ---- units: the best of a layer ---------------------------------------------------------------------------- */

int kvl_table_best(const struct kvl_pctx *ctx, const struct kvl_step *step,
                   const struct kvl_table_best *b, int32_t *best)
{
    int32_t n_kv = ctx->shape->n_kv_heads;
    float *part, *score;
    KVL_TRY(units_check(ctx, b->table, ctx->shape->group));
    for (int32_t i = 0; i < KVL_MIN(b->n, b->k); i++) best[i] = i;
    if (b->n <= b->k) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_kv * (size_t)b->n, &part));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)b->n, &score));
    struct kvl_table_scores products = { .table = b->table,
                                         .layer = step->layer,
                                         .n_rows = b->n,
                                         .q = b->q,
                                         .n_lists = n_kv,
                                         .score = part };
    KVL_TRY(kvl_table_scores(ctx, &products));
    KVL_TRY(kvl_layer_scores(ctx, part, n_kv, b->n, KVL_REDUCE_SUM, score));
    struct kvl_scored scored = { .first_tok = b->first_tok,
                                 .unit_tok = ctx->host->session->planned->p.meta[b->table].unit_tok,
                                 .n = b->n,
                                 .score = score };
    KVL_TRY(kvl_tap_scores(ctx, step, &scored));
    return kvl_topk(ctx, score, 1, b->n, b->k, best);
}
