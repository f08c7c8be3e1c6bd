/* page_parts.h - what the files of the page share; page*.c only. */
#ifndef KVL_PAGE_PARTS_H
#define KVL_PAGE_PARTS_H

#include "summary.h"

#include <stdio.h>

/* The head of a page with its style, up to <body>; the end with the script, from </main> on.  KVL_EIO: a file of
 * plots/ is missing. */
int kvl_page_open(const char *title, FILE *out, struct kvl_err *err);
int kvl_page_close(FILE *out, struct kvl_err *err);

/* Text with the characters that HTML takes for its own written out. */
void kvl_page_text(FILE *out, const char *s);
/* A table cell of a number: shown with these decimals, sorted by its value; NaN: empty. */
void kvl_page_number(FILE *out, double value, int decimals);
/* A share in percent with its interval, linking to #`link` unless it is "". */
void kvl_page_share(FILE *out, const struct kvl_interval *v, const char *link);
/* Tokens, bytes in a unit that fits. */
void kvl_page_bytes(FILE *out, double bytes);

/* The anchor of the cells behind column `column` of summary `group`. */
struct kvl_page_anchor {
    char s[64];
};
#define KVL_PAGE_NO_GROUP SIZE_MAX /* no cells on this page: "" */
struct kvl_page_anchor kvl_page_anchor(size_t group, size_t column);

/* Whether two results stand in one table. */
bool kvl_page_same_block(const struct kvl_result *a, const struct kvl_result *b);

/* The dense cell of the block of `x`; NULL: none. */
const struct kvl_result *kvl_page_dense(const struct kvl_summary *s, const struct kvl_result *x);
/* What a row read per token, choosing included, as a share of what `full` read in the same blocks; NaN where full
 * was not run. */
double kvl_page_read_share(const struct kvl_summary *s, const struct kvl_summary_row *row);

/* page_chart.c */
/* Accuracy against the share read, a line per method over its budgets; against tokens/s, with the line of those
 * that no other beats in both. */
void kvl_page_chart_read(const struct kvl_summary *s, FILE *out);
void kvl_page_chart_speed(const struct kvl_summary *s, FILE *out);
/* Accuracy over length and depth, a map per policy and budget, of one task and protocol.  Nothing where cells
 * have no depths. */
void kvl_page_maps(const struct kvl_summary *s, size_t column, FILE *out);

/* page_table.c */
void kvl_page_headline(const struct kvl_results *r, const struct kvl_summary *s, size_t group,
                       FILE *out);
/* The section of the task of a column, with all its protocols: accuracy by protocol and length, maps, and its cells.
 * Nothing for a column whose task an earlier one has. */
void kvl_page_task(const struct kvl_results *r, const struct kvl_summary *s, size_t group,
                   size_t column, FILE *out);
void kvl_page_texts(const struct kvl_results *r, FILE *out);

#endif
