/* Which results a figure shows, and in which panel. */
#include "plot_layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is shown ------------------------------------------------------------------------- */

bool kvl_plot_in_list(const char *list, const char *name)
{
    size_t len = strlen(name);
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ",");
        if (n == len && memcmp(p, name, n) == 0) return true;
        p += n + (p[n] == ',');
    }
    return false;
}

static bool shown(const struct kvl_result *x, const struct kvl_figure *f,
                  const struct kvl_plot_filter *want)
{
    if (!f->by_length && !x->is_cell) return false;
    if (!f->by_length && x->is_text != f->texts) return false;
    if (f->by_length && isnan(x->decode.mean)) return false;
    if (want->task && strcmp(want->task, x->task) != 0) return false;
    if (want->protocol && x->is_cell && strcmp(want->protocol, x->protocol) != 0) return false;
    if (want->length_tok > 0 && want->length_tok != x->length_tok) return false;
    if (want->budget && !isnan(x->budget_tok) && strcmp(want->budget, x->budget) != 0) return false;
    return !want->policies || kvl_plot_in_list(want->policies, x->policy) ||
           kvl_plot_in_list(want->policies, x->label);
}

static int layout_push(struct kvl_plot_layout *l, const struct kvl_result *x)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        const struct kvl_result **grown = realloc(l->x, cap * sizeof *grown);
        if (!grown) return KVL_ENOMEM;
        l->x = grown;
        l->cap = cap;
    }
    l->x[l->n++] = x;
    return KVL_OK;
}

/* The results pushed since the last panel become one. */
static int layout_panel(struct kvl_plot_layout *l)
{
    if (l->n_panels == KVL_PLOT_MAX_PANELS) return KVL_EINVAL;
    l->begin[++l->n_panels] = l->n;
    return KVL_OK;
}

/* ---- a panel per block --------------------------------------------------------------------- */

static int blocks_layout(const struct kvl_result *const *x, size_t n, struct kvl_plot_layout *l)
{
    for (size_t i = 0; i < n; i++) {
        if (i && kvl_result_block_cmp(x[i - 1], x[i], 0)) KVL_TRY(layout_panel(l));
        KVL_TRY(layout_push(l, x[i]));
    }
    return n ? layout_panel(l) : KVL_OK;
}

/* ---- a grid of blocks ----------------------------------------------------------------------- */

enum { GRID_COLUMNS = 6 }; /* beside each other at most */

static const struct kvl_result *panel_of(const struct kvl_plot_layout *l, size_t p)
{
    return l->x[l->begin[p]];
}

/* From what the method knows most of to what it knows least of; others behind them. */
static int protocol_rank(const char *protocol)
{
    static const char *const names[] = { "question_in_prefill", "question_as_decode",
                                         "question_after_compress", "multi_turn" };
    int n = sizeof names / sizeof names[0], i = 0;
    while (i < n && strcmp(names[i], protocol) != 0) i++;
    return i;
}

/* Order of columns: by protocol, then by length. */
static int grid_cmp(const struct kvl_result *x, const struct kvl_result *y, bool protocols)
{
    int c = protocols ? protocol_rank(x->protocol) - protocol_rank(y->protocol) : 0;
    if (!c && protocols) c = strcmp(x->protocol, y->protocol);
    if (c) return c;
    return (x->length_tok > y->length_tok) - (x->length_tok < y->length_tok);
}

/* Columns of the grid, each as a panel that has it, in their order; how many. */
static size_t grid_columns(const struct kvl_plot_layout *l, bool protocols,
                           size_t column[KVL_PLOT_MAX_PANELS])
{
    size_t n = 0;
    for (size_t p = 0; p < l->n_panels; p++) {
        size_t at = 0;
        while (at < n && grid_cmp(panel_of(l, column[at]), panel_of(l, p), protocols) < 0) at++;
        if (at < n && grid_cmp(panel_of(l, column[at]), panel_of(l, p), protocols) == 0) continue;
        memmove(column + at + 1, column + at, (n - at) * sizeof *column);
        column[at] = p;
        n++;
    }
    return n;
}

void kvl_plot_grid(const struct kvl_plot_layout *l, struct kvl_plot_grid *out)
{
    size_t column[KVL_PLOT_MAX_PANELS], row[KVL_PLOT_MAX_PANELS], n_rows = 0;
    size_t n = grid_columns(l, true, column);
    bool protocols = n <= GRID_COLUMNS;
    if (!protocols) n = grid_columns(l, false, column);
    unsigned same = KVL_BLOCK_LENGTH | (protocols ? KVL_BLOCK_PROTOCOL : 0);
    *out = (struct kvl_plot_grid){ .n_columns = n };
    for (size_t p = 0; p < l->n_panels; p++) {
        size_t r = 0, c = 0;
        while (r < n_rows && kvl_result_block_cmp(panel_of(l, row[r]), panel_of(l, p), same)) r++;
        if (r == n_rows) row[n_rows++] = p;
        while (grid_cmp(panel_of(l, column[c]), panel_of(l, p), protocols)) c++;
        if (r * n + c >= KVL_PLOT_MAX_PANELS) {
            out->n = 0;
            return;
        }
        out->panel[r * n + c] = p + 1;
    }
    size_t all = n_rows * n;
    out->n = n > GRID_COLUMNS || all > KVL_PLOT_MAX_PANELS ? 0 : all;
}

/* Lengths beside each other where they are comparable, so that a row is one task and protocol. */
static size_t blocks_columns(const struct kvl_plot_layout *l)
{
    size_t n_lengths = 0;
    for (size_t p = 0; p < l->n_panels; p++) {
        bool first = true;
        for (size_t q = 0; q < p; q++)
            first &= l->x[l->begin[q]]->length_tok != l->x[l->begin[p]]->length_tok;
        n_lengths += first;
    }
    bool rows = n_lengths > 1 && n_lengths <= 4 && l->n_panels % n_lengths == 0;
    return rows ? n_lengths : 0;
}

