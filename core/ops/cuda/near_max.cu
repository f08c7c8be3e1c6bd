/* Two launches over pieces of a row: the largest of each piece; then every piece takes the largest of these
 * from its elements and adds how many are near to the row's count.  Maxima, differences and integer sums:
 * exact in any order.
 *
 * Limit: the row read once from memory, once more where it has left the cache, and written once.  Not timed
 * yet. */
#include "select.cuh"

enum { NEAR_THREADS = 256, NEAR_PIECE = 16 * NEAR_THREADS };

struct near_rows {
    struct kvl_near_max_args a;
    int32_t n_pieces;
    float *most; /* [n_rows][n_pieces] */
};

/* The definition begins with the first element: a NaN there stays. */
static __device__ inline float near_first(const struct near_rows *r, float most)
{
    if (r->a.n == 0) return most;
    float first = r->a.x[(size_t)blockIdx.y * (size_t)r->a.n];
    return isnan(first) ? first : most;
}

static __global__ void near_pieces(struct near_rows r)
{
    __shared__ float room[KVL_WARP];
    const float *x = r.a.x + (size_t)blockIdx.y * (size_t)r.a.n;
    int32_t first = (int32_t)blockIdx.x * NEAR_PIECE, last = KVL_MIN(first + NEAR_PIECE, r.a.n);
    float most = -INFINITY;
    for (int32_t i = first + (int32_t)threadIdx.x; i < last; i += NEAR_THREADS)
        if (x[i] > most) most = x[i];
    most = kvl_block_most(most, room);
    if (threadIdx.x > 0) return; /* no barrier follows */
    r.most[(size_t)blockIdx.y * (size_t)r.n_pieces + blockIdx.x] = near_first(&r, most);
    if (blockIdx.x == 0) r.a.count[blockIdx.y] = 0;
}

static __global__ void near_less(struct near_rows r)
{
    __shared__ float room[KVL_WARP];
    __shared__ int32_t sums[KVL_WARP];
    const float *piece = r.most + (size_t)blockIdx.y * (size_t)r.n_pieces;
    float *x = r.a.x + (size_t)blockIdx.y * (size_t)r.a.n, most = piece[0];
    int32_t first = (int32_t)blockIdx.x * NEAR_PIECE, last = KVL_MIN(first + NEAR_PIECE, r.a.n);
    int32_t count = 0, total;
    for (int32_t p = (int32_t)threadIdx.x; p < r.n_pieces; p += NEAR_THREADS)
        if (piece[p] > most) most = piece[p];
    most = kvl_block_most(most, room);
    for (int32_t i = first + (int32_t)threadIdx.x; i < last; i += NEAR_THREADS) {
        float y = x[i] - most;
        x[i] = y;
        count += y > -r.a.alpha;
    }
    (void)kvl_block_before(count, sums, &total);
    if (threadIdx.x == 0) atomicAdd(&r.a.count[blockIdx.y], total);
}

int kvl_cuda_near_max(const struct kvl_near_max_args *a)
{
    struct kvl_cuda_call c;
    struct near_rows r = { *a, KVL_MAX(1, kvl_ceil_div(a->n, NEAR_PIECE)), NULL };
    size_t rows = (size_t)a->n_rows;
    assert(a->n_rows <= 65535);
    if (a->n_rows == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    r.a.x = a->n > 0 ? kvl_cuda_inout(&c, a->x, rows * (size_t)a->n) : NULL;
    r.a.count = kvl_cuda_out(&c, a->count, rows);
    r.most = kvl_cuda_temp<float>(&c, rows * (size_t)r.n_pieces);
    dim3 grid((unsigned)r.n_pieces, (unsigned)a->n_rows), block(NEAR_THREADS);
    if (c.rc == KVL_OK) {
        KVL_LAUNCH(near_pieces, grid, block, 0, r);
        KVL_LAUNCH(near_less, grid, block, 0, r);
    }
    return kvl_cuda_end(&c);
}
