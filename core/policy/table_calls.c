/* Tables as policies use them: rows wherever they lie, and operators on them.  How rows are kept is meta.c's. */
#include "policy_impl.h"

#include <assert.h>

/* ---- rows -------------------------------------------------------------------------------------- */

static const struct kvl_meta_decl *table_decl(const struct kvl_pctx *ctx, int32_t table)
{
    return &ctx->host->session->planned->p.meta[table];
}

static size_t table_elem_bytes(enum kvl_meta_elem elem, enum kvl_kv_type type)
{
    if (elem == KVL_META_I32) return sizeof(int32_t);
    return elem == KVL_META_U8 ? 1 : (size_t)kvl_kv_elem_bytes(type);
}

/* What both kinds of pieces become; `elem` and `type` are set. */
static void rows_shape(const struct kvl_pctx *ctx, int32_t table, int32_t n_rows,
                       struct kvl_rows *out)
{
    out->row_elems = table_decl(ctx, table)->row_elems;
    out->row_bytes = (size_t)out->row_elems * table_elem_bytes(out->elem, out->type);
    out->n_rows = n_rows;
}

static void rows_of_parts(const struct kvl_pctx *ctx, int32_t table, int32_t n_rows,
                          const struct kvl_meta_part part[2], struct kvl_rows *out)
{
    *out = (struct kvl_rows){ .elem = part[0].elem, .type = part[0].type };
    rows_shape(ctx, table, n_rows, out);
    size_t elem = table_elem_bytes(out->elem, out->type);
    for (int i = 0; i < 2; i++) {
        out->part[i].data = (void *)(uintptr_t)part[i].data;
        out->part[i].head_bytes = part[i].head_stride * elem;
        out->part[i].n_rows = part[i].n_rows;
    }
}

/* For operators: the host does not have them. */
static int rows_read(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t n_rows,
                     struct kvl_rows *out)
{
    struct kvl_meta_part part[2];
    KVL_TRY(kvl_meta_rows(ctx, table, layer, n_rows, part));
    rows_of_parts(ctx, table, n_rows, part, out);
    return KVL_OK;
}

int kvl_table_read(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t n_rows,
                   struct kvl_rows *out)
{
    struct kvl_meta_part part[2];
    KVL_TRY(kvl_meta_rows(ctx, table, layer, n_rows, part));
    rows_of_parts(ctx, table, n_rows, part, out);
    return kvl_rows_hand(ctx, table, layer, part);
}

int kvl_table_peek(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t n_rows,
                   struct kvl_rows *out)
{
    struct kvl_meta_part part[2];
    KVL_TRY(kvl_meta_peek(ctx, table, layer, n_rows, part));
    rows_of_parts(ctx, table, n_rows, part, out);
    return KVL_OK;
}

int kvl_table_lend(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t n_rows,
                   struct kvl_rows *out)
{
    struct kvl_meta_part part[2];
    KVL_TRY(kvl_rows_lend(ctx, table, layer, n_rows, part));
    rows_of_parts(ctx, table, n_rows, part, out);
    return KVL_OK;
}

static int rows_from(const struct kvl_pctx *ctx, int32_t table, struct kvl_meta_view view,
                     struct kvl_rows *out)
{
    if (table_decl(ctx, table)->unit == KVL_META_LIVE)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "table %d has rows of live tokens, which lie by column: want kvl_meta",
                        table);
    *out = (struct kvl_rows){ .elem = view.elem, .type = view.type };
    rows_shape(ctx, table, view.n_rows, out);
    out->part[0].data = view.data;
    out->part[0].head_bytes = view.head_stride * table_elem_bytes(view.elem, view.type);
    out->part[0].n_rows = view.n_rows;
    return KVL_OK;
}

int kvl_table_write(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t first,
                    struct kvl_rows *out)
{
    struct kvl_meta_view view;
    KVL_TRY(kvl_meta_from(ctx, table, layer, first, &view));
    return rows_from(ctx, table, view, out);
}

int kvl_table_lend_from(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t first,
                        struct kvl_rows *out)
{
    struct kvl_meta_view view;
    KVL_TRY(kvl_rows_from(ctx, table, layer, first, &view));
    return rows_from(ctx, table, view, out);
}

