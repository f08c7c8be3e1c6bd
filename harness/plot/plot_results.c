/* Charts over the results of a log: lines of policies, accuracy over length and depth. */
#include "plot.h"

#include "plot_layout.h"
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- lines: a series per policy ---------------------------------------------------------------- */

struct lines {
    const struct kvl_figure *f;
    const struct kvl_results *r;
    const struct kvl_plot_filter *want;
    struct kvl_plot_layout layout;
    struct kvl_chart *c;
    bool setups; /* speed of several machines or thread counts */
};

/* One point; x of `full` is where its line shall pass. */
static void row_add(const struct lines *l, const struct kvl_result *x, double at)
{
    struct kvl_interval y = l->f->y(x, l->want->strict);
    double scale = l->f->y_axis == KVL_AXIS_PERCENT ? 100 : 1;
    if (l->f->x_axis == KVL_AXIS_LOG && !(at > 0)) return;
    kvl_chart_point(
        l->c, &(struct kvl_chart_point){ .x = at,
                                         .y = scale * y.mean,
                                         .lo = scale * y.lo,
                                         .hi = scale * y.hi,
                                         .budget_tok = isnan(x->budget_tok) ? 0 : x->budget_tok,
                                         .n = l->f->by_length ? (double)x->n_speed : x->n,
                                         .n_errors = isnan(x->n_errors) ? 0 : x->n_errors });
}

static void span_add(double *min, double *max, double v)
{
    if (!isfinite(v) || v <= 0) return;
    *min = *min > 0 ? fmin(*min, v) : v;
    *max = fmax(*max, v);
}

/* The x of all but `full` in a panel, so that its line spans them. */
static void panel_span(const struct lines *l, size_t from, size_t to, double *min, double *max)
{
    *min = *max = 0;
    for (size_t i = from; i < to; i++)
        if (l->layout.x[i]->bound != KVL_BOUND_FULL) span_add(min, max, l->f->x(l->layout.x[i]));
    if (*min == 0)
        for (size_t i = from; i < to; i++) span_add(min, max, l->f->x(l->layout.x[i]));
    double room = l->f->x_axis == KVL_AXIS_LOG ? 1.15 : 1;
    *min /= room;
    *max *= room;
}

/* The points x[from .. to) of one policy in one panel. */
static void series_add(const struct lines *l, size_t from, size_t to, double min, double max)
{
    const struct kvl_result *x = l->layout.x[from];
    bool level = x->bound == KVL_BOUND_FULL && !l->f->by_length;
    kvl_chart_series(l->c, x->shown, (int)x->bound);
    for (size_t i = from; i < to; i++) {
        if (level) row_add(l, l->layout.x[i], min);
        row_add(l, l->layout.x[i], level ? max : l->f->x(l->layout.x[i]));
    }
    kvl_chart_series_end(l->c);
}

static int block_title(const struct kvl_result *x, size_t n_models, struct kvl_buf *t)
{
    if (n_models > 1 || x->set[0]) KVL_TRY(kvl_buf_printf(t, "%s%s\n", x->model, x->set));
    return KVL_OK;
}

static void lines_title(const struct lines *l, size_t from, size_t to, struct kvl_buf *t)
{
    const struct kvl_result *x = l->layout.x[from], *last = l->layout.x[to - 1];
    bool setup = l->f->by_length && l->setups && x->is_cell; /* else the set has it */
    int rc = block_title(x, l->layout.n_models, t);
    if (rc == KVL_OK && l->f->by_length) /* the last one has the budget: dense runs come first */
        rc = isnan(last->budget_tok) ? kvl_buf_adds(t, "no budget")
                                     : kvl_buf_printf(t, "budget %s", last->budget);
    else if (rc == KVL_OK)
        rc = kvl_buf_printf(t, "%s, %.0f tokens\n%s", x->task_label, x->length_tok, x->protocol);
    if (rc == KVL_OK && setup) rc = kvl_buf_printf(t, ", %.0f threads on %s", x->threads, x->host);
    if (rc == KVL_OK && !l->f->by_length && !isnan(x->depth))
        rc = kvl_buf_printf(t, ", depth %g", x->depth);
    l->c->no_memory |= rc != KVL_OK;
}

