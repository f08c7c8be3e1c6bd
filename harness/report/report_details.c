/* Tables beside accuracy: stages of answers, evidence attended against answers right, quality of the
 * choice. */
#include "report.h"

#include "text_table.h"

#include <math.h>
#include <stdio.h>

/* One of the tables: what it needs of a cell, and how it shows the cells of a block. */
struct detail {
    const char *field; /* of cell records */
    int (*print)(const struct kvl_result *x, size_t n, enum kvl_table_form form, FILE *out,
                 struct kvl_err *err);
    const char *note, *missing;
};

static bool detail_has(const struct kvl_result *x, const char *field)
{
    return x->is_cell && json_is_object(kvl_json_value(x->record, field));
}

static void detail_name(struct kvl_table *t, const struct kvl_result *x)
{
    kvl_report_name(t, x);
    kvl_table_add(t, "%s", x->budget);
}

/* "92.0 86-95": answers to one context are as alike in a stage as in the whole. */
static void detail_share(struct kvl_table *t, const struct kvl_result *x, const json_t *v)
{
    double p = kvl_json_number(v, "p");
    struct kvl_interval w = kvl_wilson(p, x->n_eff);
    if (isnan(p))
        kvl_table_add(t, "-");
    else
        kvl_table_add(t, "%5.1f %s", 100 * p, kvl_percent_span(w.lo, w.hi, 2, "-").s);
}

/* ---- stages ------------------------------------------------------------------------------------ */

enum { STAGES_MAX = 4 };

static int stages_print(const struct kvl_result *x, size_t n, enum kvl_table_form form, FILE *out,
                        struct kvl_err *err)
{
    char name[STAGES_MAX][40];
    struct kvl_column column[STAGES_MAX + 3] = { { "policy", true }, { "budget", false } };
    size_t n_stages = 0, i = 0;
    const char *key;
    json_t *v;
    while (!detail_has(&x[i], "sub")) i++;
    json_object_foreach(kvl_json_value(x[i].record, "sub"), key, v)
    {
        if (n_stages == STAGES_MAX) break;
        snprintf(name[n_stages], sizeof name[0], "%.30s %%", key);
        column[2 + n_stages] = (struct kvl_column){ name[n_stages], true };
        n_stages++;
    }
    column[2 + n_stages] = (struct kvl_column){ "official %", true };
    struct kvl_table t = { .form = form, .column = column, .n_columns = n_stages + 3 };
    json_t *stages = kvl_json_value(x[i].record, "sub");
    for (i = 0; i < n; i++) {
        if (!detail_has(&x[i], "sub")) continue;
        detail_name(&t, &x[i]);
        json_object_foreach(stages, key, v)
            detail_share(&t, &x[i], json_object_get(kvl_json_value(x[i].record, "sub"), key));
        detail_share(&t, &x[i], kvl_json_value(x[i].record, "official"));
    }
    int rc = kvl_table_print(&t, 2, out, err);
    kvl_table_free(&t);
    return rc;
}

/* ---- evidence ---------------------------------------------------------------------------------- */

static int evidence_print(const struct kvl_result *x, size_t n, enum kvl_table_form form, FILE *out,
                          struct kvl_err *err)
{
    static const struct kvl_column columns[] = {
        { "policy", true },
        { "budget", false },
        { "attended: right+wrong", false },
        { "right %", false },
        { "missed: right+wrong", false },
        { "right %", false },
        { "unknown", false },
    };
    struct kvl_table t = { .form = form,
                           .column = columns,
                           .n_columns = sizeof columns / sizeof columns[0] };
    double lost = 0.0, weak = 0.0;
    for (size_t i = 0; i < n; i++) {
        if (!detail_has(&x[i], "evidence")) continue;
        const json_t *e = kvl_json_value(x[i].record, "evidence");
        double right[2] = { kvl_json_number(e, "attended_right"),
                            kvl_json_number(e, "missed_right") };
        double wrong[2] = { kvl_json_number(e, "attended_wrong"),
                            kvl_json_number(e, "missed_wrong") };
        detail_name(&t, &x[i]);
        for (int k = 0; k < 2; k++) {
            double all = right[k] + wrong[k];
            kvl_table_add(&t, "%.0f+%.0f", right[k], wrong[k]);
            kvl_table_number(&t, all > 0 ? 100 * right[k] / all : KVL_NAN, 1);
        }
        double unknown = kvl_json_number(e, "unknown");
        lost = fmax(lost, kvl_json_number(e, "lost"));
        weak = fmax(weak, kvl_json_number(e, "weak"));
        kvl_table_number(&t, unknown > 0 ? unknown : KVL_NAN, 0);
    }
    int rc = kvl_table_print(&t, 2, out, err);
    if (form == KVL_TABLE_MARKDOWN && (weak > 0.0 || lost > 0.0)) fputc('\n', out);
    if (weak > 0.0)
        fprintf(out, "%s  weak: of %.0f questions it is where the answer's text stands\n",
                kvl_report_mark(form), weak);
    if (lost > 0.0)
        fprintf(out, "%s  of %.0f questions it was cut off before any policy read it\n",
                kvl_report_mark(form), lost);
    kvl_table_free(&t);
    return rc;
}

/* ---- quality ----------------------------------------------------------------------------------- */

enum { QUALITY_MAX_TOPS = 8, QUALITY_COLUMNS = 7 };

