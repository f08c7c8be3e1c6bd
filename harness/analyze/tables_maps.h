/* tables_maps.h - kvlab tables kvzap: linear maps of hidden states, fitted and written as others publish them.
 *
 * Thread-safe: no.
 */
#ifndef KVL_TABLES_MAPS_H
#define KVL_TABLES_MAPS_H

#include "fit_inputs.h"
#include "tables_made.h"

/* Before anything is measured: that a folder can be written. */
int kvl_tables_maps_check(const struct kvl_tables_made *t);
/* Of a text: of four one is held out. */
int kvl_tables_maps_text(struct kvl_tables_made *t, const struct kvl_table_text *text);
/* Fits what was fed, writes the folder t->want->out with model.safetensors and config.json, and says on stderr what the maps
 * explain.  `source`: what they were fitted to, for the file. */
int kvl_tables_maps_write(const struct kvl_tables_made *t, const char *source);

#endif
