/* The flags of a sweep. */
#include "run_and_sweep.h"

#include "jobs.h"
#include "policy_spec.h"
#include "settings.h"
#include "snapshot_folder.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SWEEP_KEY_STALE = 0x280,
    SWEEP_KEY_DRY,
    SWEEP_KEY_CELLS,
    SWEEP_KEY_JOBS,
    SWEEP_KEY_LIMIT,
    SWEEP_KEY_LOG,
    SWEEP_KEY_MEMORY,
    SWEEP_KEY_ONLY,
    SWEEP_KEY_QUIET,
    SWEEP_KEY_RETRY,
    SWEEP_KEY_SET,
    SWEEP_KEY_SHARD,
    SWEEP_KEY_SNAPSHOTS,
    SWEEP_KEY_SNAPSHOTS_LIMIT,
    SWEEP_KEY_STATS,
    SWEEP_KEY_STRICT,
    SWEEP_KEY_TASK_PLUGIN
};

static const struct argp_option sweep_options[] = {
    { "log", SWEEP_KEY_LOG, "FILE", 0, "where the results go (default out/NAME.jsonl.zst)", 0 },
    { "set", SWEEP_KEY_SET, "KEY=VALUE", 0,
      "a value that replaces the configuration's, as YAML (repeatable)", 0 },
#define SWEEP_FLAG(id, name, key, arg, help) { name, KVL_FLAG_##id, arg, 0, help, 0 },
#include "settings.def"
    { "dry-run", SWEEP_KEY_DRY, NULL, 0,
      "print the cells that the log lacks, and what memory and time they take; where the log has "
      "no "
      "times yet, a short context of each task is run for them and forgotten (not with --quiet)",
      0 },
    { "cells", SWEEP_KEY_CELLS, NULL, 0, "with --dry-run: every cell, however many", 0 },
    { "jobs", SWEEP_KEY_JOBS, "N", 0,
      "worker processes that answer contexts, with the threads shared out among them; kv_limit_mib "
      "is the limit of each.  1: this process does it.  auto (default): as many as threads where a "
      "token reads less than 32 MiB of weights, else 1.  Plug-ins are always run by workers",
      0 },
    { "cell-limit", SWEEP_KEY_LIMIT, "TIME", 0,
      "a cell whose policy or task runs longer without an answer fails: 90s, 30m, 12h; 0: none "
      "(default 24h, where workers answer; with this option they do)",
      0 },
    { "cell-memory", SWEEP_KEY_MEMORY, "SIZE", 0,
      "a cell fails whose policy or task makes its worker hold more (500M, 8G).  Without it, one "
      "that holds more than planned fails when this machine's memory runs out, where workers "
      "answer; with this option they do",
      0 },
    { "shard", SWEEP_KEY_SHARD, "I/N", 0,
      "run the I-th of N shares, 0 <= I < N.  auto (default): what KVLAB_SHARD, a Slurm array, "
      "srun, MPI or a "
      "Kubernetes job say, where there are several; auto/N: their number, plus KVLAB_SHARD_OFFSET, "
      "of N; none: "
      "everything",
      0 },
    { "only", SWEEP_KEY_ONLY, "WHAT", 0,
      "speed or accuracy: the timed cells alone, which want machines of one kind, or the others",
      0 },
    { "snapshots", SWEEP_KEY_SNAPSHOTS, "DIR", 0,
      "load prefilled contexts from DIR, and save there what it lacks", 0 },
    { "snapshots-limit", SWEEP_KEY_SNAPSHOTS_LIMIT, "SIZE", 0,
      "bytes that DIR may hold (500M, 200G): what was used longest ago gives way (default: no "
      "limit)",
      0 },
    { "accept-stale", SWEEP_KEY_STALE, NULL, 0,
      "keep cells that other code answered, marked in tables", 0 },
    { "retry", SWEEP_KEY_RETRY, NULL, 0, "run again what failed", 0 },
    { "strict", SWEEP_KEY_STRICT, NULL, 0, "exit with 6 when anything failed", 0 },
    { "quiet", SWEEP_KEY_QUIET, NULL, 0, "no progress line, no table", 0 },
    { "task-plugin", SWEEP_KEY_TASK_PLUGIN, "X.so", 0,
      "load a task from a shared object (repeatable)", 0 },
    { "stats", SWEEP_KEY_STATS, NULL, 0, "print what was prefilled and answered", 0 },
    { 0 }
};

