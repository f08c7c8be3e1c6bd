/* kvl/peak.h - what the processor can do at most: the yardsticks of `kvlab bench`.
 *
 * Each call runs on kvl_ops_threads() threads, in the vectors that the operators use.  The caller
 * takes the time.
 * Thread-safe: no, like the operators.
 */
#ifndef KVL_PEAK_H
#define KVL_PEAK_H

#include "kvl/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads n floats once, every thread a part of its own; returns their sum in some order.  data is
 * 64-byte aligned. */
float kvl_peak_read(const float *data, size_t n);
/* Multiply-adds in registers, `n` rounds of them in every thread; returns how many floating-point
 * operations that were (two for a multiply-add). */
double kvl_peak_fma(int64_t n);
/* The same for products of bf16 that are summed in float; 0 where the processor has no instruction
 * for them. */
double kvl_peak_bf16(int64_t n);

#ifdef __cplusplus
}
#endif

#endif
