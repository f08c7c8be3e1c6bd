/* Charts of the page, as SVG. */
#include "page_parts.h"
#include "text_table.h"

#include <stdlib.h>
#include <string.h>

enum { WIDTH = 760, HEIGHT = 430, LEFT = 56, RIGHT = 20, TOP = 16, BOTTOM = 48, COLORS = 8 };

/* ---- axes ------------------------------------------------------------------------------------ */

struct axis {
    double lo, hi; /* of the data; logarithms of a logarithmic one */
    bool log;
};

static double axis_at(const struct axis *a, double v, double from, double to)
{
    double x = a->log ? log10(v) : v;
    return from + (to - from) * (x - a->lo) / (a->hi - a->lo);
}

static double chart_x(const struct axis *a, double v)
{
    return axis_at(a, v, LEFT, WIDTH - RIGHT);
}

/* Shares, 0 to 1. */
static double chart_y(double share)
{
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP);
}

static void tick(FILE *out, const struct axis *a, double v, const char *unit)
{
    double x = chart_x(a, v);
    if (x < LEFT - 0.5 || x > WIDTH - RIGHT + 0.5) return;
    fprintf(out,
            "<line class=grid x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>"
            "<text class=tick x=\"%.1f\" y=\"%d\" text-anchor=middle>%g%s</text>\n",
            x, x, TOP, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 18, v, unit);
}

static void x_ticks(FILE *out, const struct axis *a, const char *unit)
{
    static const double log_step[] = { 1, 2, 5 };
    if (a->log) {
        for (int decade = (int)floor(a->lo); decade <= (int)ceil(a->hi); decade++)
            for (size_t i = 0; i < sizeof log_step / sizeof log_step[0]; i++)
                tick(out, a, log_step[i] * pow(10, decade), unit);
        return;
    }
    double step = pow(10, floor(log10(a->hi - a->lo)));
    while ((a->hi - a->lo) / step < 4) step /= 2;
    for (double v = ceil(a->lo / step) * step; v <= a->hi; v += step) tick(out, a, v, unit);
}

static void chart_open(FILE *out, const struct axis *a, const char *title, const char *x_label,
                       const char *unit)
{
    fprintf(out,
            "<figure class=chart><figcaption>%s</figcaption>\n<svg viewBox=\"0 0 %d %d\" role=img "
            "aria-label=\"%s\">\n",
            title, WIDTH, HEIGHT, title);
    for (int p = 0; p <= 100; p += 20)
        fprintf(out,
                "<line class=grid x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                "<text class=tick x=\"%d\" y=\"%.1f\" text-anchor=end>%d</text>\n",
                LEFT, WIDTH - RIGHT, chart_y(p / 100.0), chart_y(p / 100.0), LEFT - 6,
                chart_y(p / 100.0) + 4, p);
    x_ticks(out, a, unit);
    fprintf(out,
            "<text class=label x=\"%d\" y=\"%d\" text-anchor=middle>%s</text>\n"
            "<text class=label transform=\"translate(14 %d) rotate(-90)\" text-anchor=middle>"
            "official accuracy, %%</text>\n",
            (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, (TOP + HEIGHT - BOTTOM) / 2);
}

/* ---- points ---------------------------------------------------------------------------------- */

struct spot {
    const struct kvl_summary_row *row;
    double x;
    struct kvl_interval y;
    size_t serie; /* 0, 1, 2 ... by label, the same in all charts of a summary */
};

/* Classes of plots/report.css. */
static const char *serie_class(const struct kvl_result *x)
{
    static const char *const name[] = { [KVL_BOUND_FULL] = "bound full",
                                        [KVL_BOUND_NONE] = "",
                                        [KVL_BOUND_RANDOM] = "bound random",
                                        [KVL_BOUND_ORACLE] = "bound oracle" };
    return name[x->bound];
}

static void spot_mark(FILE *out, const struct spot *s, const struct axis *a, size_t serie)
{
    double x = chart_x(a, s->x), y = chart_y(s->y.mean), r = 4.5;
    if (s->row->cell[0]->bound != KVL_BOUND_NONE)
        fprintf(out, "<path d=\"M%.1f %.1fl%.1f %.1fl%.1f %.1fl%.1f %.1fz\">", x, y - r, r, r, -r,
                r, -r, -r);
    else if (serie / COLORS % 2)
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">", x - r + 1,
                y - r + 1, 2 * r - 2, 2 * r - 2);
    else
        fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\">", x, y, r);
    fputs("<title>", out);
    kvl_page_text(out, s->row->cell[0]->label);
    fputs(", budget ", out);
    kvl_page_text(out, s->row->cell[0]->budget[0] ? s->row->cell[0]->budget : "-");
    fprintf(out, ": %.1f %% (%s) at %.3g</title>", 100 * s->y.mean,
            kvl_percent_span(s->y.lo, s->y.hi, 0, " to ").s, s->x);
    fputs(s->row->cell[0]->bound != KVL_BOUND_NONE ? "</path>\n"
          : serie / COLORS % 2                     ? "</rect>\n"
                                                   : "</circle>\n",
          out);
}

