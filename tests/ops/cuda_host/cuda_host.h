/* cuda_host.h - our CUDA kernels, unchanged, on the CPU: a compiler for C++ stands in for nvcc, this folder
 * for the CUDA runtime and for the GPU.  For tests.
 *
 * How it works
 *   kernels   every thread of a block is a fiber; a fiber runs until a barrier or a warp primitive.  Blocks
 *             run one after the other, in a pseudo-random order; so do threads between two barriers
 *             (KVL_EMU_SEED, see cuda_host_control.h).
 *   streams   work is queued with its arguments and runs only when the host waits for it, streams mixed
 *             pseudo-randomly where no event orders them.
 *   memory    cudaMalloc gives addresses that the host cannot touch, filled with 0xff; they open only while
 *             queued work runs.
 *
 * What it shows: wrong indices and wrong results; reads of what is not written (0xff in dynamic shared memory
 * and in fresh memory of the device); a barrier or a warp primitive that not all threads reach; lanes of a
 * warp in different primitives; results that depend on the order of blocks or of threads; a result that the
 * host reads too early; a missing event between streams; the host touching the device's memory; a kernel that
 * is given an address of ordinary host memory; launches beyond the limits of a GPU; under AddressSanitizer
 * reads and writes outside of an allocation or of shared memory; under UBSan vector loads that are not
 * aligned.
 *
 * In a build of its own it shows races of shared and of global memory too: cuda_host_races.h.
 *
 * What it cannot show: what needs several blocks at the same time; the memory model (volatile);
 * static __shared__ arrays keep what the block before left there; registers, occupancy, bank conflicts and
 * speed; how a GPU rounds approximate functions (__expf, rsqrtf) and fused multiply-adds that nvcc makes;
 * order of sums inside tensor cores; pages of managed memory that move because both sides touch them; which
 * graphs a driver updates (here: those of the same kernels; it takes other kernels too, and refuses copies
 * between other kinds of memory), and what it does not let a capture do.
 *
 * Deadlocks and the like are bugs of the caller: a line on stderr that names kernel, block and thread, then
 * abort().
 */
#ifndef KVL_CUDA_HOST_H
#define KVL_CUDA_HOST_H

#include "cuda_host_api.h"
#include "cuda_host_control.h"
#include "cuda_host_half.h"
#include "cuda_host_vec.h"

#include <functional>
#include <stdlib.h>
#include <tuple>
#include <type_traits>

/* ---- language --------------------------------------------------------------------------------------- */

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#ifdef KVL_EMU_RACES /* one section, so that the checker knows shared memory (cuda_host_races.h) */
#define __shared__ static __attribute__((section("kvl_shared")))
#else
#define __shared__ static
#endif
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;

/* ---- launches --------------------------------------------------------------------------------------- */

struct kvl_emu_kernel {
    const char *name;
    const void *fn;
    dim3 grid, block;
    size_t shared_bytes;
};
/* Looks at the limits and queues: `body` is one thread. */
void kvl_emu_launch(const struct kvl_emu_kernel *k, cudaStream_t stream,
                    const std::function<void()> &body);
/* An argument of a kernel must not hold an address of ordinary host memory. */
void kvl_emu_look_at(const struct kvl_emu_kernel *k, int index, const void *argument, size_t bytes);
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
#define KVL_EMU_CLEAR_PADDING(p) __builtin_clear_padding(p)
#endif
#endif
/* Structs only where the compiler can clear their padding, which may hold anything. */
template <class T>
static inline void kvl_emu_look(const struct kvl_emu_kernel *k, int index, const T &argument)
{
#ifdef KVL_EMU_CLEAR_PADDING
    T copy = argument;
    KVL_EMU_CLEAR_PADDING(&copy);
    kvl_emu_look_at(k, index, &copy, sizeof copy);
#else
    if (!std::is_class<T>::value) kvl_emu_look_at(k, index, &argument, sizeof argument);
#endif
}