static double failed_samples(const struct kvl_result *const *x, size_t from, size_t to)
{
    double failed = 0;
    for (size_t i = from; i < to; i++)
        if (!isnan(x[i]->n_errors)) failed += x[i]->n_errors;
    return failed;
}

/* lack: why there is no value; NULL: not known. */
static void panel_end(struct kvl_chart *c, const char *lack, double failed)
{
    char note[96] = "no value to show";
    c->lack = lack;
    c->n_failed += (size_t)failed;
    if (lack) snprintf(note, sizeof note, "no value to show:\n%s", lack);
    if (failed > 0)
        snprintf(note, sizeof note, "no score: all %.0f sample%s failed", failed,
                 failed > 1 ? "s" : "");
    kvl_chart_panel_end(c, note);
}

static void lines_panel(const struct lines *l, size_t from, size_t to)
{
    double min, max;
    struct kvl_buf title = { 0 };
    panel_span(l, from, to, &min, &max);
    lines_title(l, from, to, &title);
    if (!l->c->no_memory) kvl_chart_panel(l->c, title.data);
    kvl_buf_free(&title);
    for (size_t i = from, end; i < to && !l->c->no_memory; i = end) {
        for (end = i + 1; end < to; end++)
            if (strcmp(l->layout.x[i]->label, l->layout.x[end]->label) != 0) break;
        series_add(l, i, end, min, max);
    }
    const char *lack = l->f->lack ? l->f->lack(l->r, l->layout.x + from, to - from) : NULL;
    panel_end(l->c, lack, failed_samples(l->layout.x, from, to));
}

const char *kvl_plot_machine(const struct kvl_results *r, const char *host)
{
    const char *name = host;
    for (size_t i = 0; i < json_array_size(r->runs); i++) {
        const json_t *run = json_array_get(r->runs, i);
        if (strcmp(kvl_json_text(run, "machine.host"), host) != 0) continue;
        const char *cpu = kvl_json_text(run, "machine.cpu"), *gpu = kvl_json_text(run, "gpu.name");
        name = *gpu ? gpu : *cpu ? cpu : name;
    }
    return name;
}

/* Each reason once, with how often it stopped a cell: a line each below the figure. */
static int errors_text(const struct kvl_results *r, struct kvl_buf *foot)
{
    enum { MAX_REASONS = 8 };
    size_t n = json_array_size(r->errors), shown = 0, more = 0;
    if (!n) return KVL_OK;
    KVL_TRY(kvl_buf_printf(foot, "Errors in the log: %zu.", n));
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(r->errors, i);
        const char *why = kvl_json_text(e, "message"), *policy = kvl_error_policy(e);
        size_t same = kvl_errors_same(r->errors, i);
        if (!same) continue;
        if (shown++ < MAX_REASONS)
            KVL_TRY(kvl_buf_printf(foot, "\n%zu × %s: %s%s%.*s", same, kvl_json_text(e, "status"),
                                   policy, *policy ? ": " : "", (int)strcspn(why, "\n"), why));
        else
            more++;
    }
    if (more) KVL_TRY(kvl_buf_printf(foot, "\n%zu more reasons: kvlab report has all.", more));
    return KVL_OK;
}

/* How many questions or texts there are: of points that differ, from the fewest on; what is not finished says so. */
static int subtitle_n(const struct kvl_plot_layout *l, const char *bars, struct kvl_buf *t)
{
    double n[2] = { INFINITY, 0 }, contexts[2] = { INFINITY, 0 };
    const struct kvl_result *some = NULL;
    bool unfinished = false;
    for (size_t i = 0; i < l->n; i++) {
        const struct kvl_result *x = l->x[i];
        if (!(x->n > 0)) continue;
        some = x;
        unfinished |= !isnan(x->n_planned);
        n[0] = fmin(n[0], x->n), n[1] = fmax(n[1], x->n);
        contexts[0] = fmin(contexts[0], x->n_contexts);
        contexts[1] = fmax(contexts[1], x->n_contexts);
    }
    if (!some) return KVL_OK;
    bool range = n[0] < n[1];
    if (range) KVL_TRY(kvl_buf_printf(t, "%.0f to ", n[0]));
    KVL_TRY(kvl_buf_printf(t, "%.0f %s", n[1], some->is_text ? "texts" : "questions"));
    if (!some->is_text && contexts[0] < contexts[1])
        KVL_TRY(kvl_buf_printf(t, " in %.0f to %.0f contexts", contexts[0], contexts[1]));
    else if (!some->is_text)
        KVL_TRY(kvl_buf_printf(t, " in %.0f contexts", contexts[1]));
    return kvl_buf_printf(t, " per point%s%s", unfinished ? ", not finished" : "", bars);
}

