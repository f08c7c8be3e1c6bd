/* Prefill: a chunk at two depths, in float and in bf16; what observers add; what memory it needs. */
#include "bench.h"

#include "kvl/peak.h"

enum {
    PREFILL_CHUNK = 512,
    PREFILL_DEEP = 16384,    /* of the chunk that the goals name */
    PREFILL_OBSERVED = 4096, /* depth of the chunk that observers see */
    PREFILL_MEMORY = 131072, /* depth at which the workspace is measured */
    PREFILL_WINDOW = 32,     /* queries that SnapKV asks for */
    PREFILL_ROUNDS = 3,
    PREFILL_FMA = 2000000,
};

enum prefill_side { F32, BF16, OBS_NONE, OBS_COLUMNS, OBS_WINDOW, N_SIDES };

struct prefill {
    struct bench *b;
    struct kvl_engine *engine[N_SIDES]; /* those of observers are that of F32 */
    struct kvl_session *deep[N_SIDES];
    double shallow_s[2][BENCH_MAX_ROUNDS], deep_s[N_SIDES][BENCH_MAX_ROUNDS],
        attach_s[BENCH_MAX_ROUNDS], fma[BENCH_MAX_ROUNDS];
    struct kvl_planned *snapkv;
    int32_t rounds;
    int32_t depth, observed; /* capped by the depths of the run */
};

/* ---- sessions -------------------------------------------------------------------------------------------- */

static int prefill_session(struct prefill *p, enum prefill_side side,
                           const struct kvl_observer_set *set)
{
    bool observed = side >= OBS_NONE;
    if (observed) p->engine[side] = p->engine[F32];
    KVL_TRY(kvl_engine_observe(p->engine[side], set, p->b->err));
    KVL_TRY(kvl_session_create(p->engine[side], &p->deep[side], p->b->err));
    return kvl_session_fill(p->deep[side], observed ? p->observed : p->depth, 1, p->b->err);
}

static int prefill_open(struct prefill *p)
{
    struct bench *b = p->b;
    const struct kvl_policy *policy;
    static const struct kvl_observer_set none = { 0 }, window = { .window = PREFILL_WINDOW },
                                         columns = { .column = { { KVL_OBS_COLUMNS, 0 } },
                                                     .n_columns = 1 };
    for (int side = F32; side <= BF16; side++) {
        struct bench_engine want = { .model = b->model,
                                     .kv_type = b->config.kv_type,
                                     .bf16 = side == BF16 };
        KVL_TRY(bench_engine_open(b, &want, &p->engine[side]));
        KVL_TRY(prefill_session(p, (enum prefill_side)side, &none));
    }
    KVL_TRY(prefill_session(p, OBS_NONE, &none));
    KVL_TRY(prefill_session(p, OBS_COLUMNS, &columns));
    KVL_TRY(prefill_session(p, OBS_WINDOW, &window));
    if (kvl_registry_find_policy(b->registry, "snapkv", &policy, b->err) != KVL_OK) {
        kvl_err_clear(b->err);
        return bench_skip(b, "the window's own cost: there is no policy snapkv");
    }
    return kvl_planned_create(policy, kvl_model_shape(b->model), "", b->config.budget_tok,
                              p->observed, &p->snapkv, b->err);
}

static void prefill_close(struct prefill *p)
{
    for (int side = 0; side < N_SIDES; side++) kvl_session_destroy(p->deep[side]);
    for (int side = F32; side <= BF16; side++) kvl_engine_destroy(p->engine[side]);
    kvl_planned_destroy(p->snapkv);
}

/* ---- rounds ------------------------------------------------------------------------------------------------ */

static int prefill_attach(struct prefill *p, double *seconds)
{
    struct kvl_session *fork;
    *seconds = 0;
    if (!p->snapkv) return KVL_OK;
    KVL_TRY(kvl_session_fork(p->deep[OBS_WINDOW], &fork, p->b->err));
    int rc = kvl_session_attach(fork, p->snapkv, 1, KVL_EXEC_REAL, p->b->err);
    if (rc == KVL_OK) *seconds = 1e-9 * (double)kvl_session_counters(fork)->attach_ns;
    kvl_session_destroy(fork);
    return rc;
}

static int prefill_round(struct prefill *p, int32_t r)
{
    struct bench *b = p->b;
    uint64_t t0 = kvl_now_ns();
    double work = kvl_peak_fma(PREFILL_FMA);
    p->fma[r] = 1e9 * work / (double)(kvl_now_ns() - t0);
    for (int side = F32; side <= BF16; side++)
        KVL_TRY(
            bench_prefill_time(b, p->engine[side], NULL, PREFILL_CHUNK, &p->shallow_s[side][r]));
    for (int side = 0; side < N_SIDES; side++) {
        KVL_TRY(bench_prefill_time(b, p->engine[side], p->deep[side], PREFILL_CHUNK,
                                   &p->deep_s[side][r]));
        KVL_TRY(bench_stopped(b));
    }
    return prefill_attach(p, &p->attach_s[r]);
}

/* ---- lines ------------------------------------------------------------------------------------------------- */

/* Multiply-adds of a chunk after `depth` tokens, times two. */
static double prefill_flops(const struct bench *b, int32_t depth)
{
    const struct kvl_shape *s = kvl_model_shape(b->model);
    double n = PREFILL_CHUNK, pairs = n * depth + 0.5 * n * (n + 1);
    return 2 * n * bench_model_params(b->config.shape, b->model) +
           4.0 * s->head_dim * s->n_heads * s->n_layers * pairs;
}

