/* Published numbers beside ours. */
#include "reproduce_page.h"

#include "page_parts.h"
#include "show.h"
#include "text_table.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { COLORS = 8 };

/* Not the paper's: the shape alone compares. */
static bool is_small(const struct kvl_reproduced *r)
{
    return r->scale != KVL_SCALE_PAPER;
}

static const char *scale_name(const struct kvl_reproduced *r)
{
    return r->scale == KVL_SCALE_REAL ? "Small scale, real model" : "Small scale";
}

static const char *x_name(const struct kvl_published *p)
{
    static const char *const names[] = {
        [KVL_X_BUDGET] = "budget", [KVL_X_SHARE] = "budget, %", [KVL_X_LENGTH] = "tokens"
    };
    return names[p->x];
}

static bool same(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(a);
}

/* "32", or "32 (here 8)" where another x stands for it. */
static void x_text(const struct kvl_reproduced *r, const struct kvl_published_series *s, size_t i,
                   char out[64])
{
    double ours = kvl_published_our_x(r->published, s, i, is_small(r));
    if (same(ours, s->x[i]))
        snprintf(out, 64, "%.7g", s->x[i]);
    else
        snprintf(out, 64, "%.7g (here %.7g)", s->x[i], ours);
}

/* A task's name as a word of a sweep. */
static bool sweep_has(const char *sweep, const char *task)
{
    size_t n = strlen(task);
    for (const char *at = sweep; (at = strstr(at, task)) != NULL; at += n) {
        bool before = at > sweep && (isalnum((unsigned char)at[-1]) || at[-1] == '_');
        if (!before && !isalnum((unsigned char)at[n]) && at[n] != '_') return true;
    }
    return false;
}

/* Says which tasks ran that the paper's sweep has not, each once. */
static int other_tasks(const struct kvl_reproduced *r, struct kvl_buf *out)
{
    KVL_TRY(kvl_buf_adds(out, ""));
    for (size_t i = 0; i < r->results->n; i++) {
        const char *task = r->results->result[i].task;
        if (!r->results->result[i].is_cell || !*task || sweep_has(r->published->sweep, task) ||
            sweep_has(out->data, task))
            continue;
        KVL_TRY(kvl_buf_printf(out, "%s%s", out->len ? ", " : "", task));
    }
    return KVL_OK;
}

static void scale_note(const char *tasks, enum kvl_medium m, FILE *out)
{
    if (!*tasks) {
        fputs("Another model, shorter contexts; only the shape compares.", out);
        return;
    }
    fputs("Another task ran than the paper's: ", out);
    kvl_show(out, m, tasks);
    fputs(".  Numbers of the two are not compared.", out);
}

/* ---- terminal -------------------------------------------------------------------------------- */

int kvl_reproduced_print(const struct kvl_reproduced *r, FILE *out, struct kvl_err *err)
{
    const struct kvl_published *p = r->published;
    const struct kvl_column column[] = { { "series", true },  { x_name(p), true },
                                         { "theirs", false }, { "ours", false },
                                         { "from", false },   { "to", false },
                                         { "differs", false } };
    struct kvl_table t = { .column = column,
                           .n_columns = sizeof column / sizeof column[0] - is_small(r) };
    struct kvl_buf tasks = { 0 };
    fprintf(out, "%s  %s, %s: %s%s%s\n", p->id, p->paper, p->where, p->title,
            p->measure ? ", " : "", p->measure ? p->measure->label : "");
    for (size_t s = 0; s < p->n_series; s++)
        for (size_t i = 0; i < p->series[s].n; i++) {
            char x[64];
            double theirs = p->series[s].y[i];
            int decimals = p->measure->decimals;
            struct kvl_interval v =
                kvl_published_ours(p, &p->series[s], i, is_small(r), r->results);
            x_text(r, &p->series[s], i, x);
            kvl_table_add(&t, "%s", p->series[s].name);
            kvl_table_add(&t, "%s", x);
            kvl_table_number(&t, theirs, decimals);
            kvl_table_number(&t, v.mean, decimals);
            int span = kvl_span_decimals(v.lo, v.hi, decimals);
            kvl_table_number(&t, v.lo, span);
            kvl_table_number(&t, v.hi, span);
            if (!is_small(r)) kvl_table_number(&t, v.mean - theirs, decimals);
        }
    int rc = p->n_series ? kvl_table_print(&t, 2, out, err) : KVL_OK;
    kvl_table_free(&t);
    fprintf(out, "  The paper's shape: %s\n", p->expect);
    if (rc == KVL_OK && other_tasks(r, &tasks) != KVL_OK)
        rc = kvl_fail(err, KVL_ENOMEM, "out of memory");
    if (rc == KVL_OK && is_small(r)) {
        fprintf(out, "  %s: ", scale_name(r));
        scale_note(tasks.data, KVL_SHOW_TEXT, out);
        fputc('\n', out);
    }
    kvl_buf_free(&tasks);
    fputc('\n', out);
    return rc;
}

