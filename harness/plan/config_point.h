/* config_point.h - tasks and policies of a sweep file: names, options, axes.  config.c only. */
#ifndef KVL_CONFIG_POINT_H
#define KVL_CONFIG_POINT_H

#include "config.h"

enum kvl_point_kind { KVL_POINT_TASK, KVL_POINT_POLICY };

/* Adds what `node` names: a word "name" or "name:a=1,b=2", "*" (policies: all there are), a mapping
 * {policy: name, option: value or list}, or a list of these.  Lists of values are axes: the product
 * of all is added. */
int kvl_points_read(struct kvl_yaml *y, yaml_node_t *node, const char *key,
                    enum kvl_point_kind kind, const struct kvl_registry *registry,
                    struct kvl_points *out);
void kvl_points_free(struct kvl_points *p);

/* Appends to growable arrays; KVL_ENOMEM. */
int kvl_texts_add(struct kvl_texts *t, const char *text);
void kvl_texts_free(struct kvl_texts *t);
int kvl_ints_add(struct kvl_ints *t, int32_t v);
int kvl_doubles_add(struct kvl_doubles *t, double v);

#endif
