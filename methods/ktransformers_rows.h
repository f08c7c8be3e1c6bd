/* ktransformers_rows.h - the representatives of blocks: rows of a table, built with the context and kept up
 * while decoding. */
#ifndef KVL_KTRANSFORMERS_ROWS_H
#define KVL_KTRANSFORMERS_ROWS_H

#include "ktransformers_importance.h"

static bool kt_pair(const struct kt_opts *o)
{
    return o->representative_type == KT_MAX || o->representative_type == KT_QUEST;
}

/* The published rule for several representatives of which all but the first are zero. */
static bool kt_clips_products(const struct kt_opts *o)
{
    return o->compat && o->representative_type == KT_DYNAMIC && o->representative_num > 1;
}

static int32_t kt_row_elems(const struct kt_opts *o, const struct kvl_shape *shape)
{
    int32_t group = shape->n_heads / shape->n_kv_heads;
    if (kt_pair(o)) return 2 * shape->head_dim;
    if (o->representative_type != KT_DYNAMIC) return shape->head_dim;
    return (kt_clips_products(o) ? 2 : 1) * group * shape->head_dim;
}

/* A layer that selects, for itself and those it shares with. */
static bool kt_selects(const struct kt_opts *o, int32_t layer)
{
    return layer >= o->dense_layer_num && (layer - o->dense_layer_num) % o->layer_step == 0;
}

/* row += k; the first key of a row takes the place of whatever lay there, which need not be a number. */
static int kt_add_key(const struct kvl_pctx *ctx, float *row, const float *k, bool first)
{
    size_t dim = (size_t)ctx->shape->head_dim;
    if (first) memset(row, 0, dim * sizeof *row);
    return ctx->ops->add(&(struct kvl_add_args){ .y = row, .x = k, .n = dim });
}

/* MEAN and FIXED: sums of keys, in proportion to their mean since all blocks are of one size. */
static int kt_append_sums(const struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                          const struct kvl_meta_view *meta, int32_t block0)
{
    const struct kt_opts *o = ctx->opts;
    int32_t heads = ctx->shape->n_kv_heads, stride = 1;
    size_t dim = (size_t)ctx->shape->head_dim;
    if (o->representative_type == KT_FIXED) stride = o->block_size / o->representative_num;
    for (int32_t i = 0; i < step->n_tok; i++) {
        int32_t pos = step->pos + i, in = pos % o->block_size;
        if (in % stride != 0) continue;
        for (int32_t h = 0; h < heads; h++) {
            float *row = meta->base + (size_t)h * meta->head_stride +
                         (size_t)(pos / o->block_size - block0) * dim;
            KVL_TRY(kt_add_key(ctx, row, k + (size_t)(i * heads + h) * dim, in == 0));
        }
    }
    return KVL_OK;
}

/* DYNAMIC: a block that fills up while decoding gets the mean of its keys. */
static int kt_append_dynamic(const struct kvl_pctx *ctx, const struct kvl_step *step,
                             const float *k, const struct kvl_meta_view *meta)
{
    const struct kt_opts *o = ctx->opts;
    int32_t group = ctx->shape->n_heads / ctx->shape->n_kv_heads, in = step->pos % o->block_size;
    size_t dim = (size_t)ctx->shape->head_dim;
    float share = 1.0f / (float)o->block_size, *zero = kvl_scratch(ctx, dim);
    if (!zero) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for a key");
    memset(zero, 0, dim * sizeof *zero);
    struct kvl_add_args scale = { .x = zero, .n = dim, .factor = &share };
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        float *row =
            meta->base + (size_t)(h / group) * meta->head_stride + (size_t)(h % group) * dim;
        KVL_TRY(kt_add_key(ctx, row, k + (size_t)(h / group) * dim, in == 0));
        scale.y = row;
        if (in == o->block_size - 1) KVL_TRY(ctx->ops->add(&scale));
    }
    return KVL_OK;
}

static int kt_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                     const float *v)
{
    const struct kt_opts *o = ctx->opts;
    bool dynamic = o->representative_type == KT_DYNAMIC;
    int32_t block = step->pos / o->block_size;
    struct kvl_meta_view meta;
    (void)v;
    if (!kt_selects(o, step->layer)) return KVL_OK;
    if (step->replay ? dynamic : o->compat) return KVL_OK;
    KVL_TRY(kvl_meta_from(ctx, o->table, step->layer, block, &meta));
    if (dynamic) return kt_append_dynamic(ctx, step, k, &meta);
    if (!kt_pair(o)) return kt_append_sums(ctx, step, k, &meta, block);
    struct kvl_page_minmax_args minmax = { .minmax = meta.data,
                                           .type = meta.type,
                                           .head_stride = meta.head_stride,
                                           .k = k,
                                           .pos0 = step->pos - block * o->block_size,
                                           .n = step->n_tok,
                                           .n_kv_heads = ctx->shape->n_kv_heads,
                                           .head_dim = ctx->shape->head_dim,
                                           .page_tok = o->block_size };
    return ctx->ops->page_minmax(&minmax);
}

/* Blocks of the context: full ones, and in compat the partial one padded with zeros. */
struct kt_blocks {
    const float *importance; /* [n_heads][n_tok] */
    int32_t n_tok, first, n, size;
};

