/* count_sort.cuh - rows in the order of a small key, rows of one key in their own order; several tables of
 * keys at once.
 *
 * A table's n rows are cut in segments.  A warp owns a segment and a row of counters for it, so nothing is
 * atomic: lanes with the same key find each other with one vote per bit of the key, the first of them adds
 * for all.  Counters become first places, key by key, segment by segment; then the warps go over their
 * segments again and put every row where its counter says.
 *
 * Reads every key twice and writes every row once; a warp waits for its own counters in L2, which segments
 * hide.  Segments are chosen so that counters take no more room than rows. */
#ifndef KVL_COUNT_SORT_CUH
#define KVL_COUNT_SORT_CUH

#include "cuda.cuh"

enum {
    KVL_SORT_WARPS = 8, /* of a block: neighbouring tables, whose keys lie side by side */
    KVL_SORT_SCAN = 256,
    KVL_SORT_SEGMENTS = 64,
};

template <class K> struct kvl_sort {
    const K *key; /* of row i and table l: key[i * stride + l], below n_keys */
    size_t stride;
    int32_t n, n_tables, n_keys, n_bits; /* n_keys <= 1 << n_bits */
    int32_t *start;                      /* out [n_tables][n_keys + 1] */
    int32_t *id;                         /* out [n_tables][n] */
    int32_t *count;                      /* [n_tables][n_segments][n_keys] */
    int32_t n_segments, segment;         /* rows of one, a multiple of a warp */
};

/* Lanes that are alive and have this lane's key. */
static __device__ inline uint32_t kvl_sort_peers(int32_t key, bool live, int32_t n_bits)
{
    uint32_t peers = __ballot_sync(0xffffffffu, live);
    for (int32_t b = 0; b < n_bits; b++) {
        bool set = (key >> b) & 1;
        uint32_t ones = __ballot_sync(0xffffffffu, set);
        peers &= set ? ones : ~ones;
    }
    return peers;
}

/* With PLACE rows go to their places, else they are counted. */
template <class K, bool PLACE> static __global__ void kvl_sort_rows(struct kvl_sort<K> s)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP;
    int32_t table = (int32_t)(blockIdx.x * (blockDim.x / KVL_WARP) + threadIdx.x / KVL_WARP);
    if (table >= s.n_tables) return; /* a whole warp; no barrier follows */
    int32_t *count =
        s.count + ((size_t)table * (size_t)s.n_segments + blockIdx.y) * (size_t)s.n_keys;
    int32_t *id = s.id + (size_t)table * (size_t)s.n;
    int32_t first = (int32_t)blockIdx.y * s.segment;
    int32_t end = first + s.segment < s.n ? first + s.segment : s.n;
    for (int32_t b = lane; !PLACE && b < s.n_keys; b += KVL_WARP) count[b] = 0;
    __syncwarp();
    for (int32_t at = first; at < end; at += KVL_WARP) {
        int32_t row = at + lane;
        bool live = row < end;
        int32_t key = live ? (int32_t)s.key[(size_t)row * s.stride + (size_t)table] : 0;
        uint32_t peers = kvl_sort_peers(key, live, s.n_bits);
        int32_t before = __popc(peers & ((1u << lane) - 1u));
        if (PLACE && live) id[count[key] + before] = row;
        __syncwarp();
        if (live && before == 0) count[key] += __popc(peers);
        __syncwarp();
    }
}

/* Sum of x over the threads before this one; *all is that of the block.  Every thread calls it. */
static __device__ inline int32_t kvl_sort_before(int32_t x, int32_t *all)
{
    __shared__ int32_t warps[KVL_SORT_SCAN / KVL_WARP];
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    int32_t sum = x, before = 0;
    for (int32_t o = 1; o < KVL_WARP; o *= 2) {
        int32_t below = __shfl_up_sync(0xffffffffu, sum, (unsigned)o);
        if (lane >= o) sum += below;
    }
    if (lane == KVL_WARP - 1) warps[warp] = sum;
    __syncthreads();
    *all = 0;
    for (int32_t w = 0; w < KVL_SORT_SCAN / KVL_WARP; w++) {
        if (w == warp) before = *all;
        *all += warps[w];
    }
    __syncthreads(); /* warps may be written again */
    return before + sum - x;
}

/* A block per table: counts become places. */
template <class K> static __global__ void kvl_sort_scan(struct kvl_sort<K> s)
{
    int32_t *start = s.start + (size_t)blockIdx.x * ((size_t)s.n_keys + 1), at = 0;
    int32_t *count = s.count + (size_t)blockIdx.x * (size_t)s.n_segments * (size_t)s.n_keys;
    for (int32_t b0 = 0; b0 < s.n_keys; b0 += KVL_SORT_SCAN) {
        int32_t b = b0 + (int32_t)threadIdx.x, own = 0, all;
        for (int32_t i = 0; b < s.n_keys && i < s.n_segments; i++)
            own += count[(size_t)i * (size_t)s.n_keys + (size_t)b];
        int32_t place = at + kvl_sort_before(own, &all);
        at += all;
        if (b < s.n_keys) start[b] = place;
        for (int32_t i = 0; b < s.n_keys && i < s.n_segments; i++) {
            int32_t *c = &count[(size_t)i * (size_t)s.n_keys + (size_t)b], n = *c;
            *c = place;
            place += n;
        }
    }
    if (threadIdx.x == 0) start[s.n_keys] = s.n;
}

/* A warp per table and segment: 64 segments keep a GPU busy with one table, and more would be counters
 * rather than rows. */
template <class K> static void kvl_sort_launch(struct kvl_cuda_call *c, struct kvl_sort<K> *s)
{
    int32_t per = s->n_keys > 1024 ? s->n_keys : 1024, n = kvl_ceil_div(s->n, per);
    n = n < 1 ? 1 : n > KVL_SORT_SEGMENTS ? (int32_t)KVL_SORT_SEGMENTS : n;
    s->segment = kvl_ceil_div(kvl_ceil_div(s->n, n), KVL_WARP) * KVL_WARP;
    s->n_segments = n;
    s->count = kvl_cuda_temp<int32_t>(c, (size_t)s->n_tables * (size_t)n * (size_t)s->n_keys);
    if (c->rc) return;
    int32_t warps = s->n_tables < KVL_SORT_WARPS ? s->n_tables : (int32_t)KVL_SORT_WARPS;
    dim3 grid((unsigned)kvl_ceil_div(s->n_tables, warps), (unsigned)n);
    unsigned block = (unsigned)(warps * KVL_WARP);
    KVL_LAUNCH((kvl_sort_rows<K, false>), grid, block, 0, *s);
    KVL_LAUNCH(kvl_sort_scan<K>, (unsigned)s->n_tables, KVL_SORT_SCAN, 0, *s);
    KVL_LAUNCH((kvl_sort_rows<K, true>), grid, block, 0, *s);
}

#endif
