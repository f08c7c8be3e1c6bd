/* export.h - results as flat tables for other programs: CSV, TSV, JSON lines.
 *
 * One row per cell, sample or speed record, columns in a fixed order (the lists in export.c).  What
 * is null in the log is an empty field, or null in JSON.  Texts in TSV have backslash, tab and line
 * feed written as \\, \t and \n; CSV quotes as RFC 4180 does.
 */
#ifndef KVL_EXPORT_H
#define KVL_EXPORT_H

#include "results.h"

#include <stdio.h>

enum kvl_export_format { KVL_EXPORT_CSV, KVL_EXPORT_TSV, KVL_EXPORT_JSONL };

/* KVL_ENOMEM; whether everything was written is the caller's to ask of `out`. */
int kvl_export_cells(const struct kvl_results *r, enum kvl_export_format format, FILE *out,
                     struct kvl_err *err);
/* Running mean nll and perplexity of cells of texts: one row per cell and number of tokens. */
int kvl_export_curves(const struct kvl_results *r, enum kvl_export_format format, FILE *out,
                      struct kvl_err *err);
/* Numbers of analyses, one per row: which one it is, and of which layer, head, lag ... */
int kvl_export_analyses(const struct kvl_results *r, enum kvl_export_format format, FILE *out,
                        struct kvl_err *err);
int kvl_export_speeds(const struct kvl_results *r, enum kvl_export_format format, FILE *out,
                      struct kvl_err *err);
/* One row per number of the quality records behind `words`: question, step, layer, query head, and
 * number of top tokens.  Reads the logs again; KVL_EINVAL for standard input. */
int kvl_export_quality(const struct kvl_results *r, char *const *words, size_t n_words,
                       enum kvl_export_format format, FILE *out, struct kvl_err *err);
/* Reads the logs behind `words` again; KVL_EINVAL for standard input. */
int kvl_export_samples(const struct kvl_results *r, char *const *words, size_t n_words,
                       enum kvl_export_format format, FILE *out, struct kvl_err *err);

/* Predictions of a benchmark's task in the form that its own scripts score, a file per cell and task of
 * the benchmark under the folder `out`, whose names are printed.  form: index of kvl_export_forms. */
extern const char *const kvl_export_forms[];
int kvl_export_as(const struct kvl_results *r, char *const *words, size_t n_words, int form,
                  const char *out, struct kvl_err *err);

#endif
