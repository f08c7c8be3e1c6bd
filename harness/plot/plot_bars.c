/* The parts of a decode step, stacked: a bar per policy, a panel per length. */
#include "plot.h"

#include "plot_layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *field, *label;
} parts[] = {
    { "attend_ns", "attention" }, { "select_ns", "selection" },       { "meta_ns", "metadata" },
    { "evict_ns", "eviction" },   { "rest_ns", "rest of the model" },
};
enum { N_PARTS = sizeof parts / sizeof parts[0] };

/* One bar: a policy at a length and budget, the mean over its speed records. */
struct bar {
    const json_t *first; /* record */
    const char *policy;
    char name[160];
    double length_tok, budget_tok;
    double ms[N_PARTS];
    size_t n, tick; /* records; its category */
};

static double part_ms(const json_t *record, const char *field)
{
    double ns = kvl_json_number(record, field);
    size_t steps = json_array_size(json_object_get(record, "step_ns"));
    return steps ? ns / (double)steps / 1e6 : (double)NAN;
}

static const char *bar_kv(const struct kvl_results *r, const json_t *record)
{
    return kvl_result_kv_type(r, kvl_json_text(record, "run"));
}

static bool bar_of(const struct kvl_results *r, const struct bar *b, const json_t *record)
{
    const char *const same[] = { "policy", "options", "budget", "prefill", "task" };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (strcmp(kvl_json_text(b->first, same[i]), kvl_json_text(record, same[i])) != 0)
            return false;
    if (strcmp(bar_kv(r, b->first), bar_kv(r, record)) != 0) return false;
    return b->length_tok == kvl_json_number(record, "length_tok");
}

/* The label that tables give it. */
static const char *bar_label(const struct kvl_results *r, const json_t *record)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct kvl_result *x = &r->result[i];
        if (x->length_tok == kvl_json_number(record, "length_tok") && x->n_speed > 0 &&
            strcmp(x->policy, kvl_json_text(record, "policy")) == 0 &&
            strcmp(x->kv_type, bar_kv(r, record)) == 0 &&
            x->version == json_integer_value(json_object_get(record, "policy_version")) &&
            strcmp(x->options, kvl_json_text(record, "options")) == 0 &&
            strcmp(x->prefill, kvl_json_text(record, "prefill")) == 0)
            return x->shown;
    }
    return kvl_json_text(record, "policy");
}

static bool bar_wanted(const struct kvl_plot_filter *want, const json_t *record)
{
    double length = kvl_json_number(record, "length_tok");
    if (isnan(kvl_json_number(record, parts[0].field))) return false; /* timed whole */
    if (want->length_tok > 0 && want->length_tok != length) return false;
    if (want->task && strcmp(want->task, kvl_json_text(record, "task")) != 0) return false;
    if (want->policies && !kvl_plot_in_list(want->policies, kvl_json_text(record, "policy")))
        return false;
    return !want->budget || isnan(kvl_json_number(record, "budget_tok")) ||
           strcmp(want->budget, kvl_json_text(record, "budget")) == 0;
}

static size_t bars_collect(const struct kvl_results *r, const struct kvl_plot_filter *want,
                           struct bar *bar)
{
    size_t n = 0, i;
    json_t *record;
    json_array_foreach(r->speeds, i, record)
    {
        size_t b = 0;
        if (!bar_wanted(want, record)) continue;
        while (b < n && !bar_of(r, &bar[b], record)) b++;
        if (b == n) {
            bar[n] = (struct bar){ .first = record,
                                   .policy = kvl_json_text(record, "policy"),
                                   .length_tok = kvl_json_number(record, "length_tok"),
                                   .budget_tok = kvl_json_number(record, "budget_tok") };
            const char *budget = kvl_json_text(record, "budget");
            bool has = !isnan(bar[n].budget_tok);
            snprintf(bar[n].name, sizeof bar[n].name, "%s%s%s", bar_label(r, record),
                     has ? " " : "", has ? budget : "");
            n++;
        }
        for (size_t p = 0; p < N_PARTS; p++) bar[b].ms[p] += part_ms(record, parts[p].field);
        bar[b].n++;
    }
    return n;
}

static int name_order(const struct bar *x, const struct bar *y)
{
    int c = (int)kvl_bound_of(x->policy) - (int)kvl_bound_of(y->policy);
    return c ? c : strcmp(x->name, y->name);
}

static int bars_by_name(const void *a, const void *b)
{
    return name_order(a, b);
}

static int bars_by_length(const void *a, const void *b)
{
    const struct bar *x = a, *y = b;
    if (x->length_tok != y->length_tok) return x->length_tok < y->length_tok ? -1 : 1;
    return name_order(x, y);
}

