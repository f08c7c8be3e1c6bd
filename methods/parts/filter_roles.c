/* Filter layers of a policy: options, what every layer does, and the measurement on the context at hand. */
#include "filter_roles.h"

#include <stdio.h>
#include <string.h>

/* Marks the layers of "2+8+18". */
static int filters_parse(const char *text, const struct kvl_shape *shape, uint8_t *is_filter,
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
static int filters_print(struct kvl_plan *plan, const uint8_t *is_filter, char *text)
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

/* ---- plan -------------------------------------------------------------------------------------- */

/* filter_layers=auto where the model has tables. */
static int filters_of_tables(struct kvl_plan *plan, struct kvl_filter_options *o)
{
    const struct kvl_tables *t = plan->shape->tables;
    uint8_t is_filter[KVL_FILTER_MAX_LAYERS] = { 0 };
    double kept;
    KVL_TRY(kvl_table_sum_check(t->sum, o->table_sum, "the model's tables", plan->err));
    KVL_TRY(kvl_filter_layers(t->kept, t->n_layers, o->dense_layers, o->num_wait_load_layers,
                              is_filter, &kept, plan->err));
    return filters_print(plan, is_filter, o->filter_layers);
}

/* Dense layers and those that wait: what is auto, and whether they fit the model. */
static int filters_resolve(struct kvl_plan *plan, struct kvl_filter_options *o, bool known)
{
    int32_t n_layers = plan->shape->n_layers;
    if (o->num_wait_load_layers == KVL_AUTO) o->num_wait_load_layers = n_layers >= 16;
    if (o->dense_layers == KVL_AUTO)
        o->dense_layers =
            KVL_MIN(n_layers - 1, KVL_MAX(KVL_MAX(2, o->num_wait_load_layers + 1),
                                          known ? plan->shape->tables->dense : n_layers / 4));
    if (o->num_wait_load_layers > n_layers - 2)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "num_wait_load_layers=%d; behind a filter and these none of %d layers is "
                        "left to read its list, give 0 to %d",
                        o->num_wait_load_layers, n_layers, n_layers - 2);
    if ((known || o->measured) &&
        (o->dense_layers <= o->num_wait_load_layers || o->dense_layers >= n_layers))
        return kvl_fail(
            plan->err, KVL_EINVAL,
            "dense_layers=%d with num_wait_load_layers=%d; the model has %d layers, give %d to %d",
            o->dense_layers, o->num_wait_load_layers, n_layers, o->num_wait_load_layers + 1,
            n_layers - 1);
    return KVL_OK;
}

static int filters_check_readers(struct kvl_plan *plan, const struct kvl_filter_options *o,
                                 const uint8_t *is_filter)
{
    int32_t n_layers = plan->shape->n_layers;
    for (int32_t l = 0, since = INT32_MIN / 2; l < n_layers; l++) {
        if (is_filter[l]) since = l;
        if (l - since > o->num_wait_load_layers && since >= 0) return KVL_OK;
    }
    return kvl_fail(plan->err, KVL_EINVAL,
                    "filter_layers=%s with num_wait_load_layers=%d leaves none of %d layers to "
                    "read a list; give fewer",
                    o->filter_layers, o->num_wait_load_layers, n_layers);
}

int kvl_plan_filters(struct kvl_plan *plan, struct kvl_filter_options *o, uint8_t **may_be)
{
    int32_t n_layers = plan->shape->n_layers;
    bool is_auto = strcmp(o->filter_layers, "auto") == 0, known = is_auto && plan->shape->tables;
    if (n_layers < 2 || n_layers > KVL_FILTER_MAX_LAYERS)
        return kvl_fail(plan->err, KVL_EINVAL, "a model of %d layers, want 2 to %d", n_layers,
                        KVL_FILTER_MAX_LAYERS);
    o->fallback = is_auto && !plan->shape->tables;
    o->measured = o->fallback || strcmp(o->filter_layers, "measured") == 0;
    KVL_TRY(filters_resolve(plan, o, known));
    if (o->measured && o->table_sum[0])
        return kvl_fail(
            plan->err, KVL_EINVAL,
            "table_sum=%s, and the model has no tables; give filter_layers, or no table_sum",
            o->table_sum);
    KVL_TRY(kvl_plan_layers(plan, "filter_layers", 0, 1, may_be));
    (*may_be)[n_layers - 1] = 0;
    if (o->measured) {
        memcpy(o->filter_layers, "measured", sizeof "measured");
        return kvl_plan_observe(plan, KVL_OBS_WINDOW, KVL_FILTER_QUERIES);
    }
    if (known) KVL_TRY(filters_of_tables(plan, o));
    memset(*may_be, 0, (size_t)n_layers);
    KVL_TRY(filters_parse(o->filter_layers, plan->shape, *may_be, plan->err));
    return filters_check_readers(plan, o, *may_be);
}

