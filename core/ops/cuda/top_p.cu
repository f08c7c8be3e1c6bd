/* A block per row finds the smallest key that is needed, eleven, ten and ten bits at a time, by the sums of the
 * weights that have the same ones (weights are not negative: their bits are in order).  Sums are integers,
 * a weight being counted in units of 2^-61 n of the power of two above the row's largest, so that atomics give
 * the same sum in any order: exact for weights down to 2^-17 of the largest at a million tokens, and no
 * further off than a unit each below that (ref adds doubles, which round as well).  Then one more pass marks
 * what is in: all above that key, and the first ones that are equal to it.
 *
 * The marked weights' sums over the rows go through the radix select of topk, all others ranking below them,
 * and a block writes what is marked of its list.
 *
 * Limit: six readings of a row, which stays in the L2 cache, by one block each: made for the few thousand
 * tokens that a first selection leaves.  Not timed yet. */
#include "topk.cuh"

enum { TOP_P_LEVELS = 3, TOP_P_BINS = 1 << 11, TOP_P_THREADS = 1024, TOP_P_SIDE = 256 };

typedef unsigned long long top_p_sum; /* what atomicAdd takes */

struct top_p {
    struct kvl_top_p_args a;
    int32_t n;     /* without the last one, where that is forced */
    int32_t *mark; /* [n] */
    int32_t *nan;  /* one for all rows */
    float *sum;    /* [n] */
    const int32_t *index;
    int32_t n_best;
};

/* A row: where it is, and what its sums are measured in. */
struct top_p_row {
    const float *x;
    int32_t n;
    double unit; /* units of weight 1 */
    uint32_t most;
    double target;   /* units that are to be reached */
    top_p_sum above; /* units of what is in without question */
};

struct top_p_room {
    top_p_sum bin[TOP_P_BINS], scan[KVL_WARP];
    uint32_t scan32[KVL_WARP];
    top_p_sum above;
    int32_t at;
};

static __device__ inline uint32_t top_p_key(float x)
{
    return kvl_float_bits(x) & 0x7fffffffu; /* minus zero */
}

static __device__ inline top_p_sum top_p_units(const struct top_p_row *r, float x)
{
    if (r->most == 0x7f800000u)
        return isinf(x) ? 1 : 0; /* infinity: the rest is nothing beside it */
    return (top_p_sum)((double)x * r->unit);
}

/* Largest weight, unit, target; *nan: a weight is no number. */
static __device__ inline struct top_p_row top_p_measure(const struct top_p *s, int32_t row,
                                                        struct top_p_room *room, bool *nan)
{
    struct top_p_row r = { s->a.weight + (size_t)row * s->a.stride, s->n, 1, 0, 0, 0 };
    uint32_t most = 0, any = 0;
    top_p_sum all = 0;
    int exponent = 0, log_n = 1;
    for (int32_t i = (int32_t)threadIdx.x; i < s->a.n; i += TOP_P_THREADS) {
        uint32_t key = top_p_key(r.x[i]);
        any |= isnan(r.x[i]) ? 1u : 0u;
        most = key > most ? key : most;
    }
    *nan = kvl_block_most(any, room->scan32) > 0;
    r.most = kvl_block_most(most, room->scan32);
    while (1 << log_n < s->a.n && log_n < 30) log_n++;
    (void)frexp((double)kvl_bits_float(r.most), &exponent);
    if (r.most > 0 && r.most < 0x7f800000u) r.unit = ldexp(1.0, 61 - exponent - log_n);
    for (int32_t i = (int32_t)threadIdx.x; i < s->a.n && !*nan; i += TOP_P_THREADS)
        all += top_p_units(&r, r.x[i]);
    (void)kvl_block_before(all, room->scan, &all);
    if (r.most == 0x7f800000u) all = 1;
    r.target = (double)s->a.p * (double)all;
    r.above = s->a.last && !*nan ? top_p_units(&r, r.x[s->n]) : 0;
    return r;
}

