/* kv_rows.h - whole rows of keys and values on the host; kv_row.h has their definition. */
#ifndef KVL_KV_ROWS_H
#define KVL_KV_ROWS_H

#include "kvl/kvstore.h"

enum { KVL_ROW_MOST = 8192 }; /* elements of a row */

/* n elements to a row of a type that is no pair, and back. */
void kvl_row_put(enum kvl_kv_type type, uint8_t *row, const float *x, int32_t n);
void kvl_row_get(enum kvl_kv_type type, float *x, const uint8_t *row, int32_t n);
/* The key of a token of a group (kv_row.h). */
void kvl_group_get(enum kvl_kv_type type, float *x, const uint8_t *group, int32_t n, int32_t token);
void kvl_group_put(enum kvl_kv_type type, uint8_t *group, const float *x, int32_t n);
/* As it lies there, not turned back. */
void kvl_row_get_turned(enum kvl_kv_type type, float *x, const uint8_t *row, int32_t n);
/* Turns a row of n, in place, or turns it back. */
void kvl_row_turn_by(enum kvl_kv_turn turn, float *x, int32_t n, bool back);

#endif
