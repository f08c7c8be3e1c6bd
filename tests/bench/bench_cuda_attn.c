/* bench_cuda_attn - how far decode attention on a GPU is from reading its keys and values once at the speed
 * of memory.
 *
 * usage: bench_cuda_attn [rounds] [text]
 *
 * One layer of a Llama-3-8B: 32 query heads, 8 kv heads of 128 channels, bf16.  Only lines whose name contains
 * `text` are measured.  A line has the time of a call, the bytes of K and V that it reads, and which share of
 * a streaming read's speed in the same round that is: medians, and the smallest and largest share.
 *   whole, in order   everything, blocks of 16 slots one behind the other
 *   whole, random     the same, blocks anywhere
 *   pages             2048 slots in random pages of 16, ascending, of blocks anywhere
 *   tokens            2048 random slots, ascending
 * and what random order costs, as a line for `kvlab bench --peer-json`.
 * Layers take turns, so that none is in the cache.  Without a GPU: a line that says so, exit status 1.
 */
#include "kv/lane.h"
#include "kvl/device.h"
#include "kvl/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MAX_ROUNDS = 99,
    KV_HEADS = 8,
    GROUP = 4,
    DIM = 128,
    BLOCK = 16,
    PART_BYTES = BLOCK * DIM * 2,
    BLOCK_BYTES = 2 * PART_BYTES,
    MAX_CONTEXT = 131072,
    BUDGET = 2048,
};
/* Of all layers together: two of the longest context, 64 of the shortest. */
static const size_t POOL_BYTES = (size_t)1 << 30;

struct bench {
    const struct kvl_device *dev;
    int rounds;
    const char *text;
    uint8_t *pool;
    float *q, *out, *lse;
    struct kvl_rng rng;
};

/* Attention over n_layers layers in turns. */
struct layers {
    const struct bench *b;
    struct kvl_layout layout;
    int32_t n_layers;
    const uint8_t **table; /* on the device: [n_layers][KV_HEADS][blocks] */
    struct kvl_lane *lane; /* [n_layers][KV_HEADS] */
    struct kvl_run *runs;  /* of every kv head, or NULL */
    int32_t n_runs, n_slots;
};

static void need(int rc, const struct bench *b, const char *what)
{
    if (rc == KVL_OK) return;
    fprintf(stderr, "bench_cuda_attn: %s: %s %s\n", what, kvl_status_name(rc), b->dev->error());
    exit(1);
}

static void *some(void *p, size_t bytes)
{
    if (p) return p;
    fprintf(stderr, "bench_cuda_attn: no memory for %zu bytes\n", bytes);
    exit(1);
}

