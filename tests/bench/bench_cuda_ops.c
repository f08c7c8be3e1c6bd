/* bench_cuda_ops - how far projections on a GPU are from what it can do, measured in the same run.
 *
 * usage: bench_cuda_ops [rounds] [text]
 *
 * The matrices of a Llama-3-8B.  Only lines whose name contains `text` are measured.  A line has the time of a
 * call, its rate, and which share that is of the yardstick's in the same round: medians, and the smallest and
 * the largest share.
 *   gemv   weights of most types, one row of x, and with the larger matrices four and eight; yardstick: a streaming
 *          read
 *   gemm   rows of x in bf16 by weights of every type, or in float; yardstick: cuBLAS alone, in bf16, all rows
 *          in one call
 *   small  what a decode step has between them; yardstick: a streaming read, for what it says of launches
 * Matrices take turns, so that none is in the cache.  Without a GPU: a line that says so, exit status 1.
 */
#include "cuda_bench.h"

enum { MAX_TURNS = 64 };
/* Of all matrices of a shape together, and of a streaming read: more than caches hold. */
static const size_t POOL_BYTES = (size_t)1 << 30;

struct bench {
    struct cuda_bench c;
    uint8_t *pool;
    float *x, *y;
    uint16_t *x16;
};

/* Random bits: what they mean as weights does not matter, but zeros would draw less power. */
static void fill(const struct bench *b, float *y, size_t n)
{
    need(b->c.dev->ops->random_fill(&(struct kvl_random_fill_args){ .y = y, .n = n, .seed = 1 }),
         &b->c, "random numbers");
}

/* ---- one call ------------------------------------------------------------------------------------- */

/* A product with matrices of one shape in turns. */
struct product {
    const struct bench *b;
    struct kvl_weight w[MAX_TURNS];
    int32_t n_turns, n; /* rows of x */
    bool bf16;
};

static int run_stream(const struct kvl_device *dev, const void *args, int turn)
{
    const struct product *p = args;
    (void)turn;
    return dev->peak_read(p->b->pool, POOL_BYTES);
}

static int run_gemv(const struct kvl_device *dev, const void *args, int turn)
{
    const struct product *p = args;
    struct kvl_gemv_args a = {
        .y = p->b->y, .x = p->b->x, .w = &p->w[turn % p->n_turns], .n = p->n
    };
    return dev->ops->gemv(&a);
}

static int run_gemm(const struct kvl_device *dev, const void *args, int turn)
{
    const struct product *p = args;
    struct kvl_gemm_args a = {
        .y = p->b->y, .x = p->b->x, .w = &p->w[turn % p->n_turns], .n = p->n, .bf16 = p->bf16
    };
    return dev->ops->gemm(&a);
}

static int run_cublas(const struct kvl_device *dev, const void *args, int turn)
{
    const struct product *p = args;
    const struct kvl_weight *w = &p->w[turn % p->n_turns];
    return dev->peak_gemm(p->b->y, p->b->x16, (const uint16_t *)(const void *)p->b->pool, p->n,
                          w->n_rows, w->n_cols);
}

static int run_rmsnorm(const struct kvl_device *dev, const void *args, int turn)
{
    const struct product *p = args;
    (void)turn;
    return dev->ops->rmsnorm(&(struct kvl_rmsnorm_args){
        .y = p->b->y, .x = p->b->x, .w = p->b->x, .n = p->n, .dim = 4096, .eps = 1e-5f });
}

static int run_glu(const struct kvl_device *dev, const void *args, int turn)
{
    const struct product *p = args;
    (void)turn;
    return dev->ops->glu(&(struct kvl_glu_args){
        .y = p->b->y, .gate = p->b->x, .up = p->b->x, .n = (size_t)p->n * 14336 });
}

typedef int (*run_fn)(const struct kvl_device *dev, const void *args, int turn);

/* `work` is what a call does, `peak_work` what the yardstick does: bytes or operations. */
static void measure(const char *name, const char *unit, const struct product *p, run_fn run,
                    double work, run_fn peak, double peak_work)
{
    if (!strstr(name, p->b->c.text)) return;
    struct cuda_share r = cuda_measure(&p->b->c, &(struct cuda_call){ run, p, work },
                                       &(struct cuda_call){ peak, p, peak_work });
    printf("%-32s %9.1f us %8.2f %s  share %.2f (%.2f .. %.2f)\n", name, r.time * 1e6,
           work / r.time * 1e-12, unit, r.share, r.share_lo, r.share_hi);
    fflush(stdout);
}

/* ---- what is measured ------------------------------------------------------------------------------- */

