/* gemv.cuh - what the kernels of gemv share: the products of a launch, and what is made of a sum. */
#ifndef KVL_CUDA_GEMV_CUH
#define KVL_CUDA_GEMV_CUH

#include "glu.cuh"
#include "wtype.cuh"

/* Of one launch: the products of a chain that have one type. */
enum { GEMV_WARPS = 8, GEMV_THREADS = GEMV_WARPS * KVL_WARP, GEMV_MATRICES = 4, GEMV_MAX_ROWS = 8 };

struct gemv_matrix {
    const uint8_t *w, *up; /* up: of GATED */
    float *y;
    const float *bias, *up_bias; /* NULL: none */
    size_t row_bytes, up_bytes;
    int32_t n_rows, block0; /* its first block */
    enum kvl_act act;
    bool add;
};

struct gemv_in {
    gemv_matrix matrix[GEMV_MATRICES];
    const float *x;
    int32_t n_matrices, n, n_cols;
};

/* gemv_ints.cu: up to eight rows of x times matrices of a type that kvl_gemv_has_ints. */
void kvl_cuda_gemv_ints(gemv_in *in, enum kvl_wtype type, bool wide, bool gated);

/* Types whose integers are multiplied with those of x: what gemv_ints.cu takes. */
static inline constexpr bool kvl_gemv_has_ints(int type)
{
    return type == KVL_W_Q8_0 || type == KVL_W_Q4_0 || type == KVL_W_Q4_1 || type == KVL_W_Q5_0 ||
           type == KVL_W_Q5_1 || type == KVL_W_Q4_K || type == KVL_W_Q5_K || type == KVL_W_Q6_K;
}

/* Sets where each matrix begins, in blocks that make `rows` rows of y each; how many blocks that are. */
static inline int32_t gemv_blocks(gemv_in *in, int32_t rows)
{
    int32_t n = 0;
    for (int32_t i = 0; i < in->n_matrices; i++) {
        in->matrix[i].block0 = n;
        n += kvl_ceil_div(in->matrix[i].n_rows, rows);
    }
    return n;
}

static inline int64_t gemv_n_rows(const gemv_in *in)
{
    int64_t n = 0;
    for (int32_t i = 0; i < in->n_matrices; i++) n += in->matrix[i].n_rows;
    return n;
}

/* The matrix that a block is of. */
static __device__ inline int32_t gemv_matrix_at(const gemv_in *a, int32_t block)
{
    int32_t m = 0;
    while (m + 1 < a->n_matrices && block >= a->matrix[m + 1].block0) m++;
    return m;
}

/* Where rows row0 .. row0 + R - 1 of a matrix lie, those past the end at the last one; GATED: row0 of both. */
template <int R, bool GATED>
static __device__ inline void gemv_rows_at(const uint8_t **row, const gemv_matrix *m, int32_t row0)
{
#pragma unroll
    for (int r = 0; r < R; r++) {
        int32_t own = GATED ? row0 : row0 + r, at = own < m->n_rows ? own : m->n_rows - 1;
        row[r] =
            GATED && r == 1 ? m->up + (size_t)at * m->up_bytes : m->w + (size_t)at * m->row_bytes;
    }
}

static __device__ inline float gemv_act(enum kvl_act act, float g, float u)
{
    switch (act) {
    case KVL_ACT_SILU: return glu_one<KVL_ACT_SILU>(g, u);
    case KVL_ACT_GELU_TANH: return glu_one<KVL_ACT_GELU_TANH>(g, u);
    case KVL_ACT_GELU: return glu_one<KVL_ACT_GELU>(g, u);
    case KVL_ACT_RELU: return glu_one<KVL_ACT_RELU>(g, u);
    case KVL_ACT_SWISH_CLAMPED: return glu_one<KVL_ACT_SWISH_CLAMPED>(g, u);
    }
    return g;
}

static __device__ inline float gemv_biased(const float *bias, int32_t row, float sum)
{
    return bias ? sum + bias[row] : sum;
}

/* Element `row` of y's row i becomes what is made of a sum. */
static __device__ inline void gemv_put(const gemv_matrix *m, int32_t i, int32_t row, float sum)
{
    float *y = m->y + (size_t)i * (size_t)m->n_rows + (size_t)row;
    *y = m->add ? *y + sum : sum;
}

/* R x N sums of the lanes of a warp become elements of y, from row0 on; GATED: one row of y. */
template <int N, int R, bool GATED>
static __device__ inline void gemv_finish(const gemv_matrix *of, const float (*sum)[N],
                                          int32_t row0, int32_t n)
{
    constexpr int OUT = GATED ? 1 : R;
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP;
#pragma unroll
    for (int r = 0; r < OUT; r++)
#pragma unroll
        for (int i = 0; i < N; i++) {
            float total = kvl_warp_sum(sum[r][i]), other = GATED ? kvl_warp_sum(sum[R - 1][i]) : 0;
            if (lane > 0 || row0 + r >= of->n_rows || i >= n) continue;
            total = gemv_biased(of->bias, row0 + r, total);
            if (GATED) total = gemv_act(of->act, total, gemv_biased(of->up_bias, row0, other));
            gemv_put(of, i, row0 + r, total);
        }
}

#endif
