/* A sweep file as a whole: what must be there, and what stands for what is not. */
#include "config.h"

#include "config_point.h"
#include "policy_spec.h"
#include "settings.h"
#include "show.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool config_overridden(const struct kvl_yaml *y, const char *path)
{
    for (size_t i = 0; i < y->n_overrides; i++)
        if (strcmp(y->override[i].path, path) == 0) return true;
    return false;
}

/* One model, or several: what the command line names counts alone. */
static int config_settle_models(const struct kvl_yaml *y, struct kvl_sweep *s)
{
    bool flag = config_overridden(y, "model");
    if (s->model && s->models.n && flag == config_overridden(y, "models"))
        return kvl_yaml_fail(y, NULL, "models", "beside model, want one of the two");
    if (s->model && s->models.n && !flag) {
        free(s->model);
        s->model = NULL;
    }
    if (!s->model && s->models.n && !(s->model = strdup(s->models.v[0])))
        return kvl_config_memory(y, "models");
    if (s->models.n == 1 || flag) kvl_texts_free(&s->models);
    return KVL_OK;
}

static bool config_budgets_needed(const struct kvl_points *policies)
{
    for (size_t i = 0; i < policies->n; i++)
        if (!kvl_policy_ignores_budget(policies->v[i].policy)) return true;
    return false;
}

/* Of a key that a file has to name, and a sweep that is given by flags a flag. */
static int config_missing(const struct kvl_yaml *y, const struct kvl_sweep *s, const char *key,
                          const char *file, const char *flag)
{
    return kvl_yaml_fail(y, NULL, key, "is missing, want %s", s->file ? file : flag);
}

/* What must be there, with what for. */
static int config_check(const struct kvl_yaml *y, const struct kvl_sweep *s)
{
    bool accuracy = s->lengths.n > 0;
    const struct kvl_speed *speed = &s->speed;
    if (!s->model)
        return config_missing(y, s, "model", "the path of a GGUF file", "--model FILE.gguf");
    if (s->system && s->chat && strcmp(s->chat, "none") == 0)
        return kvl_yaml_fail(y, NULL, "system", "without a chat template, want chat: auto");
    if (!accuracy && !speed->on)
        return config_missing(y, s, "lengths", "a list of tokens", "--length TOKENS");
    if (accuracy && s->tasks.n == 0)
        return config_missing(y, s, "tasks", "a list of kvlab list tasks",
                              "--task NAME (kvlab list tasks)");
    if (accuracy && s->policies.n == 0 && s->analyze.on)
        return kvl_yaml_fail(y, NULL, "policies", "is missing; what it analyzes: kvlab analyze %s",
                             s->file ? s->file : "FILE");
    if (accuracy && s->policies.n == 0)
        return kvl_yaml_fail(y, NULL, "policies", "is missing, want a list of kvlab list policies");
    if (accuracy && s->budgets.n == 0 && config_budgets_needed(&s->policies))
        return config_missing(y, s, "budgets", "a list of tokens per lane",
                              "--budget TOKENS per lane");
    if (s->sampling.n > s->batch)
        return kvl_yaml_fail(y, NULL, "sampling.n", "%d answers that decode together, batch is %d",
                             s->sampling.n, s->batch);
    if (s->quality.questions > s->questions)
        return kvl_yaml_fail(y, NULL, "quality.questions", "%d of a context that is asked %d",
                             s->quality.questions, s->questions);
    for (size_t i = 0; s->quality.questions > 1 && i < s->protocols.n; i++)
        if (s->protocols.v[i] == KVL_MULTI_TURN)
            return kvl_yaml_fail(y, NULL, "quality.questions",
                                 "%d with protocol multi_turn, whose later questions have no dense "
                                 "session beside them: want 1",
                                 s->quality.questions);
    if (!speed->on) return KVL_OK;
    if (speed->lengths.n == 0)
        return kvl_yaml_fail(y, NULL, "speed.lengths", "is missing, want a list of tokens");
    if (speed->task.n == 0 && s->tasks.n == 0)
        return kvl_yaml_fail(y, NULL, "speed.task", "is missing, want one of kvlab list tasks");
    const struct kvl_point *task = speed->task.n ? &speed->task.v[0] : &s->tasks.v[0];
    if (task->source)
        return kvl_yaml_fail(y, NULL, "speed.task",
                             "%s reads contexts of any length from files, want a task that makes "
                             "them: speed.task: kv_retrieval",
                             task->task->name);
    const struct kvl_points *policies = speed->policies.n ? &speed->policies : &s->policies;
    if (policies->n == 0)
        return kvl_yaml_fail(y, NULL, "speed.policies", "is missing, want kvlab list policies");
    if (speed->budgets.n == 0 && s->budgets.n == 0 && config_budgets_needed(policies))
        return kvl_yaml_fail(y, NULL, "speed.budgets", "is missing, want tokens per lane");
    return KVL_OK;
}

static int config_fill_defaults(struct kvl_sweep *s, const char *name)
{
    int rc = KVL_OK;
    if (!s->name) s->name = strdup(name);
    if (!s->name) return KVL_ENOMEM;
    kvl_show_line(s->name); /* it goes into the heads of tables, and into a path */
    if (!s->log) {
        struct kvl_buf log = { 0 };
        rc = kvl_buf_printf(&log, "out/%s.jsonl.zst", s->name);
        s->log = log.data;
    }
    if (rc == KVL_OK && s->depths.n == 0) rc = kvl_doubles_add(&s->depths, KVL_DEPTH_SPREAD);
    if (rc == KVL_OK && s->protocols.n == 0)
        rc = kvl_ints_add(&s->protocols, KVL_QUESTION_IN_PREFILL);
    return rc;
}

