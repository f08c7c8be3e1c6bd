/* A million tokens in the cache of one model: what they take, what a fork of them takes, what a token
 * costs under policies that read little of them. */
#include "bench_goals.h"

enum { MILLION_TOK = 1 << 20 };

/* At their original positions: keys before RoPE would take half as much again. */
static const struct {
    const char *name, *options;
} million_policies[] = {
    { "quest", "" }, { "streaming_llm", "positions=original" }, { "snapkv", "" }, { "h2o", "" }
};
enum { MILLION_POLICIES = sizeof million_policies / sizeof million_policies[0] };

struct million {
    struct bench *b;
    struct kvl_engine *engine;
    struct kvl_session *s;
    struct kvl_planned *planned[MILLION_POLICIES];
    float *logits;
    int32_t threads;
};

/* Bytes of the blocks of a million tokens. */
static double million_bytes(const struct bench *b)
{
    const struct kvl_shape *s = kvl_model_shape(b->model);
    double slot =
        (double)kvl_kv_slot_bytes(b->config.kv_type, s->head_dim, false) + sizeof(int32_t);
    return slot * s->n_layers * s->n_kv_heads * MILLION_TOK;
}

/* Tables of Quest are an eighth, and H2O's sums two floats for each query head. */
static double million_needs(const struct bench *b)
{
    const struct kvl_shape *s = kvl_model_shape(b->model);
    double sums = 4.0 * sizeof(float) * s->n_layers * s->n_heads * MILLION_TOK;
    return 1.25 * million_bytes(b) + sums + (double)((size_t)512 << 20);
}

static int million_emit(struct million *m, const char *what, const char *policy, double value,
                        const char *unit, double bytes)
{
    struct bench_line line = { .part = "million",
                               .what = what,
                               .unit = unit,
                               .policy = policy,
                               .threads = m->threads,
                               .depth = MILLION_TOK,
                               .value = { value, value, value } };
    bench_extra(&line, "bytes", bytes);
    return bench_emit(m->b, &line);
}

static int million_open(struct million *m)
{
    struct bench *b = m->b;
    struct bench_engine want = { .model = b->model, .kv_type = b->config.kv_type };
    for (int i = 0; i < MILLION_POLICIES; i++) {
        const struct kvl_policy *policy;
        KVL_TRY(kvl_registry_find_policy(b->registry, million_policies[i].name, &policy, b->err));
        KVL_TRY(kvl_planned_create(policy, kvl_model_shape(b->model), million_policies[i].options,
                                   b->config.budget_tok, MILLION_TOK, &m->planned[i], b->err));
        KVL_TRY(
            kvl_observer_set_merge(&want.observers, kvl_planned_observers(m->planned[i]), b->err));
    }
    m->logits = kvl_alloc((size_t)kvl_model_shape(b->model)->n_vocab, sizeof *m->logits);
    if (!m->logits) return kvl_fail(b->err, KVL_ENOMEM, "out of memory for logits");
    return bench_engine_open(b, &want, &m->engine);
}

static double million_since(uint64_t t0)
{
    return 1e-9 * (double)(kvl_now_ns() - t0);
}

static int million_fill(struct million *m)
{
    struct kvl_store_stats stats;
    uint64_t t0 = kvl_now_ns();
    KVL_TRY(kvl_session_create(m->engine, &m->s, m->b->err));
    KVL_TRY(kvl_session_fill(m->s, MILLION_TOK, 1, m->b->err));
    double spent = million_since(t0);
    kvl_store_stats(kvl_engine_store(m->engine), &stats);
    KVL_TRY(million_emit(m, "store filled", NULL, spent, "s", (double)stats.bytes));
    return million_emit(m, "store", NULL, (double)stats.bytes / (1 << 20), "MiB",
                        (double)stats.bytes);
}

static int million_fork(struct million *m)
{
    double ms[BENCH_MAX_ROUNDS];
    size_t before = bench_rss();
    for (int32_t r = 0; r < m->b->config.rounds; r++) {
        struct kvl_session *fork;
        uint64_t t0 = kvl_now_ns();
        KVL_TRY(kvl_session_fork(m->s, &fork, m->b->err));
        ms[r] = 1e3 * million_since(t0);
        kvl_session_destroy(fork);
    }
    double grown = (double)bench_rss() - (double)before;
    return million_emit(m, "fork", NULL, bench_spread(ms, m->b->config.rounds).mid, "ms", grown);
}

static int million_decode(struct million *m, const struct kvl_session *s, const char *policy)
{
    double ms[BENCH_MAX_ROUNDS], bytes = 0;
    for (int32_t r = 0; r < m->b->config.rounds; r++) {
        struct bench_window w;
        KVL_TRY(bench_decode(m->b, s, m->logits, BENCH_STEPS, &w));
        ms[r] = 1e3 * w.token_s;
        bytes = (double)(w.count.kv_read_bytes + w.count.index_read_bytes) / w.n;
    }
    return million_emit(m, "token of a million", policy, bench_spread(ms, m->b->config.rounds).mid,
                        "ms/token", bytes);
}

static int million_policy(struct million *m, int i)
{
    struct kvl_session *s;
    struct kvl_seq_stats own;
    const char *name = million_policies[i].name;
    bench_say("a million tokens: %s", name);
    KVL_TRY(kvl_session_fork(m->s, &s, m->b->err));
    uint64_t t0 = kvl_now_ns();
    int rc = kvl_session_attach(s, m->planned[i], 1, KVL_EXEC_REAL, m->b->err);
    double spent = million_since(t0);
    if (rc == KVL_OK) {
        kvl_seq_stats(kvl_session_seq(s), &own);
        double bytes = (double)kvl_session_meta_bytes(s) + (double)own.physical_bytes;
        rc = million_emit(m, "attach to a million", name, spent, "s", bytes);
    }
    if (rc == KVL_OK) rc = million_decode(m, s, name);
    kvl_session_destroy(s);
    return rc == KVL_OK ? bench_stopped(m->b) : rc;
}

static int million_run(struct million *m)
{
    KVL_TRY(million_open(m));
    bench_say("a million tokens: store");
    KVL_TRY(million_fill(m));
    KVL_TRY(million_fork(m));
    KVL_TRY(million_decode(m, m->s, NULL));
    for (int i = 0; i < MILLION_POLICIES; i++) KVL_TRY(million_policy(m, i));
    return KVL_OK;
}

static int million_model(struct bench *b)
{
    double needs = million_needs(b), there = (double)bench_memory_free();
    if (there < needs)
        return bench_skip(b, "a million tokens of %s: %.1f GiB of memory, want %.1f",
                          kvl_model_name(b->model), there / (1 << 30), needs / (1 << 30));
    struct million m = { .b = b, .threads = b->config.threads.v[b->config.threads.n - 1] };
    kvl_ops_set_threads(m.threads);
    int rc = million_run(&m);
    kvl_session_destroy(m.s);
    for (int i = 0; i < MILLION_POLICIES; i++) kvl_planned_destroy(m.planned[i]);
    kvl_engine_destroy(m.engine);
    kvl_free(m.logits);
    return rc;
}

int bench_million(struct bench *b, const char *path)
{
    struct kvl_model *own = b->model;
    KVL_TRY(kvl_model_open(path, &b->model, b->err));
    int rc = million_model(b);
    kvl_model_close(b->model);
    b->model = own;
    return rc;
}
