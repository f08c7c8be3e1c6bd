/* One token at every depth: bytes of the weights and of the cache, over the time, over streaming. */
#include "bench.h"

#include <stdlib.h>
#include <unistd.h>

enum { TOKEN_PAGES_DEPTH = 32768 };

struct token_times {
    double token_ms[BENCH_MAX_ROUNDS], share[BENCH_MAX_ROUNDS]; /* of the limit, the whole token */
    double attend[BENCH_MAX_ROUNDS], attend_share[BENCH_MAX_ROUNDS]; /* GB/s */
    double kv_bytes, attend_ms[BENCH_MAX_ROUNDS], rest_ms[BENCH_MAX_ROUNDS];
};

static int token_round(struct bench *b, const struct bench_depths *d, int32_t i,
                       const struct kvl_model *model, int32_t threads, int32_t round,
                       struct token_times *t)
{
    struct bench_window w;
    double stream = bench_stream(b, threads);
    KVL_TRY(bench_decode(b, d->at[i], d->logits, BENCH_STEPS, &w));
    double kv = (double)w.count.kv_read_bytes / w.n;
    double attend_s = 1e-9 * (double)w.count.attend_ns / w.n;
    t->kv_bytes = kv;
    t->token_ms[round] = 1e3 * w.token_s;
    t->share[round] = ((double)kvl_model_token_bytes(model) + kv) / w.token_s / stream;
    t->attend[round] = 1e-9 * kv / attend_s;
    t->attend_share[round] = kv / attend_s / stream;
    t->attend_ms[round] = 1e3 * attend_s;
    t->rest_ms[round] = 1e3 * (w.token_s - attend_s);
    return KVL_OK;
}

struct token_names {
    const char *token, *attention;
};

static int token_emit(struct bench *b, struct token_times *t, const struct token_names *names,
                      int32_t threads, int32_t depth)
{
    int32_t n = b->config.rounds;
    struct bench_line line = { .part = "token",
                               .what = names->token,
                               .unit = "ms/token",
                               .threads = threads,
                               .depth = depth,
                               .value = bench_spread(t->token_ms, n),
                               .against = "stream",
                               .ratio = bench_spread(t->share, n) };
    bench_extra(&line, "kv_read_bytes", t->kv_bytes);
    bench_extra(&line, "weight_bytes", (double)kvl_model_token_bytes(b->model));
    bench_extra(&line, "attend_ms", bench_spread(t->attend_ms, n).mid);
    bench_extra(&line, "rest_ms", bench_spread(t->rest_ms, n).mid);
    KVL_TRY(bench_emit(b, &line));
    if (depth == 0 || !names->attention) return KVL_OK; /* a few tokens: no attention to speak of */
    line = (struct bench_line){ .part = "token",
                                .what = names->attention,
                                .unit = "GB/s",
                                .threads = threads,
                                .depth = depth,
                                .value = bench_spread(t->attend, n),
                                .against = "stream",
                                .ratio = bench_spread(t->attend_share, n) };
    return bench_emit(b, &line);
}

/* All depths of one engine, by turns. */
static int token_depths(struct bench *b, const struct bench_depths *d,
                        const struct kvl_model *model, const struct token_names *names)
{
    struct token_times *t = kvl_alloc(BENCH_MAX_LIST, sizeof *t);
    if (!t) return kvl_fail(b->err, KVL_ENOMEM, "out of memory for times");
    int rc = KVL_OK;
    for (int32_t j = 0; rc == KVL_OK && j < b->config.threads.n; j++) {
        int32_t threads = b->config.threads.v[j];
        for (int32_t r = 0; rc == KVL_OK && r < b->config.rounds; r++)
            for (int32_t i = 0; rc == KVL_OK && i < d->depth.n; i++)
                rc = token_round(b, d, i, model, threads, r, &t[i]);
        for (int32_t i = 0; rc == KVL_OK && i < d->depth.n; i++)
            rc = token_emit(b, &t[i], names, threads, d->depth.v[i]);
    }
    kvl_free(t);
    return rc;
}

