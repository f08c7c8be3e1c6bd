/* Tasks and policies of a sweep file. */
#include "config_point.h"

#include "code.h"
#include "crash_line.h"
#include "data_home.h"
#include "policy_spec.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { POINT_MAX_AXES = 32, POINT_FILE_LIMIT = 1 << 30 };

/* ---- growable arrays ------------------------------------------------------------------------- */

/* Room for one more item: the capacity doubles whenever n is 0 or a power of two. */
static int array_grow(void **v, size_t n, size_t item)
{
    if (n & (n - 1)) return KVL_OK;
    size_t bytes;
    KVL_TRY(kvl_mul_size(n ? 2 * n : 1, item, &bytes));
    void *grown = realloc(*v, bytes);
    if (!grown) return KVL_ENOMEM;
    *v = grown;
    return KVL_OK;
}

int kvl_texts_add(struct kvl_texts *t, const char *text)
{
    void *v = t->v;
    KVL_TRY(array_grow(&v, t->n, sizeof *t->v));
    t->v = v;
    t->v[t->n] = strdup(text);
    return t->v[t->n++] ? KVL_OK : KVL_ENOMEM;
}

void kvl_texts_free(struct kvl_texts *t)
{
    for (size_t i = 0; i < t->n; i++) free(t->v[i]);
    free(t->v);
    *t = (struct kvl_texts){ 0 };
}

int kvl_ints_add(struct kvl_ints *t, int32_t value)
{
    void *v = t->v;
    KVL_TRY(array_grow(&v, t->n, sizeof *t->v));
    t->v = v;
    t->v[t->n++] = value;
    return KVL_OK;
}

int kvl_doubles_add(struct kvl_doubles *t, double value)
{
    void *v = t->v;
    KVL_TRY(array_grow(&v, t->n, sizeof *t->v));
    t->v = v;
    t->v[t->n++] = value;
    return KVL_OK;
}

void kvl_points_free(struct kvl_points *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free(p->v[i].options);
        free(p->v[i].key);
        kvl_free(p->v[i].opts);
        if (p->v[i].source) p->v[i].task->close(p->v[i].source);
    }
    free(p->v);
    *p = (struct kvl_points){ 0 };
}

/* ---- one entry ------------------------------------------------------------------------------- */

struct point_axis {
    const char *name;
    struct kvl_texts values;
};

/* An entry as it is read. */
struct point_entry {
    struct kvl_yaml *y;
    const yaml_node_t *node; /* for messages */
    const char *key;
    enum kvl_point_kind kind;
    const struct kvl_registry *registry;
    struct kvl_points *out;
    struct kvl_point point; /* name found */
    struct point_axis axis[POINT_MAX_AXES];
    size_t n_axes;
    struct point_entry *preset; /* that this is an entry of; NULL: none */
    uint32_t taken;             /* of a preset: axes that some task of it has, bits */
    bool all;                   /* an axis was "all": files that are not there are passed over */
    struct kvl_err missing;     /* the first of them */
};

static const struct kvl_opt *point_table(const struct kvl_point *p, size_t *size)
{
    *size = p->task ? p->task->opts_size : p->policy->opts_size;
    return p->task ? p->task->opts : p->policy->opts;
}

static const char *point_name(const struct kvl_point *p)
{
    return p->task ? p->task->name : p->policy->name;
}

static int point_task_find(struct point_entry *e, const char *text, struct kvl_buf *options)
{
    struct kvl_buf name = { 0 };
    size_t n = strcspn(text, ":");
    int rc = kvl_buf_add(&name, text, n);
    if (rc == KVL_OK)
        rc = kvl_registry_find_task(e->registry, name.data, &e->point.task, e->y->err);
    if (rc == KVL_OK) rc = kvl_buf_adds(options, text[n] ? text + n + 1 : "");
    kvl_buf_free(&name);
    return rc;
}

/* The task or policy of "name:a=1,b=2", and the options. */
static int point_find(struct point_entry *e, const char *text, struct kvl_buf *options)
{
    int rc = e->kind == KVL_POINT_TASK
                 ? point_task_find(e, text, options)
                 : kvl_policy_word_parse(e->registry, text, &e->point.policy, options, e->y->err);
    return rc == KVL_OK ? rc : kvl_yaml_fail_at(e->y, e->node, e->key);
}

