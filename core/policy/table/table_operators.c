/* Operators on the rows of a table, wherever they lie. */
#include "policy_impl.h"

#include <string.h>

static const struct kvl_row_decl *table_decl(const struct kvl_pctx *ctx, int32_t table)
{
    return &ctx->host->session->planned->p.table[table];
}

/* ---- operators --------------------------------------------------------------------------------- */

/* Type of a weight whose rows are the rows of a table.  The rows are borrowed as a matrix, so that products with them are
 * those of the model's operators. */
static enum kvl_wtype rows_wtype(const struct kvl_rows *rows)
{
    static const enum kvl_wtype types[] = {
        [KVL_KV_F32] = KVL_W_F32, [KVL_KV_F16] = KVL_W_F16, [KVL_KV_BF16] = KVL_W_BF16
    };
    return types[rows->type];
}

/* What the product would read outside of a row is found here. */
static int scores_check(const struct kvl_pctx *ctx, const struct kvl_table_scores *s,
                        const struct kvl_rows *rows, int32_t n_lists, int32_t elems)
{
    bool numbers = rows->elem == KVL_ELEM_F32 || rows->elem == KVL_ELEM_KEY;
    if (!numbers || table_decl(ctx, s->table)->unit == KVL_UNIT_LIVE)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "scores of table %d: want rows of floats or stored keys", s->table);
    if (n_lists < 1 || n_lists % ctx->shape->n_kv_heads != 0)
        return kvl_fail(ctx->err, KVL_EPOLICY, "%d lists of scores, want a multiple of %d kv heads",
                        n_lists, ctx->shape->n_kv_heads);
    if (s->first_elem < 0 || elems < 1 || elems > rows->row_elems - s->first_elem)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "scores by elements %d to %d of table %d, whose rows have %d",
                        s->first_elem, s->first_elem + elems - 1, s->table, rows->row_elems);
    return KVL_OK;
}

/* Scores are scaled where they are: by an operator if the hook runs ahead of the device, else by
 * the host, which has them at hand. */
static int scores_scale(const struct kvl_pctx *ctx, float *score, size_t n, float scale)
{
    if (ctx->host->ahead)
        return ctx->ops->scale(&(struct kvl_scale_args){ .y = score, .n = n, .factor = scale });
    for (size_t i = 0; i < n; i++) score[i] *= scale;
    return KVL_OK;
}

/* List by list: the results of one product for all of them would have to be moved apart on the
 * host, for which a hook that runs ahead does not wait. */
static int scores_each(const struct kvl_pctx *ctx, const float *q, int32_t n,
                       const struct kvl_weight *w, float *y, size_t stride)
{
    for (int32_t i = 0; i < n; i++, q += w->n_cols, y += stride)
        KVL_TRY(ctx->ops->gemv(&(struct kvl_gemv_args){ .y = y, .x = q, .w = w, .n = 1 }));
    return KVL_OK;
}

/* One gemv reads the rows once for all lists; where theirs are not all that a list has, it goes through scratch, on the
 * host. */
static int scores_product(const struct kvl_pctx *ctx, const struct kvl_table_scores *s,
                          const float *q, int32_t n, const struct kvl_weight *w, float *y)
{
    size_t stride = (size_t)s->n_rows, rows = (size_t)w->n_rows;
    bool whole = n == 1 || rows == stride;
    float *to = y;
    if (!whole && ctx->host->ahead) return scores_each(ctx, q, n, w, y, stride);
    if (!whole) KVL_TRY(kvl_scratch_get(ctx, (size_t)n * rows, &to));
    KVL_TRY(ctx->ops->gemv(&(struct kvl_gemv_args){ .y = to, .x = q, .w = w, .n = n }));
    for (size_t i = 0; !whole && i < (size_t)n; i++)
        memcpy(y + i * stride, to + i * rows, rows * sizeof *y);
    return KVL_OK;
}

/* The n lists of a kv head, whose vectors have as many elements as `elems`. */
static int scores_lists(const struct kvl_pctx *ctx, const struct kvl_table_scores *s,
                        const struct kvl_rows *rows, int32_t kv_head, int32_t n, int32_t elems)
{
    size_t skip = (size_t)s->first_elem * (size_t)kvl_kv_elem_bytes(rows->type);
    const float *q = s->q + (size_t)(kv_head * n) * (size_t)elems;
    /* Lists are n_rows apart whatever piece a row lies in, so the pieces of a list join in the
     * result. */
    float *y = s->score + (size_t)(kv_head * n) * (size_t)s->n_rows;
    for (int i = 0; i < 2; y += rows->part[i++].n_rows) {
        if (rows->part[i].n_rows == 0) continue; /* and no data */
        const uint8_t *data = rows->part[i].data;
        struct kvl_weight w = { .data = data + (size_t)kv_head * rows->part[i].head_bytes + skip,
                                .type = rows_wtype(rows),
                                .n_rows = rows->part[i].n_rows,
                                .n_cols = elems,
                                .row_bytes = rows->row_bytes };
        KVL_TRY(scores_product(ctx, s, q, n, &w, y));
    }
    return KVL_OK;
}