/* A group of the points of one label, with a line through them. */
static void spots_serie(FILE *out, const struct spot *s, size_t n, const struct axis *a,
                        size_t serie, bool line)
{
    fprintf(out, "<g class=\"serie c%zu %s\" data-serie=\"%zu\">\n", serie % COLORS,
            serie_class(s->row->cell[0]), serie);
    if (line && n > 1) {
        fputs("<polyline points=\"", out);
        for (size_t i = 0; i < n; i++)
            fprintf(out, "%.1f,%.1f ", chart_x(a, s[i].x), chart_y(s[i].y.mean));
        fprintf(out, "\"%s/>\n", serie / COLORS % 2 ? " stroke-dasharray=\"6 3\"" : "");
    }
    for (size_t i = 0; i < n; i++) {
        double x = chart_x(a, s[i].x);
        fprintf(out, "<line class=bar x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", x, x,
                chart_y(s[i].y.lo), chart_y(s[i].y.hi));
        spot_mark(out, &s[i], a, serie);
    }
    fputs("</g>\n", out);
}

static void spots_series(FILE *out, const struct spot *s, size_t n, const struct axis *a, bool line)
{
    for (size_t i = 0, end; i < n; i = end) {
        const char *label = s[i].row->cell[0]->label;
        for (end = i + 1; end < n && !strcmp(s[end].row->cell[0]->label, label);) end++;
        spots_serie(out, s + i, end - i, a, s[i].serie, line);
    }
}

static void spots_legend(FILE *out, const struct spot *s, size_t n)
{
    fputs("</svg>\n<ul class=legend>", out);
    for (size_t i = 0; i < n; i++) {
        const struct kvl_result *x = s[i].row->cell[0];
        if (i && !strcmp(s[i - 1].row->cell[0]->label, x->label)) continue;
        size_t serie = s[i].serie;
        fprintf(out, "<li class=\"c%zu %s\" data-serie=\"%zu\"><i class=%s></i>", serie % COLORS,
                serie_class(x), serie,
                x->bound != KVL_BOUND_NONE ? "diamond"
                : serie / COLORS % 2       ? "square"
                                           : "dot");
        kvl_page_text(out, x->label);
        fputs("</li>", out);
    }
    fputs("</ul></figure>\n", out);
}

/* ---- accuracy against what was read ---------------------------------------------------------- */

/* Bounds by their kind, then labels, of each its budgets: a series is one piece. */
static int spots_order(const void *a, const void *b)
{
    const struct spot *s = a, *t = b;
    const struct kvl_result *x = s->row->cell[0], *y = t->row->cell[0];
    int c = (int)x->bound - (int)y->bound;
    if (!c) c = strcmp(x->label, y->label);
    return c ? c : (x->budget_tok > y->budget_tok) - (x->budget_tok < y->budget_tok);
}

static void spots_number(struct spot *spot, size_t n)
{
    if (n > 1) qsort(spot, n, sizeof *spot, spots_order);
    for (size_t i = 1; i < n; i++)
        spot[i].serie = spot[i - 1].serie +
                        (strcmp(spot[i].row->cell[0]->label, spot[i - 1].row->cell[0]->label) != 0);
}

