/* A block per query and 8192 vectors, with a counter for each in shared memory.  Ids of a bucket ascend, so
 * a warp finds the part of a bucket that is its block's by halving, and adds it; counts are integers,
 * their order does not matter.  What has enough hits goes out as one bit per vector and a number per block;
 * a second launch turns bits into ids, each block beginning behind those before it.
 *
 * Limit: n_visited ids of 4 bytes, read from wherever buckets lie: short runs, so sectors of 32 bytes count
 * rather than bytes.  What is found is little.  Not timed yet. */
#include "cuda.cuh"

enum {
    FIND_THREADS = 256,
    FIND_RANGE =
        32 * FIND_THREADS, /* vectors of a block: a word of bits per thread, 32 KiB of counters */
    FIND_BATCH = 64,       /* queries of a launch: their tables are its arguments */
};

struct find {
    const int32_t *start[FIND_BATCH], *id[FIND_BATCH];
    const uint16_t *code; /* [n_q][n_tables] */
    uint32_t *bits;       /* [n_q][n_ranges][FIND_THREADS] */
    int32_t *n_hits;      /* [n_q][n_ranges] */
    int32_t *found, *n_found;
    int64_t *n_visited;
    int32_t n, n_tables, n_codes, min_hits, n_ranges;
};

/* The first of id[from .. to - 1] that is not below x. */
static __device__ inline int32_t find_first(const int32_t *id, int32_t from, int32_t to, int32_t x)
{
    while (from < to) {
        int32_t mid = from + (to - from) / 2;
        if (id[mid] < x)
            from = mid + 1;
        else
            to = mid;
    }
    return from;
}

/* Adds what the query's buckets have of vectors first .. first + FIND_RANGE - 1; a warp per table. */
static __device__ inline void find_add(const struct find *f, int32_t q, int32_t first,
                                       int32_t *hits)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP;
    for (int32_t l = (int32_t)threadIdx.x / KVL_WARP; l < f->n_tables;
         l += FIND_THREADS / KVL_WARP) {
        const int32_t *start = f->start[q] + (size_t)l * ((size_t)f->n_codes + 1) +
                               f->code[(size_t)q * (size_t)f->n_tables + (size_t)l];
        const int32_t *id = f->id[q] + (size_t)l * (size_t)f->n;
        int32_t j = find_first(id, start[0], start[1], first) + lane;
        for (; j < start[1] && id[j] < first + FIND_RANGE; j += KVL_WARP)
            atomicAdd(&hits[id[j] - first], 1);
    }
}

