/* gpu_time.h - how long a GPU takes to read what a token reads: a model, no measurement.
 *
 * A kernel takes as long as the slowest of three: its bytes at the speed of memory, as far as its loads under way fill
 * it; its instructions at the rate of the schedulers; and what any kernel takes to begin and end.  Shares of cards and
 * instructions per load are read off data sheets and the compiled kernels (sm_90, tests/gpu/kernel_facts.c); the other
 * numbers here are assumed of every card.  `kvlab simulate` and `bench_goals --forecast` both stand on this.
 */
#ifndef KVL_GPU_TIME_H
#define KVL_GPU_TIME_H

#include "profile.h"

#define KVL_GPU_STREAM  0.90   /* of the data sheet's memory, by a streaming read */
#define KVL_GPU_LATENCY 0.8e-6 /* s, of a load when memory is busy */
#define KVL_GPU_KERNEL  2.5e-6 /* s, least time of a kernel of a graph, its gap included */
#define KVL_GPU_WAIT    15e-6  /* s: the host waits, decides, and the GPU begins again */
#define KVL_GPU_GEMM    0.75   /* of mma operations, by a library's matrix product */
#define KVL_GPU_TABLES  0.7    /* of the stream, by the scan of a method's index */

/* Kernels of a layer beside the projections and attention: norms, rotations, the cache.  Sums and activations are made
 * by the projections. */
enum { KVL_GPU_SMALL_KERNELS = 4 };

double kvl_gpu_stream(const struct kvl_profile *p); /* bytes per second */
/* Seconds.  Of the weights of a layer, in its four kernels; of attention over so many bytes of keys and values; of a
 * scan of so many bytes of an index. */
double kvl_gpu_weights(const struct kvl_profile *p, double bytes);
double kvl_gpu_attention(const struct kvl_profile *p, double bytes);
double kvl_gpu_tables(const struct kvl_profile *p, double bytes);

#endif
