/* Policies and tasks by name. */
#include "registry.h"

#include "code.h"
#include "kvl/model.h"
#include "plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KVL_POLICY_X(stem) extern const struct kvl_policy *const kvl_policy_##stem;
#include "kvl_policies.def"
#undef KVL_POLICY_X

#define KVL_TASK_X(stem) extern const struct kvl_task *const kvl_task_##stem;
#include "kvl_tasks.def"
#undef KVL_TASK_X

/* Addresses of the exported pointers: the pointers themselves are no constant expressions. */
static const struct kvl_policy *const *const registry_builtin[] = {
#define KVL_POLICY_X(stem) &kvl_policy_##stem,
#include "kvl_policies.def"
#undef KVL_POLICY_X
};

static const struct kvl_task *const *const registry_tasks[] = {
#define KVL_TASK_X(stem) &kvl_task_##stem,
#include "kvl_tasks.def"
#undef KVL_TASK_X
};

enum {
    REGISTRY_BUILTIN = sizeof registry_builtin / sizeof registry_builtin[0],
    REGISTRY_BUILTIN_TASKS = sizeof registry_tasks / sizeof registry_tasks[0],
    REGISTRY_MAX = 256
};

struct registry_entry {
    const struct kvl_policy *policy;
    struct kvl_plugin *plugin; /* NULL = built in */
};

struct registry_task {
    const struct kvl_task *task;
    struct kvl_plugin *plugin; /* NULL = built in */
};

/* outer(inner), made when somebody first asks for it. */
struct registry_composed {
    struct registry_composed *next;
    const struct kvl_policy *policy;
};

struct kvl_registry {
    struct registry_entry entry[REGISTRY_MAX];
    size_t n;
    struct registry_task task[REGISTRY_MAX];
    size_t n_tasks;
    struct registry_composed **composed; /* grows under a constant registry, too */
};

/* ---- policies -------------------------------------------------------------------------------- */

static int registry_order(const void *a, const void *b)
{
    const struct registry_entry *x = a, *y = b;
    return strcmp(x->policy->name, y->policy->name);
}

static int registry_add(struct kvl_registry *r, const struct kvl_policy *policy,
                        struct kvl_plugin *plugin, struct kvl_err *err)
{
    KVL_TRY(kvl_policy_check(policy, err));
    if (r->n == REGISTRY_MAX)
        return kvl_fail(err, KVL_EPOLICY, "more than %d policies", REGISTRY_MAX);
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->entry[i].policy->name, policy->name) == 0)
            return kvl_fail(err, KVL_EPOLICY,
                            "policy \"%s\" exists already (%s), want another name", policy->name,
                            r->entry[i].plugin ? kvl_plugin_path(r->entry[i].plugin) : "built in");
    r->entry[r->n++] = (struct registry_entry){ policy, plugin };
    qsort(r->entry, r->n, sizeof r->entry[0], registry_order);
    return KVL_OK;
}

int kvl_registry_plugin(struct kvl_registry *r, const char *path, struct kvl_err *err)
{
    struct kvl_plugin *plugin;
    KVL_TRY(kvl_plugin_open(path, KVL_PLUGIN_POLICY, &plugin, err));
    int rc = registry_add(r, kvl_plugin_object(plugin), plugin, err);
    if (rc == KVL_OK) return KVL_OK;
    kvl_fail_at(err, rc, "%s", kvl_plugin_path(plugin));
    kvl_plugin_close(plugin);
    return rc;
}

size_t kvl_registry_n_policies(const struct kvl_registry *r)
{
    return r->n;
}

const struct kvl_policy *kvl_registry_policy(const struct kvl_registry *r, size_t i)
{
    return r->entry[i].policy;
}

const char *kvl_registry_origin(const struct kvl_registry *r, size_t i)
{
    return r->entry[i].plugin ? kvl_plugin_path(r->entry[i].plugin) : NULL;
}

