/* omnikv_filters.h - which layers of a model find tokens for the layers behind them.
 *
 * Included once, by omnikv.c and by omnikv_prefill.c.  Of n tokens, the last 32 queries of every layer l
 * (fewer would all stand in what happens to end the context) pick their top k (maximum over heads of
 * the weight), and C(l, m) is the share of the weight of layer m > l, mean over heads and queries,
 * that falls on l's tokens and the query's own.  Of all filter sets that leave at most `dense`
 * layers dense and serve a layer each, the one of largest sum over the layers of C(filter, layer),
 * dense layers counting 1, is taken; exact, by dynamic programming; ties to the lower layers.
 */
#ifndef OMNIKV_FILTERS_H
#define OMNIKV_FILTERS_H

#include "kvl/policy.h"

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
            return kvl_fail(err, KVL_EINVAL,
                            "filter_layers=%s; give auto, or ascending layers from 0 to %d as in "
                            "2+8+18",
                            text, shape->n_layers - 2);
        before = (int32_t)layer;
        is_filter[before] = 1;
    }
    return KVL_OK;
}

/* Where "auto" leads, and whether filters and dense layers fit the model: marks the layers that may be
 * filters. */
static int omnikv_plan_layers(struct kvl_plan *plan, char *filter_layers, int32_t *wait,
                              int32_t *dense, bool *measured, uint8_t *is_filter)
{
    int32_t n_layers = plan->shape->n_layers;
    if (n_layers < 2 || n_layers > OMNIKV_MAX_LAYERS)
        return kvl_fail(plan->err, KVL_EINVAL, "a model of %d layers, want 2 to %d", n_layers,
                        OMNIKV_MAX_LAYERS);
    if (*wait == KVL_AUTO) *wait = n_layers >= 16;
    if (*dense == KVL_AUTO)
        *dense = KVL_MIN(n_layers - 1, KVL_MAX(KVL_MAX(2, *wait + 1), n_layers / 4));
    if (*wait > n_layers - 2)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "num_wait_load_layers=%d; behind a filter and these none of %d layers is "
                        "left to read its list, give 0 to %d",
                        *wait, n_layers, n_layers - 2);
    *measured = strcmp(filter_layers, "auto") == 0 || strcmp(filter_layers, "measured") == 0;
    if (*measured) {
        memcpy(filter_layers, "measured", sizeof "measured");
        memset(is_filter, 1, (size_t)n_layers - 1);
        if (*dense > *wait && *dense < n_layers) return KVL_OK;
        return kvl_fail(plan->err, KVL_EINVAL,
                        "dense_layers=%d with num_wait_load_layers=%d; the model has %d layers, "
                        "give %d to %d",
                        *dense, *wait, n_layers, *wait + 1, n_layers - 1);
    }
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

static int omnikv_topk(const struct kvl_pctx *ctx, const float *score, int32_t n, int32_t k,
                       int32_t *index)
{
    int rc = ctx->ops->topk(&(struct kvl_topk_args){
        .index = index, .x = score, .x_stride = (size_t)n, .n_rows = 1, .n = n, .k = k });
    return rc == KVL_OK ? KVL_OK : kvl_fail(ctx->err, rc, "the %d best of %d tokens", k, n);
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
        KVL_TRY(omnikv_topk(ctx, m->weight, own, k, list));
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
    m.probs = kvl_scratch(ctx, (size_t)ctx->shape->n_heads * n);
    m.weight = kvl_scratch(ctx, n);
    m.list = (void *)kvl_scratch(ctx, n_layers * (size_t)k);
    if (!m.probs || !m.weight || !m.list)
        return kvl_fail(ctx->err, KVL_ENOMEM, "no memory to measure %d layers of %d tokens",
                        ctx->shape->n_layers, m.n);
    memset(capture, 0, n_layers * n_layers * sizeof *capture);
    for (int32_t b = 0; b < n_queries; b++) KVL_TRY(omnikv_measure_query(ctx, &m, b));
    for (size_t i = 0; i < n_layers * n_layers; i++) capture[i] /= (float)n_queries;
    return KVL_OK;
}

/* ---- the best set ---------------------------------------------------------------------------- */

/* value and next [n_layers][row] of filter layer l with at most d dense layers left: what the best
 * continuation captures, negative where there is none, and its next filter, n_layers at the end. */
struct omnikv_choice {
    const float *capture;
    int32_t n_layers, wait, row;
    float *value;
    int32_t *next;
};

static void omnikv_best_next(const struct omnikv_choice *c, int32_t l, int32_t d)
{
    int32_t used = 1 + c->wait, at = l * c->row + d;
    float sum = (float)used, best = -1.0f;
    for (int32_t m = l + used; used <= d && m < c->n_layers; m++) {
        sum += c->capture[l * c->n_layers + m];
        float rest = m + 1 < c->n_layers ? c->value[(m + 1) * c->row + d - used] : 0.0f;
        if (rest < 0 || sum + rest <= best) continue;
        best = sum + rest;
        c->next[at] = m + 1;
    }
    c->value[at] = best;
}

/* is_filter [n_layers], zero on arrival: the best set that leaves at most `dense` layers dense;
 * behind each filter come `wait` dense layers and at least one that reads its list. */
static int omnikv_choose(const struct kvl_pctx *ctx, const float *capture, int32_t wait,
                         int32_t dense, uint8_t *is_filter)
{
    int32_t n_layers = ctx->shape->n_layers, first = 0;
    size_t cells = (size_t)n_layers * (size_t)(dense + 1);
    float best = -1.0f;
    struct omnikv_choice c = {
        capture, n_layers, wait, dense + 1, kvl_scratch(ctx, cells), (void *)kvl_scratch(ctx, cells)
    };
    if (!c.value || !c.next) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory to choose filters");
    for (int32_t l = n_layers - 1; l >= 0; l--)
        for (int32_t d = 0; d <= dense; d++) omnikv_best_next(&c, l, d);
    for (int32_t l = 0; l < dense; l++) {
        float v = c.value[l * c.row + dense - l];
        if (v < 0 || (float)l + v <= best) continue;
        best = (float)l + v;
        first = l;
    }
    for (int32_t l = first, d = dense - first; l < n_layers; d -= 1 + c.wait) {
        is_filter[l] = 1;
        l = c.next[l * c.row + d];
    }
    return KVL_OK;
}

#endif
