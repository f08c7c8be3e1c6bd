/* kvlab describe: one policy or task, its options with defaults, ranges and choices. */
#include "args.h"
#include "cmds.h"
#include "kvl/model.h"
#include "registry.h"

#include <stdio.h>
#include <string.h>

struct describe_args {
    struct kvl_args base;
    struct kvl_registry *registry;
    const char *name;
};

static const struct argp_option describe_options[] = {
    { "plugin", 'p', "X.so", 0, "load a policy from a shared object (repeatable)", 0 }, { 0 }
};

static error_t describe_parse(int key, char *arg, struct argp_state *state)
{
    struct describe_args *a = state->input;
    int rc = KVL_OK;
    if (key == 'p')
        rc = kvl_registry_plugin(a->registry, arg, a->base.err);
    else if (key == ARGP_KEY_ARG && !a->name)
        a->name = arg;
    else if (key == ARGP_KEY_ARG)
        rc = kvl_fail(a->base.err, KVL_EINVAL, "\"%s\": one name at a time", arg);
    else
        return ARGP_ERR_UNKNOWN;
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp describe_argp = { .options = describe_options,
                                           .parser = describe_parse,
                                           .args_doc = "NAME",
                                           .doc = "A policy or task, and its options." };

static void describe_caps(uint32_t caps)
{
    static const struct {
        uint32_t cap;
        const char *text;
    } words[] = {
        { KVL_CAP_EVICTS, "evicts" },
        { KVL_CAP_SELECTS, "selects" },
        { KVL_CAP_OFFLOADS, "offloads" },
        { KVL_CAP_PROBS, "looks at attention weights" },
        { KVL_CAP_PREFILL, "can read the context itself (prefill=own)" },
        { KVL_CAP_REPOSITIONS, "changes positions" },
        { KVL_CAP_SAMPLES, "draws random numbers" },
    };
    const char *between = "";
    printf("does       ");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (!(caps & words[i].cap)) continue;
        printf("%s%s", between, words[i].text);
        between = ", ";
    }
    puts(between[0] ? "" : "nothing: attends to everything");
}

static void describe_range(const struct kvl_opt *o)
{
    if (o->choices) {
        for (size_t i = 0; o->choices[i]; i++) printf("%s%s", i ? "|" : "", o->choices[i]);
        return;
    }
    static const char *const types[] = { "", "int", "number", "true|false", "", "text" };
    bool range = o->min < 0.0 || o->min > 0.0 || o->max < 0.0 || o->max > 0.0;
    printf("%s", types[o->type]);
    if (range) printf(" %.15g..%.15g", o->min, o->max);
}

static void describe_opts(const struct kvl_opt *o)
{
    if (!o || !o->name) {
        puts("options    none");
        return;
    }
    puts("options");
    for (; o->name; o++) {
        printf("  %s=%s  (", o->name, o->def);
        describe_range(o);
        printf(")\n      %s\n", o->help ? o->help : "");
    }
}

/* What it wraps, with the options of both. */
static void describe_wraps(const struct kvl_policy *composed)
{
    const struct kvl_policy *outer, *inner;
    if (!kvl_policy_parts(composed, &outer, &inner)) return;
    printf("wraps      %s, unless another is named: %s(NAME)\n", outer->inner, outer->name);
    printf("over       %s - %s: %s\n", inner->name, inner->title, inner->help);
}

static void describe_policy(const struct kvl_policy *p, const char *origin)
{
    printf("%s - %s (%s, version %u)\n", p->name, p->title,
           p->caps & KVL_CAP_BOUND ? "a bound, not a method" : "a method", p->version);
    printf("paper      %s\n", p->paper);
    printf("what       %s\n", p->help);
    describe_caps(p->caps);
    if (origin) printf("plug-in    %s\n", origin);
    describe_wraps(p);
    describe_opts(p->opts);
}

static void describe_task(const struct kvl_task *t)
{
    printf("%s - %s (a task, version %u)\n", t->name, t->title, t->version);
    printf("paper      %s\n", t->paper);
    printf("what       %s\n", t->help);
    describe_opts(t->opts);
}

/* Policies first, then tasks; a name of neither gets the nearest of both. */
static int describe_name(const struct kvl_registry *r, const char *name, struct kvl_err *err)
{
    const char *names[512];
    size_t n = 0;
    if (strpbrk(name, "()")) {
        const struct kvl_policy *composed;
        KVL_TRY(kvl_registry_find_policy(r, name, &composed, err));
        describe_policy(composed, NULL);
        return KVL_OK;
    }
    for (size_t i = 0; i < kvl_registry_n_policies(r); i++) {
        const struct kvl_policy *p = kvl_registry_policy(r, i);
        if (strcmp(p->name, name) == 0) {
            KVL_TRY(kvl_registry_find_policy(r, name, &p, err)); /* with what it wraps */
            describe_policy(p, kvl_registry_origin(r, i));
            return KVL_OK;
        }
        names[n++] = p->name;
    }
    for (size_t i = 0; i < kvl_n_tasks() && n < 512; i++) {
        if (strcmp(kvl_task(i)->name, name) == 0) {
            describe_task(kvl_task(i));
            return KVL_OK;
        }
        names[n++] = kvl_task(i)->name;
    }
    const char *near = kvl_nearest(name, names, n);
    if (near)
        return kvl_fail(err, KVL_EINVAL, "\"%s\" is no policy and no task, did you mean \"%s\"?",
                        name, near);
    return kvl_fail(err, KVL_EINVAL, "\"%s\" is no policy and no task, see kvlab list", name);
}

int cmd_describe(int argc, char **argv, struct kvl_err *err)
{
    struct describe_args a = { 0 };
    bool done;
    KVL_TRY(kvl_registry_create(&a.registry, err));
    int rc = kvl_args_parse(&describe_argp, argc, argv, &a, &done, err);
    if (rc == KVL_OK && !done && !a.name)
        rc = kvl_fail(err, KVL_EINVAL, "no name, want one of kvlab list");
    if (rc == KVL_OK && !done) rc = describe_name(a.registry, a.name, err);
    kvl_registry_destroy(a.registry);
    return rc;
}
