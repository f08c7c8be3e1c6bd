/* Bytes against what they cost: full attention with keys and values in fewer bits, policies that keep or read fewer
 * tokens, and both.  A block of results is two or four panels: accuracy of questions, KL and perplexity of texts, each over
 * the bytes that one sequence holds and over those that one token reads.
 *
 * Bytes are told as how many times fewer they are than those of full attention in f16 on the same contexts: so models of
 * every size have one axis, and the panel's title has the bytes. */
#include "plot.h"

#include "pairs.h"
#include "plot_layout.h"
#include "text_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is measured ------------------------------------------------------------------------- */

static double trade_held(const struct kvl_result *x)
{
    return x->kv_physical + (x->meta > 0 ? x->meta : 0);
}

static double trade_read(const struct kvl_result *x)
{
    return x->kv_read + (x->index_read > 0 ? x->index_read : 0);
}

static const struct {
    const char *name;
    double (*of)(const struct kvl_result *x);
} trade_bytes[] = { { "held", trade_held }, { "read per token", trade_read } };

struct trade_y {
    const char *name; /* of the axis; the script knows these words */
    bool texts, log;  /* log: nothing at or below zero is shown */
};
static const struct trade_y trade_ys[] = {
    { "right answers, %", false, false },
    { "KL to full attention in f16", true, true },
    { "perplexity by that in f16", true, true },
};

/* ---- series ----------------------------------------------------------------------------------- */

struct trade {
    const struct kvl_results *r;
    const struct kvl_result *const *x; /* of one block: [n] */
    size_t n;
    const struct kvl_result *base; /* full attention in f16 */
    const struct trade_y *y;
    double (*bytes)(const struct kvl_result *x);
    bool strict;
    struct kvl_chart *c;
};

/* Texts differ far more than what is done to them: text by text, against full attention in f16. */
static struct kvl_interval trade_ppl(const struct trade *t, const struct kvl_result *x)
{
    struct kvl_pairs p = { 0 };
    struct kvl_interval none = { KVL_NAN, KVL_NAN, KVL_NAN };
    if (x == t->base) return (struct kvl_interval){ 1, KVL_NAN, KVL_NAN };
    if (kvl_pairs(t->r, x, t->r, t->base, KVL_PAIR_SCORE, &p, NULL) != KVL_OK) return none;
    if (p.test.n == 0) none.mean = exp(x->nll.mean - t->base->nll.mean); /* a log without samples */
    if (p.test.n == 0) return none;
    return (struct kvl_interval){ exp(p.test.diff.mean), exp(p.test.diff.lo), exp(p.test.diff.hi) };
}

static struct kvl_interval trade_value(const struct trade *t, const struct kvl_result *x)
{
    struct kvl_interval v = t->strict ? x->strict : x->official;
    if (!t->y->texts) return (struct kvl_interval){ 100 * v.mean, 100 * v.lo, 100 * v.hi };
    return t->y == &trade_ys[1] ? x->kl : trade_ppl(t, x);
}

static void trade_point(const struct trade *t, const struct kvl_result *x, double at)
{
    struct kvl_interval v = trade_value(t, x);
    if (t->y->log && !(v.mean > 0)) return;
    if (t->y->log && !(v.lo > 0)) v.lo = v.mean;
    kvl_chart_point(t->c,
                    &(struct kvl_chart_point){ .x = at,
                                               .y = v.mean,
                                               .lo = v.lo,
                                               .hi = v.hi,
                                               .budget_tok = x->budget_tok > 0 ? x->budget_tok : 0,
                                               .n = x->n,
                                               .n_errors = t->bytes(x) });
}

static double trade_times(const struct trade *t, const struct kvl_result *x)
{
    return t->bytes(t->base) / t->bytes(x);
}

/* Full attention in f16: its level across the panel, with its interval. */
static void trade_level(const struct trade *t)
{
    double most = 1;
    for (size_t i = 0; i < t->n; i++)
        if (trade_times(t, t->x[i]) > most) most = trade_times(t, t->x[i]);
    kvl_chart_series(t->c, t->base->shown, 0);
    trade_point(t, t->base, 1);
    trade_point(t, t->base, most);
    kvl_chart_series_end(t->c);
}