void *kvl_table_row_out(const struct kvl_rows *rows, int32_t kv_head, int32_t row)
{
    int behind = row >= rows->part[0].n_rows;
    int32_t at = behind ? row - rows->part[0].n_rows : row;
    assert(row >= 0 && at < rows->part[behind].n_rows);
    return (uint8_t *)rows->part[behind].data + (size_t)kv_head * rows->part[behind].head_bytes +
           (size_t)at * rows->row_bytes;
}

const void *kvl_table_row(const struct kvl_rows *rows, int32_t kv_head, int32_t row)
{
    return kvl_table_row_out(rows, kv_head, row);
}

/* ---- operators --------------------------------------------------------------------------------- */

/* Type of a weight whose rows are the rows of a table; 0: there is none. */
static enum kvl_wtype rows_wtype(const struct kvl_rows *rows)
{
    static const enum kvl_wtype types[] = {
        [KVL_KV_F32] = KVL_W_F32, [KVL_KV_F16] = KVL_W_F16, [KVL_KV_BF16] = KVL_W_BF16
    };
    return types[rows->type];
}

static int scores_check(const struct kvl_pctx *ctx, const struct kvl_table_scores *s,
                        const struct kvl_rows *rows, int32_t n_lists, int32_t elems)
{
    bool numbers = rows->elem == KVL_META_F32 || rows->elem == KVL_META_KEY;
    if (!numbers || table_decl(ctx, s->table)->unit == KVL_META_LIVE)
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

/* Where they are. */
static int scores_scale(const struct kvl_pctx *ctx, float *score, size_t n, float scale)
{
    if (ctx->host->ahead)
        return ctx->ops->scale(&(struct kvl_scale_args){ .y = score, .n = n, .factor = scale });
    for (size_t i = 0; i < n; i++) score[i] *= scale;
    return KVL_OK;
}

static int scores_product(const struct kvl_pctx *ctx, bool gemm, const float *q,
                          const struct kvl_weight *w, float *y)
{
    if (gemm) return ctx->ops->gemm(&(struct kvl_gemm_args){ .y = y, .x = q, .w = w, .n = 1 });
    return ctx->ops->gemv(&(struct kvl_gemv_args){ .y = y, .x = q, .w = w, .n = 1 });
}

/* List l, whose vector has as many elements as `elems`. */
static int scores_list(const struct kvl_pctx *ctx, const struct kvl_table_scores *s,
                       const struct kvl_rows *rows, int32_t l, int32_t kv_head, int32_t elems)
{
    size_t skip = (size_t)s->first_elem * (size_t)kvl_kv_elem_bytes(rows->type);
    const float *q = s->q + (size_t)l * (size_t)elems;
    float *y = s->score + (size_t)l * (size_t)s->n_rows;
    for (int i = 0; i < 2; y += rows->part[i++].n_rows) {
        if (rows->part[i].n_rows == 0) continue; /* and no data */
        const uint8_t *data = rows->part[i].data;
        struct kvl_weight w = { .data = data + (size_t)kv_head * rows->part[i].head_bytes + skip,
                                .type = rows_wtype(rows),
                                .n_rows = rows->part[i].n_rows,
                                .n_cols = elems,
                                .row_bytes = rows->row_bytes };
        KVL_TRY(scores_product(ctx, s->gemm, q, &w, y));
    }
    return KVL_OK;
}

int kvl_table_scores(const struct kvl_pctx *ctx, const struct kvl_table_scores *s)
{
    struct kvl_rows rows;
    KVL_TRY(rows_read(ctx, s->table, s->layer, s->n_rows, &rows));
    int32_t n_lists = s->n_lists ? s->n_lists : ctx->shape->n_heads;
    int32_t elems = s->elems ? s->elems : rows.row_elems;
    KVL_TRY(scores_check(ctx, s, &rows, n_lists, elems));
    int32_t per_head = n_lists / ctx->shape->n_kv_heads;
    for (int32_t l = 0; l < n_lists; l++)
        KVL_TRY(scores_list(ctx, s, &rows, l, l / per_head, elems));
    bool scales = s->scale < 0 || s->scale > 0;
    return scales ? scores_scale(ctx, s->score, (size_t)n_lists * (size_t)s->n_rows, s->scale)
                  : KVL_OK;
}

/* Rows are a minimum and a maximum of `dim` elements; 0 = any. */
static int minmax_check(const struct kvl_pctx *ctx, int32_t table, int32_t dim)
{
    const struct kvl_planned *planned = ctx->host->session->planned;
    if (table < 0 || table >= planned->p.n_meta)
        return kvl_fail(ctx->err, KVL_EPOLICY, "table %d, want a handle from plan", table);
    const struct kvl_meta_decl *d = table_decl(ctx, table);
    if (d->unit == KVL_META_PAGE && !d->per_layer && d->elem <= KVL_META_KEY &&
        (dim ? d->row_elems == 2 * dim : d->row_elems % 2 == 0))
        return KVL_OK;
    return kvl_fail(ctx->err, KVL_EPOLICY,
                    "minima and maxima in table %d: want a row of 2 x %d floats or stored keys per "
                    "page and kv head",
                    table, dim ? dim : d->row_elems / 2);
}

int kvl_table_minmax(const struct kvl_pctx *ctx, int32_t table, const struct kvl_step *step,
                     const float *k)
{
    struct kvl_meta_view rows;
    KVL_TRY(minmax_check(ctx, table, ctx->shape->head_dim));
    int32_t page_tok = table_decl(ctx, table)->unit_tok, page = step->pos / page_tok;
    KVL_TRY(kvl_rows_from(ctx, table, step->layer, page, &rows));
    return ctx->ops->page_minmax(
        &(struct kvl_page_minmax_args){ .minmax = rows.data,
                                        .type = rows.type,
                                        .head_stride = rows.head_stride,
                                        .k = k,
                                        .pos0 = step->pos - page * page_tok,
                                        .n = step->n_tok,
                                        .n_kv_heads = ctx->shape->n_kv_heads,
                                        .head_dim = ctx->shape->head_dim,
                                        .page_tok = page_tok });
}

int kvl_table_bounds(const struct kvl_pctx *ctx, const struct kvl_table_bounds *b)
{
    struct kvl_meta_part part[2];
    float *bound = b->bound;
    int32_t n_lists = b->n_lists ? b->n_lists : ctx->shape->n_heads;
    KVL_TRY(minmax_check(ctx, b->table, b->n_lists ? 0 : ctx->shape->head_dim));
    if (n_lists < 1 || n_lists % ctx->shape->n_kv_heads != 0)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "bounds of %d vectors, want a multiple of %d kv heads", n_lists,
                        ctx->shape->n_kv_heads);
    KVL_TRY(kvl_meta_rows(ctx, b->table, b->layer, b->n_rows, part));
    struct kvl_page_bound_args a[2];
    for (int i = 0; i < 2; bound += part[i++].n_rows)
        a[i] = (struct kvl_page_bound_args){ .bound = bound,
                                             .bound_stride = (size_t)b->n_rows,
                                             .q = b->q,
                                             .minmax = part[i].data,
                                             .type = part[i].type,
                                             .head_stride = part[i].head_stride,
                                             .n_pages = part[i].n_rows,
                                             .n_heads = n_lists,
                                             .n_kv_heads = ctx->shape->n_kv_heads,
                                             .head_dim = table_decl(ctx, b->table)->row_elems / 2,
                                             .reduce = b->reduce };
    a[0].next = part[1].n_rows > 0 ? &a[1] : NULL;
    return part[0].n_rows > 0 ? ctx->ops->page_bound(a) : ctx->ops->page_bound(a + 1);
}

