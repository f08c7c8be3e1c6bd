/* Operators alone: products against OpenBLAS or streaming, selection against the bytes it reads.
 * Attention is measured where it runs (bench_token.c, bench_policy.c, bench_prefill.c): only the
 * engine has pages. */
#include "bench.h"

#include "kvl/rng.h"

#include <stdlib.h>

enum {
    OPS_ROWS = 512,   /* of a prefill chunk */
    OPS_PAGES = 8192, /* 128K tokens in pages of 16 */
    OPS_LISTS = 32,   /* kv heads of all layers */
    OPS_KEEP = 128,   /* pages kept */
    OPS_HEAD_DIM = 128,
    OPS_GROUP = 4,
    OPS_MATRIX_BYTES = 256 << 20, /* far above the caches */
};
static const double OPS_WINDOW_S = 0.05, OPS_QUICK_S = 0.005;

/* One side: runs once and does `work` (bytes or operations). */
struct side {
    int (*run)(void *data);
    void *data;
    double work;
};

static int side_rate(const struct side *s, double least_s, double *rate)
{
    int n = 0;
    uint64_t t0 = kvl_now_ns();
    double spent;
    do {
        KVL_TRY(s->run(s->data));
        n++;
        spent = 1e-9 * (double)(kvl_now_ns() - t0);
    } while (spent < least_s);
    *rate = 1e-9 * s->work * n / spent;
    return KVL_OK;
}

/* theirs NULL: streaming. */
static int compare(struct bench *b, const char *what, const char *unit, const struct side *ours,
                   const struct side *theirs, const char *against, int32_t threads)
{
    double a[BENCH_MAX_ROUNDS], t[BENCH_MAX_ROUNDS], warm;
    double least_s = b->config.quick ? OPS_QUICK_S : OPS_WINDOW_S;
    KVL_TRY(side_rate(ours, least_s, &warm));
    for (int32_t r = 0; r < b->config.rounds; r++) {
        t[r] = theirs ? 0 : 1e-9 * bench_stream(b, threads);
        if (theirs) KVL_TRY(side_rate(theirs, least_s, &t[r]));
        KVL_TRY(side_rate(ours, least_s, &a[r]));
        KVL_TRY(bench_stopped(b));
    }
    struct bench_line line = { .part = "ops",
                               .what = what,
                               .unit = unit,
                               .threads = threads,
                               .depth = -1,
                               .against = against,
                               .ratio = bench_ratio(a, t, b->config.rounds) };
    line.value = bench_spread(a, b->config.rounds);
    bench_extra(&line, "against_value", bench_spread(t, b->config.rounds).mid);
    return bench_emit(b, &line);
}

static void *ops_random(size_t n_floats, uint64_t seed)
{
    float *x = kvl_alloc(n_floats, sizeof *x);
    if (x) (void)kvl_ops_cpu.random_fill(&(struct kvl_random_fill_args){ x, n_floats, seed });
    return x;
}

/* ---- projections of a layer ------------------------------------------------------------------------------ */

enum { LAYER_MATRICES = 7 };

struct layer {
    struct kvl_weight w[LAYER_MATRICES]; /* F16 */
    float *x, *y, *wide[LAYER_MATRICES]; /* the same sizes in float, for OpenBLAS */
    const struct bench_blas *blas;
    bool bf16;
    double flops;
};

static int layer_ours(void *data)
{
    const struct layer *l = data;
    for (int i = 0; i < LAYER_MATRICES; i++)
        KVL_TRY(kvl_ops_cpu.gemm(&(struct kvl_gemm_args){
            .y = l->y, .x = l->x, .w = &l->w[i], .n = OPS_ROWS, .bf16 = l->bf16 }));
    return KVL_OK;
}

static int layer_theirs(void *data)
{
    const struct layer *l = data;
    for (int i = 0; i < LAYER_MATRICES; i++)
        bench_sgemm(l->blas, OPS_ROWS, l->w[i].n_rows, l->w[i].n_cols, l->x, l->wide[i], l->y);
    return KVL_OK;
}

/* Halves whose values lie between 2^-4 and 2^-3, of either sign. */
static void layer_halves(uint16_t *h, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) h[i] = (uint16_t)((kvl_seed_mix(seed, i) & 0x83ff) | 0x2c00);
}

