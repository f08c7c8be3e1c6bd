/* window_scores.h - scores of a context by what its last queries attend to (SnapKV), for all methods that
 * begin with them: the weights of a window of queries, reduced over the query heads of a kv head and
 * pooled along the tokens. */
#ifndef KVL_WINDOW_SCORES_H
#define KVL_WINDOW_SCORES_H

#include "kvl/policy.h"

struct window_scores {
    int32_t window, kernel; /* queries; width of the pooling, odd */
    bool average;           /* pooling: mean, else maximum */
    bool pool_first;        /* before the reduction */
    enum kvl_reduce reduce;
};

static inline int window_pool(const struct kvl_pctx *ctx, const struct window_scores *w, float *y,
                              const float *x, size_t x_stride, int32_t n_rows, int32_t n)
{
    struct kvl_pool1d_args pool = {
        .y = y,
        .x = x,
        .x_stride = x_stride,
        .n_rows = n_rows,
        .n = n,
        .kernel = w->kernel,
        .average = w->average,
    };
    return ctx->ops->pool1d(&pool);
}

static inline int window_reduce(const struct kvl_pctx *ctx, const struct window_scores *w, float *y,
                                const float *x, size_t x_stride, int32_t n)
{
    struct kvl_group_reduce_args reduce = {
        .y = y,
        .x = x,
        .x_stride = x_stride,
        .n = n,
        .n_heads = ctx->shape->group,
        .n_kv_heads = 1,
        .reduce = w->reduce,
    };
    return ctx->ops->group_reduce(&reduce);
}

/* mass: rows of the group's query heads, n_tok apart; score [n] gets the kv head's scores. */
static inline int window_lane(const struct kvl_pctx *ctx, const struct window_scores *w,
                              float *score, const float *mass, int32_t n_tok, int32_t n,
                              float *scratch)
{
    int32_t group = ctx->shape->group;
    if (w->pool_first) {
        KVL_TRY(window_pool(ctx, w, scratch, mass, (size_t)n_tok, group, n));
        return window_reduce(ctx, w, score, scratch, (size_t)n, n);
    }
    KVL_TRY(window_reduce(ctx, w, scratch, mass, (size_t)n_tok, n));
    return window_pool(ctx, w, score, scratch, (size_t)n, 1, n);
}

/* score [n_kv_heads][n_tok] of the tokens before the window, in prefilled or score. */
static inline int window_scores(const struct kvl_pctx *ctx, int32_t layer,
                                const struct window_scores *w, float *score, int32_t n_tok)
{
    size_t group = (size_t)ctx->shape->group;
    int32_t n_mass, n = n_tok - w->window;
    const float *mass;
    KVL_TRY(kvl_obs_window_mass(ctx, layer, w->window, &mass, &n_mass));
    float *scratch;
    KVL_TRY(kvl_scratch_get(ctx, group * (size_t)n, &scratch));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        size_t lane = (size_t)h;
        KVL_TRY(window_lane(ctx, w, score + lane * (size_t)n_tok,
                            mass + lane * group * (size_t)n_mass, n_mass, n, scratch));
    }
    return KVL_OK;
}

#endif
