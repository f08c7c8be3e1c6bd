/* Analyses as records. */
#include "record_analysis.h"

#include "args.h"
#include "build.h"
#include "kvl/model_tables.h"
#include "record_parts.h"
#include "settings.h"
#include "stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- lists ----------------------------------------------------------------------------------- */

/* sum [n] / count as a list. */
static json_t *analysis_means(const double *sum, int32_t n, int64_t count)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++) {
        double mean = count > 0 ? sum[i] / (double)count : KVL_NAN;
        kvl_record_item(&list, kvl_record_real(mean));
    }
    return list;
}

static int int_order(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Smallest value that at least `share` of the n > 0 sorted ones do not exceed. */
static int32_t quantile(const int32_t *sorted, int64_t n, double share)
{
    int64_t rank = (int64_t)ceil(share * (double)n);
    return sorted[rank ? rank - 1 : 0];
}

/* ---- mass ------------------------------------------------------------------------------------ */

/* One layer, head and mass; v has room for every step. */
static json_t *mass_row(const struct kvl_analysis *a, int32_t layer, int32_t head, int32_t p,
                        int32_t *v)
{
    const int32_t *count = (const int32_t *)(const void *)a->counts.data;
    size_t at = ((size_t)layer * (size_t)a->n_heads + (size_t)head) * KVL_ANALYSIS_P + (size_t)p;
    size_t stride = (size_t)a->n_layers * (size_t)a->n_heads * KVL_ANALYSIS_P;
    double sum = 0.0, n = (double)a->n_steps;
    for (int64_t i = 0; i < a->n_steps; i++) {
        v[i] = count[(size_t)i * stride + at];
        sum += v[i];
    }
    qsort(v, (size_t)a->n_steps, sizeof *v, int_order);
    return json_pack("{s:i, s:i, s:o, s:o, s:i, s:i, s:o}", "layer", layer, "head", head, "mass",
                     kvl_record_real(kvl_analysis_mass[p]), "tok_mean", kvl_record_real(sum / n),
                     "tok_p50", quantile(v, a->n_steps, 0.50), "tok_p95",
                     quantile(v, a->n_steps, 0.95), "share", kvl_record_real(a->share[at] / n));
}

static json_t *analysis_mass_rows(const struct kvl_analysis *a)
{
    int32_t *v = kvl_alloc((size_t)a->n_steps + 1, sizeof *v);
    json_t *rows = v ? json_array() : NULL;
    for (int32_t l = 0; l < a->n_layers && a->n_steps > 0 && rows; l++)
        for (int32_t h = 0; h < a->n_heads; h++)
            for (int32_t p = 0; p < KVL_ANALYSIS_P; p++)
                kvl_record_item(&rows, mass_row(a, l, h, p, v));
    kvl_free(v);
    return rows;
}

/* ---- similarity ------------------------------------------------------------------------------ */

/* [l1][l2], null below the diagonal. */
static json_t *similarity_matrix(const double *capture, int32_t n)
{
    json_t *rows = json_array();
    for (int32_t i = 0; i < n; i++) {
        json_t *row = json_array();
        for (int32_t j = 0; j < n; j++)
            kvl_record_item(&row,
                            j < i ? json_null()
                                  : kvl_record_real(capture[(size_t)i * (size_t)n + (size_t)j]));
        kvl_record_item(&rows, row);
    }
    return rows;
}

/* For every layer the mean of its row over itself and the next - 1 layers behind it; null where there are
 * not so many. */
static json_t *similarity_curve(const double *capture, int32_t n, int32_t next)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++) {
        double sum = 0.0;
        for (int32_t j = i; j < i + next && j < n; j++)
            sum += capture[(size_t)i * (size_t)n + (size_t)j];
        kvl_record_item(&list, kvl_record_real(i + next <= n ? sum / next : KVL_NAN));
    }
    return json_pack("{s:i, s:o}", "next", next, "value", list);
}

