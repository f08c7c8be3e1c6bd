/* The keys of a sweep file. */
#include "config.h"

#include "config_analyze.h"
#include "config_exclude.h"
#include "config_point.h"
#include "config_prompt.h"
#include "config_quality.h"
#include "config_text.h"
#include "config_values.h"
#include "policy_spec.h"
#include "show.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX_COUNT = 100000 };

struct config {
    struct kvl_sweep *s;
    const struct kvl_registry *registry;
    const char *model_dir; /* "model" is relative to it; NULL = as it is */
};

static int config_name(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct config *c = user;
    KVL_TRY(kvl_config_string(y, v, key, &c->s->name));
    if (strchr(c->s->name, '/'))
        return kvl_yaml_fail(y, v, key, "\"%s\" has a slash, want a plain name", c->s->name);
    return KVL_OK;
}

/* Relative to the file. */
static int config_path(const struct config *c, struct kvl_yaml *y, const yaml_node_t *v,
                       const char *key, const char *text, char **out)
{
    struct kvl_buf path = { 0 };
    bool relative = text[0] != '/' && y->lines && c->model_dir;
    if (!text[0]) return kvl_yaml_fail(y, v, key, "is empty, want the path of a GGUF file");
    if (kvl_buf_printf(&path, "%s%s%s", relative ? c->model_dir : "", relative ? "/" : "", text))
        return kvl_config_memory(y, key);
    free(*out);
    *out = path.data;
    return KVL_OK;
}

static int config_model(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct config *c = user;
    const char *text;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    return config_path(c, y, v, key, text, &c->s->model);
}

/* Paths are no ranges, whatever dots they have. */
static int config_models(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct config *c = user;
    kvl_texts_free(&c->s->models);
    if (kvl_yaml_len(v) == 0) return kvl_yaml_fail(y, v, key, "is an empty list, want paths");
    for (size_t i = 0; i < kvl_yaml_len(v); i++) {
        const char *text;
        char *path = NULL;
        const yaml_node_t *at = kvl_yaml_at(y, v, i);
        KVL_TRY(kvl_yaml_text(y, at, key, &text));
        KVL_TRY(config_path(c, y, at, key, text, &path));
        int rc = kvl_texts_add(&c->s->models, path);
        free(path);
        if (rc != KVL_OK) return kvl_config_memory(y, key);
    }
    return KVL_OK;
}

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

static int config_log(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_config_string(y, v, key, &((struct config *)user)->s->log);
}

static int config_chat(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_chat_read(y, v, key, &((struct config *)user)->s->chat);
}

/* An empty one is a system text, too: it takes the place of the template's own. */
static int config_system(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct kvl_sweep *s = ((struct config *)user)->s;
    const char *text;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    free(s->system);
    s->system = strdup(text);
    return s->system ? KVL_OK : kvl_config_memory(y, key);
}

static int config_seed(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    int64_t seed;
    KVL_TRY(kvl_yaml_i64(y, v, key, 0, INT64_MAX, &seed));
    ((struct config *)user)->s->seed = (uint64_t)seed;
    return KVL_OK;
}

static int config_kv_part(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    const char *text;
    enum kvl_kv_type *type = user;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    type += key[strlen(key) - 1] == 'v';
    if (kvl_kv_find(text, type) && kvl_kv_facts(*type)) return KVL_OK;
    return kvl_yaml_fail(y, v, key, "\"%s\" is no element type, want one of %s", text,
                         kvl_kv_list());
}

/* One for both, or keys and values apart: {k: q8_0, v: q4_0}, and in one word q8_0/q4_0. */
static int config_kv_type(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    static const struct kvl_yaml_key keys[] = { { "k", config_kv_part, false },
                                                { "v", config_kv_part, false } };
    enum kvl_kv_type *out = &((struct config *)user)->s->kv_type, part[] = { *out, *out };
    const char *text;
    if (v->type == YAML_MAPPING_NODE) {
        KVL_TRY(kvl_yaml_walk(y, v, "kv_type.", keys, 2, part));
        *out = kvl_kv_pair(part[0], part[1]);
        return KVL_OK;
    }
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    if (kvl_kv_find(text, out)) return KVL_OK;
    return kvl_yaml_fail(y, v, key, "\"%s\" is no element type, want one of %s, or {k: .., v: ..}",
                         text, kvl_kv_list());
}

static int config_prefill_type(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    const char *text;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    if (kvl_prefill_type_parse(text, &((struct config *)user)->s->prefill_type, NULL) != KVL_OK)
        return kvl_yaml_fail(y, v, key,
                             "\"%s\" is no arithmetic of prefill, want f32, bf16 or blas", text);
    return KVL_OK;
}

