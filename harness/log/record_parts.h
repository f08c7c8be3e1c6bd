/* record_parts.h - what records are put together from; record*.c only.
 *
 * Builders return a new reference, or NULL when memory is short; NULL in, NULL out.
 */
#ifndef KVL_RECORD_PARTS_H
#define KVL_RECORD_PARTS_H

#include "record.h"
#include "stats.h"

/* Rounded to the digits that the log writes, so that a record that was read back is the one that was
 * measured; null where v is not finite. */
json_t *kvl_record_real(double v);
/* A time as an integer; null where it is not known. */
json_t *kvl_record_ns(double ns);
/* Bytes that are no UTF-8 become U+FFFD. */
json_t *kvl_record_text(const char *s, size_t n);
json_t *kvl_record_path_text(const char *s); /* NULL: null */
/* 16 hexadecimal digits. */
json_t *kvl_record_hex(uint64_t v);
/* Moves the fields of `more` behind those of `o`; both are stolen. */
json_t *kvl_record_add(json_t *o, json_t *more);
/* Adds one field, which is stolen; NULL leaves *r NULL.  A "group" is an object whose fields are added; what may be
 * "absent" is left out where `value` is NULL. */
void kvl_record_put(json_t **r, const char *name, const char *type, json_t *value);
/* Adds an item, which is stolen; NULL leaves *list NULL. */
void kvl_record_item(json_t **list, json_t *item);
/* A row of fields.def as a field of `r`. */
#define KVL_PUT(name, type, column, value, means) kvl_record_put(&r, #name, type, value);
/* sum / n; NaN where n is 0. */
double kvl_record_per(double sum, double n);
#define PER(sum, n) kvl_record_per((double)(sum), (double)(n))
/* Kind, schema and run. */
json_t *kvl_record_start(const char *kind, const char *run);
json_t *kvl_record_now(void);
/* Build and model, as a run names them. */
json_t *kvl_record_build(void);
json_t *kvl_record_model(const struct kvl_model *m);
/* Scores and other numbers of those that have them, with their contexts: those that are parts of one
 * text are one observation, and count as one. */
struct kvl_record_column {
    double *value;
    int64_t *context;
    size_t n;
    int32_t *text; /* [contexts] kvl_point_text of each */
};
/* Room for so many `questions` of each context. */
int kvl_record_column_create(const struct kvl_sweep *s, const struct kvl_point *task,
                             int32_t questions, struct kvl_record_column *out);
void kvl_record_column_free(struct kvl_record_column *c);
/* `mean`, `lo`, `hi` of values within `range`; the cell's id is the seed of the bootstrap. */
json_t *kvl_record_interval(const struct kvl_record_column *c, struct kvl_range range,
                            const char *id);
/* The `quality` of a cell; null without any. */
json_t *kvl_record_quality_cell(const struct kvl_sweep *s, const struct kvl_cell *c,
                                const struct kvl_quality_means *quality);
/* What was observed of a sample, or means of it: the fields that records of a kind have. */
json_t *kvl_record_observed(const struct kvl_outcome *o, enum kvl_fields_of kind);
/* What a cell is: task, policy, budget. */
json_t *kvl_record_point(const struct kvl_cell *c);

#endif
