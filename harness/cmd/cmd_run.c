/* kvlab run: a sweep from flags. */
#include "cmds.h"
#include "config_text.h"
#include "registry.h"
#include "sweep_cmd.h"

#include <stdio.h>
#include <string.h>

struct run_command {
    struct kvl_args base;
    struct kvl_sweep_args sweep;
    struct kvl_buf policies; /* YAML list while it grows */
    const char *task, *text; /* as given, or NULL */
};

/* Flags whose value is a comma list of plain words. */
static const struct run_flag {
    int key;
    const char *name, *path;
} run_flags[] = {
    { 0x400, "--length", "lengths" },    { 0x401, "--budget", "budgets" },
    { 0x402, "--depth", "depths" },      { 0x403, "--protocol", "protocols" },
    { 0x404, "--contexts", "contexts" }, { 0x405, "--questions", "questions" },
    { 0x406, "--seed", "seed" },
};

enum { RUN_KEY_TASK = 't', RUN_KEY_POLICY = 'P', RUN_KEY_TEXT = 0x410 };

static const struct argp_option run_options[] = {
    { "task", RUN_KEY_TASK, "NAME[:OPTION=V,...]", 0, "task", 0 },
    { "policy", RUN_KEY_POLICY, "NAME[:OPTION=V,...]", 0,
      "policy (repeatable); prefill=own: it reads the context itself", 0 },
    { "text", RUN_KEY_TEXT, "FILE", 0, "what --task perplexity reads (default: filler text)", 0 },
    { "length", 0x400, "N[,N...]", 0, "context length in tokens", 0 },
    { "budget", 0x401, "B[,B...]", 0, "tokens per lane (256), or part of the context (25%)", 0 },
    { "depth", 0x402, "D[,D...]", 0, "spread (default), or 0 to 1", 0 },
    { "protocol", 0x403, "NAME[,NAME...]", 0, "default question_in_prefill", 0 },
    { "contexts", 0x404, "N", 0, "contexts per cell (default 8)", 0 },
    { "questions", 0x405, "N", 0, "questions per context (default 1)", 0 },
    { "seed", 0x406, "N", 0, "default 1", 0 },
    { 0 }
};

static int run_flag(struct run_command *a, int key, const char *text)
{
    for (size_t i = 0; i < sizeof run_flags / sizeof run_flags[0]; i++) {
        if (run_flags[i].key != key) continue;
        return kvl_sweep_override_words(&a->sweep, run_flags[i].path, run_flags[i].name, text);
    }
    return ARGP_ERR_UNKNOWN;
}

static int run_policy(struct run_command *a, const char *text)
{
    KVL_TRY(kvl_buf_adds(&a->policies, a->policies.len ? ", " : "["));
    return kvl_text_quote(&a->policies, text);
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
    case RUN_KEY_TASK: a->task = arg; break;
    case RUN_KEY_TEXT: a->text = arg; break;
    case RUN_KEY_POLICY: rc = run_policy(a, arg); break;
    case ARGP_KEY_ARG:
        rc = kvl_fail(a->base.err, KVL_EINVAL, "\"%s\": want flags only (--task NAME ...)", arg);
        break;
    default:
        rc = run_flag(a, key, arg);
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

/* The file is an option of the task like any other. */
static int run_task(struct run_command *a, struct kvl_err *err)
{
    static const char name[] = "perplexity";
    const char *task = a->task ? a->task : a->text ? name : NULL;
    if (!task) return KVL_OK;
    if (!a->text) return kvl_sweep_override(&a->sweep, "tasks", "--task", task, true);
    if (strncmp(task, name, sizeof name - 1) != 0)
        return kvl_fail(err, KVL_EINVAL, "--text: task %s reads no file, want --task perplexity",
                        task);
    if (strchr(a->text, ','))
        return kvl_fail(err, KVL_EINVAL, "--text: \"%s\" has a comma, want another name", a->text);
    struct kvl_buf word = { 0 };
    int rc = kvl_buf_printf(&word, "%s%ctext=%s", task, strchr(task, ':') ? ',' : ':', a->text);
    if (rc == KVL_OK)
        rc = kvl_sweep_override(&a->sweep, "tasks", "--task", word.data, true);
    else
        kvl_fail(err, rc, "out of memory");
    kvl_buf_free(&word);
    return rc;
}

static int run_all(struct run_command *a, struct kvl_err *err)
{
    KVL_TRY(run_task(a, err));
    if (a->policies.len == 0) return kvl_fail(err, KVL_EINVAL, "no policy, want --policy NAME");
    if (kvl_buf_adds(&a->policies, "]") != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "out of memory");
    KVL_TRY(kvl_sweep_override(&a->sweep, "policies", "--policy", a->policies.data, false));
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
    kvl_registry_destroy(a->sweep.model.registry);
    kvl_free(a);
    return rc;
}
