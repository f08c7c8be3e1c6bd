/* config_prompt.h - what a sweep says about prompts. */
#ifndef KVL_CONFIG_PROMPT_H
#define KVL_CONFIG_PROMPT_H

#include "config.h"

/* auto, none or the name of a template. */
int kvl_chat_read(struct kvl_yaml *y, const yaml_node_t *v, const char *key, char **out);
/* Reads the map `sampling`; a reader of struct kvl_yaml_key. */
int kvl_sampling_read(struct kvl_yaml *y, yaml_node_t *map, const char *key, void *sampling);
/* "temperature=0.7,top_p=0.9,top_k=0,min_p=0,n=4,seed=1", appended; nothing for greedy answers. */
int kvl_sampling_print(const struct kvl_sampling *s, struct kvl_buf *out);

#endif
