/* tables_args.h - the command line of kvlab tables. */
#ifndef KVL_TABLES_ARGS_H
#define KVL_TABLES_ARGS_H

#include "args.h"

enum { KVL_TABLES_TASKS = 16, KVL_TABLES_LENGTHS = 8 };

struct kvl_tables_args {
    struct kvl_args base;
    struct kvl_model_args model;
    const char *word[2], *policy, *budget, *out,
        *task[KVL_TABLES_TASKS]; /* policy NULL: of the model */
    int32_t n_words, n_tasks, length[KVL_TABLES_LENGTHS], n_lengths, contexts;
    int64_t seed;
};

extern const struct argp kvl_tables_argp;

/* After the words are read: which is the method and which the model, and what was not said.
 * KVL_EINVAL: too many words. */
int kvl_tables_args_settle(struct kvl_tables_args *a);

#endif
