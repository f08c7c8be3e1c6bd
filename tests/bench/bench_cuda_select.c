/* bench_cuda_select - how far selection on a GPU is from reading its input once at the speed of memory.
 *
 * usage: bench_cuda_select [rounds] [text]
 *
 * Only lines whose name contains `text` are measured.  A line has the time of a call, from its start to the
 * next one's (calls that wait for a flag include that), the bytes that must be read, and which share of a
 * streaming read's speed in the same round that is: medians, and the smallest and largest share.  Tables lie
 * in several copies that take turns, so that none is in the cache; rows of topk are where the scores before
 * it leave them, in the cache.  Without a GPU: a line that says so, exit status 1.
 */
#include "cuda_bench.h"

enum {
    STREAM_BYTES = 1 << 30,
    COPIES = 8,
    KV_HEADS = 8,
    HEADS = 32,
    DIM = 128,
    CONTEXT = 131072,
    PAGE = 16,
    CHANNELS = 32,
    ROWS = 8,
};

struct bench {
    struct cuda_bench c;
    void *stream;
};

static int read_stream(const struct kvl_device *dev, const void *args, int turn)
{
    (void)turn;
    return dev->peak_read(args, STREAM_BYTES);
}

static void measure(const struct bench *b, const char *name, const struct cuda_call *c)
{
    if (!strstr(name, b->c.text)) return;
    struct cuda_share r =
        cuda_measure(&b->c, c, &(struct cuda_call){ read_stream, b->stream, STREAM_BYTES });
    printf("%-44s %9.2f us %8.2f MB  share %.2f (%.2f .. %.2f)\n", name, r.time * 1e6,
           c->work * 1e-6, r.share, r.share_lo, r.share_hi);
    fflush(stdout);
}

/* ---- operators ------------------------------------------------------------------------------------ */

static int run_topk(const struct kvl_device *dev, const void *args, int turn)
{
    (void)turn;
    return dev->ops->topk(args);
}

static void bench_topk(const struct bench *b, int32_t n, int32_t k)
{
    char name[64];
    size_t floats = (size_t)ROWS * (size_t)n;
    float *x = on_device(&b->c, floats * sizeof *x);
    int32_t *index = on_device(&b->c, (size_t)ROWS * (size_t)k * sizeof *index);
    struct kvl_random_fill_args fill = { .y = x, .n = floats, .seed = 1 };
    need(b->c.dev->ops->random_fill(&fill), &b->c, "random_fill");
    struct kvl_topk_args a = {
        .index = index, .x = x, .x_stride = (size_t)n, .n_rows = ROWS, .n = n, .k = k
    };
    snprintf(name, sizeof name, "topk %d rows x %d, k %d", ROWS, n, k);
    measure(b, name, &(struct cuda_call){ run_topk, &a, (double)floats * sizeof *x });
    b->c.dev->free(KVL_PLACE_DEVICE, x);
    b->c.dev->free(KVL_PLACE_DEVICE, index);
}

/* Copies of a table, one behind the other, and how an operator's arguments name it. */
struct turns {
    const uint8_t *table;
    size_t bytes;
    struct kvl_page_bound_args bound;
    struct kvl_channel_scores_args channels;
    struct kvl_key4_logits_args key4;
};

static int run_bound(const struct kvl_device *dev, const void *args, int turn)
{
    const struct turns *t = args;
    struct kvl_page_bound_args a = t->bound;
    a.minmax = t->table + (size_t)(turn % COPIES) * t->bytes;
    return dev->ops->page_bound(&a);
}

static int run_channels(const struct kvl_device *dev, const void *args, int turn)
{
    const struct turns *t = args;
    struct kvl_channel_scores_args a = t->channels;
    a.keys = t->table + (size_t)(turn % COPIES) * t->bytes;
    return dev->ops->channel_scores(&a);
}

static int run_key4(const struct kvl_device *dev, const void *args, int turn)
{
    const struct turns *t = args;
    struct kvl_key4_logits_args a = t->key4;
    a.rows = t->table + (size_t)(turn % COPIES) * t->bytes;
    return dev->ops->key4_logits(&a);
}

/* Zeros are as good as keys here: no operator looks at values to decide what it does. */
static struct turns turns_open(const struct bench *b, size_t bytes)
{
    struct turns t = { .table = on_device(&b->c, bytes * COPIES), .bytes = bytes };
    return t;
}

