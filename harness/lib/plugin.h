/* plugin.h - a policy from a shared object: methods/x.c compiled with -DKVL_PLUGIN -shared -fPIC.
 *
 * Only explicit paths are opened; nothing is searched for.
 */
#ifndef KVL_PLUGIN_H
#define KVL_PLUGIN_H

#include "kvl/policy.h"

struct kvl_plugin;

/* KVL_EINVAL: no such file; KVL_EPOLICY: cannot be loaded, or has no symbol kvl_plugin_policy. */
int kvl_plugin_open(const char *path, struct kvl_plugin **out, struct kvl_err *err);
/* NULL is a no-op. */
void kvl_plugin_close(struct kvl_plugin *p);
/* Not checked yet: kvl_policy_check. */
const struct kvl_policy *kvl_plugin_object(const struct kvl_plugin *p);
const char *kvl_plugin_path(const struct kvl_plugin *p);
/* XXH3 of the file: another one means that a method's results may be others.  Never 0. */
uint64_t kvl_plugin_hash(const struct kvl_plugin *p);

#endif
