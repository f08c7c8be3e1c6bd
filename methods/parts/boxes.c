/* Boxes of live tokens (ops.h, kvl_box_put_args). */
#include "boxes.h"

enum { BOX_BATCH = 64 }; /* boxes whose keys are read together */

static int boxes_check(const struct kvl_pctx *ctx, int32_t table, const struct kvl_rows *rows,
                       int32_t box_tok)
{
    int32_t elems = box_tok > 0 ? KVL_BOX_ELEMS(ctx->shape->head_dim, box_tok) : 0;
    if (elems > 0 && rows->unit == KVL_UNIT_LIVE && rows->elem <= KVL_ELEM_KEY &&
        rows->row_elems >= elems)
        return KVL_OK;
    return kvl_fail(ctx->err, KVL_EPOLICY,
                    "boxes of %d tokens in table %d: want a table of live tokens with rows of %d "
                    "floats or stored keys",
                    box_tok, table, elems);
}

int kvl_boxes_put(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t kv_head,
                  int32_t box_tok, const int32_t *pos, int32_t first, int32_t n)
{
    struct kvl_rows rows;
    float *k;
    KVL_TRY(kvl_table_operand_out(ctx, table, layer, 0, &rows));
    KVL_TRY(boxes_check(ctx, table, &rows, box_tok));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(BOX_BATCH * box_tok * ctx->shape->head_dim), &k));
    for (int32_t at = 0; at < n; at += BOX_BATCH) {
        struct kvl_box_put_args put = { .boxes = kvl_table_column(&rows, kv_head, 0),
                                        .type = rows.type,
                                        .column_stride = rows.column_bytes / rows.elem_bytes,
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

int kvl_boxes_scores(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t box_tok,
                     int32_t n, int32_t n_channels, const float *q, float *score)
{
    const struct kvl_shape *sh = ctx->shape;
    struct kvl_rows rows;
    KVL_TRY(kvl_table_operand_out(ctx, table, layer, 0, &rows));
    KVL_TRY(boxes_check(ctx, table, &rows, box_tok));
    /* Whole rows that are as much as the chosen channels of all boxes. */
    int64_t elems = KVL_BOX_ELEMS(sh->head_dim, box_tok);
    int64_t n_read = ((int64_t)n * n_channels + elems - 1) / elems * rows.row_elems;
    KVL_TRY(kvl_table_count(ctx, table, n_read * sh->n_kv_heads));
    return ctx->ops->box_scores(
        &(struct kvl_box_scores_args){ .score = score,
                                       .score_stride = (size_t)n,
                                       .q = q,
                                       .boxes = rows.part[0].data,
                                       .type = rows.type,
                                       .head_stride = rows.part[0].head_bytes / rows.elem_bytes,
                                       .column_stride = rows.column_bytes / rows.elem_bytes,
                                       .n = n,
                                       .box_tok = box_tok,
                                       .n_channels = n_channels,
                                       .n_heads = sh->n_heads,
                                       .n_kv_heads = sh->n_kv_heads,
                                       .head_dim = sh->head_dim,
                                       .scale = sh->scale });
}
