/* The page: its parts in order. */
#include "page.h"

#include "data_home.h"
#include "page_parts.h"
#include "report.h"
#include "results_amount.h"

#include <stdlib.h>
#include <string.h>

enum { PART_LIMIT = 1 << 20 };

struct page {
    const struct kvl_results *r;
    const struct kvl_registry *registry;
    struct kvl_summary *group; /* [n_groups] */
    size_t n_groups;
    const char *up; /* the index; NULL: none */
    FILE *out;
    struct kvl_err *err;
};

/* ---- head ------------------------------------------------------------------------------------ */

/* A file of plots/ as it is. */
static int page_include(const char *name, FILE *out, struct kvl_err *err)
{
    char home[1200], path[1400];
    struct kvl_buf text = { 0 };
    KVL_TRY(kvl_home("plots", name, home, sizeof home, err));
    snprintf(path, sizeof path, "%s/%s", home, name);
    KVL_TRY(kvl_read_file(path, PART_LIMIT, &text, err));
    fwrite(text.data, 1, text.len, out);
    kvl_buf_free(&text);
    return KVL_OK;
}

int kvl_page_open(const char *title, FILE *out, struct kvl_err *err)
{
    fputs("<!doctype html>\n<html lang=en><head><meta charset=utf-8>\n"
          "<meta name=viewport content=\"width=device-width, initial-scale=1\">\n<title>",
          out);
    kvl_page_text(out, title);
    fputs("</title>\n<style>\n", out);
    KVL_TRY(page_include("report.css", out, err));
    fputs("</style></head><body>\n", out);
    return KVL_OK;
}

int kvl_page_close(FILE *out, struct kvl_err *err)
{
    fputs("</main>\n<script>\n", out);
    KVL_TRY(page_include("report.js", out, err));
    fputs("</script></body></html>\n", out);
    return KVL_OK;
}

static void page_model(const struct page *p, size_t group)
{
    const struct kvl_result *x = p->group[group].cell[0];
    kvl_page_text(p->out, x->model[0] ? x->model : "unknown model");
    kvl_page_text(p->out, x->set);
    fputs(" on ", p->out);
    kvl_page_text(p->out, x->device[0] ? x->device : "?");
}

/* A task once, with its protocols behind it. */
static void page_nav_tasks(const struct page *p, size_t g)
{
    const struct kvl_summary *s = &p->group[g];
    for (size_t c = 0; c < s->n_columns; c++) {
        const char *task = s->column[c]->task_label;
        bool again = c > 0 && !strcmp(task, s->column[c - 1]->task_label);
        fputs(again ? ", " : "<br>", p->out);
        if (!again) kvl_page_text(p->out, task);
        fprintf(p->out, "%s<a href=\"#%s\">", again ? "" : ": ", kvl_page_anchor(g, c).s);
        kvl_page_text(p->out, s->column[c]->protocol);
        fputs("</a>", p->out);
    }
}

static void page_nav(const struct page *p)
{
    fputs("<nav><ul>\n", p->out);
    if (p->up) fprintf(p->out, "<li><a href=\"%s\">All logs</a></li>\n", p->up);
    for (size_t g = 0; g < p->n_groups; g++) {
        fprintf(p->out, "<li><a href=\"#m%zu\">", g + 1);
        page_model(p, g);
        fputs("</a>", p->out);
        page_nav_tasks(p, g);
        fputs("</li>\n", p->out);
    }
    fputs(
        "<li><a href=\"#methods\">The methods</a> · <a href=\"#runs\">Settings and machines</a> · "
        "<a href=\"#errors\">What failed</a></li></ul></nav>\n",
        p->out);
}

static int page_head(const struct page *p)
{
    KVL_TRY(kvl_page_open("kvlab results", p->out, p->err));
    fputs("<header><h1>kvlab results</h1>\n<p>", p->out);
    const char *when = kvl_json_text(p->r->newest_run, "t_start");
    fprintf(p->out, "%zu results", p->r->n);
    if (*when) {
        char day[11];
        snprintf(day, sizeof day, "%s", when);
        fputs(", newest run ", p->out);
        kvl_page_text(p->out, day);
    }
    fputs(", build ", p->out);
    kvl_page_text(p->out, kvl_json_text(p->r->newest_run, "kvlab.git"));
    fputs(".</p></header>\n", p->out);
    page_nav(p);
    fputs("<main>\n", p->out);
    return KVL_OK;
}

