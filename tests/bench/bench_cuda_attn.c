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
 *   prefill           a chunk of 512 or 2048 queries in bf16 at the end of the context, blocks anywhere: operations,
 *                     beside cuBLAS's in a product of 4096 rows
 * and what random order costs, as a line for `kvlab bench --peer-json`.
 * Layers take turns, so that none is in the cache.  Without a GPU: a line that says so, exit status 1.
 */
#include "cuda_bench.h"

#include "kvl/rng.h"
#include "lane.h"

enum {
    KV_HEADS = 8,
    GROUP = 4,
    DIM = 128,
    BLOCK = 16,
    PART_BYTES = BLOCK * DIM * 2,
    BLOCK_BYTES = 2 * PART_BYTES,
    MAX_CONTEXT = 131072,
    PREFILL_CONTEXT = 32768,
    BUDGET = 2048,
    CHUNK = 2048, /* the longest */
    YARD = 4096,  /* rows and columns of the product beside a prefill */
};
/* Of all layers together: two of the longest context, 64 of the shortest. */
static const size_t POOL_BYTES = (size_t)1 << 30;

struct bench {
    struct cuda_bench c;
    uint8_t *pool;
    float *q, *out, *lse; /* of CHUNK rows */
    uint16_t *yard;       /* two matrices */
    float *yard_out;
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

/* ---- one call ------------------------------------------------------------------------------------- */

static int run_stream(const struct kvl_device *dev, const void *args, int turn)
{
    (void)turn;
    return dev->peak_read(args, POOL_BYTES);
}

static int run_attention(const struct kvl_device *dev, const void *args, int turn)
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
    return dev->ops->attn_decode(&a);
}

struct chunk {
    const struct layers *l;
    int32_t n;
};

static int run_prefill(const struct kvl_device *dev, const void *args, int turn)
{
    const struct chunk *c = args;
    const struct layers *l = c->l;
    return dev->ops->attn_prefill(
        &(struct kvl_attn_prefill_args){ .out = l->b->out,
                                         .lse = l->b->lse,
                                         .q = l->b->q,
                                         .lanes = &l->lane[turn % l->n_layers * KV_HEADS],
                                         .n = c->n,
                                         .n_heads = KV_HEADS * GROUP,
                                         .n_kv_heads = KV_HEADS,
                                         .head_dim = DIM,
                                         .scale = 0.088f,
                                         .bf16 = true });
}

static int run_product(const struct kvl_device *dev, const void *args, int turn)
{
    const struct bench *b = args;
    (void)turn;
    return dev->peak_gemm(b->yard_out, b->yard, b->yard + YARD * YARD, YARD, YARD, YARD);
}

static void measure_prefill(const struct bench *b, const struct layers *l, int32_t n)
{
    char name[64];
    snprintf(name, sizeof name, "%3dK prefill of %d", (int)(l->n_slots / 1024), (int)n);
    if (!strstr(name, b->c.text)) return;
    struct chunk chunk = { l, n };
    double pairs = (double)n * (l->n_slots - n) + (double)n * (n + 1) / 2;
    double work = 4 * pairs * KV_HEADS * GROUP * DIM;
    struct cuda_share r =
        cuda_measure(&b->c, &(struct cuda_call){ run_prefill, &chunk, work },
                     &(struct cuda_call){ run_product, b, 2.0 * YARD * YARD * YARD });
    printf("%-32s %9.2f us %7.1f TFLOP/s  share %.2f (%.2f .. %.2f)\n", name, r.time * 1e6,
           work / r.time * 1e-12, r.share, r.share_lo, r.share_hi);
    fflush(stdout);
}

