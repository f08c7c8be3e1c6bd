/* cuda.cuh - what every file of ops/cuda begins with.
 *
 * A file has three parts in this order: kernels; launch choice, with the reason; entry point
 * (kvl_cuda_<op>) that checks shapes and launches.
 *
 * Pointers of an operator's arguments may be to any memory.  kvl_cuda_in / out / inout give the address that
 * a kernel may use: the same one for memory of the device, a copy on the device for a mirror or for what the
 * call stages.  Staged outputs are copied back by kvl_cuda_end, which waits then; a call of which everything
 * lies on the device waits for nothing.
 *
 * Kernels use the common ground of nvcc and of the host emulation of the tests (KVL_CUDA_HOST): at most 3-d
 * grids and blocks, KVL_SHARED / __shared__, __syncthreads, __syncwarp, warp shuffles, votes and reductions
 * by shuffles, integer atomics, __half, __nv_bfloat16 and their conversions, fmaf, expf and the like.  Inline
 * PTX and tensor cores are in mma.cuh and wgmma.cuh alone, with stand-ins there.  No cooperative groups, no thrust, no
 * recursion, no device malloc, no textures, no early return before a barrier that others of the block
 * reach.  nvcc fuses nothing by itself (-fmad=false), and neither does the emulation: a sum of products that should
 * be fused says fmaf.  Results must not depend on the order in which blocks run: no atomics on floats, partial results are
 * merged in a fixed order. */
#ifndef KVL_CUDA_CUH
#define KVL_CUDA_CUH

