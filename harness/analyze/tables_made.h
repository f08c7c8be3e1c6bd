/* tables_made.h - the work of `kvlab tables`: contexts of tasks, what is measured on them, the file that comes of it.
 *
 * Thread-safe: no.
 */
#ifndef KVL_TABLES_MADE_H
#define KVL_TABLES_MADE_H

#include "measure_tables.h"
#include "policy_spec.h"

enum { KVL_TABLES_TASKS = 16, KVL_TABLES_LENGTHS = 8 };

struct kvl_tables_want {
    const char *policy, *budget,
        *out; /* policy NULL: of the model; out NULL: beside it, or stdout */
    const char *task[KVL_TABLES_TASKS];
    int32_t n_tasks, length[KVL_TABLES_LENGTHS], n_lengths, contexts;
    int64_t seed;
};

struct tables_kind;
struct kvl_input_fit;

struct kvl_tables_made {
    /* set before; borrowed */
    struct kvl_tables_want *want;
    struct kvl_registry *registry;
    struct kvl_model *model;
    struct kvl_engine_desc desc; /* of the engine that measures */
    struct kvl_err *err;
    /* private */
    const struct tables_kind *kind;
    struct kvl_engine *engine;
    struct kvl_policy_spec spec;
    int32_t budget, n_heads, n_measured; /* heads of a layer that have a line or a number */
    int32_t n_columns;                   /* numbers of a head */
    struct kvl_buf options;              /* of the policy, resolved */
    double *value;                       /* sums over contexts: [n_layers][n_heads][n_columns] */
    int (*feed)(struct kvl_tables_made *t,
                const struct kvl_table_text *text); /* what contexts are for */
    struct kvl_model_tables *all;                   /* of the model */
    struct kvl_input_fit *fit;                      /* of networks; NULL before the first text */
};

/* Before there is a model: the policy that measures.  KVL_EINVAL: it has no table. */
int kvl_tables_policy(struct kvl_tables_made *t);
/* Measures, and writes the file. */
int kvl_tables_make(struct kvl_tables_made *t);
void kvl_tables_made_free(struct kvl_tables_made *t);

#endif
