/* config_prompt.h - what a sweep says about prompts. */
#ifndef KVL_CONFIG_PROMPT_H
#define KVL_CONFIG_PROMPT_H

#include "yamldoc.h"

/* auto, none or the name of a template. */
int kvl_chat_read(struct kvl_yaml *y, const yaml_node_t *v, const char *key, char **out);

#endif
