/* config_text.h - the resolved configuration as text: for the log, and to run it again. */
#ifndef KVL_CONFIG_TEXT_H
#define KVL_CONFIG_TEXT_H

#include "config.h"

/* Fills s->text and s->hash.  Everything that a default or an axis stood for is written out. */
int kvl_sweep_print(struct kvl_sweep *s);

/* Appends a double-quoted YAML scalar: paths may hold anything. */
int kvl_text_quote(struct kvl_buf *b, const char *s);

#endif
