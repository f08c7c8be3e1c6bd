/* As attn_prefill, but a query reads what its head says: columns, distances and blocks become bits, and a tile
 * of 64 queries gathers the slots that one of them reads (sparse.cuh).
 *
 * Limit: that of attn_prefill for the pairs of a query and a gathered slot; the search takes a bit of each slot
 * for each of 64 queries.  Not timed yet. */
#include "prefill_f32.cuh"
#include "prefill_mma.cuh"
#include "sparse.cuh"

#include <string.h>

struct sparse_work {
    struct pf_queries q; /* of row 0, head 0 */
    float *out;
    const struct kvl_cuda_lane *lanes;
    const struct sparse_bits *bits; /* [n_heads] */
    unsigned long long *n_pairs, *n_reads;
    int32_t n_heads, past, n_slots;
    float factor; /* makes a product a logit to the base 2 */
};

struct sparse_shared {
    struct pf_shared products;
    struct sparse_list list;
    struct sparse_tile tile;
};

template <int D> struct sparse_shared_tensor {
    struct pm_row<D> q[PM_ROWS], k[pm_slots<D>], v[pm_slots<D>];
    struct sparse_list list;
    struct sparse_tile tile[2]; /* at work, and the next */
};

/* The tokens of a block's tile; the last tiles may read the most and go first. */
static __device__ inline struct sparse_tokens sparse_rows(const struct sparse_work *w)
{
    struct sparse_tokens t;
    t.tile = (w->past / PF_ROWS + (int32_t)(gridDim.y - 1 - blockIdx.y)) * PF_ROWS;
    t.first = max(t.tile, w->past);
    t.last = min(t.tile + PF_ROWS, w->n_slots) - 1;
    t.past = w->past;
    return t;
}

/* Hides what a row does not read; returns how many pairs are left. */
static __device__ inline int32_t sparse_hide(const struct sparse_tile *tile,
                                             const struct sparse_bits *m,
                                             const struct sparse_tokens *t, float factor,
                                             float s[4][4])
{
    int32_t n = 0, r = (int32_t)threadIdx.x / 16 * 4, c = (int32_t)threadIdx.x % 16 * 4;
    for (int32_t i = 0; i < 4; i++)
        for (int32_t j = 0; j < 4; j++) {
            bool sees = sparse_reads(tile, c + j, m, t, t->tile + r + i);
            s[i][j] = sees ? s[i][j] * factor : -INFINITY;
            n += sees;
        }
    return n;
}

/* The same for the warp's rows from token `token` on. */
template <int N>
static __device__ inline int32_t
sparse_hide_tensor(const struct sparse_tile *tile, const struct sparse_bits *m,
                   const struct sparse_tokens *t, int32_t token, float s[1][N][4])
{
    int32_t n_pairs = 0, lane = (int32_t)threadIdx.x % KVL_WARP;
    KVL_UNROLL
    for (int n = 0; n < N; n++) KVL_UNROLL
    for (int i = 0; i < 4; i++) {
        bool sees =
            sparse_reads(tile, 8 * n + lane % 4 * 2 + i % 2, m, t, token + lane / 4 + i / 2 * 8);
        if (!sees) s[0][n][i] = -INFINITY;
        n_pairs += sees;
    }
    return n_pairs;
}

static __device__ inline void sparse_count(unsigned long long *total, long long n)
{
    for (int o = KVL_WARP / 2; o > 0; o /= 2) n += __shfl_xor_sync(0xffffffffu, n, o);
    if (total && threadIdx.x % KVL_WARP == 0 && n > 0) atomicAdd(total, (unsigned long long)n);
}

template <int N>
static __global__ __launch_bounds__(PF_THREADS) void sparse_float(struct sparse_work w)
{
    KVL_SHARED(struct sparse_shared, sh);
    int32_t head = (int32_t)blockIdx.x;
    const struct kvl_cuda_lane *l = &w.lanes[head / w.q.group];
    struct sparse_tokens t = sparse_rows(&w);
    struct sparse_bits m = w.bits[head];
    int32_t row0 = t.tile - w.past;
    long long n_pairs = 0, n_reads = 0;
    size_t at = (size_t)head * (size_t)w.q.head_dim;
    struct pf_state<N> state;
    w.q.q += at;
    pf_open(&state);
    for (int32_t part = 0; part <= t.last; part += SPARSE_PART) {
        sparse_search(&sh->list, &m, &t, part);
        for (int32_t from = 0; from < sh->list.n; from += PF_SLOTS) {
            float s[4][4] = { { 0 } };
            __syncthreads(); /* the tile before has been read */
            n_reads += sparse_fetch(&sh->tile, PF_SLOTS, &sh->list, &m, &t, l, part, from);
            if (threadIdx.x < PF_SLOTS) sh->products.row[threadIdx.x] = sh->tile.row[threadIdx.x];
            pf_products(&sh->products, l, &w.q, row0, s);
            n_pairs += sparse_hide(&sh->tile, &m, &t, w.factor, s);
            pf_softmax(&state, s);
            pf_values(&state, &sh->products, l, &w.q, row0, s);
        }
    }
    pf_close(&state, &w.q, row0, w.out + at, NULL, 0);
    sparse_count(w.n_pairs, n_pairs);
    sparse_count(w.n_reads, m.reads ? n_reads : 0);
}

