/* Decode attention by type of keys and values, against f16 by turns: 32768 slots of each kv head, heads of 128, groups of
 * 1, 2, 3 and 4 query heads.  Every round runs all types one after the other; of each type the fastest round counts, since
 * other programs only ever make one slower.  Processor time of a thread, so that waiting does not count.
 *
 * A read of the f16 blocks from end to end is the stream: a type's share of it is the time that its bytes would take
 * of the time that it took.
 *
 *   bench_kv_types [ROUNDS [THREADS]]  (15, 1; of several threads wall time)
 *
 * Writes rows of a table; tests/bench/kv_types.sh puts them on a page. */
#include "kv_rows.h"
#include "kvl/ops.h"
#include "kvl/rng.h"
#include "lane.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SLOTS = 32768, DIM = 128, HEADS = 4, BLOCK = 32, MOST = 4, N_BLOCKS = SLOTS / BLOCK };

struct pages {
    struct kvl_layout layout, sealed;
    int32_t n_sealed; /* blocks of a lane */
    struct kvl_lane lane[HEADS];
    const uint8_t *blocks[HEADS][N_BLOCKS];
    uint8_t *memory;
    size_t bytes;
    double best_s;
};

static void *memory(size_t n)
{
    void *p = kvl_alloc(n, 1);
    if (!p) exit(1);
    return p;
}

