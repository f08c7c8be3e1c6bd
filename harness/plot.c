/* Results as the table and the variables of a figure. */
#include "plot.h"

#include "plot_layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the figures --------------------------------------------------------------------------- */

static double x_attended(const struct kvl_result *r)
{
    return r->attended_tok;
}

static double x_length(const struct kvl_result *r)
{
    return r->length_tok;
}

static struct kvl_interval y_accuracy(const struct kvl_result *r, bool strict)
{
    return strict ? r->strict : r->official;
}

static struct kvl_interval y_recall(const struct kvl_result *r, bool strict)
{
    (void)strict;
    return r->recall;
}

static struct kvl_interval y_decode(const struct kvl_result *r, bool strict)
{
    (void)strict;
    return r->decode;
}

const struct kvl_figure kvl_figures[] = {
    { .name = "accuracy_budget",
      .title = "Accuracy against attended budget",
      .help =
          "accuracy over tokens attended, a line per policy, a panel per task, protocol, length",
      .x_label = "tokens attended per lane (counted)",
      .y_label = "right answers, %",
      .columns = "attended_tok accuracy_pct lo hi budget_tok n n_errors",
      .percent = true,
      .x = x_attended,
      .y = y_accuracy },
    { .name = "recall_budget",
      .title = "Evidence recall against attended budget",
      .help = "share of answer steps whose evidence was attended, over tokens attended",
      .x_label = "tokens attended per lane (counted)",
      .y_label = "evidence recall, %",
      .columns = "attended_tok recall_pct lo hi budget_tok n n_errors",
      .percent = true,
      .x = x_attended,
      .y = y_recall },
    { .name = "speed_length",
      .title = "Decoding speed against context length",
      .help = "tokens per second over context length, a line per policy, a panel per budget",
      .x_label = "context, tokens",
      .y_label = "decoding, tokens/s",
      .columns = "length_tok tok_per_s slowest fastest budget_tok n_repeats n_errors",
      .by_length = true,
      .x = x_length,
      .y = y_decode },
};
const size_t kvl_n_figures = sizeof kvl_figures / sizeof kvl_figures[0];

/* ---- writing ------------------------------------------------------------------------------- */

struct builder {
    const struct kvl_figure *f;
    const struct kvl_plot_filter *want;
    struct kvl_plot *out;
    struct kvl_plot_layout layout;
    struct kvl_buf panel_title, panel_note, name, panel, points; /* arrays of the script */
    const struct kvl_result **legend;                            /* one result per name, sorted */
    size_t n_legend, subtitle_len;
    double x_min, x_max, y_min, y_max;
    bool no_memory, setups; /* setups: speed of several machines or thread counts */
};

static void text_add(struct builder *b, struct kvl_buf *out, const char *text)
{
    b->no_memory |= kvl_buf_adds(out, text) != KVL_OK;
}

/* A string of a gnuplot array, in single quotes, where nothing is special but the quote itself:
 * double ones would run commands between backquotes, and a log may come from anywhere. */
static void quote_add(struct builder *b, struct kvl_buf *out, const char *text)
{
    text_add(b, out, out->len ? ", '" : "'");
    for (; *text; text++) {
        char c[2] = { (unsigned char)*text < ' ' ? ' ' : *text, '\0' };
        text_add(b, out, *text == '\n' ? "'.\"\\n\".'" : *text == '\'' ? "''" : c);
    }
    text_add(b, out, "'");
}

static void number_add(struct builder *b, struct kvl_buf *out, size_t value)
{
    b->no_memory |= kvl_buf_printf(out, "%s%zu", out->len ? ", " : "", value) != KVL_OK;
}

static void range_add(double *min, double *max, double v)
{
    if (!isfinite(v) || v <= 0) return;
    *min = *min > 0 ? fmin(*min, v) : v;
    *max = fmax(*max, v);
}

