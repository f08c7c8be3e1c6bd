/* Rotations: a thread takes one pair of a token through up to eight heads, so that an angle, formed in double
 * and with its sine and cosine in double, serves several.  Limit: reading and writing x once; in decode the
 * launch. */
#include "rows.cuh"

enum { ROPE_HEADS = 8, ROPE_MAX_THREADS = 128, ROPE_GRID_ROWS = 65535 };

/* Heads of a token that lie together. */
struct rope_part {
    float *y;
    const float *x;
    int32_t n_heads;
};

/* Queries and keys, or one of them. */
struct rope_in {
    struct rope_part part[2];
    const int32_t *pos;
    const double *inv_freq;
    int32_t rows0; /* of the grid that are of part 0 */
    int32_t head_dim, n_rot;
    float mag;
};

template <int STYLE>
static __global__ void __launch_bounds__(ROPE_MAX_THREADS) rope_pairs(const rope_in a)
{
    bool second_part = (int32_t)blockIdx.y >= a.rows0;
    struct rope_part
        p; /* field by field: a struct that is chosen is copied to memory of every thread */
    p.y = second_part ? a.part[1].y : a.part[0].y;
    p.x = second_part ? a.part[1].x : a.part[0].x;
    p.n_heads = second_part ? a.part[1].n_heads : a.part[0].n_heads;
    int32_t half = a.n_rot / 2;
    int32_t head0 = ((int32_t)blockIdx.y - (second_part ? a.rows0 : 0)) * ROPE_HEADS;
    int32_t end = head0 + ROPE_HEADS < p.n_heads ? head0 + ROPE_HEADS : p.n_heads;
    for (int32_t i = (int32_t)threadIdx.x; i < half; i += (int32_t)blockDim.x) {
        double sine, cosine;
        sincos((double)a.pos[blockIdx.x] * a.inv_freq[i], &sine, &cosine);
        float s = (float)(sine * a.mag), c = (float)(cosine * a.mag);
        int32_t first = STYLE == KVL_ROPE_NORM ? 2 * i : i;
        int32_t second = STYLE == KVL_ROPE_NORM ? 2 * i + 1 : i + half;
        for (int32_t h = head0; h < end; h++) {
            size_t at = ((size_t)blockIdx.x * (size_t)p.n_heads + (size_t)h) * (size_t)a.head_dim;
            float u = p.x[at + (size_t)first], v = p.x[at + (size_t)second];
            p.y[at + (size_t)first] = fmaf(u, c, -(v * s));
            p.y[at + (size_t)second] = fmaf(u, s, v * c);
        }
    }
    if (p.y == p.x) return;
    for (int32_t i = a.n_rot + (int32_t)threadIdx.x; i < a.head_dim; i += (int32_t)blockDim.x)
        for (int32_t h = head0; h < end; h++) {
            size_t at = ((size_t)blockIdx.x * (size_t)p.n_heads + (size_t)h) * (size_t)a.head_dim;
            p.y[at + (size_t)i] = p.x[at + (size_t)i];
        }
}

/* ---- launch ---------------------------------------------------------------------------------------- */

static void rope_launch(const rope_in *in, enum kvl_rope_style style, int32_t n)
{
    int32_t threads = kvl_ceil_div(in->head_dim / 2, KVL_WARP) * KVL_WARP;
    int32_t rows = in->rows0 + kvl_ceil_div(in->part[1].n_heads, ROPE_HEADS);
    dim3 grid((unsigned)n, (unsigned)rows);
    threads = KVL_MIN(threads, (int32_t)ROPE_MAX_THREADS);
    assert(grid.y <= ROPE_GRID_ROWS);
    if (style == KVL_ROPE_NORM)
        KVL_LAUNCH(rope_pairs<KVL_ROPE_NORM>, grid, (unsigned)threads, 0, *in);
    else
        KVL_LAUNCH(rope_pairs<KVL_ROPE_NEOX>, grid, (unsigned)threads, 0, *in);
}

/* ---- entry ----------------------------------------------------------------------------------------- */

/* Heads of `a` and of the next one; the one after them. */
static const struct kvl_rope_args *rope_some(struct kvl_cuda_call *c, const struct kvl_rope_args *a)
{
    const struct kvl_rope_args *first = a;
    rope_in in = {};
    in.pos = kvl_cuda_in(c, a->pos, (size_t)a->n);
    in.inv_freq = kvl_cuda_in(c, a->rope->inv_freq, (size_t)a->rope->n_rot / 2);
    in.head_dim = a->head_dim;
    in.n_rot = a->rope->n_rot;
    in.mag = a->rope->mag;
    for (int i = 0; i < 2 && a; i++, a = a->next) {
        size_t n = (size_t)a->n * (size_t)a->n_heads * (size_t)a->head_dim;
        assert(a->pos == first->pos && a->rope == first->rope && a->n == first->n);
        in.part[i].x = kvl_cuda_in(c, a->x, n);
        in.part[i].y = kvl_cuda_out(c, a->y, n);
        in.part[i].n_heads = a->n_heads;
    }
    in.rows0 = kvl_ceil_div(in.part[0].n_heads, ROPE_HEADS);
    if (c->rc == KVL_OK) rope_launch(&in, first->rope->style, first->n);
    return a;
}

int kvl_cuda_rope(const struct kvl_rope_args *a)
{
    struct kvl_cuda_call c;
    assert(a->rope->n_rot % 2 == 0 && a->rope->n_rot <= a->head_dim);
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    while (a && c.rc == KVL_OK) a = rope_some(&c, a);
    return kvl_cuda_end(&c);
}
