/* Cost of the store's operations, in ns per lane and call: append of one token, of a chunk, fork,
 * and keep as the methods use it.  A shape of 8 lanes with head_dim 128, f16, 16-token blocks. */
#include "kvl/kvstore.h"

#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 2, HEADS = 4, LANES = LAYERS * HEADS, DIM = 128, CHUNK = 512, CONTEXT = 32768 };

static struct kvl_err err;
static float rows[CHUNK * HEADS * DIM];
static int32_t positions[CONTEXT + 1];

static void must(int rc)
{
    if (rc == KVL_OK) return;
    fprintf(stderr, "%s\n", err.msg);
    exit(kvl_status_exit(rc));
}

static void print(const char *what, uint64_t ns, int64_t n_calls)
{
    printf("%-44s %10.0f ns\n", what, (double)ns / (double)n_calls);
}

static void append(struct kvl_seq *seq, int32_t from, int32_t n)
{
    for (int32_t i = 0; i < n; i++) positions[i] = from + i;
    for (int32_t l = 0; l < LAYERS; l++)
        must(kvl_seq_append(seq, l, n, positions, rows, NULL, rows, &err));
}

static void keep(struct kvl_seq *seq, const int32_t *pos, int32_t n)
{
    for (int32_t lane = 0; lane < LANES; lane++)
        must(kvl_seq_keep(seq, lane / HEADS, lane % HEADS, pos, n, &err));
}

/* Every `step`-th position, and the last 64. */
static int32_t spread(int32_t step, int32_t *pos)
{
    int32_t n = 0;
    for (int32_t p = 0; p < CONTEXT; p++)
        if (p % step == 0 || p >= CONTEXT - 64) pos[n++] = p;
    return n;
}

static void bench_stream(struct kvl_store *store, int32_t budget)
{
    struct kvl_seq *seq;
    int32_t *pos = kvl_alloc((size_t)budget + 1, sizeof *pos), n = budget, next = budget;
    enum { STEPS = 2000 };
    if (!pos) must(KVL_ENOMEM);
    must(kvl_seq_create(store, &seq, &err));
    for (int32_t p = 0; p < budget; p += CHUNK) append(seq, p, CHUNK);
    for (int32_t i = 0; i < budget; i++) pos[i] = i;
    uint64_t append_ns = 0, keep_ns = 0;
    for (int32_t s = 0; s < STEPS; s++, next++) {
        uint64_t t0 = kvl_now_ns();
        append(seq, next, 1);
        uint64_t t1 = kvl_now_ns();
        for (int32_t i = 4; i + 1 < n; i++) pos[i] = pos[i + 1];
        pos[n - 1] = next;
        uint64_t t2 = kvl_now_ns();
        keep(seq, pos, n);
        append_ns += t1 - t0;
        keep_ns += kvl_now_ns() - t2;
    }
    char what[64];
    snprintf(what, sizeof what, "append of a token, stream of %d", budget);
    print(what, append_ns, (int64_t)STEPS * LANES);
    snprintf(what, sizeof what, "keep, stream of %d", budget);
    print(what, keep_ns, (int64_t)STEPS * LANES);
    kvl_seq_destroy(seq);
    kvl_free(pos);
}

static void bench_keep(const struct kvl_seq *context, const char *what, const int32_t *pos,
                       int32_t n)
{
    struct kvl_seq *fork;
    struct kvl_seq_stats st;
    must(kvl_seq_fork(context, &fork, &err));
    uint64_t t0 = kvl_now_ns();
    keep(fork, pos, n);
    print(what, kvl_now_ns() - t0, LANES);
    kvl_seq_stats(fork, &st);
    printf("    %lld of %lld blocks still shared\n", (long long)st.n_shared,
           (long long)st.n_blocks);
    kvl_seq_destroy(fork);
}

int main(void)
{
    const struct kvl_store_desc desc = {
        .n_layers = LAYERS, .n_kv_heads = HEADS, .head_dim = DIM, .type = KVL_KV_F16
    };
    struct kvl_store *store;
    struct kvl_seq *seq, *fork;
    must(kvl_store_create(&desc, &store, &err));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) rows[i] = (float)(i % 97) / 97.0f;
    bench_stream(store, 1024);
    bench_stream(store, 4096);

    must(kvl_seq_create(store, &seq, &err));
    uint64_t t0 = kvl_now_ns();
    for (int32_t p = 0; p < CONTEXT; p += CHUNK) append(seq, p, CHUNK);
    print("append of a chunk of 512, per token", kvl_now_ns() - t0, (int64_t)CONTEXT * LANES);
    t0 = kvl_now_ns();
    must(kvl_seq_fork(seq, &fork, &err));
    print("fork of 32768 tokens", kvl_now_ns() - t0, LANES);
    t0 = kvl_now_ns();
    append(fork, CONTEXT, 1);
    print("first append to a fork", kvl_now_ns() - t0, LANES);
    kvl_seq_destroy(fork);

    static int32_t pos[CONTEXT];
    for (int32_t i = 0; i < CONTEXT; i++) pos[i] = i;
    bench_keep(seq, "keep all of 32768", pos, CONTEXT);
    bench_keep(seq, "keep every 32nd and 64", pos, spread(32, pos));
    bench_keep(seq, "keep every other", pos, spread(2, pos));
    int32_t n = 0;
    for (int32_t p = 0; p < CONTEXT; p++)
        if (p < 4 || p >= CONTEXT - 4090) pos[n++] = p;
    bench_keep(seq, "keep 4 and the last 4090", pos, n);
    n = 0;
    for (int32_t p = 0; p < CONTEXT; p++)
        if (p / 20 % 8 == 0) pos[n++] = p;
    bench_keep(seq, "keep every 8th chunk of 20", pos, n);
    for (n = 0; n < CONTEXT - 1; n++) pos[n] = n + (n >= 100);
    bench_keep(seq, "keep all but one of 32768", pos, n);
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
    return 0;
}
