/* What candidates for a mask of the prefill capture of the attention of every query head. */
#include "mask_search.h"

#include <stdio.h>

size_t kvl_mask_captured_bytes(const struct kvl_shape *sh, int32_t n_kinds)
{
    size_t n = (size_t)sh->n_layers * (size_t)sh->n_heads * (size_t)n_kinds;
    return sizeof(struct kvl_mask_captured) + n * sizeof(double);
}

/* Query i of the chunk, all heads and kinds: trial [n_kinds], probs [n_heads][its keys], share [n_heads], to which
 * sum [n_heads][n_kinds] is added. */
static int search_query(const struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, int32_t i, struct kvl_prefill_mask **trial,
                        int32_t n_kinds, float *probs, float *share, double *sum)
{
    KVL_TRY(kvl_mask_weights(ctx, step, q, i, probs, step->pos + i + 1));
    for (int32_t k = 0; k < n_kinds; k++) {
        KVL_TRY(kvl_mask_captures(trial[k], i, probs, share));
        for (int32_t h = 0; h < ctx->shape->n_heads; h++) sum[h * n_kinds + k] += (double)share[h];
    }
    return KVL_OK;
}

int kvl_mask_search(const struct kvl_pctx *ctx, const struct kvl_step *step,
                    const struct kvl_query *q, struct kvl_prefill_mask *mask,
                    const struct kvl_mask_search *how, struct kvl_mask_captured *captured)
{
    size_t heads = (size_t)ctx->shape->n_heads, n = (size_t)(step->pos + step->n_tok);
    int32_t first = KVL_MAX(0, ctx->budget_tok - step->pos), room = step->n_tok - first;
    int32_t count = KVL_MIN(how->n_queries, KVL_MAX(0, room));
    double *sum = captured->sum + (size_t)step->layer * heads * (size_t)how->n_kinds;
    struct kvl_prefill_mask **trial;
    float *probs, *share;
    void *trials;
    if (count == 0) return KVL_OK; /* every kind would read everything */
    KVL_TRY(kvl_scratch_items(ctx, (size_t)how->n_kinds, sizeof *trial, &trials));
    KVL_TRY(kvl_scratch_get(ctx, heads * n, &probs));
    KVL_TRY(kvl_scratch_get(ctx, heads, &share));
    trial = trials;
    for (int32_t k = 0; k < how->n_kinds; k++) {
        KVL_TRY(kvl_mask_trial(mask, &trial[k]));
        KVL_TRY(how->say(ctx, step, q, k, trial[k]));
    }
    for (int32_t k = 0; k < count; k++) {
        int32_t i = first + (int32_t)((int64_t)k * room / count);
        KVL_TRY(search_query(ctx, step, q, i, trial, how->n_kinds, probs, share, sum));
    }
    captured->n_queries += step->layer == 0 ? count : 0;
    return KVL_OK;
}

int kvl_mask_search_report(const struct kvl_pctx *ctx, struct kvl_report *r,
                           const struct kvl_mask_search *how,
                           const struct kvl_mask_captured *captured)
{
    const double *sum = captured->sum;
    for (int32_t l = 0; captured->n_queries > 0 && l < ctx->shape->n_layers; l++)
        for (int32_t h = 0; h < ctx->shape->n_heads; h++)
            for (int32_t k = 0; k < how->n_kinds; k++, sum++) {
                char name[64];
                snprintf(name, sizeof name, "capture.%d.%d.%s", l, h, how->kinds[k]);
                KVL_TRY(kvl_report_num(r, name, *sum / (double)captured->n_queries));
            }
    return KVL_OK;
}