uint64_t kvl_registry_code(const struct kvl_registry *r, const struct kvl_policy *policy)
{
    const struct kvl_policy *outer, *inner;
    if (kvl_policy_parts(policy, &outer, &inner)) {
        return kvl_seed_mix(kvl_registry_code(r, outer), kvl_registry_code(r, inner));
    }
    for (size_t i = 0; i < r->n; i++)
        if (r->entry[i].policy == policy && r->entry[i].plugin)
            return kvl_plugin_hash(r->entry[i].plugin);
    return kvl_code_policy(policy);
}

bool kvl_registry_foreign(const struct kvl_registry *r, const struct kvl_policy *policy)
{
    const struct kvl_policy *outer, *inner;
    if (kvl_policy_parts(policy, &outer, &inner))
        return kvl_registry_foreign(r, outer) || kvl_registry_foreign(r, inner);
    for (size_t i = 0; i < r->n; i++)
        if (r->entry[i].policy == policy && r->entry[i].plugin) return true;
    return false;
}

/* "what "name": no such what, did you mean ...?" or the names there are. */
static int registry_unknown(const char *what, const char *name, const char *const *names, size_t n,
                            struct kvl_err *err)
{
    const char *near = kvl_nearest(name, names, n);
    if (near)
        return kvl_fail(err, KVL_EINVAL, "%s \"%s\" does not exist, did you mean \"%s\"?", what,
                        name, near);
    struct kvl_buf list = { 0 };
    for (size_t i = 0; i < n; i++) kvl_buf_printf(&list, "%s%s", i ? ", " : "", names[i]);
    int rc = kvl_fail(err, KVL_EINVAL, "%s \"%s\" does not exist, want one of %s", what, name,
                      list.data ? list.data : "");
    kvl_buf_free(&list);
    return rc;
}

static int registry_find(const struct kvl_registry *r, const char *name,
                         const struct kvl_policy **out, struct kvl_err *err)
{
    const char *names[REGISTRY_MAX];
    for (size_t i = 0; i < r->n; i++) {
        names[i] = r->entry[i].policy->name;
        if (strcmp(names[i], name) != 0) continue;
        *out = r->entry[i].policy;
        return KVL_OK;
    }
    return registry_unknown("policy", name, names, r->n, err);
}

static int registry_compose(const struct kvl_registry *r, const struct kvl_policy *outer,
                            const struct kvl_policy *inner, const struct kvl_policy **out,
                            struct kvl_err *err)
{
    const struct kvl_policy *o, *i;
    for (const struct registry_composed *c = *r->composed; c; c = c->next) {
        if (!kvl_policy_parts(c->policy, &o, &i) || o != outer || i != inner) continue;
        *out = c->policy;
        return KVL_OK;
    }
    struct registry_composed *c = kvl_alloc(1, sizeof *c);
    if (!c) return kvl_fail(err, KVL_ENOMEM, "out of memory for the list of policies");
    int rc = kvl_policy_compose(outer, inner, &c->policy, err);
    if (rc != KVL_OK) {
        kvl_free(c);
        return rc;
    }
    c->next = *r->composed;
    *r->composed = c;
    *out = c->policy;
    return KVL_OK;
}

/* The policies of "outer(inner)", or of "outer" and the one that it usually wraps. */
static int registry_parts(const struct kvl_registry *r, const char *name,
                          const struct kvl_policy **outer, const struct kvl_policy **inner,
                          struct kvl_err *err)
{
    char word[2][64];
    size_t len = strlen(name), n = strcspn(name, "("), m = n < len ? len - n - 2 : 0;
    if (strcspn(name, ")") < n || (n < len && (n + 2 > len || name[len - 1] != ')')))
        return kvl_fail(err, KVL_EINVAL, "\"%s\": parentheses do not match, want outer(inner)",
                        name);
    snprintf(word[0], sizeof word[0], "%.*s", (int)KVL_MIN(n, sizeof word[0] - 1), name);
    KVL_TRY(registry_find(r, word[0], outer, err));
    const char *usual = (*outer)->inner ? (*outer)->inner : "";
    const char *from = n < len ? name + n + 1 : usual;
    if (n == len) m = strcspn(usual, ":");
    snprintf(word[1], sizeof word[1], "%.*s", (int)KVL_MIN(m, sizeof word[1] - 1), from);
    if (strpbrk(word[1], "()"))
        return kvl_fail(err, KVL_EINVAL,
                        "\"%s\": parentheses in parentheses; a policy wraps one other, want "
                        "outer(inner)",
                        name);
    *inner = NULL;
    return n < len || usual[0] ? registry_find(r, word[1], inner, err) : KVL_OK;
}