/* The three numbers of selecting or dense layers. */
static void quality_layers(struct kvl_table *t, const json_t *layers, size_t n_tops)
{
    for (size_t k = 0; k < n_tops; k++)
        kvl_table_number(
            t, kvl_json_number(json_array_get(json_object_get(layers, "recall"), k), "mean"), 3);
    kvl_table_number(t, kvl_json_number(layers, "mass.mean"), 3);
    kvl_table_number(t, kvl_json_number(layers, "out_error.mean"), 3);
}

static void quality_rows(struct kvl_table *t, const struct kvl_result *x, size_t n_tops)
{
    const json_t *q = kvl_json_value(x->record, "quality");
    const json_t *select = json_object_get(q, "select"), *dense = json_object_get(q, "dense");
    bool both = json_is_object(select) && json_is_object(dense);
    detail_name(t, x);
    quality_layers(t, json_is_object(select) ? select : dense, n_tops);
    kvl_table_number(t, kvl_json_number(q, "kl_nats.mean"), 4);
    kvl_table_number(t, 100 * kvl_json_number(q, "top1.mean"), 1);
    kvl_table_number(t, kvl_json_number(q, "n"), 0);
    if (!both) return;
    kvl_table_add(t, "  its dense layers");
    kvl_table_add(t, "-");
    quality_layers(t, dense, n_tops);
    for (int i = 0; i < 3; i++) kvl_table_add(t, "-");
}

static int quality_print(const struct kvl_result *x, size_t n, enum kvl_table_form form, FILE *out,
                         struct kvl_err *err)
{
    char name[QUALITY_MAX_TOPS][24];
    struct kvl_column column[QUALITY_MAX_TOPS + QUALITY_COLUMNS] = { { "policy", true },
                                                                     { "budget", false } };
    size_t first = 0, n_tops = 0;
    while (!detail_has(&x[first], "quality")) first++;
    const json_t *top = kvl_json_value(x[first].record, "quality.top");
    for (; n_tops < json_array_size(top) && n_tops < QUALITY_MAX_TOPS; n_tops++) {
        snprintf(name[n_tops], sizeof name[0], "top %" JSON_INTEGER_FORMAT,
                 json_integer_value(json_array_get(top, n_tops)));
        column[2 + n_tops] = (struct kvl_column){ name[n_tops], false };
    }
    static const char *const tail[] = { "mass", "out err", "KL nats", "top-1 %", "passes" };
    for (size_t i = 0; i < 5; i++) column[2 + n_tops + i] = (struct kvl_column){ tail[i], false };
    struct kvl_table t = { .form = form, .column = column, .n_columns = n_tops + QUALITY_COLUMNS };
    for (size_t i = first; i < n; i++) {
        bool same = detail_has(&x[i], "quality") &&
                    json_equal(top, kvl_json_value(x[i].record, "quality.top"));
        if (same) quality_rows(&t, &x[i], n_tops);
    }
    int rc = kvl_table_print(&t, 2, out, err);
    kvl_table_free(&t);
    return rc;
}

/* ---- all --------------------------------------------------------------------------------------- */

static const struct detail details[] = {
    [KVL_DETAIL_STAGES] = { "sub", stages_print,
                            "Stages of the answer, each scored by itself; official: the whole "
                            "answer.\n",
                            "no cell has stages of answers (of the tasks, two_stage_retr has)" },
    [KVL_DETAIL_EVIDENCE] = { "evidence", evidence_print,
                              "Attended: all evidence needed at every answer step that needs any. "
                              "Right: official score of 0.5\nor more. Unknown: no step needed "
                              "evidence.\n",
                              "no cell tells what evidence was attended; it was written by an "
                              "older version" },
    [KVL_DETAIL_QUALITY] = { "quality", quality_print,
                             "Against full attention of the same queries over the dense keys, mean "
                             "over steps, selecting layers\nand heads. top n: share of the n "
                             "largest weights that was read; mass: weight on what was read;\nout "
                             "err: relative error of the output; KL, top-1: next token against the "
                             "dense run.\n",
                             "no cell has reference passes; a sweep makes them with quality: "
                             "{questions: 1}" },
    [KVL_DETAIL_METHOD] = { "method", kvl_report_method,
                            "As the methods count it themselves, means over answers; nothing of it "
                            "is measured by the harness.\nThe method's file says what the names "
                            "mean.\n",
                            "no cell has numbers that its method counts itself (of the methods, "
                            "omnikv and infllm have)" },
};

bool kvl_report_has(const struct kvl_results *r, enum kvl_detail what)
{
    for (size_t i = 0; i < r->n; i++)
        if (detail_has(&r->result[i], details[what].field)) return true;
    return false;
}

int kvl_report_detail(const struct kvl_results *r, enum kvl_detail what, enum kvl_table_form form,
                      FILE *out, struct kvl_err *err)
{
    const struct detail *d = &details[what];
    if (!kvl_report_has(r, what)) return kvl_fail(err, KVL_EINVAL, "%s", d->missing);
    for (size_t i = 0, end; i < r->n; i = end) {
        bool any = false;
        for (end = i; end < r->n && !kvl_result_block_cmp(&r->result[i], &r->result[end], 0); end++)
            any |= detail_has(&r->result[end], d->field);
        if (!any) continue;
        fputs(kvl_report_mark(form), out);
        kvl_report_block(&r->result[i], 0, out);
        if (form == KVL_TABLE_MARKDOWN) fputc('\n', out);
        KVL_TRY(d->print(&r->result[i], end - i, form, out, err));
        fputc('\n', out);
    }
    kvl_report_lines(d->note, form, out);
    kvl_report_stale(r, form, out);
    return KVL_OK;
}