int kvl_table_product(const struct kvl_pctx *ctx, const struct kvl_rows *rows, int32_t kv_head,
                      int32_t n_cols, const float *x, int32_t n, float *y)
{
    if (rows->elem != KVL_META_F32 || n_cols < 1 || rows->row_elems % n_cols != 0)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "a row of %d elements as a matrix of %d columns, want floats that divide",
                        rows->row_elems, n_cols);
    struct kvl_weight w = { .data = kvl_table_row(rows, kv_head, 0),
                            .type = KVL_W_F32,
                            .n_rows = rows->row_elems / n_cols,
                            .n_cols = n_cols,
                            .row_bytes = (size_t)n_cols * sizeof *x };
    return ctx->ops->gemv(&(struct kvl_gemv_args){ .y = y, .x = x, .w = &w, .n = n });
}

/* scale q_piece . centroid, of all pieces and centroids: in scratch [n_heads][n_sub][n_codes]. */
static int codes_table(const struct kvl_pctx *ctx, const struct kvl_table_codes *c, float **table)
{
    struct kvl_rows rows;
    size_t entries = (size_t)ctx->shape->n_heads * (size_t)c->n_sub * (size_t)c->n_codes;
    KVL_TRY(kvl_scratch_get(ctx, entries, table));
    KVL_TRY(rows_read(ctx, c->centroids, c->layer, 1, &rows));
    return ctx->ops->pq_table(&(struct kvl_pq_table_args){
        .table = *table,
        .q = c->q,
        .centroid = kvl_table_row(&rows, 0, 0),
        .head_stride = rows.part[rows.part[0].n_rows == 0].head_bytes / sizeof(float),
        .n_heads = ctx->shape->n_heads,
        .n_kv_heads = ctx->shape->n_kv_heads,
        .head_dim = ctx->shape->head_dim,
        .n_sub = c->n_sub,
        .n_codes = c->n_codes,
        .scale = c->scale });
}

