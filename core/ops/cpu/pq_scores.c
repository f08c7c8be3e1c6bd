/* A table of one query head is a few KiB and stays in L1; what passes from memory is one byte for every
 * sub-vector of a token.  Pieces of tokens are spread over threads. */
#include "cpu.h"

enum { PQ_PIECE = 4096 };

static inline void pq_sums(float *y, const float *table, const uint8_t *code, size_t n_codes,
                           int32_t n, size_t n_sub)
{
    for (int32_t i = 0; i < n; i++, code += n_sub) {
        float sum = 0;
        for (size_t s = 0; s < n_sub; s++) sum += table[s * n_codes + code[s]];
        y[i] = sum;
    }
}

/* The usual numbers of sub-vectors have loops of their own. */
static void pq_piece(const struct kvl_pq_scores_args *a, int32_t h, int32_t i0)
{
    size_t n_sub = (size_t)a->n_sub, n_codes = (size_t)a->n_codes;
    const float *table = a->table + (size_t)h * n_sub * n_codes;
    const uint8_t *code = a->code + (size_t)(h / a->group) * a->head_stride + (size_t)i0 * n_sub;
    float *y = a->score + (size_t)h * a->stride + i0;
    int32_t n = KVL_MIN(PQ_PIECE, a->n - i0);
    switch (n_sub) {
    case 2: pq_sums(y, table, code, n_codes, n, 2); break;
    case 4: pq_sums(y, table, code, n_codes, n, 4); break;
    default: pq_sums(y, table, code, n_codes, n, n_sub); break;
    }
}

int kvl_cpu_pq_scores(const struct kvl_pq_scores_args *a)
{
    int32_t pieces = (a->n + PQ_PIECE - 1) / PQ_PIECE;
    int threads = kvl_team((double)a->n * a->n_heads * a->n_sub);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < pieces * a->n_heads; i++)
        pq_piece(a, i / pieces, i % pieces * PQ_PIECE);
    return KVL_OK;
}
