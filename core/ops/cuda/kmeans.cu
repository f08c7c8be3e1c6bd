/* A round of k-means: rows to centroids by products of tiles with the largest kept (float multiply-adds from
 * shared memory, 4 x 4 per thread), counts, empty clusters, rows sorted by cluster (count_sort.cuh), means.
 * The sort is what makes means exact to the bit: eight warps take every eighth row of a cluster in order,
 * and their sums are added in order, whatever ran first.
 *
 * Limit: n * n_clusters * dim multiply-adds of float.  A few launches per round, of which one block looks
 * for empty clusters: when there is none it reads the counts and ends.  Not timed yet. */
#include "count_sort.cuh"

enum {
    KM_TILE = 64, /* rows, and centroids, of a block */
    KM_STEP = 16, /* channels in shared memory */
    KM_SIDE = 16, /* threads along each side of a tile */
    KM_EACH = KM_TILE / KM_SIDE,
    KM_THREADS = KM_SIDE * KM_SIDE,
    KM_FILL = 1024,
    KM_WARPS = KM_THREADS / KVL_WARP,
};

struct kmeans {
    float *centroid;
    int32_t *assign, *count;
    const float *x;
    float *norm, *far;   /* [n] */
    float *scale, *bias; /* [n_clusters]: nearness = dot * scale + bias */
    int32_t *order, *start;
    size_t x_stride;
    int32_t n, dim, n_clusters;
    bool cosine;
};