void kvl_plot_subtitle(const struct kvl_plot_layout *l, const struct kvl_results *r, bool speed,
                       const char *bars, struct kvl_chart *c)
{
    struct kvl_buf *t = &c->subtitle;
    const struct kvl_result *x = l->n ? l->x[0] : NULL;
    for (size_t i = 0; i < l->n && !(x->n > 0); i++) x = l->x[i];
    int rc = kvl_buf_adds(t, "");
    if (x && l->n_models == 1) rc |= kvl_buf_printf(t, "%s on %s.  ", x->model, x->device);
    if (x && speed && x->host[0])
        rc |= kvl_buf_printf(t, "%s, %.0f threads.  ", kvl_plot_machine(r, x->host), x->threads);
    if (x && speed)
        rc |= kvl_buf_adds(t, bars);
    else
        rc |= subtitle_n(l, bars, t);
    if (c->n_failed)
        rc |= kvl_buf_printf(t, "  %zu sample%s failed.", c->n_failed, c->n_failed == 1 ? "" : "s");
    rc |= errors_text(r, &c->foot);
    if (r->n_setups > 1 && speed) rc |= kvl_buf_adds(t, "  SEVERAL MACHINES OR THREAD COUNTS.");
    c->no_memory |= rc != KVL_OK;
}

int kvl_chart_lines(const struct kvl_figure *f, const struct kvl_results *r,
                    const struct kvl_plot_filter *want, struct kvl_chart *out, struct kvl_err *err)
{
    struct lines l = { .f = f, .r = r, .want = want, .c = out, .setups = r->n_setups > 1 };
    KVL_TRY(kvl_plot_layout(r, f, want, &l.layout, err));
    struct kvl_plot_grid grid = { 0 };
    /* Columns that were asked for are filled one after the other. */
    if (!f->by_length && !out->n_columns) kvl_plot_grid(&l.layout, &grid);
    for (size_t p = 0; p < (grid.n ? grid.n : l.layout.n_panels) && !out->no_memory; p++) {
        size_t at = grid.n ? grid.panel[p] : p + 1;
        if (at)
            lines_panel(&l, l.layout.begin[at - 1], l.layout.begin[at]);
        else
            kvl_chart_blank(out);
    }
    out->n_columns = grid.n ? grid.n_columns : l.layout.n_columns;
    out->tail = f->tail * l.layout.n_panels;
    kvl_plot_subtitle(&l.layout, r, f->by_length, f->note, out);
    kvl_plot_layout_free(&l.layout);
    return KVL_OK;
}

/* ---- accuracy over length and depth: a panel per policy ----------------------------------------- */

/* Different values of a field, ascending. */
struct values {
    double v[64];
    size_t n;
};

static void values_add(struct values *s, double v)
{
    size_t at = 0;
    while (at < s->n && s->v[at] < v) at++;
    if (isnan(v) || (at < s->n && s->v[at] == v) || s->n == sizeof s->v / sizeof s->v[0]) return;
    memmove(s->v + at + 1, s->v + at, (s->n - at) * sizeof *s->v);
    s->v[at] = v;
    s->n++;
}

static double values_find(const struct values *s, double v)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->v[i] == v) return (double)(i + 1);
    return (double)NAN;
}