/* Folder and stem of a path. */
static void config_split(const char *path, char *dir, char *stem, size_t size)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    const char *dot = strrchr(base, '.');
    snprintf(dir, size, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (slash == path) snprintf(dir, size, "/");
    snprintf(stem, size, "%.*s", dot && dot != base ? (int)(dot - base) : (int)strlen(base), base);
}

static int config_walk(struct kvl_yaml *y, const char *name, struct kvl_setting_for *c)
{
    struct kvl_sweep *s = c->s;
    KVL_TRY(kvl_settings_walk(y, kvl_yaml_root(y), "", c));
    KVL_TRY(config_settle_models(y, s));
    KVL_TRY(config_check(y, s));
    if (config_fill_defaults(s, name) != KVL_OK) return kvl_config_memory(y, "name");
    if (kvl_sweep_print(s) != KVL_OK) return kvl_config_memory(y, "text");
    return KVL_OK;
}

static int config_read(const char *file, const char *name, struct kvl_yaml *y,
                       struct kvl_setting_for *c, struct kvl_err *err)
{
    char dir[PATH_MAX], stem[PATH_MAX];
    struct kvl_buf text = { 0 };
    struct kvl_yaml_override *override = y->override;
    size_t n = y->n_overrides;
    for (size_t i = 0; i < n; i++)
        KVL_TRY(kvl_yaml_load(&override[i].yaml, override[i].flag, false, override[i].text,
                              strlen(override[i].text), err));
    if (file) {
        config_split(file, dir, stem, sizeof dir);
        c->model_dir = dir;
        if (!(c->s->file = strdup(file))) return kvl_fail(err, KVL_ENOMEM, "out of memory");
        KVL_TRY(kvl_read_file(file, KVL_YAML_LIMIT, &text, err));
        int rc = kvl_yaml_load(y, file, true, text.data, text.len, err);
        kvl_buf_free(&text);
        KVL_TRY(rc);
    } else {
        *y = (struct kvl_yaml){ .name = name, .lines = true, .err = err };
    }
    y->override = override;
    y->n_overrides = n;
    return config_walk(y, file ? stem : name, c);
}

int kvl_sweep_load(const char *file, const char *name, const struct kvl_registry *registry,
                   struct kvl_yaml_override *overrides, size_t n_overrides, struct kvl_sweep *out,
                   struct kvl_err *err)
{
    struct kvl_sweep s = { .gpus = { .n = 1 }, .sampling = kvl_greedy() };
    struct kvl_setting_for c = { .s = &s, .registry = registry };
    struct kvl_yaml y = { .override = overrides, .n_overrides = n_overrides };
    kvl_settings_default("", &s);
    kvl_settings_default("analyze.", &s);
    int rc = config_read(file, name, &y, &c, err);
    kvl_yaml_free(&y);
    for (size_t i = 0; i < n_overrides; i++) kvl_yaml_free(&overrides[i].yaml);
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_sweep_free(&s);
    return rc;
}

struct kvl_engine_desc kvl_sweep_engine(const struct kvl_sweep *s)
{
    return (struct kvl_engine_desc){ .kv_type = s->kv_type,
                                     .prefill_type = s->prefill_type,
                                     .decode_act = s->decode_act,
                                     .prefill_kv_host = s->prefill_kv_host,
                                     .chunk_tok = s->chunk_tok,
                                     .max_tok = s->max_tok,
                                     .kv_limit_bytes = (size_t)s->kv_limit_mib << 20 };
}

static bool config_whole(enum kvl_kv_type type)
{
    return type == KVL_KV_F32 || type == KVL_KV_F16 || type == KVL_KV_BF16;
}

enum kvl_kv_type kvl_kv_reference(enum kvl_kv_type type)
{
    return config_whole(kvl_kv_keys(type)) && config_whole(kvl_kv_values(type)) ? type : KVL_KV_F16;
}

void kvl_sweep_free(struct kvl_sweep *s)
{
    for (size_t i = 0; i < s->n_exclude; i++) {
        struct kvl_exclude *r = &s->exclude[i];
        kvl_texts_free(&r->policies);
        kvl_texts_free(&r->tasks);
        kvl_texts_free(&r->protocols);
        kvl_texts_free(&r->budgets);
        free(r->lengths.v);
        free(r->depths.v);
    }
    kvl_free(s->exclude);
    kvl_points_free(&s->tasks);
    kvl_points_free(&s->policies);
    kvl_points_free(&s->speed.task);
    kvl_points_free(&s->speed.policies);
    kvl_texts_free(&s->models);
    kvl_texts_free(&s->budgets);
    kvl_texts_free(&s->speed.budgets);
    free(s->lengths.v);
    free(s->speed.lengths.v);
    free(s->depths.v);
    free(s->protocols.v);
    free(s->name);
    free(s->file);
    free(s->model);
    free(s->chat);
    free(s->system);
    free(s->log);
    free(s->text);
    *s = (struct kvl_sweep){ 0 };
}
