/* prefill_f32.cuh - causal attention of 64 rows of one head in floats: a tile of keys is taken in by an
 * online softmax (prefill.cuh has the products). */
#ifndef KVL_PREFILL_F32_CUH
#define KVL_PREFILL_F32_CUH

#include "prefill.cuh"

/* The part of a thread: 4 rows, the same 4 of every 64 columns.  N = 64 columns. */
template <int N> struct pf_state {
    float max[4], sum[4]; /* logits to the base 2; the same in the 16 threads of a row */
    float acc[N][4][4];   /* [][row][column] */
};

template <int N> static __device__ inline void pf_open(struct pf_state<N> *t)
{
    for (int32_t i = 0; i < 4; i++) {
        t->max[i] = PF_LOWEST;
        t->sum[i] = 0;
        for (int32_t n = 0; n < N; n++)
            for (int32_t j = 0; j < 4; j++) t->acc[n][i][j] = 0;
    }
}

/* Logits (to the base 2, -inf where hidden) become weights; what older sums are worth is taken off. */
template <int N> static __device__ inline void pf_softmax(struct pf_state<N> *t, float s[4][4])
{
    for (int32_t i = 0; i < 4; i++) {
        float top = fmaxf(fmaxf(s[i][0], s[i][1]), fmaxf(s[i][2], s[i][3]));
        top = fmaxf(t->max[i], pf_row_max(top));
        float keep = exp2f(t->max[i] - top), sum = 0;
        for (int32_t j = 0; j < 4; j++) {
            s[i][j] = exp2f(s[i][j] - top);
            sum += s[i][j];
        }
        t->max[i] = top;
        t->sum[i] = fmaf(t->sum[i], keep, pf_row_sum(sum));
        for (int32_t n = 0; n < N; n++)
            for (int32_t j = 0; j < 4; j++) t->acc[n][i][j] *= keep;
    }
}

/* acc += weights times values. */
template <int N>
static __device__ inline void pf_values(struct pf_state<N> *t, struct pf_shared *sh,
                                        const struct kvl_cuda_lane *l, const struct pf_queries *q,
                                        int32_t row0, const float s[4][4])
{
    int32_t r = (int32_t)threadIdx.x / 16 * 4, c = (int32_t)threadIdx.x % 16 * 4;
    bool is = pf_has_rows(q, row0);
    for (int32_t j = 0; j < 4; j++) {
        struct pf_four y;
        for (int32_t i = 0; i < 4; i++) y.x[i] = s[i][j];
        *reinterpret_cast<struct pf_four *>(&sh->p[c + j][r]) = y;
    }
    for (int32_t n = 0; n < N; n++) {
        __syncthreads(); /* columns before these have been read */
        pf_put_values(sh, l, n * PF_ROWS);
        __syncthreads();
        for (int32_t k = 0; is && k < PF_SLOTS; k++) {
            struct pf_four x = *reinterpret_cast<const struct pf_four *>(&sh->p[k][r]);
            struct pf_four y = *reinterpret_cast<const struct pf_four *>(&sh->v[k][c]);
            for (int32_t i = 0; i < 4; i++)
                for (int32_t j = 0; j < 4; j++)
                    t->acc[n][i][j] = fmaf(x.x[i], y.x[j], t->acc[n][i][j]);
        }
    }
}

/* Row 4 (t / 16) + i of the tile is row row0 + of the chunk; out and lse are those of row 0 and the head. */
template <int N>
static __device__ inline void pf_close(const struct pf_state<N> *t, const struct pf_queries *q,
                                       int32_t row0, float *out, float *lse, size_t lse_step)
{
    int32_t c = (int32_t)threadIdx.x % 16 * 4;
    for (int32_t i = 0; i < 4; i++) {
        int32_t row = row0 + (int32_t)threadIdx.x / 16 * 4 + i;
        if (row < 0 || row >= q->n) continue;
        if (lse && c == 0) lse[(size_t)row * lse_step] = fmaf(t->max[i], PF_LN_2, logf(t->sum[i]));
        for (int32_t n = 0; out && n < N; n++)
            for (int32_t j = 0; j < 4; j++)
                if (n * PF_ROWS + c + j < q->head_dim)
                    out[(size_t)row * q->step + (size_t)(n * PF_ROWS + c + j)] =
                        t->acc[n][i][j] / t->sum[i];
    }
}

#endif
