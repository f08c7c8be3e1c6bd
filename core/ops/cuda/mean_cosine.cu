/* Three passes: blocks sum the directions of their own 256 rows, one warp a row at a time; a block merges these
 * sums in their order; then a warp per row takes its cosine.  Sums in double, as on the CPU: a direction is
 * divided by the length of its row, however small.  Limit: reading x twice. */
#include "rows.cuh"

enum {
    COSINE_THREADS = 256,
    COSINE_WARPS = COSINE_THREADS / KVL_WARP,
    COSINE_ROWS = 256,    /* of a block's sum */
    COSINE_MAX_DIM = 1024 /* sums of one block's warps in shared memory */
};

static __device__ inline double cosine_dot(const float *x, const float *y, int32_t dim)
{
    double sum = 0;
    for (int32_t c = (int32_t)threadIdx.x % KVL_WARP; c < dim; c += KVL_WARP)
        sum = fma((double)x[c], (double)y[c], sum);
    return kvl_warp_sum_f64(sum);
}

/* part [blocks][dim] */
static __global__ void __launch_bounds__(COSINE_THREADS)
    cosine_parts(double *part, const float *x, int32_t n, int32_t dim)
{
    KVL_SHARED(float, sums); /* [COSINE_WARPS][dim] */
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    int32_t row0 = (int32_t)blockIdx.x * COSINE_ROWS;
    float *own = sums + (size_t)warp * (size_t)dim;
    for (int32_t c = lane; c < dim; c += KVL_WARP) own[c] = 0;
    for (int32_t i = row0 + warp; i < row0 + COSINE_ROWS && i < n; i += COSINE_WARPS) {
        const float *row = x + (size_t)i * (size_t)dim;
        double norm = sqrt(cosine_dot(row, row, dim));
        for (int32_t c = lane; norm > 0 && c < dim; c += KVL_WARP)
            own[c] += (float)((double)row[c] / norm);
    }
    __syncthreads();
    for (int32_t c = (int32_t)threadIdx.x; c < dim; c += COSINE_THREADS) {
        double sum = 0;
        for (int32_t w = 0; w < COSINE_WARPS; w++)
            sum += (double)sums[(size_t)w * (size_t)dim + (size_t)c];
        part[(size_t)blockIdx.x * (size_t)dim + (size_t)c] = sum;
    }
}

static __global__ void __launch_bounds__(COSINE_THREADS)
    cosine_anchor(float *anchor, const double *part, int32_t n_parts, int32_t n, int32_t dim)
{
    int32_t c = (int32_t)(blockIdx.x * COSINE_THREADS + threadIdx.x);
    double sum = 0;
    for (int32_t p = 0; c < dim && p < n_parts; p++)
        sum += part[(size_t)p * (size_t)dim + (size_t)c];
    if (c < dim) anchor[c] = (float)(sum / n);
}

static __global__ void __launch_bounds__(COSINE_THREADS)
    cosine_rows(float *y, const float *x, const float *anchor, int32_t n, int32_t dim)
{
    int32_t i = (int32_t)blockIdx.x * COSINE_WARPS + (int32_t)threadIdx.x / KVL_WARP;
    const float *row = x + (size_t)(i < n ? i : 0) * (size_t)dim;
    double length = cosine_dot(anchor, anchor, dim);
    double norms = sqrt(length * cosine_dot(row, row, dim)), dot = cosine_dot(row, anchor, dim);
    if (i < n && threadIdx.x % KVL_WARP == 0) y[i] = norms > 0 ? (float)(dot / norms) : 0;
}

/* ---- launch ---------------------------------------------------------------------------------------- */

static void cosine_launch(struct kvl_cuda_call *c, float *y, const float *x,
                          const struct kvl_mean_cosine_args *a)
{
    int32_t n_parts = kvl_ceil_div(a->n, COSINE_ROWS);
    size_t dim = (size_t)a->dim, shared = COSINE_WARPS * dim * sizeof(float);
    double *part = kvl_cuda_temp<double>(c, (size_t)n_parts * dim);
    float *anchor = kvl_cuda_temp<float>(c, dim);
    if (c->rc != KVL_OK) return;
    KVL_LAUNCH(cosine_parts, (unsigned)n_parts, COSINE_THREADS, shared, part, x, a->n, a->dim);
    KVL_LAUNCH(cosine_anchor, (unsigned)kvl_ceil_div(a->dim, COSINE_THREADS), COSINE_THREADS, 0,
               anchor, (const double *)part, n_parts, a->n, a->dim);
    KVL_LAUNCH(cosine_rows, (unsigned)kvl_ceil_div(a->n, COSINE_WARPS), COSINE_THREADS, 0, y, x,
               (const float *)anchor, a->n, a->dim);
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_mean_cosine(const struct kvl_mean_cosine_args *a)
{
    struct kvl_cuda_call c;
    assert(a->dim >= 1 && a->dim <= COSINE_MAX_DIM);
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    const float *x = kvl_cuda_in(&c, a->x, (size_t)a->n * (size_t)a->dim);
    float *y = kvl_cuda_out(&c, a->y, (size_t)a->n);
    if (c.rc == KVL_OK) cosine_launch(&c, y, x, a);
    return kvl_cuda_end(&c);
}
