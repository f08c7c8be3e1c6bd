/* export_parts.h - rows of flat tables; export*.c only. */
#ifndef KVL_EXPORT_PARTS_H
#define KVL_EXPORT_PARTS_H

#include "export.h"

/* A column and where a record has it; paths that begin with '@' are the exporter's own, NULL is no column. */
struct kvl_export_column {
    const char *name, *path;
};

/* Columns end with a name of NULL. */
void kvl_export_head(const struct kvl_export_column *columns, enum kvl_export_format format,
                     FILE *out);
/* `extra` has the columns whose path begins with '@'; both are borrowed.  KVL_ENOMEM. */
int kvl_export_row(const struct kvl_export_column *columns, const json_t *record,
                   const json_t *extra, enum kvl_export_format format, FILE *out);
/* cell id -> what other rows tell of it: model, task, policy, label, budget, length. */
int kvl_export_cell_extras(const struct kvl_results *r, json_t *all);

#endif
