/* A block per query head and 2048 tokens.  The head's table goes to shared memory first, where its random
 * reads belong; a table too large for that stays in L2.
 *
 * Limit: n_sub bytes of a token and kv head once (other heads of the group find them in L2) and 4 bytes
 * per query head written.  The sum is formed in the order of the definition, so it has the same bits.  Not
 * timed yet. */
#include "cuda.cuh"

enum { SCORES_THREADS = 256, SCORES_TOKENS = 2048, SCORES_TABLE_BYTES = 48 << 10 };

struct pq_scores {
    float *score;
    const float *table;
    const uint8_t *code;
    size_t stride, head_stride;
    int32_t n, group, n_sub, n_codes;
};

template <bool SHARED> static __global__ void pq_scores_kernel(struct pq_scores a)
{
    KVL_SHARED(float, copy);
    int32_t h = (int32_t)blockIdx.y, n_table = a.n_sub * a.n_codes;
    const float *table = a.table + (size_t)h * (size_t)n_table;
    if (SHARED) {
        for (int32_t i = (int32_t)threadIdx.x; i < n_table; i += SCORES_THREADS) copy[i] = table[i];
        __syncthreads();
        table = copy;
    }
    const uint8_t *code = a.code + (size_t)(h / a.group) * a.head_stride;
    int32_t first = (int32_t)blockIdx.x * SCORES_TOKENS;
    int32_t end = first + SCORES_TOKENS < a.n ? first + SCORES_TOKENS : a.n;
    for (int32_t i = first + (int32_t)threadIdx.x; i < end; i += SCORES_THREADS) {
        const uint8_t *row = code + (size_t)i * (size_t)a.n_sub;
        float sum = 0;
        for (int32_t s = 0; s < a.n_sub; s++) sum += table[s * a.n_codes + row[s]];
        a.score[(size_t)h * a.stride + (size_t)i] = sum;
    }
}

/* 2048 tokens pay for a table of a few KiB and leave 128K tokens of 32 heads 2048 blocks. */
static void pq_scores_launch(const struct pq_scores *s, int32_t n_heads)
{
    size_t bytes = (size_t)s->n_sub * (size_t)s->n_codes * sizeof(float);
    dim3 grid((unsigned)kvl_ceil_div(s->n, SCORES_TOKENS), (unsigned)n_heads);
    if (bytes <= SCORES_TABLE_BYTES)
        KVL_LAUNCH(pq_scores_kernel<true>, grid, SCORES_THREADS, bytes, *s);
    else
        KVL_LAUNCH(pq_scores_kernel<false>, grid, SCORES_THREADS, 0, *s);
}

int kvl_cuda_pq_scores(const struct kvl_pq_scores_args *a)
{
    struct kvl_cuda_call c;
    size_t n = (size_t)a->n, heads = (size_t)a->n_heads;
    if (a->n == 0 || a->n_heads == 0) return KVL_OK;
    assert(a->group >= 1 && a->n_heads % a->group == 0 && a->n_sub >= 1 && a->n_codes <= 256);
    size_t n_code = (heads / (size_t)a->group - 1) * a->head_stride + n * (size_t)a->n_sub;
    kvl_cuda_begin(&c);
    struct pq_scores s = {};
    s.table = kvl_cuda_in(&c, a->table, heads * (size_t)a->n_sub * (size_t)a->n_codes);
    s.code = kvl_cuda_in(&c, a->code, n_code);
    s.score = kvl_cuda_inout(&c, a->score, (heads - 1) * a->stride + n);
    s.stride = a->stride;
    s.head_stride = a->head_stride;
    s.n = a->n;
    s.group = a->group;
    s.n_sub = a->n_sub;
    s.n_codes = a->n_codes;
    if (c.rc == KVL_OK) pq_scores_launch(&s, a->n_heads);
    return kvl_cuda_end(&c);
}