/* As prefill_tensor of attn_prefill.cu; the next tile is found between its two barriers, when the one before is
 * behind all threads. */
template <int D>
static __global__ __launch_bounds__(PM_THREADS, 2) void sparse_tensor(struct sparse_work w)
{
    typedef struct sparse_shared_tensor<D> shared;
    KVL_SHARED(shared, sh);
    constexpr int N = pm_slots<D>;
    int32_t head = (int32_t)blockIdx.x, warp_row = (int32_t)threadIdx.x / KVL_WARP * 16, now = 0;
    const struct kvl_cuda_lane *l = &w.lanes[head / w.q.group];
    struct sparse_tokens t = sparse_rows(&w);
    struct sparse_bits m = w.bits[head];
    int32_t token = t.tile + warp_row;
    bool is = token <= t.last && token + 15 >= t.first; /* the warp has rows */
    long long n_pairs = 0, n_reads = 0;
    size_t at = (size_t)head * (size_t)w.q.head_dim;
    struct pm_state<D, 1> state;
    w.q.q += at;
    pm_open(&state);
    pm_put_queries(sh->q, PM_ROWS, &w.q, t.tile - w.past);
    for (int32_t part = 0; part <= t.last; part += SPARSE_PART) {
        sparse_search(&sh->list, &m, &t, part);
        int32_t n = sh->list.n;
        n_reads += sparse_fetch(&sh->tile[now], N, &sh->list, &m, &t, l, part, 0);
        __syncthreads();
        if (n > 0) pm_put_slots(sh->k, N, sh->tile[now].row, KVL_PART_K, l);
        for (int32_t from = 0; from < n; from += N, now ^= 1) {
            float s[1][N / 8][4] = { { { 0 } } };
            const struct sparse_tile *tile = &sh->tile[now], *next = &sh->tile[now ^ 1];
            kvl_copy_wait();
            __syncthreads(); /* keys are there, values before these have been read */
            pm_put_slots(sh->v, N, tile->row, KVL_PART_V, l);
            n_reads += sparse_fetch(&sh->tile[now ^ 1], N, &sh->list, &m, &t, l, part, from + N);
            if (is) pm_products<D, 1, N / 8>(sh->q + warp_row, sh->k, s);
            pm_cap<1, N / 8>(&w.q, s);
            kvl_copy_wait();
            __syncthreads(); /* values are there, keys have been read */
            if (from + N < n) pm_put_slots(sh->k, N, next->row, KVL_PART_K, l);
            if (!is) continue;
            n_pairs += sparse_hide_tensor<N / 8>(tile, &m, &t, token, s);
            pm_softmax<D, 1, N / 8>(&state, w.factor, s);
            pm_values<D, 1, N / 8>(&state, sh->v, s);
        }
    }
    pm_close(&state, &w.q, token - w.past, w.out + at, NULL, 0);
    sparse_count(w.n_pairs, n_pairs);
    sparse_count(w.n_reads, m.reads ? n_reads : 0);
}

static dim3 sparse_grid(const struct sparse_work *w)
{
    int32_t tiles = (w->n_slots - 1) / PF_ROWS - w->past / PF_ROWS + 1;
    return dim3((unsigned)w->n_heads, (unsigned)tiles);
}

static void sparse_launch(const struct sparse_work *w)
{
    static void (*const kernels[])(struct sparse_work) = { sparse_float<1>, sparse_float<2>,
                                                           sparse_float<3>, sparse_float<4> };
    void (*prefill_sparse)(struct sparse_work) = kernels[(w->q.head_dim - 1) / PF_ROWS];
    KVL_LAUNCH(prefill_sparse, sparse_grid(w), PF_THREADS, sizeof(struct sparse_shared), *w);
}

