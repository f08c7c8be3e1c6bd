/* config_values.h - readers of the values of a sweep file's keys. */
#ifndef KVL_CONFIG_VALUES_H
#define KVL_CONFIG_VALUES_H

#include "config.h"

/* Fails with KVL_ENOMEM, naming the key. */
int kvl_config_memory(const struct kvl_yaml *y, const char *key);

/* For kvl_yaml_each: what one text of a list appends to `user`; kvl_ints for lengths (tokens) and
 * protocols, kvl_doubles for depths, kvl_texts for budgets and names.  KVL_EINVAL names the place,
 * the key and the value. */
int kvl_config_add_length(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                          const char *text, void *user);
int kvl_config_add_depth(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                         const char *text, void *user);
int kvl_config_add_protocol(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                            const char *text, void *user);
int kvl_config_add_budget(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                          const char *text, void *user);
int kvl_config_add_name(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                        const char *text, void *user);

/* A whole number, min to max. */
int kvl_config_i32(struct kvl_yaml *y, const yaml_node_t *v, const char *key, int32_t min,
                   int32_t max, int32_t *out);
/* A text that is not empty; takes the place of *out, which the caller frees. */
int kvl_config_string(struct kvl_yaml *y, const yaml_node_t *v, const char *key, char **out);

#endif
