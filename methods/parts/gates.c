/* Gates of kv heads: measured on a context, and split at a quantile. */
#include "gates.h"

#include <math.h>
#include <string.h>

/* Of all queries: windowed [n] counts the `window` queries from a token's own on, all [n] every later one. */
int kvl_gates_by_columns(const struct kvl_pctx *ctx, int32_t layer, int32_t sink, int32_t window,
                         float *gate)
{
    const float *windowed, *all;
    int32_t n, group = ctx->shape->group;
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, window, &windowed, &n));
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, 0, &all, &n));
    memset(gate, 0, (size_t)ctx->shape->n_kv_heads * sizeof *gate);
    for (int32_t h = 0; h < ctx->shape->n_heads; h++, windowed += n, all += n) {
        double inside = 0;
        for (int32_t j = 0; j < n; j++) inside += (double)(j < sink ? all[j] : windowed[j]);
        gate[h / group] += (float)(fmax(0, 1 - inside / n) / group);
    }
    return KVL_OK;
}

int kvl_gates_by_window(const struct kvl_pctx *ctx, int32_t layer, int32_t n_queries, int32_t n,
                        int32_t sink, int32_t window, float *gate)
{
    int32_t group = ctx->shape->group, queries = KVL_MIN(n_queries, n);
    float *probs;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_heads * (size_t)n, &probs));
    memset(gate, 0, (size_t)ctx->shape->n_kv_heads * sizeof *gate);
    for (int32_t b = 0; b < queries; b++) {
        KVL_TRY(kvl_obs_window_probs(ctx, layer, b, probs, n));
        for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
            const float *p = probs + (size_t)h * (size_t)n;
            double outside = 0;
            for (int32_t j = sink; j < n - b - window; j++) outside += (double)p[j];
            gate[h / group] += (float)(outside / ((double)queries * group));
        }
    }
    return KVL_OK;
}

int32_t kvl_gates_below(double share, int32_t n)
{
    return share >= 1 ? n : (int32_t)ceil(share * (n - 1) - 1e-9);
}

/* How many gates come before gate[i] when they are sorted: lower ones, of equal ones the later. */
static int32_t gates_rank(const float *gate, int32_t n, int32_t i)
{
    int32_t rank = 0;
    for (int32_t j = 0; j < n; j++) rank += gate[j] < gate[i] || (gate[j] <= gate[i] && j > i);
    return rank;
}

double kvl_gates_split(const float *gate, int32_t n, double share, float *above)
{
    double at = KVL_MIN(1.0, share) * (n - 1), low = 0, high = 0;
    int32_t n_below = kvl_gates_below(share, n), floor_at = (int32_t)at;
    for (int32_t i = 0; i < n; i++) {
        int32_t rank = gates_rank(gate, n, i);
        above[i] = rank >= n_below ? 1.0f : 0.0f;
        if (rank == floor_at) low = (double)gate[i];
        if (rank == KVL_MIN(n - 1, floor_at + 1)) high = (double)gate[i];
    }
    return low + (high - low) * (at - floor_at);
}
