/* kvlab list: policies and tasks that there are. */
#include "args.h"
#include "cmds.h"
#include "registry.h"

#include <stdio.h>
#include <string.h>

struct list_args {
    struct kvl_args base;
    struct kvl_registry *registry;
    const char *what; /* NULL = both */
};

static const struct argp_option list_options[] = {
    { "plugin", 'p', "X.so", 0, "load a policy from a shared object (repeatable)", 0 }, { 0 }
};

static int list_what(struct list_args *a, const char *word)
{
    static const char *const names[] = { "policies", "tasks" };
    for (size_t i = 0; i < 2 && !a->what; i++)
        if (strcmp(word, names[i]) == 0) {
            a->what = names[i];
            return KVL_OK;
        }
    return kvl_fail(a->base.err, KVL_EINVAL, "list \"%s\": want \"policies\", \"tasks\" or nothing",
                    word);
}

static error_t list_parse(int key, char *arg, struct argp_state *state)
{
    struct list_args *a = state->input;
    int rc = KVL_OK;
    if (key == 'p')
        rc = kvl_registry_plugin(a->registry, arg, a->base.err);
    else if (key == ARGP_KEY_ARG)
        rc = list_what(a, arg);
    else
        return ARGP_ERR_UNKNOWN;
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp list_argp = { .options = list_options,
                                       .parser = list_parse,
                                       .args_doc = "[policies|tasks]",
                                       .doc = "What there is to compare, and to compare it on." };

static void list_policies(const struct kvl_registry *r)
{
    for (size_t i = 0; i < kvl_registry_n_policies(r); i++) {
        const struct kvl_policy *p = kvl_registry_policy(r, i);
        const char *origin = kvl_registry_origin(r, i);
        printf("  %-16s %-7s %s%s%s%s\n", p->name, p->caps & KVL_CAP_BOUND ? "bound" : "method",
               p->help, origin ? " (" : "", origin ? origin : "", origin ? ")" : "");
    }
}

static void list_tasks(void)
{
    for (size_t i = 0; i < kvl_n_tasks(); i++)
        printf("  %-16s %s\n", kvl_task(i)->name, kvl_task(i)->help);
}

int cmd_list(int argc, char **argv, struct kvl_err *err)
{
    struct list_args a = { 0 };
    bool done;
    KVL_TRY(kvl_registry_create(&a.registry, err));
    int rc = kvl_args_parse(&list_argp, argc, argv, &a, &done, err);
    if (rc == KVL_OK && !done) {
        bool policies = !a.what || strcmp(a.what, "policies") == 0;
        bool tasks = !a.what || strcmp(a.what, "tasks") == 0;
        if (policies) puts("policies:");
        if (policies) list_policies(a.registry);
        if (tasks) puts("tasks:");
        if (tasks) list_tasks();
    }
    kvl_registry_destroy(a.registry);
    return rc;
}
