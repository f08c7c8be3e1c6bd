/* kvlab describe: one policy or task, its options with defaults, ranges and choices; or tables of all methods. */
#include "args.h"
#include "cmds.h"
#include "kvl/model.h"
#include "method_tables.h"
#include "registry.h"
#include "wrap.h"

#include <stdio.h>
#include <string.h>

struct describe_args {
    struct kvl_args base;
    struct kvl_registry *registry;
    const char *name;
    bool markdown;
};

enum { DESCRIBE_MARKDOWN = 256 };

static const struct argp_option describe_options[] = {
    { "plugin", 'p', "X.so", 0, "load a policy from a shared object (repeatable)", 0 },
    { "task-plugin", 't', "X.so", 0, "load a task from a shared object (repeatable)", 0 },
    { "markdown", DESCRIBE_MARKDOWN, NULL, 0,
      "the tables of methods/README.md and methods/cards.md, of all methods; no NAME", 0 },
    { 0 }
};

static error_t describe_parse(int key, char *arg, struct argp_state *state)
{
    struct describe_args *a = state->input;
    int rc = KVL_OK;
    if (key == 'p')
        rc = kvl_registry_plugin(a->registry, arg, a->base.err);
    else if (key == 't')
        rc = kvl_registry_task_plugin(a->registry, arg, a->base.err);
    else if (key == DESCRIBE_MARKDOWN)
        a->markdown = true;
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

enum { DESCRIBE_LABEL = 14, DESCRIBE_HELP = 6, DESCRIBE_WIDTH = 88 };

/* "label   text", the text in lines of its own column. */
static void describe_text(const char *label, const char *text)
{
    printf("%-*s", DESCRIBE_LABEL, label);
    kvl_wrap(text, DESCRIBE_LABEL, DESCRIBE_WIDTH, stdout);
}

static void describe_does(const struct kvl_policy *p, const struct kvl_policy *card)
{
    uint32_t caps = p->caps | card->caps;
    enum kvl_prefill_kind prefill = KVL_MAX(p->prefill, card->prefill);
    bool moves = caps & KVL_CAP_REPOSITIONS, reads = caps & (KVL_CAP_EVICTS | KVL_CAP_SELECTS);
    const struct {
        bool does;
        const char *text;
    } words[] = {
        { caps & KVL_CAP_EVICTS, "evicts" },
        { caps & KVL_CAP_SELECTS, "selects" },
        { caps & KVL_CAP_OFFLOADS, "keeps a part in the host tier" },
        { card->inner, "changes what another policy answers" },
        { p->observe, "looks at attention weights" },
        { prefill == KVL_PREFILL_OWN, "reads the context itself (prefill=own, always)" },
        { prefill == KVL_PREFILL_EITHER, "can read the context itself (prefill=own)" },
        { moves && reads, "changes positions (of keys that turn: with OPT it changes none)" },
        { moves && !reads, "changes positions (of keys that turn: refused with OPT)" },
        { caps & KVL_CAP_RAGGED, "gives lanes different budgets" },
        { caps & KVL_CAP_ESTIMATES, "estimates a part of what it does not read" },
        { caps & KVL_CAP_TOKENS, "sees the ids of tokens" },
        { caps & KVL_CAP_SAMPLES, "draws random numbers" },
        { caps & KVL_CAP_ASYNC, "runs ahead of a GPU" },
    };
    struct kvl_buf text = { 0 };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (words[i].does) kvl_buf_printf(&text, "%s%s", text.len ? ", " : "", words[i].text);
    describe_text("does", text.len ? text.data : "nothing: attends to everything");
    kvl_buf_free(&text);
}

static void describe_range(const struct kvl_opt *o)
{
    if (o->choices) {
        for (size_t i = 0; o->choices[i]; i++) printf("%s%s", i ? "|" : "", o->choices[i]);
        return;
    }
    static const char *const types[] = { "", "int", "number", "true|false", "", "text", "path" };
    bool range = o->min < 0.0 || o->min > 0.0 || o->max < 0.0 || o->max > 0.0;
    printf("%s", types[o->type]);
    if (range) printf(" %.15g..%.15g", o->min, o->max);
}

static void describe_opts(const struct kvl_opt *o)
{
    if (!o || !o->name) {
        describe_text("options", "none");
        return;
    }
    puts("options");
    for (; o->name; o++) {
        printf("  %s=%s  (", o->name, o->def);
        describe_range(o);
        printf(")%s%s\n%*s", o->alias ? ", also " : "", o->alias ? o->alias : "", DESCRIBE_HELP,
               "");
        kvl_wrap(o->help ? o->help : "", DESCRIBE_HELP, DESCRIBE_WIDTH, stdout);
    }
}

/* The least budget depends on the model for some: said for one of a usual shape. */
static int describe_budget(const struct kvl_policy *p, struct kvl_err *err)
{
    static const struct kvl_shape usual = { .n_layers = 32,
                                            .n_heads = 32,
                                            .n_kv_heads = 8,
                                            .head_dim = 128,
                                            .n_embd = 4096,
                                            .n_vocab = 128256,
                                            .n_ctx_train = 131072,
                                            .group = 4 };
    void *opts = kvl_alloc(1, p->opts_size ? p->opts_size : 1);
    if (!opts) return kvl_fail(err, KVL_ENOMEM, "out of memory for options");
    int rc = kvl_opt_defaults(p->opts, opts, err);
    if (rc == KVL_OK)
        printf("%-*s%d tokens per lane at least, with the defaults on a model of %d layers\n",
               DESCRIBE_LABEL, "budget", kvl_policy_min_budget(p, &usual, opts), usual.n_layers);
    kvl_free(opts);
    return rc;
}

static void describe_card(const struct kvl_policy *p)
{
    const struct {
        const char *label, *text;
    } row[] = { { "paper", p->paper },           { "what", p->help }, { "follows", p->follows },
                { "deviations", p->deviations }, { "cost", p->cost }, { "wraps", p->inner } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (row[i].text) describe_text(row[i].label, row[i].text);
}

/* A policy that wraps others comes with its usual one: the card is its own, options are of both. */
static int describe_policy(const struct kvl_registry *r, const char *name, const char *origin,
                           struct kvl_err *err)
{
    const struct kvl_policy *p, *card, *inner = NULL;
    KVL_TRY(kvl_registry_find_policy(r, name, &p, err));
    if (!kvl_policy_parts(p, &card, &inner)) card = p;
    printf("%s - %s (%s, version %u)\n", name, p->title,
           p->caps & KVL_CAP_BOUND ? "a bound, not a method" : "a method", p->version);
    describe_card(card);
    describe_does(p, card);
    KVL_TRY(describe_budget(p, err));
    if (origin) describe_text("plug-in", origin);
    describe_opts(p->opts);
    return KVL_OK;
}

/* Which of a benchmark's tasks have scores that its script does not give, and why. */
static int describe_scores(const struct kvl_task *t, struct kvl_err *err)
{
    const struct kvl_opt *name = kvl_opt_find(t->opts, "name");
    char line[512];
    if (!t->unofficial) return KVL_OK;
    void *opts = kvl_alloc(1, t->opts_size ? t->opts_size : 1);
    if (!opts) return kvl_fail(err, KVL_ENOMEM, "out of memory for options");
    int rc = kvl_opt_defaults(t->opts, opts, err);
    for (size_t i = 0; rc == KVL_OK && (i == 0 || (name && name->choices[i])); i++) {
        if (name) rc = kvl_opt_set(t->opts, opts, "name", name->choices[i], err);
        const char *why = rc == KVL_OK ? t->unofficial(opts) : NULL;
        if (!why) continue;
        snprintf(line, sizeof line, "the scores%s%s: %s", name ? " of " : "",
                 name ? name->choices[i] : "", why);
        describe_text("not official", line);
    }
    kvl_free(opts);
    return rc;
}

static int describe_task(const struct kvl_task *t, const char *origin, struct kvl_err *err)
{
    printf("%s - %s (a task, version %u)\n", t->name, t->title, t->version);
    describe_text("paper", t->paper);
    describe_text("what", t->help);
    if (origin) describe_text("plug-in", origin);
    KVL_TRY(describe_scores(t, err));
    describe_opts(t->opts);
    return KVL_OK;
}

/* "outer(inner)", then policies, then tasks; a name of neither gets the nearest of both. */
static int describe_name(const struct kvl_registry *r, const char *name, struct kvl_err *err)
{
    const char *names[512];
    size_t n = 0;
    if (strpbrk(name, "()")) return describe_policy(r, name, NULL, err);
    for (size_t i = 0; i < kvl_registry_n_policies(r); i++) {
        const struct kvl_policy *p = kvl_registry_policy(r, i);
        if (strcmp(p->name, name) == 0)
            return describe_policy(r, name, kvl_registry_origin(r, i), err);
        names[n++] = p->name;
    }
    for (size_t i = 0; i < kvl_registry_n_tasks(r) && n < 512; i++) {
        const struct kvl_task *t = kvl_registry_task(r, i);
        if (strcmp(t->name, name) == 0)
            return describe_task(t, kvl_registry_task_origin(r, i), err);
        names[n++] = t->name;
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
    if (rc == KVL_OK && !done && !a.name && !a.markdown)
        rc = kvl_fail(err, KVL_EINVAL, "no name, want one of kvlab list");
    if (rc == KVL_OK && a.name && a.markdown)
        rc = kvl_fail(err, KVL_EINVAL,
                      "\"%s\" and --markdown: the tables are of all methods, give one of the two",
                      a.name);
    if (rc == KVL_OK && !done && a.markdown)
        kvl_method_tables(a.registry, stdout);
    else if (rc == KVL_OK && !done)
        rc = describe_name(a.registry, a.name, err);
    kvl_registry_destroy(a.registry);
    return rc;
}
