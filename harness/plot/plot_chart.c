/* A chart as the table and the variables of a script. */
#include "plot.h"

#include "plot_layout.h"
#include "show.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kvl_chart_entry { /* of the legend */
    char label[KVL_CHART_LABEL];
    int rank;
};

static void text_add(struct kvl_chart *c, struct kvl_buf *out, const char *text)
{
    c->no_memory |= kvl_buf_adds(out, text) != KVL_OK;
}

/* A string of a gnuplot array, in single quotes, where nothing is special but the quote itself:
 * double ones would run commands between backquotes, and a log may come from anywhere. */
static void quote_add(struct kvl_chart *c, struct kvl_buf *out, const char *text)
{
    text_add(c, out, out->len ? ", '" : "'");
    for (bool more = true; more;) {
        size_t n = strcspn(text, "\n");
        c->no_memory |= kvl_show_add(out, KVL_SHOW_GNUPLOT, text, n) != KVL_OK;
        more = text[n] != '\0';
        if (more) text_add(c, out, "'.\"\\n\".'");
        text += n + more;
    }
    text_add(c, out, "'");
}

static void number_add(struct kvl_chart *c, struct kvl_buf *out, size_t value)
{
    c->no_memory |= kvl_buf_printf(out, "%s%zu", out->len ? ", " : "", value) != KVL_OK;
}

/* How much of `text` a line of so many letters takes: to its end, else to behind the last blank or
 * comma that fits, else to behind the first one. */
static size_t line_len(const char *text, size_t letters)
{
    size_t len = strcspn(text, "\n"), at = 0;
    if (len <= letters) return len;
    for (size_t i = 0; i < len && (i < letters || !at); i++)
        if (text[i] == ' ' || text[i] == ',') at = i + 1;
    return at ? at : len;
}

/* The text in lines of so many letters at most; returns how many lines. */
static size_t wrap_add(struct kvl_chart *c, struct kvl_buf *out, const char *text, size_t letters)
{
    size_t n = 0;
    text_add(c, out, "");
    for (const char *p = text; *p && !c->no_memory; n++) {
        size_t len = line_len(p, letters), shown = len;
        while (shown && p[shown - 1] == ' ') shown--;
        c->no_memory |= kvl_buf_printf(out, "%s%.*s", n ? "\n" : "", (int)shown, p) != KVL_OK;
        p += len + (p[len] == '\n');
    }
    return n;
}

/* ---- panels, series, points ------------------------------------------------------------------ */

enum { PANEL_W = 330, PANEL_H = 250, GAP_X = 40, PANEL_LETTER = 7 /* of a title, at font 10 */ };

static size_t panel_w(const struct kvl_chart *c)
{
    return c->panel_w ? c->panel_w : PANEL_W;
}

static size_t gap_x(const struct kvl_chart *c)
{
    return c->gap_x ? c->gap_x : GAP_X;
}

void kvl_chart_panel(struct kvl_chart *c, const char *title)
{
    struct kvl_buf text = { 0 };
    size_t letter = c->title_letter ? c->title_letter : PANEL_LETTER;
    size_t lines = wrap_add(c, &text, title, (panel_w(c) + gap_x(c)) / letter);
    c->title_lines = KVL_MAX(c->title_lines, lines);
    c->n_panels++;
    c->panel_points = 0;
    if (!c->no_memory) quote_add(c, &c->panel_title, text.data);
    kvl_buf_free(&text);
}

void kvl_chart_panel_end(struct kvl_chart *c, const char *note)
{
    quote_add(c, &c->panel_note, c->panel_points ? "" : note);
}

void kvl_chart_blank(struct kvl_chart *c)
{
    c->n_panels++;
    quote_add(c, &c->panel_title, "");
    quote_add(c, &c->panel_note, "");
}

static void legend_add(struct kvl_chart *c)
{
    const struct kvl_chart_entry *have =
        (const struct kvl_chart_entry *)(const void *)c->legend.data;
    size_t n = c->legend.len / sizeof *have;
    struct kvl_chart_entry e = { .rank = c->rank };
    memcpy(e.label, c->label, sizeof e.label);
    for (size_t i = 0; i < n; i++)
        if (strcmp(have[i].label, e.label) == 0) return;
    c->no_memory |= kvl_buf_add(&c->legend, &e, sizeof e) != KVL_OK;
}

static void star_note(struct kvl_chart *c, const char *label)
{
    c->has_star |= strstr(label, " *") != NULL;
}

void kvl_chart_series(struct kvl_chart *c, const char *label, int rank)
{
    star_note(c, label);
    c->no_memory |= kvl_buf_printf(&c->table, "%s# panel %zu, %s\n", c->n_series ? "\n\n" : "",
                                   c->n_panels, label) != KVL_OK;
    c->n_series++;
    c->serie_points = 0;
    quote_add(c, &c->series_name, label);
    number_add(c, &c->series_panel, c->n_panels);
    snprintf(c->label, sizeof c->label, "%s", label);
    c->rank = rank;
}

