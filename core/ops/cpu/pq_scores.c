/* A table of one query head is a few KiB and stays in L1; what passes from memory is one byte for every
 * sub-vector of a token.  Pieces of tokens are spread over threads. */
#include "cpu.h"

#include <string.h>

enum {
    PQ_PIECE = 4096,
    PQ_HEADS = 4,
    PQ_TABLE = 1024 /* entries of a head that go side by side */
};

static inline void pq_sums(float *y, const float *table, const uint8_t *code, size_t n_codes,
                           int32_t n, size_t n_sub)
{
    for (int32_t i = 0; i < n; i++, code += n_sub) {
        float sum = 0;
        for (size_t s = 0; s < n_sub; s++) sum += table[s * n_codes + code[s]];
        y[i] = sum;
    }
}

typedef float pq_vec __attribute__((vector_size(16)));

/* Four query heads at once: their entries of a code lie side by side, and one addition is of all of them.  The order of a
 * head's sum is the same. */
static inline pq_vec pq_sum4(const pq_vec *table, const uint8_t *code, size_t n_codes, size_t n_sub)
{
    pq_vec sum = { 0 };
    for (size_t s = 0; s < n_sub; s++) sum += table[s * n_codes + code[s]];
    return sum;
}

/* y[g] [i .. i + 3]: of the sums of four tokens, those of each head. */
static inline void pq_store4(float *const *y, int32_t n_heads, int32_t i, const pq_vec *s)
{
    pq_vec a = __builtin_shufflevector(s[0], s[1], 0, 4, 1, 5);
    pq_vec b = __builtin_shufflevector(s[2], s[3], 0, 4, 1, 5);
    pq_vec c = __builtin_shufflevector(s[0], s[1], 2, 6, 3, 7);
    pq_vec d = __builtin_shufflevector(s[2], s[3], 2, 6, 3, 7);
    const pq_vec head[PQ_HEADS] = { __builtin_shufflevector(a, b, 0, 1, 4, 5),
                                    __builtin_shufflevector(a, b, 2, 3, 6, 7),
                                    __builtin_shufflevector(c, d, 0, 1, 4, 5),
                                    __builtin_shufflevector(c, d, 2, 3, 6, 7) };
    for (int32_t g = 0; g < n_heads; g++) memcpy(y[g] + i, &head[g], sizeof head[g]);
}

static inline void pq_sums4(float *const *y, int32_t n_heads, const pq_vec *table,
                            const uint8_t *code, size_t n_codes, int32_t n, size_t n_sub)
{
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        pq_vec s[4];
        for (int j = 0; j < 4; j++, code += n_sub) s[j] = pq_sum4(table, code, n_codes, n_sub);
        pq_store4(y, n_heads, i, s);
    }
    for (; i < n; i++, code += n_sub) {
        const pq_vec s = pq_sum4(table, code, n_codes, n_sub);
        for (int32_t g = 0; g < n_heads; g++) y[g][i] = s[g];
    }
}

/* A piece of some heads of a group; the usual numbers of sub-vectors and heads have loops of their own. */
static void pq_piece(const struct kvl_pq_scores_args *a, int32_t h0, int32_t n_heads, int32_t i0)
{
    size_t n_sub = (size_t)a->n_sub, n_codes = (size_t)a->n_codes, entries = n_sub * n_codes;
    const float *table = a->table + (size_t)h0 * entries;
    const uint8_t *code = a->code + (size_t)(h0 / a->group) * a->head_stride + (size_t)i0 * n_sub;
    int32_t n = KVL_MIN(PQ_PIECE, a->n - i0);
    float *y[PQ_HEADS] = { NULL };
    pq_vec side[PQ_TABLE];
    for (int32_t g = 0; g < n_heads; g++) y[g] = a->score + (size_t)(h0 + g) * a->stride + i0;
    if (n_heads == 1 || entries > PQ_TABLE) {
        for (int32_t g = 0; g < n_heads; g++)
            pq_sums(y[g], table + (size_t)g * entries, code, n_codes, n, n_sub);
        return;
    }
    for (size_t e = 0; e < entries; e++)
        for (int32_t g = 0; g < PQ_HEADS; g++)
            side[e][g] = g < n_heads ? table[(size_t)g * entries + e] : 0;
    if (n_sub == 2 && n_heads == 3)
        pq_sums4(y, 3, side, code, n_codes, n, 2);
    else if (n_sub == 2 && n_heads == 4)
        pq_sums4(y, 4, side, code, n_codes, n, 2);
    else
        pq_sums4(y, n_heads, side, code, n_codes, n, n_sub);
}

int kvl_cpu_pq_scores(const struct kvl_pq_scores_args *a)
{
    int32_t pieces = (a->n + PQ_PIECE - 1) / PQ_PIECE;
    int32_t parts = (a->group + PQ_HEADS - 1) / PQ_HEADS, n_kv_heads = a->n_heads / a->group;
    int threads = kvl_team((double)a->n * a->n_heads * a->n_sub);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < pieces * parts * n_kv_heads; i++) {
        int32_t first = i / pieces % parts * PQ_HEADS, h0 = i / pieces / parts * a->group + first;
        pq_piece(a, h0, KVL_MIN(PQ_HEADS, a->group - first), i % pieces * PQ_PIECE);
    }
    return KVL_OK;
}
