/* Lists of live tokens, lane after lane. */
#include "asked_lists.h"

#include <math.h>
#include <string.h>

int kvl_ask_live(const struct kvl_pctx *ctx, int32_t layer, int32_t first, int32_t n,
                 struct kvl_asked *asked)
{
    const int32_t *live;
    int32_t *pos, n_live;
    KVL_TRY(kvl_live(ctx, layer, 0, &live, &n_live));
    if (n < 0) n = n_live - first;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_kv_heads * (size_t)n, &pos));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        KVL_TRY(kvl_live(ctx, layer, h, &live, &n_live));
        if (first < 0 || first > n_live - n)
            return kvl_fail(ctx->err, KVL_EPOLICY, "asks about tokens %d to %d of a lane of %d",
                            first, first + n, n_live);
        memcpy(pos + (size_t)h * (size_t)n, live + first, (size_t)n * sizeof *pos);
    }
    asked->pos = pos;
    asked->n = n;
    return KVL_OK;
}

void kvl_scores_protect(const struct kvl_pctx *ctx, struct kvl_scores *scores)
{
    int32_t n = scores->n_tok, first = KVL_MIN(n, scores->protect_first);
    int32_t last = KVL_MAX(first, n - scores->protect_last);
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        float *score = scores->score + (size_t)h * (size_t)n;
        for (int32_t i = 0; i < first; i++) score[i] = INFINITY;
        for (int32_t i = last; i < n; i++) score[i] = INFINITY;
    }
}
