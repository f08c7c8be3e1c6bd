/* head_file.h - text files that say something of every layer or head, for policies that have one.
 *
 * Lines of words and numbers between blanks; what stands behind # is a remark.  Whatever is wrong is told with the
 * file and the line.  What a file says changes answers, so its checksum belongs to the options: it is written where
 * they are logged, and a file that is no longer the one that was meant is refused.  To read in plan, and again in
 * open.
 *
 * Thread-safe: yes, a file is its reader's. */
#ifndef KVL_HEAD_FILE_H
#define KVL_HEAD_FILE_H

#include "kvl/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvl_report;
struct kvl_shape;

enum { KVL_HEAD_FILE_WORD = 32 };

struct kvl_head_file {
    const char *path; /* borrowed */
    struct kvl_buf text;
    const char *next; /* what was not read yet */
    const char *line; /* what was not read of this line; NULL: none was begun */
    int32_t number;   /* of this line, from 1 */
    struct kvl_err *err;
};

/* sum [KVL_OPT_STR_SIZE]: the option of the checksum (kvl_table_sum_check); it is written, and one that is given
 * must be that of the file.  After success kvl_head_file_close. */
int kvl_head_file_open(const char *path, char *sum, struct kvl_err *err, struct kvl_head_file *out);
void kvl_head_file_close(struct kvl_head_file *f);
/* Begins the next line that says something; false: there is none. */
bool kvl_head_file_line(struct kvl_head_file *f);
/* More stands on the line. */
bool kvl_head_file_more(const struct kvl_head_file *f);
/* The next of the line: a number from `min` to `max`, a whole one, one of `names` (NULL-terminated) as its index;
 * `what` names it where it is wrong. */
int kvl_head_file_number(struct kvl_head_file *f, const char *what, double min, double max,
                         double *out);
int kvl_head_file_integer(struct kvl_head_file *f, const char *what, int32_t min, int32_t max,
                          int32_t *out);
int kvl_head_file_choice(struct kvl_head_file *f, const char *what, const char *const *names,
                         int32_t *out);
/* One of several kinds for a query head, and its sizes. */
struct kvl_head_pattern {
    int32_t kind, size[2];
};
/* pattern [n_layers][n_heads] of the file at `path`: a line "layer head kind size [size]" for every query head, `kind`
 * one of `kinds` (NULL-terminated) with n_sizes[kind] sizes, 1 or 2; a second one that is not there is 0.  NULL: the
 * file is checked. */
int kvl_head_patterns(const char *path, const struct kvl_shape *shape, const char *const *kinds,
                      const int32_t *n_sizes, char *sum, struct kvl_err *err,
                      struct kvl_head_pattern *pattern);
/* gate [n_layers][n_kv_heads]: those of the file at `path`, a line of n_kv_heads numbers for every layer; where path
 * is "" those of the tables beside the model's file, which are there (kvl/model_tables.h).  NULL: they are checked. */
int kvl_head_gates(const char *path, const struct kvl_shape *shape, char *sum, struct kvl_err *err,
                   float *gate);
/* vector [n_layers][n_heads][width] of the file at `path`: a line "layer head number ..." for every one of n_heads heads
 * of a layer, in order.  NULL: the file is checked. */
int kvl_head_vectors(const char *path, const struct kvl_shape *shape, int32_t n_heads,
                     int32_t width, char *sum, struct kvl_err *err, float *vector);
/* Reports those of a layer [n_heads][width] as "vector.<layer>.<head>.<channel>", of which kvlab tables makes a file. */
int kvl_report_vectors(struct kvl_report *report, int32_t layer, int32_t n_heads, int32_t width,
                       const float *vector);

#ifdef __cplusplus
}
#endif

#endif