template <int D> static int sparse_start(const struct sparse_work *w)
{
    void (*prefill_sparse)(struct sparse_work) = sparse_tensor<D>;
    int bytes = (int)sizeof(struct sparse_shared_tensor<D>);
    KVL_TRY(kvl_cuda_check(
        cudaFuncSetAttribute(prefill_sparse, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "shared memory of sparse prefill attention"));
    KVL_LAUNCH(prefill_sparse, sparse_grid(w), PM_THREADS, (size_t)bytes, *w);
    return KVL_OK;
}

/* A kernel for each padded head_dim, as for dense attention; tiles of 64 rows, since what one token reads is
 * fetched for all. */
static int sparse_start_tensor(const struct sparse_work *w)
{
    int32_t dim = w->q.head_dim;
    if (dim <= 32) return sparse_start<32>(w);
    if (dim <= 64) return sparse_start<64>(w);
    if (dim <= 96) return sparse_start<96>(w);
    if (dim <= 128) return sparse_start<128>(w);
    return dim <= 192 ? sparse_start<192>(w) : sparse_start<256>(w);
}

/* ---- bits, made on the host: the lists are there --------------------------------------------------- */

static bool sparse_same(const struct kvl_sparse_head *x, const struct kvl_sparse_head *y)
{
    if (x->dense || y->dense) return x->dense == y->dense;
    return x->chunk == y->chunk && x->sink == y->sink && x->window == y->window &&
           x->column == y->column && x->n_columns == y->n_columns && x->distance == y->distance &&
           x->n_distances == y->n_distances && x->block_tok == y->block_tok &&
           x->ranges == y->ranges && x->block_off == y->block_off && x->block == y->block;
}

static void sparse_set(uint32_t *bits, int32_t x)
{
    bits[x / 32] |= (uint32_t)1 << (x % 32);
}

/* Bits from .. to - 1. */
static void sparse_fill(uint32_t *bits, int32_t from, int32_t to)
{
    for (; from < to && from % 32; from++) sparse_set(bits, from);
    if (to - from >= 32) memset(bits + from / 32, 0xff, (size_t)((to - from) / 32) * 4);
    for (from += KVL_MAX(0, to - from) / 32 * 32; from < to; from++) sparse_set(bits, from);
}

struct sparse_sizes {
    int32_t n_words, block_rows, block_words;
};

static struct sparse_sizes sparse_size(const struct kvl_attn_prefill_sparse_args *a,
                                       const struct kvl_sparse_head *h)
{
    int32_t n_slots = a->lanes[0].n_slots;
    struct sparse_sizes s = { n_slots / 32 + 1, 0, 0 };
    if (h->dense || h->block_tok == 0) return s;
    s.block_rows = kvl_ceil_div(a->n, h->block_tok);
    s.block_words = n_slots / (h->ranges ? 1 : h->block_tok) / 32 + 1;
    return s;
}

static size_t sparse_total(struct sparse_sizes s)
{
    return 2 * (size_t)s.n_words + (size_t)s.block_rows * (size_t)s.block_words;
}

static void sparse_mark(const struct kvl_attn_prefill_sparse_args *a,
                        const struct kvl_sparse_head *h, struct sparse_sizes s, uint32_t *bits)
{
    int32_t n_slots = a->lanes[0].n_slots;
    uint32_t *distance = bits + s.n_words, *block = distance + s.n_words;
    sparse_fill(distance, 0, h->dense ? 1 : KVL_MIN(KVL_MAX(1, h->window), n_slots));
    sparse_fill(bits, 0, h->dense ? n_slots : KVL_MIN(h->sink, n_slots));
    if (h->dense) return;
    if (h->chunk) sparse_fill(bits, n_slots - a->n, n_slots);
    for (int32_t i = 0; i < h->n_columns; i++) sparse_set(bits, h->column[i]);
    for (int32_t i = 0; i < h->n_distances; i++) sparse_set(distance, h->distance[i]);
    for (int32_t r = 0; r < s.block_rows; r++, block += s.block_words)
        for (int32_t k = h->block_off[r]; k < h->block_off[r + 1]; k++) {
            if (h->ranges)
                sparse_fill(block, h->block[2 * k], h->block[2 * k + 1]);
            else
                sparse_set(block, h->block[k]);
        }
}

/* Heads of a group that read the same from the same lists share bits, and fetch together. */
static bool sparse_shares(const struct kvl_attn_prefill_sparse_args *a, int32_t h)
{
    return h % (a->n_heads / a->n_kv_heads) > 0 && sparse_same(&a->head[h], &a->head[h - 1]);
}

static size_t sparse_words(const struct kvl_attn_prefill_sparse_args *a)
{
    size_t n = 0;
    for (int32_t h = 0; h < a->n_heads; h++)
        if (!sparse_shares(a, h)) n += sparse_total(sparse_size(a, &a->head[h]));
    return n;
}

/* Where the bits of each head lie, from `device` on. */
static void sparse_heads(const struct kvl_attn_prefill_sparse_args *a, const uint32_t *device,
                         struct sparse_bits *bits)
{
    for (int32_t h = 0; h < a->n_heads; h++) {
        if (sparse_shares(a, h)) {
            bits[h] = bits[h - 1];
            bits[h].reads = false;
            continue;
        }
        struct sparse_sizes s = sparse_size(a, &a->head[h]);
        bits[h].column = device;
        bits[h].distance = device + s.n_words;
        bits[h].block = device + 2 * s.n_words;
        bits[h].n_words = s.n_words;
        bits[h].block_tok = s.block_rows > 0 ? a->head[h].block_tok : 0;
        bits[h].block_words = s.block_words;
        bits[h].unit_tok = a->head[h].ranges ? 1 : a->head[h].block_tok;
        bits[h].reads = true;
        device += sparse_total(s);
    }
}

static const struct sparse_bits *sparse_upload(struct kvl_cuda_call *c,
                                               const struct kvl_attn_prefill_sparse_args *a)
{
    size_t n = sparse_words(a), heads = (size_t)a->n_heads;
    uint32_t *words = static_cast<uint32_t *>(kvl_alloc(n, sizeof *words)), *to = words;
    struct sparse_bits *bits = static_cast<struct sparse_bits *>(kvl_alloc(heads, sizeof *bits));
    const struct sparse_bits *out = NULL;
    if (!words || !bits) c->rc = KVL_ENOMEM;
    for (int32_t h = 0; c->rc == KVL_OK && h < a->n_heads; h++) {
        if (sparse_shares(a, h)) continue;
        struct sparse_sizes s = sparse_size(a, &a->head[h]);
        sparse_mark(a, &a->head[h], s, to);
        to += sparse_total(s);
    }
    const uint32_t *device = c->rc == KVL_OK ? kvl_cuda_upload(c, words, n) : NULL;
    if (device) {
        sparse_heads(a, device, bits);
        out = kvl_cuda_upload(c, bits, heads);
    }
    kvl_free(words);
    kvl_free(bits);
    return out;
}

int kvl_cuda_attn_prefill_sparse(const struct kvl_attn_prefill_sparse_args *a)
{
    struct kvl_cuda_call c;
    if (a->n == 0) return KVL_OK;
    assert(a->n_heads % a->n_kv_heads == 0 && a->head_dim >= 1 && a->head_dim <= PF_MAX_DIM);
    for (int32_t h = 0; h < a->n_kv_heads; h++)
        assert(a->lanes[h].n_slots == a->lanes[0].n_slots && a->lanes[h].n_slots >= a->n);
    size_t floats = (size_t)a->n * (size_t)a->n_heads * (size_t)a->head_dim;
    kvl_cuda_begin(&c);
    struct sparse_work w = {};
    w.q.q = kvl_cuda_in(&c, a->q, floats);
    w.q.step = (size_t)a->n_heads * (size_t)a->head_dim;
    w.q.n = a->n;
    w.q.head_dim = a->head_dim;
    w.q.vectors = (uintptr_t)w.q.q % 16 == 0 && a->head_dim % 4 == 0;
    w.out = kvl_cuda_out(&c, a->out, floats);
    w.lanes = kvl_cuda_lanes(&c, a->lanes, a->n_kv_heads);
    w.bits = sparse_upload(&c, a);
    w.n_pairs = reinterpret_cast<unsigned long long *>(kvl_cuda_inout(&c, a->n_pairs, 1));
    w.n_reads = reinterpret_cast<unsigned long long *>(kvl_cuda_inout(&c, a->n_reads, 1));
    w.n_heads = a->n_heads;
    w.q.group = a->n_heads / a->n_kv_heads;
    w.n_slots = a->lanes[0].n_slots;
    w.past = w.n_slots - a->n;
    w.factor = a->scale * PF_LOG2_E;
    w.q.cap = pf_cap_of(a->cap, a->scale);
    if (c.rc == KVL_OK && a->bf16)
        c.rc = sparse_start_tensor(&w);
    else if (c.rc == KVL_OK)
        sparse_launch(&w);
    return kvl_cuda_end(&c);
}