static int point_fill_task(struct kvl_point *p, const char *options, struct kvl_err *err)
{
    size_t size;
    const struct kvl_opt *table = point_table(p, &size);
    struct kvl_buf text = { 0 };
    p->opts = kvl_alloc(1, size ? size : 1);
    if (!p->opts) return kvl_fail(err, KVL_ENOMEM, "out of memory for options");
    KVL_TRY(kvl_opt_defaults(table, p->opts, err));
    KVL_TRY(kvl_opt_parse(table, p->opts, options, err));
    int rc = kvl_buf_adds(&text, "");
    if (rc == KVL_OK) rc = kvl_opt_print(table, p->opts, &text);
    p->options = text.data;
    return rc;
}

const struct kvl_reading *kvl_point_reading(const struct kvl_point *task)
{
    return task->task->score ? NULL : task->opts;
}

static int point_hash_file(struct kvl_point *p, const char *path, struct kvl_err *err)
{
    struct kvl_buf text = { 0 };
    KVL_TRY(kvl_read_file(path, POINT_FILE_LIMIT, &text, err));
    p->data = XXH3_64bits_withSeed(text.data ? text.data : "", text.len, p->data);
    kvl_buf_free(&text);
    return KVL_OK;
}

/* What a task reads from a file is part of its cells: the hash tells edited files apart. */
static int point_hash_text(struct kvl_point *p, struct kvl_err *err)
{
    const struct kvl_reading *reading = kvl_point_reading(p);
    if (reading) return reading->text[0] ? point_hash_file(p, reading->text, err) : KVL_OK;
    for (const struct kvl_opt *o = p->task->opts; o && o->name; o++) {
        const char *path = (const char *)p->opts + o->off;
        if (o->type == KVL_OPT_PATH && path[0]) KVL_TRY(point_hash_file(p, path, err));
    }
    return KVL_OK;
}

static int point_print_key(const struct kvl_point *p, struct kvl_buf *b)
{
    if (!p->source && (!p->data || kvl_point_reading(p))) return kvl_buf_adds(b, p->options);
    KVL_TRY(kvl_buf_printf(b, "data=%016llx", (unsigned long long)p->data));
    for (const struct kvl_opt *o = p->task->opts; o && o->name; o++) {
        if (o->type == KVL_OPT_PATH) continue;
        KVL_TRY(kvl_buf_printf(b, ",%s=", o->name));
        KVL_TRY(kvl_opt_value(o, p->opts, b));
    }
    return KVL_OK;
}

static int point_key(struct kvl_point *p)
{
    struct kvl_buf key = { 0 };
    int rc = point_print_key(p, &key);
    p->key = key.data;
    return rc;
}

/* The same of a task that has its contexts from files. */
static int point_open(struct kvl_point *p, struct kvl_err *err)
{
    if (!p->task->open) return point_hash_text(p, err);
    KVL_TRY(p->task->open(p->opts, &p->source, err));
    p->data = p->source->hash;
    return KVL_OK;
}

static int32_t group_parts(const struct kvl_task_source *source, int32_t group, int32_t questions)
{
    return (source->group[group] + questions - 1) / questions;
}

/* The group that a context is a part of, and which part; n_groups: none. */
static int32_t group_of(const struct kvl_sweep *s, const struct kvl_task_source *source,
                        int32_t context, int32_t *part)
{
    int32_t i = 0;
    while (i < source->n_groups && context >= group_parts(source, i, s->questions))
        context -= group_parts(source, i++, s->questions);
    *part = context;
    return i;
}

/* Questions that are left of a group at a part of it. */
int32_t kvl_point_questions(const struct kvl_sweep *s, const struct kvl_point *task,
                            int32_t context)
{
    const struct kvl_task_source *source = task->source;
    int32_t part, group = source ? group_of(s, source, context, &part) : 0;
    if (!source) return s->questions;
    if (group == source->n_groups) return 0;
    return KVL_MIN(source->group[group] - part * s->questions, s->questions);
}

int32_t kvl_point_text(const struct kvl_sweep *s, const struct kvl_point *task, int32_t context)
{
    int32_t part;
    return task->source ? group_of(s, task->source, context, &part) : context;
}

int32_t kvl_point_contexts(const struct kvl_sweep *s, const struct kvl_point *task)
{
    const struct kvl_task_source *source = task->source;
    int64_t parts = 0;
    if (!source) return s->contexts;
    for (int32_t i = 0; i < source->n_groups; i++) parts += group_parts(source, i, s->questions);
    return (int32_t)KVL_MIN(parts, s->contexts);
}

