/* kv_held.h - bytes of keys and values, counted where they lie and where they are read, against what their type claims.
 *
 * Claimed: tokens times the bytes of a row of core/include/kvl/kvtypes.def; of blocks with the head and the positions that
 * stand beside the rows.  Counted: by the rows of the layout that operators walk, by the strides of the store's memory.
 * What is told of a method at equal bytes rests on both being the same.
 *
 * Thread-safe: yes, of sessions that nobody runs.
 */
#ifndef KVL_KV_HELD_H
#define KVL_KV_HELD_H

#include "kvl/model.h"

#define KVL_KV_OFF 0.01 /* so far off at most */

/* KVL_EINTERNAL: the two are further apart; `what` names them. */
int kvl_kv_near(const char *what, double counted, double claimed, struct kvl_err *err);

/* Of a session that ran its steps for real, in a store that claims to be `desc`. */
int kvl_kv_held(const struct kvl_session *s, const struct kvl_store_desc *desc,
                struct kvl_err *err);

#endif
