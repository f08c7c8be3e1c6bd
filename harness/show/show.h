/* show.h - texts of others (a log, a model, a sweep), written so that they are text in the medium that shows them
 * and nothing else: no markup, no command, no formula, no control sequence.
 *
 * One function per medium, and nothing of a file is shown without it:
 *   HTML, Markdown, LaTeX, CSV, TSV    kvl_show
 *   a terminal                         kvl_show_streams: what goes to stdout and stderr, whoever prints it
 *   gnuplot                            kvl_show of KVL_SHOW_GNUPLOT, within single quotes
 *   a file's name                      kvl_show_file
 * JSON is written by jansson, which escapes.  Strings of records that are one line by their meaning are made one when
 * they are read (kvl_show_record).
 *
 * Thread-safe: kvl_show_streams no, the rest yes.
 */
#ifndef KVL_SHOW_H
#define KVL_SHOW_H

#include "kvl/base.h"

#include <jansson.h>
#include <stdio.h>

enum kvl_medium {
    KVL_SHOW_TEXT, /* for a terminal: control characters are '?' */
    KVL_SHOW_HTML, /* text, or a value of an attribute in quotes */
    KVL_SHOW_MARKDOWN,
    KVL_SHOW_LATEX,
    /* A field, in quotes where it needs them.  One that a spreadsheet would take for a formula begins with '. */
    KVL_SHOW_CSV,
    KVL_SHOW_TSV,    /* tab, line feed and backslash as \t \n \\ */
    KVL_SHOW_GNUPLOT /* within single quotes, which are the caller's */
};

void kvl_show(FILE *out, enum kvl_medium m, const char *s);
/* Its first n bytes; into a buffer: KVL_ENOMEM. */
void kvl_show_n(FILE *out, enum kvl_medium m, const char *s, size_t n);
int kvl_show_add(struct kvl_buf *out, enum kvl_medium m, const char *s, size_t n);

/* Makes a text one line in place: control characters, also those of Unicode that turn lines around, become '?'. */
void kvl_show_line(char *s);
/* The same of all strings of a record and their names, but for texts that may have lines: answers, prompts. */
int kvl_show_record(json_t *record, struct kvl_err *err);

/* Adds `name` as one part of a path: no '/', no "..", no blank or dot at its beginning.  What was changed or is long is
 * told apart by a hash behind it. */
int kvl_show_file(struct kvl_buf *out, const char *name);

/* From here on stdout and stderr replace control characters but line feeds and tabs.  Called once, by main. */
void kvl_show_streams(void);
/* stdout is data, not to be changed, unless it is a terminal: for commands that print texts byte by byte. */
void kvl_show_data(void);
/* Takes the line of stderr away, where that is a terminal. */
void kvl_show_clear_line(void);

#endif