static int config_prefill_kv(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    const char *text;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    if (kvl_prefill_kv_parse(text, &((struct config *)user)->s->prefill_kv_host, NULL) != KVL_OK)
        return kvl_yaml_fail(y, v, key, "\"%s\" holds no keys and values, want device or host",
                             text);
    return KVL_OK;
}

static int config_window(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    const char *text;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    if (kvl_window_parse(text, &((struct config *)user)->s->windows_off, NULL) != KVL_OK)
        return kvl_yaml_fail(y, v, key, "\"%s\" says nothing of windows, want auto or off", text);
    return KVL_OK;
}

static int config_device(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    const char *text;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    struct kvl_sweep *s = ((struct config *)user)->s;
    if (kvl_device_parse(text, &s->device, &s->gpus, NULL) != KVL_OK)
        return kvl_yaml_fail(
            y, v, key,
            "\"%s\" is no device, want " KVL_DEVICE_NAMES "; GPUs by number as in cuda:0..7", text);
    return KVL_OK;
}

static int config_threads(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_config_i32(y, v, key, 1, 1024, &((struct config *)user)->s->threads);
}

static int config_contexts(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_config_i32(y, v, key, 1, CONFIG_MAX_COUNT, &((struct config *)user)->s->contexts);
}

static int config_questions(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_config_i32(y, v, key, 1, CONFIG_MAX_COUNT, &((struct config *)user)->s->questions);
}

static int config_chunk(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_config_i32(y, v, key, 1, 65536, &((struct config *)user)->s->chunk_tok);
}

static int config_max_tok(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_config_i32(y, v, key, 1, 1 << 30, &((struct config *)user)->s->max_tok);
}

static int config_kv_limit(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_config_i32(y, v, key, 1, INT32_MAX, &((struct config *)user)->s->kv_limit_mib);
}