/* Labels without any point do not stand in the legend; a block that is empty is none for gnuplot. */
void kvl_chart_series_end(struct kvl_chart *c)
{
    if (c->serie_points)
        legend_add(c);
    else
        text_add(c, &c->table, "NaN NaN NaN NaN 0 0 0\n");
    number_add(c, &c->series_points, c->serie_points);
}

static void range_add(struct kvl_chart *c, double x, double lo, double hi)
{
    bool first = c->n_points == 0;
    c->x_min = first ? x : fmin(c->x_min, x);
    c->x_max = first ? x : fmax(c->x_max, x);
    c->y_min = first ? lo : fmin(c->y_min, lo);
    c->y_max = first ? hi : fmax(c->y_max, hi);
    if (lo > 0 && !(c->y_low > 0 && c->y_low < lo)) c->y_low = lo;
}

bool kvl_chart_point(struct kvl_chart *c, const struct kvl_chart_point *p)
{
    if (!isfinite(p->x) || !isfinite(p->y)) return false;
    double lo = isfinite(p->lo) ? p->lo : p->y, hi = isfinite(p->hi) ? p->hi : p->y;
    int rc = kvl_buf_printf(&c->table, "%.10g %.10g %.10g %.10g %.10g %.10g %.10g\n", p->x, p->y,
                            lo, hi, p->budget_tok, p->n, p->n_errors);
    c->no_memory |= rc != KVL_OK;
    range_add(c, p->x, fmin(lo, p->y), fmax(hi, p->y));
    c->n_points++;
    c->panel_points++;
    c->serie_points++;
    return true;
}

void kvl_chart_x_tick(struct kvl_chart *c, const char *name)
{
    c->n_x_ticks++;
    star_note(c, name);
    quote_add(c, &c->x_tick, name);
}

void kvl_chart_y_tick(struct kvl_chart *c, const char *name)
{
    c->n_y_ticks++;
    star_note(c, name);
    quote_add(c, &c->y_tick, name);
}

/* ---- the script ------------------------------------------------------------------------------ */

static int legend_order(const void *a, const void *b)
{
    const struct kvl_chart_entry *x = a, *y = b;
    return x->rank != y->rank ? x->rank - y->rank : strcmp(x->label, y->label);
}

static void script_array(struct kvl_chart *c, struct kvl_buf *out, const char *name, size_t n,
                         const struct kvl_buf *items)
{
    if (!n) return; /* gnuplot has no empty array; nothing reads it then */
    c->no_memory |= kvl_buf_printf(out, "array %s[%zu] = [%s]\n", name, n, items->data) != KVL_OK;
}

/* name = 'text' */
static void script_text(struct kvl_chart *c, struct kvl_buf *out, const char *name,
                        const char *text)
{
    struct kvl_buf quoted = { 0 };
    quote_add(c, &quoted, text);
    if (!c->no_memory)
        c->no_memory |= kvl_buf_printf(out, "%s = %s\n", name, quoted.data) != KVL_OK;
    kvl_buf_free(&quoted);
}

/* Ends of an axis; without points, any that can be drawn. */
static void axis_ends(enum kvl_axis axis, double least, double min, double max, double room,
                      double *from, double *to)
{
    bool empty = !(max >= min);
    switch (axis) {
    case KVL_AXIS_PERCENT: *from = -3, *to = 104; break;
    case KVL_AXIS_LOG:
        empty |= !(least > 0) || !(max > 0);
        *from = empty ? 1 : least / room;
        *to = empty ? 10 : max * room;
        break;
    case KVL_AXIS_ZERO: *from = 0, *to = empty || !(max > 0) ? 1 : 1.04 * max; break;
    case KVL_AXIS_LINEAR:
        *from = empty ? 0 : min - 0.04 * (max - min) - (max == min);
        *to = empty ? 1 : max + 0.04 * (max - min) + (max == min);
        break;
    }
}

static void script_ranges(struct kvl_chart *c, const struct kvl_figure *f, struct kvl_buf *out)
{
    double x0, x1, y0, y1;
    bool any = c->n_points > 0;
    double one = f->by_length && c->x_min == c->x_max ? 2 : 1.15;
    axis_ends(f->x_axis, c->x_min, any ? c->x_min : 1, any ? c->x_max : 0, one, &x0, &x1);
    axis_ends(f->y_axis, c->y_low, any ? c->y_min : 1, any ? c->y_max : 0, 1.6, &y0, &y1);
    c->no_memory |=
        kvl_buf_printf(out, "x_min = %.10g\nx_max = %.10g\ny_min = %.10g\ny_max = %.10g\n", x0, x1,
                       y0, y1) != KVL_OK;
}

