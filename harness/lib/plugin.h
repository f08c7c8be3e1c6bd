/* plugin.h - a policy or a task from a shared object: methods/x.c or datasets/x.c compiled with
 * -DKVL_PLUGIN -shared -fPIC.
 *
 * Only explicit paths are opened; nothing is searched for.
 */
#ifndef KVL_PLUGIN_H
#define KVL_PLUGIN_H

#include "kvl/base.h"

enum kvl_plugin_kind { KVL_PLUGIN_POLICY, KVL_PLUGIN_TASK };

struct kvl_plugin;

/* KVL_EINVAL: no such file; KVL_EPOLICY or KVL_ETASK, as the kind: cannot be loaded, or has no symbol
 * kvl_plugin_policy or kvl_plugin_task. */
int kvl_plugin_open(const char *path, enum kvl_plugin_kind kind, struct kvl_plugin **out,
                    struct kvl_err *err);
/* NULL is a no-op. */
void kvl_plugin_close(struct kvl_plugin *p);
/* struct kvl_policy or struct kvl_task; not checked yet. */
const void *kvl_plugin_object(const struct kvl_plugin *p);
const char *kvl_plugin_path(const struct kvl_plugin *p);
/* XXH3 of the file: another one means that the results may be others.  Never 0. */
uint64_t kvl_plugin_hash(const struct kvl_plugin *p);

#endif