static int config_batch(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_config_i32(y, v, key, 1, KVL_ASK_MAX, &((struct config *)user)->s->batch);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static int config_tasks(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct config *c = user;
    return kvl_points_read(y, v, key, KVL_POINT_TASK, c->registry, &c->s->tasks);
}

static int config_policies(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct config *c = user;
    return kvl_points_read(y, v, key, KVL_POINT_POLICY, c->registry, &c->s->policies);
}

static int config_lengths(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_yaml_each(y, v, key, kvl_config_add_length, &((struct config *)user)->s->lengths);
}

static int config_depths(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_yaml_each(y, v, key, kvl_config_add_depth, &((struct config *)user)->s->depths);
}

static int config_protocols(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_yaml_each(y, v, key, kvl_config_add_protocol,
                         &((struct config *)user)->s->protocols);
}

static int config_budgets(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_yaml_each(y, v, key, kvl_config_add_budget, &((struct config *)user)->s->budgets);
}

/* ---- speed ----------------------------------------------------------------------------------- */

static int config_speed_task(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct config *c = user;
    struct kvl_points *task = &c->s->speed.task;
    KVL_TRY(kvl_points_read(y, v, key, KVL_POINT_TASK, c->registry, task));
    return task->n == 1 ? KVL_OK : kvl_yaml_fail(y, v, key, "names %zu tasks, want one", task->n);
}

static int config_speed_policies(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct config *c = user;
    return kvl_points_read(y, v, key, KVL_POINT_POLICY, c->registry, &c->s->speed.policies);
}

static int config_speed_lengths(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_yaml_each(y, v, key, kvl_config_add_length,
                         &((struct config *)user)->s->speed.lengths);
}

static int config_speed_budgets(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_yaml_each(y, v, key, kvl_config_add_budget,
                         &((struct config *)user)->s->speed.budgets);
}

static int config_speed_steps(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_config_i32(y, v, key, 1, 1 << 20, &((struct config *)user)->s->speed.steps);
}

static int config_speed_warmup(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_config_i32(y, v, key, 0, 1 << 20, &((struct config *)user)->s->speed.warmup);
}

static int config_speed_repeats(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_config_i32(y, v, key, 1, 1000, &((struct config *)user)->s->speed.repeats);
}

static int config_speed(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    static const struct kvl_yaml_key keys[] = {
        { "task", config_speed_task, false },       { "policies", config_speed_policies, false },
        { "lengths", config_speed_lengths, false }, { "budgets", config_speed_budgets, false },
        { "steps", config_speed_steps, false },     { "warmup", config_speed_warmup, false },
        { "repeats", config_speed_repeats, false },
    };
    struct config *c = user;
    struct kvl_speed *speed = &c->s->speed;
    (void)key;
    *speed = (struct kvl_speed){ .on = true, .steps = 32, .warmup = 4, .repeats = 3 };
    return kvl_yaml_walk(y, v, "speed.", keys, sizeof keys / sizeof keys[0], user);
}

/* ---- the file -------------------------------------------------------------------------------- */

static int config_exclude(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct config *c = user;
    return kvl_exclude_read(y, v, key, c->registry, c->s);
}

static int config_analyze(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_analyze_read(y, v, key, &((struct config *)user)->s->analyze);
}

static int config_quality(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_quality_read(y, v, key, &((struct config *)user)->s->quality);
}

static int config_sampling(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_sampling_read(y, v, key, &((struct config *)user)->s->sampling);
}

static const struct kvl_yaml_key config_keys[] = {
    { "name", config_name, false },
    { "model", config_model, false },
    { "models", config_models, false },
    { "chat", config_chat, false },
    { "system", config_system, false },
    { "log", config_log, false },
    { "seed", config_seed, false },
    { "kv_type", config_kv_type, false },
    { "prefill_type", config_prefill_type, false },
    { "prefill_kv", config_prefill_kv, false },
    { "window", config_window, false },
    { "device", config_device, false },
    { "threads", config_threads, false },
    { "contexts", config_contexts, false },
    { "questions", config_questions, false },
    { "max_tok", config_max_tok, false },
    { "chunk_tok", config_chunk, false },
    { "kv_limit_mib", config_kv_limit, false },
    { "batch", config_batch, false },
    { "tasks", config_tasks, false },
    { "policies", config_policies, false },
    { "lengths", config_lengths, false },
    { "depths", config_depths, false },
    { "protocols", config_protocols, false },
    { "budgets", config_budgets, false },
    { "exclude", config_exclude, false },
    { "speed", config_speed, true },
    { "quality", config_quality, true },
    { "sampling", config_sampling, true },
    { "analyze", config_analyze, true },
};

static bool config_budgets_needed(const struct kvl_points *policies)
{
    for (size_t i = 0; i < policies->n; i++)
        if (!kvl_policy_ignores_budget(policies->v[i].policy)) return true;
    return false;
}

/* What must be there, with what for. */
static int config_check(const struct kvl_yaml *y, const struct kvl_sweep *s)
{
    bool accuracy = s->lengths.n > 0;
    const struct kvl_speed *speed = &s->speed;
    if (!s->model)
        return kvl_yaml_fail(y, NULL, "model", "is missing, want the path of a GGUF file");
    if (s->system && s->chat && strcmp(s->chat, "none") == 0)
        return kvl_yaml_fail(y, NULL, "system", "without a chat template, want chat: auto");
    if (!accuracy && !speed->on)
        return kvl_yaml_fail(y, NULL, "lengths", "is missing, want a list of tokens");
    if (accuracy && s->tasks.n == 0)
        return kvl_yaml_fail(y, NULL, "tasks", "is missing, want a list of kvlab list tasks");
    if (accuracy && s->policies.n == 0 && s->analyze.on)
        return kvl_yaml_fail(y, NULL, "policies", "is missing; what it analyzes: kvlab analyze %s",
                             s->file ? s->file : "FILE");
    if (accuracy && s->policies.n == 0)
        return kvl_yaml_fail(y, NULL, "policies", "is missing, want a list of kvlab list policies");
    if (accuracy && s->budgets.n == 0 && config_budgets_needed(&s->policies))
        return kvl_yaml_fail(y, NULL, "budgets", "is missing, want a list of tokens per lane");
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

static int config_walk(struct kvl_yaml *y, const char *name, struct config *c)
{
    struct kvl_sweep *s = c->s;
    KVL_TRY(kvl_yaml_walk(y, kvl_yaml_root(y), "", config_keys,
                          sizeof config_keys / sizeof config_keys[0], c));
    KVL_TRY(config_settle_models(y, s));
    KVL_TRY(config_check(y, s));
    if (config_fill_defaults(s, name) != KVL_OK) return kvl_config_memory(y, "name");
    if (kvl_sweep_print(s) != KVL_OK) return kvl_config_memory(y, "text");
    return KVL_OK;
}

static int config_read(const char *file, const char *name, struct kvl_yaml *y, struct config *c,
                       struct kvl_err *err)
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
    struct kvl_sweep s = { .seed = 1,
                           .kv_type = KVL_KV_F16,
                           .device = "cpu",
                           .gpus = { .n = 1 },
                           .contexts = 8,
                           .questions = 1,
                           .chunk_tok = 512,
                           .batch = KVL_ASK_MAX,
                           .sampling = kvl_greedy,
                           .analyze = kvl_analyze_defaults };
    struct config c = { .s = &s, .registry = registry };
    struct kvl_yaml y = { .override = overrides, .n_overrides = n_overrides };
    int rc = config_read(file, name, &y, &c, err);
    kvl_yaml_free(&y);
    for (size_t i = 0; i < n_overrides; i++) kvl_yaml_free(&overrides[i].yaml);
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_sweep_free(&s);
    return rc;
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
