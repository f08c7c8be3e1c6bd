/* head_vectors.h - a vector for every head of every layer, of a file or measured (Q-Filters, TriAttention).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_HEAD_VECTORS_H
#define KVL_HEAD_VECTORS_H

#include "layer_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* vector [n_layers][n_heads][width] of the file at `path`: a line "layer head number ..." for every one of n_heads heads
 * of a layer, in order.  NULL: the file is checked.  sum: kvl_head_file_open. */
int kvl_head_vectors(const char *path, const struct kvl_shape *shape, int32_t n_heads,
                     int32_t width, char *sum, struct kvl_err *err, float *vector);
/* Reports those of a layer [n_heads][width] as "vector.<layer>.<head>.<channel>", of which kvlab tables makes a file. */
int kvl_report_vectors(struct kvl_report *report, int32_t layer, int32_t n_heads, int32_t width,
                       const float *vector);

#ifdef __cplusplus
}
#endif

#endif