int kvl_table_code_scores(const struct kvl_pctx *ctx, const struct kvl_table_codes *c)
{
    struct kvl_rows codes;
    float *table, *score = c->score;
    KVL_TRY(codes_table(ctx, c, &table));
    KVL_TRY(rows_read(ctx, c->codes, c->layer, c->first + c->n, &codes));
    if (codes.elem != KVL_META_U8 || codes.row_elems != c->n_sub)
        return kvl_fail(ctx->err, KVL_EPOLICY, "codes of %d pieces in table %d: want as many bytes",
                        c->n_sub, c->codes);
    for (int32_t i = 0, skip_all = c->first; i < 2; i++) {
        int32_t skip = KVL_MIN(skip_all, codes.part[i].n_rows), more = codes.part[i].n_rows - skip;
        const uint8_t *code = codes.part[i].data;
        skip_all -= skip;
        if (more == 0) continue;
        KVL_TRY(ctx->ops->pq_scores(
            &(struct kvl_pq_scores_args){ .score = score,
                                          .stride = (size_t)c->n,
                                          .table = table,
                                          .code = code + (size_t)skip * (size_t)c->n_sub,
                                          .head_stride = codes.part[i].head_bytes,
                                          .n = more,
                                          .n_heads = ctx->shape->n_heads,
                                          .group = ctx->shape->group,
                                          .n_sub = c->n_sub,
                                          .n_codes = c->n_codes }));
        score += more;
    }
    return KVL_OK;
}

int kvl_table_key4(const struct kvl_pctx *ctx, int32_t table, const struct kvl_step *step,
                   const float *k)
{
    struct kvl_meta_view rows;
    KVL_TRY(kvl_rows_from(ctx, table, step->layer, step->pos, &rows));
    return ctx->ops->key4_put(&(struct kvl_key4_put_args){ .rows = rows.data,
                                                           .head_stride = rows.head_stride,
                                                           .k = k,
                                                           .n = step->n_tok,
                                                           .n_kv_heads = ctx->shape->n_kv_heads,
                                                           .head_dim = ctx->shape->head_dim });
}

int kvl_table_key4_logits(const struct kvl_pctx *ctx, int32_t table, const struct kvl_step *step,
                          int32_t kv_head, const float *q, const int32_t *pos, int32_t n,
                          float *logit)
{
    int32_t group = ctx->shape->group, dim = ctx->shape->head_dim, first = 0, at = 0;
    struct kvl_rows rows;
    KVL_TRY(kvl_table_lend(ctx, table, step->layer, step->pos + 1, &rows));
    for (int32_t i = 0; i < 2; i++) {
        int32_t last = first + rows.part[i].n_rows, end = at;
        while (end < n && pos[end] < last) end++;
        const void *row = end > at ? kvl_table_row(&rows, kv_head, first) : NULL;
        if (row)
            KVL_TRY(ctx->ops->key4_logits(
                &(struct kvl_key4_logits_args){ .logit = logit + at,
                                                .stride = (size_t)n,
                                                .q = q + (size_t)(kv_head * group) * (size_t)dim,
                                                .rows = row,
                                                .row = pos + at,
                                                .row0 = first,
                                                .n = end - at,
                                                .n_heads = group,
                                                .head_dim = dim,
                                                .scale = ctx->shape->scale }));
        first = last;
        at = end;
    }
    return kvl_meta_count(ctx, table, (int64_t)n * (int64_t)KVL_KEY4_BYTES(dim));
}