/* Shared and own rows are two matrices: the product of the second goes after that of the first. */
int kvl_table_scores(const struct kvl_pctx *ctx, const struct kvl_table_scores *s)
{
    struct kvl_rows rows;
    KVL_TRY(kvl_table_read_operand(ctx, s->table, s->layer, s->n_rows, &rows));
    int32_t n_lists = s->n_lists ? s->n_lists : ctx->shape->n_heads;
    int32_t elems = s->elems ? s->elems : rows.row_elems;
    KVL_TRY(scores_check(ctx, s, &rows, n_lists, elems));
    int32_t per_head = n_lists / ctx->shape->n_kv_heads;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(scores_lists(ctx, s, &rows, h, per_head, elems));
    bool scales = s->scale < 0 || s->scale > 0;
    return scales ? scores_scale(ctx, s->score, (size_t)n_lists * (size_t)s->n_rows, s->scale)
                  : KVL_OK;
}

/* Rows are a minimum and a maximum of `dim` elements; 0 = any. */
static int minmax_check(const struct kvl_pctx *ctx, int32_t table, int32_t dim)
{
    const struct kvl_planned *planned = ctx->host->session->planned;
    if (table < 0 || table >= planned->p.n_tables)
        return kvl_fail(ctx->err, KVL_EPOLICY, "table %d, want a handle from plan", table);
    const struct kvl_row_decl *d = table_decl(ctx, table);
    if (d->unit == KVL_UNIT_PAGE && !d->per_layer && d->elem <= KVL_ELEM_KEY &&
        (dim ? d->row_elems == 2 * dim : d->row_elems % 2 == 0))
        return KVL_OK;
    return kvl_fail(ctx->err, KVL_EPOLICY,
                    "minima and maxima in table %d: want a row of 2 x %d floats or stored keys per "
                    "page and kv head",
                    table, dim ? dim : d->row_elems / 2);
}

/* By an operator: keys and rows stay where they are. The page that the step begins in is open, the others are
 * new. */
int kvl_table_minmax(const struct kvl_pctx *ctx, int32_t table, const struct kvl_step *step,
                     const float *k)
{
    struct kvl_rows rows;
    KVL_TRY(minmax_check(ctx, table, ctx->shape->head_dim));
    /* Asked for from its page on, and not from row 0: full pages before it stay shared with
     * forks. */
    int32_t page_tok = table_decl(ctx, table)->unit_tok, page = step->pos / page_tok;
    KVL_TRY(kvl_table_operand_out(ctx, table, step->layer, page, &rows));
    return ctx->ops->page_minmax(
        &(struct kvl_page_minmax_args){ .minmax = rows.part[0].data,
                                        .type = rows.type,
                                        .head_stride = rows.part[0].head_bytes / rows.elem_bytes,
                                        .k = k,
                                        .pos0 = step->pos - page * page_tok,
                                        .n = step->n_tok,
                                        .n_kv_heads = ctx->shape->n_kv_heads,
                                        .head_dim = ctx->shape->head_dim,
                                        .page_tok = page_tok });
}

/* One call for both pieces, of which the second hangs on the first: on a GPU that is one launch. */
int kvl_table_bounds(const struct kvl_pctx *ctx, const struct kvl_table_bounds *b)
{
    struct kvl_rows rows;
    float *bound = b->bound;
    int32_t n_lists = b->n_lists ? b->n_lists : ctx->shape->n_heads;
    KVL_TRY(minmax_check(ctx, b->table, b->n_lists ? 0 : ctx->shape->head_dim));
    if (n_lists < 1 || n_lists % ctx->shape->n_kv_heads != 0)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "bounds of %d vectors, want a multiple of %d kv heads", n_lists,
                        ctx->shape->n_kv_heads);
    KVL_TRY(kvl_table_read_operand(ctx, b->table, b->layer, b->n_rows, &rows));
    struct kvl_page_bound_args a[2];
    for (int i = 0; i < 2; bound += rows.part[i++].n_rows)
        a[i] =
            (struct kvl_page_bound_args){ .bound = bound,
                                          .bound_stride = (size_t)b->n_rows,
                                          .q = b->q,
                                          .minmax = rows.part[i].data,
                                          .type = rows.type,
                                          .head_stride = rows.part[i].head_bytes / rows.elem_bytes,
                                          .n_pages = rows.part[i].n_rows,
                                          .n_heads = n_lists,
                                          .n_kv_heads = ctx->shape->n_kv_heads,
                                          .head_dim = rows.row_elems / 2,
                                          .reduce = b->reduce };
    a[0].next = rows.part[1].n_rows > 0 ? &a[1] : NULL;
    /* A table that shares nothing has its rows in the second piece alone. */
    return rows.part[0].n_rows > 0 ? ctx->ops->page_bound(a) : ctx->ops->page_bound(a + 1);
}