/* ---- roles ------------------------------------------------------------------------------------- */

static void filters_assign(const struct kvl_shape *sh, const uint8_t *is_filter, int32_t wait,
                           struct kvl_filter_role *role)
{
    for (int32_t l = 0, filter = -1; l < sh->n_layers; l++) {
        if (is_filter[l]) filter = l;
        bool reads = filter >= 0 && l - filter > wait;
        role[l] = (struct kvl_filter_role){ .first = -1, .last = -1 };
        role[l].filter = is_filter[l] || reads ? filter : -1;
        if (!reads || is_filter[l]) continue;
        if (role[filter].first < 0) role[filter].first = l;
        role[filter].last = l;
    }
}

int kvl_filter_roles(const struct kvl_pctx *ctx, const struct kvl_filter_options *o,
                     struct kvl_filter_role *role)
{
    uint8_t is_filter[KVL_FILTER_MAX_LAYERS] = { 0 };
    KVL_TRY(filters_parse(o->filter_layers, ctx->shape, is_filter, ctx->err));
    filters_assign(ctx->shape, is_filter, o->num_wait_load_layers, role);
    return KVL_OK;
}

int kvl_filter_offload(const struct kvl_pctx *ctx, const struct kvl_filter_role *role)
{
    uint8_t reads_list[KVL_FILTER_MAX_LAYERS];
    for (int32_t l = 0; l < ctx->shape->n_layers; l++)
        reads_list[l] = role[l].filter >= 0 && role[l].filter != l;
    return kvl_offload_layers(ctx, reads_list);
}

struct kvl_filter_sums kvl_filter_sum(const struct kvl_pctx *ctx,
                                      const struct kvl_filter_role *role)
{
    struct kvl_filter_sums sum = { .least = 1 };
    for (int32_t l = 0; l < ctx->shape->n_layers; l++) {
        if (role[l].filter < 0 || role[l].filter == l) continue;
        sum.n++;
        sum.capture += (double)role[l].capture;
        sum.own += (double)role[l].own;
        sum.least = KVL_MIN(sum.least, (double)role[l].capture);
    }
    return sum;
}

int kvl_filter_report(const struct kvl_pctx *ctx, struct kvl_report *r,
                      const struct kvl_filter_options *o, const struct kvl_filter_role *role)
{
    const struct kvl_filter_sums sum = kvl_filter_sum(ctx, role);
    int32_t n = 0;
    for (int32_t l = 0; l < ctx->shape->n_layers; l++) {
        char name[32];
        if (role[l].first < 0) continue;
        snprintf(name, sizeof name, "filter_%04d", n++);
        KVL_TRY(kvl_report_num(r, name, l));
    }
    KVL_TRY(kvl_report_num(r, "filters", n));
    if (!o->measured) return KVL_OK;
    KVL_TRY(kvl_report_num(r, "capture_mean", sum.capture / sum.n));
    KVL_TRY(kvl_report_num(r, "capture_min", sum.least));
    return kvl_report_num(r, "capture_own", sum.own / sum.n);
}

int kvl_filter_note(const struct kvl_pctx *ctx, struct kvl_report *r,
                    const struct kvl_filter_options *o)
{
    const struct kvl_tables *tables = ctx->shape->tables;
    char text[2 * KVL_OPT_STR_SIZE + 64];
    if (o->fallback)
        return kvl_report_note(r, "the model has no tables, filter layers are measured on every "
                                  "context (kvlab tables MODEL makes them)");
    if (!tables || strcmp(o->table_sum, tables->sum) != 0) return KVL_OK;
    snprintf(text, sizeof text, "filter layers %s by the model's tables (%s)", o->filter_layers,
             o->table_sum);
    return kvl_report_note(r, text);
}

/* ---- what a layer's tokens capture of others ---------------------------------------------------- */