static int by_times(const void *a, const void *b, void *user)
{
    double x = trade_times(user, *(const struct kvl_result *const *)a);
    double y = trade_times(user, *(const struct kvl_result *const *)b);
    return (x > y) - (x < y);
}

/* Full attention in fewer and fewer bits: one line through all types. */
static void trade_bits(struct trade *t, const struct kvl_result **room)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++)
        if (t->x[i]->bound == KVL_BOUND_FULL && t->x[i] != t->base) room[n++] = t->x[i];
    qsort_r(room, n, sizeof *room, by_times, t);
    if (n < 2) return;
    kvl_chart_series(t->c, "full, fewer bits", 1);
    for (size_t i = 0; i < n; i++) trade_point(t, room[i], trade_times(t, room[i]));
    kvl_chart_series_end(t->c);
}

/* One label: a policy with one type, over its budgets. */
static void trade_label(struct trade *t, size_t from, size_t to, const struct kvl_result **room)
{
    size_t n = 0;
    for (size_t i = from; i < to; i++) room[n++] = t->x[i];
    qsort_r(room, n, sizeof *room, by_times, t);
    kvl_chart_series(t->c, room[0]->shown, 2 + (int)room[0]->bound);
    for (size_t i = 0; i < n; i++) trade_point(t, room[i], trade_times(t, room[i]));
    kvl_chart_series_end(t->c);
}

/* ---- panels ------------------------------------------------------------------------------------ */

static void trade_panel(struct trade *t, const char *what, const struct kvl_result **room)
{
    const struct kvl_result *x = t->x[0];
    char title[400];
    snprintf(title, sizeof title, "%s%s\n%s, %.0f tokens%s%s\n1x: %s %s", x->model, x->set,
             x->task_label, x->length_tok, x->is_text ? "" : ", ", x->is_text ? "" : x->protocol,
             t->base ? kvl_bytes_text(t->bytes(t->base)).s : "unknown", what);
    kvl_chart_panel(t->c, title);
    kvl_chart_y_tick(t->c, t->y->name);
    /* For tables that are made of the data. */
    t->c->no_memory |=
        kvl_buf_printf(&t->c->table, "# shows %s; %s; %s%s, %s, %.0f tokens%s%s; %s\n", t->y->name,
                       what, x->model, x->set, x->task_label, x->length_tok, x->is_text ? "" : ", ",
                       x->is_text ? "" : x->protocol,
                       t->base ? kvl_bytes_text(trade_held(t->base)).s : "-") != KVL_OK;
    if (t->base) {
        trade_level(t);
        trade_bits(t, room);
        for (size_t i = 0, end; i < t->n; i = end) {
            for (end = i + 1; end < t->n && strcmp(t->x[i]->label, t->x[end]->label) == 0;) end++;
            if (t->x[i] != t->base) trade_label(t, i, end, room);
        }
    }
    kvl_chart_panel_end(t->c, t->base ? "no value to show" : "full attention in f16 was not run");
}

/* The panels of one block. */
static void trade_block(struct trade *t, const struct kvl_result **room)
{
    t->base = NULL;
    for (size_t i = 0; i < t->n && !t->base; i++)
        if (t->x[i]->bound == KVL_BOUND_FULL && strcmp(t->x[i]->kv_type, "f16") == 0)
            t->base = t->x[i];
    for (size_t y = 0; y < sizeof trade_ys / sizeof *trade_ys; y++) {
        t->y = &trade_ys[y];
        if (t->y->texts != t->x[0]->is_text) continue;
        for (size_t b = 0; b < sizeof trade_bytes / sizeof *trade_bytes; b++) {
            t->bytes = trade_bytes[b].of;
            trade_panel(t, trade_bytes[b].name, room);
        }
    }
}

/* A row of panels is of one model. */
static void trade_fill_row(struct kvl_chart *c)
{
    while (c->n_panels % c->n_columns) {
        kvl_chart_blank(c);
        kvl_chart_y_tick(c, "");
    }
}