/* With activations in 8 bits as well, at the first depth, where the weights are all: a GPU has none. */
static int token_all(struct bench *b)
{
    struct bench_engine want = { .model = b->model, .kv_type = b->config.kv_type };
    struct bench_list first = { .v = { b->config.depths.v[0] }, .n = 1 };
    struct bench_depths d;
    bench_say("tokens at %d depths", b->config.depths.n);
    KVL_TRY(bench_depths_open(b, &want, &b->config.depths, &d));
    int rc = token_depths(b, &d, b->model, &(struct token_names){ "decode", "attention" });
    bench_depths_close(&d);
    want.q8 = true;
    if (rc != KVL_OK || b->device || b->config.decode_act == KVL_DECODE_Q8) return rc;
    KVL_TRY(bench_depths_open(b, &want, &first, &d));
    rc = token_depths(b, &d, b->model, &(struct token_names){ "decode, 8-bit activations", NULL });
    bench_depths_close(&d);
    return rc;
}

/* Attention over pages of another type, where the store has them. */
static int token_pages(struct bench *b, enum kvl_kv_type type, const struct token_names *names)
{
    struct bench_engine want = { .model = b->model, .kv_type = type };
    int32_t deepest = b->config.depths.v[b->config.depths.n - 1];
    struct bench_list depth = { .v = { KVL_MIN(TOKEN_PAGES_DEPTH, deepest) }, .n = 1 };
    struct bench_depths d;
    if (b->config.kv_type == type || depth.v[0] == 0) return KVL_OK;
    int rc = bench_depths_open(b, &want, &depth, &d);
    if (rc == KVL_EINVAL) { /* a store without them */
        kvl_err_clear(b->err);
        return bench_skip(b, "%s: the store has none", names->attention);
    }
    KVL_TRY(rc);
    rc = token_depths(b, &d, b->model, names);
    bench_depths_close(&d);
    return rc;
}

/* Depth 0 of the same shape with other weights. */
static int token_weights(struct bench *b, enum kvl_wtype type, const char *what)
{
    char *path;
    struct kvl_model *own = b->model;
    KVL_TRY(bench_model_temp(b->config.shape, type, &path, b->err));
    int rc = kvl_model_open(path, &b->model, b->err);
    unlink(path); /* stays mapped */
    free(path);
    if (rc != KVL_OK) return rc;
    struct bench_engine want = { .model = b->model, .kv_type = b->config.kv_type };
    struct bench_list depth = { .n = 1 };
    struct bench_depths d;
    rc = bench_depths_open(b, &want, &depth, &d);
    if (rc == KVL_OK) {
        rc = token_depths(b, &d, b->model, &(struct token_names){ what, NULL });
        bench_depths_close(&d);
    }
    kvl_model_close(b->model);
    b->model = own;
    return rc;
}

int bench_token(struct bench *b)
{
    static const struct {
        enum kvl_wtype type;
        const char *what;
    } others[] = { { KVL_W_F16, "decode, F16 weights" },
                   { KVL_W_Q8_0, "decode, Q8_0 weights" },
                   { KVL_W_Q4_0, "decode, Q4_0 weights" } };
    static const struct {
        enum kvl_kv_type type;
        struct token_names names;
    } pages[] = { { KVL_KV_BF16, { "decode, bf16 pages", "attention, bf16 pages" } },
                  { KVL_KV_Q8_0, { "decode, q8_0 pages", "attention, q8_0 pages" } } };
    KVL_TRY(token_all(b));
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++)
        KVL_TRY(token_pages(b, pages[i].type, &pages[i].names));
    for (size_t i = 0; b->config.shape && i < sizeof others / sizeof others[0]; i++) {
        bench_say("%s", others[i].what);
        KVL_TRY(token_weights(b, others[i].type, others[i].what));
    }
    return KVL_OK;
}
