/* Keys channel by channel: the copy, and scores by some of the channels over rows that lie in two pieces. */
#include "channels.h"

#include <math.h>

int kvl_plan_channels(struct kvl_plan *plan, int32_t *table)
{
    return kvl_plan_table(plan, table, .unit = KVL_UNIT_PAGE, .unit_tok = KVL_CHANNEL_PAGE,
                          .row_elems = KVL_CHANNEL_PAGE * plan->shape->head_dim,
                          .elem = KVL_ELEM_KEY);
}

int kvl_channels_put(const struct kvl_pctx *ctx, int32_t table, const struct kvl_step *step,
                     const float *k)
{
    struct kvl_rows keys;
    KVL_TRY(kvl_table_operand_out(ctx, table, step->layer, step->pos / KVL_CHANNEL_PAGE, &keys));
    return ctx->ops->channel_put(
        &(struct kvl_channel_put_args){ .keys = keys.part[0].data,
                                        .type = keys.type,
                                        .head_stride = keys.part[0].head_bytes / keys.elem_bytes,
                                        .k = k,
                                        .pos0 = step->pos % KVL_CHANNEL_PAGE,
                                        .n = step->n_tok,
                                        .n_kv_heads = ctx->shape->n_kv_heads,
                                        .head_dim = ctx->shape->head_dim,
                                        .page_tok = KVL_CHANNEL_PAGE });
}

/* The softmax over two parts, from their largest scores and sums. */
static void channels_merge(const struct kvl_channel_scores *s, const float *max, const float *sum,
                           int32_t n_heads)
{
    for (int32_t h = 0; h < n_heads; h++) {
        float most = KVL_MAX(s->max[h], max[h]);
        s->sum[h] = s->sum[h] * expf(s->max[h] - most) + sum[h] * expf(max[h] - most);
        s->max[h] = most;
    }
}

/* Of a model that caps logits: scores, and what is known of them, anew. */
static int channels_cap(const struct kvl_pctx *ctx, const struct kvl_channel_scores *s)
{
    int32_t n_heads = ctx->shape->n_heads;
    size_t all = (size_t)n_heads * (size_t)s->n;
    if (!(ctx->shape->cap > 0)) return KVL_OK;
    KVL_TRY(kvl_cap(ctx, s->score, all));
    KVL_TRY(kvl_look_at(ctx, s->score, all, sizeof *s->score));
    for (int32_t h = 0; h < n_heads; h++) {
        const float *score = s->score + (size_t)h * (size_t)s->n;
        s->max[h] = -INFINITY;
        s->sum[h] = 0;
        for (int32_t i = 0; i < s->n; i++) s->max[h] = fmaxf(s->max[h], score[i]);
        for (int32_t i = 0; i < s->n; i++) s->sum[h] += expf(score[i] - s->max[h]);
    }
    return KVL_OK;
}

int kvl_channel_scores(const struct kvl_pctx *ctx, const struct kvl_channel_scores *s)
{
    const struct kvl_shape *sh = ctx->shape;
    struct kvl_rows keys;
    float *max, *sum; /* of both parts, one behind the other */
    int32_t n_heads = sh->n_heads, n_parts = 0;
    int32_t n_pages = (s->n + KVL_CHANNEL_PAGE - 1) / KVL_CHANNEL_PAGE;
    KVL_TRY(kvl_scratch_get(ctx, 4 * (size_t)n_heads, &max));
    sum = max + 2 * n_heads;
    KVL_TRY(kvl_table_operand(ctx, s->table, s->layer, n_pages, &keys));
    KVL_TRY(kvl_table_count(ctx, s->table, (int64_t)s->n * s->n_channels * sh->n_kv_heads));
    for (int32_t h = 0; h < sh->n_heads; h++) s->max[h] = -INFINITY, s->sum[h] = 0;
    for (int32_t i = 0, at = 0; i < 2; at += keys.part[i].n_rows * KVL_CHANNEL_PAGE, i++) {
        if (keys.part[i].n_rows == 0) continue;
        struct kvl_channel_scores_args args = {
            .score = s->score + at,
            .score_stride = (size_t)s->n,
            .max = max + n_parts * n_heads,
            .sum = sum + n_parts * n_heads,
            .q = s->q,
            .factor = s->factor,
            .channel = s->channel,
            .keys = keys.part[i].data,
            .type = keys.type,
            .head_stride = keys.part[i].head_bytes / keys.elem_bytes,
            .n_tok = KVL_MIN(keys.part[i].n_rows * KVL_CHANNEL_PAGE, s->n - at),
            .page_tok = KVL_CHANNEL_PAGE,
            .n_channels = s->n_channels,
            .n_heads = n_heads,
            .n_kv_heads = sh->n_kv_heads,
            .head_dim = sh->head_dim,
        };
        KVL_TRY(ctx->ops->channel_scores(&args));
        n_parts++;
    }
    KVL_TRY(kvl_look_at(ctx, max, 4 * (size_t)n_heads, sizeof *max));
    for (int32_t i = 0; i < n_parts; i++)
        channels_merge(s, max + i * n_heads, sum + i * n_heads, n_heads);
    return channels_cap(ctx, s);
}