/* ---- chart ----------------------------------------------------------------------------------- */

enum { WIDTH = 760, HEIGHT = 400, LEFT = 64, RIGHT = 20, TOP = 14, BOTTOM = 46 };

struct scale {
    double lo, hi;
    bool log;
    double x[KVL_PUBLISHED_SERIES * KVL_PUBLISHED_X]; /* all of theirs, ascending */
    size_t n_x, n_series;
};

static void scale_x(struct scale *a, double x)
{
    size_t at = 0;
    while (at < a->n_x && a->x[at] < x) at++;
    if (at < a->n_x && a->x[at] <= x) return;
    memmove(a->x + at + 1, a->x + at, (a->n_x++ - at) * sizeof *a->x);
    a->x[at] = x;
}

static void scale_y(struct scale *a, double y)
{
    if (isnan(y)) return;
    a->lo = fmin(a->lo, y);
    a->hi = fmax(a->hi, y);
}

static struct scale scale_of(const struct kvl_reproduced *r)
{
    const struct kvl_published *p = r->published;
    struct scale a = { .lo = HUGE_VAL, .hi = -HUGE_VAL, .n_series = p->n_series };
    for (size_t s = 0; s < p->n_series; s++)
        for (size_t i = 0; i < p->series[s].n; i++) {
            scale_x(&a, p->series[s].x[i]);
            scale_y(&a, p->series[s].y[i]);
            scale_y(&a, kvl_published_ours(p, &p->series[s], i, is_small(r), r->results).mean);
        }
    a.log = a.lo > 0 && a.hi > 60 * a.lo && !p->measure->pools;
    if (!a.log) a.lo = 0;
    if (a.log) a.lo = log10(a.lo / 1.3), a.hi = log10(a.hi * 1.3);
    if (!a.log) a.hi *= 1.06;
    if (!(a.hi > a.lo)) a.hi = a.lo + 1;
    return a;
}

/* Places of x are equal steps: papers choose them by doubling. */
static double at_x(const struct scale *a, double x)
{
    size_t i = 0;
    while (i + 1 < a->n_x && a->x[i] < x) i++;
    double step = (double)(WIDTH - LEFT - RIGHT) / (double)a->n_x;
    return LEFT + step * ((double)i + 0.5);
}

/* A point of series `serie`: beside those of others at the same x, which would hide it. */
static double at_x_of(const struct scale *a, double x, size_t serie)
{
    double n = (double)a->n_series, step = (double)(WIDTH - LEFT - RIGHT) / (double)a->n_x;
    return at_x(a, x) + ((double)serie - (n - 1) / 2) * fmin(12, 0.4 * step / n);
}

static double at_y(const struct scale *a, double y)
{
    double v = a->log ? log10(y) : y;
    return HEIGHT - BOTTOM - (v - a->lo) / (a->hi - a->lo) * (HEIGHT - BOTTOM - TOP);
}

static void y_tick(const struct scale *a, double v, FILE *out)
{
    fprintf(out,
            "<line class=grid x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text class=tick "
            "x=\"%d\" y=\"%.1f\" text-anchor=end>%g</text>\n",
            LEFT, WIDTH - RIGHT, at_y(a, v), at_y(a, v), LEFT - 6, at_y(a, v) + 4, v);
}

static void y_ticks(const struct scale *a, FILE *out)
{
    if (a->log) {
        for (int d = (int)ceil(a->lo); d <= (int)floor(a->hi); d++) y_tick(a, pow(10, d), out);
        return;
    }
    double step = pow(10, floor(log10(a->hi)));
    if (a->hi / step < 2.5)
        step /= 5;
    else if (a->hi / step < 5)
        step /= 2;
    for (int i = 0; i * step <= a->hi; i++) y_tick(a, i * step, out);
}