/* Entries of all buckets of the query, by one block. */
static __device__ inline void find_visited(const struct find *f, int32_t q, int64_t *part)
{
    int64_t sum = 0;
    for (int32_t l = (int32_t)threadIdx.x; l < f->n_tables; l += FIND_THREADS) {
        const int32_t *start = f->start[q] + (size_t)l * ((size_t)f->n_codes + 1) +
                               f->code[(size_t)q * (size_t)f->n_tables + (size_t)l];
        sum += start[1] - start[0];
    }
    part[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return; /* no barrier follows for others */
    for (int32_t t = 1; t < FIND_THREADS; t++) sum += part[t];
    f->n_visited[q] = sum;
}

static __global__ void find_count(struct find f)
{
    __shared__ int32_t hits[FIND_RANGE];
    __shared__ int64_t visited[FIND_THREADS];
    __shared__ int32_t n_hits;
    int32_t t = (int32_t)threadIdx.x, q = (int32_t)blockIdx.y, range = (int32_t)blockIdx.x;
    for (int32_t i = t; i < FIND_RANGE; i += FIND_THREADS) hits[i] = 0;
    if (t == 0) n_hits = 0;
    __syncthreads();
    find_add(&f, q, range * FIND_RANGE, hits);
    __syncthreads();
    for (int32_t i = t; i < FIND_RANGE; i += FIND_THREADS) {
        uint32_t word = __ballot_sync(0xffffffffu, hits[i] >= f.min_hits);
        if (i % KVL_WARP > 0) continue;
        f.bits[((size_t)q * (size_t)f.n_ranges + (size_t)range) * FIND_THREADS +
               (size_t)(i / KVL_WARP)] = word;
        atomicAdd(&n_hits, __popc(word));
    }
    __syncthreads();
    if (t == 0) f.n_hits[q * f.n_ranges + range] = n_hits;
    if (range == 0) find_visited(&f, q, visited);
}

static __global__ void find_list(struct find f)
{
    __shared__ int32_t n_before[FIND_THREADS];
    int32_t t = (int32_t)threadIdx.x, q = (int32_t)blockIdx.y, range = (int32_t)blockIdx.x;
    const int32_t *n_hits = f.n_hits + (size_t)q * (size_t)f.n_ranges;
    uint32_t word =
        f.bits[((size_t)q * (size_t)f.n_ranges + (size_t)range) * FIND_THREADS + (size_t)t];
    int32_t *found = f.found + (size_t)q * (size_t)f.n;
    n_before[t] = __popc(word);
    __syncthreads();
    for (int32_t o = 1; o < FIND_THREADS; o *= 2) {
        int32_t below = t >= o ? n_before[t - o] : 0;
        __syncthreads();
        n_before[t] += below;
        __syncthreads();
    }
    int32_t at = n_before[t] - __popc(word), total = 0;
    for (int32_t i = 0; i < f.n_ranges; i++) {
        if (i == range) at += total;
        total += n_hits[i];
    }
    if (range == 0 && t == 0) f.n_found[q] = total;
    for (; word; word &= word - 1) found[at++] = range * FIND_RANGE + t * 32 + __ffs((int)word) - 1;
}

/* A block for every 8192 vectors: 128K vectors and 32 queries are 512 blocks, four for each SM. */
static void find_launch(const struct find *f, int32_t n_q)
{
    dim3 grid((unsigned)f->n_ranges, (unsigned)n_q);
    KVL_LAUNCH(find_count, grid, FIND_THREADS, 0, *f);
    KVL_LAUNCH(find_list, grid, FIND_THREADS, 0, *f);
}

/* Queries q0 .. q0 + n_q - 1; those of a group often share their tables, which are staged once then. */
static void find_tables(struct kvl_cuda_call *c, const struct kvl_lsh_find_args *a, int32_t q0,
                        int32_t n_q, struct find *f)
{
    size_t n_start = (size_t)a->n_tables * ((size_t)f->n_codes + 1);
    size_t n_id = (size_t)a->n_tables * (size_t)a->n;
    for (int32_t i = 0; i < n_q; i++) {
        bool same =
            i > 0 && a->start[q0 + i] == a->start[q0 + i - 1] && a->id[q0 + i] == a->id[q0 + i - 1];
        f->start[i] = same ? f->start[i - 1] : kvl_cuda_in(c, a->start[q0 + i], n_start);
        f->id[i] = same ? f->id[i - 1] : kvl_cuda_in(c, a->id[q0 + i], n_id);
    }
}

int kvl_cuda_lsh_find(const struct kvl_lsh_find_args *a)
{
    struct kvl_cuda_call c;
    struct find f = {};
    size_t n_q = (size_t)a->n_q, n = (size_t)a->n;
    assert(a->n >= 0 && a->n_tables >= 1 && a->n_bits >= 1 && a->n_bits <= 16 && a->min_hits >= 1);
    f.n = a->n;
    f.n_tables = a->n_tables;
    f.n_codes = 1 << a->n_bits;
    f.min_hits = a->min_hits;
    f.n_ranges = n ? kvl_ceil_div(a->n, FIND_RANGE) : 1;
    kvl_cuda_begin(&c);
    const uint16_t *code = kvl_cuda_in(&c, a->code, n_q * (size_t)a->n_tables);
    int32_t *found = kvl_cuda_out(&c, a->found, n_q * n);
    int32_t *n_found = kvl_cuda_out(&c, a->n_found, n_q);
    int64_t *n_visited = kvl_cuda_out(&c, a->n_visited, n_q);
    f.bits = kvl_cuda_temp<uint32_t>(&c, FIND_BATCH * (size_t)f.n_ranges * FIND_THREADS);
    f.n_hits = kvl_cuda_temp<int32_t>(&c, FIND_BATCH * (size_t)f.n_ranges);
    for (int32_t q = 0; q < a->n_q && c.rc == KVL_OK; q += FIND_BATCH) {
        int32_t batch = a->n_q - q < FIND_BATCH ? a->n_q - q : (int32_t)FIND_BATCH;
        find_tables(&c, a, q, batch, &f);
        f.code = code + (size_t)q * (size_t)a->n_tables;
        f.found = found + (size_t)q * n;
        f.n_found = n_found + q;
        f.n_visited = n_visited + q;
        if (c.rc == KVL_OK) find_launch(&f, batch);
    }
    return kvl_cuda_end(&c);
}