/* Sums of the bins of keys that begin with `prefix`; from the top, the bin that reaches the target goes to
 * room->at and what is above it to room->above.  No bin reaches it: -1. */
static __device__ inline void top_p_level(const struct top_p_row *r, uint32_t prefix, int high,
                                          int below, struct top_p_room *room)
{
    int32_t t = (int32_t)threadIdx.x, n_bins = 1 << (high - below),
            each = TOP_P_BINS / TOP_P_THREADS;
    top_p_sum sum = 0, all;
    for (int32_t b = t; b < TOP_P_BINS; b += TOP_P_THREADS) room->bin[b] = 0;
    if (t == 0) room->at = -1;
    __syncthreads();
    for (int32_t i = t; i < r->n; i += TOP_P_THREADS) {
        uint32_t key = top_p_key(r->x[i]);
        if (key >> high == prefix)
            atomicAdd(&room->bin[key >> below & (uint32_t)(n_bins - 1)], top_p_units(r, r->x[i]));
    }
    __syncthreads();
    int32_t first = TOP_P_BINS - 1 - t * each; /* downwards; bins beyond n_bins are empty */
    for (int32_t i = 0; i < each; i++) sum += room->bin[first - i];
    top_p_sum above = r->above + kvl_block_before(sum, room->scan, &all);
    for (int32_t i = 0; i < each; above += room->bin[first - i++])
        if ((double)above < r->target && (double)(above + room->bin[first - i]) >= r->target) {
            room->at = first - i;
            room->above = above;
        }
    __syncthreads();
}

/* How many weights of `units` each it takes from `above` to the target. */
static __device__ inline int32_t top_p_ties(const struct top_p_row *r, top_p_sum units, int32_t n)
{
    double about = (r->target - (double)r->above) / (double)units;
    if (about >= (double)n) return n;
    int32_t m = about > 2 ? (int32_t)about - 1 : 0;
    while (m < n && (double)(r->above + (top_p_sum)m * units) < r->target) m++;
    return m;
}

/* Marks keys above `least` and the first `ties` of those equal to it. */
static __device__ inline void top_p_mark(const struct top_p *s, const struct top_p_row *r,
                                         uint32_t least, int32_t ties, struct top_p_room *room)
{
    uint32_t met = 0, total;
    for (int32_t i0 = 0; i0 < r->n; i0 += TOP_P_THREADS) {
        int32_t i = i0 + (int32_t)threadIdx.x;
        uint32_t key = i < r->n ? top_p_key(r->x[i]) : 0;
        bool same = i < r->n && key == least;
        uint32_t before = met + kvl_block_before(same ? 1u : 0u, room->scan32, &total);
        met += total;
        /* Rows may mark the same token: with the same 1. */
        if (i < r->n && (key > least || (same && before < (uint32_t)ties))) s->mark[i] = 1;
    }
}

static __global__ void __launch_bounds__(TOP_P_THREADS) top_p_rows(struct top_p s)
{
    __shared__ struct top_p_room room;
    bool nan;
    struct top_p_row r = top_p_measure(&s, (int32_t)blockIdx.x, &room, &nan);
    if (threadIdx.x == 0 && nan) *s.nan = 1;
    if (nan || !((double)r.above < r.target)) return; /* the whole block */
    uint32_t prefix = 0;
    bool reached = true;
    for (int level = 0; level < TOP_P_LEVELS && reached; level++) {
        int high = level == 0   ? 31
                   : level == 1 ? 20
                                : 10,
            below = level == 0   ? 20
                    : level == 1 ? 10
                                 : 0;
        top_p_level(&r, prefix, high, below, &room);
        reached = room.at >= 0;
        if (reached) {
            r.above = room.above;
            prefix = prefix << (high - below) | (uint32_t)room.at;
        }
        __syncthreads(); /* room is used again */
    }
    /* The sum of all stays below: everything counts. */
    int32_t ties = reached ? top_p_ties(&r, top_p_units(&r, kvl_bits_float(prefix)), r.n) : r.n;
    top_p_mark(&s, &r, reached ? prefix : 0, ties, &room);
}

