/* Aligned tables. */
#include "table.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void kvl_table_add(struct kvl_table *t, const char *fmt, ...)
{
    struct kvl_buf b = { 0 };
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (t->n_cells == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 64;
        char **grown = realloc(t->cell, cap * sizeof *grown);
        if (grown) {
            t->cell = grown;
            t->cap = cap;
        }
    }
    if (t->n_cells == t->cap || kvl_buf_adds(&b, text) != KVL_OK) {
        t->no_memory = true;
        return;
    }
    t->cell[t->n_cells++] = b.data;
}

void kvl_table_number(struct kvl_table *t, double value, int decimals)
{
    if (isnan(value))
        kvl_table_add(t, "-");
    else
        kvl_table_add(t, "%.*f", decimals, value);
}

struct kvl_short_text kvl_bytes_text(double bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    struct kvl_short_text t = { "-" };
    size_t unit = 0;
    if (isnan(bytes)) return t;
    for (; bytes >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++) bytes /= 1024;
    snprintf(t.s, sizeof t.s, "%.*f %s", unit && bytes < 99.95 ? 1 : 0, bytes, units[unit]);
    return t;
}

void kvl_table_bytes(struct kvl_table *t, double bytes)
{
    kvl_table_add(t, "%s", kvl_bytes_text(bytes).s);
}

/* Width of a column, 0 when there is nothing in it. */
static size_t column_width(const struct kvl_table *t, size_t column)
{
    size_t width = 0;
    bool content = false;
    for (size_t i = column; i < t->n_cells; i += t->n_columns) {
        const char *s = t->cell[i];
        content |= *s && strcmp(s, "-") != 0;
        width = KVL_MAX(width, strlen(s));
    }
    return content ? KVL_MAX(width, strlen(t->column[column].name)) : 0;
}

static void print_cell(const struct kvl_column *c, const char *s, size_t width, bool first,
                       FILE *out)
{
    if (!first) fputs("  ", out);
    fprintf(out, "%*s", (int)(c->text ? -(int)width : (int)width), s);
}

/* Characters that the form takes for its own are written out. */
static void form_text(enum kvl_table_form form, const char *s, FILE *out)
{
    const char *special = form == KVL_TABLE_LATEX ? "%&_#$" : "|";
    for (; *s; s++) {
        if (strchr(special, *s)) fputc('\\', out);
        fputc(*s, out);
    }
}

static void form_row(const struct kvl_table *t, const size_t *width, size_t row, FILE *out)
{
    bool latex = t->form == KVL_TABLE_LATEX, first = true;
    if (!latex) fputs("| ", out);
    for (size_t c = 0; c < t->n_columns; c++) {
        if (!width[c]) continue;
        if (!first) fputs(latex ? " & " : " | ", out);
        form_text(t->form, row ? t->cell[(row - 1) * t->n_columns + c] : t->column[c].name, out);
        first = false;
    }
    fputs(latex ? " \\\\\n" : " |\n", out);
}

/* What stands between the head and the rows, or begins the table: a letter or a rule per column. */
static void form_columns(const struct kvl_table *t, const size_t *width, FILE *out)
{
    bool latex = t->form == KVL_TABLE_LATEX;
    fputs(latex ? "\\begin{tabular}{" : "|", out);
    for (size_t c = 0; c < t->n_columns; c++)
        if (width[c])
            fputs(latex ? (t->column[c].text ? "l" : "r") : (t->column[c].text ? "---|" : "---:|"),
                  out);
    fputs(latex ? "}\n\\toprule\n" : "\n", out);
}

static void form_print(const struct kvl_table *t, const size_t *width, size_t n_rows, FILE *out)
{
    bool latex = t->form == KVL_TABLE_LATEX;
    if (latex) form_columns(t, width, out);
    form_row(t, width, 0, out);
    if (latex)
        fputs("\\midrule\n", out);
    else
        form_columns(t, width, out);
    for (size_t row = 1; row < n_rows; row++) form_row(t, width, row, out);
    fputs(latex ? "\\bottomrule\n\\end{tabular}\n" : "", out);
    fputc('\n', out);
}

int kvl_table_print(const struct kvl_table *t, int indent, FILE *out, struct kvl_err *err)
{
    size_t *width = kvl_alloc(t->n_columns, sizeof *width);
    bool memory = width && !t->no_memory;
    for (size_t c = 0; c < t->n_columns && memory; c++) width[c] = column_width(t, c);
    size_t n_rows = memory ? t->n_cells / t->n_columns + 1 : 0;
    if (t->form != KVL_TABLE_TEXT && memory) form_print(t, width, n_rows, out);
    for (size_t row = 0; row < n_rows && t->form == KVL_TABLE_TEXT; row++) {
        bool first = true;
        fprintf(out, "%*s", indent, "");
        for (size_t c = 0; c < t->n_columns; c++) {
            if (!width[c]) continue;
            const char *s = row ? t->cell[(row - 1) * t->n_columns + c] : t->column[c].name;
            print_cell(&t->column[c], s, width[c], first, out);
            first = false;
        }
        fputc('\n', out);
    }
    kvl_free(width);
    return memory ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "no memory for a table");
}

void kvl_table_free(struct kvl_table *t)
{
    for (size_t i = 0; i < t->n_cells; i++) free(t->cell[i]);
    free(t->cell);
    *t = (struct kvl_table){ 0 };
}
