/* config_exclude.h - the list `exclude` of a sweep file. */
#ifndef KVL_CONFIG_EXCLUDE_H
#define KVL_CONFIG_EXCLUDE_H

#include "config.h"

/* Reads the list into s->exclude; policies and tasks that its rules name must be of the registry. */
int kvl_exclude_read(struct kvl_yaml *y, yaml_node_t *list, const char *key,
                     const struct kvl_registry *registry, struct kvl_sweep *s);

#endif
