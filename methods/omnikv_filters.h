/* omnikv_filters.h - which layers of a model find tokens for the layers behind them.
 *
 * Included once, by omnikv.c and by omnikv_prefill.c.  The best of all sets that leave at most `dense`
 * layers dense is taken (kvl_filter_layers), by what layer m > l keeps with layer l's list:
 *   the model's tables  S(l, m), measured by `kvlab tables` on questions and answers about contexts that
 *                       were made for that; they also say how many layers to leave dense
 *   measured            C(l, m), on the context at hand: its last 32 queries (fewer would all stand in what
 *                       happens to end it) pick the top k of every layer (maximum over heads of the
 *                       weight); the share of the weight of layer m, mean over heads and queries, that
 *                       falls on l's tokens and the query's own.  No question is there to be seen: the
 *                       layers of a model that find what is asked for do not show
 */
#ifndef OMNIKV_FILTERS_H
#define OMNIKV_FILTERS_H

#include "kvl/policy.h"

#include <stdio.h>
#include <string.h>

enum { OMNIKV_MEASURE = 32 }; /* queries */
enum { OMNIKV_MAX_LAYERS = 1024 };

/* Marks the layers of "2+8+18". */
static int omnikv_parse_filters(const char *text, const struct kvl_shape *shape, uint8_t *is_filter,
                                struct kvl_err *err)
{
    int32_t before = -1;
    for (const char *at = text; at; at = strchr(at, '+') ? strchr(at, '+') + 1 : NULL) {
        char number[16];
        int64_t layer;
        size_t n = strcspn(at, "+");
        if (n >= sizeof number) n = 0;
        memcpy(number, at, n);
        number[n] = '\0';
        if (kvl_parse_i64(number, &layer) != KVL_OK || layer <= before ||
            layer >= shape->n_layers - 1)
            return kvl_fail(
                err, KVL_EINVAL,
                "filter_layers=%s; give auto, or ascending layers from 0 to %d as in 2+8+18", text,
                shape->n_layers - 2);
        before = (int32_t)layer;
        is_filter[before] = 1;
    }
    return KVL_OK;
}

/* Writes "2+8+18". */
static int omnikv_print_filters(struct kvl_plan *plan, const uint8_t *is_filter, char *text)
{
    size_t len = 0;
    for (int32_t l = 0; l < plan->shape->n_layers; l++) {
        if (!is_filter[l]) continue;
        int n = snprintf(text + len, KVL_OPT_STR_SIZE - len, "%s%d", len ? "+" : "", l);
        len += (size_t)KVL_MAX(0, n);
        if (len >= KVL_OPT_STR_SIZE)
            return kvl_fail(plan->err, KVL_EINVAL,
                            "dense_layers: so many filters of %d layers do not fit into "
                            "filter_layers, want fewer",
                            plan->shape->n_layers);
    }
    return KVL_OK;
}

/* filter_layers=auto where the model has tables. */
static int omnikv_plan_tables(struct kvl_plan *plan, char *filter_layers, int32_t wait,
                              int32_t dense, char *table_sum)
{
    const struct kvl_tables *t = plan->shape->tables;
    uint8_t is_filter[OMNIKV_MAX_LAYERS] = { 0 };
    double kept;
    KVL_TRY(kvl_table_sum_check(t->sum, table_sum, "the model's tables", plan->err));
    KVL_TRY(kvl_filter_layers(t->kept, t->n_layers, dense, wait, is_filter, &kept, plan->err));
    return omnikv_print_filters(plan, is_filter, filter_layers);
}

/* Where "auto" leads, and whether filters and dense layers fit the model: marks the layers that may be
 * filters. */
static int omnikv_plan_layers(struct kvl_plan *plan, char *filter_layers, int32_t *wait,
                              int32_t *dense, char *table_sum, bool *measured, uint8_t *is_filter)
{
    int32_t n_layers = plan->shape->n_layers;
    if (n_layers < 2 || n_layers > OMNIKV_MAX_LAYERS)
        return kvl_fail(plan->err, KVL_EINVAL, "a model of %d layers, want 2 to %d", n_layers,
                        OMNIKV_MAX_LAYERS);
    bool known = strcmp(filter_layers, "auto") == 0 && plan->shape->tables;
    *measured =
        !known && (strcmp(filter_layers, "auto") == 0 || strcmp(filter_layers, "measured") == 0);
    if (*wait == KVL_AUTO) *wait = n_layers >= 16;
    if (*dense == KVL_AUTO)
        *dense = KVL_MIN(n_layers - 1, KVL_MAX(KVL_MAX(2, *wait + 1),
                                               known ? plan->shape->tables->dense : n_layers / 4));
    if (*wait > n_layers - 2)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "num_wait_load_layers=%d; behind a filter and these none of %d layers is "
                        "left to read its list, give 0 to %d",
                        *wait, n_layers, n_layers - 2);
    if ((known || *measured) && (*dense <= *wait || *dense >= n_layers))
        return kvl_fail(
            plan->err, KVL_EINVAL,
            "dense_layers=%d with num_wait_load_layers=%d; the model has %d layers, give %d to %d",
            *dense, *wait, n_layers, *wait + 1, n_layers - 1);
    if (*measured && table_sum[0])
        return kvl_fail(
            plan->err, KVL_EINVAL,
            "table_sum=%s, and the model has no tables; give filter_layers, or no table_sum",
            table_sum);
    if (*measured) {
        memcpy(filter_layers, "measured", sizeof "measured");
        memset(is_filter, 1, (size_t)n_layers - 1);
        return KVL_OK;
    }
    if (known) KVL_TRY(omnikv_plan_tables(plan, filter_layers, *wait, *dense, table_sum));
    KVL_TRY(omnikv_parse_filters(filter_layers, plan->shape, is_filter, plan->err));
    for (int32_t l = 0, since = INT32_MIN / 2; l < n_layers; l++) {
        if (is_filter[l]) since = l;
        if (l - since > *wait && since >= 0) return KVL_OK;
    }
    return kvl_fail(plan->err, KVL_EINVAL,
                    "filter_layers=%s with num_wait_load_layers=%d leaves none of %d layers to "
                    "read a list; give fewer",
                    filter_layers, *wait, n_layers);
}

