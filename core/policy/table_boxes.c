/* Boxes of live tokens: the minima and maxima of their keys, in the rows of these tokens (ops.h, kvl_box_put_args). */
#include "policy_impl.h"

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
    KVL_TRY(kvl_meta_from(ctx, table, layer, 0, &boxes));
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
    KVL_TRY(kvl_meta_read(ctx, table, layer, (int32_t)rows, &boxes));
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