static void *on_device(const struct bench *b, size_t bytes)
{
    return some(b->dev->alloc(KVL_PLACE_DEVICE, bytes, 1), bytes);
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

static int run_stream(const void *args, int turn)
{
    const struct bench *b = args;
    (void)turn;
    return b->dev->peak_read(b->pool, POOL_BYTES);
}

static int run_attention(const void *args, int turn)
{
    const struct layers *l = args;
    struct kvl_attn_job jobs[KV_HEADS];
    struct kvl_attn_decode_args a = {
        .jobs = jobs, .n_jobs = KV_HEADS, .head_dim = DIM, .scale = 0.088f
    };
    for (int32_t h = 0; h < KV_HEADS; h++)
        jobs[h] = (struct kvl_attn_job){ .out = l->b->out + h * GROUP * DIM,
                                         .lse = l->b->lse + h * GROUP,
                                         .q = l->b->q + h * GROUP * DIM,
                                         .lane = &l->lane[turn % l->n_layers * KV_HEADS + h],
                                         .runs = l->runs,
                                         .n_runs = l->n_runs,
                                         .n_slots = l->n_slots,
                                         .n_heads = GROUP };
    return l->b->dev->ops->attn_decode(&a);
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

/* The median share. */
static double measure(const struct bench *b, const char *name, const struct layers *l)
{
    double time[MAX_ROUNDS], share[MAX_ROUNDS];
    double bytes = 2.0 * KV_HEADS * l->n_slots * DIM * 2;
    size_t n = (size_t)b->rounds;
    (void)seconds(b, run_attention, l); /* warm-up */
    for (int i = 0; i < b->rounds; i++) {
        double peak = (double)POOL_BYTES / seconds(b, run_stream, b);
        time[i] = seconds(b, run_attention, l);
        share[i] = bytes / time[i] / peak;
    }
    qsort(time, n, sizeof *time, compare);
    qsort(share, n, sizeof *share, compare);
    printf("%-32s %9.2f us %8.2f MB  share %.2f (%.2f .. %.2f)\n", name, time[n / 2] * 1e6,
           bytes * 1e-6, share[n / 2], share[0], share[n - 1]);
    fflush(stdout);
    return share[n / 2];
}

/* ---- layers --------------------------------------------------------------------------------------- */

/* Layers of `context` slots that share the pool's blocks out among them. */
static void layers_open(struct layers *l, struct bench *b, int32_t context, bool shuffled)
{
    int32_t per_lane = context / BLOCK, per_layer = per_lane * KV_HEADS;
    int32_t n_blocks = (int32_t)(POOL_BYTES / BLOCK_BYTES);
    *l = (struct layers){ .b = b, .n_layers = n_blocks / per_layer, .n_slots = context };
    l->layout = (struct kvl_layout){ .head_dim = DIM,
                                     .block_tok = BLOCK,
                                     .block_shift = 4,
                                     .type = KVL_KV_BF16,
                                     .elem_bytes = 2,
                                     .part_off = { 0, PART_BYTES, SIZE_MAX },
                                     .bytes = BLOCK_BYTES };
    size_t bytes = (size_t)n_blocks * sizeof *l->table;
    const uint8_t **table = some(malloc(bytes), bytes);
    int32_t *order = some(malloc((size_t)n_blocks * sizeof *order), bytes);
    for (int32_t i = 0; i < n_blocks; i++) order[i] = i;
    if (shuffled) kvl_rng_shuffle(&b->rng, order, n_blocks);
    for (int32_t i = 0; i < n_blocks; i++) table[i] = b->pool + (size_t)order[i] * BLOCK_BYTES;
    l->table = on_device(b, bytes);
    need(b->dev->copy(l->table, table, bytes, KVL_STREAM_MAIN), b, "copying a table");
    size_t n_lanes = (size_t)l->n_layers * KV_HEADS;
    l->lane = some(malloc(n_lanes * sizeof *l->lane), n_lanes * sizeof *l->lane);
    for (size_t i = 0; i < n_lanes; i++)
        l->lane[i] = (struct kvl_lane){ .layout = &l->layout,
                                        .data = l->table + i * (size_t)per_lane,
                                        .n_slots = context,
                                        .sorted = true };
    free(table);
    free(order);
}

static void layers_close(struct layers *l)
{
    l->b->dev->free(KVL_PLACE_DEVICE, (void *)l->table);
    free(l->lane);
    free(l->runs);
}

/* BUDGET slots in random runs of `run`, ascending. */
static void layers_choose(struct layers *l, struct bench *b, int32_t run)
{
    int32_t n = l->n_slots / run, left = BUDGET / run;
    l->runs = some(malloc((size_t)left * sizeof *l->runs), (size_t)left * sizeof *l->runs);
    l->n_slots = BUDGET;
    for (int32_t i = 0; i < n && left > 0; i++) {
        if ((int32_t)kvl_rng_below(&b->rng, (uint32_t)(n - i)) >= left) continue;
        l->runs[l->n_runs++] = (struct kvl_run){ .slot = i * run, .n = run };
        left--;
    }
}

static void bench_context(struct bench *b, int32_t context)
{
    static const struct {
        const char *name;
        bool shuffled;
        int32_t run;
    } kinds[] = { { "whole, in order", false, 0 },
                  { "whole, random", true, 0 },
                  { "pages", true, 16 },
                  { "tokens", true, 1 } };
    double share[4] = { 0 };
    for (int i = 0; i < 4; i++) {
        struct layers l;
        char name[64];
        snprintf(name, sizeof name, "%3dK %s", (int)(context / 1024), kinds[i].name);
        if (!strstr(name, b->text)) continue;
        layers_open(&l, b, context, kinds[i].shuffled);
        if (kinds[i].run > 0) layers_choose(&l, b, kinds[i].run);
        share[i] = measure(b, name, &l);
        layers_close(&l);
    }
    if (share[0] > 0 && share[1] > 0)
        printf("{\"kind\":\"peer\",\"what\":\"random pages\",\"depth_tok\":%d,\"ratio\":%.4f}\n",
               (int)context, share[1] / share[0]);
}

int main(int argc, char **argv)
{
    struct bench b = { .rounds = argc > 1 ? atoi(argv[1]) : 7, .text = argc > 2 ? argv[2] : "" };
    struct kvl_err err = { 0 };
    struct kvl_device_info info;
    if (b.rounds < 1 || b.rounds > MAX_ROUNDS) {
        fprintf(stderr, "bench_cuda_attn: rounds must be 1 to %d\n", MAX_ROUNDS);
        return 2;
    }
    if (kvl_device_open("cuda", &b.dev, &err) != KVL_OK) {
        fprintf(stderr, "bench_cuda_attn: %s\n", err.msg);
        return 1;
    }
    b.dev->info(&info);
    printf("%s, %s\n", info.name, info.driver);
    kvl_rng_seed(&b.rng, 1);
    b.pool = on_device(&b, POOL_BYTES);
    b.q = on_device(&b, KV_HEADS * GROUP * DIM * sizeof *b.q);
    b.out = on_device(&b, KV_HEADS * GROUP * DIM * sizeof *b.out);
    b.lse = on_device(&b, KV_HEADS * GROUP * sizeof *b.lse);
    struct kvl_random_fill_args fill = { .y = b.q, .n = KV_HEADS * GROUP * DIM, .seed = 2 };
    need(b.dev->ops->random_fill(&fill), &b, "random_fill");
    need(b.dev->fill(b.pool, 0x3c, POOL_BYTES, KVL_STREAM_MAIN), &b, "fill"); /* all the same */
    for (int32_t context = 4096; context <= MAX_CONTEXT; context *= 2) bench_context(&b, context);
    b.dev->free(KVL_PLACE_DEVICE, b.lse);
    b.dev->free(KVL_PLACE_DEVICE, b.out);
    b.dev->free(KVL_PLACE_DEVICE, b.q);
    b.dev->free(KVL_PLACE_DEVICE, b.pool);
    return 0;
}