static int point_fill_policy(struct kvl_point *p, const char *options, struct kvl_err *err)
{
    struct kvl_buf text = { 0 }, rest = { 0 }, prefill = { 0 };
    size_t size;
    const struct kvl_opt *table = point_table(p, &size);
    int rc = kvl_options_take(options, "prefill", &rest, &prefill, err);
    if (rc == KVL_OK) rc = kvl_prefill_parse(p->policy, prefill.data, &p->own, err);
    if (rc == KVL_OK) rc = kvl_options_canonical(table, size, rest.data, &text, err);
    p->options = text.data;
    kvl_buf_free(&rest);
    kvl_buf_free(&prefill);
    return rc;
}

/* What is read, not asked, is raw text, too. */
static bool point_raw(const struct kvl_point *p)
{
    if (kvl_point_reading(p)) return true;
    if (!p->task->raw) return false;
    kvl_guard_task(p->task->name);
    bool raw = p->task->raw(p->opts);
    kvl_guard_task(NULL);
    return raw;
}

/* Adds the point with these options. */
static int point_add(struct point_entry *e, const char *options)
{
    struct kvl_point p = e->point;
    struct kvl_err *err = e->y->err;
    int rc = p.task ? point_fill_task(&p, options, err) : point_fill_policy(&p, options, err);
    p.foreign = p.task ? kvl_registry_task_foreign(e->registry, p.task)
                       : kvl_registry_foreign(e->registry, p.policy);
    p.code = p.task ? kvl_registry_task_code(e->registry, p.task)
                    : kvl_registry_code(e->registry, p.policy);
    if (rc == KVL_OK && p.task) rc = point_open(&p, err);
    if (rc == KVL_OK && p.task) rc = point_key(&p);
    void *v = e->out->v;
    if (rc == KVL_OK) rc = array_grow(&v, e->out->n, sizeof *e->out->v);
    e->out->v = v;
    if (rc == KVL_OK) {
        p.raw = p.task && point_raw(&p);
        e->out->v[e->out->n++] = p;
        return KVL_OK;
    }
    bool passed = rc == KVL_EIO && e->all;
    free(p.options);
    free(p.key);
    kvl_free(p.opts);
    if (p.source) p.task->close(p.source);
    if (passed) {
        kvl_fail(&e->missing, rc, "%s", err->msg);
        kvl_err_clear(err);
        return KVL_OK;
    }
    kvl_fail_at(err, rc, "%s", point_name(&e->point));
    return rc == KVL_EINVAL || rc == KVL_EIO ? kvl_yaml_fail_at(e->y, e->node, e->key) : rc;
}

/* Every combination of the axes from `i` on, behind the options chosen so far. */
static int point_product(struct point_entry *e, size_t i, struct kvl_buf *options)
{
    if (i == e->n_axes) return point_add(e, options->data ? options->data : "");
    size_t before = options->len;
    for (size_t v = 0; v < e->axis[i].values.n; v++) {
        options->len = before;
        KVL_TRY(kvl_buf_printf(options, "%s%s=%s", before ? "," : "", e->axis[i].name,
                               e->axis[i].values.v[v]));
        KVL_TRY(point_product(e, i + 1, options));
    }
    return KVL_OK;
}

/* "all" of a task that reads files: every choice of the option whose file is there. */
static int point_expand(struct point_entry *e)
{
    size_t size;
    if (e->kind != KVL_POINT_TASK || !e->point.task->open) return KVL_OK;
    for (size_t a = 0; a < e->n_axes; a++) {
        const struct kvl_opt *o = kvl_opt_find(point_table(&e->point, &size), e->axis[a].name);
        struct kvl_texts *v = &e->axis[a].values;
        if (!o || o->type != KVL_OPT_ENUM || v->n != 1 || strcmp(v->v[0], "all") != 0) continue;
        kvl_texts_free(v);
        for (int32_t i = 0; o->choices[i]; i++) KVL_TRY(kvl_texts_add(v, o->choices[i]));
        e->all = true;
    }
    return KVL_OK;
}

/* `options`: those that the name came with; they stand before all others. */
static int point_all(struct point_entry *e, struct kvl_buf *options)
{
    size_t before = e->out->n;
    int rc = point_expand(e);
    if (rc == KVL_OK) rc = point_product(e, 0, options);
    if (rc == KVL_OK && e->out->n == before && e->all)
        return kvl_yaml_fail(e->y, e->node, e->key, "%s: none of its files is there; %s",
                             point_name(&e->point), e->missing.msg);
    return rc;
}

static int point_axis_value(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                            const char *text, void *user)
{
    (void)key;
    if (strchr(text, ','))
        return kvl_yaml_fail(y, at, key, "\"%s\" has a comma, want [a, b] for several values",
                             text);
    return kvl_texts_add(user, text);
}

