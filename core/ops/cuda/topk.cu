/* The k largest of every row by radix select: histograms of the floats' ordered integers, from the top digit
 * down, give the key of the k-th; indices of what is above it, and of the first of what is equal, go out in
 * ascending order at places that prefix sums of counts give.  All of it is counting, so exact in any order.
 *
 * Rows of up to 16384 take one launch and a block each: keys stay in registers, read once (4 n bytes a row).
 * Digits of at most 11 bits are taken from the part of the range between the smallest and the largest key,
 * so that near values do not all meet in one counter.  The limit is latency: barriers of two or three
 * digits, not bytes.
 *
 * Longer rows take six launches (clear, three digits of 11, 11 and 10 bits, counts, indices) and five reads
 * of the row, 20 n bytes; only the first must come from memory where rows fit the L2 cache together.  Every
 * block looks up the digit before its own in 8 KiB of counters, so no launch is spent on one block's work, and
 * blocks are made to take several chunks.  Times: results/gpu-kernels.md. */
#include "topk.cuh"

enum {
    TOPK_BITS = 11,
    TOPK_BINS = 1 << TOPK_BITS,
    TOPK_LEVELS = 3,
    TOPK_THREADS = 256, /* of a long row's blocks, and of short rows */
    TOPK_WIDE = 1024,
    TOPK_SHORT = 8 * TOPK_THREADS,
    TOPK_MIDDLE = 8 * TOPK_WIDE,
    TOPK_ONE_BLOCK = 16 * TOPK_WIDE,
    TOPK_ITEMS = 16,
    TOPK_CHUNK = TOPK_ITEMS * TOPK_THREADS,
    TOPK_BLOCKS = 528, /* of the passes that count: four for each of an H200's processors */
};

/* What is known of a row's threshold: keys above `most` are in; of the keys from `base` to `most`, the
 * `need` largest are; level 3 leaves one key, base. */
struct topk_state {
    uint32_t base, most;
    int32_t need;
};

/* Counts of what is above the threshold, and of what is equal to it. */
struct topk_pair {
    uint32_t above, equal;
};

struct topk_rows {
    int32_t *index; /* [n_rows][k] */
    const float *x;
    size_t x_stride;
    int32_t n, k, n_chunks, chunks_per_block;
    int32_t *nan;             /* one for all rows, or NULL */
    uint32_t *hist;           /* [n_rows][TOPK_LEVELS][TOPK_BINS] */
    struct topk_state *state; /* [n_rows][TOPK_LEVELS]: after level i */
    struct topk_pair *count;  /* [n_rows][n_chunks]: of a chunk what is above, what is equal */
};

struct topk_room {
    uint32_t scan[KVL_WARP];
    int32_t bin, need, found;
};

/* The bin that holds the need-th largest, counted from the top: room->bin, and in room->need how many
 * of it, room->found its count.  Ends with a barrier. */
static __device__ inline void topk_pick(const uint32_t *hist, int32_t n_bins, int32_t need,
                                        struct topk_room *room)
{
    int32_t t = (int32_t)threadIdx.x,
            each = (n_bins + (int32_t)blockDim.x - 1) / (int32_t)blockDim.x;
    int32_t first = n_bins - 1 - t * each; /* downwards */
    uint32_t sum = 0, all;
    for (int32_t i = 0; i < each && first - i >= 0; i++) sum += hist[first - i];
    uint32_t before = kvl_block_before(sum, room->scan, &all);
    if (before < (uint32_t)need && (uint32_t)need <= before + sum) {
        int32_t bin = first;
        while (before + hist[bin] < (uint32_t)need) before += hist[bin--];
        room->bin = bin;
        room->need = need - (int32_t)before;
        room->found = (int32_t)hist[bin];
    }
    __syncthreads();
}

/* Writes, in ascending order, the elements of a piece that are in: keys from `above` on, and the first of the
 * keys `equal` until `ties` of them were met.  Element j of thread t is first + j * blockDim.x + t; `before`
 * is what lies before the piece.  count [ITEMS * warps]. */