/* ---- a model --------------------------------------------------------------------------------- */

static void page_group(const struct page *p, size_t g)
{
    const struct kvl_summary *s = &p->group[g];
    fprintf(p->out, "<section id=\"m%zu\"><h2>", g + 1);
    page_model(p, g);
    fputs("</h2>\n", p->out);
    kvl_page_headline(p->r, s, g, p->out);
    fputs(
        "<p class=note>Accuracy by the official scorer, where a task is not marked [not official], "
        "in "
        "percent with 95 % intervals, questions "
        "clustered in contexts; all lengths and depths together.  <i>full</i> reads everything, "
        "<i>random</i> a random set of the budget's size, <i>oracle</i> the tokens of the largest "
        "attention weights: bounds, not methods.  Click on a head to sort, on a number of a task "
        "for its cells.</p>\n",
        p->out);
    fputs("<div class=charts>\n", p->out);
    kvl_page_chart_read(s, p->out);
    kvl_page_chart_speed(s, p->out);
    fputs("</div>\n", p->out);
    for (size_t c = 0; c < s->n_columns; c++) kvl_page_task(p->r, s, g, c, p->out);
    fputs("</section>\n", p->out);
}

/* ---- methods --------------------------------------------------------------------------------- */

static void card_line(FILE *out, const char *name, const char *text)
{
    if (!text || !*text) return;
    fprintf(out, "<dt>%s</dt><dd>", name);
    kvl_page_text(out, text);
    fputs("</dd>\n", out);
}

static const struct kvl_policy *card_find(const struct kvl_registry *registry, const char *name)
{
    for (size_t i = 0; i < kvl_registry_n_policies(registry); i++)
        if (!strcmp(kvl_registry_policy(registry, i)->name, name))
            return kvl_registry_policy(registry, i);
    return NULL;
}

/* "outer(inner)" is told by the card of the outer one. */
static void card_print(const struct page *p, const char *name)
{
    char outer[64];
    snprintf(outer, sizeof outer, "%.*s", (int)strcspn(name, "("), name);
    const struct kvl_policy *card = card_find(p->registry, outer);
    fputs("<details class=card id=\"method-", p->out);
    kvl_page_text(p->out, name);
    fputs("\"><summary><b>", p->out);
    kvl_page_text(p->out, name);
    fputs("</b> ", p->out);
    if (card) kvl_page_text(p->out, card->title);
    fputs("</summary><dl>\n", p->out);
    if (card) {
        card_line(p->out, "Paper", card->paper);
        card_line(p->out, "Does", card->help);
        card_line(p->out, "Follows", card->follows);
        card_line(p->out, "Differs", card->deviations);
        card_line(p->out, "Costs", card->cost);
    } else {
        card_line(p->out, "Card", "This program does not know the method: it came from a plug-in.");
    }
    fputs("</dl></details>\n", p->out);
}

static void page_methods(const struct page *p)
{
    fputs("<section id=methods><h2>The methods</h2>\n", p->out);
    for (size_t i = 0; i < p->r->n; i++) {
        bool first = true;
        for (size_t k = 0; k < i && first; k++)
            first = strcmp(p->r->result[k].policy, p->r->result[i].policy) != 0;
        if (first) card_print(p, p->r->result[i].policy);
    }
    fputs("</section>\n", p->out);
}

/* ---- settings -------------------------------------------------------------------------------- */

static void run_print(const struct page *p, const json_t *run)
{
    static const struct {
        const char *name, *path;
    } rows[] = {
        { "Started", "t_start" },
        { "Build", "kvlab.git" },
        { "Machine", "machine.host" },
        { "Processor", "machine.cpu" },
        { "Code path", "machine.isa" },
        { "System", "machine.os" },
        { "GPU", "gpu.name" },
        { "Model", "model.file" },
        { "Model hash", "model.hash" },
        { "Keys and values in", "store.kv_type" },
        { "Prefill in", "store.prefill_type" },
        { "Activations of decoding in", "store.decode_act" },
    };
    fputs("<details class=card><summary>", p->out);
    kvl_page_text(p->out, kvl_json_text(run, "t_start"));
    fputs(" <b>", p->out);
    kvl_page_text(p->out, kvl_json_text(run, "sweep.name"));
    fputs("</b></summary><dl>\n", p->out);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        card_line(p->out, rows[i].name, kvl_json_text(run, rows[i].path));
    double threads = kvl_json_number(run, "machine.threads");
    if (!isnan(threads)) fprintf(p->out, "<dt>Threads</dt><dd>%.0f</dd>\n", threads);
    fputs("</dl><pre>", p->out);
    kvl_page_text(p->out, kvl_json_text(run, "sweep.text"));
    fputs("</pre></details>\n", p->out);
}

