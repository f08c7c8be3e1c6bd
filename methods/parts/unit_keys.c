/* Rows made of the keys of a unit of positions: their sums, the mean of those that matter, the best units of a layer. */
#include "unit_keys.h"

/* ---- units --------------------------------------------------------------------------------------- */

/* Rows of floats per unit of positions and kv head, of `parts` vectors or more; 0 = of whole vectors. */
static int units_check(const struct kvl_pctx *ctx, int32_t table, const struct kvl_rows *rows,
                       int32_t parts)
{
    int32_t dim = ctx->shape->head_dim;
    bool shared = rows->n_rows > 0 && rows->part[0].head_bytes == 0; /* by the kv heads */
    if (rows->unit == KVL_UNIT_PAGE && rows->elem == KVL_ELEM_F32 && !shared &&
        (parts > 0 ? rows->row_elems >= parts * dim : rows->row_elems % dim == 0))
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

int kvl_unit_key_sums(const struct kvl_pctx *ctx, int32_t table, int32_t unit,
                      const struct kvl_step *step, const float *k, int32_t every, bool mean)
{
    size_t dim = (size_t)ctx->shape->head_dim;
    int32_t n_kv = ctx->shape->n_kv_heads, first = step->pos / unit;
    struct kvl_rows rows;
    if (every < 1)
        return kvl_fail(ctx->err, KVL_EPOLICY, "keys of every %d-th token, want 1 or more", every);
    KVL_TRY(kvl_table_write(ctx, table, step->layer, first, &rows));
    KVL_TRY(units_check(ctx, table, &rows, 0));
    KVL_TRY(kvl_look_at(ctx, k, (size_t)(step->n_tok * n_kv) * dim, sizeof *k));
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

int kvl_unit_top_keys(const struct kvl_pctx *ctx, const struct kvl_unit_top_keys *t)
{
    int32_t group = ctx->shape->group, k = KVL_MIN(t->k, t->unit_tok), *best;
    size_t dim = (size_t)ctx->shape->head_dim, unit = (size_t)t->unit_tok;
    struct kvl_rows rows;
    float *key;
    if (t->n < 0 || k < 1)
        return kvl_fail(ctx->err, KVL_EPOLICY, "the %d best keys of each of %d units of %d tokens",
                        t->k, t->n, t->unit_tok);
    KVL_TRY(kvl_table_write(ctx, t->table, t->layer, t->row, &rows));
    KVL_TRY(units_check(ctx, t->table, &rows, group));
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

int kvl_unit_best(const struct kvl_pctx *ctx, const struct kvl_step *step,
                  const struct kvl_unit_best *b, int32_t *best)
{
    int32_t n_kv = ctx->shape->n_kv_heads;
    float *part, *score;
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
    struct kvl_scored scored = {
        .first_tok = b->first_tok, .unit_tok = b->unit_tok, .n = b->n, .score = score
    };
    KVL_TRY(kvl_tap_scores(ctx, step, &scored));
    return kvl_topk(ctx, score, 1, b->n, b->k, best);
}