int kvl_sweep_override(struct kvl_sweep_args *a, const char *path, const char *flag,
                       const char *text, bool quote)
{
    if (a->n_overrides == KVL_YAML_MAX_OVERRIDES)
        return kvl_fail(a->args->err, KVL_EINVAL, "%s: more than %d values from the command line",
                        flag, KVL_YAML_MAX_OVERRIDES);
    struct kvl_buf *b = &a->text[a->n_overrides];
    if ((quote ? kvl_text_quote(b, text) : kvl_buf_adds(b, text)) != KVL_OK)
        return kvl_fail(a->args->err, KVL_ENOMEM, "%s: out of memory", flag);
    a->override[a->n_overrides++] =
        (struct kvl_yaml_override){ .path = path, .flag = flag, .text = b->data };
    return KVL_OK;
}

/* "a,b" is the YAML list ["a", "b"], a single word is itself. */
static int sweep_list(struct kvl_buf *out, const char *text)
{
    if (!text[kvl_outside(text, ",")]) return kvl_text_quote(out, text);
    char word[256];
    KVL_TRY(kvl_buf_adds(out, "["));
    for (const char *p = text; *p;) {
        size_t n = kvl_outside(p, ",");
        snprintf(word, sizeof word, "%.*s", (int)KVL_MIN(n, sizeof word - 1), p);
        KVL_TRY(kvl_text_quote(out, word));
        p += n;
        if (*p) p++;
        KVL_TRY(kvl_buf_adds(out, *p ? ", " : ""));
    }
    return kvl_buf_adds(out, "]");
}

int kvl_sweep_override_words(struct kvl_sweep_args *a, const char *path, const char *flag,
                             const char *text)
{
    struct kvl_buf list = { 0 };
    int rc = sweep_list(&list, text);
    if (rc == KVL_OK)
        rc = kvl_sweep_override(a, path, flag, list.data, false);
    else
        kvl_fail(a->args->err, rc, "%s: out of memory", flag);
    kvl_buf_free(&list);
    return rc;
}

static int sweep_set(struct kvl_sweep_args *a, const char *word)
{
    const char *value = strchr(word, '=');
    struct kvl_buf *path = &a->path[a->n_overrides % KVL_YAML_MAX_OVERRIDES];
    if (!value || value == word)
        return kvl_fail(a->args->err, KVL_EINVAL, "--set: \"%s\", want KEY=VALUE", word);
    static const char flag[] = "--set ";
    path->len = 0;
    if (kvl_buf_adds(path, flag) || kvl_buf_add(path, word, (size_t)(value - word)))
        return kvl_fail(a->args->err, KVL_ENOMEM, "--set: out of memory");
    return kvl_sweep_override(a, path->data + sizeof flag - 1, path->data, value + 1, false);
}

static int sweep_limit(struct kvl_sweep_args *a, const char *text)
{
    char *end;
    double v = strtod(text, &end);
    double unit = *end == 'h' ? 3600.0 : *end == 'm' ? 60.0 : 1.0;
    bool good =
        end != text && (!*end || (strchr("smh", *end) && !end[1])) && v >= 0 && v * unit < 1e9;
    if (!good || !isdigit((unsigned char)*text))
        return kvl_fail(a->args->err, KVL_EINVAL,
                        "--cell-limit: \"%s\": want a time such as 90s, 30m or 12h, or 0", text);
    a->cell_limit = true;
    a->cell_limit_s = v * unit;
    return KVL_OK;
}

static int sweep_only(struct kvl_sweep_args *a, const char *text)
{
    a->only = strcmp(text, "speed") == 0      ? KVL_ONLY_SPEED
              : strcmp(text, "accuracy") == 0 ? KVL_ONLY_ACCURACY
                                              : KVL_ONLY_ALL;
    if (a->only != KVL_ONLY_ALL) return KVL_OK;
    return kvl_fail(a->args->err, KVL_EINVAL, "--only: \"%s\": want speed or accuracy", text);
}