/* The median share. */
static double measure(const struct bench *b, const char *name, const struct layers *l)
{
    double bytes = 2.0 * KV_HEADS * l->n_slots * DIM * 2;
    struct cuda_share r =
        cuda_measure(&b->c, &(struct cuda_call){ run_attention, l, bytes },
                     &(struct cuda_call){ run_stream, b->pool, (double)POOL_BYTES });
    printf("%-32s %9.2f us %8.2f MB  share %.2f (%.2f .. %.2f)\n", name, r.time * 1e6, bytes * 1e-6,
           r.share, r.share_lo, r.share_hi);
    fflush(stdout);
    return r.share;
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
                                     .type = { KVL_KV_BF16, KVL_KV_BF16 },
                                     .row_bytes = { 2 * DIM, 2 * DIM },
                                     .part_off = { 0, PART_BYTES, SIZE_MAX },
                                     .bytes = BLOCK_BYTES };
    size_t bytes = (size_t)n_blocks * sizeof *l->table;
    const uint8_t **table = some(&b->c, malloc(bytes), bytes);
    int32_t *order = some(&b->c, malloc((size_t)n_blocks * sizeof *order), bytes);
    for (int32_t i = 0; i < n_blocks; i++) order[i] = i;
    if (shuffled) kvl_rng_shuffle(&b->rng, order, n_blocks);
    for (int32_t i = 0; i < n_blocks; i++) table[i] = b->pool + (size_t)order[i] * BLOCK_BYTES;
    l->table = on_device(&b->c, bytes);
    need(b->c.dev->copy(l->table, table, bytes, KVL_STREAM_MAIN), &b->c, "copying a table");
    size_t n_lanes = (size_t)l->n_layers * KV_HEADS;
    l->lane = some(&b->c, malloc(n_lanes * sizeof *l->lane), n_lanes * sizeof *l->lane);
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
    l->b->c.dev->free(KVL_PLACE_DEVICE, (void *)l->table);
    free(l->lane);
    free(l->runs);
}

/* BUDGET slots in random runs of `run`, ascending. */
static void layers_choose(struct layers *l, struct bench *b, int32_t run)
{
    int32_t n = l->n_slots / run, left = BUDGET / run;
    l->runs = some(&b->c, malloc((size_t)left * sizeof *l->runs), (size_t)left * sizeof *l->runs);
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
        if (!strstr(name, b->c.text)) continue;
        layers_open(&l, b, context, kinds[i].shuffled);
        if (kinds[i].run > 0) layers_choose(&l, b, kinds[i].run);
        share[i] = measure(b, name, &l);
        layers_close(&l);
    }
    if (context == PREFILL_CONTEXT) {
        struct layers l;
        layers_open(&l, b, context, true);
        measure_prefill(b, &l, CHUNK / 4);
        measure_prefill(b, &l, CHUNK);
        layers_close(&l);
    }
    if (share[0] > 0 && share[1] > 0)
        printf("{\"kind\":\"peer\",\"what\":\"random pages\",\"depth_tok\":%d,\"ratio\":%.4f}\n",
               (int)context, share[1] / share[0]);
}

int main(int argc, char **argv)
{
    struct bench b = { 0 };
    int status = cuda_bench_open(&b.c, "bench_cuda_attn", argc, argv, 7);
    if (status != 0) return status;
    kvl_rng_seed(&b.rng, 1);
    b.pool = on_device(&b.c, POOL_BYTES);
    b.q = on_device(&b.c, (size_t)CHUNK * KV_HEADS * GROUP * DIM * sizeof *b.q);
    b.out = on_device(&b.c, (size_t)CHUNK * KV_HEADS * GROUP * DIM * sizeof *b.out);
    b.lse = on_device(&b.c, (size_t)CHUNK * KV_HEADS * GROUP * sizeof *b.lse);
    b.yard = on_device(&b.c, (size_t)2 * YARD * YARD * sizeof *b.yard);
    b.yard_out = on_device(&b.c, (size_t)YARD * YARD * sizeof *b.yard_out);
    need(b.c.dev->fill(b.yard, 0x3c, (size_t)2 * YARD * YARD * sizeof *b.yard, KVL_STREAM_MAIN),
         &b.c, "fill");
    struct kvl_random_fill_args fill = { .y = b.q,
                                         .n = (size_t)CHUNK * KV_HEADS * GROUP * DIM,
                                         .seed = 2 };
    need(b.c.dev->ops->random_fill(&fill), &b.c, "random_fill");
    need(b.c.dev->fill(b.pool, 0x3c, POOL_BYTES, KVL_STREAM_MAIN), &b.c, "fill"); /* all the same */
    for (int32_t context = 4096; context <= MAX_CONTEXT; context *= 2) bench_context(&b, context);
    b.c.dev->free(KVL_PLACE_DEVICE, b.yard_out);
    b.c.dev->free(KVL_PLACE_DEVICE, b.yard);
    b.c.dev->free(KVL_PLACE_DEVICE, b.lse);
    b.c.dev->free(KVL_PLACE_DEVICE, b.out);
    b.c.dev->free(KVL_PLACE_DEVICE, b.q);
    b.c.dev->free(KVL_PLACE_DEVICE, b.pool);
    return 0;
}
