/* config_analyze.h - the map `analyze` of a sweep file. */
#ifndef KVL_CONFIG_ANALYZE_H
#define KVL_CONFIG_ANALYZE_H

#include "config.h"

extern const struct kvl_analyze kvl_analyze_defaults;

/* Bits of enum kvl_analyze_what; 0: there is no analysis of this name.  *near: the nearest name, NULL
 * when none is near. */
unsigned kvl_analyze_find(const char *name, const char **near);
/* "mass", "similarity", "drift": of one bit. */
const char *kvl_analyze_name(unsigned what);

/* Reads the map (NULL: only overrides) into a struct kvl_analyze; a reader of struct kvl_yaml_key. */
int kvl_analyze_read(struct kvl_yaml *y, yaml_node_t *map, const char *key, void *analyze);
/* Appends it as YAML. */
int kvl_analyze_print(struct kvl_buf *b, const struct kvl_analyze *a);

#endif
