/* bench_cuda_ops - how far projections on a GPU are from what it can do, measured in the same run.
 *
 * usage: bench_cuda_ops [rounds] [text]
 *
 * The matrices of a Llama-3-8B.  Only lines whose name contains `text` are measured.  A line has the time of a
 * call, its rate, and which share that is of the yardstick's in the same round: medians, and the smallest and
 * the largest share.
 *   gemv   weights of every type, one row of x (or four); yardstick: a streaming read
 *   gemm   rows of x in bf16 by weights of every type, or in float; yardstick: cuBLAS alone, in bf16, all rows
 *          in one call
 *   small  what a decode step has between them; yardstick: a streaming read, for what it says of launches
 * Matrices take turns, so that none is in the cache.  Without a GPU: a line that says so, exit status 1.
 */
#include "kvl/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_ROUNDS = 99, MAX_TURNS = 64 };
/* Of all matrices of a shape together, and of a streaming read: more than caches hold. */
static const size_t POOL_BYTES = (size_t)1 << 30;

struct bench {
    const struct kvl_device *dev;
    int rounds;
    const char *text;
    uint8_t *pool;
    float *x, *y;
    uint16_t *x16;
};

static void need(int rc, const struct bench *b, const char *what)
{
    if (rc == KVL_OK) return;
    fprintf(stderr, "bench_cuda_ops: %s: %s %s\n", what, kvl_status_name(rc), b->dev->error());
    exit(1);
}

static void *on_device(const struct bench *b, size_t bytes)
{
    void *p = b->dev->alloc(KVL_PLACE_DEVICE, bytes, 1);
    if (p) return p;
    fprintf(stderr, "bench_cuda_ops: no memory for %zu bytes\n", bytes);
    exit(1);
}

