/* All methods beside each other: a row per method, a panel per task, the accuracy at each budget. */
#include "plot.h"

#include "plot_layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A row of the figure. */
struct method {
    const char *label;
    double above; /* sum over its results of what they are above the mean of their column */
    size_t n;
};

struct methods {
    struct kvl_plot_layout layout;
    struct method *row;
    size_t n;
    bool strict;
};

static double accuracy(const struct methods *m, const struct kvl_result *x)
{
    return m->strict ? x->strict.mean : x->official.mean;
}

static bool same_budget(const struct kvl_result *x, const struct kvl_result *y)
{
    return isnan(x->budget_tok) ? isnan(y->budget_tok) : x->budget_tok == y->budget_tok;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static size_t row_of(const struct methods *m, const char *label)
{
    size_t i = 0;
    while (i < m->n && strcmp(m->row[i].label, label) != 0) i++;
    return i;
}

/* Mean over the policies of a panel at the budget of x: what is hard for all of them does not count
 * against one that has no result elsewhere. */
static double column_mean(const struct methods *m, size_t panel, const struct kvl_result *x)
{
    double sum = 0, n = 0;
    for (size_t i = m->layout.begin[panel]; i < m->layout.begin[panel + 1]; i++) {
        const struct kvl_result *y = m->layout.x[i];
        if (!isfinite(accuracy(m, y)) || (!isnan(x->budget_tok) && !same_budget(x, y))) continue;
        sum += accuracy(m, y);
        n++;
    }
    return n > 0 ? sum / n : 0;
}

static void row_add(struct methods *m, size_t panel, const struct kvl_result *x)
{
    if (!isfinite(accuracy(m, x))) return;
    struct method *row = &m->row[row_of(m, x->shown)];
    if (row == m->row + m->n) row->label = m->row[m->n++].label = x->shown;
    row->above += accuracy(m, x) - column_mean(m, panel, x);
    row->n++;
}

/* Best first, then by name. */
static int row_order(const void *a, const void *b)
{
    const struct method *x = a, *y = b;
    double p = x->above / (double)x->n, q = y->above / (double)y->n;
    if (fabs(p - q) > 1e-12) return p > q ? -1 : 1;
    return strcmp(x->label, y->label);
}

static int rows_make(struct methods *m, struct kvl_chart *c, struct kvl_err *err)
{
    m->row = kvl_alloc(m->layout.n + 1, sizeof *m->row);
    if (!m->row) return kvl_fail(err, KVL_ENOMEM, "no memory for a figure");
    for (size_t p = 0; p < m->layout.n_panels; p++)
        for (size_t i = m->layout.begin[p]; i < m->layout.begin[p + 1]; i++)
            row_add(m, p, m->layout.x[i]);
    if (m->n > 1) qsort(m->row, m->n, sizeof *m->row, row_order);
    for (size_t i = 0; i < m->n; i++) kvl_chart_y_tick(c, m->row[i].label);
    return KVL_OK;
}

/* ---- panels ---------------------------------------------------------------------------------- */

static void dot_add(const struct methods *m, struct kvl_chart *c, const struct kvl_result *x)
{
    struct kvl_interval y = m->strict ? x->strict : x->official;
    kvl_chart_point(
        c, &(struct kvl_chart_point){ .x = 100 * y.mean,
                                      .y = (double)(1 + row_of(m, x->shown)),
                                      .lo = 100 * y.lo,
                                      .hi = 100 * y.hi,
                                      .budget_tok = isnan(x->budget_tok) ? 0 : x->budget_tok,
                                      .n = isnan(x->attended_tok) ? 0 : x->attended_tok,
                                      .n_errors = isnan(x->n_errors) ? 0 : x->n_errors });
}

/* What has no budget reads everything: the level to compare with, and a dot in its own row. */
static void full_add(const struct methods *m, struct kvl_chart *c, size_t from, size_t to)
{
    const struct kvl_result *full = NULL;
    for (size_t i = from; i < to && !full; i++)
        if (m->layout.x[i]->bound == KVL_BOUND_FULL) full = m->layout.x[i];
    if (!full || !isfinite(accuracy(m, full))) return;
    kvl_chart_series(c, "full", 0);
    for (int end = 0; end < 2; end++)
        kvl_chart_point(c, &(struct kvl_chart_point){ .x = 100 * accuracy(m, full),
                                                      .y = end ? (double)m->n + 0.5 : 0.5,
                                                      .lo = 100 * accuracy(m, full),
                                                      .hi = 100 * accuracy(m, full) });
    kvl_chart_series_end(c);
}

/* The results of one budget, a dot each; rank: the budgets before it. */
static void budget_add(const struct methods *m, struct kvl_chart *c, size_t from, size_t to,
                       const struct kvl_result *first)
{
    char label[KVL_CHART_LABEL];
    bool dense = isnan(first->budget_tok);
    int rank = dense ? 1 : 2 + (int)fmin(first->budget_tok, 1e8);
    snprintf(label, sizeof label, dense ? "no budget" : "budget %s", first->budget);
    kvl_chart_series(c, label, rank);
    for (size_t i = from; i < to; i++)
        if (same_budget(first, m->layout.x[i])) dot_add(m, c, m->layout.x[i]);
    kvl_chart_series_end(c);
}

static void methods_panel(const struct methods *m, struct kvl_chart *c, size_t from, size_t to)
{
    const struct kvl_result *x = m->layout.x[from];
    char title[320];
    double failed = 0;
    snprintf(title, sizeof title, "%s%s%s\n%.0f tokens\n%s", x->set, x->set[0] ? "\n" : "",
             x->task_label, x->length_tok, x->protocol);
    kvl_chart_panel(c, title);
    full_add(m, c, from, to);
    for (size_t i = from; i < to; i++) {
        bool seen = false;
        for (size_t j = from; j < i && !seen; j++)
            seen = same_budget(m->layout.x[i], m->layout.x[j]);
        if (!seen) budget_add(m, c, from, to, m->layout.x[i]);
        if (!isnan(m->layout.x[i]->n_errors)) failed += m->layout.x[i]->n_errors;
    }
    c->n_failed += (size_t)failed;
    kvl_chart_panel_end(c, "no value to show");
}

/* ---- the figure ------------------------------------------------------------------------------ */

/* All of it on one page of A4: four panels beside each other, rows as high as the page leaves them. */
enum { METHODS_COLUMNS = 4, PAGE_H = 1160, PAGE_REST = 130, ROW_MIN = 11, ROW_MAX = 20 };

/* Pixels across, before panels are made. */
static void methods_width(struct kvl_chart *c)
{
    c->panel_w = 122;
    c->gap_x = 16;
    c->title_letter = 6; /* font 8 */
}

/* Names as wide as fig_methods.gp makes their font, by the height of a row; and the marker. */
static size_t methods_left(size_t row_h, size_t letters)
{
    double font = fmax(7, fmin(10, 0.62 * (double)row_h));
    return 40 + (size_t)ceil(fmax(6, 0.75 * font) * (double)letters);
}

static void methods_size(const struct methods *m, size_t columns, struct kvl_chart *c)
{
    size_t longest = 4, n = KVL_MAX(m->layout.n_panels, (size_t)1);
    for (size_t i = 0; i < m->n; i++) longest = KVL_MAX(longest, strlen(m->row[i].label));
    c->n_columns = KVL_MIN(n, columns == 1 ? columns : (size_t)METHODS_COLUMNS);
    size_t n_rows = (n + c->n_columns - 1) / c->n_columns,
           lines = KVL_MAX(c->title_lines, (size_t)2);
    size_t titles = n_rows * (78 + 14 * (lines - 2));
    size_t room = PAGE_H > PAGE_REST + titles ? PAGE_H - PAGE_REST - titles : 0;
    size_t row = m->n ? room / (n_rows * m->n) : 0;
    c->panel_h = KVL_MAX(60, m->n * KVL_MAX(ROW_MIN, KVL_MIN(row, (size_t)ROW_MAX)));
    c->left = methods_left(c->panel_h / KVL_MAX(m->n, (size_t)1), longest);
    c->legend_below = true;
}

int kvl_chart_methods(const struct kvl_figure *f, const struct kvl_results *r,
                      const struct kvl_plot_filter *want, struct kvl_chart *out,
                      struct kvl_err *err)
{
    struct methods m = { .strict = want->strict };
    KVL_TRY(kvl_plot_layout(r, f, want, &m.layout, err));
    int rc = rows_make(&m, out, err);
    methods_width(out);
    for (size_t p = 0; p < m.layout.n_panels && rc == KVL_OK && !out->no_memory; p++)
        methods_panel(&m, out, m.layout.begin[p], m.layout.begin[p + 1]);
    if (rc == KVL_OK) {
        methods_size(&m, out->n_columns, out);
        kvl_plot_subtitle(&m.layout, r, false, f->note, out);
    }
    kvl_free(m.row);
    kvl_plot_layout_free(&m.layout);
    return rc;
}
