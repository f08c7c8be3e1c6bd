/* mma.cuh - tensor cores and asynchronous copies: with wgmma.cuh the only inline PTX.  Under the host emulation (KVL_CUDA_HOST)
 * stand-ins with the same layouts and the same order of events.
 *
 * Layouts, of lane l = 4 g + t of a warp; a register holds two 16-bit elements, the lower index low:
 *   a[4]  16 x 16   a[0] row g,     columns 2t, 2t + 1      a[2] row g,     columns 2t + 8, 2t + 9
 *                   a[1] row g + 8, columns 2t, 2t + 1      a[3] row g + 8, columns 2t + 8, 2t + 9
 *   b[2]  16 x 8    b[0] rows 2t, 2t + 1, column g          b[1] rows 2t + 8, 2t + 9, column g
 *   c[4]  16 x 8    c[0], c[1] row g, columns 2t, 2t + 1    c[2], c[3] row g + 8
 *
 * All of it is for whole warps of one-dimensional blocks, shared memory addresses are 16-byte aligned. */
#ifndef KVL_MMA_CUH
#define KVL_MMA_CUH

#include "cuda.cuh"

#include <string.h>

#ifndef KVL_CUDA_HOST

/* Loops over fragments: registers have no index. */
#define KVL_UNROLL _Pragma("unroll")

/* c += a b */
static __device__ inline void kvl_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four 8 x 8 matrices: lane l gives the address of row l % 8 of matrix l / 8 and gets of each matrix row g,
 * columns 2t, 2t + 1. */
static __device__ inline void kvl_ldmatrix(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* The same of the transposed matrices: rows 2t, 2t + 1, column g. */
static __device__ inline void kvl_ldmatrix_turned(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* 16 bytes from global to shared memory, behind the thread's back; zeros without `is`, when `from` is not read but
 * an address of global memory all the same, a multiple of 16. */
static __device__ inline void kvl_copy_async(void *to, const void *from, bool is)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)),
                   "r"(is ? 16 : 0)
                 : "memory");
}

/* The thread's own copies are there; a barrier makes them those of the block. */
static __device__ inline void kvl_copy_wait(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Ends a group of the thread's own copies, and waits for all but its N newest groups. */
static __device__ inline void kvl_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> static __device__ inline void kvl_copy_wait_but(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* 2^x, flushing what is below the normal numbers. */
static __device__ inline float kvl_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else

#define KVL_UNROLL

/* What lanes show each other, in turns: a lane is in the next turn only when all have read this one. */
struct kvl_mma_lane {
    float a[8], b[4];
    const void *row;
};
static struct kvl_mma_lane kvl_mma_shown[2][1024];
static uint8_t kvl_mma_turn[1024];

static inline struct kvl_mma_lane *kvl_mma_mine(void)
{
    unsigned thread = threadIdx.x;
    return &kvl_mma_shown[kvl_mma_turn[thread] ^= 1][thread];
}
/* Those of the warp. */
static inline const struct kvl_mma_lane *kvl_mma_show(const struct kvl_mma_lane *mine)
{
    kvl_emu_meet();
    return mine - threadIdx.x % KVL_WARP;
}

static inline void kvl_mma_widen(float x[2], uint32_t pair)
{
    uint32_t low = pair << 16, high = pair & 0xffff0000u;
    memcpy(&x[0], &low, sizeof low);
    memcpy(&x[1], &high, sizeof high);
}

/* Products of two bf16 are exact. */
static inline void kvl_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    int g = (int)threadIdx.x % KVL_WARP / 4, t = (int)threadIdx.x % 4;
    struct kvl_mma_lane *mine = kvl_mma_mine();
    for (int i = 0; i < 4; i++) kvl_mma_widen(mine->a + 2 * i, a[i]);
    for (int i = 0; i < 2; i++) kvl_mma_widen(mine->b + 2 * i, b[i]);
    const struct kvl_mma_lane *lane = kvl_mma_show(mine), *row = lane + 4 * g;
    for (int i = 0; i < 4; i++) {
        const struct kvl_mma_lane *column = lane + 4 * (2 * t + i % 2);
        for (int k = 0; k < 16; k++)
            c[i] += row[k % 8 / 2].a[i / 2 * 2 + k / 8 * 4 + k % 2] *
                    column[k % 8 / 2].b[k / 8 * 2 + k % 2];
    }
}

static inline void kvl_mma_rows(uint32_t r[4], const void *row, bool turned)
{
    struct kvl_mma_lane *mine = kvl_mma_mine();
    mine->row = row;
    const struct kvl_mma_lane *lane = kvl_mma_show(mine);
    int g = (int)threadIdx.x % KVL_WARP / 4, t = (int)threadIdx.x % 4;
    assert((uintptr_t)row % 16 == 0);
    for (int i = 0; i < 4; i++) {
        uint16_t x[2];
        for (int j = 0; j < 2; j++)
            x[j] = turned ? static_cast<const uint16_t *>(lane[8 * i + 2 * t + j].row)[g]
                          : static_cast<const uint16_t *>(lane[8 * i + g].row)[2 * t + j];
        memcpy(&r[i], x, sizeof r[i]);
    }
}
static inline void kvl_ldmatrix(uint32_t r[4], const void *row)
{
    kvl_mma_rows(r, row, false);
}
static inline void kvl_ldmatrix_turned(uint32_t r[4], const void *row)
{
    kvl_mma_rows(r, row, true);
}

/* Copies happen when they are waited for; until then there are NaNs. */
enum { KVL_COPIES = 256 };
static struct {
    void *to;
    const void *from;
    int group;
} kvl_copies[1024][KVL_COPIES];
static int kvl_n_copies[1024], kvl_copy_group[1024];

static inline void kvl_copy_async(void *to, const void *from, bool is)
{
    unsigned thread = threadIdx.x;
    int n = kvl_n_copies[thread]++;
    assert(n < KVL_COPIES && (uintptr_t)to % 16 == 0 && from && (uintptr_t)from % 16 == 0);
    kvl_copies[thread][n].to = to;
    kvl_copies[thread][n].from = is ? from : NULL;
    kvl_copies[thread][n].group = kvl_copy_group[thread];
    memset(to, 0xff, 16);
}
static inline void kvl_copy_commit(void)
{
    kvl_copy_group[threadIdx.x]++;
}
/* Those of groups before `end`. */
static inline void kvl_copy_run(int end)
{
    unsigned thread = threadIdx.x;
    int left = 0;
    for (int i = 0; i < kvl_n_copies[thread]; i++) {
        if (kvl_copies[thread][i].group >= end)
            kvl_copies[thread][left++] = kvl_copies[thread][i];
        else if (kvl_copies[thread][i].from)
            memcpy(kvl_copies[thread][i].to, kvl_copies[thread][i].from, 16);
        else
            memset(kvl_copies[thread][i].to, 0, 16);
    }
    kvl_n_copies[thread] = left;
}
static inline void kvl_copy_wait(void)
{
    kvl_copy_run(kvl_copy_group[threadIdx.x] + 1);
}
template <int N> static inline void kvl_copy_wait_but(void)
{
    kvl_copy_run(kvl_copy_group[threadIdx.x] - N);
}

static inline float kvl_exp2(float x)
{
    return exp2f(x);
}

#endif

/* Two floats rounded to bf16 in a register, the first low. */
static __device__ inline uint32_t kvl_pack_bf16(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t r;
    memcpy(&r, &pair, sizeof r);
    return r;
}

#endif