/* Random bits: what they mean as weights does not matter, but zeros would draw less power. */
static void fill(const struct bench *b, float *y, size_t n)
{
    need(b->dev->ops->random_fill(&(struct kvl_random_fill_args){ .y = y, .n = n, .seed = 1 }), b,
         "random numbers");
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- one call ------------------------------------------------------------------------------------- */

/* A product with matrices of one shape in turns. */
struct product {
    const struct bench *b;
    struct kvl_weight w[MAX_TURNS];
    int32_t n_turns, n; /* rows of x */
    bool bf16;
};

static int run_stream(const void *args, int turn)
{
    const struct product *p = args;
    (void)turn;
    return p->b->dev->peak_read(p->b->pool, POOL_BYTES);
}

static int run_gemv(const void *args, int turn)
{
    const struct product *p = args;
    struct kvl_gemv_args a = {
        .y = p->b->y, .x = p->b->x, .w = &p->w[turn % p->n_turns], .n = p->n
    };
    return p->b->dev->ops->gemv(&a);
}

static int run_gemm(const void *args, int turn)
{
    const struct product *p = args;
    struct kvl_gemm_args a = {
        .y = p->b->y, .x = p->b->x, .w = &p->w[turn % p->n_turns], .n = p->n, .bf16 = p->bf16
    };
    return p->b->dev->ops->gemm(&a);
}

static int run_cublas(const void *args, int turn)
{
    const struct product *p = args;
    const struct kvl_weight *w = &p->w[turn % p->n_turns];
    return p->b->dev->peak_gemm(p->b->y, p->b->x16, (const uint16_t *)(const void *)p->b->pool,
                                p->n, w->n_rows, w->n_cols);
}

static int run_rmsnorm(const void *args, int turn)
{
    const struct product *p = args;
    (void)turn;
    return p->b->dev->ops->rmsnorm(&(struct kvl_rmsnorm_args){
        .y = p->b->y, .x = p->b->x, .w = p->b->x, .n = p->n, .dim = 4096, .eps = 1e-5f });
}

static int run_swiglu(const void *args, int turn)
{
    const struct product *p = args;
    (void)turn;
    return p->b->dev->ops->swiglu(&(struct kvl_swiglu_args){
        .y = p->b->y, .gate = p->b->x, .up = p->b->x, .n = (size_t)p->n * 14336 });
}

typedef int (*run_fn)(const void *args, int turn);

/* Seconds of a call: as many as 20 ms hold. */
static double seconds(const struct bench *b, run_fn run, const void *args)
{
    int n = 0, batch = 1;
    double start, spent = 0;
    need(b->dev->sync(), b, "sync");
    start = now();
    while (spent < 0.02) {
        for (int i = 0; i < batch; i++) need(run(args, n + i), b, "a call");
        need(b->dev->sync(), b, "sync");
        n += batch;
        batch *= 2;
        spent = now() - start;
    }
    return spent / n;
}

/* `work` is what a call does, `peak_work` what the yardstick does: bytes or operations. */
static void measure(const char *name, const char *unit, const struct product *p, run_fn run,
                    double work, run_fn peak, double peak_work)
{
    double time[MAX_ROUNDS], share[MAX_ROUNDS];
    size_t n = (size_t)p->b->rounds;
    if (!strstr(name, p->b->text)) return;
    (void)seconds(p->b, run, p); /* warm-up */
    (void)seconds(p->b, peak, p);
    for (size_t i = 0; i < n; i++) {
        double rate = peak_work / seconds(p->b, peak, p);
        time[i] = seconds(p->b, run, p);
        share[i] = work / time[i] / rate;
    }
    qsort(time, n, sizeof *time, compare);
    qsort(share, n, sizeof *share, compare);
    printf("%-32s %9.1f us %8.2f %s  share %.2f (%.2f .. %.2f)\n", name, time[n / 2] * 1e6,
           work / time[n / 2] * 1e-12, unit, share[n / 2], share[0], share[n - 1]);
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
static const enum kvl_wtype types[] = { KVL_W_F32, KVL_W_F16, KVL_W_BF16, KVL_W_Q8_0, KVL_W_Q4_0 };
enum {
    N_SHAPES = sizeof shapes / sizeof *shapes,
    N_TYPES = sizeof types / sizeof *types,
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
    (void)snprintf(name, sizeof name, "small swiglu, %d", (int)n);
    measure(name, "TB/s", &p, run_swiglu, 8.0 * n * 14336, run_stream, (double)POOL_BYTES);
}

static void bench_all(const struct bench *b)
{
    static const int32_t rows[] = { 64, 512, 2048 };
    for (size_t t = 0; t < N_TYPES; t++)
        for (size_t s = 0; s < N_SHAPES; s++)
            for (int32_t n = 1; n <= 4; n += 3) bench_gemv(b, &shapes[s], types[t], n);
    for (size_t t = 0; t < N_TYPES; t++)
        for (size_t s = 0; s < N_SHAPES; s++)
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
                bench_gemm(b, &shapes[s], types[t], rows[i], true);
    for (size_t s = 0; s < N_SHAPES; s++) bench_gemm(b, &shapes[s], KVL_W_F32, 512, false);
    bench_small(b, 1);
    bench_small(b, 512);
}

int main(int argc, char **argv)
{
    struct kvl_err err = { 0 };
    struct bench b = { .rounds = argc > 1 ? atoi(argv[1]) : 5, .text = argc > 2 ? argv[2] : "" };
    struct kvl_device_info info;
    if (b.rounds < 1 || b.rounds > MAX_ROUNDS) {
        fprintf(stderr, "usage: bench_cuda_ops [rounds: 1 to %d] [text]\n", MAX_ROUNDS);
        return 1;
    }
    if (kvl_device_open("cuda", &b.dev, &err) != KVL_OK) {
        fprintf(stderr, "bench_cuda_ops: %s\n", err.msg);
        return 1;
    }
    b.dev->info(&info);
    printf("%s, %s\n", info.name, info.driver);
    b.pool = on_device(&b, POOL_BYTES);
    b.x = on_device(&b, (size_t)MAX_N * MAX_COLS * sizeof *b.x);
    b.y = on_device(&b, (size_t)MAX_N * MAX_COLS * sizeof *b.y);
    b.x16 = on_device(&b, (size_t)MAX_N * MAX_COLS * sizeof *b.x16);
    fill(&b, (float *)(void *)b.pool, POOL_BYTES / sizeof(float));
    fill(&b, b.x, (size_t)MAX_N * MAX_COLS);
    fill(&b, (float *)(void *)b.x16, (size_t)MAX_N * MAX_COLS / 2);
    bench_all(&b);
    b.dev->free(KVL_PLACE_DEVICE, b.x16);
    b.dev->free(KVL_PLACE_DEVICE, b.y);
    b.dev->free(KVL_PLACE_DEVICE, b.x);
    b.dev->free(KVL_PLACE_DEVICE, b.pool);
    return 0;
}
