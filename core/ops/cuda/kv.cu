/* Rows of keys and values into blocks, and from block to block.
 *
 * Both only move bytes: what they read and write, once, is the limit (kv_move, twice).  A block of
 * threads takes one span or move of one part, so that its rows are read and written in order, by words as
 * wide as the row's length and the addresses let them be.  Not timed on hardware yet. */
#include "kv_block.h"
#include "kv_rows.cuh"
#include "runtime.cuh"

enum { KV_THREADS = 128 };
/* Of a gather: enough under way for all that a bus of version 5 brings, 50 GB/s from pieces of any size on an H200, where
 * copies of as many pieces of 4 KiB reach 1.5 and those of 128 KiB 26 (one by one) and 46 (as a batch); more blocks take
 * memory's time from what runs beside it.  tests/bench/bench_cuda_host says it of the device at hand. */
enum { KV_GATHER_THREADS = 512, KV_GATHER_BLOCKS = 16, KV_GATHER_WORDS = 4 };

/* The parts that a call writes. */
struct kv_parts {
    float *from[3]; /* written where `rounds` says so */
    uint32_t off[3];
    int32_t n, n_kv_heads, head_dim;
    bool rounds;
};

/* Of every part that is stored: where it begins in a block, words of a row, where its rows are staged. */
struct kv_move_shape {
    uint32_t off[3];
    int64_t row[3], staged[3];
};

/* ---- kernels -------------------------------------------------------------------------------------- */

static __device__ inline void kv_store(float *to, float x)
{
    *to = x;
}
static __device__ inline void kv_store(__half *to, float x)
{
    *to = __float2half_rn(x);
}
static __device__ inline void kv_store(__nv_bfloat16 *to, float x)
{
    *to = __float2bfloat16_rn(x);
}