static int layer_open(struct layer *l, const struct bench_shape *s)
{
    int32_t d = s->n_embd, q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    const int32_t size[LAYER_MATRICES][2] = { { q, d },      { kv, d },      { kv, d },
                                              { d, q },      { s->n_ff, d }, { s->n_ff, d },
                                              { d, s->n_ff } };
    size_t widest = (size_t)KVL_MAX(KVL_MAX(s->n_ff, q), d);
    l->x = ops_random(OPS_ROWS * widest, 1);
    l->y = kvl_alloc(OPS_ROWS * widest, sizeof *l->y);
    if (!l->x || !l->y) return KVL_ENOMEM;
    for (int i = 0; i < LAYER_MATRICES; i++) {
        size_t n = (size_t)size[i][0] * (size_t)size[i][1];
        uint16_t *h = kvl_alloc(n, sizeof *h);
        l->w[i] = (struct kvl_weight){ h, KVL_W_F16, size[i][0], size[i][1],
                                       (size_t)size[i][1] * sizeof *h };
        l->wide[i] = ops_random(n, 2);
        if (!h || !l->wide[i]) return KVL_ENOMEM;
        layer_halves(h, n, (uint64_t)i);
        l->flops += 2.0 * OPS_ROWS * (double)n;
    }
    return KVL_OK;
}

static void layer_close(struct layer *l)
{
    for (int i = 0; i < LAYER_MATRICES; i++) {
        kvl_free((void *)(uintptr_t)l->w[i].data);
        kvl_free(l->wide[i]);
    }
    kvl_free(l->x);
    kvl_free(l->y);
}

static int ops_projections(struct bench *b)
{
    static const struct bench_shape usual = { "small128", 8, 1024, 16, 4, 128, 2816 };
    struct layer l = { .blas = bench_blas() };
    int rc = layer_open(&l, b->config.shape ? b->config.shape : &usual);
    if (rc == KVL_OK && !l.blas) rc = bench_skip(b, "projections against OpenBLAS: there is none");
    for (int32_t t = 0; l.blas && rc == KVL_OK && t < b->config.threads.n; t++) {
        int32_t threads = b->config.threads.v[t];
        const struct side theirs = { layer_theirs, &l, l.flops },
                          ours = { layer_ours, &l, l.flops };
        kvl_ops_set_threads(threads);
        l.blas->set_threads(threads);
        for (int bf16 = 0; rc == KVL_OK && bf16 < 2; bf16++) {
            l.bf16 = bf16 == 1;
            rc = compare(b, bf16 ? "projections of 512, bf16" : "projections of 512, f32",
                         "GFLOP/s", &ours, &theirs, "OpenBLAS sgemm", threads);
        }
    }
    layer_close(&l);
    return rc;
}

/* ---- products of one row ------------------------------------------------------------------------------------ */

static int row_run(void *data)
{
    return kvl_ops_cpu.gemv(data);
}

/* As a line is called: with x as it is, in 8 bits.  In the order of the types. */
static const char *const row_names[][2] = {
#define ROW_NAMES(name)            { "one row, " #name " weights", "one row, " #name " weights, q8" },
#define KVL_WTYPE_PLAIN(name, ...) ROW_NAMES(name)
#define KVL_WTYPE_BLOCK(name, ...) ROW_NAMES(name)
#include "kvl/wtypes.def"
};

/* w times one row, as share of reading w; in 8 bits, too, where the type knows it. */
static int ops_row(struct bench *b, bool knows_q8, const char *const *names,
                   const struct kvl_weight *w, const float *x, float *y)
{
    struct kvl_gemv_args args = { .y = y, .x = x, .w = w, .n = 1 };
    const struct side ours = { row_run, &args, (double)w->row_bytes * w->n_rows };
    for (int q8 = 0; q8 <= knows_q8; q8++)
        for (int32_t t = 0; t < b->config.threads.n; t++) {
            args.q8 = q8 == 1;
            kvl_ops_set_threads(b->config.threads.v[t]);
            KVL_TRY(compare(b, names[q8], "GB/s", &ours, NULL, "stream", b->config.threads.v[t]));
        }
    return KVL_OK;
}

