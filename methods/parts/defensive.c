/* DefensiveKV's scores.  Each query of the window is looked at by itself, since the largest counts and not the sum. */
#include "defensive.h"

#include "critical.h"
#include "ranked.h"

#include <math.h>
#include <string.h>

struct defensive_room {
    float *probs, *pooled, *mean, *norm; /* of one query; a row; means [n_kv][n]; norms [n_kv][n] */
    double bias;                         /* mass on the last tokens before the window */
};

/* One head of one query: pooled and brought back to its sum, to the largest so far. */
static void raise_head(const float *row, const float *pooled, int32_t n, float *score)
{
    double sum = 0, base = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)pooled[i];
    for (int32_t i = 0; i < n; i++) base += (double)row[i];
    float factor = sum > 0 ? (float)(base / sum) : 0;
    for (int32_t i = 0; i < n; i++) score[i] = fmaxf(score[i], pooled[i] * factor);
}

/* compute_window_attention(), score(): all heads of all queries. */
static int defensive_window(const struct kvl_pctx *ctx, int32_t layer,
                            const struct kvl_defensive *d, int32_t n_tok, struct defensive_room *r,
                            float *score, size_t stride)
{
    int32_t n = n_tok - d->window, group = ctx->shape->group, heads = ctx->shape->n_heads;
    float part = 1.0f / (float)(d->window * group);
    for (int32_t back = 0; back < d->window; back++) {
        KVL_TRY(kvl_obs_window_probs(ctx, layer, back, r->probs, n_tok));
        for (int32_t h = 0; h < heads; h++) {
            const float *row = r->probs + (size_t)h * (size_t)n_tok;
            float *mean = r->mean + (size_t)(h / group) * (size_t)n;
            KVL_TRY(ctx->ops->pool1d(&(struct kvl_pool1d_args){ .y = r->pooled,
                                                                .x = row,
                                                                .x_stride = (size_t)n_tok,
                                                                .n_rows = 1,
                                                                .n = n,
                                                                .kernel = d->kernel,
                                                                .average = true }));
            raise_head(row, r->pooled, n, score + (size_t)(h / group) * stride);
            for (int32_t i = 0; i < n; i++) mean[i] += row[i] * part;
            for (int32_t i = KVL_MAX(0, n - d->window); i < n; i++)
                r->bias += (double)row[i] / ((double)heads * d->window);
        }
    }
    return KVL_OK;
}

/* score(): none is below the mean; vwl1norm(): times the part of a token's projected value among the kv heads. */
static int defensive_weigh(const struct kvl_pctx *ctx, int32_t layer, int32_t n,
                           struct defensive_room *r, float *score, size_t stride)
{
    int32_t n_kv = ctx->shape->n_kv_heads;
    for (int32_t h = 0; h < n_kv; h++) {
        float *s = score + (size_t)h * stride;
        double sum = 0;
        for (int32_t i = 0; i < n; i++) sum += (double)s[i];
        for (int32_t i = 0; i < n; i++) s[i] = fmaxf(s[i], (float)(sum / n));
        KVL_TRY(kvl_projected_norms(ctx, layer, h, 0, n, r->norm + (size_t)h * (size_t)n));
    }
    for (int32_t i = 0; i < n; i++) {
        float sum = 0;
        for (int32_t h = 0; h < n_kv; h++) sum += r->norm[h * n + i];
        for (int32_t h = 0; h < n_kv; h++)
            score[(size_t)h * stride + (size_t)i] *= sum > 0 ? r->norm[h * n + i] / sum : 0;
    }
    return KVL_OK;
}

/* vwl1norm(): tokens of a lane, by mean attention, until `part` of it is reached; the one that reaches it is not among
 * them. */
static int32_t defensive_first(const float *mean, const int32_t *order, int32_t n, double part)
{
    double all = 0, sum = 0;
    for (int32_t i = 0; i < n; i++) all += (double)mean[i];
    for (int32_t i = 0; i < n; i++) {
        sum += (double)mean[order[i]];
        if (sum >= part * all) return i;
    }
    return 0;
}

/* Those score as much as the best of the layer. */
static int defensive_certain(const struct kvl_pctx *ctx, const struct kvl_defensive *d, int32_t n,
                             const struct defensive_room *r, float *score, size_t stride)
{
    int32_t *order, n_kv = ctx->shape->n_kv_heads;
    float best = 0;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &order));
    for (int32_t h = 0; h < n_kv; h++)
        for (int32_t i = 0; i < n; i++) best = fmaxf(best, score[(size_t)h * stride + (size_t)i]);
    for (int32_t h = 0; h < n_kv; h++) {
        const float *mean = r->mean + (size_t)h * (size_t)n;
        KVL_TRY(kvl_topk_ranked(ctx, mean, 1, n, n, order));
        int32_t k = KVL_MIN(defensive_first(mean, order, n, d->mass - r->bias), d->most);
        for (int32_t i = 0; i < k; i++) score[(size_t)h * stride + (size_t)order[i]] = best;
    }
    return KVL_OK;
}

int kvl_defensive_scores(const struct kvl_pctx *ctx, int32_t layer, const struct kvl_defensive *d,
                         int32_t n_tok, float *score, size_t stride)
{
    int32_t n = n_tok - d->window;
    size_t n_kv = (size_t)ctx->shape->n_kv_heads;
    struct defensive_room r = { 0 };
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_heads * (size_t)n_tok, &r.probs));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &r.pooled));
    KVL_TRY(kvl_scratch_get(ctx, n_kv * (size_t)n, &r.mean));
    KVL_TRY(kvl_scratch_get(ctx, n_kv * (size_t)n, &r.norm));
    memset(r.mean, 0, n_kv * (size_t)n * sizeof *r.mean);
    for (size_t h = 0; h < n_kv; h++) memset(score + h * stride, 0, (size_t)n * sizeof *score);
    KVL_TRY(defensive_window(ctx, layer, d, n_tok, &r, score, stride));
    KVL_TRY(defensive_weigh(ctx, layer, n, &r, score, stride));
    return defensive_certain(ctx, d, n, &r, score, stride);
}