static void bench_bound(const struct bench *b, const float *q, float *out)
{
    static const struct {
        enum kvl_reduce reduce;
        const char *name;
    } kinds[] = { { KVL_REDUCE_NONE, "page_bound 128K, a list per query head" },
                  { KVL_REDUCE_MAX, "page_bound 128K, largest of a group" },
                  { KVL_REDUCE_SUM, "page_bound 128K, sum of a group" } };
    const size_t pages = CONTEXT / PAGE, head = pages * 2 * DIM;
    struct turns t = turns_open(b, KV_HEADS * head * 2);
    for (int i = 0; i < 3; i++) {
        t.bound = (struct kvl_page_bound_args){ .bound = out,
                                                .q = q,
                                                .type = KVL_KV_BF16,
                                                .head_stride = head,
                                                .n_pages = (int32_t)pages,
                                                .n_heads = HEADS,
                                                .n_kv_heads = KV_HEADS,
                                                .head_dim = DIM,
                                                .reduce = kinds[i].reduce };
        measure(b, kinds[i].name, &(struct cuda_call){ run_bound, &t, (double)t.bytes });
    }
    b->c.dev->free(KVL_PLACE_DEVICE, (void *)(uintptr_t)t.table);
}

static void bench_channels(const struct bench *b, const float *q, float *out, float *ends)
{
    enum { TOK = 128 };
    const size_t head = (size_t)CONTEXT * DIM;
    struct turns t = turns_open(b, KV_HEADS * head * 2);
    int32_t host[KV_HEADS * CHANNELS], *channel = on_device(&b->c, sizeof host);
    for (int32_t i = 0; i < KV_HEADS * CHANNELS; i++) host[i] = i % CHANNELS * 4;
    need(b->c.dev->copy(channel, host, sizeof host, KVL_STREAM_MAIN), &b->c, "copy");
    t.channels = (struct kvl_channel_scores_args){ .score = out,
                                                   .score_stride = CONTEXT,
                                                   .max = ends,
                                                   .sum = ends + HEADS,
                                                   .q = q,
                                                   .factor = q,
                                                   .channel = channel,
                                                   .type = KVL_KV_BF16,
                                                   .head_stride = head,
                                                   .n_tok = CONTEXT,
                                                   .page_tok = TOK,
                                                   .n_channels = CHANNELS,
                                                   .n_heads = HEADS,
                                                   .n_kv_heads = KV_HEADS,
                                                   .head_dim = DIM };
    measure(b, "channel_scores 128K, 32 of 128 channels",
            &(struct cuda_call){ run_channels, &t, 2.0 * KV_HEADS * CONTEXT * CHANNELS });
    b->c.dev->free(KVL_PLACE_DEVICE, (void *)(uintptr_t)t.table);
    b->c.dev->free(KVL_PLACE_DEVICE, channel);
}

static void bench_key4(const struct bench *b, const float *q, float *out)
{
    struct turns t = turns_open(b, CONTEXT * KVL_KEY4_BYTES(DIM));
    t.key4 = (struct kvl_key4_logits_args){ .logit = out,
                                            .stride = CONTEXT,
                                            .q = q,
                                            .n = CONTEXT,
                                            .n_heads = HEADS / KV_HEADS,
                                            .head_dim = DIM,
                                            .scale = 1 };
    measure(b, "key4_logits 128K, one kv head, 4 heads",
            &(struct cuda_call){ run_key4, &t, (double)t.bytes });
    b->c.dev->free(KVL_PLACE_DEVICE, (void *)(uintptr_t)t.table);
}

int main(int argc, char **argv)
{
    struct bench b = { 0 };
    int status = cuda_bench_open(&b.c, "bench_cuda_select", argc, argv, 7);
    if (status != 0) return status;
    b.stream = on_device(&b.c, STREAM_BYTES);
    size_t floats = HEADS * (size_t)CONTEXT;
    float *q = on_device(&b.c, HEADS * DIM * sizeof *q),
          *out = on_device(&b.c, floats * sizeof *out);
    float *ends = on_device(&b.c, 2 * HEADS * sizeof *ends);
    struct kvl_random_fill_args fill = { .y = q, .n = HEADS * DIM, .seed = 2 };
    need(b.c.dev->ops->random_fill(&fill), &b.c, "random_fill");
    bench_topk(&b, 8192, 128);
    bench_topk(&b, 65536, 2048);
    bench_topk(&b, 1048576, 2048);
    bench_bound(&b, q, out);
    bench_channels(&b, q, out, ends);
    bench_key4(&b, q, out);
    b.c.dev->free(KVL_PLACE_DEVICE, q);
    b.c.dev->free(KVL_PLACE_DEVICE, out);
    b.c.dev->free(KVL_PLACE_DEVICE, ends);
    b.c.dev->free(KVL_PLACE_DEVICE, b.stream);
    return 0;
}