template <int ITEMS>
static __device__ inline void
topk_write(int32_t *index, const uint32_t *key, int32_t first, int32_t n, int32_t k, uint64_t above,
           uint32_t equal, int32_t ties, struct topk_pair before, uint32_t *count, uint32_t *scan)
{
    int32_t t = (int32_t)threadIdx.x, threads = (int32_t)blockDim.x;
    int32_t lane = t % KVL_WARP, warp = t / KVL_WARP, n_warps = threads / KVL_WARP;
    uint32_t lower = (1u << lane) - 1, total;
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        bool live = first + j * threads + t < n;
        uint32_t up = __ballot_sync(0xffffffffu, live && key[j] >= above);
        uint32_t same = __ballot_sync(0xffffffffu, live && key[j] < above && key[j] == equal);
        if (lane == 0)
            count[j * n_warps + warp] = (uint32_t)__popc(up) | (uint32_t)__popc(same) << 16;
    }
    __syncthreads();
    /* At most 16384 elements: both halves hold their sums.  Groups are no more than threads. */
    uint32_t own = t < ITEMS * n_warps ? count[t] : 0;
    uint32_t sum = kvl_block_before(own, scan, &total);
    if (t < ITEMS * n_warps) count[t] = sum;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        int32_t i = first + j * threads + t;
        bool is_up = i < n && key[j] >= above, is_same = i < n && !is_up && key[j] == equal;
        uint32_t up = __ballot_sync(0xffffffffu, is_up);
        uint32_t same = __ballot_sync(0xffffffffu, is_same), base = count[j * n_warps + warp];
        int32_t n_up = (int32_t)(before.above + (base & 0xffffu) + (uint32_t)__popc(up & lower));
        int32_t n_same = (int32_t)(before.equal + (base >> 16) + (uint32_t)__popc(same & lower));
        int32_t at = n_up + (n_same < ties ? n_same : ties);
        if ((is_up || (is_same && n_same < ties)) && at < k) index[at] = i;
    }
}

/* ---- a row in one block --------------------------------------------------------------------------- */

template <int ITEMS>
static __device__ inline void topk_one_count(uint32_t *hist, const uint32_t *key, int32_t n,
                                             uint32_t base, int32_t bits, int32_t shift)
{
    for (int32_t b = (int32_t)threadIdx.x; b < TOPK_BINS; b += (int32_t)blockDim.x) hist[b] = 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        uint64_t off = key[j] - base;
        if (j * (int32_t)blockDim.x + (int32_t)threadIdx.x < n && key[j] >= base &&
            off >> bits == 0)
            atomicAdd(&hist[off >> shift], 1u);
    }
    __syncthreads();
}

template <int ITEMS>
static __global__ void __launch_bounds__(TOPK_WIDE) topk_one(struct topk_rows a)
{
    __shared__ uint32_t hist[TOPK_BINS], count[ITEMS * KVL_WARP];
    __shared__ struct topk_room room;
    int32_t t = (int32_t)threadIdx.x, row = (int32_t)blockIdx.x, need = a.k;
    const float *x = a.x + (size_t)row * a.x_stride;
    uint32_t key[ITEMS], most = 0, least = 0; /* least: inverted */
    bool nan = false;
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        int32_t i = j * (int32_t)blockDim.x + t;
        float value = i < a.n ? x[i] : 0.0f;
        key[j] = kvl_float_key(value);
        if (i >= a.n) continue;
        nan = nan || isnan(value);
        most = key[j] > most ? key[j] : most;
        least = ~key[j] > least ? ~key[j] : least;
    }
    if (nan && a.nan) *a.nan = 1; /* all that store store the same */
    most = kvl_block_most(most, room.scan);
    uint32_t base = ~kvl_block_most(least, room.scan);
    int32_t bits = most > base ? 32 - __clz((int)(most - base)) : 0;
    bool exact = false; /* all from base on, not some of those equal to it */
    while (need > 0 && bits > 0 && !exact) {
        int32_t shift = bits > TOPK_BITS ? bits - TOPK_BITS : 0;
        topk_one_count<ITEMS>(hist, key, a.n, base, bits, shift);
        topk_pick(hist, 1 << (bits - shift), need, &room);
        base += (uint32_t)room.bin << shift;
        need = room.need;
        exact = need == room.found;
        bits = shift; /* room is written again behind the barriers of the next digit */
    }
    uint64_t above = (uint64_t)base + (exact ? 0 : 1);
    struct topk_pair none = { 0, 0 };
    if (need > 0)
        topk_write<ITEMS>(a.index + (size_t)row * (size_t)a.k, key, 0, a.n, a.k, above, base,
                          exact ? 0 : need, none, count, room.scan);
}

/* ---- a row in many blocks ------------------------------------------------------------------------- */

static __device__ inline int32_t topk_shift(int32_t level)
{
    return level == 0 ? 21 : level == 1 ? 10 : 0;
}

static __global__ void topk_clear(uint32_t *p, size_t n)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p[i] = 0;
}

