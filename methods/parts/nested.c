/* Nested sets of tokens: what they keep of the attention of a context, and what they cost. */
#include "nested.h"

#include <math.h>

void kvl_nested_sizes(const struct kvl_nested *s, int32_t *size)
{
    int local = s->n_sets - 2, full = s->n_sets - 1;
    for (int p = 0; p < s->n_sets; p++) size[p] = 0;
    for (int32_t j = 0; j < s->n; j++) {
        size[full]++;
        size[local] += s->level[j] < local || j >= s->n - s->window;
        for (int p = s->level[j]; p < local; p++) size[p]++;
    }
}

void kvl_nested_mass(const struct kvl_nested *s, const float *all, const float *near, float *kept)
{
    int local = s->n_sets - 2, full = s->n_sets - 1;
    double sum[KVL_NESTED_MAX] = { 0 };
    for (int32_t j = 0; j < s->n; j++) {
        for (int p = s->level[j]; p < local; p++) sum[p] += (double)all[j];
        sum[local] += (double)(s->level[j] < local ? all[j] : near[j]);
    }
    for (int p = 0; p < full; p++) kept[p] = (float)(sum[p] / s->n);
    kept[full] = 1;
}

/* Kept weights grow to a sum of 1: they gain what the others lose. */
void kvl_nested_distance(const struct kvl_nested *s, const float *a, int32_t at, double *distance)
{
    int local = s->n_sets - 2, full = s->n_sets - 1;
    double mass[KVL_NESTED_MAX] = { 0 }, all = 0;
    for (int32_t j = 0; j <= at; j++) {
        all += (double)a[j];
        for (int p = 0; p < full; p++) {
            bool recent = p == local && j > at - s->window;
            bool kept = s->level[j] <= KVL_MIN(p, local - 1) || recent;
            mass[p] += kept ? (double)a[j] : 0;
        }
    }
    for (int p = 0; p < full; p++) {
        double gained = mass[p] > 0 ? fmax(0, 1 - mass[p]) : 0;
        distance[p] += gained + fmax(0, all - mass[p]);
    }
}

/* ---- on a context ------------------------------------------------------------------------------------ */

static int nested_check(const struct kvl_pctx *ctx, int32_t kv_head, const struct kvl_nested *s)
{
    if (kv_head < 0 || kv_head >= ctx->shape->n_kv_heads)
        return kvl_fail(ctx->err, KVL_EPOLICY, "nested sets of kv head %d, want 0 to %d", kv_head,
                        ctx->shape->n_kv_heads - 1);
    if (s->n_sets >= 2 && s->n_sets <= KVL_NESTED_MAX && s->n >= 1) return KVL_OK;
    return kvl_fail(ctx->err, KVL_EPOLICY, "%d nested sets of %d tokens, want 2 to %d of 1 or more",
                    s->n_sets, s->n, KVL_NESTED_MAX);
}

/* mean [n] of the rows of a group's query heads, x [n_heads][n]. */
static int nested_mean(const struct kvl_pctx *ctx, const float *x, int32_t kv_head, int32_t n,
                       float *mean)
{
    int32_t group = ctx->shape->group;
    return kvl_layer_scores(ctx, x + (size_t)(kv_head * group) * (size_t)n, group, n,
                            KVL_REDUCE_MEAN, mean);
}

int kvl_nested_by_columns(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                          const struct kvl_nested *s, float *room, float *kept)
{
    const float *all, *near;
    int32_t n;
    KVL_TRY(nested_check(ctx, kv_head, s));
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, 0, &all, &n));
    if (n != s->n)
        return kvl_fail(ctx->err, KVL_EPOLICY, "nested sets of %d tokens, the context has %d", s->n,
                        n);
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, s->window, &near, &n));
    KVL_TRY(nested_mean(ctx, all, kv_head, n, room));
    KVL_TRY(nested_mean(ctx, near, kv_head, n, room + n));
    kvl_nested_mass(s, room, room + n, kept);
    return KVL_OK;
}

int kvl_nested_by_window(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                         const struct kvl_nested *s, int32_t n_queries, float *room, float *kept)
{
    int32_t rows = KVL_MIN(n_queries, s->n), full = s->n_sets - 1;
    double distance[KVL_NESTED_MAX] = { 0 };
    float *mean = room + (size_t)ctx->shape->n_heads * (size_t)s->n;
    KVL_TRY(nested_check(ctx, kv_head, s));
    if (n_queries < 1)
        return kvl_fail(ctx->err, KVL_EPOLICY, "what %d queries keep, want 1 or more", n_queries);
    for (int32_t back = 0; back < rows; back++) {
        KVL_TRY(kvl_obs_window_probs(ctx, layer, back, room, s->n));
        KVL_TRY(nested_mean(ctx, room, kv_head, s->n, mean));
        kvl_nested_distance(s, mean, s->n - 1 - back, distance);
    }
    for (int p = 0; p < full; p++) kept[p] = (float)(1 - distance[p] / rows);
    kept[full] = 1;
    return KVL_OK;
}

/* ---- choice ------------------------------------------------------------------------------------------- */

int32_t kvl_nested_choose(const struct kvl_nested_lane *lane, int32_t n_sets, double part)
{
    int32_t p = 0;
    while (p < n_sets - 1 && (part >= 1 || (double)lane->kept[p] < part)) p++;
    return p;
}

double kvl_nested_part(const struct kvl_nested_lane *lane, int32_t n_lanes, int32_t n_sets,
                       int32_t n, int32_t more, int32_t most)
{
    double low = 0, high = 1;
    if (n <= most) return high;
    for (int32_t i = 0; i < n_lanes; i++) low = KVL_MIN(low, (double)lane[i].kept[0]);
    for (int step = 0; step < 40; step++) {
        double middle = (low + high) / 2, sum = 0;
        for (int32_t i = 0; i < n_lanes; i++)
            sum +=
                lane[i].size[kvl_nested_choose(&lane[i], n_sets, middle)] * (1 + (double)more / n);
        if (sum / n_lanes <= most)
            low = middle;
        else
            high = middle;
    }
    return low;
}
