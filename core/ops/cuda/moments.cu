/* Sums of vectors and of their products in double, in the order of the vectors: products of two floats are
 * exact, so that every sum has the bits of the definition.
 *
 * Limit: n n_heads dim (dim + 1) / 2 fused multiply-adds in double; the sums are read and written once.  A block
 * has a tile of 32 x 32 products on or above the diagonal of one head, each thread four of them in registers,
 * and the vectors pass through shared memory, widened once.  Not timed yet. */
#include "cuda.cuh"

enum { MOMENTS_TILE = 32, MOMENTS_THREADS = 256, MOMENTS_STEP = 16 };

struct moments_work {
    double *sum, *product;
    const float *x;
    int32_t n, n_heads, dim, n_tiles;
};

/* Tile `t` of those on or above the diagonal, row by row. */
static __device__ inline void moments_tile(int32_t t, int32_t n_tiles, int32_t *r, int32_t *c)
{
    int32_t row = 0;
    for (; t >= n_tiles - row; row++) t -= n_tiles - row;
    *r = row * MOMENTS_TILE;
    *c = (row + t) * MOMENTS_TILE;
}

/* to [vector][place] = channels c0 .. of vectors i0 .. */
static __device__ inline void moments_load(double (*to)[MOMENTS_TILE], const struct moments_work *w,
                                           int32_t head, int32_t i0, int32_t c0)
{
    for (int32_t i = (int32_t)threadIdx.x; i < MOMENTS_STEP * MOMENTS_TILE; i += MOMENTS_THREADS) {
        int32_t v = i / MOMENTS_TILE, c = i % MOMENTS_TILE;
        size_t row = (size_t)(i0 + v) * (size_t)w->n_heads + (size_t)head;
        bool is = i0 + v < w->n && c0 + c < w->dim;
        to[v][c] = is ? (double)w->x[row * (size_t)w->dim + (size_t)(c0 + c)] : 0;
    }
}

static __global__ __launch_bounds__(MOMENTS_THREADS) void moments_add(struct moments_work w)
{
    __shared__ double xr[MOMENTS_STEP][MOMENTS_TILE], xc[MOMENTS_STEP][MOMENTS_TILE];
    int32_t head = (int32_t)blockIdx.y, r0, c0;
    moments_tile((int32_t)blockIdx.x, w.n_tiles, &r0, &c0);
    /* Products (r, c + 16 j) and (r + 16, ...): neighbours write neighbours. */
    int32_t r = r0 + (int32_t)threadIdx.x / 16, c = c0 + (int32_t)threadIdx.x % 16;
    size_t dim = (size_t)w.dim;
    double *at[2][2], *sum[2] = { NULL, NULL }, p[2][2] = { { 0, 0 }, { 0, 0 } }, s[2] = { 0, 0 };
    for (int32_t i = 0; i < 2; i++) {
        size_t row = (size_t)(r + 16 * i);
        if (c == r0 && r0 == c0 && row < dim) sum[i] = w.sum + (size_t)head * dim + row;
        if (sum[i]) s[i] = *sum[i];
        for (int32_t j = 0; j < 2; j++) {
            size_t col = (size_t)(c + 16 * j);
            bool is = row <= col && col < dim;
            at[i][j] = is ? w.product + (size_t)head * (dim * (dim + 1) / 2) +
                                (row * (2 * dim - row + 1) / 2 + col - row)
                          : NULL;
            if (is) p[i][j] = *at[i][j];
        }
    }
    for (int32_t i0 = 0; i0 < w.n; i0 += MOMENTS_STEP) {
        __syncthreads();
        moments_load(xr, &w, head, i0, r0);
        moments_load(xc, &w, head, i0, c0);
        __syncthreads();
        int32_t n = w.n - i0 < MOMENTS_STEP ? w.n - i0 : MOMENTS_STEP;
        for (int32_t v = 0; v < n; v++)
            for (int32_t i = 0; i < 2; i++) {
                double x = xr[v][r - r0 + 16 * i];
                s[i] += x;
                for (int32_t j = 0; j < 2; j++) p[i][j] = fma(x, xc[v][c - c0 + 16 * j], p[i][j]);
            }
    }
    for (int32_t i = 0; i < 2; i++) {
        if (sum[i]) *sum[i] = s[i];
        for (int32_t j = 0; j < 2; j++)
            if (at[i][j]) *at[i][j] = p[i][j];
    }
}

int kvl_cuda_moments(const struct kvl_moments_args *a)
{
    struct kvl_cuda_call c;
    if (a->n == 0) return KVL_OK;
    assert(a->n_heads >= 1 && a->dim >= 1);
    size_t heads = (size_t)a->n_heads, dim = (size_t)a->dim;
    kvl_cuda_begin(&c);
    struct moments_work w = {};
    w.sum = kvl_cuda_inout(&c, a->sum, heads * dim);
    w.product = kvl_cuda_inout(&c, a->product, heads * (dim * (dim + 1) / 2));
    w.x = kvl_cuda_in(&c, a->x, (size_t)a->n * heads * dim);
    w.n = a->n;
    w.n_heads = a->n_heads;
    w.dim = a->dim;
    w.n_tiles = kvl_ceil_div(a->dim, MOMENTS_TILE);
    dim3 grid((unsigned)(w.n_tiles * (w.n_tiles + 1) / 2), (unsigned)a->n_heads);
    if (c.rc == KVL_OK) KVL_LAUNCH(moments_add, grid, MOMENTS_THREADS, 0, w);
    return kvl_cuda_end(&c);
}