/* What is known before `level` is counted; block 0 keeps it. */
static __device__ inline struct topk_state topk_before(const struct topk_rows *a, int32_t row,
                                                       int32_t level, struct topk_room *room)
{
    struct topk_state s = { 0, 0xffffffffu, a->k };
    if (level == 0) return s;
    struct topk_state *kept = a->state + (size_t)row * TOPK_LEVELS;
    if (level > 1) s = kept[level - 2];
    int32_t shift = topk_shift(level - 1), n_bins = level == TOPK_LEVELS ? 1 << 10 : TOPK_BINS;
    topk_pick(a->hist + ((size_t)row * TOPK_LEVELS + (size_t)level - 1) * TOPK_BINS, n_bins, s.need,
              room);
    s.base += (uint32_t)room->bin << shift;
    s.most = s.base + ((1u << shift) - 1);
    s.need = room->need;
    if (blockIdx.x == 0 && threadIdx.x == 0) kept[level - 1] = s;
    return s;
}

/* Adds a chunk's keys of the range at hand to the block's counters.  Neighbours are often of one bin: a
 * thread adds runs of them at once.  True: there is a NaN. */
static __device__ inline bool topk_chunk_count(const struct topk_rows *a, const float *x,
                                               int32_t chunk, struct topk_state s, int32_t shift,
                                               uint32_t *hist)
{
    bool nan = false;
    uint32_t bin = 0, run = 0;
#pragma unroll
    for (int j = 0; j < TOPK_ITEMS; j++) {
        int32_t i = chunk * TOPK_CHUNK + j * TOPK_THREADS + (int32_t)threadIdx.x;
        float value = i < a->n ? x[i] : 0.0f;
        uint32_t key = kvl_float_key(value), b = (key - s.base) >> shift;
        if (i >= a->n) continue;
        nan = nan || isnan(value);
        if (key < s.base || key > s.most) continue;
        if (run > 0 && b != bin) {
            atomicAdd(&hist[bin], run);
            run = 0;
        }
        bin = b;
        run++;
    }
    if (run > 0) atomicAdd(&hist[bin], run);
    return nan;
}

template <int LEVEL> static __global__ void topk_count(struct topk_rows a)
{
    __shared__ uint32_t hist[TOPK_BINS];
    __shared__ struct topk_room room;
    int32_t row = (int32_t)blockIdx.y, first = (int32_t)blockIdx.x * a.chunks_per_block;
    const float *x = a.x + (size_t)row * a.x_stride;
    uint32_t *sum = a.hist + ((size_t)row * TOPK_LEVELS + LEVEL) * TOPK_BINS;
    bool nan = false;
    for (int32_t b = (int32_t)threadIdx.x; b < TOPK_BINS; b += TOPK_THREADS) hist[b] = 0;
    struct topk_state s = topk_before(&a, row, LEVEL, &room);
    __syncthreads();
    for (int32_t c = first; c < first + a.chunks_per_block && c < a.n_chunks; c++)
        nan = topk_chunk_count(&a, x, c, s, topk_shift(LEVEL), hist) || nan;
    if (LEVEL == 0 && nan && a.nan) *a.nan = 1;
    __syncthreads();
    for (int32_t b = (int32_t)threadIdx.x; b < TOPK_BINS; b += TOPK_THREADS)
        if (hist[b] > 0) atomicAdd(&sum[b], hist[b]);
}

/* Of every chunk, how many are above the threshold and how many are equal. */
static __global__ void topk_chunks(struct topk_rows a)
{
    __shared__ struct topk_room room;
    int32_t row = (int32_t)blockIdx.y, first = (int32_t)blockIdx.x * a.chunks_per_block;
    const float *x = a.x + (size_t)row * a.x_stride;
    struct topk_state s = topk_before(&a, row, TOPK_LEVELS, &room);
    for (int32_t c = first; c < first + a.chunks_per_block && c < a.n_chunks; c++) {
        uint32_t n = 0, total; /* above; equal in the upper half */
#pragma unroll
        for (int j = 0; j < TOPK_ITEMS; j++) {
            int32_t i = c * TOPK_CHUNK + j * TOPK_THREADS + (int32_t)threadIdx.x;
            uint32_t key = kvl_float_key(i < a.n ? x[i] : 0.0f);
            if (i < a.n) n += key > s.base ? 1u : key == s.base ? 1u << 16 : 0u;
        }
        (void)kvl_block_before(n, room.scan, &total);
        if (threadIdx.x == 0)
            a.count[(size_t)row * (size_t)a.n_chunks + (size_t)c] = { total & 0xffffu,
                                                                      total >> 16 };
    }
}