/* A row of the table; x of `full` is where its line shall pass. */
static bool row_add(struct builder *b, const struct kvl_result *x, double at)
{
    struct kvl_interval y = b->f->y(x, b->want->strict);
    double scale = b->f->percent ? 100 : 1;
    if (isnan(y.mean) || isnan(at)) return false;
    if (isnan(y.lo)) y.lo = y.mean;
    if (isnan(y.hi)) y.hi = y.mean;
    range_add(&b->x_min, &b->x_max, at);
    range_add(&b->y_min, &b->y_max, scale * y.lo);
    range_add(&b->y_min, &b->y_max, scale * y.hi);
    int rc = kvl_buf_printf(
        &b->out->table, "%.10g %.10g %.10g %.10g %.10g %.10g %.10g\n", at, scale * y.mean,
        scale * y.lo, scale * y.hi, isnan(x->budget_tok) ? 0 : x->budget_tok,
        b->f->by_length ? (double)x->n_speed : x->n, isnan(x->n_errors) ? 0 : x->n_errors);
    b->no_memory |= rc != KVL_OK;
    b->out->n_points++;
    return true;
}

static void legend_add(struct builder *b, const struct kvl_result *x)
{
    for (size_t i = 0; i < b->n_legend; i++)
        if (strcmp(b->legend[i]->label, x->label) == 0) return;
    b->legend[b->n_legend++] = x;
}

/* The x of all but `full` in a panel, so that its line spans them. */
static void panel_range(const struct builder *b, size_t from, size_t to, double *min, double *max)
{
    *min = *max = 0;
    for (size_t i = from; i < to; i++)
        if (b->layout.x[i]->bound != KVL_BOUND_FULL) range_add(min, max, b->f->x(b->layout.x[i]));
    if (*min == 0)
        for (size_t i = from; i < to; i++) range_add(min, max, b->f->x(b->layout.x[i]));
    *min /= 1.15;
    *max *= 1.15;
}

/* One block of the table: the points x[from .. to) of one policy in one panel. */
static void series_add(struct builder *b, size_t from, size_t to, double min, double max)
{
    const struct kvl_result *x = b->layout.x[from];
    size_t n = 0;
    bool wide = x->bound == KVL_BOUND_FULL && !b->f->by_length;
    b->no_memory |= kvl_buf_printf(&b->out->table, "%s# panel %zu, %s\n",
                                   b->out->n_series ? "\n\n" : "", b->out->n_panels, x->label);
    for (size_t i = from; i < to; i++) {
        if (wide) n += row_add(b, b->layout.x[i], min);
        n += row_add(b, b->layout.x[i], wide ? max : b->f->x(b->layout.x[i]));
    }
    if (!n)
        text_add(b, &b->out->table, "NaN NaN NaN NaN 0 0 0\n"); /* a block that is empty is none */
    b->out->n_series++;
    quote_add(b, &b->name, x->label);
    number_add(b, &b->panel, b->out->n_panels);
    number_add(b, &b->points, n);
    if (n) legend_add(b, x);
}

static void panel_title_add(struct builder *b, size_t from, size_t to)
{
    const struct kvl_result *x = b->layout.x[from], *last = b->layout.x[to - 1];
    struct kvl_buf t = { 0 };
    bool named = b->layout.n_models > 1 || x->set[0];
    bool setup = b->f->by_length && b->setups && x->is_cell; /* else the set has it */
    int rc = named ? kvl_buf_printf(&t, "%s%s\n", x->model, x->set) : KVL_OK;
    if (rc == KVL_OK && b->f->by_length) /* the last one has the budget: dense runs come first */
        rc = isnan(last->budget_tok) ? kvl_buf_adds(&t, "no budget")
                                     : kvl_buf_printf(&t, "budget %s", last->budget);
    else if (rc == KVL_OK)
        rc = kvl_buf_printf(&t, "%s, %.0f tokens\n%s", x->task_label, x->length_tok, x->protocol);
    if (rc == KVL_OK && setup) rc = kvl_buf_printf(&t, ", %.0f threads on %s", x->threads, x->host);
    if (rc == KVL_OK && !b->f->by_length && !isnan(x->depth))
        rc = kvl_buf_printf(&t, ", depth %g", x->depth);
    b->no_memory |= rc != KVL_OK;
    if (rc == KVL_OK) quote_add(b, &b->panel_title, t.data);
    kvl_buf_free(&t);
}

static void panel_series(struct builder *b, size_t from, size_t to, double min, double max)
{
    for (size_t i = from, end; i < to; i = end) {
        for (end = i + 1; end < to; end++)
            if (strcmp(b->layout.x[i]->label, b->layout.x[end]->label) != 0) break;
        series_add(b, i, end, min, max);
    }
}

