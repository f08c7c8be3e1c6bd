/* Policies and tasks by name. */
#include "registry.h"

#include "kvl/model.h"
#include "plugin.h"

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
    REGISTRY_MAX = 256
};

struct registry_entry {
    const struct kvl_policy *policy;
    struct kvl_plugin *plugin; /* NULL = built in */
};

struct kvl_registry {
    struct registry_entry entry[REGISTRY_MAX];
    size_t n;
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

int kvl_registry_create(struct kvl_registry **out, struct kvl_err *err)
{
    struct kvl_registry *r = kvl_alloc(1, sizeof *r);
    if (!r) return kvl_fail(err, KVL_ENOMEM, "out of memory for the list of policies");
    for (size_t i = 0; i < REGISTRY_BUILTIN; i++) {
        int rc = registry_add(r, *registry_builtin[i], NULL, err);
        if (rc != KVL_OK) {
            kvl_registry_destroy(r);
            return rc;
        }
    }
    *out = r;
    return KVL_OK;
}

void kvl_registry_destroy(struct kvl_registry *r)
{
    if (!r) return;
    for (size_t i = 0; i < r->n; i++) kvl_plugin_close(r->entry[i].plugin);
    kvl_free(r);
}

int kvl_registry_plugin(struct kvl_registry *r, const char *path, struct kvl_err *err)
{
    struct kvl_plugin *plugin;
    KVL_TRY(kvl_plugin_open(path, &plugin, err));
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
    for (size_t i = 0; i < r->n; i++)
        if (r->entry[i].policy == policy && r->entry[i].plugin)
            return kvl_plugin_hash(r->entry[i].plugin);
    return 0;
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

int kvl_registry_find_policy(const struct kvl_registry *r, const char *name,
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

/* ---- tasks ----------------------------------------------------------------------------------- */

size_t kvl_n_tasks(void)
{
    return sizeof registry_tasks / sizeof registry_tasks[0];
}

const struct kvl_task *kvl_task(size_t i)
{
    return *registry_tasks[i];
}

int kvl_task_find(const char *name, const struct kvl_task **out, struct kvl_err *err)
{
    const char *names[REGISTRY_MAX];
    size_t n = KVL_MIN(kvl_n_tasks(), (size_t)REGISTRY_MAX);
    for (size_t i = 0; i < n; i++) {
        names[i] = kvl_task(i)->name;
        if (strcmp(names[i], name) != 0) continue;
        *out = kvl_task(i);
        return KVL_OK;
    }
    return registry_unknown("task", name, names, n, err);
}