/* Into room for all rows, those that have both values. */
static size_t spots_of(const struct kvl_summary *s, bool speed, struct spot *spot)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_rows; i++) {
        const struct kvl_summary_row *row = &s->row[i];
        spot[i] = (struct spot){ .row = row,
                                 .x = !speed         ? 100 * kvl_page_read_share(s, row)
                                      : row->speaker ? row->speaker->decode.mean
                                                     : KVL_NAN,
                                 .y = kvl_pool_accuracy(&row->all) };
    }
    spots_number(spot, s->n_rows);
    for (size_t i = 0; i < s->n_rows; i++)
        if (!isnan(spot[i].y.mean) && spot[i].x > 0) spot[n++] = spot[i];
    return n;
}

static struct axis spots_axis(const struct spot *s, size_t n, bool log)
{
    double lo = s[0].x, hi = s[0].x;
    for (size_t i = 1; i < n; i++) {
        lo = fmin(lo, s[i].x);
        hi = fmax(hi, s[i].x);
    }
    if (log) return (struct axis){ log10(lo / 1.15), log10(hi * 1.15), true };
    return (struct axis){ 0, hi * 1.05, false };
}

void kvl_page_chart_read(const struct kvl_summary *s, FILE *out)
{
    struct spot *spot = kvl_alloc(s->n_rows + 1, sizeof *spot);
    size_t n = spot ? spots_of(s, false, spot) : 0;
    if (n > 1) {
        struct axis a = spots_axis(spot, n, true);
        chart_open(out, &a, "Accuracy against what was read",
                   "keys and values read per token, choosing included, % of full attention", "");
        spots_series(out, spot, n, &a, true);
        spots_legend(out, spot, n);
    }
    kvl_free(spot);
}

/* ---- accuracy against speed ------------------------------------------------------------------ */

static int by_speed(const void *a, const void *b)
{
    const struct spot *x = *(const struct spot *const *)a, *y = *(const struct spot *const *)b;
    return (x->x < y->x) - (x->x > y->x);
}

/* From the fastest on: those that are more accurate than everything faster.  Bounds take no part. */
static void pareto_line(FILE *out, const struct spot *s, size_t n, const struct axis *a)
{
    const struct spot **order = kvl_alloc(n, sizeof *order);
    double best = -1;
    if (!order) return;
    for (size_t i = 0; i < n; i++) order[i] = &s[i];
    qsort(order, n, sizeof *order, by_speed);
    fputs("<polyline class=pareto points=\"", out);
    for (size_t i = 0; i < n; i++) {
        if (order[i]->row->cell[0]->bound != KVL_BOUND_NONE || order[i]->y.mean <= best) continue;
        if (best >= 0) fprintf(out, "%.1f,%.1f ", chart_x(a, order[i]->x), chart_y(best));
        best = order[i]->y.mean;
        fprintf(out, "%.1f,%.1f ", chart_x(a, order[i]->x), chart_y(best));
    }
    fputs("\"/>\n", out);
    kvl_free(order);
}

void kvl_page_chart_speed(const struct kvl_summary *s, FILE *out)
{
    struct spot *spot = kvl_alloc(s->n_rows + 1, sizeof *spot);
    size_t n = spot ? spots_of(s, true, spot) : 0;
    if (n > 1) {
        char label[96];
        struct axis a = spots_axis(spot, n, false);
        snprintf(label, sizeof label, "decoding, tokens/s at %.0f tokens", s->length_tok);
        chart_open(out, &a, "Accuracy against speed", label, "");
        pareto_line(out, spot, n, &a);
        spots_series(out, spot, n, &a, false);
        spots_legend(out, spot, n);
    }
    kvl_free(spot);
}

/* ---- maps over length and depth -------------------------------------------------------------- */

enum { MAP_TILE = 30, MAP_LEFT = 44, MAP_TOP = 6, MAP_BOTTOM = 20, MAP_MAX = 256 };

struct map_axis {
    double v[MAP_MAX];
    size_t n;
};

static void map_add(struct map_axis *a, double v)
{
    size_t at = 0;
    while (at < a->n && a->v[at] < v) at++;
    if ((at < a->n && a->v[at] <= v) || a->n == MAP_MAX) return;
    memmove(a->v + at + 1, a->v + at, (a->n++ - at) * sizeof *a->v);
    a->v[at] = v;
}

