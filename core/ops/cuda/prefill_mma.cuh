/* prefill_mma.cuh - tiles of queries and keys on the tensor cores, in bf16 with sums in floats.
 *
 * Four warps; warp w has rows 16 M w .. of a tile of 64 M rows, all slots of a tile, and all D channels of the
 * output (head_dim padded to D with zeros).  Products of a tile stay in the registers where they arise: as
 * weights they are the left factor of the product with the values as they lie.  With M = 2 every fragment of keys
 * and values read from shared memory serves two products, which the bandwidth of shared memory asks for;
 * rows do not depend on M.
 *
 * Rows in shared memory have 16 bytes more than their channels: eight rows of a fragment then lie in
 * different banks. */
#ifndef KVL_PREFILL_MMA_CUH
#define KVL_PREFILL_MMA_CUH

#include "mma.cuh"
#include "prefill.cuh"

enum { PM_THREADS = 128, PM_ROWS = 64 };

/* Slots of a tile: fewer where channels are many, so that two blocks fit a multiprocessor. */
template <int D> constexpr int pm_slots = D <= 128 ? 64 : 32;

template <int D> struct pm_row {
    uint16_t x[D + 8]; /* bf16 */
};
template <int D, int M> struct pm_shared {
    struct pm_row<D> q[PM_ROWS * M], k[pm_slots<D>], v[pm_slots<D>];
    const uint8_t *row[2][pm_slots<D>]; /* of this tile and the next: pf_row, or NULL */
};

/* The part of a thread: rows g and g + 8 of each 16 (mma.cuh). */
template <int D, int M> struct pm_state {
    float max[M][2], sum[M][2]; /* logits to the base 2; the same in the 4 threads of a row */
    float acc[M][D / 8][4];
};

struct alignas(16) pm_eight {
    uint32_t pair[4];
};

/* Eight elements of a row from channel c on, rounded; zero behind the last. */
static __device__ inline struct pm_eight pm_load(const void *row, enum kvl_kv_type type, int32_t c,
                                                 int32_t dim, bool vectors)
{
    struct pf_four low = pf_load(row, type, c, dim, vectors);
    struct pf_four high = pf_load(row, type, c + 4, dim, vectors);
    return { { kvl_pack_bf16(low.x[0], low.x[1]), kvl_pack_bf16(low.x[2], low.x[3]),
               kvl_pack_bf16(high.x[0], high.x[1]), kvl_pack_bf16(high.x[2], high.x[3]) } };
}

/* Rows row0 .. row0 + n - 1 of the queries, those that there are. */
template <int D>
static __device__ inline void pm_put_queries(struct pm_row<D> *to, int32_t n,
                                             const struct pf_queries *q, int32_t row0)
{
    for (int32_t i = (int32_t)threadIdx.x; i < n * (D / 8); i += PM_THREADS) {
        int32_t r = i / (D / 8), c = i % (D / 8) * 8;
        struct pm_eight y = { { 0, 0, 0, 0 } };
        if (row0 + r >= 0 && row0 + r < q->n)
            y = pm_load(q->q + (size_t)(row0 + r) * q->step, KVL_KV_F32, c, q->head_dim,
                        q->vectors);
        *reinterpret_cast<struct pm_eight *>(&to[r].x[c]) = y;
    }
}

/* n rows of a part, begun: kvl_copy_wait and a barrier end it. */
template <int D>
static __device__ inline void pm_put_slots(struct pm_row<D> *to, int32_t n,
                                           const uint8_t *const *row, enum kvl_kv_part part,
                                           const struct kvl_cuda_lane *l)
{
    int32_t dim = l->head_dim;
    bool as_is = l->type == KVL_KV_BF16 && dim % 8 == 0, vectors = dim % 4 == 0;
    for (int32_t i = (int32_t)threadIdx.x; i < n * (D / 8); i += PM_THREADS) {
        int32_t s = i / (D / 8), c = i % (D / 8) * 8;
        const uint8_t *from = row[s] ? row[s] + l->off[part] : NULL;
        if (as_is) {
            kvl_copy_async(&to[s].x[c], from && c < dim ? from + 2 * c : NULL);
        } else {
            struct pm_eight y = { { 0, 0, 0, 0 } };
            if (from) y = pm_load(from, l->type, c, dim, vectors);
            *reinterpret_cast<struct pm_eight *>(&to[s].x[c]) = y;
        }
    }
}

/* s[m][n] += rows 16 m .. of `q`, the warp's first, times rows 8 n .. of `k`. */
template <int D, int M, int N>
static __device__ inline void pm_products(const struct pm_row<D> *q, const struct pm_row<D> *k,
                                          float s[M][N][4])
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP;
    q += lane % 16;
    k += lane / 16 * 8 + lane % 8;
    KVL_UNROLL
    for (int c = 0; c < D; c += 16) {
        uint32_t a[M][4], b[4];
        KVL_UNROLL
        for (int m = 0; m < M; m++) kvl_ldmatrix(a[m], &q[16 * m].x[c + lane / 16 * 8]);
        KVL_UNROLL
        for (int n = 0; n < N; n += 2) {
            kvl_ldmatrix(b, &k[8 * n].x[c + lane / 8 % 2 * 8]);
            KVL_UNROLL
            for (int m = 0; m < M; m++) {
                kvl_mma_bf16(s[m][n], a[m], b);
                kvl_mma_bf16(s[m][n + 1], a[m], b + 2);
            }
        }
    }
}