/* ---- a panel per budget, over lengths ------------------------------------------------------ */

/* Number order with NaN first. */
static int number_cmp(double a, double b)
{
    if (isnan(a) || isnan(b)) return isnan(b) - isnan(a);
    return (a > b) - (a < b);
}

static int group_cmp(const struct kvl_result *x, const struct kvl_result *y)
{
    int c = kvl_result_set_cmp(x, y);
    return c ? c : kvl_result_setup_cmp(x, y);
}

static int budget_cmp(const struct kvl_result *x, const struct kvl_result *y)
{
    int c = number_cmp(x->budget_tok, y->budget_tok);
    return c ? c : strcmp(x->budget, y->budget);
}

static int length_order(const void *a, const void *b)
{
    const struct kvl_result *x = *(const struct kvl_result *const *)a;
    const struct kvl_result *y = *(const struct kvl_result *const *)b;
    int c = group_cmp(x, y);
    if (!c) c = budget_cmp(x, y);
    if (!c) c = (int)x->bound - (int)y->bound;
    if (!c) c = strcmp(x->label, y->label);
    return c ? c : number_cmp(x->length_tok, y->length_tok);
}

/* The panel of x[from .. to), of one budget; what has none (dense attention), x[group .. free), is
 * in the panel of every budget.  Protocols and tasks share their speed: one of each is kept. */
static int lengths_panel(const struct kvl_result *const *x, size_t group, size_t free, size_t from,
                         size_t to, struct kvl_plot_layout *l)
{
    for (size_t i = group; i < to; i++) {
        if (i >= free && i < from) continue;
        if (i > group && i != from && length_order(&x[i], &x[i - 1]) == 0) continue;
        KVL_TRY(layout_push(l, x[i]));
    }
    return layout_panel(l);
}

static int lengths_layout(const struct kvl_result **x, size_t n, struct kvl_plot_layout *l)
{
    qsort(x, n, sizeof *x, length_order);
    for (size_t group = 0, end; group < n; group = end) {
        for (end = group; end < n && group_cmp(x[group], x[end]) == 0;) end++;
        size_t free = group;
        while (free < end && isnan(x[free]->budget_tok)) free++;
        if (free == end) KVL_TRY(lengths_panel(x, group, free, end, end, l));
        for (size_t from = free, to; from < end; from = to) {
            for (to = from; to < end && budget_cmp(x[from], x[to]) == 0;) to++;
            KVL_TRY(lengths_panel(x, group, free, from, to, l));
        }
    }
    return KVL_OK;
}

/* ---- layout -------------------------------------------------------------------------------- */

static size_t layout_models(const struct kvl_plot_layout *l)
{
    size_t n = 0;
    for (size_t p = 0; p < l->n_panels; p++) {
        bool first = true;
        for (size_t q = 0; q < p; q++)
            first &= strcmp(l->x[l->begin[q]]->model, l->x[l->begin[p]]->model) != 0;
        n += first;
    }
    return n;
}

int kvl_plot_layout(const struct kvl_results *r, const struct kvl_figure *figure,
                    const struct kvl_plot_filter *filter, struct kvl_plot_layout *out,
                    struct kvl_err *err)
{
    struct kvl_plot_layout l = { 0 };
    const struct kvl_result **x = kvl_alloc(r->n, sizeof *x);
    size_t n = 0;
    for (size_t i = 0; i < r->n && x; i++)
        if (shown(&r->result[i], figure, filter)) x[n++] = &r->result[i];
    int rc = !x                  ? KVL_ENOMEM
             : figure->by_length ? lengths_layout(x, n, &l)
                                 : blocks_layout(x, n, &l);
    kvl_free(x);
    if (rc == KVL_OK) {
        size_t square = l.n_panels <= 1 ? 1 : l.n_panels <= 4 ? 2 : l.n_panels <= 9 ? 3 : 4;
        size_t columns = figure->by_length ? 0 : blocks_columns(&l);
        l.n_columns = columns ? columns : square;
        l.n_models = layout_models(&l);
        *out = l;
        return KVL_OK;
    }
    kvl_plot_layout_free(&l);
    if (rc == KVL_ENOMEM) return kvl_fail(err, rc, "no memory for a figure");
    return kvl_plot_too_many(figure, err);
}

int kvl_plot_too_many(const struct kvl_figure *figure, struct kvl_err *err)
{
    return kvl_fail(err, KVL_EINVAL,
                    "%s: more than %d panels; choose with --task, --protocol, --length, --budget, "
                    "--policy",
                    figure->name, KVL_PLOT_MAX_PANELS);
}

int kvl_plot_shown(const struct kvl_results *r, const struct kvl_figure *figure,
                   const struct kvl_plot_filter *filter, struct kvl_plot_layout *out,
                   struct kvl_err *err)
{
    struct kvl_plot_layout l = { 0 };
    int rc = KVL_OK;
    for (size_t i = 0; i < r->n && rc == KVL_OK; i++)
        if (shown(&r->result[i], figure, filter)) rc = layout_push(&l, &r->result[i]);
    if (rc != KVL_OK) kvl_plot_layout_free(&l);
    *out = l;
    return rc == KVL_OK ? KVL_OK : kvl_fail(err, rc, "no memory for a figure");
}

void kvl_plot_layout_free(struct kvl_plot_layout *l)
{
    free(l->x);
    *l = (struct kvl_plot_layout){ 0 };
}
