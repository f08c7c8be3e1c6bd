/* A head's covariance times some thousand rows at a time by the float product of gemm.cu, whose rows depend on
 * nothing around them, then a warp per row for the two dot products.  Limit: the multiply-adds, dim^2 for every
 * row and head. */
#include "gemm.cuh"
#include "rows.cuh"

enum {
    GAUSS_THREADS = 256,
    GAUSS_WARPS = GAUSS_THREADS / KVL_WARP,
    GAUSS_ROWS = 16384 /* whose products with a covariance are kept at a time */
};

static __global__ void __launch_bounds__(GAUSS_THREADS)
    gauss_rows(float *y, const float *x, const float *mean, const float *product, int32_t n,
               int32_t dim, float scale)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP;
    int32_t i = (int32_t)blockIdx.x * GAUSS_WARPS + (int32_t)threadIdx.x / KVL_WARP;
    float linear = 0, quadratic = 0;
    for (int32_t c = lane; i < n && c < dim; c += KVL_WARP) {
        size_t at = (size_t)i * (size_t)dim + (size_t)c;
        linear = fmaf(x[at], mean[c], linear);
        if (product) quadratic = fmaf(x[at], product[at], quadratic);
    }
    linear = kvl_warp_sum(linear);
    quadratic = kvl_warp_sum(quadratic);
    if (lane == 0 && i < n) y[i] = fmaf(scale * scale / 2, quadratic, scale * linear);
}

/* ---- launch ---------------------------------------------------------------------------------------- */

struct gauss_in {
    float *y, *product; /* product NULL: no covariance */
    const float *x, *mean, *cov;
};

static void gauss_launch(const gauss_in *in, const struct kvl_gauss_logits_args *a, int32_t head,
                         int32_t row0)
{
    size_t dim = (size_t)a->dim, h = (size_t)head;
    int32_t n = KVL_MIN((int32_t)GAUSS_ROWS, a->n - row0);
    const float *x = in->x + (size_t)row0 * dim;
    if (in->product) {
        struct kvl_weight w = { NULL, KVL_W_F32, a->dim, a->dim, dim * sizeof(float) };
        kvl_cuda_gemm_chain(in->product, x, &w, in->cov + h * dim * dim, n);
    }
    KVL_LAUNCH(gauss_rows, (unsigned)kvl_ceil_div(n, GAUSS_WARPS), GAUSS_THREADS, 0,
               in->y + h * (size_t)a->n + (size_t)row0, x, in->mean + h * dim,
               (const float *)in->product, n, a->dim, a->scale);
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_gauss_logits(const struct kvl_gauss_logits_args *a)
{
    struct kvl_cuda_call c;
    gauss_in in = {};
    size_t dim = (size_t)a->dim, n_heads = (size_t)a->n_heads, n = (size_t)a->n;
    if (n == 0 || n_heads == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    in.x = kvl_cuda_in(&c, a->x, n * dim);
    in.mean = kvl_cuda_in(&c, a->mean, n_heads * dim);
    in.cov = kvl_cuda_in(&c, a->cov, n_heads * dim * dim);
    in.y = kvl_cuda_out(&c, a->y, n_heads * n);
    if (a->cov)
        in.product = kvl_cuda_temp<float>(&c, (size_t)KVL_MIN(a->n, (int32_t)GAUSS_ROWS) * dim);
    for (int32_t h = 0; c.rc == KVL_OK && h < a->n_heads; h++)
        for (int32_t row0 = 0; row0 < a->n; row0 += GAUSS_ROWS) gauss_launch(&in, a, h, row0);
    return kvl_cuda_end(&c);
}
