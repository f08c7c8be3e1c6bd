/* A block per head; its threads are the columns, and every one of them forms the weights of all parts itself:
 * they are few.  The lists of parts of many merges go with one launch, so that nothing is copied.
 *
 * Limit: the parts are read once, but they are some KiB: the time is that of a launch. */
#include "cuda.cuh"

enum { MERGE_THREADS = 128, MERGE_JOBS = 40, MERGE_PARTS = 128 };

struct merge_job {
    float *out, *lse;
    int32_t first, n_parts, n_heads, head_dim; /* first: of its parts */
};

struct merge_params {
    struct merge_job job[MERGE_JOBS];
    const float *part[MERGE_PARTS], *part_lse[MERGE_PARTS];
};

static_assert(sizeof(struct merge_params) <= 4096, "too much for the parameters of a launch");

/* grid (heads, merges) */
static __global__ void merge_kernel(const __grid_constant__ struct merge_params a)
{
    const struct merge_job m = a.job[blockIdx.y];
    const float *const *part = a.part + m.first, *const *part_lse = a.part_lse + m.first;
    int32_t h = (int32_t)blockIdx.x;
    float max = -INFINITY, sum = 0;
    if (h >= m.n_heads) return; /* whole blocks */
    for (int32_t p = 0; p < m.n_parts; p++) max = fmaxf(max, part_lse[p][h]);
    float shift = max == -INFINITY ? 0 : max;
    for (int32_t p = 0; p < m.n_parts; p++) sum += expf(part_lse[p][h] - shift);
    for (int32_t c = (int32_t)threadIdx.x; c < m.head_dim; c += MERGE_THREADS) {
        size_t at = (size_t)h * (size_t)m.head_dim + (size_t)c;
        float x = 0;
        for (int32_t p = 0; p < m.n_parts; p++) {
            float lse = part_lse[p][h];
            if (lse != -INFINITY) x += expf(lse - shift) / sum * part[p][at];
        }
        m.out[at] = x;
    }
    if (m.lse && threadIdx.x == 0) m.lse[h] = sum == 0 ? -INFINITY : shift + logf(sum);
}

static struct merge_job merge_job_of(struct kvl_cuda_call *c, const struct kvl_attn_merge_args *a,
                                     struct merge_params *m, int32_t first)
{
    size_t heads = (size_t)a->n_heads, n = heads * (size_t)a->head_dim;
    for (int32_t p = 0; p < a->n_parts; p++) {
        m->part[first + p] = kvl_cuda_in(c, a->part[p], n);
        m->part_lse[first + p] = kvl_cuda_in(c, a->part_lse[p], heads);
    }
    return { kvl_cuda_out(c, a->out, n),
             kvl_cuda_out(c, a->lse, heads),
             first,
             a->n_parts,
             a->n_heads,
             a->head_dim };
}

/* As many from *a on as one launch takes; *a is then the next one. */
static int merge_some(const struct kvl_attn_merge_args **a)
{
    struct kvl_cuda_call c;
    struct merge_params m = {};
    int32_t n = 0, n_parts = 0, n_heads = 0;
    kvl_cuda_begin(&c);
    for (; *a && n < MERGE_JOBS && n_parts + (*a)->n_parts <= MERGE_PARTS; *a = (*a)->next) {
        if ((*a)->n_heads == 0) continue;
        m.job[n++] = merge_job_of(&c, *a, &m, n_parts);
        n_parts += (*a)->n_parts;
        n_heads = KVL_MAX(n_heads, (*a)->n_heads);
    }
    dim3 grid((unsigned)n_heads, (unsigned)n);
    if (c.rc == KVL_OK && n > 0) KVL_LAUNCH(merge_kernel, grid, MERGE_THREADS, 0, m);
    return kvl_cuda_end(&c);
}

int kvl_cuda_attn_merge(const struct kvl_attn_merge_args *a)
{
    while (a) {
        assert(a->n_parts <= MERGE_PARTS);
        KVL_TRY(merge_some(&a));
    }
    return KVL_OK;
}
