/* Scores of the newest tokens, in the state. */
#include "recent.h"

#include <float.h>
#include <math.h>

void kvl_plan_recent(struct kvl_plan *plan, enum kvl_observer what, int32_t n_tok,
                     struct kvl_recent *out)
{
    out->what = what;
    out->n_tok = n_tok;
    kvl_plan_state(plan, (size_t)plan->shape->n_heads * (size_t)n_tok * sizeof(float), &out->part);
}

/* A ring: [n_heads][n_tok], position p at p % n_tok. */
static float *recent_at(const struct kvl_pctx *ctx, const struct kvl_recent *r, int32_t layer,
                        int32_t head, int32_t pos)
{
    float *score = kvl_state_of(ctx, &r->part, layer);
    return score + (size_t)head * (size_t)r->n_tok + pos % r->n_tok;
}

int kvl_recent_begin(const struct kvl_pctx *ctx, const struct kvl_recent *r, int32_t layer,
                     int32_t first, const float *sums, int32_t n)
{
    if (first < 0 || n - first > r->n_tok)
        return kvl_fail(ctx->err, KVL_EPOLICY, "scores of positions %d to %d, want %d at most",
                        first, n - 1, r->n_tok);
    for (int32_t h = 0; h < ctx->shape->n_heads; h++, sums += n)
        for (int32_t t = first; t < n; t++) *recent_at(ctx, r, layer, h, t) = sums[t];
    return KVL_OK;
}

/* Adds n values to the scores of the tokens from `first` on; the ring may end in between. */
static int recent_sum(const struct kvl_pctx *ctx, const struct kvl_recent *r, int32_t layer,
                      int32_t head, int32_t first, int32_t n, const float *value)
{
    int32_t n_end = KVL_MIN(n, r->n_tok - first % r->n_tok);
    struct kvl_add_args rest = { .y = recent_at(ctx, r, layer, head, first + n_end),
                                 .x = value + n_end,
                                 .n = (size_t)(n - n_end) };
    struct kvl_add_args add = { .y = recent_at(ctx, r, layer, head, first),
                                .x = value,
                                .n = (size_t)n_end };
    KVL_TRY(ctx->ops->add(&add));
    return ctx->ops->add(&rest);
}

int kvl_recent_add(const struct kvl_pctx *ctx, const struct kvl_recent *r,
                   const struct kvl_step *step, int32_t first, const float *const *probs,
                   const float *lse)
{
    int32_t pos = step->pos, layer = step->layer;
    bool logits = r->what == KVL_OBS_LOGITS;
    if (first < 0 || first > pos || pos - first >= r->n_tok)
        return kvl_fail(ctx->err, KVL_EPOLICY, "scores of positions %d to %d, want %d at most",
                        first, pos, r->n_tok);
    KVL_TRY(kvl_look(ctx)); /* the host writes the ring and reads weights */
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        *recent_at(ctx, r, layer, h, pos) = 0.0f;
        if (!logits) KVL_TRY(recent_sum(ctx, r, layer, h, first, pos + 1 - first, probs[h]));
        for (int32_t t = first; logits && t < pos; t++)
            *recent_at(ctx, r, layer, h, t) += logf(KVL_MAX(probs[h][t - first], FLT_MIN)) + lse[h];
    }
    return KVL_OK;
}

int kvl_recent_read(const struct kvl_pctx *ctx, const struct kvl_recent *r, int32_t layer,
                    int32_t first, int32_t n, float **score)
{
    if (first < 0 || n < 0 || n > r->n_tok)
        return kvl_fail(ctx->err, KVL_EPOLICY, "scores of %d positions from %d on, want %d at most",
                        n, first, r->n_tok);
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_heads * (size_t)n, score));
    KVL_TRY(kvl_look(ctx)); /* sums of operators */
    for (int32_t i = 0; i < ctx->shape->n_heads * n; i++)
        (*score)[i] = *recent_at(ctx, r, layer, i / n, first + i % n);
    return KVL_OK;
}
