/* kvlab list: policies, tasks and types of keys and values that there are. */
#include "args.h"
#include "cmds.h"
#include "registry.h"
#include "wrap.h"

#include <stdio.h>
#include <string.h>

struct list_args {
    struct kvl_args base;
    struct kvl_registry *registry;
    const char *what; /* NULL = all */
};

static const struct argp_option list_options[] = {
    { "plugin", 'p', "X.so", 0, "load a policy from a shared object (repeatable)", 0 },
    { "task-plugin", 't', "X.so", 0, "load a task from a shared object (repeatable)", 0 },
    { 0 }
};

static int list_what(struct list_args *a, const char *word)
{
    static const char *const names[] = { "policies", "tasks", "kv-types" };
    for (size_t i = 0; i < sizeof names / sizeof *names && !a->what; i++)
        if (strcmp(word, names[i]) == 0) {
            a->what = names[i];
            return KVL_OK;
        }
    return kvl_fail(a->base.err, KVL_EINVAL,
                    "list \"%s\": want \"policies\", \"tasks\", \"kv-types\" or nothing", word);
}

static error_t list_parse(int key, char *arg, struct argp_state *state)
{
    struct list_args *a = state->input;
    int rc = KVL_OK;
    if (key == 'p')
        rc = kvl_registry_plugin(a->registry, arg, a->base.err);
    else if (key == 't')
        rc = kvl_registry_task_plugin(a->registry, arg, a->base.err);
    else if (key == ARGP_KEY_ARG)
        rc = list_what(a, arg);
    else
        return ARGP_ERR_UNKNOWN;
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp list_argp = { .options = list_options,
                                       .parser = list_parse,
                                       .args_doc = "[policies|tasks|kv-types]",
                                       .doc = "What there is to compare, and to compare it on." };

enum { LIST_NAME = 20, LIST_INDENT = 2 + LIST_NAME + 1, LIST_WIDTH = 110 };

static void list_row(const char *name, const char *help, const char *origin)
{
    struct kvl_buf text = { 0 };
    printf("  %-*s ", LIST_NAME, name);
    int rc = origin ? kvl_buf_printf(&text, "%s (%s)", help, origin) : KVL_EINVAL;
    kvl_wrap(rc == KVL_OK ? text.data : help, LIST_INDENT, LIST_WIDTH, stdout);
    kvl_buf_free(&text);
}

/* What a policy is first of all: the heading that it stands under. */
enum list_kind { BOUND, EVICTS_ONCE, EVICTS, SELECTS, OFFLOADS, PREFILLS, WRAPS, OTHER, N_KINDS };

/* Some only offload when they are told to. */
static bool list_offloads(const struct kvl_policy *p)
{
    const struct kvl_opt *o = p->opts ? kvl_opt_find(p->opts, "offload") : NULL;
    return (p->caps & KVL_CAP_OFFLOADS) && !(o && strcmp(o->def, "false") == 0);
}

static enum list_kind list_kind(const struct kvl_policy *p)
{
    if (p->caps & KVL_CAP_BOUND) return BOUND;
    if (p->inner) return WRAPS;
    if (p->prefill == KVL_PREFILL_OWN) return PREFILLS;
    if (list_offloads(p)) return OFFLOADS;
    if (p->caps & KVL_CAP_SELECTS) return SELECTS;
    if (p->caps & KVL_CAP_EVICTS) return p->evict ? EVICTS : EVICTS_ONCE;
    return OTHER;
}

static void list_policies(const struct kvl_registry *r)
{
    static const char *const heading[N_KINDS] = {
        [BOUND] = "bounds, which stand in every table",
        [EVICTS_ONCE] = "methods that evict once, when the context is complete",
        [EVICTS] = "methods that evict while decoding",
        [SELECTS] = "methods that keep all and read a part",
        [OFFLOADS] = "methods that keep a part in the host tier",
        [PREFILLS] = "methods that make the prefill sparse",
        [WRAPS] = "methods that change what another chooses: outer(inner)",
        [OTHER] = "other methods",
    };
    puts("policies");
    for (int kind = 0; kind < N_KINDS; kind++) {
        bool any = false;
        for (size_t i = 0; i < kvl_registry_n_policies(r); i++) {
            const struct kvl_policy *p = kvl_registry_policy(r, i);
            if ((int)list_kind(p) != kind) continue;
            if (!any) printf(" %s:\n", heading[kind]);
            any = true;
            list_row(p->name, p->help, kvl_registry_origin(r, i));
        }
    }
}

static void list_tasks(const struct kvl_registry *r)
{
    puts("tasks");
    for (size_t i = 0; i < kvl_registry_n_tasks(r); i++) {
        const struct kvl_task *t = kvl_registry_task(r, i);
        list_row(t->name, t->help, kvl_registry_task_origin(r, i));
    }
}

/* By the table that stores have of them. */
static void list_kv_types(void)
{
    enum { DIM = 128 };
    static const char *const turn[] = {
        [KVL_TURN_NONE] = "",
        [KVL_TURN_PLAIN] = "; each head turned by a Hadamard transform before",
        [KVL_TURN_SIGNED] = "; each head turned by a Hadamard transform with random signs before",
    };
    puts("types of keys and values (kv_type, --kv-type; keys/values apart: q8_0/q4_0)");
    for (int i = 0; kvl_kv_facts((enum kvl_kv_type)i); i++) {
        const struct kvl_kv_facts *f = kvl_kv_facts((enum kvl_kv_type)i);
        char of[64] = "of any size", open[64] = "", help[256];
        double bits = 8.0 * (double)kvl_kv_row_bytes((enum kvl_kv_type)i, DIM) / DIM;
        if (f->unit > 1) snprintf(of, sizeof of, "whose size is a multiple of %d", f->unit);
        if (f->open_tok > 0)
            snprintf(open, sizeof open, "; the newest %d tokens and more are f16", f->open_tok);
        snprintf(help, sizeof help, "%g bits an element in heads of %d; heads %s%s%s", bits, DIM,
                 of, turn[f->turn], open);
        list_row(f->name, help, NULL);
    }
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
        if (policies) list_policies(a.registry);
        if (tasks) list_tasks(a.registry);
        if (!a.what || strcmp(a.what, "kv-types") == 0) list_kv_types();
    }
    kvl_registry_destroy(a.registry);
    return rc;
}