static int emit_chunk(struct prefill *p, enum prefill_side side, int32_t depth, double *seconds,
                      int32_t threads)
{
    double share[BENCH_MAX_ROUNDS], flops = prefill_flops(p->b, depth);
    for (int32_t r = 0; r < p->rounds; r++) share[r] = flops / seconds[r] / p->fma[r];
    struct bench_line line = { .part = "prefill",
                               .what = side == BF16 ? "chunk of 512, bf16" : "chunk of 512, f32",
                               .unit = "s",
                               .threads = threads,
                               .depth = depth,
                               .against = "FMA peak",
                               .ratio = bench_spread(share, p->rounds) };
    line.value = bench_spread(seconds, p->rounds);
    bench_extra(&line, "flops", flops);
    return bench_emit(p->b, &line);
}

/* More than a chunk without observers takes, as a share of it.  A window also costs once for a
 * prompt: that is spread over a prefill of the whole depth, whose chunks grow linearly. */
static int emit_observer(struct prefill *p, enum prefill_side side, const char *what,
                         int32_t threads)
{
    double v[BENCH_MAX_ROUNDS];
    double n_chunks = (double)p->observed / PREFILL_CHUNK + 1;
    for (int32_t r = 0; r < p->rounds; r++) {
        v[r] = p->deep_s[side][r] / p->deep_s[OBS_NONE][r] - 1;
        double whole = n_chunks * (p->shallow_s[F32][r] + p->deep_s[OBS_NONE][r]) / 2;
        if (side == OBS_WINDOW) v[r] += p->attach_s[r] / whole;
    }
    struct bench_line line = { .part = "prefill",
                               .what = what,
                               .unit = "ratio",
                               .threads = threads,
                               .depth = p->observed,
                               .against = "prefill without" };
    line.value = line.ratio = bench_spread(v, p->rounds);
    return bench_emit(p->b, &line);
}

static int prefill_emit(struct prefill *p, int32_t threads)
{
    /* The lines of observers need the times in the order of the rounds: first. */
    KVL_TRY(emit_observer(p, OBS_COLUMNS, "observer: column sums", threads));
    KVL_TRY(emit_observer(p, OBS_WINDOW, "observer: window", threads));
    for (int side = F32; side <= BF16; side++) {
        double *deep = p->deep_s[side], *shallow = p->shallow_s[side];
        KVL_TRY(emit_chunk(p, (enum prefill_side)side, 0, shallow, threads));
        KVL_TRY(emit_chunk(p, (enum prefill_side)side, p->depth, deep, threads));
    }
    return KVL_OK;
}

static int prefill_run(struct prefill *p)
{
    KVL_TRY(prefill_open(p));
    for (int32_t t = 0; t < p->b->config.threads.n; t++) {
        int32_t threads = p->b->config.threads.v[t];
        kvl_ops_set_threads(threads);
        for (int32_t r = 0; r < p->rounds; r++) {
            bench_say("prefill, %d thread%s: round %d of %d", threads, threads > 1 ? "s" : "",
                      r + 1, p->rounds);
            KVL_TRY(prefill_round(p, r));
        }
        KVL_TRY(prefill_emit(p, threads));
    }
    return KVL_OK;
}

int bench_prefill(struct bench *b)
{
    struct prefill *p = kvl_alloc(1, sizeof *p);
    if (!p) return kvl_fail(b->err, KVL_ENOMEM, "out of memory");
    int32_t deepest = KVL_MAX(b->config.depths.v[b->config.depths.n - 1], PREFILL_CHUNK);
    p->b = b;
    p->rounds = KVL_MIN(b->config.rounds, PREFILL_ROUNDS);
    p->depth = KVL_MIN(PREFILL_DEEP, deepest);
    p->observed = KVL_MIN(PREFILL_OBSERVED, deepest);
    int rc = prefill_run(p);
    prefill_close(p);
    kvl_free(p);
    return rc;
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

/* All that a chunk at a great depth takes beyond what was there before the engine (the weights, which
 * have been read once, among it) and the blocks of the cache.  First of all parts: scratch that
 * others leave behind would count as there. */
int bench_prefill_memory(struct bench *b)
{
    struct kvl_engine *engine;
    struct kvl_session *s = NULL;
    struct kvl_store_stats stats = { 0 };
    double seconds = 0;
    int32_t deepest = b->config.depths.v[b->config.depths.n - 1];
    int32_t depth = KVL_MAX(KVL_MIN(PREFILL_MEMORY, deepest), PREFILL_CHUNK);
    struct bench_engine want = { .model = b->model, .kv_type = b->config.kv_type };
    size_t before = bench_rss();
    bench_say("memory of a prefill at depth %d", depth);
    kvl_ops_set_threads(0);
    KVL_TRY(bench_engine_open(b, &want, &engine));
    int rc = kvl_session_create(engine, &s, b->err);
    if (rc == KVL_OK) rc = kvl_session_fill(s, depth, 1, b->err);
    bool known = bench_rss_reset() && before > 0;
    if (rc == KVL_OK) rc = bench_prefill_time(b, engine, s, PREFILL_CHUNK, &seconds);
    kvl_store_stats(kvl_engine_store(engine), &stats);
    double more = (double)bench_rss_peak() - (double)before - (double)stats.peak_bytes;
    kvl_session_destroy(s);
    kvl_engine_destroy(engine);
    if (rc != KVL_OK) return rc;
    if (!known) return bench_skip(b, "memory of a prefill: this system does not tell");
    struct bench_line line = { .part = "prefill",
                               .what = "memory beyond weights, KV",
                               .unit = "MiB",
                               .threads = kvl_ops_threads(),
                               .depth = depth };
    double mib = more / (1 << 20);
    line.value = (struct bench_spread){ mib, mib, mib };
    bench_extra(&line, "kv_bytes", (double)stats.peak_bytes);
    bench_extra(&line, "chunk_s", seconds);
    return bench_emit(b, &line);
}