/* Complete products, where the model caps logits. */
template <int M, int N>
static __device__ inline void pm_cap(const struct pf_queries *q, float s[M][N][4])
{
    if (q->cap.in == 0) return;
    KVL_UNROLL
    for (int m = 0; m < M; m++) KVL_UNROLL
    for (int n = 0; n < N; n++) KVL_UNROLL
    for (int i = 0; i < 4; i++) s[m][n][i] = pf_capped(q->cap, s[m][n][i]);
}

template <int D, int M> static __device__ inline void pm_open(struct pm_state<D, M> *t)
{
    KVL_UNROLL
    for (int m = 0; m < M; m++) {
        t->max[m][0] = t->max[m][1] = PF_LOWEST;
        t->sum[m][0] = t->sum[m][1] = 0;
        KVL_UNROLL
        for (int n = 0; n < D / 8; n++)
            t->acc[m][n][0] = t->acc[m][n][1] = t->acc[m][n][2] = t->acc[m][n][3] = 0;
    }
}

/* Over the 4 threads of a row. */
static __device__ inline float pm_row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
static __device__ inline float pm_row_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Products (-inf where hidden) times factor, logits to the base 2, become weights; what older sums are worth
 * is taken off. */
template <int D, int M, int N>
static __device__ inline void pm_softmax(struct pm_state<D, M> *t, float factor, float s[M][N][4])
{
    KVL_UNROLL
    for (int i = 0; i < 2 * M; i++) {
        int m = i / 2, h = i % 2 * 2;
        float top = -INFINITY, sum = 0;
        KVL_UNROLL
        for (int n = 0; n < N; n++) top = fmaxf(top, fmaxf(s[m][n][h], s[m][n][h + 1]));
        top = fmaxf(t->max[m][i % 2], pm_row_max(top) * factor);
        float keep = kvl_exp2(t->max[m][i % 2] - top);
        KVL_UNROLL
        for (int n = 0; n < N; n++) {
            s[m][n][h] = kvl_exp2(fmaf(s[m][n][h], factor, -top));
            s[m][n][h + 1] = kvl_exp2(fmaf(s[m][n][h + 1], factor, -top));
            sum += s[m][n][h] + s[m][n][h + 1];
        }
        t->max[m][i % 2] = top;
        t->sum[m][i % 2] = fmaf(t->sum[m][i % 2], keep, pm_row_sum(sum));
        KVL_UNROLL
        for (int n = 0; n < D / 8; n++) {
            t->acc[m][n][h] *= keep;
            t->acc[m][n][h + 1] *= keep;
        }
    }
}

/* acc += weights, rounded, times values. */
template <int D, int M, int N>
static __device__ inline void pm_values(struct pm_state<D, M> *t, const struct pm_row<D> *v,
                                        const float s[M][N][4])
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP;
    v += lane % 16;
    KVL_UNROLL
    for (int n = 0; n < N; n += 2) {
        uint32_t a[M][4], b[4];
        KVL_UNROLL
        for (int m = 0; m < M; m++) {
            a[m][0] = kvl_pack_bf16(s[m][n][0], s[m][n][1]);
            a[m][1] = kvl_pack_bf16(s[m][n][2], s[m][n][3]);
            a[m][2] = kvl_pack_bf16(s[m][n + 1][0], s[m][n + 1][1]);
            a[m][3] = kvl_pack_bf16(s[m][n + 1][2], s[m][n + 1][3]);
        }
        KVL_UNROLL
        for (int d = 0; d < D / 8; d += 2) {
            kvl_ldmatrix_turned(b, &v[8 * n].x[8 * d + lane / 16 * 8]);
            KVL_UNROLL
            for (int m = 0; m < M; m++) {
                kvl_mma_bf16(t->acc[m][d], a[m], b);
                kvl_mma_bf16(t->acc[m][d + 1], a[m], b + 2);
            }
        }
    }
}

/* The tile's first row of the warp is row row0 of the chunk; out and lse are those of row 0 and the head. */
template <int D, int M>
static __device__ inline void pm_close(const struct pm_state<D, M> *t, const struct pf_queries *q,
                                       int32_t row0, float *out, float *lse, size_t lse_step)
{
    int32_t g = (int32_t)threadIdx.x % KVL_WARP / 4, c = (int32_t)threadIdx.x % 4 * 2;
    KVL_UNROLL
    for (int i = 0; i < 2 * M; i++) {
        int32_t row = row0 + 8 * i + g;
        float max = t->max[i / 2][i % 2], sum = t->sum[i / 2][i % 2];
        if (row < 0 || row >= q->n) continue;
        if (lse && c == 0) lse[(size_t)row * lse_step] = fmaf(max, PF_LN_2, logf(sum));
        if (!out) continue;
        float *to = out + (size_t)row * q->step;
        KVL_UNROLL
        for (int n = 0; n < D / 8; n++)
            for (int32_t j = 0; j < 2; j++)
                if (8 * n + c + j < q->head_dim)
                    to[8 * n + c + j] = t->acc[i / 2][n][i % 2 * 2 + j] / sum;
    }
}

#endif