static __device__ inline double kmeans_square(const float *x, int32_t dim)
{
    double sum = 0;
    for (int32_t c = (int32_t)threadIdx.x % KVL_WARP; c < dim; c += KVL_WARP)
        sum = fma((double)x[c], (double)x[c], sum);
    for (int o = KVL_WARP / 2; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    return sum;
}

/* A warp per row: what it would be near itself. */
static __global__ void kmeans_norms(struct kmeans k)
{
    int32_t i = (int32_t)(blockIdx.x * KM_WARPS + threadIdx.x / KVL_WARP);
    if (i >= k.n) return; /* a whole warp; no barrier follows */
    double square = kmeans_square(k.x + (size_t)i * k.x_stride, k.dim);
    if (threadIdx.x % KVL_WARP == 0) k.norm[i] = (float)(k.cosine ? sqrt(square) : square / 2);
}

/* A warp per cluster: its first centroid, where begin is set, and its factors. */
static __global__ void kmeans_factors(struct kmeans k, bool begin)
{
    int32_t j = (int32_t)(blockIdx.x * KM_WARPS + threadIdx.x / KVL_WARP);
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP;
    if (j >= k.n_clusters) return; /* a whole warp; no barrier follows */
    float *centroid = k.centroid + (size_t)j * (size_t)k.dim;
    size_t row = begin ? (size_t)j * (size_t)k.n / (size_t)k.n_clusters : 0;
    for (int32_t c = lane; begin && c < k.dim; c += KVL_WARP)
        centroid[c] = k.x[row * k.x_stride + (size_t)c];
    __syncwarp();
    double square = kmeans_square(centroid, k.dim);
    if (lane > 0) return;
    k.scale[j] = k.cosine ? (square > 0 ? (float)(1 / sqrt(square)) : 0) : 1;
    k.bias[j] = k.cosine ? 0 : (float)(-square / 2);
    k.count[j] = 0;
}

struct nearest {
    float near;
    int32_t at;
};

static __device__ inline struct nearest nearer(struct nearest a, struct nearest b)
{
    return b.near > a.near || (b.near == a.near && b.at < a.at) ? b : a;
}

/* A tile [KM_STEP][KM_TILE] of rows row0 .. of an array, channels c0 ..; zero outside. */
static __device__ inline void kmeans_load(float (*tile)[KM_TILE + 1], const float *x, size_t stride,
                                          int32_t row0, int32_t n, int32_t c0, int32_t dim)
{
    int32_t c = (int32_t)threadIdx.x % KM_STEP;
    for (int32_t i = (int32_t)threadIdx.x / KM_STEP; i < KM_TILE; i += KM_THREADS / KM_STEP)
        tile[c][i] =
            row0 + i < n && c0 + c < dim ? x[(size_t)(row0 + i) * stride + (size_t)(c0 + c)] : 0;
}

/* Rows row0 .. against centroids col0 ..: dot[i][j] of row tx's and ty's. */
static __device__ inline void kmeans_dots(const struct kmeans *k, int32_t row0, int32_t col0,
                                          float (*rows)[KM_TILE + 1], float (*cols)[KM_TILE + 1],
                                          float (*dot)[KM_EACH])
{
    int32_t tx = (int32_t)threadIdx.x % KM_SIDE, ty = (int32_t)threadIdx.x / KM_SIDE;
    for (int32_t i = 0; i < KM_EACH; i++)
        for (int32_t j = 0; j < KM_EACH; j++) dot[i][j] = 0;
    for (int32_t c0 = 0; c0 < k->dim; c0 += KM_STEP) {
        __syncthreads(); /* the step before has been read */
        kmeans_load(rows, k->x, k->x_stride, row0, k->n, c0, k->dim);
        kmeans_load(cols, k->centroid, (size_t)k->dim, col0, k->n_clusters, c0, k->dim);
        __syncthreads();
        for (int32_t c = 0; c < KM_STEP; c++)
            for (int32_t i = 0; i < KM_EACH; i++)
                for (int32_t j = 0; j < KM_EACH; j++)
                    dot[i][j] =
                        fmaf(rows[c][ty + i * KM_SIDE], cols[c][tx + j * KM_SIDE], dot[i][j]);
    }
}

/* Columns of a thread come in ascending order, so the first of equals stays. */
static __global__ void kmeans_assign(struct kmeans k)
{
    __shared__ float rows[KM_STEP][KM_TILE + 1], cols[KM_STEP][KM_TILE + 1];
    int32_t tx = (int32_t)threadIdx.x % KM_SIDE, ty = (int32_t)threadIdx.x / KM_SIDE;
    int32_t row0 = (int32_t)blockIdx.x * KM_TILE;
    float dot[KM_EACH][KM_EACH];
    struct nearest best[KM_EACH];
    for (int32_t i = 0; i < KM_EACH; i++) best[i] = { -INFINITY, k.n_clusters };
    for (int32_t col0 = 0; col0 < k.n_clusters; col0 += KM_TILE) {
        kmeans_dots(&k, row0, col0, rows, cols, dot);
        for (int32_t j = 0; j < KM_EACH; j++) {
            int32_t at = col0 + tx + j * KM_SIDE;
            if (at >= k.n_clusters) continue;
            float scale = k.scale[at], bias = k.bias[at];
            for (int32_t i = 0; i < KM_EACH; i++)
                best[i] = nearer(best[i], { fmaf(dot[i][j], scale, bias), at });
        }
    }
    for (int32_t i = 0; i < KM_EACH; i++) {
        for (int o = KM_SIDE / 2; o > 0; o /= 2) {
            struct nearest other = { __shfl_xor_sync(0xffffffffu, best[i].near, o),
                                     __shfl_xor_sync(0xffffffffu, best[i].at, o) };
            best[i] = nearer(best[i], other);
        }
        int32_t row = row0 + ty + i * KM_SIDE;
        if (tx > 0 || row >= k.n) continue;
        int32_t at = best[i].at < k.n_clusters ? best[i].at : 0; /* nothing but NaN */
        k.assign[row] = at;
        k.far[row] = k.norm[row] - best[i].near;
        atomicAdd(&k.count[at], 1);
    }
}

/* The row that fits its own cluster worst, among those of clusters with others: this thread's. */
static __device__ inline struct nearest kmeans_worst(const struct kmeans *k)
{
    struct nearest worst = { -INFINITY, k->n };
    for (int32_t i = (int32_t)threadIdx.x; i < k->n; i += KM_FILL)
        if (k->count[k->assign[i]] > 1) worst = nearer(worst, { k->far[i], i });
    return worst;
}

/* One block: empty clusters are rare. */
static __global__ void __launch_bounds__(KM_FILL) kmeans_fill(struct kmeans k)
{
    __shared__ struct nearest part[KM_FILL];
    for (int32_t j = 0; j < k.n_clusters; j++) {
        if (k.count[j] > 0) continue; /* the same for all threads: written before a barrier */
        part[threadIdx.x] = kmeans_worst(&k);
        __syncthreads();
        for (int32_t o = KM_FILL / 2; o > 0; o /= 2) {
            if ((int32_t)threadIdx.x < o)
                part[threadIdx.x] = nearer(part[threadIdx.x], part[(int32_t)threadIdx.x + o]);
            __syncthreads();
        }
        int32_t row = part[0].at;
        if (threadIdx.x == 0 && row < k.n) {
            k.count[k.assign[row]]--;
            k.assign[row] = j;
            k.count[j] = 1;
        }
        __syncthreads();
    }
}

/* A block per cluster and 32 channels. */
static __global__ void kmeans_means(struct kmeans k)
{
    __shared__ float part[KM_WARPS][KVL_WARP];
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    int32_t j = (int32_t)blockIdx.x, c = (int32_t)blockIdx.y * KVL_WARP + lane;
    int32_t end = k.start[j + 1];
    float sum = 0;
    for (int32_t i = k.start[j] + warp; i < end && c < k.dim; i += KM_WARPS)
        sum += k.x[(size_t)k.order[i] * k.x_stride + (size_t)c];
    part[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || c >= k.dim) return; /* no barrier follows */
    for (int32_t w = 1; w < KM_WARPS; w++) sum += part[w][lane];
    k.centroid[(size_t)j * (size_t)k.dim + (size_t)c] = sum / (float)(end - k.start[j]);
}

/* A block per 64 rows goes over all centroids: 8192 rows fill the GPU once, and no partial results of other
 * blocks have to be merged. */
static void kmeans_launch_assign(const struct kmeans *k, bool begin)
{
    KVL_LAUNCH(kmeans_factors, (unsigned)kvl_ceil_div(k->n_clusters, KM_WARPS), KM_THREADS, 0, *k,
               begin);
    if (k->n > 0)
        KVL_LAUNCH(kmeans_assign, (unsigned)kvl_ceil_div(k->n, KM_TILE), KM_THREADS, 0, *k);
}

static void kmeans_launch_means(struct kvl_cuda_call *c, const struct kmeans *k,
                                struct kvl_sort<int32_t> *sort)
{
    dim3 grid((unsigned)k->n_clusters, (unsigned)kvl_ceil_div(k->dim, KVL_WARP));
    KVL_LAUNCH(kmeans_fill, 1, KM_FILL, 0, *k);
    kvl_sort_launch(c, sort);
    if (c->rc == KVL_OK) KVL_LAUNCH(kmeans_means, grid, KM_THREADS, 0, *k);
}

static struct kmeans kmeans_open(struct kvl_cuda_call *c, const struct kvl_kmeans_args *a)
{
    size_t n = (size_t)a->n, n_clusters = (size_t)a->n_clusters, dim = (size_t)a->dim;
    struct kmeans k = {};
    k.x = kvl_cuda_in(c, a->x, n ? (n - 1) * a->x_stride + dim : 0);
    /* Read alone where no round forms them. */
    k.centroid = a->n_iter > 0 ? kvl_cuda_inout(c, a->centroid, n_clusters * dim)
                               : const_cast<float *>(kvl_cuda_in(c, a->centroid, n_clusters * dim));
    k.assign = kvl_cuda_out(c, a->assign, n);
    k.count = kvl_cuda_out(c, a->count, n_clusters);
    k.norm = kvl_cuda_temp<float>(c, n);
    k.far = kvl_cuda_temp<float>(c, n);
    k.scale = kvl_cuda_temp<float>(c, n_clusters);
    k.bias = kvl_cuda_temp<float>(c, n_clusters);
    k.order = kvl_cuda_temp<int32_t>(c, n);
    k.start = kvl_cuda_temp<int32_t>(c, n_clusters + 1);
    k.x_stride = a->x_stride;
    k.n = a->n;
    k.dim = a->dim;
    k.n_clusters = a->n_clusters;
    k.cosine = a->cosine;
    return k;
}

int kvl_cuda_kmeans(const struct kvl_kmeans_args *a)
{
    struct kvl_cuda_call c;
    struct kvl_sort<int32_t> sort = {
    };
    assert(a->n_clusters >= 1 && a->dim >= 1 && (a->n_iter == 0 || a->n_clusters <= a->n));
    kvl_cuda_begin(&c);
    struct kmeans k = kmeans_open(&c, a);
    sort.key = k.assign;
    sort.stride = 1;
    sort.n = a->n;
    sort.n_tables = 1;
    sort.n_keys = a->n_clusters;
    while (sort.n_bits < 31 && 1 << sort.n_bits < a->n_clusters) sort.n_bits++;
    sort.start = k.start;
    sort.id = k.order;
    if (c.rc == KVL_OK && a->n > 0)
        KVL_LAUNCH(kmeans_norms, (unsigned)kvl_ceil_div(a->n, KM_WARPS), KM_THREADS, 0, k);
    if (c.rc == KVL_OK) kmeans_launch_assign(&k, a->n_iter > 0);
    for (int32_t i = 0; i < a->n_iter && c.rc == KVL_OK; i++) {
        if (i > 0) kmeans_launch_assign(&k, false);
        kmeans_launch_means(&c, &k, &sort);
    }
    return kvl_cuda_end(&c);
}
