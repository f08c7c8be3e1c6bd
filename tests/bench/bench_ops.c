/* bench_ops - how far the CPU operators are from what the machine can do, measured in the same run.
 *
 * usage: bench_ops [threads] [rounds] [text]
 *
 * Only lines whose name contains `text` are measured.  Every line is a ratio: bandwidth against a streaming read, arithmetic against cblas_sgemm of the
 * same shape, column sums against the attention that they follow (1 / ratio is what an observer adds
 * to it).  The two sides alternate; the median of the per-round ratios is printed with the
 * smallest and the largest, because absolute figures of a shared machine mean little.  With one
 * thread, time is processor time, so that other people's work counts less.
 */
#include "kvl/ops.h"
#include "kvl/peak.h"
#include "kvl/rng.h"
#include "lane.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MAX_ROUNDS = 99, STREAM_BYTES = 256 << 20 };

static int bench_threads = 1, bench_rounds = 5;
static const char *bench_text = "";

static double bench_now(void)
{
    struct timespec t;
    clock_gettime(bench_threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Large buffers on huge pages, so that the yardstick and we are not measured by page walks. */
static void *bench_alloc(size_t bytes)
{
    const size_t huge = (size_t)2 << 20;
    size_t rounded = (bytes + huge - 1) / huge * huge;
    void *p = bytes < huge ? kvl_alloc(bytes, 1) : aligned_alloc(huge, rounded);
    if (!p) {
        fprintf(stderr, "bench_ops: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    if (bytes >= huge) {
        (void)madvise(p, rounded, MADV_HUGEPAGE);
        memset(p, 0, rounded);
    }
    return p;
}

static int bench_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One side of a comparison: runs once and does `work` (bytes or operations). */
struct side {
    void (*run)(void *data);
    void *data;
    double work;
};

static double side_rate(const struct side *s)
{
    int n = 0;
    double start = bench_now(), spent;
    do {
        s->run(s->data);
        n++;
        spent = bench_now() - start;
    } while (spent < 0.05);
    return s->work * n / spent;
}

static void compare(const char *what, const char *unit, struct side ours, struct side theirs)
{
    double ratio[MAX_ROUNDS], a[MAX_ROUNDS], b[MAX_ROUNDS];
    if (!strstr(what, bench_text)) return;
    ours.run(ours.data); /* warm-up */
    theirs.run(theirs.data);
    for (int i = 0; i < bench_rounds; i++) {
        a[i] = side_rate(&ours) * 1e-9;
        b[i] = side_rate(&theirs) * 1e-9;
        ratio[i] = a[i] / b[i];
    }
    size_t n = (size_t)bench_rounds;
    qsort(ratio, n, sizeof *ratio, bench_compare);
    qsort(a, n, sizeof *a, bench_compare);
    qsort(b, n, sizeof *b, bench_compare);
    printf("%-44s %7.2f / %7.2f %s  ratio %.2f (%.2f .. %.2f)\n", what, a[n / 2], b[n / 2], unit,
           ratio[n / 2], ratio[0], ratio[n - 1]);
    fflush(stdout);
}

/* ---- the yardsticks --------------------------------------------------------------------------- */
static float *stream_data;
static volatile float stream_sink;

/* A plain loop of sums here was a sixth slower or faster with where the linker put it. */
static void stream_run(void *data)
{
    (void)data;
    stream_sink = kvl_peak_read(stream_data, STREAM_BYTES / sizeof *stream_data);
}

static struct side stream_side(void)
{
    return (struct side){ .run = stream_run, .work = STREAM_BYTES };
}

struct product {
    struct kvl_gemm_args gemm;
    struct kvl_gemv_args gemv;
    struct kvl_weight w;
    const float *wide; /* the same matrix in float */
    float *y;
};

static void sgemm_run(void *data)
{
    const struct product *p = data;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, p->gemm.n, p->w.n_rows, p->w.n_cols, 1,
                p->gemm.x, p->w.n_cols, p->wide, p->w.n_cols, 0, p->y, p->w.n_rows);
}

/* ---- products --------------------------------------------------------------------------------- */
static void gemm_run(void *data)
{
    struct product *p = data;
    (void)kvl_ops_cpu.gemm(&p->gemm);
}

static void gemv_run(void *data)
{
    struct product *p = data;
    (void)kvl_ops_cpu.gemv(&p->gemv);
}

static void *random_bytes(size_t n, enum kvl_wtype type)
{
    uint8_t *p = bench_alloc(n);
    struct kvl_rng r;
    kvl_rng_seed(&r, 7);
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(kvl_rng_u32(&r) & 0x3f);
    if (type == KVL_W_F32)
        for (size_t i = 0; i < n / 4; i++) ((float *)(void *)p)[i] = (float)(i % 17) * 0.01f;
    return p;
}

static void bench_gemm(int32_t n, int32_t n_rows, int32_t n_cols, enum kvl_wtype type, bool bf16)
{
    char what[64];
    size_t row = kvl_wtype_row_bytes(type, n_cols), n_y = (size_t)n * (size_t)n_rows;
    void *w = random_bytes(row * (size_t)n_rows, type);
    float *wide = random_bytes((size_t)n_rows * (size_t)n_cols * 4, KVL_W_F32);
    float *x = random_bytes((size_t)n * (size_t)n_cols * 4, KVL_W_F32);
    float *y = bench_alloc(2 * n_y * sizeof *y);
    struct product p = { .w = { w, type, n_rows, n_cols, row }, .wide = wide, .y = y + n_y };
    p.gemm = (struct kvl_gemm_args){ .y = y, .x = x, .w = &p.w, .n = n, .bf16 = bf16 };
    double ops = 2.0 * n * n_rows * n_cols;
    snprintf(what, sizeof what, "gemm%s %s %dx%dx%d", bf16 ? " in bf16" : "", kvl_wtype_name(type),
             n, n_rows, n_cols);
    compare(what, "GFLOP/s", (struct side){ gemm_run, &p, ops },
            (struct side){ sgemm_run, &p, ops });
    kvl_free(w);
    kvl_free(wide);
    kvl_free(x);
    kvl_free(y);
}

static void bench_gemv(int32_t n, int32_t n_rows, int32_t n_cols, enum kvl_wtype type)
{
    char what[64];
    size_t row = kvl_wtype_row_bytes(type, n_cols);
    void *w = random_bytes(row * (size_t)n_rows, type);
    float *x = random_bytes((size_t)n * (size_t)n_cols * 4, KVL_W_F32);
    float *y = bench_alloc((size_t)n * (size_t)n_rows * sizeof *y);
    struct product p = { .w = { w, type, n_rows, n_cols, row } };
    p.gemv = (struct kvl_gemv_args){ .y = y, .x = x, .w = &p.w, .n = n };
    snprintf(what, sizeof what, "gemv %s n=%d %dx%d (%zu MiB)", kvl_wtype_name(type), n, n_rows,
             n_cols, row * (size_t)n_rows >> 20);
    compare(what, "GB/s", (struct side){ gemv_run, &p, (double)row * n_rows }, stream_side());
    kvl_free(w);
    kvl_free(x);
    kvl_free(y);
}

/* ---- attention -------------------------------------------------------------------------------- */
enum { MAX_KV = 64 };

struct model {
    struct kvl_layout layout;
    struct kvl_lane lanes[MAX_KV];
    const uint8_t **table;
    uint8_t *memory;
    struct kvl_run *runs;
    int32_t n_kv, group;
    float *q, *out, *lse;
    struct kvl_attn_job jobs[MAX_KV];
    struct kvl_attn_decode_args decode;
    struct kvl_attn_prefill_args prefill;
    struct kvl_attn_columns_args columns;
};

/* Blocks in the order of the lanes, as a prefill leaves them, or shuffled. */
static void model_lanes(struct model *m, int32_t n_slots, bool shuffled)
{
    int32_t per_lane = n_slots / m->layout.block_tok, n = per_lane * m->n_kv;
    int32_t *order = bench_alloc((size_t)n * sizeof *order);
    struct kvl_rng r;
    kvl_rng_seed(&r, 3);
    for (int32_t i = 0; i < n; i++) order[i] = i;
    if (shuffled) kvl_rng_shuffle(&r, order, n);
    m->memory = random_bytes((size_t)n * m->layout.bytes, KVL_W_F16);
    m->table = bench_alloc((size_t)n * sizeof *m->table);
    for (int32_t i = 0; i < n; i++) m->table[i] = m->memory + (size_t)order[i] * m->layout.bytes;
    for (int32_t h = 0; h < m->n_kv; h++)
        m->lanes[h] = (struct kvl_lane){ .layout = &m->layout,
                                         .blocks = m->table + h * per_lane,
                                         .n_slots = n_slots };
    kvl_free(order);
}

static void model_open(struct model *m, int32_t n_kv, int32_t group, int32_t head_dim,
                       int32_t n_slots, int32_t n_queries, bool shuffled)
{
    size_t part = 16 * (size_t)head_dim * 2, n_q = (size_t)(n_queries * n_kv * group);
    memset(m, 0, sizeof *m);
    m->n_kv = n_kv;
    m->group = group;
    m->layout = (struct kvl_layout){ .head_dim = head_dim,
                                     .block_tok = 16,
                                     .block_shift = 4,
                                     .type = { KVL_KV_F16, KVL_KV_F16, KVL_KV_F16 },
                                     .row_bytes = { 2 * (size_t)head_dim, 2 * (size_t)head_dim },
                                     .part_off = { 0, part, SIZE_MAX },
                                     .pos_off = 2 * part,
                                     .bytes = 2 * part + 64 };
    model_lanes(m, n_slots, shuffled);
    m->q = random_bytes(n_q * (size_t)head_dim * 4, KVL_W_F32);
    m->out = bench_alloc(n_q * (size_t)head_dim * sizeof *m->out);
    m->lse = bench_alloc(n_q * sizeof *m->lse);
    for (int32_t h = 0; h < n_kv; h++) {
        size_t at = (size_t)(h * group);
        m->jobs[h] = (struct kvl_attn_job){ .out = m->out + at * (size_t)head_dim,
                                            .lse = m->lse + at,
                                            .q = m->q + at * (size_t)head_dim,
                                            .lane = &m->lanes[h],
                                            .n_slots = n_slots,
                                            .n_heads = group };
    }
    m->decode = (struct kvl_attn_decode_args){
        .jobs = m->jobs, .n_jobs = n_kv, .head_dim = head_dim, .scale = 0.05f
    };
    m->prefill = (struct kvl_attn_prefill_args){ .out = m->out,
                                                 .lse = m->lse,
                                                 .q = m->q,
                                                 .lanes = m->lanes,
                                                 .n = n_queries,
                                                 .n_heads = n_kv * group,
                                                 .n_kv_heads = n_kv,
                                                 .head_dim = head_dim,
                                                 .scale = 0.05f };
}

static void model_close(struct model *m)
{
    kvl_free(m->memory);
    kvl_free(m->table);
    kvl_free(m->q);
    kvl_free(m->out);
    kvl_free(m->lse);
    kvl_free(m->runs);
}

/* What of the slots is read. */
enum list {
    LIST_ALL,
    LIST_PAGES,  /* every 16th page of 16 slots */
    LIST_TOKENS, /* one slot of every page of 16 */
};

/* The same list for all lanes. */
static void model_list(struct model *m, enum list list)
{
    int32_t n_slots = m->lanes[0].n_slots, n_tok = list == LIST_PAGES ? 16 : 1;
    int32_t n = n_slots / 16 / n_tok;
    if (list == LIST_ALL) return;
    m->runs = bench_alloc((size_t)n * sizeof *m->runs);
    for (int32_t i = 0; i < n; i++)
        m->runs[i] =
            (struct kvl_run){ .slot = i * 16 * n_tok + (n_tok == 1 ? i * 7 % 16 : 0), .n = n_tok };
    for (int32_t h = 0; h < m->n_kv; h++) {
        m->jobs[h].runs = m->runs;
        m->jobs[h].n_runs = n;
        m->jobs[h].n_slots = n * n_tok;
    }
}

static void decode_run(void *data)
{
    struct model *m = data;
    (void)kvl_ops_cpu.attn_decode(&m->decode);
}

static void prefill_run(void *data)
{
    struct model *m = data;
    (void)kvl_ops_cpu.attn_prefill(&m->prefill);
}

/* So many heads that the data comes from memory, not from a cache. */
struct decode_line {
    const char *name;
    int32_t n_kv, group, head_dim, n_slots;
    enum kvl_kv_type type;
    enum list list;
    bool shuffled;
};

static void bench_decode(const struct decode_line *d)
{
    static const char *const lists[] = { "", " 1/16 of the pages", " 1/16 of the tokens" };
    char what[80];
    struct model m;
    model_open(&m, d->n_kv, d->group, d->head_dim, d->n_slots, 1, d->shuffled);
    m.layout.type[0] = m.layout.type[1] = d->type; /* any 16 bits are numbers */
    model_list(&m, d->list);
    double bytes = 4.0 * d->head_dim * m.jobs[0].n_slots * d->n_kv;
    snprintf(what, sizeof what, "attn_decode %s %dK%s%s%s", d->name, d->n_slots / 1024,
             d->type == KVL_KV_BF16 ? " bf16" : "", lists[d->list], d->shuffled ? " shuffled" : "");
    compare(what, "GB/s", (struct side){ decode_run, &m, bytes }, stream_side());
    model_close(&m);
}

static void bench_decodes(void)
{
    static const enum kvl_kv_type f16 = KVL_KV_F16, bf16 = KVL_KV_BF16;
    const struct decode_line lines[] = {
        { "hd128 group 4", 32, 4, 128, 4096, f16, LIST_ALL, false },
        { "hd128 group 4", 16, 4, 128, 16384, f16, LIST_ALL, false },
        { "hd128 group 4", 16, 4, 128, 16384, f16, LIST_ALL, true },
        { "hd128 group 4", 32, 4, 128, 16384, f16, LIST_PAGES, false },
        { "hd128 group 4", 32, 4, 128, 16384, f16, LIST_TOKENS, false },
        { "hd128 group 1", 16, 1, 128, 16384, f16, LIST_ALL, false },
        { "hd128 group 8", 16, 8, 128, 16384, f16, LIST_ALL, false },
        { "hd64 group 4", 32, 4, 64, 16384, f16, LIST_ALL, false },
        { "hd32 group 4 (tiny)", 2, 4, 32, 4096, f16, LIST_ALL, false },
        { "hd128 group 4", 16, 4, 128, 16384, bf16, LIST_ALL, false },
        { "hd128 group 4", 16, 4, 128, 16384, bf16, LIST_ALL, true },
        { "hd128 group 4", 32, 4, 128, 16384, bf16, LIST_PAGES, false },
        { "hd128 group 4", 32, 4, 128, 16384, bf16, LIST_TOKENS, false },
        { "hd128 group 8", 16, 8, 128, 16384, bf16, LIST_ALL, false },
        { "hd64 group 4", 32, 4, 64, 16384, bf16, LIST_ALL, false },
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) bench_decode(&lines[i]);
}

static void bench_prefill(const char *name, int32_t n_kv, int32_t group, int32_t head_dim,
                          int32_t n_slots, int32_t n, bool bf16)
{
    char what[64];
    struct model m;
    enum { SIZE = 512 };
    float *x = random_bytes(2 * SIZE * SIZE * 4, KVL_W_F32),
          *y = bench_alloc(SIZE * SIZE * sizeof *y);
    struct product p = { .w = { .n_rows = SIZE, .n_cols = SIZE }, .wide = x + SIZE * SIZE, .y = y };
    p.gemm = (struct kvl_gemm_args){ .x = x, .n = SIZE };
    model_open(&m, n_kv, group, head_dim, n_slots, n, false);
    double ops = 4.0 * head_dim * n * n_kv * group * (n_slots - n / 2.0);
    m.prefill.bf16 = bf16;
    snprintf(what, sizeof what, "attn_prefill%s %s %d of %d", bf16 ? " in bf16" : "", name, n,
             n_slots);
    compare(what, "GFLOP/s", (struct side){ prefill_run, &m, ops },
            (struct side){ sgemm_run, &p, 2.0 * SIZE * SIZE * SIZE });
    model_close(&m);
    kvl_free(x);
    kvl_free(y);
}

static void columns_run(void *data)
{
    struct model *m = data;
    (void)kvl_ops_cpu.attn_columns(&m->columns);
}

/* Both sides count pairs of a query and a key that it sees. */
static void bench_columns(const char *name, int32_t n_kv, int32_t group, int32_t head_dim,
                          int32_t n_slots, int32_t n, int32_t next, bool bf16)
{
    char what[64];
    struct model m;
    model_open(&m, n_kv, group, head_dim, n_slots, n, false);
    size_t n_sums = (size_t)(n_kv * group) * (size_t)n_slots;
    float *sums = bench_alloc(2 * n_sums * sizeof *sums);
    memset(sums, 0, 2 * n_sums * sizeof *sums);
    m.columns = (struct kvl_attn_columns_args){ .sums = sums,
                                                .carry = sums + n_sums,
                                                .stride = (size_t)n_slots,
                                                .q = m.q,
                                                .lse = m.lse,
                                                .lanes = m.lanes,
                                                .n = n,
                                                .n_heads = n_kv * group,
                                                .n_kv_heads = n_kv,
                                                .head_dim = head_dim,
                                                .scale = 0.05f,
                                                .next = next,
                                                .bf16 = bf16 };
    m.prefill.bf16 = bf16;
    double pairs = (double)n * n_kv * group * (n_slots - n / 2.0);
    snprintf(what, sizeof what, "attn_columns%s %s %d of %d%s", bf16 ? " in bf16" : "", name, n,
             n_slots, next > 0 ? ", next 256" : "");
    compare(what, "Gpair/s", (struct side){ columns_run, &m, pairs },
            (struct side){ prefill_run, &m, pairs });
    kvl_free(sums);
    model_close(&m);
}

/* ---- selection -------------------------------------------------------------------------------- */
struct pages {
    struct kvl_page_bound_args bound;
    struct kvl_topk_args top;
};

static void bound_run(void *data)
{
    struct pages *p = data;
    (void)kvl_ops_cpu.page_bound(&p->bound);
}

static void topk_run(void *data)
{
    struct pages *p = data;
    (void)kvl_ops_cpu.topk(&p->top);
}

/* All layers' kv heads as one: bounds of the pages, then the best 127 of each; bytes of the index, and
 * of the scores. */
static void bench_pages(int32_t n_kv, int32_t group, int32_t n_pages, enum kvl_reduce reduce)
{
    enum { DIM = 128, TOP = 127 };
    char what[64];
    const char *how = reduce == KVL_REDUCE_SUM ? "sum" : "max";
    double bytes = (double)n_kv * n_pages * 2 * DIM * 2, scores = (double)n_kv * n_pages * 4;
    size_t n = (size_t)n_kv * (size_t)n_pages;
    uint16_t *minmax = random_bytes((size_t)bytes, KVL_W_F16);
    float *q = bench_alloc((size_t)(n_kv * group * DIM) * sizeof *q);
    float *bound = bench_alloc(n * sizeof *bound);
    int32_t *index = bench_alloc((size_t)n_kv * TOP * sizeof *index);
    struct kvl_rng r;
    kvl_rng_seed(&r, 5);
    for (int32_t i = 0; i < n_kv * group * DIM; i++) q[i] = (float)kvl_rng_f64(&r) - 0.5f;
    struct pages p = { .bound = { .bound = bound,
                                  .q = q,
                                  .minmax = minmax,
                                  .type = KVL_KV_F16,
                                  .head_stride = (size_t)n_pages * 2 * DIM,
                                  .n_pages = n_pages,
                                  .n_heads = n_kv * group,
                                  .n_kv_heads = n_kv,
                                  .head_dim = DIM,
                                  .reduce = reduce },
                       .top = { .index = index,
                                .x = bound,
                                .x_stride = (size_t)n_pages,
                                .n_rows = n_kv,
                                .n = n_pages,
                                .k = TOP } };
    snprintf(what, sizeof what, "page_bound %s of %d, %d pages", how, group, n_pages);
    compare(what, "GB/s", (struct side){ bound_run, &p, bytes }, stream_side());
    for (size_t i = 0; i < n; i++) bound[i] = (float)kvl_rng_f64(&r);
    snprintf(what, sizeof what, "topk %d of %d pages", TOP, n_pages);
    compare(what, "GB/s", (struct side){ topk_run, &p, scores }, stream_side());
    kvl_free(minmax);
    kvl_free(q);
    kvl_free(bound);
    kvl_free(index);
}

static void bench_all(void)
{
    static const enum kvl_wtype blocks[] = { KVL_W_Q8_0, KVL_W_Q4_0, KVL_W_Q4_K, KVL_W_Q5_K,
                                             KVL_W_Q6_K, KVL_W_Q2_K, KVL_W_Q3_K, KVL_W_IQ4_XS,
                                             KVL_W_Q4_1, KVL_W_Q5_0, KVL_W_Q5_1, KVL_W_IQ4_NL,
                                             KVL_W_MXFP4 };
    bench_pages(32, 4, 2048, KVL_REDUCE_SUM);
    bench_pages(32, 4, 8192, KVL_REDUCE_SUM);
    bench_pages(32, 4, 8192, KVL_REDUCE_MAX);
    bench_decodes();
    bench_gemv(1, 32000, 1024, KVL_W_F16);
    bench_gemv(1, 32000, 1024, KVL_W_BF16);
    bench_gemv(1, 16000, 1024, KVL_W_F32);
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        bench_gemv(1, 64000, 1024, blocks[i]);
        bench_gemv(4, 64000, 1024, blocks[i]);
        bench_gemm(64, 2816, 1024, blocks[i], false);
        bench_gemm(512, 2816, 1024, blocks[i], false);
    }
    bench_gemv(4, 32000, 1024, KVL_W_F16);
    bench_gemm(512, 2816, 1024, KVL_W_F16, false);
    bench_gemm(512, 1024, 2816, KVL_W_F16, false);
    bench_gemm(64, 2816, 1024, KVL_W_F16, false);
    bench_gemm(16, 2816, 1024, KVL_W_F16, false);
    bench_gemm(512, 704, 256, KVL_W_F16, false);
    bench_gemm(512, 2816, 1024, KVL_W_F16, true);
    bench_gemm(512, 1024, 2816, KVL_W_F16, true);
    bench_gemm(512, 2816, 1024, KVL_W_BF16, true);
    bench_gemm(512, 2816, 1024, KVL_W_Q8_0, true);
    bench_gemm(64, 2816, 1024, KVL_W_F16, true);
    bench_gemm(64, 128, 128, KVL_W_F32, false);
    bench_prefill("hd128 group 4", 4, 4, 128, 512, 512, false);
    bench_prefill("hd128 group 4", 4, 4, 128, 4096, 512, false);
    bench_prefill("hd64 group 4", 4, 4, 64, 4096, 512, false);
    bench_prefill("hd32 group 4 (tiny)", 2, 4, 32, 512, 512, false);
    bench_prefill("hd128 group 4", 4, 4, 128, 512, 512, true);
    bench_prefill("hd128 group 4", 4, 4, 128, 4096, 512, true);
    bench_prefill("hd64 group 4", 4, 4, 64, 4096, 512, true);
    bench_prefill("hd32 group 4 (tiny)", 2, 4, 32, 512, 512, true);
    bench_columns("hd128 group 4", 4, 4, 128, 512, 512, 0, false);
    bench_columns("hd128 group 4", 4, 4, 128, 4096, 512, 0, false);
    bench_columns("hd128 group 4", 4, 4, 128, 4096, 512, 256, false);
    bench_columns("hd64 group 4", 4, 4, 64, 4096, 512, 0, false);
    bench_columns("hd32 group 4 (tiny)", 2, 4, 32, 512, 512, 0, false);
    bench_columns("hd32 group 4 (tiny)", 2, 4, 32, 4096, 512, 0, false);
    bench_columns("hd128 group 4", 4, 4, 128, 4096, 512, 0, true);
    bench_columns("hd64 group 4", 4, 4, 64, 4096, 512, 0, true);
    bench_columns("hd32 group 4 (tiny)", 2, 4, 32, 4096, 512, 0, true);
}

int main(int argc, char **argv)
{
    if (argc > 1) bench_threads = atoi(argv[1]);
    if (argc > 2) bench_rounds = atoi(argv[2]);
    if (argc > 3) bench_text = argv[3];
    if (bench_threads < 1 || bench_rounds < 1 || bench_rounds > MAX_ROUNDS) {
        fprintf(stderr, "usage: bench_ops [threads >= 1] [rounds 1 to %d] [text]\n", MAX_ROUNDS);
        return 2;
    }
    kvl_ops_set_threads(bench_threads);
    openblas_set_num_threads(bench_threads);
    stream_data = random_bytes(STREAM_BYTES, KVL_W_F16);
    printf("isa %s, %d threads, %d rounds, ours / yardstick\n", kvl_ops_isa(), bench_threads,
           bench_rounds);
    bench_all();
    kvl_free(stream_data);
    return 0;
}
