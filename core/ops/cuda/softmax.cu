/* Rows of up to SOFTMAX_SPLIT elements: one block each, which reads x, sums and writes.  Longer rows, of which
 * there are few: splits of that size, each with its own maximum and sum; then every split merges those of its
 * row, in their order, and writes.  Limit: reading x twice, the second time from the cache, and writing it. */
#include "rows.cuh"

enum { SOFTMAX_THREADS = 256, SOFTMAX_SPLIT = 8192 };

/* Of the elements of one split, or of several. */
struct softmax_part {
    float max, sum; /* of exp(x - max); 0 where all are -inf */
};

/* The part that `from` elements of x [n] are; x is split number blockIdx.x of a row. */
static __device__ inline softmax_part softmax_look(const float *x, int32_t n, float *room)
{
    softmax_part p = { -INFINITY, 0 };
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += SOFTMAX_THREADS) p.max = fmaxf(p.max, x[i]);
    p.max = kvl_block_max(p.max, room);
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += SOFTMAX_THREADS)
        p.sum += x[i] == -INFINITY ? 0 : expf(x[i] - p.max);
    p.sum = kvl_block_sum(p.sum, room);
    return p;
}

static __device__ inline void softmax_write(float *x, int32_t n, softmax_part all)
{
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += SOFTMAX_THREADS)
        x[i] = expf(x[i] - all.max) / all.sum;
}

static __device__ inline int32_t softmax_length(int32_t n, int32_t split)
{
    int32_t left = n - split * SOFTMAX_SPLIT;
    return left < SOFTMAX_SPLIT ? left : SOFTMAX_SPLIT;
}

static __global__ void __launch_bounds__(SOFTMAX_THREADS)
    softmax_row(float *x, size_t stride, int32_t n)
{
    __shared__ float room[KVL_WARP];
    x += (size_t)blockIdx.x * stride;
    softmax_part all = softmax_look(x, n, room);
    softmax_write(x, n, all);
}

static __global__ void __launch_bounds__(SOFTMAX_THREADS)
    softmax_parts(softmax_part *part, const float *x, size_t stride, int32_t n)
{
    __shared__ float room[KVL_WARP];
    int32_t split = (int32_t)blockIdx.x;
    x += (size_t)blockIdx.y * stride + (size_t)split * SOFTMAX_SPLIT;
    softmax_part p = softmax_look(x, softmax_length(n, split), room);
    if (threadIdx.x == 0) part[(size_t)blockIdx.y * gridDim.x + (size_t)split] = p;
}

static __global__ void __launch_bounds__(SOFTMAX_THREADS)
    softmax_splits(float *x, const softmax_part *part, size_t stride, int32_t n)
{
    softmax_part all = { -INFINITY, 0 };
    int32_t n_splits = (int32_t)gridDim.x, split = (int32_t)blockIdx.x;
    part += (size_t)blockIdx.y * gridDim.x;
    x += (size_t)blockIdx.y * stride + (size_t)split * SOFTMAX_SPLIT;
    for (int32_t s = 0; s < n_splits; s++) all.max = fmaxf(all.max, part[s].max);
    for (int32_t s = 0; s < n_splits; s++)
        all.sum +=
            part[s].max == -INFINITY ? part[s].sum : part[s].sum * expf(part[s].max - all.max);
    softmax_write(x, softmax_length(n, split), all);
}

/* ---- launch ---------------------------------------------------------------------------------------- */

enum { SOFTMAX_GRID_ROWS = 65535 };

static void softmax_launch(struct kvl_cuda_call *c, float *x, const struct kvl_softmax_args *a)
{
    int32_t n_splits = kvl_ceil_div(a->n, SOFTMAX_SPLIT);
    if (n_splits == 1) {
        KVL_LAUNCH(softmax_row, (unsigned)a->n_rows, SOFTMAX_THREADS, 0, x, a->stride, a->n);
        return;
    }
    for (int32_t r = 0; r < a->n_rows; r += SOFTMAX_GRID_ROWS) {
        int32_t rows = KVL_MIN((int32_t)SOFTMAX_GRID_ROWS, a->n_rows - r);
        dim3 grid((unsigned)n_splits, (unsigned)rows);
        softmax_part *part = kvl_cuda_temp<softmax_part>(c, (size_t)n_splits * (size_t)rows);
        if (c->rc != KVL_OK) return;
        float *row = x + (size_t)r * a->stride;
        KVL_LAUNCH(softmax_parts, grid, SOFTMAX_THREADS, 0, part, (const float *)row, a->stride,
                   a->n);
        KVL_LAUNCH(softmax_splits, grid, SOFTMAX_THREADS, 0, row, (const softmax_part *)part,
                   a->stride, a->n);
    }
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_softmax(const struct kvl_softmax_args *a)
{
    struct kvl_cuda_call c;
    if (a->n_rows == 0) return KVL_OK;
    assert(a->n >= 1);
    kvl_cuda_begin(&c);
    float *x = kvl_cuda_inout(&c, a->x, (size_t)(a->n_rows - 1) * a->stride + (size_t)a->n);
    if (c.rc == KVL_OK) softmax_launch(&c, x, a);
    return kvl_cuda_end(&c);
}