static void panel_note_add(struct builder *b, size_t from, size_t to, size_t points_before)
{
    double failed = 0;
    for (size_t i = from; i < to; i++)
        if (!isnan(b->layout.x[i]->n_errors)) failed += b->layout.x[i]->n_errors;
    b->out->n_failed += (size_t)failed;
    char note[96] = "";
    if (b->out->n_points == points_before && failed > 0)
        snprintf(note, sizeof note, "no score: all %.0f sample%s failed", failed,
                 failed > 1 ? "s" : "");
    else if (b->out->n_points == points_before)
        snprintf(note, sizeof note, "no value to show");
    quote_add(b, &b->panel_note, note);
}

static void panel_add(struct builder *b, size_t from, size_t to)
{
    double min, max;
    size_t before = b->out->n_points;
    b->out->n_panels++;
    panel_range(b, from, to, &min, &max);
    panel_title_add(b, from, to);
    panel_series(b, from, to, min, max);
    panel_note_add(b, from, to, before);
}

/* ---- the script ---------------------------------------------------------------------------- */

static int legend_order(const void *a, const void *b)
{
    const struct kvl_result *x = *(const struct kvl_result *const *)a;
    const struct kvl_result *y = *(const struct kvl_result *const *)b;
    int c = (int)x->bound - (int)y->bound;
    return c ? c : strcmp(x->label, y->label);
}

static void script_array(struct builder *b, const char *name, size_t n, const struct kvl_buf *items)
{
    if (!n) return; /* gnuplot has no empty array; nothing reads it then */
    b->no_memory |=
        kvl_buf_printf(&b->out->script, "array %s[%zu] = [%s]\n", name, n, items->data) != KVL_OK;
}

/* What the intervals are, how many questions, what failed. */
static void script_subtitle(struct builder *b, const struct kvl_results *r)
{
    struct kvl_buf t = { 0 }, quoted = { 0 };
    const struct kvl_result *x = b->layout.n ? b->layout.x[0] : NULL;
    for (size_t i = 0; i < b->layout.n && !(x->n > 0); i++) x = b->layout.x[i];
    int rc = kvl_buf_adds(&t, "");
    if (x && b->layout.n_models == 1) rc |= kvl_buf_printf(&t, "%s on %s.  ", x->model, x->device);
    if (x && b->f->by_length)
        rc |= kvl_buf_adds(&t, "Median of the repeats; bars: slowest and fastest.");
    else if (x && x->n > 0)
        rc |= kvl_buf_printf(&t, "%.0f questions in %.0f contexts per point; bars: 95 %%.", x->n,
                             x->n_contexts);
    if (b->out->n_failed)
        rc |= kvl_buf_printf(&t, "  %zu sample%s failed.", b->out->n_failed,
                             b->out->n_failed == 1 ? "" : "s");
    if (json_array_size(r->errors))
        rc |= kvl_buf_printf(&t, "  %zu error%s in the log.", json_array_size(r->errors),
                             json_array_size(r->errors) == 1 ? "" : "s");
    if (r->n_setups > 1 && b->f->by_length)
        rc |= kvl_buf_adds(&t, "  SEVERAL MACHINES OR THREAD COUNTS.");
    if (rc == KVL_OK) quote_add(b, &quoted, t.data);
    b->no_memory |= rc != KVL_OK;
    b->subtitle_len = t.len;
    if (!b->no_memory)
        b->no_memory |= kvl_buf_printf(&b->out->script, "subtitle = %s\n", quoted.data) != KVL_OK;
    kvl_buf_free(&t);
    kvl_buf_free(&quoted);
}

static void script_ranges(struct builder *b)
{
    bool empty = !(b->x_min > 0);
    double wide = !b->f->by_length || b->x_min < b->x_max ? 1.15 : 2;
    double x_min = empty ? 1 : b->x_min / wide, x_max = empty ? 10 : b->x_max * wide;
    double y_min = b->f->percent || empty ? -3 : b->y_min / 1.6;
    double y_max = b->f->percent || empty ? 104 : b->y_max * 1.6;
    if (empty && !b->f->percent) y_min = 1;
    b->no_memory |= kvl_buf_printf(&b->out->script,
                                   "x_min = %.10g\nx_max = %.10g\ny_min = %.10g\ny_max = %.10g\n",
                                   x_min, x_max, y_min, y_max) != KVL_OK;
}

