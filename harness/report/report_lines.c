/* What the tables of a report share: a block's head, names, budgets, what is missing, notes of a line. */
#include "report.h"

#include <math.h>
#include <string.h>

const char *kvl_report_mark(enum kvl_table_form form)
{
    return form == KVL_TABLE_LATEX ? "% " : form == KVL_TABLE_CSV ? "# " : "";
}

void kvl_report_lines(const char *text, enum kvl_table_form form, FILE *out)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        fputs(n ? kvl_report_mark(form) : "", out);
        /* A comment of LaTeX or a table of commas is a line and no more. */
        kvl_show_n(out, form == KVL_TABLE_MARKDOWN ? KVL_SHOW_MARKDOWN : KVL_SHOW_TEXT, text, n);
        fputc('\n', out);
        text += n + (text[n] == '\n');
    }
}

void kvl_report_block(const struct kvl_result *x, unsigned skip, enum kvl_table_form form,
                      FILE *out)
{
    enum kvl_medium m = kvl_table_medium(form);
    fputs(kvl_report_mark(form), out);
    kvl_show(out, m, x->model[0] ? x->model : "unknown model");
    kvl_show(out, m, x->set);
    if (!(skip & KVL_BLOCK_TASK)) fputs("  ", out), kvl_show(out, m, x->task_label);
    if (!(skip & KVL_BLOCK_PROTOCOL))
        fputs("  ", out), kvl_show(out, m, x->is_cell ? x->protocol : "speed only");
    if (!(skip & KVL_BLOCK_LENGTH) && !isnan(x->length_tok))
        fprintf(out, "  %.0f tokens", x->length_tok);
    if (!(skip & KVL_BLOCK_DEPTH) && !isnan(x->depth)) fprintf(out, "  depth %g", x->depth);
    fputs("  on ", out);
    kvl_show(out, m, x->device[0] ? x->device : "?");
    fputs(form == KVL_TABLE_MARKDOWN ? "\n\n" : "\n", out);
}

void kvl_report_name(struct kvl_table *t, const struct kvl_result *x)
{
    kvl_table_add(t, "%s%s", x->label, x->stale ? " *" : "");
}

void kvl_report_budget(struct kvl_table *t, const struct kvl_result *x)
{
    bool percent = strchr(x->budget, '%') && !isnan(x->budget_tok);
    if (percent)
        kvl_table_add(t, "%s=%.0f", x->budget, x->budget_tok);
    else
        kvl_table_add(t, "%s", x->budget);
}

/* Live slots and whole blocks, in the unit of the larger one. */
void kvl_report_held(struct kvl_table *t, const struct kvl_result *x)
{
    if (isnan(x->kv_physical) || isnan(x->kv_logical)) {
        kvl_table_add(t, "-");
        return;
    }
    struct kvl_short_text all = kvl_bytes_text(x->kv_physical);
    double unit = 1;
    for (double v = x->kv_physical; v >= 1024; v /= 1024) unit *= 1024;
    int decimals = unit > 1 && x->kv_physical / unit < 99.95;
    kvl_table_add(t, "%.*f/%s", decimals, x->kv_logical / unit, all.s);
}

/* A method without its bounds cannot be judged: 60 % is much where random has 10. */
void kvl_report_missing(const struct kvl_result *x, size_t n, FILE *out)
{
    static const char *const names[] = {
        [KVL_BOUND_FULL] = "full", [KVL_BOUND_RANDOM] = "random", [KVL_BOUND_ORACLE] = "oracle"
    };
    bool there[KVL_BOUND_ORACLE + 1] = { false };
    for (size_t i = 0; i < n; i++) there[x[i].bound] = true;
    if (!there[KVL_BOUND_NONE] || !x->is_cell) return;
    const char *sep = "  not run here: ";
    for (size_t b = 0; b <= KVL_BOUND_ORACLE; b++) {
        if (b == KVL_BOUND_NONE || there[b]) continue;
        fprintf(out, "%s%s", sep, names[b]);
        sep = ", ";
    }
    if (*sep == ',') fputs(" (the methods have no bound on that side)\n", out);
}

void kvl_report_stale(const struct kvl_results *r, enum kvl_table_form form, FILE *out)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) n += r->result[i].stale;
    if (!n) return;
    fprintf(out, "%s* " KVL_STALE_NOTE " (build ", kvl_report_mark(form));
    kvl_show(out, kvl_table_medium(form), kvl_json_text(r->newest_run, "kvlab.git"));
    fprintf(out, "): %zu.\n", n);
}

const struct kvl_result *kvl_report_dense(const struct kvl_result *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (x[i].bound == KVL_BOUND_FULL && !isnan(x[i].kv_read)) return &x[i];
    return NULL;
}

static double bytes_read(const struct kvl_result *x)
{
    return x->kv_read + (x->index_read > 0 ? x->index_read : 0);
}

bool kvl_report_reads_more(const struct kvl_result *x, const struct kvl_result *full)
{
    return full && x->index_read > 0 && bytes_read(x) > bytes_read(full);
}

void kvl_report_index(struct kvl_table *t, const struct kvl_result *x,
                      const struct kvl_result *full)
{
    if (!(x->index_read > 0))
        kvl_table_add(t, "-");
    else
        kvl_table_add(t, "%s%s", kvl_bytes_text(x->index_read).s,
                      kvl_report_reads_more(x, full) ? " !" : "");
}

/* Where a row of a block has the mark. */
void kvl_report_more(const struct kvl_result *x, size_t n, FILE *out)
{
    const struct kvl_result *full = kvl_report_dense(x, n);
    for (size_t i = 0; i < n; i++)
        if (kvl_report_reads_more(&x[i], full)) {
            fprintf(out, "  ! reads more a token than full attention, which reads %s\n",
                    kvl_bytes_text(full->kv_read).s);
            return;
        }
}
