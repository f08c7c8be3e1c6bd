/* The rows are laid end to end without what is safe in them (which ranks below everything), and one radix select
 * finds the k - n_rows * safe largest of all: indices ascend, and so do rows, so that two searches per row count
 * its own.
 *
 * Limit: rows read once and written once for the copy, then as topk.  Not timed yet. */
#include "topk.cuh"

enum { SHARE_THREADS = 256 };

struct share {
    struct kvl_joint_share_args a;
    float *x;             /* [n_rows][n] */
    const int32_t *safe;  /* [n_rows][safe] */
    const int32_t *index; /* [n_index], into x, ascending */
    int32_t n_index;
};

static __global__ void share_copy(struct share s)
{
    int32_t i = (int32_t)(blockIdx.x * SHARE_THREADS + threadIdx.x);
    if (i < s.a.n) {
        float x = s.a.x[(size_t)blockIdx.y * s.a.x_stride + (size_t)i];
        s.x[(size_t)blockIdx.y * (size_t)s.a.n + (size_t)i] = x;
    }
}

static __global__ void share_protect(struct share s)
{
    int32_t i = (int32_t)(blockIdx.x * SHARE_THREADS + threadIdx.x);
    if (i < s.a.safe) {
        int32_t at = s.safe[(size_t)blockIdx.y * (size_t)s.a.safe + (size_t)i];
        s.x[(size_t)blockIdx.y * (size_t)s.a.n + (size_t)at] = kvl_key_none();
    }
}

/* Indices below x. */
static __device__ inline int32_t share_below(const struct share *s, int64_t x)
{
    int32_t from = 0, to = s->n_index;
    while (from < to) {
        int32_t mid = from + (to - from) / 2;
        if (s->index[mid] < x)
            from = mid + 1;
        else
            to = mid;
    }
    return from;
}

static __global__ void share_counts(struct share s)
{
    int32_t r = (int32_t)(blockIdx.x * SHARE_THREADS + threadIdx.x);
    if (r < s.a.n_rows)
        s.a.count[r] = s.a.safe + share_below(&s, ((int64_t)r + 1) * s.a.n) -
                       share_below(&s, (int64_t)r * s.a.n);
}

static void share_run(struct kvl_cuda_call *c, struct share *s)
{
    const struct kvl_joint_share_args *a = &s->a;
    int32_t n_safe = a->n_rows * a->safe, all = a->n_rows * a->n;
    dim3 block(SHARE_THREADS),
        rows((unsigned)kvl_ceil_div(a->n, SHARE_THREADS), (unsigned)a->n_rows);
    int32_t *safe = kvl_cuda_temp<int32_t>(c, (size_t)n_safe);
    int32_t *index = kvl_cuda_temp<int32_t>(c, (size_t)s->n_index);
    /* Looks at all rows for NaN, whatever is safe. */
    kvl_cuda_topk_rows(c, safe, a->x, a->x_stride, a->n_rows, a->n, a->safe, kvl_cuda_mark(c));
    if (c->rc != KVL_OK) return;
    s->safe = safe;
    s->index = index;
    if (a->n > 0) KVL_LAUNCH(share_copy, rows, block, 0, *s);
    dim3 few((unsigned)kvl_ceil_div(a->safe, SHARE_THREADS), (unsigned)a->n_rows);
    if (a->safe > 0) KVL_LAUNCH(share_protect, few, block, 0, *s);
    kvl_cuda_topk_rows(c, index, s->x, (size_t)all, 1, all, s->n_index, NULL);
    dim3 counts((unsigned)kvl_ceil_div(a->n_rows, SHARE_THREADS));
    if (c->rc == KVL_OK) KVL_LAUNCH(share_counts, counts, block, 0, *s);
}

int kvl_cuda_joint_share(const struct kvl_joint_share_args *a)
{
    struct kvl_cuda_call c;
    struct share s = { *a, NULL, NULL, NULL, a->k - a->n_rows * a->safe };
    size_t n = (size_t)a->n, rows = (size_t)a->n_rows;
    assert(s.n_index >= 0 && a->safe <= a->n && (size_t)a->k <= rows * n && rows * n <= INT32_MAX);
    assert(a->n_rows <= 65535);
    if (a->n_rows == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    s.a.x = n > 0 ? kvl_cuda_in(&c, a->x, (rows - 1) * a->x_stride + n) : NULL;
    s.a.count = kvl_cuda_out(&c, a->count, rows);
    s.x = kvl_cuda_temp<float>(&c, rows * n);
    if (c.rc == KVL_OK) share_run(&c, &s);
    return kvl_cuda_end(&c);
}
