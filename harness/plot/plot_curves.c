/* The running perplexity of texts: a line per policy, a panel per text length, mode and budget. */
#include "plot.h"

#include "plot_layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Blocks, then budgets (none first), then policies. */
static int curves_order(const void *a, const void *b)
{
    const struct kvl_result *x = *(const struct kvl_result *const *)a;
    const struct kvl_result *y = *(const struct kvl_result *const *)b;
    int c = kvl_result_block_cmp(x, y, 0);
    if (!c) c = isnan(y->budget_tok) - isnan(x->budget_tok);
    if (!c && x->budget_tok != y->budget_tok) c = x->budget_tok < y->budget_tok ? -1 : 1;
    if (!c) c = (int)x->bound - (int)y->bound;
    return c ? c : strcmp(x->label, y->label);
}

/* Position in the text of each mark, and the perplexity up to there. */
static void curve_add(struct kvl_chart *c, const struct kvl_result *x)
{
    const json_t *curve = json_object_get(x->record, "curve"), *mark;
    double before = x->length_tok - x->n_tok / fmax(x->n, 1);
    size_t i;
    kvl_chart_series(c, x->shown, (int)x->bound);
    json_array_foreach(curve, i, mark)
    {
        double n = json_number_value(json_array_get(mark, 0));
        const json_t *nll = json_array_get(mark, 1);
        if (n < 16) continue; /* a mean over fewer tokens says nothing */
        kvl_chart_point(c, &(struct kvl_chart_point){
                               .x = before + n,
                               .y = json_is_number(nll) ? exp(json_number_value(nll)) : KVL_NAN,
                               .lo = KVL_NAN,
                               .hi = KVL_NAN,
                               .budget_tok = isnan(x->budget_tok) ? 0 : x->budget_tok,
                               .n = x->n,
                               .n_errors = isnan(x->n_errors) ? 0 : x->n_errors });
    }
    kvl_chart_series_end(c);
}

/* x[block .. free) have no budget and stand in every panel of their block. */
static void curves_panel(struct kvl_chart *c, const struct kvl_result *const *x, size_t block,
                         size_t free, size_t from, size_t to)
{
    char title[256], budget[64] = "no budget";
    const struct kvl_result *last = x[to - 1];
    if (!isnan(last->budget_tok)) snprintf(budget, sizeof budget, "budget %s", last->budget);
    snprintf(title, sizeof title, "%s, %.0f tokens\n%s", last->task_label, last->length_tok,
             budget);
    kvl_chart_panel(c, title);
    for (size_t i = block; i < to; i++)
        if (i < free || i >= from) curve_add(c, x[i]);
    kvl_chart_panel_end(c, "no value to show");
}

static void curves_block(struct kvl_chart *c, const struct kvl_result *const *x, size_t block,
                         size_t end)
{
    size_t free = block;
    while (free < end && isnan(x[free]->budget_tok)) free++;
    if (free == end) curves_panel(c, x, block, free, end, end);
    for (size_t from = free, to; from < end; from = to) {
        for (to = from + 1; to < end && x[to]->budget_tok == x[from]->budget_tok;) to++;
        curves_panel(c, x, block, free, from, to);
    }
}

int kvl_chart_perplexity(const struct kvl_figure *f, const struct kvl_results *r,
                         const struct kvl_plot_filter *want, struct kvl_chart *out,
                         struct kvl_err *err)
{
    struct kvl_plot_layout l = { 0 };
    KVL_TRY(kvl_plot_shown(r, f, want, &l, err));
    if (l.n > 1) qsort(l.x, l.n, sizeof *l.x, curves_order);
    for (size_t from = 0, to; from < l.n && !out->no_memory; from = to) {
        for (to = from + 1; to < l.n && !kvl_result_block_cmp(l.x[from], l.x[to], 0);) to++;
        curves_block(out, l.x, from, to);
    }
    if (l.n > 0)
        out->no_memory |=
            kvl_buf_printf(&out->subtitle, "%s on %s.  Mean of %.0f text%s%s", l.x[0]->model,
                           l.x[0]->device, l.x[0]->n, l.x[0]->n == 1 ? "" : "s", f->note) != KVL_OK;
    kvl_plot_layout_free(&l);
    return KVL_OK;
}
