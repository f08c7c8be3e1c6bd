/* sum_c max(q_c max_c, q_c min_c) = q_pos . max + q_neg . min, with q_pos = max(q, 0), q_neg = min(q, 0).
 * A sum or mean over a group's query heads is the bound of one query, whose parts are the sums of theirs;
 * a maximum, and lists per query head, take two multiply-adds a channel for each head.
 *
 * The limit is the table: 2 head_dim elements a page, read once for the whole group (again from L1 for groups of
 * more than four).  A thread owns eight channels, minima and maxima, of four pages at a time: eight loads of
 * 16 bytes in flight in 16-bit types, and a query's parts are fetched from shared memory once for four pages.
 * 16 threads make a page of 128 channels; they add up by shuffles.  Blocks take several tiles of pages one
 * after the other, since each begins by splitting the queries (again and again where shared memory has no
 * room for all of a group).
 *
 * Lanes and order of a sum depend on head_dim alone: neither on the type of the table nor on how many pages
 * there are.  Times: results/gpu-kernels.md. */
#include "select.cuh"

enum {
    BOUND_THREADS = 128,
    BOUND_PAGES = 4,     /* of a thread at a time */
    BOUND_QUERIES = 4,   /* the same */
    BOUND_BLOCKS = 1056, /* eight for each of an H200's processors */
    BOUND_SHARED = 48 << 10,
};

/* Pages that lie together, as a table has them (kvl_table_operand). */
struct bound_piece {
    const void *minmax;
    float *bound;
    size_t head_stride;
    int32_t n_pages;
};

struct bound {
    struct kvl_page_bound_args a; /* what all pieces share */
    struct bound_piece piece[2];
    int32_t tiles0;     /* of piece 0 */
    int32_t group, n_q; /* query heads per kv head, and how many queries are scored for them */
    int32_t n_parts;    /* n_q in whole tiles */
    int32_t n_at_once;  /* of these in shared memory */
    int32_t lanes;      /* threads of a page, a power of 2 */
    int32_t pad;        /* floats of a query part in shared memory */
    bool whole;         /* loads of 16 bytes */
};

/* parts [n_at_once][2][pad]: the positive and the negative part of each query from q0 on; zeros behind the
 * last one. */
static __device__ inline void bound_split(const struct bound *b, int32_t kv, int32_t q0,
                                          float *parts)
{
    const float *q = b->a.q + (size_t)(kv * b->group) * (size_t)b->a.head_dim;
    bool mean = b->a.reduce == KVL_REDUCE_MEAN_Q;
    bool sum = b->a.reduce == KVL_REDUCE_SUM || b->a.reduce == KVL_REDUCE_MEAN;
    for (int32_t i = (int32_t)threadIdx.x; i < b->n_at_once * b->pad; i += BOUND_THREADS) {
        int32_t c = i % b->pad, first = q0 + i / b->pad;
        int32_t n = first >= b->n_q ? 0 : sum || mean ? b->group : 1;
        float pos = 0, neg = 0, all = 0;
        for (int32_t g = 0; g < n && c < b->a.head_dim; g++) {
            float x = q[(size_t)(first + g) * (size_t)b->a.head_dim + (size_t)c];
            pos += x > 0 ? x : 0;
            neg += x < 0 ? x : 0;
            all += x;
        }
        all /= (float)b->group;
        float *out = parts + (size_t)(i / b->pad) * 2 * (size_t)b->pad + c;
        out[0] = !mean ? pos : all > 0 ? all : 0;
        out[b->pad] = !mean ? neg : all < 0 ? all : 0;
    }
}

/* Adds eight channels of four pages to their sums with Q queries. */
template <class T, int Q>
static __device__ inline void bound_channels(const struct bound *b, const struct bound_piece *of,
                                             const T *rows, int32_t page, int32_t step, int32_t c,
                                             const float *parts, float sum[Q][BOUND_PAGES])
{
    float lo[BOUND_PAGES][KVL_OCTET], hi[BOUND_PAGES][KVL_OCTET];
    int32_t dim = b->a.head_dim, n = KVL_MIN(KVL_OCTET, dim - c);
#pragma unroll
    for (int p = 0; p < BOUND_PAGES; p++) {
        int32_t at = page + p * step;
        int32_t live = at < of->n_pages ? n : 0;
        const T *row = rows + (size_t)(live > 0 ? at : 0) * 2 * (size_t)dim + c;
        kvl_load_octet(lo[p], row, live, b->whole);
        kvl_load_octet(hi[p], row + dim, live, b->whole);
    }
#pragma unroll
    for (int q = 0; q < Q; q++) {
        const float *part = parts + (size_t)q * 2 * (size_t)b->pad + c;
        float pos[KVL_OCTET], neg[KVL_OCTET];
        kvl_load_octet(pos, part, KVL_OCTET, true);
        kvl_load_octet(neg, part + b->pad, KVL_OCTET, true);
#pragma unroll
        for (int j = 0; j < KVL_OCTET; j++)
#pragma unroll
            for (int p = 0; p < BOUND_PAGES; p++) {
                sum[q][p] = fmaf(pos[j], hi[p][j], sum[q][p]);
                sum[q][p] = fmaf(neg[j], lo[p][j], sum[q][p]);
            }
    }
}