template <class... P, class... A>
static inline void kvl_emu_call(const char *name, void (*fn)(P...), dim3 grid, dim3 block,
                                size_t shared_bytes, cudaStream_t stream, A &&...a)
{
    struct kvl_emu_kernel k = { name, (const void *)fn, grid, block, shared_bytes };
    std::tuple<std::decay_t<P>...> args(static_cast<std::decay_t<P>>(a)...);
    int i = 0;
    std::apply([&](const auto &...x) { (kvl_emu_look(&k, i++, x), ...); }, args);
    kvl_emu_launch(&k, stream, [fn, args] { std::apply(fn, args); });
}
#define KVL_LAUNCH(kernel, grid, block, shared_bytes, ...)                                         \
    kvl_emu_call(#kernel, kernel, grid, block, shared_bytes, kvl_cuda_launch(#kernel), __VA_ARGS__)

extern unsigned char *kvl_emu_shared;
#define KVL_SHARED(type, name) type *name = reinterpret_cast<type *>(kvl_emu_shared)

/* ---- barriers and warp primitives ------------------------------------------------------------------- */

enum kvl_emu_barrier { KVL_EMU_PLAIN = 0, KVL_EMU_COUNT };
/* How many threads had a predicate that is not 0. */
int kvl_emu_barrier(enum kvl_emu_barrier kind, int predicate, const char *file, int line);

enum kvl_emu_warp {
    KVL_EMU_SHFL = 0,
    KVL_EMU_BALLOT,
    KVL_EMU_MATCH,
    KVL_EMU_MEET,
    KVL_EMU_SYNCWARP
};
/* SHFL: the value of lane `from`; BALLOT: the lanes with a value that is not 0; MATCH: the lanes with the
 * same value; MEET: nothing, and it orders no memory, where SYNCWARP does. */
uint64_t kvl_emu_warp_op(enum kvl_emu_warp kind, unsigned mask, uint64_t value, int from,
                         const char *file, int line);
unsigned kvl_emu_lanes(void); /* of this warp, those that have not ended */

#define KVL_EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
static inline void __syncthreads(KVL_EMU_HERE)
{
    kvl_emu_barrier(KVL_EMU_PLAIN, 0, file, line);
}
static inline int __syncthreads_count(int predicate, KVL_EMU_HERE)
{
    return kvl_emu_barrier(KVL_EMU_COUNT, predicate, file, line);
}
static inline int __syncthreads_or(int predicate, KVL_EMU_HERE)
{
    return kvl_emu_barrier(KVL_EMU_COUNT, predicate, file, line) > 0;
}
static inline int __syncthreads_and(int predicate, KVL_EMU_HERE)
{
    return kvl_emu_barrier(KVL_EMU_COUNT, predicate == 0, file, line) == 0;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, KVL_EMU_HERE)
{
    kvl_emu_warp_op(KVL_EMU_SYNCWARP, mask, 0, 0, file, line);
}
/* For stand-ins of instructions of whole warps. */
static inline void kvl_emu_meet(KVL_EMU_HERE)
{
    kvl_emu_warp_op(KVL_EMU_MEET, 0xffffffffu, 0, 0, file, line);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, KVL_EMU_HERE)
{
    return (unsigned)kvl_emu_warp_op(KVL_EMU_BALLOT, mask, predicate != 0, 0, file, line);
}
static inline int __any_sync(unsigned mask, int predicate, KVL_EMU_HERE)
{
    return kvl_emu_warp_op(KVL_EMU_BALLOT, mask, predicate != 0, 0, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, KVL_EMU_HERE)
{
    return kvl_emu_warp_op(KVL_EMU_BALLOT, mask, predicate == 0, 0, file, line) == 0;
}
static inline unsigned __activemask(void)
{
    return kvl_emu_lanes();
}
static inline int kvl_emu_lane(void)
{
    return (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32u);
}

template <class T> static inline uint64_t kvl_emu_pack(T v)
{
    static_assert(std::is_trivially_copyable<T>::value && sizeof(T) <= 8, "up to 8 bytes");
    uint64_t u = 0;
    memcpy(&u, &v, sizeof v);
    return u;
}
template <class T> static inline T kvl_emu_unpack(uint64_t u)
{
    T v;
    memcpy(&v, &u, sizeof v);
    return v;
}
template <class T>
static inline T kvl_emu_shfl(unsigned mask, T v, int from, const char *file, int line)
{
    return kvl_emu_unpack<T>(
        kvl_emu_warp_op(KVL_EMU_SHFL, mask, kvl_emu_pack(v), from, file, line));
}
template <class T>
static inline T __shfl_sync(unsigned mask, T v, int from, int width = 32, KVL_EMU_HERE)
{
    int lane = kvl_emu_lane();
    return kvl_emu_shfl(mask, v, (lane & ~(width - 1)) | (from & (width - 1)), file, line);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, KVL_EMU_HERE)
{
    int lane = kvl_emu_lane(), from = lane ^ bits;
    if ((from & ~(width - 1)) > (lane & ~(width - 1))) from = lane;
    return kvl_emu_shfl(mask, v, from, file, line);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, KVL_EMU_HERE)
{
    int lane = kvl_emu_lane(), from = lane - (int)by;
    if (from < (lane & ~(width - 1))) from = lane;
    return kvl_emu_shfl(mask, v, from, file, line);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, KVL_EMU_HERE)
{
    int lane = kvl_emu_lane(), from = lane + (int)by;
    if (from > (lane | (width - 1))) from = lane;
    return kvl_emu_shfl(mask, v, from, file, line);
}
template <class T> static inline unsigned __match_any_sync(unsigned mask, T v, KVL_EMU_HERE)
{
    return (unsigned)kvl_emu_warp_op(KVL_EMU_MATCH, mask, kvl_emu_pack(v), 0, file, line);
}

template <class T, class F> static inline T kvl_emu_reduce(unsigned mask, T v, F f, KVL_EMU_HERE)
{
    T r = v;
    bool first = true;
    for (int lane = 0; lane < 32; lane++) {
        T other = kvl_emu_shfl(mask, v, mask >> lane & 1u ? lane : kvl_emu_lane(), file, line);
        if (!(mask >> lane & 1u)) continue;
        r = first ? other : f(r, other);
        first = false;
    }
    return r;
}
#define KVL_EMU_REDUCE(name, T, expr)                                                              \
    static inline T name(unsigned mask, T v)                                                       \
    {                                                                                              \
        return kvl_emu_reduce(mask, v, [](T a, T b) -> T { return expr; });                        \
    }
KVL_EMU_REDUCE(__reduce_add_sync, unsigned, a + b)
KVL_EMU_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
KVL_EMU_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
KVL_EMU_REDUCE(__reduce_and_sync, unsigned, a &b)
KVL_EMU_REDUCE(__reduce_or_sync, unsigned, a | b)
KVL_EMU_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
KVL_EMU_REDUCE(__reduce_add_sync, int, (int)((unsigned)a + (unsigned)b))
KVL_EMU_REDUCE(__reduce_min_sync, int, a < b ? a : b)
KVL_EMU_REDUCE(__reduce_max_sync, int, a > b ? a : b)
#undef KVL_EMU_REDUCE

/* ---- memory ----------------------------------------------------------------------------------------- */

#ifdef KVL_EMU_RACES
#define KVL_EMU_UNCHECKED __attribute__((no_sanitize_thread))
void kvl_emu_race_fence(void);
void kvl_emu_race_atomic(const void *p, size_t n, const void *from);
#else
#define KVL_EMU_UNCHECKED
static inline void kvl_emu_race_fence(void) {}
static inline void kvl_emu_race_atomic(const void *, size_t, const void *) {}
#endif

static inline void __threadfence(void)
{
    kvl_emu_race_fence();
}
static inline void __threadfence_block(void) {}
static inline void __threadfence_system(void)
{
    kvl_emu_race_fence();
}
[[noreturn]] static inline void __trap(void)
{
    abort();
}
static inline long long clock64(void)
{
    return 0;
}

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
#define KVL_EMU_LOAD(name)                                                                         \
    template <class T> static inline T name(const T *p)                                            \
    {                                                                                              \
        return *p;                                                                                 \
    }
#define KVL_EMU_STORE(name)                                                                        \
    template <class T> static inline void name(T *p, T v)                                          \
    {                                                                                              \
        *p = v;                                                                                    \
    }
KVL_EMU_LOAD(__ldca)
KVL_EMU_LOAD(__ldcg)
KVL_EMU_LOAD(__ldcs)
KVL_EMU_LOAD(__ldlu)
KVL_EMU_LOAD(__ldcv)
KVL_EMU_STORE(__stwb)
KVL_EMU_STORE(__stcg)
KVL_EMU_STORE(__stcs)
KVL_EMU_STORE(__stwt)
#undef KVL_EMU_LOAD
#undef KVL_EMU_STORE

/* Threads are fibers of one thread: nothing comes in between.  None on floats, as our kernels have none. */
#define KVL_EMU_ATOMIC(T, name, next)                                                              \
    KVL_EMU_UNCHECKED static inline T name(T *p, T v)                                              \
    {                                                                                              \
        kvl_emu_race_atomic(p, sizeof *p, __builtin_return_address(0));                            \
        T old = *p;                                                                                \
        *p = next;                                                                                 \
        return old;                                                                                \
    }
#define KVL_EMU_ATOMICS(T, U)                                                                      \
    KVL_EMU_ATOMIC(T, atomicAdd, (T)((U)old + (U)v))                                               \
    KVL_EMU_ATOMIC(T, atomicSub, (T)((U)old - (U)v))                                               \
    KVL_EMU_ATOMIC(T, atomicExch, v)                                                               \
    KVL_EMU_ATOMIC(T, atomicMin, old < v ? old : v)                                                \
    KVL_EMU_ATOMIC(T, atomicMax, old > v ? old : v)                                                \
    KVL_EMU_ATOMIC(T, atomicAnd, (T)(old & v))                                                     \
    KVL_EMU_ATOMIC(T, atomicOr, (T)(old | v))                                                      \
    KVL_EMU_ATOMIC(T, atomicXor, (T)(old ^ v))                                                     \
    KVL_EMU_UNCHECKED static inline T atomicCAS(T *p, T want, T v)                                 \
    {                                                                                              \
        kvl_emu_race_atomic(p, sizeof *p, __builtin_return_address(0));                            \
        T old = *p;                                                                                \
        if (old == want) *p = v;                                                                   \
        return old;                                                                                \
    }
KVL_EMU_ATOMICS(int, unsigned)
KVL_EMU_ATOMICS(unsigned, unsigned)
KVL_EMU_ATOMICS(unsigned long long, unsigned long long)
KVL_EMU_ATOMIC(unsigned, atomicInc, old >= v ? 0 : old + 1)
KVL_EMU_ATOMIC(unsigned, atomicDec, old == 0 || old > v ? v : old - 1)
#undef KVL_EMU_ATOMIC
#undef KVL_EMU_ATOMICS

#endif
