/* Aligned tables. */
#include "text_table.h"

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

int kvl_span_decimals(double lo, double hi, int least)
{
    int decimals = least;
    while (hi > lo && decimals < least + 9) {
        char a[400], b[400];
        snprintf(a, sizeof a, "%.*f", decimals, lo);
        snprintf(b, sizeof b, "%.*f", decimals, hi);
        if (strcmp(a, b) != 0) break;
        decimals++;
    }
    return decimals;
}

struct kvl_short_text kvl_percent_span(double lo, double hi, int width, const char *dash)
{
    struct kvl_short_text t = { "" };
    int decimals = kvl_span_decimals(100 * lo, 100 * hi, 0);
    snprintf(t.s, sizeof t.s, "%*.*f%s%.*f", width, decimals, 100 * lo, dash, decimals, 100 * hi);
    return t;
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

/* ---- other forms ----------------------------------------------------------------------------- */

int kvl_table_form_parse(const char *word, enum kvl_table_form *out, struct kvl_err *err)
{
    static const char *const names[] = { [KVL_TABLE_TEXT] = "text",
                                         [KVL_TABLE_MARKDOWN] = "markdown",
                                         [KVL_TABLE_LATEX] = "latex",
                                         [KVL_TABLE_CSV] = "csv",
                                         [KVL_TABLE_HTML] = "html" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(word, names[i]) != 0) continue;
        *out = (enum kvl_table_form)i;
        return KVL_OK;
    }
    return kvl_fail(err, KVL_EINVAL, "--format %s: want text, markdown, latex, csv or html", word);
}

/* What begins a row, stands between cells, ends it. */
static const struct form {
    const char *begin, *between, *end, *special;
} forms[] = { [KVL_TABLE_MARKDOWN] = { "| ", " | ", " |\n", "|" },
              [KVL_TABLE_LATEX] = { "", " & ", " \\\\\n", "%&_#$" },
              [KVL_TABLE_CSV] = { "", ",", "\r\n", "" },
              [KVL_TABLE_HTML] = { "<tr>", "", "</tr>\n", "" } };

static void csv_text(const char *s, FILE *out)
{
    bool quote = s[strcspn(s, ",\"\r\n")];
    if (strcmp(s, "-") == 0) return;
    if (quote) fputc('"', out);
    for (; *s; s++) {
        if (*s == '"') fputc('"', out);
        fputc(*s, out);
    }
    if (quote) fputc('"', out);
}

static void html_text(const char *s, const struct kvl_column *c, bool head, FILE *out)
{
    fprintf(out, head ? "<th%s>" : "<td%s>", c->text ? "" : " align=right");
    for (; *s; s++) switch (*s) {
        case '&': fputs("&amp;", out); break;
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        default: fputc(*s, out);
        }
    fputs(head ? "</th>" : "</td>", out);
}

/* Characters that the form takes for its own are written out. */
static void form_text(const struct kvl_table *t, size_t column, const char *s, bool head, FILE *out)
{
    if (t->form == KVL_TABLE_CSV) {
        csv_text(s, out);
        return;
    }
    if (t->form == KVL_TABLE_HTML) {
        html_text(s, &t->column[column], head, out);
        return;
    }
    for (; *s; s++) {
        if (strchr(forms[t->form].special, *s)) fputc('\\', out);
        fputc(*s, out);
    }
}

static void form_row(const struct kvl_table *t, const size_t *width, size_t row, FILE *out)
{
    const struct form *f = &forms[t->form];
    const char *sep = f->begin;
    for (size_t c = 0; c < t->n_columns; c++) {
        if (!width[c]) continue;
        const char *s = row ? t->cell[(row - 1) * t->n_columns + c] : t->column[c].name;
        fputs(sep, out);
        form_text(t, c, s, row == 0, out);
        sep = f->between;
    }
    fputs(f->end, out);
}

/* A letter or a rule per column. */
static void form_columns(const struct kvl_table *t, const size_t *width, const char *text,
                         const char *number, FILE *out)
{
    for (size_t c = 0; c < t->n_columns; c++)
        if (width[c]) fputs(t->column[c].text ? text : number, out);
}

/* What begins the table, and what stands below its head. */
static void form_begin(const struct kvl_table *t, const size_t *width, FILE *out)
{
    if (t->form == KVL_TABLE_HTML) fputs("<table>\n", out);
    if (t->form != KVL_TABLE_LATEX) return;
    fputs("\\begin{tabular}{", out);
    form_columns(t, width, "l", "r", out);
    fputs("}\n\\toprule\n", out);
}

static void form_head_end(const struct kvl_table *t, const size_t *width, FILE *out)
{
    if (t->form == KVL_TABLE_LATEX) fputs("\\midrule\n", out);
    if (t->form != KVL_TABLE_MARKDOWN) return;
    fputc('|', out);
    form_columns(t, width, "---|", "---:|", out);
    fputc('\n', out);
}

static void form_print(const struct kvl_table *t, const size_t *width, size_t n_rows, FILE *out)
{
    static const char *const end[] = { [KVL_TABLE_TEXT] = "",
                                       [KVL_TABLE_MARKDOWN] = "\n",
                                       [KVL_TABLE_LATEX] = "\\bottomrule\n\\end{tabular}\n\n",
                                       [KVL_TABLE_CSV] = "",
                                       [KVL_TABLE_HTML] = "</table>\n" };
    form_begin(t, width, out);
    form_row(t, width, 0, out);
    form_head_end(t, width, out);
    for (size_t row = 1; row < n_rows; row++) form_row(t, width, row, out);
    fputs(end[t->form], out);
}

int kvl_table_print(const struct kvl_table *t, int indent, FILE *out, struct kvl_err *err)
{
    size_t *width = kvl_alloc(t->n_columns, sizeof *width);
    bool memory = width && !t->no_memory;
    for (size_t c = 0; c < t->n_columns && memory; c++)
        width[c] = t->form == KVL_TABLE_CSV ? 1 : column_width(t, c); /* the same columns always */
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
