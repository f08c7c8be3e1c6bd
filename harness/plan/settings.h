/* settings.h - the keys of a sweep file, as settings.def has them.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_SETTINGS_H
#define KVL_SETTINGS_H

#include "setting_kinds.h"

/* Sets the keys below `map` ("" or "speed.") to their defaults, but maps. */
void kvl_settings_default(const char *map, struct kvl_sweep *s);
/* Reads a mapping (NULL: only overrides) of these keys. */
int kvl_settings_walk(struct kvl_yaml *y, yaml_node_t *node, const char *map,
                      struct kvl_setting_for *to);

/* Fills s->text and s->hash: the resolved configuration, for the log and to run it again.  Everything that a default or an
 * axis stood for is written out. */
int kvl_sweep_print(struct kvl_sweep *s);
/* Appends ";name=value" of the settings that count there; of KVL_KEY_GIVEN and KVL_KEY_SPEED of those that are not at their
 * default. */
int kvl_settings_key(const struct kvl_sweep *s, enum kvl_in_key where, struct kvl_buf *b);
/* "temperature=0.7,top_p=0.9,top_k=0,min_p=0,n=4,seed=1", appended; nothing for greedy answers. */
int kvl_sampling_print(const struct kvl_sampling *s, struct kvl_buf *b);
struct kvl_sampling kvl_greedy(void);

#endif