static void chart_axes(const struct kvl_reproduced *r, const struct scale *a, FILE *out)
{
    const struct kvl_published *p = r->published;
    y_ticks(a, out);
    for (size_t i = 0; i < a->n_x; i++)
        fprintf(out, "<text class=tick x=\"%.1f\" y=\"%d\" text-anchor=middle>%.7g</text>\n",
                at_x(a, a->x[i]), HEIGHT - BOTTOM + 18, a->x[i]);
    fprintf(out,
            "<text x=\"%d\" y=\"%d\" text-anchor=middle>%s of the paper</text>\n"
            "<text transform=\"translate(14 %d) rotate(-90)\" text-anchor=middle>%s</text>\n",
            (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_name(p), (TOP + HEIGHT - BOTTOM) / 2,
            p->measure->label);
}

/* One line of points, theirs or ours. */
static void chart_line(const struct kvl_reproduced *r, const struct scale *a, size_t serie,
                       bool ours, FILE *out)
{
    const struct kvl_published_series *s = &r->published->series[serie];
    struct kvl_interval v[KVL_PUBLISHED_X];
    for (size_t i = 0; i < s->n; i++)
        v[i] = ours ? kvl_published_ours(r->published, s, i, is_small(r), r->results)
                    : (struct kvl_interval){ s->y[i], KVL_NAN, KVL_NAN };
    fprintf(out, "<g class=\"serie c%zu %s\" data-serie=\"%zu\"><polyline points=\"",
            serie % COLORS, ours ? "ours" : "theirs", serie);
    for (size_t i = 0; i < s->n; i++)
        if (!isnan(v[i].mean))
            fprintf(out, "%.1f,%.1f ", at_x_of(a, s->x[i], serie), at_y(a, v[i].mean));
    fputs("\"/>\n", out);
    for (size_t i = 0; i < s->n; i++) {
        if (isnan(v[i].mean)) continue;
        double x = at_x_of(a, s->x[i], serie);
        if (!isnan(v[i].lo) && !isnan(v[i].hi) && (!a->log || v[i].lo > 0))
            fprintf(out, "<line class=bar x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", x, x,
                    at_y(a, v[i].lo), at_y(a, v[i].hi));
        fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\"><title>", x, at_y(a, v[i].mean));
        kvl_page_text(out, s->name);
        fprintf(out, ", %s: %g</title></circle>\n", ours ? "ours" : "published", v[i].mean);
    }
    fputs("</g>\n", out);
}

static void chart(const struct kvl_reproduced *r, FILE *out)
{
    const struct kvl_published *p = r->published;
    struct scale a = scale_of(r);
    fprintf(
        out,
        "<figure class=chart><figcaption>Dashed, hollow: published.  Solid: kvlab%s</figcaption>"
        "<svg viewBox=\"0 0 %d %d\" role=img>\n",
        is_small(r) ? ", small scale: the shape only" : "", WIDTH, HEIGHT);
    chart_axes(r, &a, out);
    for (size_t s = 0; s < p->n_series; s++) {
        chart_line(r, &a, s, false, out);
        chart_line(r, &a, s, true, out);
    }
    fputs("</svg>\n<ul class=legend>", out);
    for (size_t s = 0; s < p->n_series; s++) {
        fprintf(out, "<li class=\"c%zu\" data-serie=\"%zu\"><i class=dot></i>", s % COLORS, s);
        kvl_page_text(out, p->series[s].name);
        fputs("</li>", out);
    }
    fputs("</ul></figure>\n", out);
}

/* ---- page ------------------------------------------------------------------------------------ */

static void number_table(const struct kvl_reproduced *r, FILE *out)
{
    const struct kvl_published *p = r->published;
    int decimals = p->measure->decimals;
    fprintf(
        out,
        "<div class=wide><table><thead><tr><th>series</th><th>%s</th><th>theirs</th><th>ours</th>"
        "<th>from – to</th>%s</tr></thead><tbody>\n",
        x_name(p), is_small(r) ? "" : "<th>difference</th>");
    for (size_t s = 0; s < p->n_series; s++)
        for (size_t i = 0; i < p->series[s].n; i++) {
            char x[64];
            struct kvl_interval v =
                kvl_published_ours(p, &p->series[s], i, is_small(r), r->results);
            x_text(r, &p->series[s], i, x);
            fputs("<tr><th scope=row class=name>", out);
            kvl_page_text(out, p->series[s].name);
            fprintf(out, "</th><td>%s</td>", x);
            kvl_page_number(out, p->series[s].y[i], decimals);
            kvl_page_number(out, v.mean, decimals);
            if (isnan(v.lo) || isnan(v.hi))
                fputs("<td class=none>–</td>", out);
            else
                fprintf(out, "<td>%.*f–%.*f</td>", kvl_span_decimals(v.lo, v.hi, decimals), v.lo,
                        kvl_span_decimals(v.lo, v.hi, decimals), v.hi);
            if (!is_small(r)) kvl_page_number(out, v.mean - p->series[s].y[i], decimals);
            fputs("</tr>\n", out);
        }
    fputs("</tbody></table></div>\n", out);
}