/* ---- what a layer's tokens capture of others ------------------------------------------------ */

static int omnikv_reduce(const struct kvl_pctx *ctx, float *y, const float *x, size_t stride,
                         int32_t n, enum kvl_reduce reduce)
{
    return ctx->ops->group_reduce(&(struct kvl_group_reduce_args){ .y = y,
                                                                   .x = x,
                                                                   .x_stride = stride,
                                                                   .n = n,
                                                                   .n_heads = ctx->shape->n_heads,
                                                                   .n_kv_heads = 1,
                                                                   .reduce = reduce });
}

/* What lies in scratch while filters are measured; L layers, n tokens. */
struct omnikv_measure {
    float *probs;   /* [n_heads][n] of one query */
    float *weight;  /* [n] mean over heads, then the score */
    float *capture; /* [L][L] C(l, m); the diagonal is capture_own */
    int32_t *list;  /* [L][k] */
    int32_t n, k;
};

static float omnikv_share(const float *weight, const int32_t *list, int32_t n_list, int32_t own)
{
    float sum = weight[own];
    for (int32_t i = 0; i < n_list; i++) sum += weight[list[i]];
    return sum;
}

/* Adds one query's captures, layer by layer: the lists of the layers before are there. */
static int omnikv_measure_query(const struct kvl_pctx *ctx, const struct omnikv_measure *m,
                                int32_t back)
{
    size_t n = (size_t)m->n, n_layers = (size_t)ctx->shape->n_layers;
    int32_t own = m->n - 1 - back, k = KVL_MIN(m->k, own);
    for (size_t at = 0; at < n_layers; at++) {
        int32_t *list = m->list + at * (size_t)m->k;
        KVL_TRY(kvl_obs_window_probs(ctx, (int32_t)at, back, m->probs, m->n));
        KVL_TRY(omnikv_reduce(ctx, m->weight, m->probs, n, own, KVL_REDUCE_MAX));
        KVL_TRY(kvl_topk(ctx, m->weight, 1, own, k, list));
        KVL_TRY(omnikv_reduce(ctx, m->weight, m->probs, n, m->n, KVL_REDUCE_MEAN));
        for (size_t l = 0; l <= at; l++)
            m->capture[l * n_layers + at] +=
                omnikv_share(m->weight, m->list + l * (size_t)m->k, k, own);
    }
    return KVL_OK;
}

/* capture [n_layers][n_layers]: C(l, m) for m >= l, lists of k of the n_tok tokens that were observed. */
static int omnikv_capture(const struct kvl_pctx *ctx, int32_t n_tok, int32_t k, float *capture)
{
    size_t n = (size_t)n_tok, n_layers = (size_t)ctx->shape->n_layers;
    int32_t n_queries = KVL_MIN(OMNIKV_MEASURE, n_tok);
    struct omnikv_measure m = { .n = n_tok, .k = k, .capture = capture };
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_heads * n, &m.probs));
    KVL_TRY(kvl_scratch_get(ctx, n, &m.weight));
    KVL_TRY(kvl_scratch_get(ctx, n_layers * (size_t)k, &m.list));
    memset(capture, 0, n_layers * n_layers * sizeof *capture);
    for (int32_t b = 0; b < n_queries; b++) KVL_TRY(omnikv_measure_query(ctx, &m, b));
    for (size_t i = 0; i < n_layers * n_layers; i++) capture[i] /= (float)n_queries;
    return KVL_OK;
}

/* ---- the best set ---------------------------------------------------------------------------- */

/* is_filter [n_layers], zero on arrival: the best set that leaves at most `dense` layers dense;
 * behind each filter come `wait` dense layers and at least one that reads its list. */
static int omnikv_choose(const struct kvl_pctx *ctx, const float *capture, int32_t wait,
                         int32_t dense, uint8_t *is_filter)
{
    size_t n_layers = (size_t)ctx->shape->n_layers;
    double sparse, *exact;
    KVL_TRY(kvl_scratch_get(ctx, n_layers * n_layers, &exact));
    for (size_t i = 0; i < n_layers * n_layers; i++) exact[i] = (double)capture[i];
    return kvl_filter_layers(exact, ctx->shape->n_layers, dense, wait, is_filter, &sparse,
                             ctx->err);
}

/* Where the filters come from, if nobody said it; NULL: somebody did. */
static int omnikv_report_source(const struct kvl_shape *shape, const char *filter_layers,
                                const char *table_sum, bool fallback, struct kvl_report *r)
{
    char text[2 * KVL_OPT_STR_SIZE + 64];
    if (fallback)
        return kvl_report_note(r, "the model has no tables, filter layers are measured on every "
                                  "context (kvlab tables MODEL makes them)");
    if (!shape->tables || strcmp(table_sum, shape->tables->sum) != 0) return KVL_OK;
    snprintf(text, sizeof text, "filter layers %s by the model's tables (%s)", filter_layers,
             table_sum);
    return kvl_report_note(r, text);
}

#endif