static __global__ void topk_indices(struct topk_rows a)
{
    __shared__ uint32_t count[TOPK_ITEMS * TOPK_THREADS / KVL_WARP], scan[KVL_WARP];
    int32_t t = (int32_t)threadIdx.x, row = (int32_t)blockIdx.y, chunk = (int32_t)blockIdx.x;
    const float *x = a.x + (size_t)row * a.x_stride;
    const struct topk_pair *counts = a.count + (size_t)row * (size_t)a.n_chunks;
    struct topk_state s = a.state[(size_t)row * TOPK_LEVELS + TOPK_LEVELS - 1];
    uint32_t key[TOPK_ITEMS], up = 0, same = 0;
    struct topk_pair before;
#pragma unroll
    for (int j = 0; j < TOPK_ITEMS; j++) {
        int32_t i = chunk * TOPK_CHUNK + j * TOPK_THREADS + t;
        key[j] = kvl_float_key(i < a.n ? x[i] : 0.0f);
    }
    for (int32_t c = t; c < chunk; c += TOPK_THREADS) {
        up += counts[c].above;
        same += counts[c].equal;
    }
    (void)kvl_block_before(up, scan, &before.above);
    (void)kvl_block_before(same, scan, &before.equal);
    topk_write<TOPK_ITEMS>(a.index + (size_t)row * (size_t)a.k, key, chunk * TOPK_CHUNK, a.n, a.k,
                           (uint64_t)s.base + 1, s.base, s.need, before, count, scan);
}

/* ---- launches ------------------------------------------------------------------------------------- */

static void topk_short(struct topk_rows a, int32_t n_rows)
{
    dim3 grid((unsigned)n_rows);
    if (a.n <= TOPK_SHORT)
        KVL_LAUNCH(topk_one<8>, grid, dim3(TOPK_THREADS), 0, a);
    else if (a.n <= TOPK_MIDDLE)
        KVL_LAUNCH(topk_one<8>, grid, dim3(TOPK_WIDE), 0, a);
    else
        KVL_LAUNCH(topk_one<16>, grid, dim3(TOPK_WIDE), 0, a);
}

/* Rows lie along y, of which a grid has 65535. */
static void topk_long(struct topk_rows a, int32_t n_rows, size_t n_hist)
{
    int64_t chunks = (int64_t)n_rows * a.n_chunks;
    a.chunks_per_block = kvl_ceil_div(chunks, TOPK_BLOCKS);
    dim3 block(TOPK_THREADS), all((unsigned)a.n_chunks, (unsigned)n_rows);
    dim3 grid((unsigned)kvl_ceil_div(a.n_chunks, a.chunks_per_block), (unsigned)n_rows);
    KVL_LAUNCH(topk_clear, dim3((unsigned)kvl_ceil_div((int64_t)n_hist, TOPK_THREADS)), block, 0,
               a.hist, n_hist);
    KVL_LAUNCH(topk_count<0>, grid, block, 0, a);
    if (a.k == 0) return;
    KVL_LAUNCH(topk_count<1>, grid, block, 0, a);
    KVL_LAUNCH(topk_count<2>, grid, block, 0, a);
    KVL_LAUNCH(topk_chunks, grid, block, 0, a);
    KVL_LAUNCH(topk_indices, all, block, 0, a);
}

void kvl_cuda_topk_rows(struct kvl_cuda_call *c, int32_t *index, const float *x, size_t x_stride,
                        int32_t n_rows, int32_t n, int32_t k, int32_t *nan)
{
    struct topk_rows a = { index, x,   x_stride, n,    k,   kvl_ceil_div(n, TOPK_CHUNK),
                           1,     nan, NULL,     NULL, NULL };
    size_t rows = (size_t)n_rows, n_hist = rows * TOPK_LEVELS * TOPK_BINS;
    assert(k >= 0 && k <= n && n_rows <= 65535);
    if (n_rows == 0 || n == 0 || c->rc != KVL_OK) return;
    if (n <= TOPK_ONE_BLOCK) {
        topk_short(a, n_rows);
        return;
    }
    a.hist = kvl_cuda_temp<uint32_t>(c, n_hist);
    a.state = kvl_cuda_temp<struct topk_state>(c, rows * TOPK_LEVELS);
    a.count = kvl_cuda_temp<struct topk_pair>(c, rows * (size_t)a.n_chunks);
    if (c->rc == KVL_OK) topk_long(a, n_rows, n_hist);
}

int kvl_cuda_topk(const struct kvl_topk_args *a)
{
    struct kvl_cuda_call c;
    assert(a->k >= 0 && a->k <= a->n);
    if (a->n_rows == 0 || a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    const float *x = kvl_cuda_in(&c, a->x, (size_t)(a->n_rows - 1) * a->x_stride + (size_t)a->n);
    size_t n_index = (size_t)a->n_rows * (size_t)a->k;
    int32_t *index = n_index > 0 ? kvl_cuda_out(&c, a->index, n_index) : NULL;
    kvl_cuda_topk_rows(&c, index, x, a->x_stride, a->n_rows, a->n, a->k, kvl_cuda_mark(&c));
    return kvl_cuda_end(&c);
}