static error_t sweep_parse(int key, char *arg, struct argp_state *state)
{
    struct kvl_sweep_args *a = state->input;
    int rc = KVL_OK;
    switch (key) {
    case ARGP_KEY_INIT:
        a->model.args = a->args;
        a->model.kv_types = true;
        state->child_inputs[0] = &a->model;
        break;
    case SWEEP_KEY_JOBS: rc = kvl_jobs_parse(arg, &a->jobs, a->args->err); break;
    case SWEEP_KEY_LIMIT: rc = sweep_limit(a, arg); break;
    case SWEEP_KEY_LOG: a->log = arg; break;
    case SWEEP_KEY_MEMORY:
        rc = kvl_size_parse("--cell-memory", arg, &a->cell_memory_bytes, a->args->err);
        break;
    case SWEEP_KEY_ONLY: rc = sweep_only(a, arg); break;
    case SWEEP_KEY_SET: rc = sweep_set(a, arg); break;
    case SWEEP_KEY_DRY: a->dry_run = true; break;
    case SWEEP_KEY_CELLS: a->cells = true; break;
    case SWEEP_KEY_SHARD: a->shard = arg; break;
    case SWEEP_KEY_SNAPSHOTS: a->snapshots = arg; break;
    case SWEEP_KEY_SNAPSHOTS_LIMIT:
        rc = kvl_size_parse("--snapshots-limit", arg, &a->snapshots_limit, a->args->err);
        break;
    case SWEEP_KEY_STALE: a->accept_stale = true; break;
    case SWEEP_KEY_RETRY: a->retry = true; break;
    case SWEEP_KEY_STRICT: a->strict = true; break;
    case SWEEP_KEY_QUIET: a->quiet = true; break;
    case SWEEP_KEY_STATS: a->stats = true; break;
    case SWEEP_KEY_TASK_PLUGIN:
        rc = kvl_registry_task_plugin(a->model.registry, arg, a->args->err);
        break;
    default:
        rc = kvl_sweep_flag(a, key, arg);
        if (rc == ARGP_ERR_UNKNOWN) return ARGP_ERR_UNKNOWN;
    }
    return rc == KVL_OK ? 0 : kvl_args_fail(a->args, rc);
}

static const struct argp_child sweep_children[] = { { &kvl_model_argp, 0, NULL, 0 }, { 0 } };
const struct argp kvl_sweep_argp = {
    .options = sweep_options,
    .parser = sweep_parse,
    .children = sweep_children,
};

void kvl_sweep_args_free(struct kvl_sweep_args *a)
{
    for (size_t i = 0; i < KVL_YAML_MAX_OVERRIDES; i++) {
        kvl_buf_free(&a->text[i]);
        kvl_buf_free(&a->path[i]);
    }
    kvl_free(a->argv);
    a->argv = NULL;
    a->n_overrides = 0;
}

int kvl_sweep_args_keep(struct kvl_sweep_args *a, int argc, char **argv, struct kvl_err *err)
{
    a->argv = kvl_alloc((size_t)argc, sizeof *a->argv);
    if (!a->argv) return kvl_fail(err, KVL_ENOMEM, "out of memory");
    memcpy(a->argv, argv, (size_t)argc * sizeof *argv);
    a->argc = argc;
    return KVL_OK;
}

int kvl_sweep_flag(struct kvl_sweep_args *a, int key, const char *text)
{
    static const struct {
        int id;
        bool words;
        const char *path, *flag;
    } flags[] = {
#define WORDS(id, name, key, arg, help)      { KVL_FLAG_##id, true, key, "--" name },
#define RUN_FLAG                             WORDS
#define CONTEXT_FLAG                         WORDS
#define ANALYZE_FLAG                         WORDS
#define SWEEP_FLAG(id, name, key, arg, help) { KVL_FLAG_##id, false, key, "--" name },
#include "settings.def"
    };
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (flags[i].id != key) continue;
        return flags[i].words ? kvl_sweep_override_words(a, flags[i].path, flags[i].flag, text)
                              : kvl_sweep_override(a, flags[i].path, flags[i].flag, text, true);
    }
    return ARGP_ERR_UNKNOWN;
}

int kvl_sweep_model_flags(struct kvl_sweep_args *a)
{
#define MODEL_FLAG(member, key, flag)                                                              \
    if (a->model.member)                                                                           \
        KVL_TRY(strcmp(key, "kv_type") == 0                                                        \
                    ? kvl_sweep_override_words(a, key, flag, a->model.member)                      \
                    : kvl_sweep_override(a, key, flag, a->model.member, true));
#include "settings.def"
    return KVL_OK;
}

int kvl_sweep_flags(struct kvl_sweep_args *a)
{
    if (a->log) KVL_TRY(kvl_sweep_override(a, "log", "--log", a->log, true));
    return kvl_sweep_model_flags(a);
}