static __global__ void top_p_clear(struct top_p s)
{
    int32_t i = (int32_t)(blockIdx.x * TOP_P_SIDE + threadIdx.x);
    if (i < s.n) s.mark[i] = 0;
}

static __global__ void top_p_sums(struct top_p s)
{
    int32_t i = (int32_t)(blockIdx.x * TOP_P_SIDE + threadIdx.x);
    double sum = 0;
    if (i >= s.n) return;
    for (int32_t r = 0; r < s.a.n_rows; r++)
        sum += (double)s.a.weight[(size_t)r * s.a.stride + (size_t)i];
    s.sum[i] = s.mark[i] ? (float)sum : kvl_key_none();
}

/* One block: of the best ones those that are marked, and the last. */
static __global__ void __launch_bounds__(TOP_P_THREADS) top_p_list(struct top_p s)
{
    __shared__ uint32_t room[KVL_WARP];
    uint32_t n = 0, total;
    for (int32_t j0 = 0; j0 < s.n_best; j0 += TOP_P_THREADS) {
        int32_t j = j0 + (int32_t)threadIdx.x, i = 0;
        if (j < s.n_best) i = s.index ? s.index[j] : j;
        bool in = j < s.n_best && s.mark[i];
        uint32_t at = n + kvl_block_before(in ? 1u : 0u, room, &total);
        if (in) s.a.index[at] = i;
        n += total;
    }
    if (threadIdx.x > 0) return; /* no barrier follows */
    if (s.a.last) s.a.index[n++] = s.n;
    *s.a.n_index = (int32_t)n;
}

static void top_p_run(struct kvl_cuda_call *c, struct top_p *s)
{
    dim3 side((unsigned)kvl_ceil_div(s->n, TOP_P_SIDE)), block(TOP_P_SIDE), wide(TOP_P_THREADS);
    if (s->n > 0) KVL_LAUNCH(top_p_clear, side, block, 0, *s);
    if (s->a.n > 0 && s->a.n_rows > 0)
        KVL_LAUNCH(top_p_rows, dim3((unsigned)s->a.n_rows), wide, 0, *s);
    if (s->n_best < s->n) {
        int32_t *index = kvl_cuda_temp<int32_t>(c, (size_t)s->n_best);
        KVL_LAUNCH(top_p_sums, side, block, 0, *s);
        kvl_cuda_topk_rows(c, index, s->sum, (size_t)s->n, 1, s->n, s->n_best, NULL);
        s->index = index;
    }
    if (c->rc == KVL_OK) KVL_LAUNCH(top_p_list, dim3(1), wide, 0, *s);
}

int kvl_cuda_top_p(const struct kvl_top_p_args *a)
{
    struct kvl_cuda_call c;
    int32_t last = a->last ? 1 : 0, n = a->n - last, best = KVL_MIN(a->k - last, n);
    struct top_p s = { *a, n, NULL, NULL, NULL, NULL, best };
    size_t rows = (size_t)a->n_rows;
    assert(n >= 0 && best >= 0);
    kvl_cuda_begin(&c);
    s.a.weight = a->n > 0 && rows > 0
                     ? kvl_cuda_in(&c, a->weight, (rows - 1) * a->stride + (size_t)a->n)
                     : NULL;
    s.a.index = best + last > 0 ? kvl_cuda_out(&c, a->index, (size_t)(best + last)) : NULL;
    s.a.n_index = kvl_cuda_out(&c, a->n_index, 1);
    s.mark = kvl_cuda_temp<int32_t>(&c, (size_t)n);
    s.nan = kvl_cuda_mark(&c);
    s.sum = kvl_cuda_temp<float>(&c, (size_t)n);
    if (c.rc == KVL_OK) top_p_run(&c, &s);
    return kvl_cuda_end(&c);
}
