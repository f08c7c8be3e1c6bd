/* cuda_host_control.h - what tests, in C, ask the emulated GPU and tell it.
 *
 * The same from outside, by environment variables read when the first CUDA function is called:
 *   KVL_EMU_SEED=n       the order of blocks, threads and streams (default 1)
 *   KVL_EMU_MEMORY=n     bytes of the device (default 8 GiB of addresses)
 *   KVL_EMU_GUARD=0      the host may touch memory of the device
 *   KVL_EMU_EAGER=1      work runs when it is given, instead of when somebody waits for it
 *   KVL_EMU_DEVICES=n    so many GPUs, of which a process has memory and work on the one that it chose (default 1); 0: none,
 *                        cudaErrorNoDevice
 *   KVL_EMU_GENERATION=n compute capability n.0 (default 9)
 *   KVL_EMU_CHOSEN=file  a line with the number of every GPU that is chosen is added to it
 *   KVL_EMU_GRAPHS=0     captures are refused: cudaErrorNotSupported
 *   KVL_EMU_FAIL=what:n:error   the n-th call of a kind from now on (1 = the next) gives this error; `what`
 *                        is launch, run (the kernel fails when it runs), malloc, host_alloc, copy, sync
 */
#ifndef KVL_CUDA_HOST_CONTROL_H
#define KVL_CUDA_HOST_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kvl_emu_call {
    KVL_EMU_LAUNCH = 0,
    KVL_EMU_RUN,
    KVL_EMU_MALLOC,
    KVL_EMU_HOST_ALLOC,
    KVL_EMU_COPY,
    KVL_EMU_SYNC,
    KVL_EMU_CALLS
};

/* Since the process began.  A copy that a graph does counts whenever it runs. */
struct kvl_emu_counts {
    int64_t h2d_bytes, h2d_calls, d2h_bytes, d2h_calls, d2d_bytes, d2d_calls, h2h_bytes, h2h_calls;
    int64_t fill_bytes, fill_calls;
    int64_t n_launches, n_kernels_run; /* given; executed */
    int64_t n_syncs;                   /* waits of the host, blocking copies among them */
    int64_t n_graph_launches, n_captured, n_instantiated;
    int64_t n_barriers, n_warp_ops; /* of kernels that ran */
    int64_t device_bytes, device_peak_bytes, n_device_allocs;
    int64_t host_bytes, n_host_allocs; /* pinned and managed */
    int64_t managed_bytes;
    int64_t n_moves; /* of pages of managed memory, while they are watched */
};
void kvl_emu_counts(struct kvl_emu_counts *out);

/* The n-th call of a kind from now on fails with a cudaError_t; n = 0 takes that back. */
void kvl_emu_fail(enum kvl_emu_call what, int64_t n, int error);
/* Forgets a sticky error, which a process cannot do on a GPU. */
void kvl_emu_revive(void);
/* 0: no limit but the arena's. */
void kvl_emu_memory_limit(size_t bytes);
void kvl_emu_seed(uint64_t seed);
void kvl_emu_eager(int on);
/* Counts n_moves: touches of pages of managed memory that the other side touched last.  Slow. */
void kvl_emu_watch(int on);
/* A child of fork takes over what was its parent's, which no process can on a GPU. */
void kvl_emu_adopt(void);
/* Work that was given and has not run. */
int64_t kvl_emu_pending(void);
/* Whether the address lies in memory of the device. */
int kvl_emu_on_device(const void *p);

#ifdef __cplusplus
}
#endif

#endif
