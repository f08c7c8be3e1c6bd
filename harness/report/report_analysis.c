/* Records of analyses as tables. */
#include "record_analysis.h"
#include "report.h"

#include "results.h"
#include "text_table.h"

#include <math.h>
#include <string.h>

enum { ANALYSIS_WIDE = 16 }; /* layers or lags whose table fits a terminal */

/* Heads of columns that are numbers. */
struct names {
    struct kvl_column column[ANALYSIS_WIDE + 8];
    char name[ANALYSIS_WIDE + 8][24];
    size_t n;
};

static void names_add(struct names *c, const char *fmt, int32_t number)
{
    size_t i = c->n++;
    if (number >= 0)
        snprintf(c->name[i], sizeof c->name[i], "%s%d", fmt, number);
    else
        snprintf(c->name[i], sizeof c->name[i], "%s", fmt);
    c->column[i] = (struct kvl_column){ c->name[i], false };
}

static double row_number(const json_t *list, size_t i)
{
    const json_t *v = json_array_get(list, i);
    return json_is_number(v) ? json_number_value(v) : KVL_NAN;
}

static int table_end(struct kvl_table *t, FILE *out, struct kvl_err *err)
{
    int rc = kvl_table_print(t, 2, out, err);
    kvl_table_free(t);
    fputc('\n', out);
    return rc;
}

/* ---- mass ------------------------------------------------------------------------------------ */

/* Over the heads of a layer: mean tokens and share, least and most tokens. */
static void mass_layer(const json_t *rows, int32_t layer, double mass, double out[4])
{
    double n = 0.0;
    const json_t *row;
    size_t i;
    out[0] = out[1] = 0.0;
    out[2] = HUGE_VAL;
    out[3] = -HUGE_VAL;
    json_array_foreach(rows, i, row)
    {
        double tok = kvl_json_number(row, "tok_mean");
        if (json_integer_value(json_object_get(row, "layer")) != layer ||
            fabs(kvl_json_number(row, "mass") - mass) > 1e-9)
            continue;
        out[0] += tok;
        out[1] += kvl_json_number(row, "share");
        out[2] = fmin(out[2], tok);
        out[3] = fmax(out[3], tok);
        n++;
    }
    out[0] /= n;
    out[1] /= n;
}

static int print_mass(const json_t *rows, FILE *out, struct kvl_err *err)
{
    struct names c = { .n = 0 };
    struct kvl_table t = { .column = c.column };
    names_add(&c, "layer", -1);
    for (int32_t p = 0; p < KVL_ANALYSIS_P; p++) {
        int32_t percent = (int32_t)lround(100 * kvl_analysis_mass[p]);
        char name[24];
        snprintf(name, sizeof name, "%d %% tokens", percent);
        names_add(&c, name, -1);
        names_add(&c, "share %", -1);
        names_add(&c, "heads", -1);
    }
    t.n_columns = c.n;
    json_int_t layers = json_integer_value(
        json_object_get(json_array_get(rows, json_array_size(rows) - 1), "layer"));
    for (int32_t l = 0; json_array_size(rows) && l <= layers; l++) {
        kvl_table_add(&t, "%d", l);
        for (int32_t p = 0; p < KVL_ANALYSIS_P; p++) {
            double v[4];
            mass_layer(rows, l, kvl_analysis_mass[p], v);
            kvl_table_number(&t, v[0], 1);
            kvl_table_number(&t, 100 * v[1], 1);
            kvl_table_add(&t, "%.0f-%.0f", v[2], v[3]);
        }
    }
    fputs("  Tokens that hold so much of a head's attention, the largest weights first: mean over "
          "heads and steps,\n  their share of all tokens, least and most of a head.\n",
          out);
    return table_end(&t, out, err);
}

/* ---- similarity ------------------------------------------------------------------------------ */

static int similarity_heat(const json_t *row, size_t n, FILE *out, struct kvl_err *err)
{
    const json_t *capture = json_object_get(row, "capture");
    struct names c = { .n = 0 };
    struct kvl_table t = { .column = c.column };
    if (n > ANALYSIS_WIDE) return KVL_OK;
    names_add(&c, "chosen by", -1);
    for (size_t l = 0; l < n; l++) names_add(&c, "", (int32_t)l);
    t.n_columns = c.n;
    for (size_t i = 0; i < n; i++) {
        kvl_table_add(&t, "%zu", i);
        for (size_t j = 0; j < n; j++)
            kvl_table_number(&t, row_number(json_array_get(capture, i), j), 2);
    }
    fputs("  Attention of a layer (columns) that falls on the tokens of another:\n", out);
    return table_end(&t, out, err);
}

