/* Four neighbouring elements a thread.  Limit: 12 bytes an element. */
#include "glu.cuh"
#include "rows.cuh"

/* Rounded on its own: a compiler makes one multiply-add of a product of floats and a sum, but not of this. */
static __device__ inline float add_product(float x, float factor)
{
    return (float)((double)x * (double)factor);
}

template <bool WIDE>
static __global__ void __launch_bounds__(KVL_LINEAR_THREADS)
    add_fours(float *y, const float *x, size_t n, const float *factor)
{
    float f = factor ? *factor : 1;
    for (size_t i = kvl_linear_first(); 4 * i < n; i += kvl_linear_step()) {
        float u[4], v[4];
        kvl_four<WIDE>(u, y, i, n);
        kvl_four<WIDE>(v, x, i, n);
        for (int j = 0; j < 4; j++) u[j] = (factor ? add_product(u[j], f) : u[j]) + v[j];
        kvl_put_four<WIDE>(y, i, n, u);
    }
}

/* The same row added to every row. */
static __global__ void __launch_bounds__(KVL_LINEAR_THREADS)
    add_row(float *y, const float *x, size_t n, size_t n_x, const float *factor)
{
    float f = factor ? *factor : 1;
    for (size_t i = kvl_linear_first(); i < n; i += kvl_linear_step())
        y[i] = (factor ? add_product(y[i], f) : y[i]) + x[i % n_x];
}

/* A sum of a list; those that follow it with the same y come after it, one by one. */
struct add_item {
    float *y;
    const float *x, *factor;
    size_t n;
    int32_t n_more; /* of the same y */
};

/* grid (blocks, groups): first[g] is where group g begins */
static __global__ void __launch_bounds__(KVL_LINEAR_THREADS)
    add_list(const struct add_item *item, const int32_t *first)
{
    const struct add_item *s = item + first[blockIdx.y];
    float *y = s->y;
    size_t n = s->n;
    int32_t n_more = s->n_more;
    for (size_t i = kvl_linear_first(); i < n; i += kvl_linear_step()) {
        float sum = y[i];
        for (int32_t j = 0; j <= n_more; j++)
            sum = (s[j].factor ? add_product(sum, *s[j].factor) : sum) + s[j].x[i];
        y[i] = sum;
    }
}

/* ---- launch ---------------------------------------------------------------------------------------- */

void kvl_cuda_add_launch(float *y, const float *x, size_t n, const float *factor)
{
    unsigned blocks = kvl_linear_blocks((n + 3) / 4);
    if (kvl_aligned16(y) && kvl_aligned16(x))
        KVL_LAUNCH(add_fours<true>, blocks, KVL_LINEAR_THREADS, 0, y, x, n, factor);
    else
        KVL_LAUNCH(add_fours<false>, blocks, KVL_LINEAR_THREADS, 0, y, x, n, factor);
}

enum { ADD_LIST = 64 }; /* sums of one launch, where there are several */

/* The sums from `a` on that one launch takes; the one after them. */
static const struct kvl_add_args *add_some(struct kvl_cuda_call *c, const struct kvl_add_args *a)
{
    struct add_item item[ADD_LIST];
    int32_t first[ADD_LIST], n = 0, n_groups = 0;
    size_t most = 0;
    const float *y = NULL;
    for (; a && n < ADD_LIST; a = a->next) {
        if (a->n == 0) continue;
        assert(a->n_x == 0);
        bool same = n > 0 && a->y == y;
        if (!same) first[n_groups++] = n;
        y = a->y;
        item[n].y = same ? item[n - 1].y : kvl_cuda_inout(c, a->y, a->n);
        item[n].x = kvl_cuda_in(c, a->x, a->n);
        item[n].factor = kvl_cuda_in(c, a->factor, 1);
        item[n].n = a->n;
        item[n].n_more = 0;
        item[first[n_groups - 1]].n_more = n - first[n_groups - 1];
        assert(!same || a->n == item[n - 1].n);
        most = KVL_MAX(most, a->n);
        n++;
    }
    const struct add_item *list = kvl_cuda_upload(c, item, (size_t)n);
    const int32_t *begin = kvl_cuda_upload(c, first, (size_t)n_groups);
    dim3 grid(kvl_linear_blocks(most), (unsigned)n_groups);
    if (c->rc == KVL_OK && n > 0) KVL_LAUNCH(add_list, grid, KVL_LINEAR_THREADS, 0, list, begin);
    return a;
}

/* ---- entry ----------------------------------------------------------------------------------------- */

static int add_all(const struct kvl_add_args *a)
{
    struct kvl_cuda_call c;
    int rc = KVL_OK;
    while (a && rc == KVL_OK) {
        kvl_cuda_begin(&c);
        a = add_some(&c, a);
        rc = kvl_cuda_end(&c);
    }
    return rc;
}

int kvl_cuda_add(const struct kvl_add_args *a)
{
    struct kvl_cuda_call c;
    if (a->next) return add_all(a);
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    size_t n_x = a->n_x ? a->n_x : a->n;
    const float *x = kvl_cuda_in(&c, a->x, KVL_MIN(n_x, a->n));
    const float *factor = kvl_cuda_in(&c, a->factor, 1);
    float *y = kvl_cuda_inout(&c, a->y, a->n);
    if (c.rc == KVL_OK && n_x < a->n)
        KVL_LAUNCH(add_row, kvl_linear_blocks(a->n), KVL_LINEAR_THREADS, 0, y, x, a->n, n_x,
                   factor);
    else if (c.rc == KVL_OK)
        kvl_cuda_add_launch(y, x, a->n, factor);
    return kvl_cuda_end(&c);
}