static json_t *similarity_curves(const struct kvl_analysis_info *info, const double *capture,
                                 int32_t n)
{
    json_t *curves = json_array();
    for (int32_t i = 0; i < info->n_next; i++)
        kvl_record_item(&curves, similarity_curve(capture, n, info->next[i]));
    return curves;
}

static json_t *similarity_filters(const uint8_t *filter, int32_t n)
{
    json_t *list = json_array();
    for (int32_t l = 0; l < n; l++)
        if (filter[l]) kvl_record_item(&list, json_integer(l));
    return list;
}

/* Mean of the diagonal over the layers that read a list. */
static double similarity_own(const double *capture, const uint8_t *filter, int32_t n, int32_t wait)
{
    double sum = 0.0;
    int32_t n_sparse = 0, since = -1;
    for (int32_t l = 0; l < n; l++) {
        if (filter[l]) since = l;
        if (since < 0 || l - since <= wait) continue;
        sum += capture[(size_t)l * (size_t)n + (size_t)l];
        n_sparse++;
    }
    return n_sparse ? sum / n_sparse : KVL_NAN;
}

static json_t *similarity_row(const struct kvl_analysis *a, const struct kvl_analysis_info *info,
                              int r, int32_t m, double *capture, uint8_t *filter,
                              struct kvl_err *err)
{
    int32_t n = a->n_layers;
    size_t list = (size_t)r * (size_t)a->want.n_m + (size_t)m, cells = (size_t)n * (size_t)n;
    double sparse = KVL_NAN;
    for (size_t i = 0; i < cells; i++)
        capture[i] = a->n_steps ? a->capture[list * cells + i] / (double)a->n_steps : 0.0;
    if (kvl_filter_layers(capture, n, info->dense_layers, info->wait_layers, filter, &sparse, err))
        return NULL;
    json_t *what = json_pack(
        "{s:i, s:s, s:o, s:o, s:o, s:I}", "m", a->want.m[m], "reduce",
        kvl_analysis_reduce_name((enum kvl_analysis_reduce)r), "capture",
        similarity_matrix(capture, n), "curve", similarity_curves(info, capture, n), "hit",
        a->n_hits ? analysis_means(a->hit + list * (size_t)n, n, a->n_hits) : json_null(), "n_hits",
        (json_int_t)a->n_hits);
    json_t *filters = json_pack(
        "{s:o, s:i, s:i, s:o, s:o}", "filters", similarity_filters(filter, n), "dense_layers",
        info->dense_layers, "wait_layers", info->wait_layers, "captured", kvl_record_real(sparse),
        "own", kvl_record_real(similarity_own(capture, filter, n, info->wait_layers)));
    return kvl_record_add(what, filters);
}

static json_t *analysis_similarity_rows(const struct kvl_analysis *a,
                                        const struct kvl_analysis_info *info, struct kvl_err *err)
{
    size_t n = (size_t)a->n_layers;
    double *capture = kvl_alloc(n * n, sizeof *capture);
    uint8_t *filter = kvl_alloc(n, sizeof *filter);
    json_t *rows = capture && filter ? json_array() : NULL;
    for (int r = 0; r < KVL_ANALYSIS_REDUCES && rows; r++)
        for (int32_t m = 0; m < a->want.n_m && rows; m++)
            kvl_record_item(&rows, similarity_row(a, info, r, m, capture, filter, err));
    kvl_free(capture);
    kvl_free(filter);
    return rows;
}

/* ---- drift ----------------------------------------------------------------------------------- */