struct shape {
    const char *name;
    int32_t n_rows, n_cols;
};
static const struct shape shapes[] = {
    { "q", 4096, 4096 }, { "k", 1024, 4096 }, { "gate", 14336, 4096 }, { "down", 4096, 14336 }
};
static const enum kvl_wtype types[] = {
    KVL_W_F32,  KVL_W_F16,  KVL_W_BF16, KVL_W_Q8_0, KVL_W_Q4_0,
    KVL_W_Q4_1, KVL_W_Q5_0, KVL_W_Q4_K, KVL_W_Q5_K, KVL_W_Q6_K
};
enum {
    N_SHAPES = sizeof shapes / sizeof *shapes,
    N_TYPES = sizeof types / sizeof *types,
    N_GEMM = 5,   /* of them: the others become bf16 as these do */
    LARGE = 2,    /* the first of the larger shapes */
    MAX_N = 2048, /* rows of x */
    MAX_COLS = 14336
};

static struct product product_of(const struct bench *b, const struct shape *s, enum kvl_wtype type,
                                 int32_t n, bool bf16)
{
    struct product p = { .b = b, .n = n, .bf16 = bf16 };
    size_t row = kvl_wtype_row_bytes(type, s->n_cols), bytes = (size_t)s->n_rows * row, at = 0;
    for (; p.n_turns < MAX_TURNS && at + bytes <= POOL_BYTES; p.n_turns++, at += bytes)
        p.w[p.n_turns] = (struct kvl_weight){ b->pool + at, type, s->n_rows, s->n_cols, row };
    return p;
}

static void bench_gemv(const struct bench *b, const struct shape *s, enum kvl_wtype type, int32_t n)
{
    struct product p = product_of(b, s, type, n, false);
    double bytes = (double)s->n_rows * (double)p.w[0].row_bytes;
    char name[64];
    (void)snprintf(name, sizeof name, "gemv %s %s, %d", kvl_wtype_name(type), s->name, (int)n);
    measure(name, "TB/s", &p, run_gemv, bytes, run_stream, (double)POOL_BYTES);
}

static void bench_gemm(const struct bench *b, const struct shape *s, enum kvl_wtype type, int32_t n,
                       bool bf16)
{
    struct product p = product_of(b, s, type, n, bf16);
    double flop = 2.0 * n * s->n_rows * s->n_cols;
    char name[64];
    (void)snprintf(name, sizeof name, "gemm %s %s in %s, %d", kvl_wtype_name(type), s->name,
                   bf16 ? "bf16" : "float", (int)n);
    measure(name, "TFLOP/s", &p, run_gemm, flop, run_cublas, flop);
}

static void bench_small(const struct bench *b, int32_t n)
{
    struct product p = product_of(b, &shapes[0], KVL_W_F32, n, false);
    char name[64];
    (void)snprintf(name, sizeof name, "small rmsnorm, %d", (int)n);
    measure(name, "TB/s", &p, run_rmsnorm, 8.0 * n * 4096, run_stream, (double)POOL_BYTES);
    (void)snprintf(name, sizeof name, "small glu, %d", (int)n);
    measure(name, "TB/s", &p, run_glu, 8.0 * n * 14336, run_stream, (double)POOL_BYTES);
}

static void bench_all(const struct bench *b)
{
    static const int32_t few[] = { 1, 4, 8 }, rows[] = { 64, 512, 2048 };
    for (size_t t = 0; t < N_TYPES; t++)
        for (size_t s = 0; s < N_SHAPES; s++)
            for (size_t i = 0; i < (s < LARGE ? 1 : sizeof few / sizeof *few); i++)
                bench_gemv(b, &shapes[s], types[t], few[i]);
    for (size_t t = 0; t < N_GEMM; t++)
        for (size_t s = 0; s < N_SHAPES; s++)
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
                bench_gemm(b, &shapes[s], types[t], rows[i], true);
    for (size_t s = 0; s < N_SHAPES; s++) bench_gemm(b, &shapes[s], KVL_W_F32, 512, false);
    bench_small(b, 1);
    bench_small(b, 512);
}

int main(int argc, char **argv)
{
    struct bench b = { 0 };
    int status = cuda_bench_open(&b.c, "bench_cuda_ops", argc, argv, 5);
    if (status != 0) return status;
    b.pool = on_device(&b.c, POOL_BYTES);
    b.x = on_device(&b.c, (size_t)MAX_N * MAX_COLS * sizeof *b.x);
    b.y = on_device(&b.c, (size_t)MAX_N * MAX_COLS * sizeof *b.y);
    b.x16 = on_device(&b.c, (size_t)MAX_N * MAX_COLS * sizeof *b.x16);
    fill(&b, (float *)(void *)b.pool, POOL_BYTES / sizeof(float));
    fill(&b, b.x, (size_t)MAX_N * MAX_COLS);
    fill(&b, (float *)(void *)b.x16, (size_t)MAX_N * MAX_COLS / 2);
    bench_all(&b);
    b.c.dev->free(KVL_PLACE_DEVICE, b.x16);
    b.c.dev->free(KVL_PLACE_DEVICE, b.y);
    b.c.dev->free(KVL_PLACE_DEVICE, b.x);
    b.c.dev->free(KVL_PLACE_DEVICE, b.pool);
    return 0;
}