/* Pixels: a letter of the legend, of other small text, of the title, at most; a line of small text. */
enum { LEGEND_LETTER = 8, SMALL_LETTER = 7, TITLE_LETTER = 11, LINE = 16 };

/* Where everything stands, in pixels from the upper left corner; the scripts of plots/ place it there. */
struct frame {
    size_t width, height, left, top, panel_w, panel_h, gap_x, gap_y;
    size_t legend_x, legend_y, legend_columns, foot_y;
};

/* Across: the legend stands beside the panels, or in columns below them. */
static void frame_across(const struct kvl_chart *c, const struct kvl_figure *f,
                         const struct kvl_chart_entry *entry, size_t n, struct frame *x)
{
    size_t longest = 8;
    for (size_t i = 0; i < n; i++) longest = KVL_MAX(longest, strlen(entry[i].label));
    size_t own = 56 + LEGEND_LETTER * (longest + c->tail);
    x->left = c->left ? c->left : 88;
    x->panel_w = panel_w(c);
    x->gap_x = gap_x(c);
    x->width = x->left + c->n_columns * x->panel_w + (c->n_columns - 1) * x->gap_x;
    x->legend_x = c->legend_below && !f->bar ? 16 : x->width;
    x->legend_columns = 1;
    if (f->bar) {
        x->width += 100;
    } else if (c->legend_below) {
        x->width = KVL_MAX(x->width + 24, own + 32);
        x->legend_columns = (x->width - 32) / own;
    } else {
        x->width += own;
    }
}

/* Down: title, subtitle, rows of panels, the legend where it is below, the foot. */
static void frame_down(const struct kvl_chart *c, const struct kvl_figure *f, size_t n,
                       size_t head_lines, size_t foot_lines, struct frame *x)
{
    size_t n_rows = c->n_panels ? (c->n_panels + c->n_columns - 1) / c->n_columns : 1;
    bool below = c->legend_below && !f->bar;
    x->panel_h = c->panel_h ? c->panel_h : PANEL_H;
    x->gap_y = 78 + (c->title_lines > 2 ? 14 * (c->title_lines - 2) : 0); /* two lines have room */
    x->top = x->gap_y + 14 + LINE * (head_lines > 1 ? head_lines - 1 : 0);
    x->legend_y = x->top;
    x->gap_y += c->names_h;
    x->height = x->top + 8 + n_rows * x->panel_h + (n_rows - 1) * x->gap_y + 52 + c->names_h;
    if (below) {
        x->legend_y = x->height + 8;
        x->height += 8 + 24 * ((n + x->legend_columns - 1) / x->legend_columns);
    } else {
        x->height = KVL_MAX(x->height, x->top + 20 + 24 * n);
    }
    x->foot_y = x->height + 8;
    if (foot_lines) x->height += 12 + LINE * foot_lines;
}