/* One channel of a row; where products below zero count nothing, what is negative of it and what is
 * positive, as the box of a bound. */
static void kt_put(const struct kt_opts *o, float *at, size_t row_elems, float x)
{
    *at = kt_clips_products(o) ? KVL_MIN(x, 0.0f) : x;
    if (kt_clips_products(o)) at[row_elems / 2] = KVL_MAX(x, 0.0f);
}

/* Mean (compat: sum) of the most important keys of blocks for one query head, into its part of the rows. */
static int kt_dynamic_head(const struct kvl_pctx *ctx, int32_t layer, int32_t head,
                           const struct kt_blocks *b, float *rows, size_t row_elems)
{
    const struct kt_opts *o = ctx->opts;
    int32_t group = ctx->shape->n_heads / ctx->shape->n_kv_heads;
    int32_t k = KVL_MIN(o->representative_num, b->size);
    size_t dim = (size_t)ctx->shape->head_dim, picks = (size_t)b->n * (size_t)k;
    int32_t *pos = (int32_t *)(void *)kvl_scratch(ctx, picks);
    float *keys = kvl_scratch(ctx, picks * dim);
    if (!pos || !keys) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %zu keys", picks);
    struct kvl_topk_args top = { .index = pos,
                                 .x = b->importance + (size_t)head * (size_t)b->n_tok +
                                      (size_t)b->first * (size_t)o->block_size,
                                 .x_stride = (size_t)o->block_size,
                                 .n_rows = b->n,
                                 .n = b->size,
                                 .k = k };
    KVL_TRY(ctx->ops->topk(&top));
    for (int32_t i = 0; i < b->n * k; i++) pos[i] += (b->first + i / k) * o->block_size;
    KVL_TRY(kvl_read_keys(ctx, layer, head / group, pos, b->n * k, false, keys));
    float divisor = o->compat ? 1.0f : (float)k;
    for (int32_t i = 0; i < b->n; i++)
        for (size_t c = 0; c < dim; c++) {
            float sum = 0;
            for (int32_t j = 0; j < k; j++) sum += keys[(size_t)(i * k + j) * dim + c];
            kt_put(o, rows + (size_t)(b->first + i) * row_elems + c, row_elems, sum / divisor);
        }
    return KVL_OK;
}

/* The partial block goes on being filled: sums of its keys. */
static int kt_dynamic_tail(const struct kvl_pctx *ctx, int32_t layer, int32_t head, int32_t block,
                           float *row)
{
    const struct kt_opts *o = ctx->opts;
    int32_t group = ctx->shape->n_heads / ctx->shape->n_kv_heads, first = block * o->block_size;
    float *key = kvl_scratch(ctx, (size_t)ctx->shape->head_dim);
    if (!key) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for a key");
    for (int32_t pos = first; pos < ctx->context_tok; pos++) {
        KVL_TRY(kvl_read_keys(ctx, layer, head / group, &pos, 1, false, key));
        KVL_TRY(kt_add_key(ctx, row, key, pos == first));
    }
    return KVL_OK;
}

static int kt_dynamic(const struct kvl_pctx *ctx, int32_t layer, const struct kvl_meta_view *meta)
{
    const struct kt_opts *o = ctx->opts;
    int32_t group = ctx->shape->n_heads / ctx->shape->n_kv_heads;
    size_t dim = (size_t)ctx->shape->head_dim, row = (size_t)kt_row_elems(o, ctx->shape);
    struct kt_blocks all = { .size = o->block_size };
    KVL_TRY(kt_importance(ctx, layer, &all.importance, &all.n_tok));
    all.n = all.n_tok / o->block_size;
    struct kt_blocks tail = all;
    tail.first = all.n;
    tail.n = 1;
    tail.size = all.n_tok % o->block_size;
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        float *rows =
            meta->base + (size_t)(h / group) * meta->head_stride + (size_t)(h % group) * dim;
        if (all.n > 0) KVL_TRY(kt_dynamic_head(ctx, layer, h, &all, rows, row));
        if (tail.size == 0) continue;
        if (o->compat)
            KVL_TRY(kt_dynamic_head(ctx, layer, h, &tail, rows, row));
        else
            KVL_TRY(kt_dynamic_tail(ctx, layer, h, all.n, rows + (size_t)all.n * row));
    }
    return KVL_OK;
}

/* compat: maxima that began at zero, and a partial block with zeros in it. */
static void kt_clip(const struct kvl_pctx *ctx, const struct kvl_meta_view *meta)
{
    const struct kt_opts *o = ctx->opts;
    size_t dim = (size_t)ctx->shape->head_dim;
    int32_t n_full = ctx->context_tok / o->block_size;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        for (int32_t b = 0; b < meta->n_rows; b++) {
            float *min = meta->base + (size_t)h * meta->head_stride + (size_t)b * 2 * dim;
            for (size_t c = 0; c < dim; c++) {
                min[dim + c] = KVL_MAX(min[dim + c], 0.0f);
                if (b >= n_full) min[c] = KVL_MIN(min[c], 0.0f);
            }
        }
}

#endif