int kvl_registry_find_policy(const struct kvl_registry *r, const char *name,
                             const struct kvl_policy **out, struct kvl_err *err)
{
    const struct kvl_policy *outer, *inner;
    KVL_TRY(registry_parts(r, name, &outer, &inner, err));
    if (inner) return registry_compose(r, outer, inner, out, err);
    *out = outer;
    return KVL_OK;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static int registry_check_task_name(const struct kvl_task *t, struct kvl_err *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    if (!t->name || !t->name[0] || strspn(t->name, letters) != strlen(t->name))
        return kvl_fail(err, KVL_ETASK, "task name \"%s\": want a-z, 0-9 and '_'",
                        t->name ? t->name : "");
    if (!t->title || !t->paper || !t->help)
        return kvl_fail(err, KVL_ETASK, "task %s: title, paper and help must be set", t->name);
    return KVL_OK;
}

static int registry_check_task(const struct kvl_task *t, struct kvl_err *err)
{
    if (t->abi != KVL_TASK_ABI)
        return kvl_fail(err, KVL_ETASK, "task ABI is %u, this program wants %u: rebuild it", t->abi,
                        KVL_TASK_ABI);
    if (t->size != sizeof *t)
        return kvl_fail(err, KVL_ETASK,
                        "struct kvl_task has %u bytes, this program wants %zu: rebuild it", t->size,
                        sizeof *t);
    KVL_TRY(registry_check_task_name(t, err));
    if (!t->generate)
        return kvl_fail(err, KVL_ETASK, "task %s: has no generate, want one", t->name);
    if (!t->score != !t->chance)
        return kvl_fail(err, KVL_ETASK,
                        "task %s: score and chance go together, it has only one of them", t->name);
    if (!t->open != !t->close || (t->open && !t->score))
        return kvl_fail(err, KVL_ETASK,
                        "task %s: open, close and score go together, it lacks one of them",
                        t->name);
    if (!t->score && t->opts_size < sizeof(struct kvl_reading))
        return kvl_fail(err, KVL_ETASK,
                        "task %s: asks nothing, and its options have %zu bytes, want those of "
                        "struct kvl_reading first",
                        t->name, t->opts_size);
    if (kvl_opt_check(t->opts, t->opts_size, err) != KVL_OK)
        return kvl_fail_at(err, KVL_ETASK, "task %s", t->name);
    return KVL_OK;
}

static int registry_task_order(const void *a, const void *b)
{
    const struct registry_task *x = a, *y = b;
    return strcmp(x->task->name, y->task->name);
}

static int registry_add_task(struct kvl_registry *r, const struct kvl_task *task,
                             struct kvl_plugin *plugin, struct kvl_err *err)
{
    KVL_TRY(registry_check_task(task, err));
    if (r->n_tasks == REGISTRY_MAX)
        return kvl_fail(err, KVL_ETASK, "more than %d tasks", REGISTRY_MAX);
    for (size_t i = 0; i < r->n_tasks; i++)
        if (strcmp(r->task[i].task->name, task->name) == 0)
            return kvl_fail(err, KVL_ETASK, "task \"%s\" exists already (%s), want another name",
                            task->name,
                            r->task[i].plugin ? kvl_plugin_path(r->task[i].plugin) : "built in");
    r->task[r->n_tasks++] = (struct registry_task){ task, plugin };
    qsort(r->task, r->n_tasks, sizeof r->task[0], registry_task_order);
    return KVL_OK;
}

int kvl_registry_task_plugin(struct kvl_registry *r, const char *path, struct kvl_err *err)
{
    struct kvl_plugin *plugin;
    KVL_TRY(kvl_plugin_open(path, KVL_PLUGIN_TASK, &plugin, err));
    int rc = registry_add_task(r, kvl_plugin_object(plugin), plugin, err);
    if (rc == KVL_OK) return KVL_OK;
    kvl_fail_at(err, rc, "%s", kvl_plugin_path(plugin));
    kvl_plugin_close(plugin);
    return rc;
}

size_t kvl_registry_n_tasks(const struct kvl_registry *r)
{
    return r->n_tasks;
}

const struct kvl_task *kvl_registry_task(const struct kvl_registry *r, size_t i)
{
    return r->task[i].task;
}

const char *kvl_registry_task_origin(const struct kvl_registry *r, size_t i)
{
    return r->task[i].plugin ? kvl_plugin_path(r->task[i].plugin) : NULL;
}

bool kvl_registry_task_foreign(const struct kvl_registry *r, const struct kvl_task *task)
{
    for (size_t i = 0; i < r->n_tasks; i++)
        if (r->task[i].task == task && r->task[i].plugin) return true;
    return false;
}

uint64_t kvl_registry_task_code(const struct kvl_registry *r, const struct kvl_task *task)
{
    for (size_t i = 0; i < r->n_tasks; i++)
        if (r->task[i].task == task && r->task[i].plugin) return kvl_plugin_hash(r->task[i].plugin);
    return kvl_code_task(task);
}

int kvl_registry_find_task(const struct kvl_registry *r, const char *name,
                           const struct kvl_task **out, struct kvl_err *err)
{
    const char *names[REGISTRY_MAX];
    for (size_t i = 0; i < r->n_tasks; i++) {
        names[i] = r->task[i].task->name;
        if (strcmp(names[i], name) != 0) continue;
        *out = r->task[i].task;
        return KVL_OK;
    }
    return registry_unknown("task", name, names, r->n_tasks, err);
}

const struct kvl_task *kvl_builtin_task(const char *name)
{
    for (size_t i = 0; i < REGISTRY_BUILTIN_TASKS; i++)
        if (strcmp((*registry_tasks[i])->name, name) == 0) return *registry_tasks[i];
    return NULL;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int registry_add_builtin(struct kvl_registry *r, struct kvl_err *err)
{
    for (size_t i = 0; i < REGISTRY_BUILTIN; i++)
        KVL_TRY(registry_add(r, *registry_builtin[i], NULL, err));
    for (size_t i = 0; i < REGISTRY_BUILTIN_TASKS; i++)
        KVL_TRY(registry_add_task(r, *registry_tasks[i], NULL, err));
    return KVL_OK;
}

int kvl_registry_create(struct kvl_registry **out, struct kvl_err *err)
{
    struct kvl_registry *r = kvl_alloc(1, sizeof *r);
    if (r) r->composed = kvl_alloc(1, sizeof(struct registry_composed *));
    if (!r || !r->composed) {
        kvl_registry_destroy(r);
        return kvl_fail(err, KVL_ENOMEM, "out of memory for the list of policies");
    }
    int rc = registry_add_builtin(r, err);
    if (rc == KVL_OK)
        *out = r;
    else
        kvl_registry_destroy(r);
    return rc;
}

void kvl_registry_destroy(struct kvl_registry *r)
{
    if (!r) return;
    while (r->composed && *r->composed) {
        struct registry_composed *c = *r->composed;
        *r->composed = c->next;
        kvl_policy_decompose(c->policy);
        kvl_free(c);
    }
    kvl_free(r->composed);
    for (size_t i = 0; i < r->n; i++) kvl_plugin_close(r->entry[i].plugin);
    for (size_t i = 0; i < r->n_tasks; i++) kvl_plugin_close(r->task[i].plugin);
    kvl_free(r);
}
