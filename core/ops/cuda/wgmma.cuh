/* wgmma.cuh - the matrix instructions of Hopper (compute capability 9.0, built for sm_90a): a warpgroup of four warps
 * multiplies matrices that lie in shared memory, while its threads go on.  Inline PTX stands here and in mma.cuh alone; under the
 * host emulation (KVL_CUDA_HOST) stand-ins with the same layouts, which multiply at once.
 *
 * A panel is n rows of 64 elements of bf16, 128 bytes each, at a multiple of 1024 bytes; the eight pieces of 16
 * bytes of row r are permuted: piece p lies at p ^ (r % 8) (kvl_panel_piece), so that neither rows nor columns meet in a bank.
 * A thread has of a result of 64 rows what mma.cuh calls c of each 8 columns: warp w of the group rows 16 w + g and 16 w + g + 8.
 *
 * Order of a product: kvl_shared_seen and a barrier after panels were written; kvl_group_hold of the sums,
 * kvl_group_begin, products, kvl_group_commit; kvl_group_wait, kvl_group_hold before sums are used. */
#ifndef KVL_WGMMA_CUH
#define KVL_WGMMA_CUH

#include "mma.cuh"

/* Whether this pass of the compiler has them: kernels are empty otherwise, and kvl_cuda_has_wgmma says so. */
#if defined(KVL_CUDA_HOST) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define KVL_WGMMA 1
#else
#define KVL_WGMMA 0
#endif

enum { KVL_GROUP = 128, KVL_PANEL = 64, KVL_PANEL_ROW = 128 /* bytes */ };

/* Where piece p of 16 bytes of row r begins. */
static __device__ inline int32_t kvl_panel_piece(int32_t r, int32_t p)
{
    return r * KVL_PANEL_ROW + ((p ^ (r % 8)) * 16);
}

#ifndef KVL_CUDA_HOST

#if KVL_WGMMA

/* A panel as an instruction names it: address, bytes between panels, bytes between eight rows, 128 permuted. */
static __device__ inline uint64_t kvl_panel_name(const uint8_t *panel, uint32_t step)
{
    uint64_t at = (uint32_t)__cvta_generic_to_shared(panel);
    return (at & 0x3ffff) >> 4 | (uint64_t)(step >> 4) << 16 |
           (uint64_t)(8 * KVL_PANEL_ROW >> 4) << 32 | (uint64_t)1 << 62;
}

/* c[64 x 128] = (or +=, with `add`) a b^T over columns 16 k .. of 64 rows of a and 128 rows of b. */
static __device__ inline void kvl_group_product(float (&c)[64], const uint8_t *a, const uint8_t *b,
                                                int k, bool add)
{
    uint64_t x = kvl_panel_name(a, 16) + (uint64_t)(2 * k);
    uint64_t y = kvl_panel_name(b, 16) + (uint64_t)(2 * k);
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, "
                 "%8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, "
                 "%24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, "
                 "%40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, "
                 "%56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 0;\n"
                 "}\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]),
                   "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]),
                   "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                   "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]),
                   "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]),
                   "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
                   "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]),
                   "+f"(c[54]), "+f"(c[55]), "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]),
                   "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
                 : "l"(x), "l"(y), "r"((int)add));
}

/* c[64 x 128] += a v: a has 16 columns, v 16 rows of two panels that are `step` bytes apart. */
static __device__ inline void kvl_group_values(float (&c)[64], const uint32_t (&a)[4],
                                               const uint8_t *v, uint32_t step)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, "
                 "%8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, "
                 "%24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, "
                 "%40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, "
                 "%56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]),
                   "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]),
                   "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                   "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]),
                   "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]),
                   "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
                   "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]),
                   "+f"(c[54]), "+f"(c[55]), "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]),
                   "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(kvl_panel_name(v, step)));
}

/* The same for 64 columns, which are one panel. */
static __device__ inline void kvl_group_values(float (&c)[32], const uint32_t (&a)[4],
                                               const uint8_t *v, uint32_t step)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, "
                 "%8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, "
                 "%24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]),
                   "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]),
                   "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                   "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(kvl_panel_name(v, step)));
}

static __device__ inline void kvl_group_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ inline void kvl_group_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* All but the N newest commits have ended. */
template <int N> static __device__ inline void kvl_group_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Registers that a product under way reads or writes: the compiler moves nothing across. */
template <int N> static __device__ inline void kvl_group_hold(float (&x)[N])
{
    KVL_UNROLL
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}
template <int N> static __device__ inline void kvl_group_hold(uint32_t (&x)[N][4])
{
    KVL_UNROLL
    for (int i = 0; i < 4 * N; i++) asm volatile("" : "+r"(x[i / 4][i % 4])::"memory");
}

#endif

/* What the thread wrote to shared memory, its copies that have ended too, can be seen by matrix instructions. */
static __device__ inline void kvl_shared_seen(void)
{
#if KVL_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#else

static inline float kvl_panel_at(const uint8_t *panel, int r, int c)
{
    uint16_t x;
    uint32_t wide;
    float y;
    assert((uintptr_t)panel % (8 * KVL_PANEL_ROW) == 0);
    memcpy(&x, panel + kvl_panel_piece(r, c / 8) + c % 8 * 2, sizeof x);
    wide = (uint32_t)x << 16;
    memcpy(&y, &wide, sizeof y);
    return y;
}

static inline void kvl_group_product(float (&c)[64], const uint8_t *a, const uint8_t *b, int k,
                                     bool add)
{
    int t = (int)threadIdx.x, g = t % KVL_WARP / 4, row = t % KVL_GROUP / KVL_WARP * 16 + g;
    for (int i = 0; i < 64; i++) {
        float sum = add ? c[i] : 0;
        for (int j = 16 * k; j < 16 * k + 16; j++)
            sum += kvl_panel_at(a, row + i % 4 / 2 * 8, j) *
                   kvl_panel_at(b, i / 4 * 8 + t % 4 * 2 + i % 2, j);
        c[i] = sum;
    }
}

template <int N>
static inline void kvl_group_values(float (&c)[N], const uint32_t (&a)[4], const uint8_t *v,
                                    uint32_t step)
{
    int t = (int)threadIdx.x % 4, g = (int)threadIdx.x % KVL_WARP / 4;
    struct kvl_mma_lane *mine = kvl_mma_mine();
    for (int i = 0; i < 4; i++) kvl_mma_widen(mine->a + 2 * i, a[i]);
    const struct kvl_mma_lane *row = kvl_mma_show(mine) + 4 * g;
    for (int i = 0; i < N; i++) {
        int column = i / 4 * 8 + 2 * t + i % 2;
        const uint8_t *panel = v + (size_t)(column / KVL_PANEL) * step;
        for (int k = 0; k < 16; k++)
            c[i] += row[k % 8 / 2].a[i % 4 / 2 * 2 + k / 8 * 4 + k % 2] *
                    kvl_panel_at(panel, k, column % KVL_PANEL);
    }
}

static inline void kvl_group_begin(void) {}
static inline void kvl_group_commit(void) {}
template <int N> static inline void kvl_group_wait(void) {}
template <int N> static inline void kvl_group_hold(float (&)[N]) {}
template <int N> static inline void kvl_group_hold(uint32_t (&)[N][4]) {}
static inline void kvl_shared_seen(void) {}

#endif

#endif
