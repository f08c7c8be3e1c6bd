/* The command line of kvlab tables. */
#include "tables_args.h"

#include "registry.h"

#include <stdio.h>
#include <string.h>

enum {
    TABLES_KEY_BUDGET = 0x100,
    TABLES_KEY_LENGTH,
    TABLES_KEY_CONTEXTS,
    TABLES_KEY_SEED,
    TABLES_KEY_TASK_PLUGIN
};

/* The generated contexts that are measured unless tasks are named. */
static const char *const tables_default[] = { "kv_retrieval", "needle", "passkey",
                                              "two_stage_retr" };

static const struct argp_option tables_options[] = {
    { "task", 't', "NAME", 0,
      "whose contexts are measured (repeatable; default: all that retrieve)", 0 },
    { "length", TABLES_KEY_LENGTH, "N[,N...]", 0,
      "tokens of a context (default 1024,2048,4096, for one method 1024)", 0 },
    { "contexts", TABLES_KEY_CONTEXTS, "N", 0, "contexts of each task (default 2)", 0 },
    { "seed", TABLES_KEY_SEED, "N", 0, "of the contexts (default 1)", 0 },
    { "budget", TABLES_KEY_BUDGET, "B", 0,
      "of one method: sizes to compare at (default: a quarter of the length, 96 at least; "
      "duo_attention: none)",
      0 },
    { "out", 'o', "FILE", 0,
      "file to write; it must not exist (default: MODEL.tables, where methods find it; for one "
      "method standard output)",
      0 },
    { "task-plugin", TABLES_KEY_TASK_PLUGIN, "X.so", 0,
      "load a task from a shared object (repeatable)", 0 },
    { 0 }
};

static int tables_number(const struct kvl_tables_args *a, const char *what, const char *text,
                         int64_t min, int64_t max, int64_t *out)
{
    if (kvl_parse_i64(text, out) == KVL_OK && *out >= min && *out <= max) return KVL_OK;
    return kvl_fail(a->base.err, KVL_EINVAL, "%s: \"%s\" is out of range, want %lld to %lld", what,
                    text, (long long)min, (long long)max);
}

static int tables_count(const struct kvl_tables_args *a, const char *what, const char *text,
                        int64_t min, int32_t *out)
{
    int64_t n = 0;
    KVL_TRY(tables_number(a, what, text, min, 1 << 24, &n));
    *out = (int32_t)n;
    return KVL_OK;
}

/* The model, or a method and the model, which may also be given by its flag. */
static int tables_word(struct kvl_tables_args *a, const char *word)
{
    if (a->n_words == 2)
        return kvl_fail(a->base.err, KVL_EINVAL, "\"%s\": want a model, or a method and a model",
                        word);
    a->word[a->n_words++] = word;
    return KVL_OK;
}

static int tables_lengths(struct kvl_tables_args *a, const char *text)
{
    char word[32];
    for (const char *at = text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        int32_t n = 0;
        snprintf(word, sizeof word, "%.*s", (int)KVL_MIN(strcspn(at, ","), sizeof word - 1), at);
        if (a->want.n_lengths == KVL_TABLES_LENGTHS)
            return kvl_fail(a->base.err, KVL_EINVAL, "--length: more than %d numbers",
                            KVL_TABLES_LENGTHS);
        KVL_TRY(tables_count(a, "--length", word, 64, &n));
        a->want.length[a->want.n_lengths++] = n;
    }
    return KVL_OK;
}

static int tables_task(struct kvl_tables_args *a, const char *name)
{
    if (a->want.n_tasks == KVL_TABLES_TASKS)
        return kvl_fail(a->base.err, KVL_EINVAL, "--task %s: more than %d tasks", name,
                        KVL_TABLES_TASKS);
    a->want.task[a->want.n_tasks++] = name;
    return KVL_OK;
}

static error_t tables_parse(int key, char *arg, struct argp_state *state)
{
    struct kvl_tables_args *a = state->input;
    int rc = KVL_OK;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &a->model; break;
    case 't': rc = tables_task(a, arg); break;
    case 'o': a->want.out = arg; break;
    case TABLES_KEY_BUDGET: a->want.budget = arg; break;
    case TABLES_KEY_LENGTH: rc = tables_lengths(a, arg); break;
    case TABLES_KEY_CONTEXTS: rc = tables_count(a, "--contexts", arg, 1, &a->want.contexts); break;
    case TABLES_KEY_TASK_PLUGIN:
        rc = kvl_registry_task_plugin(a->model.registry, arg, a->base.err);
        break;
    case TABLES_KEY_SEED: rc = tables_number(a, "--seed", arg, 0, INT64_MAX, &a->want.seed); break;
    case ARGP_KEY_ARG: rc = tables_word(a, arg); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp_child tables_children[] = { { &kvl_model_argp, 0, NULL, 0 }, { 0 } };
const struct argp kvl_tables_argp = {
    .options = tables_options,
    .parser = tables_parse,
    .args_doc = "MODEL.gguf\nminference|duo_attention|qfilters|triattention|kvzap[:OPTION=V,...] "
                "MODEL.gguf",
    .doc =
        "Measures what methods want to know of a model beforehand, on generated contexts with a "
        "question and its answer, and writes it beside the model: what layers keep of their "
        "attention with each other's most important tokens and how many to leave dense "
        "(filter layers of omnikv and omnikv_prefill), and the share of each kv head's attention "
        "outside sink and window (duo_attention).  Methods take it from there by themselves.  "
        "For one method, the table of heads that it takes as table=FILE: of minference the kind "
        "of pattern that captures most of each query head's attention, of duo_attention the "
        "shares, of qfilters the direction of each kv head's queries, of triattention the mean and "
        "the lengths of each query head's queries.  Of kvzap it fits networks, "
        "which kvzap takes as weights=FOLDER: -o is the folder, and one text of four is held "
        "out.\v"
        "A file beside a model is used if it is of this very model (by its hash); delete it "
        "to measure again.",
    .children = tables_children,
};

static int tables_words(struct kvl_tables_args *a)
{
    bool given = a->model.model != NULL;
    if (a->n_words + given > 2)
        return kvl_fail(a->base.err, KVL_EINVAL, "\"%s\": want a model, or a method and a model",
                        a->word[1]);
    if (a->n_words + given == 2) a->want.policy = a->word[0];
    if (!given && a->n_words > 0) a->model.model = a->word[a->n_words - 1];
    return KVL_OK;
}

/* What was not said. */
static void tables_defaults(struct kvl_tables_args *a)
{
    static const int32_t lengths[] = { 1024, 2048, 4096 };
    const int32_t n_default = sizeof tables_default / sizeof tables_default[0];
    int32_t n_lengths = a->want.policy ? 1 : (int32_t)(sizeof lengths / sizeof lengths[0]);
    for (int32_t i = 0; a->want.n_tasks == 0 && i < n_default; i++)
        a->want.task[i] = tables_default[i];
    for (int32_t i = 0; a->want.n_lengths == 0 && i < n_lengths; i++)
        a->want.length[i] = lengths[i];
    if (a->want.n_tasks == 0) a->want.n_tasks = n_default;
    if (a->want.n_lengths == 0) a->want.n_lengths = n_lengths;
}

int kvl_tables_args_settle(struct kvl_tables_args *a)
{
    KVL_TRY(tables_words(a));
    tables_defaults(a);
    return KVL_OK;
}
