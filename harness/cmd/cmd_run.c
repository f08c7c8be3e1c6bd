/* kvlab run: a sweep from flags. */
#include "cmds.h"
#include "policy_spec.h"
#include "registry.h"
#include "run_and_sweep.h"
#include "settings.h"

#include <stdio.h>
#include <string.h>

struct run_command {
    struct kvl_args base;
    struct kvl_sweep_args sweep;
    struct kvl_buf policies, tasks; /* comma lists while they grow */
    const char *text;               /* as given, or NULL */
};

enum { RUN_KEY_TASK = 't', RUN_KEY_POLICY = 'P', RUN_KEY_TEXT = 0x410 };

static const struct argp_option run_options[] = {
    { "task", RUN_KEY_TASK, "NAME[:OPTION=V,...][,NAME...]", 0,
      "task, or a list of them (repeatable: all of them run)", 0 },
    { "policy", RUN_KEY_POLICY, "NAME[:OPTION=V,...][,NAME...]", 0,
      "policy, or a list of them (repeatable); prefill=own: it reads the context itself.  In a "
      "list what has an = is an option of the name before it: quest:page=16,snapkv",
      0 },
    { "text", RUN_KEY_TEXT, "FILE", 0, "what --task perplexity reads (default: filler text)", 0 },
#define OPTION(id, name, key, arg, help) { name, KVL_FLAG_##id, arg, 0, help, 0 },
#define CONTEXT_FLAG                     OPTION
#define RUN_FLAG                         OPTION
#include "settings.def"
    { 0 }
};

static int run_more(struct run_command *a, struct kvl_buf *list, const char *text)
{
    int rc = list->len ? kvl_buf_adds(list, ",") : KVL_OK;
    if (rc == KVL_OK) rc = kvl_buf_adds(list, text);
    return rc == KVL_OK ? rc : kvl_fail(a->base.err, rc, "out of memory");
}

static error_t run_parse(int key, char *arg, struct argp_state *state)
{
    struct run_command *a = state->input;
    int rc = KVL_OK;
    switch (key) {
    case ARGP_KEY_INIT:
        a->sweep.args = &a->base;
        state->child_inputs[0] = &a->sweep;
        break;
    case RUN_KEY_TASK: rc = run_more(a, &a->tasks, arg); break;
    case RUN_KEY_TEXT: a->text = arg; break;
    case RUN_KEY_POLICY: rc = run_more(a, &a->policies, arg); break;
    case ARGP_KEY_ARG:
        rc = kvl_fail(a->base.err, KVL_EINVAL, "\"%s\": want flags only (--task NAME ...)", arg);
        break;
    default:
        rc = kvl_sweep_flag(&a->sweep, key, arg);
        if (rc == ARGP_ERR_UNKNOWN) return ARGP_ERR_UNKNOWN;
    }
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp_child run_children[] = { { &kvl_sweep_argp, 0, NULL, 0 }, { 0 } };
static const struct argp run_argp = {
    .options = run_options,
    .parser = run_parse,
    .doc = "A small sweep from flags: --model, --task, --policy, --length and --budget say what to "
           "run.  The log is out/run.jsonl.zst unless --log says otherwise.",
    .children = run_children,
};

static int run_word_check(const char *word, const char *flag, struct kvl_err *err)
{
    size_t n = kvl_outside(word, ":,");
    if (!word[0]) return kvl_fail(err, KVL_EINVAL, "%s: an empty name in the list", flag);
    if (word[n] == ',')
        return kvl_fail(err, KVL_EINVAL, "%s: \"%s\": options follow a colon, want %.*s:%s", flag,
                        word, (int)n, word, word + n + 1);
    return KVL_OK;
}

/* The words of a comma list as a YAML list; behind those of task `name` stands `more`, if any. */
static int run_list(const struct kvl_buf *list, const char *flag, const char *name,
                    const char *more, struct kvl_buf *out, struct kvl_err *err)
{
    struct kvl_buf word = { 0 };
    int rc = kvl_buf_adds(out, "[");
    for (const char *p = list->data; p && rc == KVL_OK;) {
        size_t n = kvl_list_word(p);
        word.len = 0;
        rc = kvl_buf_add(&word, p, n);
        if (rc == KVL_OK && run_word_check(word.data, flag, err) != KVL_OK) {
            kvl_buf_free(&word);
            return KVL_EINVAL;
        }
        size_t n_name = strcspn(word.data, ":");
        if (rc == KVL_OK && more && strlen(name) == n_name && strncmp(word.data, name, n_name) == 0)
            rc = kvl_buf_printf(&word, "%c%s", word.data[n_name] ? ',' : ':', more);
        if (rc == KVL_OK) rc = kvl_text_quote(out, word.data);
        p = p[n] ? p + n + 1 : NULL;
        if (rc == KVL_OK) rc = kvl_buf_adds(out, p ? ", " : "]");
    }
    kvl_buf_free(&word);
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "out of memory");
}

