/* page_bounds.h - bounds of all pages of a layer, for methods that keep a minimum and a maximum of keys, or
 * what stands for them, per page. */
#ifndef KVL_PAGE_BOUNDS_H
#define KVL_PAGE_BOUNDS_H

#include "kvl/policy.h"

/* bound [n_lists][n_pages] of the first n_pages rows of a table, from both of its parts. */
static inline int page_bounds(const struct kvl_pctx *ctx, int32_t table, int32_t layer,
                              const float *q, int32_t n_pages, enum kvl_reduce reduce, float *bound)
{
    struct kvl_meta_part part[2];
    KVL_TRY(kvl_meta_rows(ctx, table, layer, n_pages, part));
    for (int i = 0; i < 2; i++) {
        struct kvl_page_bound_args args = {
            .bound = bound,
            .bound_stride = (size_t)n_pages,
            .q = q,
            .minmax = part[i].data,
            .type = part[i].type,
            .head_stride = part[i].head_stride,
            .n_pages = part[i].n_rows,
            .n_heads = ctx->shape->n_heads,
            .n_kv_heads = ctx->shape->n_kv_heads,
            .head_dim = ctx->shape->head_dim,
            .reduce = reduce,
        };
        if (args.n_pages > 0) KVL_TRY(ctx->ops->page_bound(&args));
        bound += part[i].n_rows;
    }
    return KVL_OK;
}

#endif
