/* kvlab tables: tables that methods read, measured on a model. */
#include "cmds.h"
#include "registry.h"
#include "tables_args.h"

static int tables_run(struct kvl_tables_args *a, struct kvl_tables_made *t)
{
    KVL_TRY(kvl_tables_args_settle(a));
    KVL_TRY(kvl_tables_policy(t));
    KVL_TRY(kvl_model_args_open(&a->model, &t->desc.device, &t->model, t->err));
    t->desc.model = t->model;
    KVL_TRY(kvl_model_args_engine(&a->model, &t->desc, t->err));
    return kvl_tables_make(t);
}

int cmd_tables(int argc, char **argv, struct kvl_err *err)
{
    struct kvl_tables_args a = { .want = { .contexts = 2, .seed = 1 } };
    struct kvl_tables_made t = { .want = &a.want, .err = err };
    bool done;
    a.model.args = &a.base;
    KVL_TRY(kvl_registry_create(&a.model.registry, err));
    t.registry = a.model.registry;
    int rc = kvl_args_parse(&kvl_tables_argp, argc, argv, &a, &done, err);
    if (rc == KVL_OK && !done) rc = tables_run(&a, &t);
    kvl_tables_made_free(&t);
    kvl_model_close(t.model);
    kvl_registry_destroy(a.model.registry);
    return rc;
}