/* In scratch; L layers, n tokens. */
struct filters_measure {
    float *probs;   /* [n_heads][n] of one query */
    float *weight;  /* [n] mean over heads, then the score */
    float *capture; /* [L][L] C(l, m); the diagonal is what a list of its own captures */
    int32_t *list;  /* [L][k] */
    int32_t n, k;
};

static int filters_reduce(const struct kvl_pctx *ctx, const struct filters_measure *m, int32_t n,
                          enum kvl_reduce reduce)
{
    return ctx->ops->group_reduce(&(struct kvl_group_reduce_args){ .y = m->weight,
                                                                   .x = m->probs,
                                                                   .x_stride = (size_t)m->n,
                                                                   .n = n,
                                                                   .n_heads = ctx->shape->n_heads,
                                                                   .n_kv_heads = 1,
                                                                   .reduce = reduce });
}

static float filters_share(const float *weight, const int32_t *list, int32_t n_list, int32_t own)
{
    float sum = weight[own];
    for (int32_t i = 0; i < n_list; i++) sum += weight[list[i]];
    return sum;
}

/* Adds one query's captures, layer by layer: the lists of the layers before are there. */
static int filters_measure_query(const struct kvl_pctx *ctx, const struct filters_measure *m,
                                 int32_t back)
{
    size_t n_layers = (size_t)ctx->shape->n_layers;
    int32_t own = m->n - 1 - back, k = KVL_MIN(m->k, own);
    for (size_t at = 0; at < n_layers; at++) {
        KVL_TRY(kvl_obs_window_probs(ctx, (int32_t)at, back, m->probs, m->n));
        KVL_TRY(filters_reduce(ctx, m, own, KVL_REDUCE_MAX));
        KVL_TRY(kvl_topk(ctx, m->weight, 1, own, k, m->list + at * (size_t)m->k));
        KVL_TRY(filters_reduce(ctx, m, m->n, KVL_REDUCE_MEAN));
        for (size_t l = 0; l <= at; l++)
            m->capture[l * n_layers + at] +=
                filters_share(m->weight, m->list + l * (size_t)m->k, k, own);
    }
    return KVL_OK;
}

/* capture [n_layers][n_layers]: C(l, m) for m >= l. */
static int filters_capture(const struct kvl_pctx *ctx, int32_t n_tok, int32_t k, float *capture)
{
    size_t n = (size_t)n_tok, n_layers = (size_t)ctx->shape->n_layers;
    int32_t n_queries = KVL_MIN(KVL_FILTER_QUERIES, n_tok);
    struct filters_measure m = { .n = n_tok, .k = k, .capture = capture };
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_heads * n, &m.probs));
    KVL_TRY(kvl_scratch_get(ctx, n, &m.weight));
    KVL_TRY(kvl_scratch_get(ctx, n_layers * (size_t)k, &m.list));
    memset(capture, 0, n_layers * n_layers * sizeof *capture);
    for (int32_t b = 0; b < n_queries; b++) KVL_TRY(filters_measure_query(ctx, &m, b));
    for (size_t i = 0; i < n_layers * n_layers; i++) capture[i] /= (float)n_queries;
    return KVL_OK;
}

int kvl_filter_measure(const struct kvl_pctx *ctx, const struct kvl_filter_options *o,
                       int32_t n_tok, int32_t k, struct kvl_filter_role *role)
{
    size_t n = (size_t)ctx->shape->n_layers;
    uint8_t is_filter[KVL_FILTER_MAX_LAYERS] = { 0 };
    double sparse, *exact;
    float *capture;
    KVL_TRY(kvl_scratch_get(ctx, n * n, &capture));
    KVL_TRY(kvl_scratch_get(ctx, n * n, &exact));
    KVL_TRY(filters_capture(ctx, n_tok, k, capture));
    for (size_t i = 0; i < n * n; i++) exact[i] = (double)capture[i];
    int32_t wait = o->num_wait_load_layers;
    KVL_TRY(
        kvl_filter_layers(exact, (int32_t)n, o->dense_layers, wait, is_filter, &sparse, ctx->err));
    filters_assign(ctx->shape, is_filter, wait, role);
    for (size_t l = 0; l < n; l++) {
        if (role[l].filter < 0 || role[l].filter == (int32_t)l) continue;
        role[l].capture = capture[(size_t)role[l].filter * n + l];
        role[l].own = capture[l * n + l];
    }
    return KVL_OK;
}
