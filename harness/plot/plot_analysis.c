/* Charts over analyses of full attention (kvlab analyze). */
#include "plot.h"

#include "plot_layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- analyses, in order ------------------------------------------------------------------------- */

static int analysis_order(const void *a, const void *b)
{
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
    int c = strcmp(kvl_json_text(x, "task"), kvl_json_text(y, "task"));
    double lx = kvl_json_number(x, "length_tok"), ly = kvl_json_number(y, "length_tok");
    return c ? c : (lx > ly) - (lx < ly);
}

static bool analysis_wanted(const json_t *a, const char *what, const struct kvl_plot_filter *want)
{
    if (strcmp(kvl_json_text(a, "what"), what) != 0) return false;
    if (want->task && strcmp(want->task, kvl_json_text(a, "task")) != 0) return false;
    return !(want->length_tok > 0) || want->length_tok == kvl_json_number(a, "length_tok");
}

/* The analyses of one kind that the filter wants: *n of them, freed by the caller. */
static json_t **analyses(const struct kvl_results *r, const char *what,
                         const struct kvl_plot_filter *want, struct kvl_chart *c, size_t *n)
{
    json_t **list = kvl_alloc(json_object_size(r->analyses), sizeof *list), *a;
    const char *id;
    *n = 0;
    if (!list) {
        c->no_memory = true;
        return NULL;
    }
    json_object_foreach(r->analyses, id, a) if (analysis_wanted(a, what, want)) list[(*n)++] = a;
    if (*n > 1) qsort(list, *n, sizeof(json_t *), analysis_order);
    int rc = kvl_buf_adds(&c->subtitle, "");
    if (*n > 0)
        rc |=
            kvl_buf_printf(&c->subtitle, "%s.  Full attention while the expected answers are fed.",
                           kvl_result_model(r, kvl_json_text(list[0], "run")));
    c->no_memory |= rc != KVL_OK;
    return list;
}

static void analysis_panel(struct kvl_chart *c, const json_t *a, const char *more)
{
    char title[192];
    snprintf(title, sizeof title, "%s, %.0f tokens, %.0f steps%s%s", kvl_json_text(a, "task"),
             kvl_json_number(a, "length_tok"), kvl_json_number(a, "n_steps"), more[0] ? "\n" : "",
             more);
    kvl_chart_panel(c, title);
}

static void point_add(struct kvl_chart *c, double x, const json_t *value, double scale)
{
    if (json_is_number(value))
        kvl_chart_point(
            c, &(struct kvl_chart_point){
                   .x = x, .y = scale * json_number_value(value), .lo = KVL_NAN, .hi = KVL_NAN });
}

/* A value per layer, layers on the x axis. */
static void layers_add(struct kvl_chart *c, const char *label, int rank, const json_t *list)
{
    kvl_chart_series(c, label, rank);
    for (size_t l = 0; l < json_array_size(list); l++)
        point_add(c, (double)l, json_array_get(list, l), 100);
    kvl_chart_series_end(c);
}

/* Shares of answers, with their intervals: of n contexts, each of which is one observation. */
static void hits_add(struct kvl_chart *c, const char *label, int rank, const json_t *list, double n)
{
    kvl_chart_series(c, label, rank);
    for (size_t l = 0; l < json_array_size(list); l++) {
        const json_t *v = json_array_get(list, l);
        if (!json_is_number(v)) continue;
        struct kvl_interval w = kvl_wilson(json_number_value(v), n);
        kvl_chart_point(
            c, &(struct kvl_chart_point){
                   .x = (double)l, .y = 100 * w.mean, .lo = 100 * w.lo, .hi = 100 * w.hi, .n = n });
    }
    kvl_chart_series_end(c);
}

/* Rows of `list` whose heads were reduced by the maximum. */
static bool row_is(const json_t *row)
{
    return strcmp(kvl_json_text(row, "reduce"), "max") == 0;
}

/* ---- mass: tokens that hold a share of the attention ---------------------------------------------- */

