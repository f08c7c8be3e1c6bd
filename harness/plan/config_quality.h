/* config_quality.h - the map `quality` of a sweep file. */
#ifndef KVL_CONFIG_QUALITY_H
#define KVL_CONFIG_QUALITY_H

#include "config.h"

/* Reads the map into a struct kvl_quality, with defaults for keys that are not there; a reader of struct
 * kvl_yaml_key. */
int kvl_quality_read(struct kvl_yaml *y, yaml_node_t *map, const char *key, void *quality);

#endif
