/* Scores of a context by what its last queries attend to. */
#include "policy_impl.h"

static int window_pool(const struct kvl_pctx *ctx, const struct kvl_window_scores *w, float *y,
                       const float *x, size_t x_stride, int32_t n_rows, int32_t n)
{
    return ctx->ops->pool1d(&(struct kvl_pool1d_args){ .y = y,
                                                       .x = x,
                                                       .x_stride = x_stride,
                                                       .n_rows = n_rows,
                                                       .n = n,
                                                       .kernel = w->kernel,
                                                       .average = w->average });
}

static int window_reduce(const struct kvl_pctx *ctx, const struct kvl_window_scores *w, float *y,
                         const float *x, size_t x_stride, int32_t n)
{
    return ctx->ops->group_reduce(&(struct kvl_group_reduce_args){ .y = y,
                                                                   .x = x,
                                                                   .x_stride = x_stride,
                                                                   .n = n,
                                                                   .n_heads = ctx->shape->group,
                                                                   .n_kv_heads = 1,
                                                                   .reduce = w->reduce });
}

/* mass: rows of the group's query heads, n_tok apart; score [n] gets the kv head's scores. */
static int window_lane(const struct kvl_pctx *ctx, const struct kvl_window_scores *w, float *score,
                       const float *mass, int32_t n_tok, int32_t n, float *scratch)
{
    if (w->pool_first) {
        KVL_TRY(window_pool(ctx, w, scratch, mass, (size_t)n_tok, ctx->shape->group, n));
        return window_reduce(ctx, w, score, scratch, (size_t)n, n);
    }
    KVL_TRY(window_reduce(ctx, w, scratch, mass, (size_t)n_tok, n));
    return window_pool(ctx, w, score, scratch, (size_t)n, 1, n);
}

int kvl_obs_window_scores(const struct kvl_pctx *ctx, int32_t layer,
                          const struct kvl_window_scores *w, float *score, int32_t n_tok)
{
    size_t group = (size_t)ctx->shape->group;
    int32_t n_mass, n = n_tok - w->window;
    const float *mass;
    float *scratch;
    KVL_TRY(kvl_obs_window_mass(ctx, layer, w->window, &mass, &n_mass));
    if (n < 0 || n_tok > n_mass)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "scores of %d tokens by a window of %d, want %d to %d tokens", n_tok,
                        w->window, w->window, n_mass);
    KVL_TRY(kvl_scratch_get(ctx, group * (size_t)n, &scratch));
    for (size_t h = 0; h < (size_t)ctx->shape->n_kv_heads; h++)
        KVL_TRY(window_lane(ctx, w, score + h * (size_t)n_tok, mass + h * group * (size_t)n_mass,
                            n_mass, n, scratch));
    return KVL_OK;
}