/* Mean over the heads of a layer, with the least and most of a head. */
static void mass_point(struct kvl_chart *c, const json_t *rows, int layer, double mass)
{
    double sum = 0, lo = KVL_NAN, hi = KVL_NAN;
    size_t n = 0, i;
    json_t *row;
    json_array_foreach((json_t *)(uintptr_t)rows, i, row)
    {
        double share = 100 * kvl_json_number(row, "share");
        if (kvl_json_number(row, "layer") != layer || kvl_json_number(row, "mass") != mass)
            continue;
        sum += share;
        lo = fmin(n ? lo : share, share);
        hi = fmax(n ? hi : share, share);
        n++;
    }
    if (n > 0 && sum > 0)
        kvl_chart_point(c,
                        &(struct kvl_chart_point){
                            .x = layer, .y = sum / (double)n, .lo = lo, .hi = hi, .n = (double)n });
}

int kvl_chart_mass(const struct kvl_figure *f, const struct kvl_results *r,
                   const struct kvl_plot_filter *want, struct kvl_chart *out, struct kvl_err *err)
{
    static const double mass[] = { 0.90, 0.95, 0.99 };
    static const char *const label[] = { "90 %", "95 %", "99 %" };
    size_t n;
    json_t **list = analyses(r, "mass", want, out, &n);
    if (n > 0) out->no_memory |= kvl_buf_adds(&out->subtitle, f->note) != KVL_OK;
    (void)err;
    for (size_t i = 0; i < n && list; i++) {
        const json_t *rows = json_object_get(list[i], "mass");
        int n_layers = 0;
        for (size_t j = 0; j < json_array_size(rows); j++)
            n_layers =
                KVL_MAX(n_layers, (int)kvl_json_number(json_array_get(rows, j), "layer") + 1);
        analysis_panel(out, list[i], "");
        for (int k = 0; k < 3; k++) {
            kvl_chart_series(out, label[k], k);
            for (int l = 0; l < n_layers; l++) mass_point(out, rows, l, mass[k]);
            kvl_chart_series_end(out);
        }
        kvl_chart_panel_end(out, "no value to show");
    }
    kvl_free(list);
    return KVL_OK;
}

/* ---- similarity ------------------------------------------------------------------------------------ */

/* Curves and hits: a series per m (and per `next`). */
static void similarity_lines(struct kvl_chart *c, const json_t *a, bool hits)
{
    json_t *rows = json_object_get(a, "similarity"), *row, *curve;
    size_t i, j;
    char label[64];
    int rank = 0;
    analysis_panel(c, a, "");
    json_array_foreach(rows, i, row)
    {
        double m = kvl_json_number(row, "m");
        if (!row_is(row)) continue;
        snprintf(label, sizeof label, "top %.0f", m);
        if (hits)
            hits_add(c, label, rank++, json_object_get(row, "hit"),
                     kvl_json_number(a, "n_contexts"));
        json_array_foreach(hits ? NULL : json_object_get(row, "curve"), j, curve)
        {
            snprintf(label, sizeof label, "top %.0f, %.0f layers", m,
                     kvl_json_number(curve, "next"));
            layers_add(c, label, rank++, json_object_get(curve, "value"));
        }
    }
    kvl_chart_panel_end(c, "no value to show");
}

static int similarity_chart(const struct kvl_results *r, const struct kvl_plot_filter *want,
                            struct kvl_chart *out, bool hits)
{
    size_t n;
    json_t **list = analyses(r, "similarity", want, out, &n);
    if (hits && n > 0)
        out->no_memory |= kvl_buf_printf(&out->subtitle, "  %.0f answers per panel; bars: 95 %%.",
                                         kvl_json_number(list[0], "n_answers")) != KVL_OK;
    for (size_t i = 0; i < n && list; i++) similarity_lines(out, list[i], hits);
    kvl_free(list);
    return KVL_OK;
}

int kvl_chart_alike(const struct kvl_figure *f, const struct kvl_results *r,
                    const struct kvl_plot_filter *want, struct kvl_chart *out, struct kvl_err *err)
{
    (void)f;
    (void)err;
    return similarity_chart(r, want, out, false);
}

int kvl_chart_hits(const struct kvl_figure *f, const struct kvl_results *r,
                   const struct kvl_plot_filter *want, struct kvl_chart *out, struct kvl_err *err)
{
    (void)f;
    (void)err;
    return similarity_chart(r, want, out, true);
}

