/* Decode attention by type of keys and values, against f16 by turns: 32768 slots of each kv head, heads of 128, groups of
 * 1, 2, 3 and 4 query heads.  Every round runs all types one after the other; of each type the fastest round counts, since
 * other programs only ever make one slower.  Processor time of a thread, so that waiting does not count.
 *
 *   bench_kv_types [ROUNDS]  (OMP_NUM_THREADS=2 for two threads: wall time) */
#include "kv_rows.h"
#include "kvl/ops.h"
#include "kvl/rng.h"
#include "lane.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SLOTS = 32768, DIM = 128, HEADS = 4, BLOCK = 16, MOST = 4, N_BLOCKS = SLOTS / BLOCK };

struct pages {
    struct kvl_layout layout;
    struct kvl_lane lane[HEADS];
    const uint8_t *blocks[HEADS][N_BLOCKS];
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

/* All rows are different; a few rows quantised once, since how long that takes is no matter here. */
static void pages_fill(struct pages *p, enum kvl_kv_type type)
{
    enum { DIFFERENT = 64 };
    struct kvl_layout *l = &p->layout;
    size_t row = kvl_kv_row_bytes(type, DIM), part = row * BLOCK;
    uint8_t *rows = memory(DIFFERENT * row), *at = memory((size_t)HEADS * N_BLOCKS * 2 * part);
    float x[DIM];
    struct kvl_rng rng;
    kvl_rng_seed(&rng, 3);
    *l = (struct kvl_layout){ .head_dim = DIM,
                              .block_tok = BLOCK,
                              .block_shift = 4,
                              .type = { type, type, type },
                              .row_bytes = { row, row, row },
                              .part_off = { 0, part, SIZE_MAX } };
    for (int i = 0; i < DIFFERENT; i++) {
        for (int c = 0; c < DIM; c++) x[c] = (float)(kvl_rng_f64(&rng) * 2 - 1);
        kvl_row_put(type, rows + (size_t)i * row, x, DIM);
    }
    for (int h = 0; h < HEADS; h++) {
        for (int b = 0; b < N_BLOCKS; b++, at += 2 * part) {
            p->blocks[h][b] = at;
            for (int i = 0; i < 2 * BLOCK; i++)
                memcpy(at + (size_t)i * row, rows + (size_t)((b * 7 + i) % DIFFERENT) * row, row);
        }
        p->lane[h] = (struct kvl_lane){ .layout = l, .blocks = p->blocks[h], .n_slots = SLOTS };
    }
    kvl_free(rows);
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

int main(int argc, char **argv)
{
    enum { TYPES = 32 };
    static struct pages pages[TYPES];
    static float q[HEADS * MOST * DIM], out[HEADS * MOST * DIM];
    int rounds = argc > 1 ? atoi(argv[1]) : 15, n = 0;
    const char *threads = getenv("OMP_NUM_THREADS");
    bool wall = threads && atoi(threads) > 1;
    for (int c = 0; c < HEADS * MOST * DIM; c++) q[c] = (float)(c % 31 - 15) / 16;
    /* Types that seal come last: their keys are no rows. */
    while (kvl_kv_facts((enum kvl_kv_type)n) && !kvl_kv_seals((enum kvl_kv_type)n)) n++;
    for (int t = 0; t < n; t++) pages_fill(&pages[t], (enum kvl_kv_type)t);
    printf("%-16s", "type, ms");
    for (int32_t group = 1; group <= MOST; group++) printf("  %d heads  f16/it", group);
    putchar('\n');
    static double best[TYPES][MOST];
    for (int32_t group = 1; group <= MOST; group++) {
        for (int t = 0; t < n; t++) pages[t].best_s = HUGE_VAL;
        for (int r = 0; r < rounds; r++)
            for (int t = 0; t < n; t++) attend(&pages[t], q, out, group, wall);
        for (int t = 0; t < n; t++) best[t][group - 1] = pages[t].best_s;
    }
    for (int t = 0; t < n; t++) {
        printf("%-16s", kvl_kv_facts((enum kvl_kv_type)t)->name);
        for (int g = 0; g < MOST; g++)
            printf(" %8.2f %7.2fx", best[t][g] * 1e3, best[KVL_KV_F16][g] / best[t][g]);
        putchar('\n');
    }
    return 0;
}