static void frame_write(struct kvl_chart *c, const struct frame *x, struct kvl_buf *out)
{
    const struct {
        const char *name;
        size_t value;
    } fields[] = {
        { "width", x->width },       { "height", x->height },
        { "left", x->left },         { "top", x->top },
        { "panel_w", x->panel_w },   { "panel_h", x->panel_h },
        { "gap_x", x->gap_x },       { "gap_y", x->gap_y },
        { "legend_x", x->legend_x }, { "legend_y", x->legend_y },
        { "foot_y", x->foot_y },     { "legend_columns", x->legend_columns },
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        c->no_memory |=
            kvl_buf_printf(out, "%s = %zu.0\n", fields[i].name, fields[i].value) != KVL_OK;
}

static void script_frame(struct kvl_chart *c, const struct kvl_figure *f,
                         const struct kvl_chart_entry *entry, size_t n, struct kvl_buf *out)
{
    struct frame x = { 0 };
    struct kvl_buf subtitle = { 0 }, foot = { 0 };
    frame_across(c, f, entry, n, &x);
    x.width = KVL_MAX(x.width, 32 + TITLE_LETTER * strlen(f->title));
    size_t letters = (x.width - 32) / SMALL_LETTER;
    size_t head_lines = wrap_add(c, &subtitle, c->subtitle.data, letters);
    size_t foot_lines = wrap_add(c, &foot, c->foot.len ? c->foot.data : "", letters);
    frame_down(c, f, n, head_lines, foot_lines, &x);
    frame_write(c, &x, out);
    if (!c->no_memory) {
        script_text(c, out, "subtitle", subtitle.data);
        script_text(c, out, "foot", foot.data);
    }
    kvl_buf_free(&subtitle);
    kvl_buf_free(&foot);
}

static void script_legend(struct kvl_chart *c, const struct kvl_figure *f, struct kvl_buf *out)
{
    struct kvl_chart_entry *entry = (struct kvl_chart_entry *)(void *)c->legend.data;
    struct kvl_buf names = { 0 };
    size_t n = c->legend.len / sizeof *entry;
    if (n > 1) qsort(entry, n, sizeof *entry, legend_order);
    for (size_t i = 0; i < n; i++) quote_add(c, &names, entry[i].label);
    c->no_memory |= kvl_buf_printf(out, "n_legend = %zu\n", n) != KVL_OK;
    script_array(c, out, "legend_name", n, &names);
    script_frame(c, f, entry, n, out);
    kvl_buf_free(&names);
}

static void script_build(struct kvl_chart *c, const struct kvl_figure *f, bool strict,
                         struct kvl_buf *out)
{
    char title[256];
    const char *score = strict && f->y_axis == KVL_AXIS_PERCENT ? " (strict score)" : "";
    snprintf(title, sizeof title, "%s%s", f->title, score);
    script_text(c, out, "title", title);
    text_add(c, &c->subtitle, c->has_star ? "  * " KVL_STALE_NOTE "." : "");
    if (c->no_memory) return;
    script_text(c, out, "x_label", f->x_label);
    script_text(c, out, "y_label", f->y_label);
    int rc = kvl_buf_printf(out,
                            "n_panels = %zu\nn_columns = %zu\nn_series = %zu\nn_points = %zu\n"
                            "n_x_ticks = %zu\nn_y_ticks = %zu\n",
                            c->n_panels, c->n_columns, c->n_series, c->n_points, c->n_x_ticks,
                            c->n_y_ticks);
    c->no_memory |= rc != KVL_OK;
    script_array(c, out, "panel_title", c->n_panels, &c->panel_title);
    script_array(c, out, "panel_note", c->n_panels, &c->panel_note);
    script_array(c, out, "series_name", c->n_series, &c->series_name);
    script_array(c, out, "series_panel", c->n_series, &c->series_panel);
    script_array(c, out, "series_points", c->n_series, &c->series_points);
    script_array(c, out, "x_tick", c->n_x_ticks, &c->x_tick);
    script_array(c, out, "y_tick", c->n_y_ticks, &c->y_tick);
    script_legend(c, f, out);
    script_ranges(c, f, out);
}

/* ---- plots ----------------------------------------------------------------------------------- */

static void chart_free(struct kvl_chart *c)
{
    struct kvl_buf *const bufs[] = { &c->table,       &c->panel_title,  &c->panel_note,
                                     &c->series_name, &c->series_panel, &c->series_points,
                                     &c->x_tick,      &c->y_tick,       &c->legend,
                                     &c->subtitle,    &c->foot };
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++) kvl_buf_free(bufs[i]);
}

int kvl_plot_build(const struct kvl_results *r, const struct kvl_figure *figure,
                   const struct kvl_plot_filter *filter, size_t columns, struct kvl_plot *out,
                   struct kvl_err *err)
{
    struct kvl_plot plot = { 0 };
    struct kvl_chart c = { 0 };
    c.no_memory |=
        kvl_buf_printf(&c.table, "# %s\n# %s\n", figure->title, figure->columns) != KVL_OK;
    c.n_columns = columns;
    int rc = figure->build(figure, r, filter, &c, err);
    size_t square = c.n_panels <= 1 ? 1 : c.n_panels <= 4 ? 2 : c.n_panels <= 9 ? 3 : 4;
    if (!c.n_columns) c.n_columns = square;
    /* A figure with panels of its own size has its own columns. */
    if (columns && !c.panel_w) c.n_columns = KVL_MAX(KVL_MIN(columns, c.n_panels), (size_t)1);
    c.legend_below |= columns > 0;
    if (rc == KVL_OK && c.n_panels > KVL_PLOT_MAX_PANELS) rc = kvl_plot_too_many(figure, err);
    if (rc == KVL_OK && !c.no_memory) script_build(&c, figure, filter->strict, &plot.script);
    if (rc == KVL_OK && c.no_memory) rc = kvl_fail(err, KVL_ENOMEM, "no memory for a figure");
    if (rc == KVL_OK) {
        plot.n_points = c.n_points;
        plot.n_failed = c.n_failed;
        plot.lack = c.lack;
        plot.table = c.table;
        c.table = (struct kvl_buf){ 0 };
        *out = plot;
    } else {
        kvl_plot_free(&plot);
    }
    chart_free(&c);
    return rc;
}

void kvl_plot_free(struct kvl_plot *p)
{
    kvl_buf_free(&p->table);
    kvl_buf_free(&p->script);
    *p = (struct kvl_plot){ 0 };
}