/* "100 questions in 25 contexts", of points that differ from the fewest on. */
static int trade_amount(const struct kvl_plot_layout *l, struct kvl_buf *t)
{
    double n[2] = { INFINITY, 0 }, contexts[2] = { INFINITY, 0 };
    for (size_t i = 0; i < l->n; i++) {
        if (!(l->x[i]->n > 0)) continue;
        n[0] = fmin(n[0], l->x[i]->n), n[1] = fmax(n[1], l->x[i]->n);
        contexts[0] = fmin(contexts[0], l->x[i]->n_contexts);
        contexts[1] = fmax(contexts[1], l->x[i]->n_contexts);
    }
    if (!(n[1] > 0)) return KVL_OK;
    if (t->len) KVL_TRY(kvl_buf_adds(t, ", "));
    if (n[0] < n[1]) KVL_TRY(kvl_buf_printf(t, "%.0f to ", n[0]));
    KVL_TRY(kvl_buf_printf(t, "%.0f %s", n[1], l->x[0]->is_text ? "texts" : "questions"));
    if (l->x[0]->is_text) return KVL_OK;
    KVL_TRY(kvl_buf_adds(t, " in "));
    if (contexts[0] < contexts[1]) KVL_TRY(kvl_buf_printf(t, "%.0f to ", contexts[0]));
    return kvl_buf_printf(t, "%.0f contexts", contexts[1]);
}

static void trade_subtitle(const struct kvl_plot_layout l[2], const char *note, struct kvl_chart *c)
{
    int rc = kvl_buf_adds(&c->subtitle, "");
    for (int k = 0; k < 2 && rc == KVL_OK; k++) rc = trade_amount(&l[k], &c->subtitle);
    if (rc == KVL_OK) rc = kvl_buf_printf(&c->subtitle, " per point%s", note);
    c->no_memory |= rc != KVL_OK;
}

/* Questions and texts of a model, in the order of tables. */
static int trade_results(const struct kvl_figure *f, const struct kvl_results *r,
                         const struct kvl_plot_filter *want, struct kvl_plot_layout out[2],
                         struct kvl_err *err)
{
    struct kvl_figure some = *f;
    KVL_TRY(kvl_plot_shown(r, &some, want, &out[0], err));
    some.texts = true;
    return kvl_plot_shown(r, &some, want, &out[1], err);
}

static void trade_blocks(struct trade *t, const struct kvl_plot_layout *l, const char *model,
                         const struct kvl_result **room)
{
    for (size_t from = 0, to; from < l->n && !t->c->no_memory; from = to) {
        for (to = from + 1; to < l->n && !kvl_result_block_cmp(l->x[from], l->x[to], 0);) to++;
        if (strcmp(l->x[from]->model, model) != 0) continue;
        t->x = l->x + from;
        t->n = to - from;
        trade_block(t, room);
    }
}

int kvl_chart_trade(const struct kvl_figure *f, const struct kvl_results *r,
                    const struct kvl_plot_filter *want, struct kvl_chart *out, struct kvl_err *err)
{
    struct kvl_plot_layout l[2] = { { 0 }, { 0 } };
    struct trade t = { .r = r, .strict = want->strict, .c = out };
    int rc = trade_results(f, r, want, l, err);
    const struct kvl_result **room = kvl_alloc(r->n + 1, sizeof *room);
    if (rc == KVL_OK && !room) rc = kvl_fail(err, KVL_ENOMEM, "no memory for a figure");
    if (!out->n_columns) out->n_columns = 4;
    out->panel_w = 250;
    out->panel_h = 210;
    out->gap_x = 80;
    for (int k = 0; rc == KVL_OK && k < 2; k++)
        for (size_t i = 0; i < l[k].n; i++) {
            const char *model = l[k].x[i]->model;
            bool seen = i > 0 && strcmp(l[k].x[i - 1]->model, model) == 0;
            for (size_t j = 0; k == 1 && j < l[0].n; j++)
                seen |= strcmp(l[0].x[j]->model, model) == 0;
            if (seen) continue;
            for (int part = 0; part < 2; part++) trade_blocks(&t, &l[part], model, room);
            trade_fill_row(out);
        }
    if (rc == KVL_OK) trade_subtitle(l, f->note, out);
    kvl_free(room);
    for (int k = 0; k < 2; k++) kvl_plot_layout_free(&l[k]);
    return rc;
}