#ifdef KVL_CUDA_HOST
#include "cuda_host.h" /* tests/ops/cuda_host */
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define KVL_LAUNCH(kernel, grid, block, shared_bytes, ...)                                         \
    kernel<<<grid, block, shared_bytes, kvl_cuda_launch(#kernel)>>>(__VA_ARGS__)
/* The block's dynamic shared memory. */
#define KVL_SHARED(type, name)                                                                     \
    extern __shared__ __align__(16) unsigned char kvl_shared_bytes[];                              \
    type *name = reinterpret_cast<type *>(kvl_shared_bytes)
#endif

#include "kvl/device.h"
#include "lane.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

enum { KVL_WARP = 32 };

cudaStream_t kvl_cuda_main(void);
/* kvl_cuda_main for one launch: counts it, and keeps the kernel's name for messages. */
cudaStream_t kvl_cuda_launch(const char *kernel);
/* Remembers the first error; KVL_OK, KVL_ENOMEM or KVL_EDEVICE. */
int kvl_cuda_check(cudaError_t e, const char *what);
int kvl_cuda_sync(void);
/* Whether the GPU and what was built for it have the instructions of wgmma.cuh. */
bool kvl_cuda_has_wgmma(void);
/* Shared memory that a block may have. */
int32_t kvl_cuda_block_bytes(void);
int32_t kvl_cuda_multiprocessors(void);

/* ---- one call of an operator ------------------------------------------------------------------- */

enum { KVL_CUDA_STAGED = 96 }; /* outputs of one call that are staged */

struct kvl_cuda_call {
    int rc;             /* the first failure; later requests give NULL */
    bool staged, tells; /* something of it is; it waits and looks for a NaN (kvl_cuda_mark) */
    int32_t n_out;
    struct {
        void *host;
        const void *device;
        size_t bytes;
    } out[KVL_CUDA_STAGED];
};

/* Takes back the temporary memory of the call before: work of one stream runs in order. */
void kvl_cuda_begin(struct kvl_cuda_call *c);
/* NULL gives NULL; so does a failure, which c->rc tells. */
const void *kvl_cuda_in_bytes(struct kvl_cuda_call *c, const void *p, size_t bytes);
void *kvl_cuda_out_bytes(struct kvl_cuda_call *c, void *p, size_t bytes,
                         bool keep); /* keep: in and out */
/* Whether kernels find p without a copy of the call. */
bool kvl_cuda_has(const void *p);
/* Memory for this call's kernels, not cleared, 256-byte aligned. */
void *kvl_cuda_temp_bytes(struct kvl_cuda_call *c, size_t bytes);
/* Host memory, read now, for this call's kernels: tables that the launcher builds. */
const void *kvl_cuda_upload_bytes(struct kvl_cuda_call *c, const void *host, size_t bytes);
/* Where kernels store 1 for a NaN that the operator refuses, once all arguments are there: a call of which
 * something is staged, or of ops_now, then waits and returns KVL_ENUMERIC; of any other the mark stays for
 * kvl_device's marked.  NULL after a failure. */
int32_t *kvl_cuda_mark(struct kvl_cuda_call *c);
/* Looks for errors of launches, brings staged outputs back; the call's result. */
int kvl_cuda_end(struct kvl_cuda_call *c);
/* Waits and copies `bytes` at a device address to the host: for flags and counts that decide a result. */
int kvl_cuda_fetch(struct kvl_cuda_call *c, void *host, const void *device, size_t bytes);

template <class T> static inline const T *kvl_cuda_in(struct kvl_cuda_call *c, const T *p, size_t n)
{
    return static_cast<const T *>(kvl_cuda_in_bytes(c, p, n * sizeof(T)));
}
template <class T> static inline T *kvl_cuda_out(struct kvl_cuda_call *c, T *p, size_t n)
{
    return static_cast<T *>(kvl_cuda_out_bytes(c, p, n * sizeof(T), false));
}
/* Also for outputs with gaps between rows, which must stay. */
template <class T> static inline T *kvl_cuda_inout(struct kvl_cuda_call *c, T *p, size_t n)
{
    return static_cast<T *>(kvl_cuda_out_bytes(c, p, n * sizeof(T), true));
}
template <class T> static inline T *kvl_cuda_temp(struct kvl_cuda_call *c, size_t n)
{
    return static_cast<T *>(kvl_cuda_temp_bytes(c, n * sizeof(T)));
}
template <class T>
static inline const T *kvl_cuda_upload(struct kvl_cuda_call *c, const T *host, size_t n)
{
    return static_cast<const T *>(kvl_cuda_upload_bytes(c, host, n * sizeof(T)));
}

/* Adds 1 to *flag, on the device, where x [n], on the device, has an infinity or NaN: given to MAIN
 * (finite.cu; what kvl_device's check_finite does with a flag of its own). */
int kvl_cuda_mark_not_finite(const float *x, size_t n, int32_t *flag);

/* ---- lanes ---------------------------------------------------------------------------------------- */

/* A lane as kernels see it: blocks[b] + off[part] are the rows of slot 0 of block b. */
struct kvl_cuda_lane {
    const uint8_t *const *blocks;
    int32_t n_slots, block_shift;
    int32_t head_dim;
    enum kvl_kv_type type;
    uint32_t off[3];
};

/* n lanes for kernels, uploaded; blocks of a lane that lies in host memory (lane->data NULL) are staged whole,
 * for tests.  All lanes have one layout. */
const struct kvl_cuda_lane *kvl_cuda_lanes(struct kvl_cuda_call *c, const struct kvl_lane *lane,
                                           int32_t n);
/* The same for lanes that do not lie together. */
const struct kvl_cuda_lane *kvl_cuda_lane_list(struct kvl_cuda_call *c,
                                               const struct kvl_lane *const *lane, int32_t n);

/* ---- in kernels ------------------------------------------------------------------------------------ */

/* An element of a block of q8_0. */
static __device__ inline float kvl_q8_at(uint16_t scale, int8_t q)
{
    __half d;
    memcpy(&d, &scale, sizeof d);
    return __half2float(d) * (float)q;
}

static __device__ inline float kvl_widen(enum kvl_kv_type type, const void *row, int32_t i)
{
    if (type == KVL_KV_F32) return static_cast<const float *>(row)[i];
    if (type == KVL_KV_F16) return __half2float(static_cast<const __half *>(row)[i]);
    if (type == KVL_KV_Q8_0) {
        const uint8_t *block =
            static_cast<const uint8_t *>(row) + i / KVL_KV_BLOCK * KVL_KV_BLOCK_BYTES;
        return kvl_q8_at(*reinterpret_cast<const uint16_t *>(block),
                         (int8_t)block[2 + i % KVL_KV_BLOCK]);
    }
    return __bfloat162float(static_cast<const __nv_bfloat16 *>(row)[i]);
}

/* kvl_kv_bytes in kernels. */
static __device__ inline size_t kvl_cuda_row_bytes(enum kvl_kv_type type, int32_t head_dim)
{
    if (type == KVL_KV_Q8_0) return (size_t)(head_dim / KVL_KV_BLOCK * KVL_KV_BLOCK_BYTES);
    return (size_t)head_dim * (type == KVL_KV_F32 ? 4 : 2);
}

/* The row of slot `slot`. */
static __device__ inline const void *kvl_lane_row(const struct kvl_cuda_lane *l, int part,
                                                  int32_t slot)
{
    int32_t in_block = slot & ((1 << l->block_shift) - 1);
    return l->blocks[slot >> l->block_shift] + l->off[part] +
           (size_t)in_block * kvl_cuda_row_bytes(l->type, l->head_dim);
}

/* Sums and maxima over a warp, the same in all its lanes: a butterfly, so one fixed order. */
static __device__ inline float kvl_warp_sum(float x)
{
    for (int o = KVL_WARP / 2; o > 0; o /= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}
static __device__ inline float kvl_warp_max(float x)
{
    for (int o = KVL_WARP / 2; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
    return x;
}

static inline int32_t kvl_ceil_div(int64_t n, int64_t d)
{
    return (int32_t)((n + d - 1) / d);
}

/* Without a branch, and in few registers: the library's takes more than a kernel of attention has left.  Its
 * error is absolute, some 1e-7, which a cap makes some 1e-5 of a logit. */
static __device__ inline float kvl_tanh(float x)
{
    return 1 - __fdividef(2.0f, 1 + __expf(2 * x));
}

#endif