static bool run_has_task(const struct run_command *a, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = a->tasks.data; p;
         p = p[kvl_list_word(p)] ? p + kvl_list_word(p) + 1 : NULL)
        if (strncmp(p, name, n) == 0 && (!p[n] || strchr(":,", p[n]))) return true;
    return false;
}

/* The file is an option of the task like any other. */
static int run_tasks(struct run_command *a, struct kvl_err *err)
{
    static const char name[] = "perplexity";
    struct kvl_buf more = { 0 }, list = { 0 };
    if (a->text && a->tasks.len == 0) KVL_TRY(run_more(a, &a->tasks, name));
    if (a->tasks.len == 0) return KVL_OK;
    if (a->text && !run_has_task(a, name))
        return kvl_fail(err, KVL_EINVAL, "--text: task %s reads no file, want --task perplexity",
                        a->tasks.data);
    if (a->text && strchr(a->text, ','))
        return kvl_fail(err, KVL_EINVAL, "--text: \"%s\" has a comma, want another name", a->text);
    int rc = a->text ? kvl_buf_printf(&more, "text=%s", a->text) : KVL_OK;
    if (rc == KVL_OK) rc = run_list(&a->tasks, "--task", name, more.data, &list, err);
    if (rc == KVL_OK) rc = kvl_sweep_override(&a->sweep, "tasks", "--task", list.data, false);
    kvl_buf_free(&more);
    kvl_buf_free(&list);
    return rc;
}

static int run_policies(struct run_command *a, struct kvl_err *err)
{
    struct kvl_buf list = { 0 };
    if (a->policies.len == 0) return kvl_fail(err, KVL_EINVAL, "no policy, want --policy NAME");
    int rc = run_list(&a->policies, "--policy", "", NULL, &list, err);
    if (rc == KVL_OK) rc = kvl_sweep_override(&a->sweep, "policies", "--policy", list.data, false);
    kvl_buf_free(&list);
    return rc;
}

static int run_all(struct run_command *a, struct kvl_err *err)
{
    KVL_TRY(run_tasks(a, err));
    KVL_TRY(run_policies(a, err));
    return kvl_sweep_command(&a->sweep, NULL, "run", err);
}

int cmd_run(int argc, char **argv, struct kvl_err *err)
{
    struct run_command *a = kvl_alloc(1, sizeof *a);
    bool done;
    if (!a) return kvl_fail(err, KVL_ENOMEM, "out of memory");
    int rc = kvl_sweep_args_keep(&a->sweep, argc, argv, err);
    if (rc == KVL_OK) rc = kvl_registry_create(&a->sweep.model.registry, err);
    if (rc == KVL_OK) rc = kvl_args_parse(&run_argp, argc, argv, a, &done, err);
    if (rc == KVL_OK && !done) rc = run_all(a, err);
    kvl_sweep_args_free(&a->sweep);
    kvl_buf_free(&a->policies);
    kvl_buf_free(&a->tasks);
    kvl_registry_destroy(a->sweep.model.registry);
    kvl_free(a);
    return rc;
}