static int similarity_layers(const json_t *row, size_t n, FILE *out, struct kvl_err *err)
{
    const json_t *curves = json_object_get(row, "curve"), *hit = json_object_get(row, "hit");
    size_t n_curves = KVL_MIN(json_array_size(curves), (size_t)KVL_ANALYSIS_NEXT);
    struct names c = { .n = 0 };
    struct kvl_table t = { .column = c.column };
    names_add(&c, "layer", -1);
    for (size_t i = 0; i < n_curves; i++)
        names_add(&c, "mean of next ", (int32_t)kvl_json_number(json_array_get(curves, i), "next"));
    names_add(&c, "evidence hit %", -1);
    t.n_columns = c.n;
    for (size_t l = 0; l < n; l++) {
        kvl_table_add(&t, "%zu", l);
        for (size_t i = 0; i < n_curves; i++)
            kvl_table_number(&t, row_number(json_object_get(json_array_get(curves, i), "value"), l),
                             3);
        kvl_table_number(&t, 100 * row_number(hit, l), 1);
    }
    fputs("  Mean of a row over the layer itself and those after it; evidence among its tokens:\n",
          out);
    return table_end(&t, out, err);
}

static void similarity_suggest(const json_t *row, FILE *out)
{
    const json_t *filters = json_object_get(row, "filters");
    fputs("  Filter layers: omnikv:filter_layers=", out);
    for (size_t i = 0; i < json_array_size(filters); i++)
        fprintf(out, "%s%" JSON_INTEGER_FORMAT, i ? "+" : "",
                json_integer_value(json_array_get(filters, i)));
    fprintf(
        out,
        ".  The layers after them keep %.3f of their attention, %.3f with tokens of their own "
        "choice.\n  Rule (that of omnikv:filter_layers=measured, here over all answer steps): of "
        "the sets that leave at most %.0f layers\n  dense, %.0f after each filter included, "
        "the one that keeps the most.\n\n",
        kvl_json_number(row, "captured"), kvl_json_number(row, "own"),
        kvl_json_number(row, "dense_layers"), kvl_json_number(row, "wait_layers"));
}

static int print_similarity(const json_t *rows, FILE *out, struct kvl_err *err)
{
    const json_t *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        size_t n = json_array_size(json_object_get(row, "capture"));
        if (strcmp(kvl_json_text(row, "reduce"), "max") != 0) continue;
        fprintf(out, "  The %.0f tokens of the largest weights, the largest of any head:\n",
                kvl_json_number(row, "m"));
        KVL_TRY(similarity_heat(row, n, out, err));
        KVL_TRY(similarity_layers(row, n, out, err));
        similarity_suggest(row, out);
    }
    return KVL_OK;
}

/* ---- drift ----------------------------------------------------------------------------------- */

/* The row of m and lag, "max"; NULL: none. */
static const json_t *drift_find(const json_t *rows, double m, int32_t lag)
{
    const json_t *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        if (strcmp(kvl_json_text(row, "reduce"), "max") == 0 &&
            (int32_t)kvl_json_number(row, "lag") == lag && kvl_json_number(row, "m") <= m &&
            kvl_json_number(row, "m") >= m)
            return row;
    }
    return NULL;
}

static int drift_table(const json_t *rows, double m, FILE *out, struct kvl_err *err)
{
    struct names c = { .n = 0 };
    struct kvl_table t = { .column = c.column };
    int32_t lags = 0;
    names_add(&c, "layer", -1);
    for (; lags < ANALYSIS_WIDE && drift_find(rows, m, lags + 1); lags++)
        names_add(&c, "lag ", lags + 1);
    t.n_columns = c.n;
    size_t n = json_array_size(json_object_get(drift_find(rows, m, 1), "kept"));
    for (size_t l = 0; l < n; l++) {
        kvl_table_add(&t, "%zu", l);
        for (int32_t lag = 1; lag <= lags; lag++)
            kvl_table_number(
                &t, 100 * row_number(json_object_get(drift_find(rows, m, lag), "kept"), l), 1);
    }
    fprintf(out,
            "  The %.0f tokens of the largest weights: percent of them that still are so many "
            "steps later:\n",
            m);
    return table_end(&t, out, err);
}

static int print_drift(const json_t *rows, FILE *out, struct kvl_err *err)
{
    const json_t *row;
    size_t i;
    double last = -1.0;
    json_array_foreach(rows, i, row)
    {
        double m = kvl_json_number(row, "m");
        if (m <= last) continue;
        last = m;
        KVL_TRY(drift_table(rows, m, out, err));
    }
    return KVL_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

int kvl_report_analysis(const json_t *record, FILE *out, struct kvl_err *err)
{
    fprintf(out, "%s of full attention  %s", kvl_json_text(record, "what"),
            kvl_json_text(record, "task"));
    fprintf(out, "  %.0f tokens", kvl_json_number(record, "length_tok"));
    if (!isnan(kvl_json_number(record, "depth")))
        fprintf(out, "  depth %g", kvl_json_number(record, "depth"));
    fprintf(out, "  %.0f steps of %.0f answers in %.0f contexts\n",
            kvl_json_number(record, "n_steps"), kvl_json_number(record, "n_answers"),
            kvl_json_number(record, "n_contexts"));
    if (json_array_size(json_object_get(record, "mass")))
        KVL_TRY(print_mass(json_object_get(record, "mass"), out, err));
    KVL_TRY(print_similarity(json_object_get(record, "similarity"), out, err));
    return print_drift(json_object_get(record, "drift"), out, err);
}