static size_t map_find(const struct map_axis *a, double v)
{
    size_t at = 0;
    while (at < a->n && a->v[at] < v) at++;
    return at;
}

/* One hue, light to dark: readable without red and green, and in print. */
static void map_color(double share, char out[16])
{
    double t = 1 - share;
    snprintf(out, 16, "#%02x%02x%02x", (unsigned)(26 + t * 222), (unsigned)(82 + t * 168),
             (unsigned)(150 + t * 102));
}

static void map_tile(FILE *out, const struct kvl_result *x, size_t column, size_t row)
{
    char color[16];
    map_color(x->official.mean, color);
    size_t left = MAP_LEFT + column * MAP_TILE, top = MAP_TOP + row * MAP_TILE;
    fprintf(out,
            "<rect x=\"%zu\" y=\"%zu\" width=\"%d\" height=\"%d\" fill=\"%s\"><title>%.0f tokens, "
            "depth %g: %.1f %%, n %.0f</title></rect><text class=\"%s\" x=\"%zu\" y=\"%zu\" "
            "text-anchor=middle>%.0f</text>\n",
            left, top, MAP_TILE - 1, MAP_TILE - 1, color, x->length_tok, x->depth,
            100 * x->official.mean, x->n, x->official.mean > 0.55 ? "dark" : "light",
            left + MAP_TILE / 2, top + MAP_TILE / 2 + 4, 100 * x->official.mean);
}

static void map_draw(const struct kvl_summary *s, size_t column, const struct kvl_summary_row *row,
                     const struct map_axis *length, const struct map_axis *depth, FILE *out)
{
    size_t width = MAP_LEFT + length->n * MAP_TILE + 4,
           height = MAP_TOP + depth->n * MAP_TILE + MAP_BOTTOM;
    fputs("<figure class=map><figcaption>", out);
    kvl_page_text(out, row->cell[0]->label);
    fputs(" <small>", out);
    kvl_page_text(out, row->cell[0]->budget);
    fprintf(out, "</small></figcaption><svg viewBox=\"0 0 %zu %zu\" width=\"%zu\" role=img>\n",
            width, height, width);
    for (size_t k = 0; k < depth->n; k++)
        fprintf(out, "<text class=tick x=\"%d\" y=\"%zu\" text-anchor=end>%.0f %%</text>\n",
                MAP_LEFT - 5, MAP_TOP + k * MAP_TILE + MAP_TILE / 2 + 4, 100 * depth->v[k]);
    for (size_t k = 0; k < length->n; k++)
        fprintf(out, "<text class=tick x=\"%zu\" y=\"%zu\" text-anchor=middle>%gK</text>\n",
                MAP_LEFT + k * MAP_TILE + MAP_TILE / 2, height - 6,
                round(length->v[k] / 1024 * 10) / 10);
    for (size_t i = 0; i < row->n; i++) {
        const struct kvl_result *x = row->cell[i];
        bool here = kvl_summary_has(s, column, x) && !isnan(x->depth) && !isnan(x->official.mean);
        size_t column_at = map_find(length, x->length_tok), row_at = map_find(depth, x->depth);
        if (here && column_at < length->n && row_at < depth->n) map_tile(out, x, column_at, row_at);
    }
    fputs("</svg></figure>\n", out);
}

void kvl_page_maps(const struct kvl_summary *s, size_t column, FILE *out)
{
    struct map_axis length = { .n = 0 }, depth = { .n = 0 };
    for (size_t i = 0; i < s->n; i++) {
        const struct kvl_result *x = s->cell[i];
        if (!kvl_summary_has(s, column, x) || isnan(x->depth)) continue;
        map_add(&length, x->length_tok);
        map_add(&depth, x->depth);
    }
    if (depth.n < 2) return;
    fputs("<h4>Accuracy, %, by length and depth of the evidence <small>", out);
    kvl_page_text(out, s->column[column]->protocol);
    fputs("</small></h4>\n<div class=maps>\n", out);
    for (size_t i = 0; i < s->n_rows; i++)
        if (s->row[i].column[column].n > 0) map_draw(s, column, &s->row[i], &length, &depth, out);
    fputs("</div>\n", out);
}
