/* host_loop.op.h - the loops of host_loop. */
#ifndef KVL_HOST_LOOP_OP_H
#define KVL_HOST_LOOP_OP_H

#include "kvl/table.h"

/* Adds keys to the rows of their pages: key t of k [n_tok][n_kv_heads][dim] is that of position first + t. */
struct host_loop_add_args {
    const struct kvl_rows *rows; /* of pages first / page_tok and up */
    const float *k;
    int32_t first, n_tok, page_tok, n_kv_heads, dim;
};
int host_loop_add(const void *args);

/* score [n_kv_heads][n_pages]: sum over the group's query heads and the channels of min(|q|, |row|). */
struct host_loop_score_args {
    float *score;
    const struct kvl_rows *rows; /* of all pages */
    const float *q;              /* [n_kv_heads * group][dim] */
    int32_t n_pages, n_kv_heads, group, dim;
};
int host_loop_score(const void *args);

#endif
