/* bench_cuda_host - pages from the host's pinned memory: the gather kernel against copies, by the size of a piece.
 *
 * usage: bench_cuda_host [rounds] [text]
 *
 * Only lines whose name contains `text` are measured.  A line has the time for 32 MiB of pieces from random places, their
 * rate, and which share of one pinned copy of as many bytes in the same round that is: medians, and the smallest and
 * largest share.  Where all were measured, the last line says from which size on copies were the faster way: below it a fetch is
 * better a gather, which is what every fetch is (core/ops/cuda/kv.cu, results/gpu-kernels.md).  Without a GPU: a line that says
 * so, exit status 1.
 */
#include "cuda_bench.h"
#include "lane.h"

enum {
    TOTAL = 32 << 20,
    ROOM = 128 << 20, /* pinned memory that pieces come from */
    DIM = 128,
    ROW = 2 * DIM, /* bytes of a key in bf16 */
    SIZES = 6
};

struct bench {
    struct cuda_bench c;
    uint8_t *host, *there;
    struct kvl_kv_move *move; /* of blocks of the size at hand */
    int32_t n_moves;
    struct kvl_layout layout;
};

static int run_copy(const struct kvl_device *dev, const void *args, int turn)
{
    const struct bench *b = args;
    (void)turn;
    return dev->copy(b->there, b->host, TOTAL, KVL_STREAM_COPY);
}

static int run_gather(const struct kvl_device *dev, const void *args, int turn)
{
    const struct bench *b = args;
    (void)turn;
    return dev->kv_gather(
        &(struct kvl_kv_move_args){ .layout = &b->layout, .move = b->move, .n_moves = b->n_moves });
}

static int run_copies(const struct kvl_device *dev, const void *args, int turn)
{
    const struct bench *b = args;
    (void)turn;
    for (int32_t i = 0; i < b->n_moves; i++)
        for (int part = 0; part < 2; part++) {
            size_t off = b->layout.part_off[part];
            KVL_TRY(dev->copy(b->move[i].to + off, b->move[i].from + off,
                              (size_t)b->move[i].n * ROW, KVL_STREAM_COPY));
        }
    return KVL_OK;
}

static double measure(const struct bench *b, const char *name, const struct cuda_call *c)
{
    if (!strstr(name, b->c.text)) return 0;
    struct cuda_share r = cuda_measure(&b->c, c, &(struct cuda_call){ run_copy, b, TOTAL });
    printf("%-32s %9.2f us %8.2f GB/s  share %.3f (%.3f .. %.3f)\n", name, r.time * 1e6,
           c->work / r.time * 1e-9, r.share, r.share_lo, r.share_hi);
    fflush(stdout);
    return r.time;
}

/* Blocks of n tokens, keys before values: each place of the device from another block of the host's. */
static void moves_of(struct bench *b, int32_t n)
{
    size_t block = (size_t)n * 2 * ROW, have = ROOM / block;
    uint64_t random = 1;
    b->layout = (struct kvl_layout){ .head_dim = DIM,
                                     .block_tok = n,
                                     .type = { KVL_KV_BF16, KVL_KV_BF16, KVL_KV_BF16 },
                                     .row_bytes = { ROW, ROW, ROW },
                                     .part_off = { 0, (size_t)n * ROW, SIZE_MAX },
                                     .data_bytes = block,
                                     .bytes = block };
    b->n_moves = (int32_t)(TOTAL / block);
    for (int32_t i = 0; i < b->n_moves; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        b->move[i] = (struct kvl_kv_move){ .to = b->there + (size_t)i * block,
                                           .from = b->host + (size_t)(random >> 33) % have * block,
                                           .n = n,
                                           .at = i * n };
    }
}

int main(int argc, char **argv)
{
    static const int32_t tokens[SIZES] = { 1, 4, 16, 64, 256, 1024 };
    struct bench b = { 0 };
    const size_t move_bytes = TOTAL / (2 * ROW) * sizeof *b.move;
    double from = 0;
    int n_both = 0;
    int rc = cuda_bench_open(&b.c, "bench_cuda_host", argc, argv, 5);
    if (rc != 0) return rc;
    b.host = some(&b.c, b.c.dev->alloc(KVL_PLACE_PINNED, ROOM, 1), ROOM);
    b.there = on_device(&b.c, TOTAL);
    b.move = some(&b.c, malloc(move_bytes), move_bytes);
    measure(&b, "copy, all in one", &(struct cuda_call){ run_copy, &b, TOTAL });
    for (int i = 0; i < SIZES; i++) {
        char name[2][48];
        double bytes = (double)tokens[i] * ROW;
        moves_of(&b, tokens[i]);
        snprintf(name[0], sizeof name[0], "gather, pieces of %g KiB", bytes / 1024);
        snprintf(name[1], sizeof name[1], "copies, pieces of %g KiB", bytes / 1024);
        double gather = measure(&b, name[0], &(struct cuda_call){ run_gather, &b, TOTAL });
        double copies = measure(&b, name[1], &(struct cuda_call){ run_copies, &b, TOTAL });
        if (gather == 0 || copies == 0) continue;
        n_both++;
        from = copies < gather ? (from > 0 ? from : bytes) : 0;
    }
    if (n_both < SIZES)
        printf("not every size was measured both ways: no verdict\n");
    else if (from > 0)
        printf("copies are the faster way from pieces of %g KiB on\n", from / 1024);
    else
        printf("a gather is the faster way for every size\n");
    b.c.dev->free(KVL_PLACE_PINNED, b.host);
    b.c.dev->free(KVL_PLACE_DEVICE, b.there);
    free(b.move);
    return 0;
}