static void page_runs(const struct page *p)
{
    fputs("<section id=runs><h2>Settings and machines</h2>\n", p->out);
    if (p->r->n_setups > 1)
        fputs("<p>Speed was measured on several machines or with several numbers of threads: "
              "compare within one only.</p>\n",
              p->out);
    size_t i;
    json_t *run;
    json_array_foreach(p->r->runs, i, run) run_print(p, run);
    fputs("</section>\n", p->out);
}

/* ---- what failed ----------------------------------------------------------------------------- */

static void page_failures(const struct page *p)
{
    const char *message;
    json_t *n;
    json_object_foreach(p->r->failures, message, n)
    {
        if (json_integer_value(n) == 0) continue; /* answered later */
        fprintf(p->out, "<li>%" JSON_INTEGER_FORMAT " question%s: ", json_integer_value(n),
                json_integer_value(n) == 1 ? "" : "s");
        kvl_page_text(p->out, message);
        fputs("</li>\n", p->out);
    }
}

static void page_errors(const struct page *p)
{
    size_t n = json_array_size(p->r->errors), i;
    json_t *e;
    fputs("<section id=errors><h2>What failed</h2>\n", p->out);
    if (!n && !p->r->n_failed_samples && !p->r->health.n_damage) fputs("<p>Nothing.</p>\n", p->out);
    fputs("<ul>\n", p->out);
    json_array_foreach(p->r->errors, i, e)
    {
        size_t same = kvl_errors_same(p->r->errors, i);
        if (!same) continue;
        fprintf(p->out, "<li>%zu × ", same);
        kvl_page_text(p->out, kvl_json_text(e, "status"));
        fputs(": ", p->out);
        kvl_page_text(p->out, kvl_error_policy(e));
        fputs(*kvl_error_policy(e) ? ": " : "", p->out);
        kvl_page_text(p->out, kvl_json_text(e, "message"));
        fputs("</li>\n", p->out);
    }
    page_failures(p);
    if (p->r->health.n_damage)
        fprintf(p->out, "<li>The log is not whole: %zu damaged stretches.</li>\n",
                p->r->health.n_damage);
    fputs("</ul></section>\n", p->out);
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Half a sweep says so before its first number. */
static int page_partial(const struct page *p)
{
    struct kvl_results_amount n;
    KVL_TRY(kvl_results_amount(p->r, &n, p->err));
    if (n.done < n.cells)
        fprintf(p->out, "<p class=note>Not complete: %lld of %lld cells.</p>\n", (long long)n.done,
                (long long)n.cells);
    return KVL_OK;
}

static int page_parts(const struct page *p)
{
    KVL_TRY(page_head(p));
    KVL_TRY(page_partial(p));
    for (size_t g = 0; g < p->n_groups; g++) page_group(p, g);
    kvl_page_texts(p->r, p->out);
    page_methods(p);
    page_runs(p);
    page_errors(p);
    if (kvl_results_stale(p->r)) fputs("<p class=note>* " KVL_STALE_NOTE ".</p>\n", p->out);
    return kvl_page_close(p->out, p->err);
}

int kvl_page_write(const struct kvl_results *r, const struct kvl_registry *registry, const char *up,
                   FILE *out, struct kvl_err *err)
{
    struct page p = { .r = r, .registry = registry, .up = up, .out = out, .err = err };
    KVL_TRY(kvl_summaries(r, &p.group, &p.n_groups, err));
    int rc = page_parts(&p);
    kvl_summaries_free(p.group, p.n_groups);
    return rc;
}

/* ---- the index of a site --------------------------------------------------------------------- */

/* The most accurate first, of equal ones that which reads least; what was only timed stands last. */
static int index_order(const void *a, const void *b, void *summary)
{
    const struct kvl_summary_row *x = a, *y = b;
    double p = kvl_pool_accuracy(&x->all).mean, q = kvl_pool_accuracy(&y->all).mean;
    if (isnan(p) || isnan(q)) return isnan(p) - isnan(q);
    if (p < q || p > q) return p > q ? -1 : 1;
    double read = kvl_page_read_share(summary, x), other = kvl_page_read_share(summary, y);
    if (read < other || read > other) return read < other ? -1 : 1;
    return kvl_report_row_cmp(x->cell[0], y->cell[0]);
}

static void index_model(const struct page *p, size_t g)
{
    struct kvl_summary *s = &p->group[g];
    if (s->n_rows) qsort_r(s->row, s->n_rows, sizeof *s->row, index_order, s);
    fprintf(p->out, "<section id=\"m%zu\"><h2>", g + 1);
    page_model(p, g);
    fputs("</h2>\n", p->out);
    kvl_page_headline(p->r, s, KVL_PAGE_NO_GROUP, p->out);
    fputs("<div class=charts>\n", p->out);
    kvl_page_chart_read(s, p->out);
    kvl_page_chart_speed(s, p->out);
    fputs("</div></section>\n", p->out);
}

static void index_logs(const struct page *p, const struct kvl_site_page *page, size_t n)
{
    fputs("<section id=logs><h2>The logs</h2>\n<div class=wide><table class=sort><thead><tr>"
          "<th scope=col><button type=button>log</button></th>"
          "<th scope=col><button type=button>results</button></th>"
          "<th scope=col><button type=button>newest run</button></th></tr></thead><tbody>\n",
          p->out);
    for (size_t i = 0; i < n; i++) {
        fputs("<tr><th scope=row class=name><a href=\"", p->out);
        kvl_page_text(p->out, page[i].file);
        fputs("\">", p->out);
        kvl_page_text(p->out, page[i].log);
        fprintf(p->out, "</a></th><td data-v=\"%zu\">%zu</td><td>", page[i].n_results,
                page[i].n_results);
        kvl_page_text(p->out, page[i].newest);
        fputs("</td></tr>\n", p->out);
    }
    fputs("</tbody></table></div></section>\n", p->out);
}

static void index_nav(const struct page *p)
{
    fputs("<nav><ul>\n", p->out);
    for (size_t g = 0; g < p->n_groups; g++) {
        fprintf(p->out, "<li><a href=\"#m%zu\">", g + 1);
        page_model(p, g);
        fputs("</a></li>\n", p->out);
    }
    fputs("<li><a href=\"#logs\">The logs</a> · <a href=\"#methods\">The methods</a></li></ul>"
          "</nav>\n<main>\n",
          p->out);
}

static int index_parts(const struct page *p, const struct kvl_site_page *page, size_t n)
{
    KVL_TRY(kvl_page_open("kvlab results", p->out, p->err));
    fprintf(p->out,
            "<header><h1>kvlab results</h1>\n<p>%zu results of %zu logs.  Per model all methods "
            "and budgets, the most accurate first, of "
            "equal ones that which reads least; <i>full</i>, <i>random</i> and <i>oracle</i> "
            "are bounds.  Rows with other tasks, lengths or numbers of questions (n) do not "
            "compare.  The cells behind a number stand in the pages of the logs.</p></header>\n",
            p->r->n, n);
    index_nav(p);
    for (size_t g = 0; g < p->n_groups; g++) index_model(p, g);
    index_logs(p, page, n);
    page_methods(p);
    if (kvl_results_stale(p->r)) fputs("<p class=note>* " KVL_STALE_NOTE ".</p>\n", p->out);
    return kvl_page_close(p->out, p->err);
}

int kvl_page_index(const struct kvl_results *r, const struct kvl_registry *registry,
                   const struct kvl_site_page *page, size_t n, FILE *out, struct kvl_err *err)
{
    struct page p = { .r = r, .registry = registry, .out = out, .err = err };
    KVL_TRY(kvl_summaries(r, &p.group, &p.n_groups, err));
    int rc = index_parts(&p, page, n);
    kvl_summaries_free(p.group, p.n_groups);
    return rc;
}
