/* cuda_host_races.h - races inside a launch, found while the emulation runs it.
 *
 * Kernels that are compiled with -fsanitize=thread call a function before every load and store.  Here these calls
 * do not go to ThreadSanitizer but to cuda_host_races.cc, which keeps for every byte of shared and of global memory
 * who wrote it last and who has read it since, and knows what orders two accesses:
 *   the same thread; a barrier of the block between them; __syncwarp of both lanes between them (a shuffle, a vote or
 *   a matrix instruction orders no memory); for two blocks __threadfence and an atomic of the one, then an atomic on
 *   the same address by the other (the last block of a count merges).
 * Two accesses of which nothing orders the one before the other, at least one a store and not both atomic, are a race,
 * whatever order the emulation ran them in: a line on stderr with both places, then abort().  Two stores of the same
 * value are none.  A load of a __shared__ variable that no thread of the block has stored to is reported too; dynamic shared memory
 * holds NaNs then.
 *
 *   KVL_EMU_EVERY=n         looks at one launch in n of every kernel, the first among them
 *   KVL_EMU_DROP=file:line  the barrier there orders nothing: whether the checker sees that it is needed
 *
 * What it cannot show: copies of cp.async count when they are given and when they are waited for, as stores of the
 * thread that gave them; what one thread of a block learns from an atomic holds for the others behind a barrier. */
#ifndef KVL_CUDA_HOST_RACES_H
#define KVL_CUDA_HOST_RACES_H

#include "cuda_host.h"

#ifdef KVL_EMU_RACES
void kvl_emu_race_grid(const struct kvl_emu_kernel *k);
void kvl_emu_race_block(void);
/* The thread that runs from here on, and its stack, which is nobody else's. */
void kvl_emu_race_thread(int thread, const unsigned char *stack, size_t bytes);
/* It stops: ends or waits. */
void kvl_emu_race_stop(void);
/* All threads of the block met. */
void kvl_emu_race_barrier(const char *file, int line);
/* The lanes of `mask` of the warp of thread `base` met. */
void kvl_emu_race_warp(int base, unsigned mask, const char *file, int line);
#else
static inline void kvl_emu_race_grid(const struct kvl_emu_kernel *) {}
static inline void kvl_emu_race_block(void) {}
static inline void kvl_emu_race_thread(int, const unsigned char *, size_t) {}
static inline void kvl_emu_race_stop(void) {}
static inline void kvl_emu_race_barrier(const char *, int) {}
static inline void kvl_emu_race_warp(int, unsigned, const char *, int) {}
#endif

#endif