/* A new axis of the option `name`; NULL with a message when it has one, or there are too many. */
static struct point_axis *point_axis(struct point_entry *e, const yaml_node_t *at, const char *name)
{
    for (size_t a = 0; a < e->n_axes; a++)
        if (strcmp(e->axis[a].name, name) == 0) {
            kvl_yaml_fail(e->y, at, e->key, "option \"%s\" stands twice", name);
            return NULL;
        }
    if (e->n_axes == POINT_MAX_AXES) {
        kvl_yaml_fail(e->y, at, e->key, "more than %d options", POINT_MAX_AXES);
        return NULL;
    }
    e->axis[e->n_axes].name = name;
    return &e->axis[e->n_axes++];
}

/* The options that the preset was named with, as far as the task has them: they come before the preset's own. */
static int point_inherit(struct point_entry *e)
{
    struct point_entry *from = e->preset;
    size_t size;
    for (size_t a = 0; from && a < from->n_axes; a++) {
        size_t k = 0;
        if (!kvl_opt_find(point_table(&e->point, &size), from->axis[a].name)) continue;
        from->taken |= (uint32_t)1 << a;
        while (k < e->n_axes && strcmp(e->axis[k].name, from->axis[a].name) != 0) k++;
        if (k < e->n_axes) kvl_texts_free(&e->axis[k].values);
        struct point_axis *axis =
            k < e->n_axes ? &e->axis[k] : point_axis(e, e->node, from->axis[a].name);
        if (!axis) return KVL_EINVAL;
        for (size_t i = 0; i < from->axis[a].values.n; i++)
            KVL_TRY(kvl_texts_add(&axis->values, from->axis[a].values.v[i]));
    }
    return KVL_OK;
}

static int point_preset(struct point_entry *e, const char *name);

static int point_mapping(struct point_entry *e, yaml_node_t *node)
{
    const char *word = e->kind == KVL_POINT_TASK ? "task" : "policy", *name = NULL, *key;
    bool preset = false;
    yaml_node_t *value;
    for (size_t i = 0; i < kvl_yaml_n_pairs(node); i++) {
        KVL_TRY(kvl_yaml_pair(e->y, node, i, &key, &value));
        bool named = e->kind == KVL_POINT_TASK && strcmp(key, "preset") == 0;
        if (named || strcmp(key, word) == 0) {
            if (name) return kvl_yaml_fail(e->y, value, e->key, "\"%s\" stands twice", word);
            KVL_TRY(kvl_yaml_text(e->y, value, e->key, &name));
            preset = named;
            continue;
        }
        struct point_axis *axis = point_axis(e, value, key);
        if (!axis) return KVL_EINVAL;
        KVL_TRY(kvl_yaml_each(e->y, value, e->key, point_axis_value, &axis->values));
    }
    if (preset) return point_preset(e, name);
    if (!name)
        return kvl_yaml_fail(e->y, node, e->key, "an entry has no \"%s\", want {%s: name, ...}",
                             word, word);
    struct kvl_buf options = { 0 };
    int rc = point_find(e, name, &options);
    if (rc == KVL_OK) rc = point_inherit(e);
    if (rc == KVL_OK) rc = point_all(e, &options);
    kvl_buf_free(&options);
    return rc;
}

static int point_everything(struct point_entry *e)
{
    for (size_t i = 0; i < kvl_registry_n_policies(e->registry); i++) {
        const char *name = kvl_registry_policy(e->registry, i)->name;
        KVL_TRY(kvl_registry_find_policy(e->registry, name, &e->point.policy, e->y->err));
        KVL_TRY(point_add(e, ""));
    }
    return KVL_OK;
}

/* The options of a word as axes of one value each: one may be "all". */
static int point_word_all(struct point_entry *e, char *options)
{
    for (char *at = options, *next; at && *at; at = next) {
        char *equal = strchr(at, '=');
        next = strchr(at, ',');
        if (next) *next++ = '\0';
        if (!equal || equal == at || (next && equal > next))
            return kvl_yaml_fail(e->y, e->node, e->key, "\"%s\" is no option, want name=value", at);
        *equal = '\0';
        struct point_axis *axis = point_axis(e, e->node, at);
        if (!axis) return KVL_EINVAL;
        KVL_TRY(kvl_texts_add(&axis->values, equal + 1));
    }
    struct kvl_buf none = { 0 };
    int rc = point_all(e, &none);
    kvl_buf_free(&none);
    return rc;
}

static const char point_preset_word[] = "preset:";