static double now_s(bool wall)
{
    struct timespec t;
    clock_gettime(wall ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

enum { DIFFERENT = 64 };

static void layout_of(struct kvl_layout *l, enum kvl_kv_type type)
{
    size_t row = kvl_kv_row_bytes(type, DIM), part = row * BLOCK;
    *l = (struct kvl_layout){ .head_dim = DIM,
                              .block_tok = BLOCK,
                              .block_shift = 5,
                              .type = { type, type, type },
                              .row_bytes = { row, row, row },
                              .part_off = { 0, part, SIZE_MAX } };
}

/* DIFFERENT blocks of layout l, since how long quantising takes is no matter here. */
static void blocks_make(const struct kvl_layout *l, const float *x, uint8_t *to)
{
    const size_t row = l->row_bytes[0];
    for (int b = 0; b < DIFFERENT; b++, to += 2 * BLOCK * row)
        for (int i = 0; i < 2 * BLOCK; i++) {
            const float *from = x + (size_t)((b * 7 + i) % DIFFERENT) * DIM;
            if (!l->grouped || i >= BLOCK)
                kvl_row_put(l->type[0], to + (size_t)i * row, from, DIM);
            else if (i == 0)
                kvl_group_put(l->type[0], to, x, DIM);
        }
}

/* All blocks have memory of their own. */
static void pages_fill(struct pages *p, enum kvl_kv_type type)
{
    const int32_t open = kvl_kv_facts(type)->open_tok;
    static float x[DIFFERENT * DIM];
    struct kvl_rng rng;
    kvl_rng_seed(&rng, 3);
    for (int c = 0; c < DIFFERENT * DIM; c++) x[c] = (float)(kvl_rng_f64(&rng) * 2 - 1);
    layout_of(&p->layout, kvl_kv_open(type));
    layout_of(&p->sealed, type);
    p->n_sealed = open > 0 ? N_BLOCKS - 1 - open / BLOCK : 0;
    p->sealed.grouped = open > 0;
    p->layout.sealed = open > 0 ? &p->sealed : NULL;
    const size_t sealed = 2 * BLOCK * p->sealed.row_bytes[0];
    const size_t plain = 2 * BLOCK * p->layout.row_bytes[0];
    uint8_t *from_sealed = memory(DIFFERENT * sealed), *from_plain = memory(DIFFERENT * plain);
    blocks_make(&p->sealed, x, from_sealed);
    blocks_make(&p->layout, x, from_plain);
    p->bytes = HEADS * ((size_t)p->n_sealed * sealed + (size_t)(N_BLOCKS - p->n_sealed) * plain);
    uint8_t *at = p->memory = memory(p->bytes);
    for (int h = 0; h < HEADS; h++) {
        for (int b = 0; b < N_BLOCKS; b++) {
            const bool is = b < p->n_sealed;
            const size_t n = is ? sealed : plain;
            p->blocks[h][b] = at;
            memcpy(at, (is ? from_sealed : from_plain) + (size_t)(b % DIFFERENT) * n, n);
            at += n;
        }
        p->lane[h] = (struct kvl_lane){
            .layout = &p->layout, .blocks = p->blocks[h], .n_slots = SLOTS, .n_sealed = p->n_sealed
        };
    }
    kvl_free(from_sealed);
    kvl_free(from_plain);
}

static void attend(struct pages *p, const float *q, float *out, int32_t group, bool wall)
{
    struct kvl_attn_job job[HEADS];
    for (int h = 0; h < HEADS; h++)
        job[h] = (struct kvl_attn_job){ .out = out + h * MOST * DIM,
                                        .q = q + h * MOST * DIM,
                                        .lane = &p->lane[h],
                                        .n_slots = SLOTS,
                                        .n_heads = group };
    double t = now_s(wall);
    (void)kvl_ops_cpu.attn_decode(&(struct kvl_attn_decode_args){
        .jobs = job, .n_jobs = HEADS, .head_dim = DIM, .scale = 0.088f });
    t = now_s(wall) - t;
    if (!(p->best_s < t)) p->best_s = t;
}

/* Seconds for a byte of memory that is read from end to end. */
static double stream(const struct pages *p, bool wall)
{
    const uint64_t *x = (const uint64_t *)(const void *)p->memory;
    const int64_t n = (int64_t)(p->bytes / sizeof *x);
    uint64_t sum = 0;
    double t = now_s(wall);
#pragma omp parallel for reduction(+ : sum) schedule(static) num_threads(kvl_ops_threads())
    for (int64_t i = 0; i < n; i++) sum += x[i];
    t = now_s(wall) - t;
    if (sum == 1) puts("one"); /* used: else nothing is read */
    return t / (double)p->bytes;
}

static void show(enum kvl_kv_type type, double bytes, const double *best, const double *f16,
                 double byte_s)
{
    printf("| %s | %.0f |", kvl_kv_facts(type)->name, bytes / (HEADS * SLOTS));
    for (int g = 0; g < MOST; g++)
        printf(" %.2f ms, %.2fx, %.0f %% |", best[g] * 1e3, f16[g] / best[g],
               100 * bytes * byte_s / best[g]);
    putchar('\n');
}

int main(int argc, char **argv)
{
    enum { TYPES = 32 };
    static struct pages pages[TYPES];
    static float q[HEADS * MOST * DIM], out[HEADS * MOST * DIM];
    int rounds = argc > 1 ? atoi(argv[1]) : 15, n = 0;
    int threads = argc > 2 ? atoi(argv[2]) : 1;
    bool wall = threads > 1; /* threads wait for each other, and that takes processor time */
    double byte_s = HUGE_VAL;
    kvl_ops_set_threads(threads);
    for (int c = 0; c < HEADS * MOST * DIM; c++) q[c] = (float)(c % 31 - 15) / 16;
    for (; kvl_kv_facts((enum kvl_kv_type)n); n++) pages_fill(&pages[n], (enum kvl_kv_type)n);
    static double best[TYPES][MOST];
    for (int32_t group = 1; group <= MOST; group++) {
        for (int t = 0; t < n; t++) pages[t].best_s = HUGE_VAL;
        for (int r = 0; r < rounds; r++) {
            byte_s = fmin(byte_s, stream(&pages[KVL_KV_F16], wall));
            for (int t = 0; t < n; t++) attend(&pages[t], q, out, group, wall);
        }
        for (int t = 0; t < n; t++) best[t][group - 1] = pages[t].best_s;
    }
    printf("stream: %.1f GB/s\n\n", 1e-9 / byte_s);
    printf("| `kv_type` | bytes | 1 query head | 2 | 3 | 4 |\n|---|---:|---|---|---|---|\n");
    for (int t = 0; t < n; t++)
        show((enum kvl_kv_type)t, (double)pages[t].bytes, best[t], best[KVL_KV_F16], byte_s);
    return 0;
}