static void setting(FILE *out, const char *name, const char *text)
{
    fputs("<dt>", out);
    kvl_page_text(out, name);
    fputs("</dt><dd>", out);
    kvl_page_text(out, text);
    fputs("</dd>\n", out);
}

static void settings_sweep(const struct kvl_reproduced *r, FILE *out)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (f) kvl_published_write(r->published, r->scale, NULL, f);
    if (f && fclose(f) == 0) kvl_page_text(out, text);
    free(text);
}

/* Theirs as the paper says, ours as the sweep says: a reader sees every setting that differs. */
static void settings(const struct kvl_reproduced *r, FILE *out)
{
    const struct kvl_published *p = r->published;
    const json_t *run = r->results->newest_run;
    fputs("<details class=card><summary>Settings: the paper's, and this run's</summary>\n"
          "<h4>The paper</h4><dl>\n",
          out);
    for (size_t i = 0; i < p->n_setup; i++) setting(out, p->setup[i].name, p->setup[i].text);
    fputs("</dl><h4>This run</h4><dl>\n", out);
    setting(out, "model", kvl_json_text(run, "model.name"));
    setting(out, "processor", kvl_json_text(run, "machine.cpu"));
    setting(out, "keys and values in", kvl_json_text(run, "store.kv_type"));
    setting(out, "build", kvl_json_text(run, "kvlab.git"));
    fputs("</dl><pre>", out);
    settings_sweep(r, out);
    fputs("</pre></details>\n", out);
}

static void scale_page(const struct kvl_reproduced *r, FILE *out)
{
    struct kvl_buf tasks = { 0 };
    fprintf(out, "<p class=note>%s.  ", scale_name(r));
    if (other_tasks(r, &tasks) == KVL_OK) scale_note(tasks.data, KVL_SHOW_HTML, out);
    fputs("</p>\n", out);
    kvl_buf_free(&tasks);
}

/* What it says of tasks of the small scale stands at its end, and is not of a real model's. */
static void note_page(const struct kvl_reproduced *r, FILE *out)
{
    const char *note = r->published->note, *end = strstr(note, "Small scale:");
    size_t n = r->scale == KVL_SCALE_REAL && end ? (size_t)(end - note) : strlen(note);
    char *text = n > 0 ? strndup(note, n) : NULL;
    if (!text) return;
    fputs("<p>", out);
    kvl_page_text(out, text);
    fputs("</p>\n", out);
    free(text);
}

static void section(const struct kvl_reproduced *r, FILE *out)
{
    static const char *const sources[][2] = {
        { "stated", "numbers as printed in the paper" },
        { "picture", "numbers read off a picture" },
        { "secondary", "numbers as another text tells them" },
    };
    const struct kvl_published *p = r->published;
    fprintf(out, "<section class=paper id=\"%s\"><h2>%s <small>", p->id, p->id);
    kvl_page_text(out, p->title);
    fputs("</small></h2>\n<p>", out);
    kvl_page_text(out, p->paper);
    fputs(", ", out);
    kvl_page_text(out, p->where);
    for (size_t i = 0; i < 3 && p->n_series; i++)
        if (!strcmp(p->source, sources[i][0])) fprintf(out, " (%s)", sources[i][1]);
    fputs(".  The paper's shape: ", out);
    kvl_page_text(out, p->expect);
    fputs("</p>\n", out);
    if (is_small(r)) scale_page(r, out);
    if (p->n_series) chart(r, out);
    if (p->n_series) number_table(r, out);
    if (p->note) note_page(r, out);
    for (size_t i = 0; i < p->n_figures; i++)
        fprintf(out, "<figure><img src=\"%s/%s.svg\" alt=\"figure %s\"></figure>\n", p->id,
                p->figure[i], p->figure[i]);
    settings(r, out);
    fputs("</section>\n", out);
}

int kvl_reproduced_page(const struct kvl_reproduced *r, size_t n, FILE *out, struct kvl_err *err)
{
    KVL_TRY(kvl_page_open("kvlab: papers and what it measures", out, err));
    fputs("<header><h1>Papers, and what kvlab measures</h1></header>\n<nav class=index><ul>\n",
          out);
    for (size_t i = 0; i < n; i++) {
        fprintf(out, "<li><a href=\"#%s\">%s</a> ", r[i].published->id, r[i].published->id);
        kvl_page_text(out, r[i].published->title);
        fputs("</li>\n", out);
    }
    fputs("</ul></nav><main>\n", out);
    for (size_t i = 0; i < n; i++) section(&r[i], out);
    return kvl_page_close(out, err);
}
