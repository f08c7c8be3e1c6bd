/* text_table.h - texts in rows and columns, printed aligned or for other programs.
 *
 * Numbers are aligned right, texts left, as the column says.  Memory that runs out is remembered
 * and told by kvl_table_print.
 *
 * Thread-safe: no.
 */
#ifndef KVL_TABLE_H
#define KVL_TABLE_H

#include "show.h"

#include <stdio.h>

struct kvl_column {
    const char *name;
    bool text; /* aligned left */
};

enum kvl_table_form {
    KVL_TABLE_TEXT, /* aligned, for a terminal */
    KVL_TABLE_MARKDOWN,
    KVL_TABLE_LATEX, /* a tabular environment; rules of the package booktabs */
    KVL_TABLE_CSV,   /* as RFC 4180; every column, "-" is an empty field */
    KVL_TABLE_HTML   /* a table element */
};
/* "text", "markdown", "latex", "csv" or "html". */
int kvl_table_form_parse(const char *word, enum kvl_table_form *out, struct kvl_err *err);
/* What texts beside a table of that form are shown as. */
enum kvl_medium kvl_table_medium(enum kvl_table_form form);

struct kvl_table {
    enum kvl_table_form form;
    const struct kvl_column *column;
    size_t n_columns;
    char **cell; /* [n_cells], row by row */
    size_t n_cells, cap;
    bool no_memory;
};

/* Adds the next cell; the cells of a row follow each other. */
void kvl_table_add(struct kvl_table *t, const char *fmt, ...) KVL_PRINTF(2, 3);
/* A number with that many decimals; "-" when it is NaN. */
void kvl_table_number(struct kvl_table *t, double value, int decimals);
/* Bytes as "1.5 MiB"; "-" when NaN. */
void kvl_table_bytes(struct kvl_table *t, double bytes);

/* In its form, aligned text with `indent` blanks before each row.  A column without any content but "-" and "" is
 * left out.  KVL_ENOMEM. */
int kvl_table_print(const struct kvl_table *t, int indent, FILE *out, struct kvl_err *err);
void kvl_table_free(struct kvl_table *t);

/* A number in few digits, as a text of at most 31 characters: "12.3 MiB". */
struct kvl_short_text {
    char s[32];
};
struct kvl_short_text kvl_bytes_text(double bytes);
/* Shares as "72-100" percent, with as many decimals as it takes to see that the two differ; `width` of the first
 * one, `dash` between them. */
struct kvl_short_text kvl_percent_span(double lo, double hi, int width, const char *dash);
/* The least number of decimals, `least` or more, with which lo and hi are not the same text. */
int kvl_span_decimals(double lo, double hi, int least);

#endif