/* Four pages, `step` apart, with queries q0 .. q0 + Q - 1, of which `parts` are.  MAX: best [BOUND_PAGES] goes
 * from one tile of queries to the next. */
template <class T, int Q>
static __device__ inline void bound_pages(const struct bound *b, const struct bound_piece *of,
                                          const T *rows, int32_t kv, int32_t page, int32_t step,
                                          int32_t q0, const float *parts, float *best)
{
    const struct kvl_page_bound_args *a = &b->a;
    int32_t lane = (int32_t)threadIdx.x % b->lanes;
    float sum[Q][BOUND_PAGES] = {};
    for (int32_t c = lane * KVL_OCTET; c < b->a.head_dim; c += b->lanes * KVL_OCTET)
        bound_channels<T, Q>(b, of, rows, page, step, c, parts, sum);
#pragma unroll
    for (int q = 0; q < Q; q++)
#pragma unroll
        for (int p = 0; p < BOUND_PAGES; p++) {
            float x = sum[q][p];
            for (int o = b->lanes / 2; o > 0; o /= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
            int32_t at = page + p * step, i = q0 + q;
            if (i < b->n_q && (i == 0 || x > best[p])) best[p] = x;
            bool write = a->reduce == KVL_REDUCE_NONE ? i < b->n_q : i == b->n_q - 1;
            if (lane > 0 || at >= of->n_pages || !write) continue;
            int32_t list = a->reduce == KVL_REDUCE_NONE ? kv * b->group + i : kv;
            float y = a->reduce == KVL_REDUCE_MAX ? best[p] : x;
            if (a->reduce == KVL_REDUCE_MEAN) y /= (float)b->group;
            of->bound[(size_t)list * a->bound_stride + (size_t)at] = y;
        }
}

/* The same with all queries: `parts` has them already, if shared memory has room for them. */
template <class T, int Q>
static __device__ inline void bound_queries(const struct bound *b, const struct bound_piece *of,
                                            const T *rows, int32_t kv, int32_t page, int32_t step,
                                            float *parts)
{
    float best[BOUND_PAGES] = {};
    for (int32_t q1 = 0; q1 < b->n_q; q1 += b->n_at_once) {
        int32_t n = KVL_MIN(b->n_at_once, b->n_q - q1);
        if (b->n_at_once < b->n_parts) {
            __syncthreads(); /* parts before these have been read */
            bound_split(b, kv, q1, parts);
            __syncthreads();
        }
        for (int32_t q0 = 0; q0 < n; q0 += Q)
            bound_pages<T, Q>(b, of, rows, kv, page, step, q1 + q0,
                              parts + (size_t)q0 * 2 * (size_t)b->pad, best);
    }
}

/* A piece of the call's parameters, field by field: a struct that is chosen is copied to memory of every thread. */
static __device__ inline struct bound_piece bound_piece_of(const struct bound *b, bool second)
{
    struct bound_piece of;
    of.minmax = second ? b->piece[1].minmax : b->piece[0].minmax;
    of.bound = second ? b->piece[1].bound : b->piece[0].bound;
    of.head_stride = second ? b->piece[1].head_stride : b->piece[0].head_stride;
    of.n_pages = second ? b->piece[1].n_pages : b->piece[0].n_pages;
    return of;
}

/* grid (tiles of pages, kv heads, pieces) */
template <class T, int Q> static __device__ inline void bound_block(const struct bound *b)
{
    KVL_SHARED(float, parts);
    int32_t kv = (int32_t)blockIdx.y, per_step = BOUND_THREADS / b->lanes;
    int32_t tile = per_step * BOUND_PAGES, own = (int32_t)threadIdx.x / b->lanes;
    const struct bound_piece of = bound_piece_of(b, blockIdx.z > 0);
    const T *rows = static_cast<const T *>(of.minmax) + (size_t)kv * of.head_stride;
    if (b->n_at_once == b->n_parts) bound_split(b, kv, 0, parts);
    __syncthreads();
    for (int32_t p0 = (int32_t)blockIdx.x * tile; p0 < of.n_pages; p0 += (int32_t)gridDim.x * tile)
        bound_queries<T, Q>(b, &of, rows, kv, p0 + own, per_step, parts);
}

template <class T>
static __global__ void __launch_bounds__(BOUND_THREADS) bound_many(struct bound b)
{
    bound_block<T, BOUND_QUERIES>(&b);
}

template <class T>
static __global__ void __launch_bounds__(BOUND_THREADS) bound_single(struct bound b)
{
    bound_block<T, 1>(&b);
}

/* Enough blocks to fill the device, no more, so that few split the same queries. */
template <class T> static void bound_launch(const struct bound *b)
{
    int32_t pages = KVL_MAX(b->piece[0].n_pages, b->piece[1].n_pages);
    int32_t tiles = kvl_ceil_div(pages, BOUND_THREADS / b->lanes * BOUND_PAGES);
    int32_t most = kvl_ceil_div(BOUND_BLOCKS, b->a.n_kv_heads);
    dim3 grid((unsigned)KVL_MIN(tiles, most), (unsigned)b->a.n_kv_heads,
              b->piece[1].n_pages > 0 ? 2 : 1);
    dim3 block(BOUND_THREADS);
    size_t bytes = (size_t)b->n_at_once * 2 * (size_t)b->pad * sizeof(float);
    if (b->n_q == 1)
        KVL_LAUNCH(bound_single<T>, grid, block, bytes, *b);
    else
        KVL_LAUNCH(bound_many<T>, grid, block, bytes, *b);
}

static void bound_run(struct bound *b)
{
    const struct kvl_page_bound_args *a = &b->a;
    size_t elem = (size_t)kvl_kv_elem_bytes(a->type);
    int32_t octets = kvl_ceil_div(a->head_dim, KVL_OCTET);
    bool each = a->reduce == KVL_REDUCE_NONE || a->reduce == KVL_REDUCE_MAX;
    b->n_q = each ? b->group : 1;
    b->n_parts = b->n_q == 1 ? 1 : kvl_ceil_div(b->n_q, BOUND_QUERIES) * BOUND_QUERIES;
    b->pad = octets * KVL_OCTET;
    int32_t room = BOUND_SHARED / (2 * b->pad * (int32_t)sizeof(float));
    b->n_at_once = KVL_MIN(b->n_parts, KVL_MAX(room / BOUND_QUERIES * BOUND_QUERIES, 1));
    for (b->lanes = 1; b->lanes < octets && b->lanes < KVL_WARP;) b->lanes *= 2;
    b->whole = a->head_dim % KVL_OCTET == 0;
    for (int i = 0; i < 2; i++)
        b->whole = b->whole && kvl_rows_aligned(b->piece[i].minmax, b->piece[i].head_stride, elem);
    if (a->type == KVL_KV_F32)
        bound_launch<float>(b);
    else if (a->type == KVL_KV_F16)
        bound_launch<__half>(b);
    else
        bound_launch<__nv_bfloat16>(b);
}

/* The pages of `a` and of the next one; the one after them. */
static const struct kvl_page_bound_args *bound_some(struct kvl_cuda_call *c, struct bound *b,
                                                    const struct kvl_page_bound_args *a)
{
    size_t dim = (size_t)a->head_dim, kv = (size_t)a->n_kv_heads;
    size_t elem = (size_t)kvl_kv_elem_bytes(a->type);
    size_t lists = a->reduce == KVL_REDUCE_NONE ? (size_t)a->n_heads : kv, n = 0, all = 0;
    float *first = a->bound;
    b->piece[0] = b->piece[1] = {};
    for (int i = 0; i < 2 && a; a = a->next) {
        size_t pages = (size_t)a->n_pages;
        if (pages == 0) continue;
        size_t bytes = ((kv - 1) * a->head_stride + pages * 2 * dim) * elem;
        assert(a->bound >= first);
        b->piece[i].minmax = kvl_cuda_in_bytes(c, a->minmax, bytes);
        b->piece[i].bound = a->bound;
        b->piece[i].head_stride = a->head_stride;
        b->piece[i++].n_pages = a->n_pages;
        n = (size_t)(a->bound - first) + (lists - 1) * b->a.bound_stride + pages;
        all += pages;
    }
    /* Lists of both lie between each other: one piece of memory, with nothing else in it or something. */
    float *there = static_cast<float *>(
        kvl_cuda_out_bytes(c, first, n * sizeof *first, all != b->a.bound_stride));
    for (int i = 0; i < 2 && there; i++)
        if (b->piece[i].bound) b->piece[i].bound = there + (b->piece[i].bound - first);
    if (c->rc == KVL_OK && b->piece[0].n_pages > 0) bound_run(b);
    return a;
}

int kvl_cuda_page_bound(const struct kvl_page_bound_args *a)
{
    struct kvl_cuda_call c;
    struct bound b = {};
    assert(a->type <= KVL_KV_BF16 && a->head_dim <= 1024);
    assert(!a->next || a->bound_stride > 0);
    if (a->reduce < KVL_REDUCE_NONE || a->reduce > KVL_REDUCE_MEAN_Q) return KVL_EINVAL;
    b.a = *a;
    b.a.minmax = NULL; /* a piece has its own */
    b.a.bound = NULL;
    b.a.next = NULL;
    b.group = a->n_heads / a->n_kv_heads;
    if (b.a.bound_stride == 0) b.a.bound_stride = (size_t)a->n_pages;
    kvl_cuda_begin(&c);
    b.a.q = kvl_cuda_in(&c, a->q, (size_t)a->n_heads * (size_t)a->head_dim);
    while (a && c.rc == KVL_OK) a = bound_some(&c, &b, a);
    return kvl_cuda_end(&c);
}
