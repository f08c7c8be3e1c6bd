/* tables_args.h - the command line of kvlab tables. */
#ifndef KVL_TABLES_ARGS_H
#define KVL_TABLES_ARGS_H

#include "args.h"
#include "tables_made.h"

struct kvl_tables_args {
    struct kvl_args base;
    struct kvl_model_args model;
    const char *word[2];
    int32_t n_words;
    struct kvl_tables_want want;
};

extern const struct argp kvl_tables_argp;

/* After the words are read: which is the method and which the model, and what was not said.
 * KVL_EINVAL: too many words. */
int kvl_tables_args_settle(struct kvl_tables_args *a);

#endif