/* Must agree with panels.gp, which places the panels. */
static void script_size(struct builder *b, size_t n_columns, size_t n_rows)
{
    size_t longest = 8; /* letters; one takes 8 pixels at most in the legend, 7 in the subtitle */
    for (size_t i = 0; i < b->n_legend; i++)
        longest = KVL_MAX(longest, strlen(b->legend[i]->label));
    size_t width = 88 + n_columns * 330 + (n_columns - 1) * 40 + 56 + 8 * longest;
    width = KVL_MAX(width, 32 + 7 * b->subtitle_len);
    size_t height = 78 + n_rows * 258 + (n_rows - 1) * 78 + 62;
    size_t legend = 112 + 24 * b->n_legend;
    b->no_memory |= kvl_buf_printf(&b->out->script, "width = %zu\nheight = %zu\n", width,
                                   KVL_MAX(height, legend)) != KVL_OK;
}

static void script_build(struct builder *b, const struct kvl_results *r)
{
    struct kvl_buf legend = { 0 };
    size_t n_panels = b->out->n_panels, n_columns = b->layout.n_columns;
    qsort(b->legend, b->n_legend, sizeof *b->legend, legend_order);
    for (size_t i = 0; i < b->n_legend; i++) quote_add(b, &legend, b->legend[i]->label);
    const char *score = b->want->strict && b->f->percent ? " (strict score)" : "";
    int rc = kvl_buf_printf(&b->out->script,
                            "title = '%s%s'\nx_label = '%s'\ny_label = '%s'\nn_panels = %zu\n"
                            "n_columns = %zu\nn_series = %zu\nn_legend = %zu\nn_points = %zu\n",
                            b->f->title, score, b->f->x_label, b->f->y_label, n_panels, n_columns,
                            b->out->n_series, b->n_legend, b->out->n_points);
    b->no_memory |= rc != KVL_OK;
    script_array(b, "panel_title", n_panels, &b->panel_title);
    script_array(b, "panel_note", n_panels, &b->panel_note);
    script_array(b, "series_name", b->out->n_series, &b->name);
    script_array(b, "series_panel", b->out->n_series, &b->panel);
    script_array(b, "series_points", b->out->n_series, &b->points);
    script_array(b, "legend_name", b->n_legend, &legend);
    script_subtitle(b, r);
    script_ranges(b);
    script_size(b, n_columns, n_panels ? (n_panels + n_columns - 1) / n_columns : 1);
    kvl_buf_free(&legend);
}

int kvl_plot_build(const struct kvl_results *r, const struct kvl_figure *figure,
                   const struct kvl_plot_filter *filter, struct kvl_plot *out, struct kvl_err *err)
{
    struct kvl_plot plot = { 0 };
    struct builder b = { .f = figure, .want = filter, .out = &plot, .setups = r->n_setups > 1 };
    KVL_TRY(kvl_plot_layout(r, figure, filter, &b.layout, err));
    b.legend = kvl_alloc(b.layout.n, sizeof *b.legend);
    b.no_memory = !b.legend || kvl_buf_printf(&plot.table, "# %s\n# %s\n", figure->title,
                                              figure->columns) != KVL_OK;
    for (size_t p = 0; p < b.layout.n_panels && !b.no_memory; p++)
        panel_add(&b, b.layout.begin[p], b.layout.begin[p + 1]);
    if (!b.no_memory) script_build(&b, r);
    bool no_memory = b.no_memory;
    kvl_buf_free(&b.panel_title);
    kvl_buf_free(&b.panel_note);
    kvl_buf_free(&b.name);
    kvl_buf_free(&b.panel);
    kvl_buf_free(&b.points);
    kvl_free(b.legend);
    kvl_plot_layout_free(&b.layout);
    if (!no_memory) {
        *out = plot;
        return KVL_OK;
    }
    kvl_plot_free(&plot);
    return kvl_fail(err, KVL_ENOMEM, "no memory for a figure");
}

void kvl_plot_free(struct kvl_plot *p)
{
    kvl_buf_free(&p->table);
    kvl_buf_free(&p->script);
    *p = (struct kvl_plot){ 0 };
}