/* "name" or "name:a=1,b=2"; of tasks also "preset:name". */
static int point_word(struct point_entry *e, const char *text)
{
    bool policy = e->kind == KVL_POINT_POLICY;
    if (policy && (strcmp(text, "*") == 0 || strcmp(text, "all") == 0)) return point_everything(e);
    if (!policy && strncmp(text, point_preset_word, strlen(point_preset_word)) == 0)
        return point_preset(e, text + strlen(point_preset_word));
    struct kvl_buf options = { 0 };
    int rc = point_find(e, text, &options);
    if (rc == KVL_OK) rc = point_inherit(e);
    if (rc == KVL_OK)
        rc = e->kind == KVL_POINT_TASK && e->point.task->open ? point_word_all(e, options.data)
                                                              : point_product(e, 0, &options);
    kvl_buf_free(&options);
    return rc;
}

static int point_read(struct point_entry *e, yaml_node_t *node)
{
    const char *text;
    e->node = node;
    e->point.line = e->y->lines ? (int32_t)node->start_mark.line + 1 : 0;
    if (node->type == YAML_MAPPING_NODE) return point_mapping(e, node);
    KVL_TRY(kvl_yaml_text(e->y, node, e->key, &text));
    return point_word(e, text);
}

/* Entries like `like`: what it has beside the entry itself. */
static int points_read(const struct point_entry *like, yaml_node_t *node)
{
    struct kvl_yaml *y = like->y;
    if (node->type == YAML_SEQUENCE_NODE && kvl_yaml_len(node) == 0)
        return kvl_yaml_fail(y, node, like->key, "is an empty list, want at least one entry");
    for (size_t i = 0; i < kvl_yaml_len(node); i++) {
        struct point_entry e = *like;
        int rc = point_read(&e, kvl_yaml_at(y, node, i));
        for (size_t a = 0; a < e.n_axes; a++) kvl_texts_free(&e.axis[a].values);
        if (rc != KVL_OK && !y->err->msg[0]) kvl_fail(y->err, rc, "%s: out of memory", like->key);
        KVL_TRY(rc);
    }
    return KVL_OK;
}

static int preset_tasks(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct point_entry *like = user;
    like->y = y;
    like->key = key;
    return points_read(like, v);
}

/* The tasks of harness/presets/NAME.yaml, with the options of the entry that names it. */
static int point_preset(struct point_entry *e, const char *name)
{
    static const struct kvl_yaml_key keys[] = { { "tasks", preset_tasks, false } };
    struct point_entry like = {
        .kind = e->kind, .registry = e->registry, .out = e->out, .preset = e
    };
    struct kvl_buf path = { 0 }, text = { 0 };
    char file[NAME_MAX], home[PATH_MAX];
    if (e->preset)
        return kvl_yaml_fail(e->y, e->node, e->key, "a preset names the preset \"%s\"", name);
    snprintf(file, sizeof file, "%s.yaml", name);
    if (strchr(name, '/') || kvl_home("harness/presets", file, home, sizeof home, NULL) != KVL_OK)
        return kvl_yaml_fail(e->y, e->node, e->key,
                             "no preset \"%s\", want the name of a file in harness/presets", name);
    int rc = kvl_buf_printf(&path, "%s/%s", home, file);
    if (rc == KVL_OK) rc = kvl_read_file(path.data, KVL_YAML_LIMIT, &text, e->y->err);
    struct kvl_yaml y = { 0 };
    if (rc == KVL_OK)
        rc = kvl_yaml_load(&y, path.data, true, text.data ? text.data : "", text.len, e->y->err);
    size_t before = e->out->n;
    if (rc == KVL_OK) rc = kvl_yaml_walk(&y, kvl_yaml_root(&y), "", keys, 1, &like);
    if (rc == KVL_OK && e->out->n == before)
        rc = kvl_fail(e->y->err, KVL_EINVAL, "%s: has no tasks", path.data);
    for (size_t a = 0; rc == KVL_OK && a < e->n_axes; a++)
        if (!(e->taken >> a & 1))
            rc = kvl_yaml_fail(e->y, e->node, e->key,
                               "no task of preset \"%s\" has an option \"%s\"", name,
                               e->axis[a].name);
    for (size_t i = before; i < e->out->n; i++) e->out->v[i].line = e->point.line;
    kvl_yaml_free(&y);
    kvl_buf_free(&text);
    kvl_buf_free(&path);
    return rc;
}

int kvl_points_read(struct kvl_yaml *y, yaml_node_t *node, const char *key,
                    enum kvl_point_kind kind, const struct kvl_registry *registry,
                    struct kvl_points *out)
{
    const struct point_entry like = {
        .y = y, .key = key, .kind = kind, .registry = registry, .out = out
    };
    return points_read(&like, node);
}
