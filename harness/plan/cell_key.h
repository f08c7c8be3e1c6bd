/* cell_key.h - the key of a cell: the text of all that may change its answers. */
#ifndef KVL_CELL_KEY_H
#define KVL_CELL_KEY_H

#include "sweep_plan.h"

/* Appends the key of c to b.  `where`: what keys of speed cells have beside it.  KVL_ENOMEM leaves
 * part of it. */
int kvl_cell_key(const struct kvl_work *w, const struct kvl_where *where, const struct kvl_cell *c,
                 struct kvl_buf *b);
/* Whether sessions of the sweep turn by RoPE's factors for short contexts. */
bool kvl_work_turns_short(const struct kvl_work *w);

#endif