enum { NAME_LETTER = 7 /* pixels, of the names below the bars */ };

/* Equal names are one category in all panels. */
static void bars_ticks(struct kvl_chart *c, struct bar *bar, size_t n)
{
    if (n > 1) qsort(bar, n, sizeof *bar, bars_by_name);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || strcmp(bar[i].name, bar[i - 1].name) != 0) kvl_chart_x_tick(c, bar[i].name);
        c->names_h = KVL_MAX(c->names_h, NAME_LETTER * strlen(bar[i].name));
        bar[i].tick = c->n_x_ticks;
    }
    if (n > 1) qsort(bar, n, sizeof *bar, bars_by_length);
}

static double bar_ms(const struct bar *b)
{
    double sum = 0;
    for (size_t p = 0; p < N_PARTS; p++) sum += b->ms[p] / (double)b->n;
    return sum;
}

/* How many times as fast as full at its length; 0 where that was not timed. */
static double bar_by_full(const struct bar *bar, size_t from, size_t to, const struct bar *b)
{
    for (size_t i = from; i < to; i++)
        if (kvl_bound_of(bar[i].policy) == KVL_BOUND_FULL) return bar_ms(&bar[i]) / bar_ms(b);
    return 0;
}

/* Bars of one length: piece p lies from lo to hi; above the last one stands how fast it is by full.
 * Returns whether any bar has that. */
static bool bars_panel(struct kvl_chart *c, const struct bar *bar, size_t from, size_t to)
{
    char title[96];
    bool by_full = false;
    snprintf(title, sizeof title, "%.0f tokens", bar[from].length_tok);
    kvl_chart_panel(c, title);
    for (size_t p = 0; p < N_PARTS; p++) {
        kvl_chart_series(c, parts[p].label, (int)p);
        for (size_t i = from; i < to; i++) {
            double below = 0, ms = bar[i].ms[p] / (double)bar[i].n;
            for (size_t q = 0; q < p; q++) below += bar[i].ms[q] / (double)bar[i].n;
            double times = p + 1 == N_PARTS ? bar_by_full(bar, from, to, &bar[i]) : 0;
            by_full |= times > 0;
            kvl_chart_point(c, &(struct kvl_chart_point){
                                   .x = (double)bar[i].tick,
                                   .y = ms,
                                   .lo = below,
                                   .hi = below + ms,
                                   .budget_tok = isnan(bar[i].budget_tok) ? 0 : bar[i].budget_tok,
                                   .n = (double)bar[i].n,
                                   .n_errors = times });
        }
        kvl_chart_series_end(c);
    }
    kvl_chart_panel_end(c, "no value to show");
    return by_full;
}

/* first NULL: there is no bar. */
static void bars_subtitle(const struct kvl_results *r, const json_t *first, bool by_full,
                          struct kvl_chart *out)
{
    struct kvl_buf *t = &out->subtitle;
    int rc = KVL_OK;
    if (first)
        rc = kvl_buf_printf(
            t, "%s on %s.  %s, %.0f threads.  ", kvl_result_model(r, kvl_json_text(first, "run")),
            kvl_json_text(first, "device"), kvl_plot_machine(r, kvl_json_text(first, "host")),
            kvl_json_number(first, "threads"));
    rc |= kvl_buf_printf(t,
                         "Mean over the timed steps of all repeats; %seach panel has its own "
                         "scale.%s",
                         by_full ? "above: speed by that of full; " : "",
                         r->n_setups > 1 ? "  SEVERAL MACHINES OR THREAD COUNTS." : "");
    out->no_memory |= rc != KVL_OK;
}

int kvl_chart_breakdown(const struct kvl_figure *f, const struct kvl_results *r,
                        const struct kvl_plot_filter *want, struct kvl_chart *out,
                        struct kvl_err *err)
{
    size_t n_records = json_array_size(r->speeds);
    struct bar *bar = kvl_alloc(n_records, sizeof *bar);
    if (!bar) return kvl_fail(err, KVL_ENOMEM, "no memory for a figure");
    size_t n = bars_collect(r, want, bar);
    bool by_full = false;
    bars_ticks(out, bar, n);
    for (size_t from = 0, to; from < n && !out->no_memory; from = to) {
        for (to = from + 1; to < n && bar[to].length_tok == bar[from].length_tok;) to++;
        by_full |= bars_panel(out, bar, from, to);
    }
    bars_subtitle(r, n ? bar[0].first : NULL, by_full, out);
    kvl_free(bar);
    (void)f;
    return KVL_OK;
}