/* Policies first, so that one panel shows all lengths and depths of one. */
static int depths_order(const void *a, const void *b)
{
    const struct kvl_result *x = *(const struct kvl_result *const *)a;
    const struct kvl_result *y = *(const struct kvl_result *const *)b;
    int c = kvl_result_block_cmp(x, y, KVL_BLOCK_LENGTH | KVL_BLOCK_DEPTH);
    if (!c) c = (int)x->bound - (int)y->bound;
    if (!c) c = strcmp(x->label, y->label);
    if (!c) c = strcmp(x->budget, y->budget);
    return c ? c : (x->length_tok > y->length_tok) - (x->length_tok < y->length_tok);
}

static bool depths_same(const struct kvl_result *x, const struct kvl_result *y)
{
    return kvl_result_block_cmp(x, y, KVL_BLOCK_LENGTH | KVL_BLOCK_DEPTH) == 0 &&
           strcmp(x->label, y->label) == 0 && strcmp(x->budget, y->budget) == 0;
}

static void depths_ticks(struct kvl_chart *c, const struct values *length,
                         const struct values *depth)
{
    char name[32];
    for (size_t i = 0; i < length->n; i++) {
        bool kilo = length->v[i] >= 1024 && fmod(length->v[i], 1024) == 0;
        snprintf(name, sizeof name, kilo ? "%.0fK" : "%.0f",
                 kilo ? length->v[i] / 1024 : length->v[i]);
        kvl_chart_x_tick(c, name);
    }
    for (size_t i = 0; i < depth->n; i++) {
        snprintf(name, sizeof name, "%.0f", 100 * depth->v[i]);
        kvl_chart_y_tick(c, name);
    }
}

static void depths_panel(struct kvl_chart *c, const struct kvl_result *const *x, size_t from,
                         size_t to, const struct values *length, const struct values *depth,
                         bool strict)
{
    char title[256];
    bool dense = isnan(x[from]->budget_tok);
    snprintf(title, sizeof title, "%s%s%s\n%s", x[from]->shown, dense ? "" : ", budget ",
             dense ? "" : x[from]->budget, x[from]->protocol);
    kvl_chart_panel(c, title);
    kvl_chart_series(c, x[from]->shown, (int)x[from]->bound);
    for (size_t i = from; i < to; i++) {
        struct kvl_interval y = strict ? x[i]->strict : x[i]->official;
        kvl_chart_point(c, &(struct kvl_chart_point){ .x = values_find(length, x[i]->length_tok),
                                                      .y = values_find(depth, x[i]->depth),
                                                      .lo = 100 * y.mean,
                                                      .hi = x[i]->length_tok,
                                                      .budget_tok = x[i]->depth,
                                                      .n = x[i]->n,
                                                      .n_errors = x[i]->n_errors });
    }
    kvl_chart_series_end(c);
    panel_end(c, NULL, failed_samples(x, from, to));
}

int kvl_chart_depths(const struct kvl_figure *f, const struct kvl_results *r,
                     const struct kvl_plot_filter *want, struct kvl_chart *out, struct kvl_err *err)
{
    struct kvl_plot_layout l = { 0 };
    struct values length = { 0 }, depth = { 0 };
    KVL_TRY(kvl_plot_shown(r, f, want, &l, err));
    size_t n = 0;
    for (size_t i = 0; i < l.n; i++)
        if (!isnan(l.x[i]->depth) && isfinite(l.x[i]->official.mean)) l.x[n++] = l.x[i];
    l.n = n;
    for (size_t i = 0; i < n; i++) {
        values_add(&length, l.x[i]->length_tok);
        values_add(&depth, l.x[i]->depth);
    }
    if (n > 1) qsort(l.x, n, sizeof *l.x, depths_order);
    depths_ticks(out, &length, &depth);
    for (size_t from = 0, to; from < n && !out->no_memory; from = to) {
        for (to = from + 1; to < n && depths_same(l.x[from], l.x[to]);) to++;
        depths_panel(out, l.x, from, to, &length, &depth, want->strict);
    }
    l.n_models = 1;
    kvl_plot_subtitle(&l, r, false, f->note, out);
    kvl_plot_layout_free(&l);
    return KVL_OK;
}