/* Attention of layer l2 (x) on the important tokens of layer l1 (y). */
static void capture_panel(struct kvl_chart *c, const json_t *a, const json_t *row)
{
    const json_t *capture = json_object_get(row, "capture");
    char more[48];
    snprintf(more, sizeof more, "the %.0f tokens of a layer", kvl_json_number(row, "m"));
    analysis_panel(c, a, more);
    kvl_chart_series(c, more, 0);
    for (size_t l1 = 0; l1 < json_array_size(capture); l1++) {
        const json_t *of = json_array_get(capture, l1);
        for (size_t i = 0; i < json_array_size(of); i++) {
            size_t l2 = json_array_size(of) == json_array_size(capture) ? i : l1 + i;
            const json_t *v = json_array_get(of, i);
            if (l2 < l1 || !json_is_number(v)) continue;
            kvl_chart_point(c, &(struct kvl_chart_point){ .x = (double)l2 + 1,
                                                          .y = (double)l1 + 1,
                                                          .lo = 100 * json_number_value(v),
                                                          .hi = (double)l2,
                                                          .budget_tok = (double)l1 });
        }
    }
    kvl_chart_series_end(c);
    kvl_chart_panel_end(c, "no value to show");
}

int kvl_chart_capture(const struct kvl_figure *f, const struct kvl_results *r,
                      const struct kvl_plot_filter *want, struct kvl_chart *out,
                      struct kvl_err *err)
{
    size_t n, n_layers = 0, k;
    json_t **list = analyses(r, "similarity", want, out, &n), *row;
    (void)f;
    (void)err;
    for (size_t i = 0; i < n && list; i++)
        json_array_foreach(json_object_get(list[i], "similarity"), k, row)
        {
            if (!row_is(row)) continue;
            n_layers = KVL_MAX(n_layers, json_array_size(json_object_get(row, "capture")));
            capture_panel(out, list[i], row);
        }
    for (size_t l = 0; l < n_layers; l++) {
        char name[24];
        snprintf(name, sizeof name, "%zu", l);
        kvl_chart_x_tick(out, name);
        kvl_chart_y_tick(out, name);
    }
    kvl_free(list);
    return KVL_OK;
}

/* ---- drift ------------------------------------------------------------------------------------------ */

/* One panel: a layer is a series over the lags. */
static void drift_panel(struct kvl_chart *c, const json_t *a, double m)
{
    const json_t *rows = json_object_get(a, "drift");
    char text[48];
    size_t n_layers = 0;
    snprintf(text, sizeof text, "the %.0f tokens of a layer", m);
    analysis_panel(c, a, text);
    for (size_t i = 0; i < json_array_size(rows); i++)
        n_layers =
            KVL_MAX(n_layers, json_array_size(json_object_get(json_array_get(rows, i), "kept")));
    for (size_t l = 0; l < n_layers; l++) {
        snprintf(text, sizeof text, "layer %zu", l);
        kvl_chart_series(c, text, (int)l);
        for (size_t i = 0; i < json_array_size(rows); i++) {
            const json_t *row = json_array_get(rows, i);
            if (!row_is(row) || kvl_json_number(row, "m") != m) continue;
            point_add(c, kvl_json_number(row, "lag"),
                      json_array_get(json_object_get(row, "kept"), l), 100);
        }
        kvl_chart_series_end(c);
    }
    kvl_chart_panel_end(c, "no value to show");
}

int kvl_chart_drift(const struct kvl_figure *f, const struct kvl_results *r,
                    const struct kvl_plot_filter *want, struct kvl_chart *out, struct kvl_err *err)
{
    size_t n;
    json_t **list = analyses(r, "drift", want, out, &n);
    (void)f;
    (void)err;
    for (size_t i = 0; i < n && list; i++) {
        const json_t *rows = json_object_get(list[i], "drift");
        double last = 0;
        for (size_t j = 0; j < json_array_size(rows); j++) {
            double m = kvl_json_number(json_array_get(rows, j), "m");
            if (!row_is(json_array_get(rows, j)) || !(m > last)) continue;
            drift_panel(out, list[i], m);
            last = m;
        }
    }
    kvl_free(list);
    return KVL_OK;
}