/* Every type of weights that a file may have. */
static int ops_rows(struct bench *b)
{
    enum { COLS = 1024 };
    size_t bytes = OPS_MATRIX_BYTES / (b->config.quick ? 16u : 1u);
    uint8_t *data = bench_huge(bytes);
    float *x = ops_random(COLS, 3),
          *y = kvl_alloc(bytes / kvl_wtype_row_bytes(KVL_W_TQ1_0, COLS), sizeof *y);
    int rc = data && x && y ? KVL_OK : kvl_fail(b->err, KVL_ENOMEM, "no memory for a matrix");
    int32_t n;
    const struct kvl_wtype_row *types = kvl_wtype_rows(&n);
    /* Any bytes whose scales are small numbers will do. */
    for (size_t i = 0; rc == KVL_OK && i < bytes; i++) data[i] = (uint8_t)(i * 7 % 61);
    for (int32_t i = 0; rc == KVL_OK && i < n; i++) {
        size_t row = kvl_wtype_row_bytes(types[i].type, COLS);
        struct kvl_weight w = { data, types[i].type, (int32_t)(bytes / row), COLS, row };
        rc = ops_row(b, types[i].x_int16, row_names[i], &w, x, y);
    }
    free(data);
    kvl_free(x);
    kvl_free(y);
    return rc;
}

/* ---- selection -------------------------------------------------------------------------------------------------- */

struct selection {
    struct kvl_page_bound_args bound;
    struct kvl_topk_args topk;
    int32_t n_layers;
};

/* Layer by layer, as a token does it. */
static int bound_run(void *data)
{
    struct selection *s = data;
    struct kvl_page_bound_args a = s->bound;
    for (int32_t l = 0; l < s->n_layers; l++) {
        KVL_TRY(kvl_ops_cpu.page_bound(&a));
        a.minmax = (const uint16_t *)a.minmax + (size_t)a.n_kv_heads * a.head_stride;
    }
    return KVL_OK;
}

static int topk_run(void *data)
{
    struct selection *s = data;
    return kvl_ops_cpu.topk(&s->topk);
}

static int ops_selection(struct bench *b, struct selection *s, int32_t threads)
{
    double n = (double)OPS_PAGES * OPS_LISTS;
    struct side bound = { bound_run, s, n * 2 * OPS_HEAD_DIM * sizeof(uint16_t) },
                topk = { topk_run, s, n * sizeof(float) };
    kvl_ops_set_threads(threads);
    KVL_TRY(compare(b, "page bounds of 128K", "GB/s", &bound, NULL, "stream", threads));
    return compare(b, "128 best of 8192 pages", "GB/s", &topk, NULL, "stream", threads);
}

static int ops_selections(struct bench *b)
{
    enum { KV = 4 };
    size_t stride = (size_t)OPS_PAGES * 2 * OPS_HEAD_DIM, n_scores = (size_t)OPS_PAGES * OPS_LISTS;
    uint16_t *minmax = bench_huge(stride * OPS_LISTS * sizeof *minmax);
    float *score = ops_random(n_scores, 4), *q = ops_random(KV * OPS_GROUP * OPS_HEAD_DIM, 5);
    int32_t *index = kvl_alloc(OPS_LISTS * OPS_KEEP, sizeof *index);
    struct selection s = { .n_layers = OPS_LISTS / KV };
    int rc = KVL_OK;
    if (!minmax || !score || !q || !index)
        rc = kvl_fail(b->err, KVL_ENOMEM, "no memory for %d pages", OPS_PAGES);
    else
        layer_halves(minmax, stride * OPS_LISTS, 6);
    s.bound = (struct kvl_page_bound_args){ .bound = score,
                                            .q = q,
                                            .minmax = minmax,
                                            .type = KVL_KV_F16,
                                            .head_stride = stride,
                                            .n_pages = OPS_PAGES,
                                            .n_heads = KV * OPS_GROUP,
                                            .n_kv_heads = KV,
                                            .head_dim = OPS_HEAD_DIM,
                                            .reduce = KVL_REDUCE_SUM };
    s.topk = (struct kvl_topk_args){ .index = index,
                                     .x = score,
                                     .x_stride = OPS_PAGES,
                                     .n_rows = OPS_LISTS,
                                     .n = OPS_PAGES,
                                     .k = OPS_KEEP };
    for (int32_t t = 0; rc == KVL_OK && t < b->config.threads.n; t++)
        rc = ops_selection(b, &s, b->config.threads.v[t]);
    free(minmax);
    kvl_free(score);
    kvl_free(q);
    kvl_free(index);
    return rc;
}

int bench_ops(struct bench *b)
{
    bench_say("operators");
    KVL_TRY(ops_projections(b));
    KVL_TRY(ops_rows(b));
    return ops_selections(b);
}