static __device__ inline float kv_load(float x)
{
    return x;
}
static __device__ inline float kv_load(__half x)
{
    return __half2float(x);
}
static __device__ inline float kv_load(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

static __device__ inline void kv_store4(float *to, float4 x)
{
    *reinterpret_cast<float4 *>(to) = x;
}
template <class T> static __device__ inline void kv_store4(T *to, float4 x)
{
    union {
        uint2 word;
        uint16_t half[4];
    } u;
    T e[4];
    kv_store(&e[0], x.x);
    kv_store(&e[1], x.y);
    kv_store(&e[2], x.z);
    kv_store(&e[3], x.w);
    for (int i = 0; i < 4; i++) memcpy(&u.half[i], &e[i], sizeof e[i]);
    *reinterpret_cast<uint2 *>(to) = u.word;
}

/* What is stored of x. */
template <class T> static __device__ inline float kv_kept(float x)
{
    T y;
    kv_store(&y, x);
    return kv_load(y);
}
template <class T> static __device__ inline float4 kv_kept4(float4 x)
{
    return make_float4(kv_kept<T>(x.x), kv_kept<T>(x.y), kv_kept<T>(x.z), kv_kept<T>(x.w));
}

template <class T>
static __device__ inline void kv_put_step(T *to, float *from, int32_t i, bool wide, bool rounds)
{
    if (wide) {
        float4 x = reinterpret_cast<const float4 *>(from)[i];
        kv_store4(to + 4 * i, x);
        if (rounds) reinterpret_cast<float4 *>(from)[i] = kv_kept4<T>(x);
    } else {
        float x = from[i];
        kv_store(to + i, x);
        if (rounds) from[i] = kv_kept<T>(x);
    }
}

/* Keys and values come before keys that RoPE has not turned, which stay as they are. */
static __device__ inline bool kv_rounds(const struct kv_parts &parts, unsigned part)
{
    return parts.rounds && part < KVL_PART_K_RAW;
}

/* grid (spans, parts) */
template <class T, bool WIDE>
static __global__ void __launch_bounds__(KV_THREADS)
    kv_put_kernel(struct kv_parts parts, const struct kvl_kv_span *span)
{
    const struct kvl_kv_span s = span[blockIdx.x];
    if (s.link && blockIdx.y == 0 && threadIdx.x == 0) *s.link = s.data;
    int32_t dim = parts.head_dim, steps = WIDE ? dim / 4 : dim;
    bool rounds = kv_rounds(parts, blockIdx.y);
    float *from = kvl_third(parts.from, blockIdx.y);
    T *to = reinterpret_cast<T *>(s.data + kvl_third(parts.off, blockIdx.y)) +
            (size_t)s.slot * (size_t)dim;
    for (int32_t i = (int32_t)threadIdx.x; i < s.n * steps; i += KV_THREADS) {
        int32_t r = i / steps;
        size_t row = (size_t)(s.row + r) * (size_t)parts.n_kv_heads + (size_t)s.kv_head;
        kv_put_step(to + (size_t)r * (size_t)dim, from + row * (size_t)dim, i % steps, WIDE,
                    rounds);
    }
}

/* The same for q8_0: a thread takes a block of 32 elements. */
static __global__ void __launch_bounds__(KV_THREADS)
    kv_put_blocks(struct kv_parts parts, const struct kvl_kv_span *span)
{
    const struct kvl_kv_span s = span[blockIdx.x];
    if (s.link && blockIdx.y == 0 && threadIdx.x == 0) *s.link = s.data;
    int32_t steps = parts.head_dim / KVL_KV_BLOCK;
    bool rounds = kv_rounds(parts, blockIdx.y);
    float *from = kvl_third(parts.from, blockIdx.y);
    uint8_t *to =
        s.data + kvl_third(parts.off, blockIdx.y) + (size_t)(s.slot * steps) * KVL_KV_BLOCK_BYTES;
    for (int32_t i = (int32_t)threadIdx.x; i < s.n * steps; i += KV_THREADS) {
        size_t row = (size_t)(s.row + i / steps) * (size_t)parts.n_kv_heads + (size_t)s.kv_head;
        float *x = from + row * (size_t)parts.head_dim + i % steps * KVL_KV_BLOCK;
        uint8_t *block = to + (size_t)i * KVL_KV_BLOCK_BYTES;
        kvl_q8_0_put(block, x);
        for (int32_t c = 0; rounds && c < KVL_KV_BLOCK; c += 8) kvl_q8_0_eight(x + c, block, c);
    }
}

/* grid (moves, parts): into the staging memory, or out of it. */
template <class W>
static __global__ void __launch_bounds__(KV_THREADS)
    kv_stage_kernel(struct kv_move_shape shape, const struct kvl_kv_move *move, W *stage, bool in)
{
    const struct kvl_kv_move m = move[blockIdx.x];
    uint32_t off = kvl_third(shape.off, blockIdx.y);
    int64_t row = kvl_third(shape.row, blockIdx.y);
    W *staged = stage + kvl_third(shape.staged, blockIdx.y) + m.at * row;
    const W *from = reinterpret_cast<const W *>(m.from + off) + m.from_slot * row;
    W *to = reinterpret_cast<W *>(m.to + off) + m.to_slot * row;
    for (int64_t i = threadIdx.x; i < m.n * row; i += KV_THREADS) {
        if (in)
            staged[i] = from[i];
        else
            to[i] = staged[i];
    }
}

/* Straight from block to block, of which one may be pinned memory of the host: what is under way at once is what
 * makes it fast (some 1.3 us a load over PCIe), so a warp takes a part of a move, KV_GATHER_WORDS words a thread before
 * it stores the first. */
template <class W>
static __global__ void __launch_bounds__(KV_GATHER_THREADS)
    kv_gather_kernel(struct kv_move_shape shape, const struct kvl_kv_move *move, int32_t n_moves,
                     int32_t n_pieces)
{
    int32_t warps = (int32_t)(gridDim.x * (KV_GATHER_THREADS / KVL_WARP));
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP;
    for (int32_t i = (int32_t)(blockIdx.x * KV_GATHER_THREADS + threadIdx.x) / KVL_WARP;
         i < n_pieces; i += warps) {
        int32_t part = i / n_moves;
        const struct kvl_kv_move m = move[i - part * n_moves];
        uint32_t off = kvl_third(shape.off, (unsigned)part);
        int64_t row = kvl_third(shape.row, (unsigned)part), n = m.n * row;
        const W *from = reinterpret_cast<const W *>(m.from + off) + m.from_slot * row;
        W *to = reinterpret_cast<W *>(m.to + off) + m.to_slot * row;
        for (int64_t at = lane; at < n; at += KVL_WARP * KV_GATHER_WORDS) {
            W w[KV_GATHER_WORDS];
#pragma unroll
            for (int j = 0; j < KV_GATHER_WORDS; j++)
                if (at + j * KVL_WARP < n) w[j] = from[at + j * KVL_WARP];
#pragma unroll
            for (int j = 0; j < KV_GATHER_WORDS; j++)
                if (at + j * KVL_WARP < n) to[at + j * KVL_WARP] = w[j];
        }
    }
}

/* ---- launches ------------------------------------------------------------------------------------- */

/* Four floats at a time where every row begins at a multiple of 16 bytes. */
template <class T>
static void kv_put_launch(const struct kv_parts *parts, const struct kvl_kv_span *span,
                          int32_t n_spans)
{
    bool wide = parts->head_dim % 4 == 0;
    for (int32_t i = 0; i < parts->n; i++) wide = wide && (uintptr_t)parts->from[i] % 16 == 0;
    dim3 grid((unsigned)n_spans, (unsigned)parts->n);
    if (wide)
        KVL_LAUNCH((kv_put_kernel<T, true>), grid, KV_THREADS, 0, *parts, span);
    else
        KVL_LAUNCH((kv_put_kernel<T, false>), grid, KV_THREADS, 0, *parts, span);
}

/* All reads before the writes: the second launch begins when the first has run. */
template <class W>
static void kv_move_launch(struct kv_move_shape shape, const struct kvl_kv_move *move, void *stage,
                           dim3 grid)
{
    W *staged = static_cast<W *>(stage);
    KVL_LAUNCH((kv_stage_kernel<W>), grid, KV_THREADS, 0, shape, move, staged, true);
    KVL_LAUNCH((kv_stage_kernel<W>), grid, KV_THREADS, 0, shape, move, staged, false);
}

/* ---- entry points --------------------------------------------------------------------------------- */

static size_t kv_put_rows(const struct kvl_kv_put_args *a)
{
    int32_t rows = 0;
    for (int32_t i = 0; i < a->n_spans; i++) {
        const struct kvl_kv_span *s = &a->span[i];
        assert(s->n > 0 && s->slot >= 0 && s->slot + s->n <= a->layout->block_tok);
        assert(s->row >= 0 && s->kv_head >= 0 && s->kv_head < a->n_kv_heads);
        rows = KVL_MAX(rows, s->row + s->n);
    }
    return (size_t)rows;
}

/* Types that kernels of attention do not read in place: rows are rounded behind the put. */
static void kv_put_kept(const struct kvl_kv_put_args *a, const struct kv_parts *parts,
                        const struct kvl_kv_span *span, size_t n)
{
    const struct kvl_layout *l = a->layout;
    int32_t n_rows = (int32_t)(n / (size_t)l->head_dim);
    kvl_cuda_rows_put(l, parts->from, span, a->n_spans, a->n_kv_heads);
    for (int part = 0; a->rounds && part < KVL_PART_K_RAW; part++)
        kvl_cuda_rows_round(l->type[part], parts->from[part], n_rows, l->head_dim);
}

int kvl_cuda_kv_put(const struct kvl_kv_put_args *a)
{
    const struct kvl_layout *l = a->layout;
    struct kvl_cuda_call c;
    struct kv_parts parts = {};
    if (a->n_spans == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    size_t n = kv_put_rows(a) * (size_t)a->n_kv_heads * (size_t)l->head_dim;
    enum kvl_kv_type type = l->type[KVL_PART_K];
    parts.n_kv_heads = a->n_kv_heads;
    parts.head_dim = l->head_dim;
    parts.rounds = a->rounds && type != KVL_KV_F32;
    for (int part = 0; part < 3; part++) {
        if (!a->part[part]) continue;
        bool writes = a->rounds && part < KVL_PART_K_RAW;
        float *from = const_cast<float *>(a->part[part]);
        parts.off[parts.n] = (uint32_t)l->part_off[part];
        parts.from[parts.n++] = writes ? kvl_cuda_inout(&c, from, n)
                                       : const_cast<float *>(kvl_cuda_in(&c, a->part[part], n));
    }
    const struct kvl_kv_span *span = kvl_cuda_upload(&c, a->span, (size_t)a->n_spans);
    if (c.rc == KVL_OK && kvl_cuda_is_kept(l)) {
        kv_put_kept(a, &parts, span, n);
    } else if (c.rc == KVL_OK && parts.n > 0) {
        if (type == KVL_KV_F32) kv_put_launch<float>(&parts, span, a->n_spans);
        if (type == KVL_KV_F16) kv_put_launch<__half>(&parts, span, a->n_spans);
        if (type == KVL_KV_BF16) kv_put_launch<__nv_bfloat16>(&parts, span, a->n_spans);
        if (type == KVL_KV_Q8_0)
            KVL_LAUNCH(kv_put_blocks, dim3((unsigned)a->n_spans, (unsigned)parts.n), KV_THREADS, 0,
                       parts, span);
    }
    return kvl_cuda_end(&c);
}

/* The widest word that all rows are made of. */
static size_t kv_word(const struct kvl_layout *l)
{
    size_t word = 16;
    for (int part = 0; part < 3; part++)
        while (l->part_off[part] != SIZE_MAX && l->row_bytes[part] % word)
            word = word == 16 ? 4 : 2;
    return word;
}

/* total: slots of all moves */
static struct kv_move_shape kv_shape(const struct kvl_layout *l, int64_t total, unsigned *n_parts)
{
    struct kv_move_shape shape = {};
    int64_t word = (int64_t)kv_word(l), staged = 0;
    *n_parts = 0;
    for (int part = 0; part < 3; part++) {
        if (l->part_off[part] == SIZE_MAX) continue;
        unsigned i = (*n_parts)++;
        shape.off[i] = (uint32_t)l->part_off[part];
        shape.row[i] = (int64_t)l->row_bytes[part] / word;
        shape.staged[i] = staged;
        staged += total * shape.row[i];
    }
    return shape;
}

static int64_t kv_move_slots(const struct kvl_kv_move_args *a)
{
    int64_t total = 0;
    for (int32_t i = 0; i < a->n_moves; i++) {
        const struct kvl_kv_move *m = &a->move[i];
        assert(m->n > 0 && m->to_slot >= 0 && m->to_slot + m->n <= a->layout->block_tok);
        assert(m->from_slot >= 0 && m->from_slot + m->n <= a->layout->block_tok);
        assert(m->at == total);
        total += m->n;
    }
    return total;
}

/* Allocates nothing: the middle of an eviction is no place to run short. */
int kvl_cuda_kv_move(const struct kvl_kv_move_args *a)
{
    const struct kvl_layout *l = a->layout;
    struct kvl_cuda_call c;
    unsigned n_parts;
    if (a->n_moves == 0) return KVL_OK;
    int64_t total = kv_move_slots(a);
    struct kv_move_shape shape = kv_shape(l, total, &n_parts);
    assert((size_t)total * kvl_layout_slot(l) <= a->stage_bytes && (uintptr_t)a->stage % 16 == 0);
    kvl_cuda_begin(&c);
    const struct kvl_kv_move *move = kvl_cuda_upload(&c, a->move, (size_t)a->n_moves);
    dim3 grid((unsigned)a->n_moves, n_parts);
    if (c.rc == KVL_OK) {
        if (kv_word(l) == 16) kv_move_launch<uint4>(shape, move, a->stage, grid);
        if (kv_word(l) == 4) kv_move_launch<uint32_t>(shape, move, a->stage, grid);
        if (kv_word(l) == 2) kv_move_launch<uint16_t>(shape, move, a->stage, grid);
    }
    return kvl_cuda_end(&c);
}

/* The list of the gather under way: memory of calls belongs to MAIN. */
static struct {
    void *moves;
    size_t bytes;
} kv_gather_list;

static int kv_gather_room(size_t bytes)
{
    if (bytes <= kv_gather_list.bytes) return KVL_OK;
    void *more;
    KVL_TRY(kvl_cuda_alloc(KVL_PLACE_DEVICE, bytes + bytes / 2, &more));
    kvl_cuda_release(KVL_PLACE_DEVICE, kv_gather_list.moves);
    kv_gather_list.moves = more;
    kv_gather_list.bytes = bytes + bytes / 2;
    return KVL_OK;
}

static void kv_gather_launch(const struct kvl_kv_move_args *a)
{
    unsigned n_parts;
    struct kv_move_shape shape = kv_shape(a->layout, 0, &n_parts);
    const struct kvl_kv_move *move = static_cast<const struct kvl_kv_move *>(kv_gather_list.moves);
    int32_t n_pieces = a->n_moves * (int32_t)n_parts;
    int32_t blocks = kvl_ceil_div(n_pieces, KV_GATHER_THREADS / KVL_WARP);
    unsigned grid = (unsigned)KVL_MIN(blocks, (int32_t)KV_GATHER_BLOCKS);
    size_t word = kv_word(a->layout);
    if (word == 16)
        KVL_LAUNCH((kv_gather_kernel<uint4>), grid, KV_GATHER_THREADS, 0, shape, move, a->n_moves,
                   n_pieces);
    if (word == 4)
        KVL_LAUNCH((kv_gather_kernel<uint32_t>), grid, KV_GATHER_THREADS, 0, shape, move,
                   a->n_moves, n_pieces);
    if (word == 2)
        KVL_LAUNCH((kv_gather_kernel<uint16_t>), grid, KV_GATHER_THREADS, 0, shape, move,
                   a->n_moves, n_pieces);
}

int kvl_cuda_kv_gather(const struct kvl_kv_move_args *a)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    size_t bytes = (size_t)a->n_moves * sizeof *a->move;
    if (a->n_moves == 0) return KVL_OK;
    KVL_TRY(kvl_cuda_ready());
    KVL_TRY(kv_gather_room(bytes));
    KVL_TRY(kvl_cuda_upload_to(kv_gather_list.moves, a->move, bytes, KVL_STREAM_COPY));
    rt->launches = KVL_STREAM_COPY;
    kv_gather_launch(a);
    rt->launches = KVL_STREAM_MAIN;
    rt->traffic.h2d_calls++;
    rt->traffic.h2d_bytes += kv_move_slots(a) * (int64_t)kvl_layout_slot(a->layout);
    return kvl_cuda_check(cudaGetLastError(), "starting a gather");
}
