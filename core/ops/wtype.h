/* wtype.h - the table of types of weights (kvl/wtypes.def) for code that runs per element or per row.
 *
 * Given a constant, every function folds to one.  core/ops/wtype.c has the table for everybody else.
 */
#ifndef KVL_WTYPE_H
#define KVL_WTYPE_H

#include "kvl/ops.h"
#include "wtype_block.h"

/* The bytes that columns 0 .. n - 1 take.  n: a multiple of the block, or in blocks where n begins. */
static inline size_t kvl_wtype_bytes(enum kvl_wtype type, size_t n)
{
    size_t sum = 0;
    switch (type) {
#define KVL_WTYPE_PLAIN(name, number, bytes, ...)                                                  \
    case KVL_W_##name:                                                                             \
        sum = n * (bytes);                                                                         \
        break;
#define KVL_WTYPE_BLOCK(name, number, elements, bytes, ...)                                        \
    case KVL_W_##name:                                                                             \
        sum = n / (elements) * (bytes);                                                            \
        break;
#include "kvl/wtypes.def"
    }
    return sum;
}

#endif