static json_t *analysis_drift_rows(const struct kvl_analysis *a)
{
    json_t *rows = json_array();
    for (int r = 0; r < KVL_ANALYSIS_REDUCES; r++)
        for (int32_t m = 0; m < a->want.n_m; m++)
            for (int32_t lag = 1; lag <= a->want.lag; lag++) {
                size_t at = ((size_t)r * (size_t)a->want.n_m + (size_t)m) * (size_t)a->want.lag;
                int64_t n = a->n_pairs[lag - 1];
                at = (at + (size_t)lag - 1) * (size_t)a->n_layers;
                kvl_record_item(
                    &rows, json_pack("{s:i, s:s, s:i, s:I, s:o, s:o}", "m", a->want.m[m], "reduce",
                                     kvl_analysis_reduce_name((enum kvl_analysis_reduce)r), "lag",
                                     lag, "n", (json_int_t)n, "jaccard",
                                     analysis_means(a->jaccard + at, a->n_layers, n), "kept",
                                     analysis_means(a->kept + at, a->n_layers, n)));
            }
    return rows;
}

/* ---- the record ------------------------------------------------------------------------------ */

static int analysis_key(const struct kvl_analysis_want *want, const struct kvl_analysis_info *info,
                        struct kvl_buf *b)
{
    const struct kvl_work *w = info->work;
    const struct kvl_group *g = info->group;
    const struct kvl_sweep *s = w->sweep;
    KVL_TRY(kvl_buf_printf(b, "kind=analysis;what=%s;model=%s;tokenizer=%016llx", info->what,
                           kvl_model_hash(w->model),
                           (unsigned long long)kvl_tokenizer_hash(kvl_model_tokenizer(w->model))));
    KVL_TRY(kvl_settings_key(s, KVL_KEY_ALWAYS, b));
    KVL_TRY(kvl_settings_key(s, KVL_KEY_GIVEN, b));
    KVL_TRY(kvl_prompt_key(kvl_group_prompt(w, g), b));
    KVL_TRY(kvl_buf_printf(b, ";task=%s/%u;task_options=%s;data=%016llx;length=%d;depth=%.15g",
                           g->task->task->name, g->task->task->version, g->task->options,
                           (unsigned long long)g->task->data, g->length, g->depth));
    KVL_TRY(kvl_buf_printf(b, ";seed=%llu;contexts=%d;questions=%d", (unsigned long long)s->seed,
                           s->contexts, kvl_point_reading(g->task) ? 1 : s->questions));
    for (int32_t m = 0; !want->mass && m < want->n_m; m++)
        KVL_TRY(kvl_buf_printf(b, "%s%d", m ? "," : ";m=", want->m[m]));
    if (want->drift) KVL_TRY(kvl_buf_printf(b, ";lag=%d", want->lag));
    for (int32_t i = 0; want->similarity && i < info->n_next; i++)
        KVL_TRY(kvl_buf_printf(b, "%s%d", i ? "," : ";next=", info->next[i]));
    if (want->similarity)
        KVL_TRY(kvl_buf_printf(b, ";dense=%d;wait=%d", info->dense_layers, info->wait_layers));
    struct kvl_code code = kvl_cell_code(s, g->task, kvl_code_analysis());
    return kvl_code_print(&code, b);
}

int kvl_analysis_id(const struct kvl_analysis_want *want, const struct kvl_analysis_info *info,
                    char id[KVL_CELL_ID])
{
    struct kvl_buf key = { 0 };
    int rc = analysis_key(want, info, &key);
    if (rc == KVL_OK) kvl_cell_id(key.data, id);
    kvl_buf_free(&key);
    return rc;
}

json_t *kvl_record_analysis(const char *run, const struct kvl_analysis *a,
                            const struct kvl_analysis_info *info, struct kvl_err *err)
{
    const struct kvl_group *g = info->group;
    struct kvl_buf text = { 0 };
    char id[KVL_CELL_ID];
    json_t *r = NULL;
    if (analysis_key(&a->want, info, &text) == KVL_OK) {
        const char *key = text.data;
        kvl_cell_id(key, id);
        r = kvl_record_start("analysis", run);
#define ANALYSIS KVL_PUT
#include "fields.def"
    }
    kvl_buf_free(&text);
    return r;
}
