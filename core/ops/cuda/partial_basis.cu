/* Once per lane and context, over a few hundred vectors: sums of products, a thread an element; eigenvectors on
 * the host, as sym_eig's, for its reason; what each direction carries, a block a direction; then those that are
 * kept.  Sums in double.  What it takes is some launches and one trip to the host. */
#include "rows.cuh"
#include "runtime.cuh"

enum { BASIS_THREADS = 128, BASIS_WARPS = BASIS_THREADS / KVL_WARP };

struct basis_in {
    const float *q, *k;
    size_t q_stride;
    int32_t n_q, group, n_k, dim;
};

/* Vector t of all queries, then of all keys. */
static __device__ inline const float *basis_vector(const basis_in *a, int32_t t)
{
    int32_t n = a->n_q * a->group;
    if (t >= n) return a->k + (size_t)(t - n) * (size_t)a->dim;
    return a->q + (size_t)(t / a->group) * a->q_stride + (size_t)(t % a->group) * (size_t)a->dim;
}

/* sum [dim][dim], the lower triangle; 0 above it. */
static __global__ void __launch_bounds__(BASIS_THREADS) basis_products(float *sum, const basis_in a)
{
    int32_t j = (int32_t)(blockIdx.x * BASIS_THREADS + threadIdx.x), i = (int32_t)blockIdx.y;
    double x = 0;
    if (j >= a.dim) return;
    for (int32_t t = 0; j <= i && t < a.n_q * a.group; t++) {
        const float *q = basis_vector(&a, t);
        x = fma((double)q[i], (double)q[j], x);
    }
    sum[(size_t)i * (size_t)a.dim + (size_t)j] = (float)x;
}

/* vec [dim][dim]: the channels. */
static __global__ void __launch_bounds__(BASIS_THREADS) basis_axes(float *vec, int32_t dim)
{
    int32_t j = (int32_t)(blockIdx.x * BASIS_THREADS + threadIdx.x), i = (int32_t)blockIdx.y;
    if (j < dim) vec[(size_t)i * (size_t)dim + (size_t)j] = i == j ? 1.0f : 0.0f;
}

/* weight[i] = sum of |x . row i of vec| over all vectors x: a warp takes every fourth, and the warps' sums are
 * added in their order. */
static __global__ void __launch_bounds__(BASIS_THREADS)
    basis_weights(double *weight, const float *vec, const basis_in a)
{
    __shared__ double room[BASIS_WARPS];
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    const float *direction = vec + (size_t)blockIdx.x * (size_t)a.dim;
    double total = 0;
    for (int32_t t = warp; t < a.n_q * a.group + a.n_k; t += BASIS_WARPS) {
        const float *x = basis_vector(&a, t);
        double dot = 0;
        for (int32_t c = lane; c < a.dim; c += KVL_WARP) dot += (double)x[c] * (double)direction[c];
        total += fabs(kvl_warp_sum_f64(dot));
    }
    if (lane == 0) room[warp] = total;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int32_t w = 1; w < BASIS_WARPS; w++) total += room[w];
    weight[blockIdx.x] = total;
}

/* Whether direction i is one of the r heaviest. */
static __device__ inline bool basis_kept(const double *weight, int32_t i, int32_t dim, int32_t r)
{
    int32_t before = 0;
    for (int32_t j = 0; j < dim; j++)
        before += weight[j] > weight[i] || (j < i && weight[j] == weight[i]);
    return before < r;
}

/* A block per direction: it goes behind the kept ones of a lower index. */
static __global__ void __launch_bounds__(BASIS_THREADS)
    basis_keep(float *basis, const float *vec, const double *weight, int32_t dim, int32_t r)
{
    int32_t i = (int32_t)blockIdx.x, to = 0;
    if (!basis_kept(weight, i, dim, r)) return; /* the whole block */
    for (int32_t j0 = 0; j0 < i; j0 += BASIS_THREADS) {
        int32_t j = j0 + (int32_t)threadIdx.x;
        to += __syncthreads_count(j < i && basis_kept(weight, j, dim, r));
    }
    for (int32_t c = (int32_t)threadIdx.x; c < dim; c += BASIS_THREADS)
        basis[(size_t)to * (size_t)dim + (size_t)c] = vec[(size_t)i * (size_t)dim + (size_t)c];
}

/* ---- launch ---------------------------------------------------------------------------------------- */

/* Eigenvectors of `sum`, on the device. */
static const float *basis_eigenvectors(struct kvl_cuda_call *c, const float *sum, int32_t dim)
{
    size_t square = (size_t)dim * (size_t)dim;
    float *host = static_cast<float *>(kvl_alloc(2 * square, sizeof *host));
    const float *vec = NULL;
    if (!host) {
        c->rc = KVL_ENOMEM;
    } else if (kvl_cuda_fetch(c, host, sum, square * sizeof *host) == KVL_OK) {
        struct kvl_sym_eig_args a = { host + square, NULL, host, dim };
        c->rc = kvl_cpu_sym_eig(&a);
        if (c->rc == KVL_EDEVICE) c->rc = kvl_cuda_fail("%s", kvl_ops_blas_error());
        vec = kvl_cuda_upload(c, host + square, square);
    }
    kvl_free(host);
    return vec;
}

static void basis_launch(struct kvl_cuda_call *c, float *basis, const basis_in *in,
                         const struct kvl_partial_basis_args *a)
{
    size_t dim = (size_t)a->dim;
    dim3 grid((unsigned)kvl_ceil_div(a->dim, BASIS_THREADS), (unsigned)a->dim);
    float *matrix = kvl_cuda_temp<float>(c, dim * dim);
    double *weight = kvl_cuda_temp<double>(c, dim);
    const float *vec = matrix;
    if (c->rc != KVL_OK) return;
    if (a->skew) {
        KVL_LAUNCH(basis_products, grid, BASIS_THREADS, 0, matrix, *in);
        vec = basis_eigenvectors(c, matrix, a->dim);
    } else {
        KVL_LAUNCH(basis_axes, grid, BASIS_THREADS, 0, matrix, a->dim);
    }
    if (c->rc != KVL_OK) return;
    KVL_LAUNCH(basis_weights, (unsigned)a->dim, BASIS_THREADS, 0, weight, vec, *in);
    KVL_LAUNCH(basis_keep, (unsigned)a->dim, BASIS_THREADS, 0, basis, vec, (const double *)weight,
               a->dim, a->r);
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_partial_basis(const struct kvl_partial_basis_args *a)
{
    struct kvl_cuda_call c;
    basis_in in = {};
    size_t dim = (size_t)a->dim;
    if (a->r == 0) return KVL_OK;
    assert(a->dim >= 1 && a->dim <= KVL_SYM_EIG_MAX && a->r <= a->dim);
    kvl_cuda_begin(&c);
    if (a->n_q > 0)
        in.q = kvl_cuda_in(&c, a->q, (size_t)(a->n_q - 1) * a->q_stride + (size_t)a->group * dim);
    if (a->n_k > 0) in.k = kvl_cuda_in(&c, a->k, (size_t)a->n_k * dim);
    in.q_stride = a->q_stride;
    in.n_q = a->n_q;
    in.group = a->group;
    in.n_k = a->n_k;
    in.dim = a->dim;
    float *basis = kvl_cuda_out(&c, a->basis, (size_t)a->r * dim);
    if (c.rc == KVL_OK) basis_launch(&c, basis, &in, a);
    return kvl_cuda_end(&c);
}
