/* registry.h - which policies and tasks exist: the one place that knows.
 *
 * Built-in ones come from generated lists (a file in methods/ or datasets/ is an entry), others from
 * plug-ins.  Entries are sorted by name.
 * Thread-safe: no.
 */
#ifndef KVL_REGISTRY_H
#define KVL_REGISTRY_H

#include "kvl/policy.h"
#include "kvl/task.h"

struct kvl_registry;

int kvl_registry_create(struct kvl_registry **out, struct kvl_err *err);
/* Plug-ins are unloaded: no policy or task of one may be in use any more. */
void kvl_registry_destroy(struct kvl_registry *r);

/* Loads the policy or the task of a shared object; a path without '/' is taken as ./path, so that no
 * search path is ever used.  KVL_EINVAL: no such file; KVL_EPOLICY and KVL_ETASK: no object, no symbol,
 * another ABI or size, a name that exists. */
int kvl_registry_plugin(struct kvl_registry *r, const char *path, struct kvl_err *err);
int kvl_registry_task_plugin(struct kvl_registry *r, const char *path, struct kvl_err *err);

size_t kvl_registry_n_policies(const struct kvl_registry *r);
const struct kvl_policy *kvl_registry_policy(const struct kvl_registry *r, size_t i);
/* Path of the plug-in that a policy came from; NULL = built in. */
const char *kvl_registry_origin(const struct kvl_registry *r, size_t i);
/* Hash of the code of a policy: of its sources, of the plug-in that it came from, or of both parts of a
 * composed one. */
uint64_t kvl_registry_code(const struct kvl_registry *r, const struct kvl_policy *policy);
/* Whether it, or a part of a composed one, came from a plug-in: code that may crash. */
bool kvl_registry_foreign(const struct kvl_registry *r, const struct kvl_policy *policy);
/* "name" or "outer(inner)"; a policy that wraps others comes with its usual one where none is named.
 * Composed ones belong to the registry.  KVL_EINVAL with the nearest name. */
int kvl_registry_find_policy(const struct kvl_registry *r, const char *name,
                             const struct kvl_policy **out, struct kvl_err *err);

size_t kvl_registry_n_tasks(const struct kvl_registry *r);
const struct kvl_task *kvl_registry_task(const struct kvl_registry *r, size_t i);
/* As for policies. */
const char *kvl_registry_task_origin(const struct kvl_registry *r, size_t i);
bool kvl_registry_task_foreign(const struct kvl_registry *r, const struct kvl_task *task);
uint64_t kvl_registry_task_code(const struct kvl_registry *r, const struct kvl_task *task);
/* KVL_EINVAL with the nearest name. */
int kvl_registry_find_task(const struct kvl_registry *r, const char *name,
                           const struct kvl_task **out, struct kvl_err *err);

/* A task that is built in, for those who read logs without plug-ins; NULL: there is none. */
const struct kvl_task *kvl_builtin_task(const char *name);

#endif
