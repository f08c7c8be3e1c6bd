/* What a sweep costs beyond what it cannot avoid: every policy at every budget on one prompt, against
 * one prefill and the decodes, in time and in memory. */
#include "bench.h"

#include "policy_spec.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum {
    SWEEP_CONTEXT = 2048,
    SWEEP_CONTEXT_QUICK = 512,
    SWEEP_STEPS = 16,
    SWEEP_BUDGETS = 3, /* 1/16, 1/8 and 1/4 of the context */
    SWEEP_MAX = 64,
    SWEEP_ROUNDS = 3,
};

static const char *const sweep_policies[] = { "streaming_llm", "h2o",    "snapkv",
                                              "quest",         "omnikv", "infllm" };
enum { SWEEP_POLICIES = sizeof sweep_policies / sizeof sweep_policies[0] };

struct sweep_cell {
    const struct kvl_policy *policy;
    struct kvl_planned *planned;
    struct kvl_session *s;
    double decode_s;
};

struct bench_sweep {
    struct bench *b;
    struct kvl_engine *engine;
    struct sweep_cell cell[SWEEP_MAX];
    int32_t n, n_ctx, threads;
    int32_t *id;                                            /* [n_ctx] */
    float *logits;                                          /* [n][n_vocab] */
    double wall[BENCH_MAX_ROUNDS], least[BENCH_MAX_ROUNDS]; /* seconds */
    double batch[BENCH_MAX_ROUNDS], alone[BENCH_MAX_ROUNDS];
    double held, needed; /* bytes */
};

/* ---- cells --------------------------------------------------------------------------------------------------- */

static int cells_add(struct bench_sweep *w, const char *name, int32_t budget,
                     struct bench_engine *engine)
{
    struct bench *b = w->b;
    struct sweep_cell *c = &w->cell[w->n];
    if (kvl_registry_find_policy(b->registry, name, &c->policy, b->err) != KVL_OK) {
        kvl_err_clear(b->err); /* this build has others */
        return KVL_OK;
    }
    KVL_TRY(kvl_planned_create(c->policy, kvl_model_shape(b->model), "", budget, w->n_ctx - 1,
                               &c->planned, b->err));
    w->n++;
    engine->raw_keys |= kvl_planned_raw_keys(c->planned);
    return kvl_observer_set_merge(&engine->observers, kvl_planned_observers(c->planned), b->err);
}

static int sweep_open(struct bench_sweep *w)
{
    struct bench *b = w->b;
    struct bench_engine engine = { .model = b->model, .kv_type = b->config.kv_type };
    for (size_t p = 0; p < SWEEP_POLICIES; p++)
        for (int32_t k = 0; k < SWEEP_BUDGETS; k++)
            KVL_TRY(cells_add(w, sweep_policies[p], w->n_ctx >> (4 - k), &engine));
    if (w->n == 0) return KVL_OK;
    size_t n_vocab = (size_t)kvl_model_shape(b->model)->n_vocab;
    w->id = kvl_alloc((size_t)w->n_ctx, sizeof *w->id);
    w->logits = kvl_alloc((size_t)w->n * n_vocab, sizeof *w->logits);
    if (!w->id || !w->logits) return kvl_fail(b->err, KVL_ENOMEM, "out of memory for a sweep");
    for (int32_t i = 0; i < w->n_ctx; i++)
        w->id[i] = (int32_t)(kvl_seed_mix(3, (uint64_t)i) % n_vocab);
    return bench_engine_open(b, &engine, &w->engine);
}

static void cells_end(struct bench_sweep *w)
{
    for (int32_t i = 0; i < w->n; i++) {
        kvl_session_destroy(w->cell[i].s);
        w->cell[i].s = NULL;
    }
}

static void sweep_close(struct bench_sweep *w)
{
    cells_end(w);
    for (int32_t i = 0; i < w->n; i++) kvl_planned_destroy(w->cell[i].planned);
    kvl_engine_destroy(w->engine);
    kvl_free(w->id);
    kvl_free(w->logits);
}

static double since(uint64_t t0)
{
    return 1e-9 * (double)(kvl_now_ns() - t0);
}

/* A cell starts as in a sweep: budgets of a policy share what the context decides. */
static int cell_start(struct bench_sweep *w, const struct kvl_session *context, int32_t i)
{
    struct sweep_cell *c = &w->cell[i];
    const struct sweep_cell *before = i > 0 ? c - 1 : NULL;
    const struct kvl_session *like = before && before->policy == c->policy ? before->s : NULL;
    KVL_TRY(kvl_session_fork(context, &c->s, w->b->err));
    return kvl_session_attach_like(c->s, c->planned, 1, KVL_EXEC_REAL, like, w->b->err);
}

static int cell_decode(struct bench_sweep *w, struct sweep_cell *c)
{
    int32_t id = w->id[w->n_ctx - 1];
    uint64_t t0 = kvl_now_ns();
    for (int32_t i = 0; i < SWEEP_STEPS; i++) {
        KVL_TRY(kvl_session_decode(&c->s, 1, &id, w->logits, w->b->err));
        id = kvl_argmax(w->logits, kvl_model_shape(w->b->model)->n_vocab);
    }
    c->decode_s = since(t0);
    return bench_stopped(w->b);
}

/* ---- rounds ---------------------------------------------------------------------------------------------------- */

static int sweep_prefill(struct bench_sweep *w, struct kvl_session **out)
{
    KVL_TRY(kvl_session_create(w->engine, out, w->b->err));
    return kvl_session_prefill(*out, w->id, w->n_ctx - 1, NULL, true, w->b->err);
}

/* Sessions stay, so that they can be decoded in one batch and weighed. */
static int sweep_cells(struct bench_sweep *w, int32_t r, struct kvl_session **context)
{
    uint64_t t0 = kvl_now_ns();
    KVL_TRY(sweep_prefill(w, context));
    w->least[r] = since(t0);
    w->alone[r] = 0;
    for (int32_t i = 0; i < w->n; i++) {
        KVL_TRY(cell_start(w, *context, i));
        KVL_TRY(cell_decode(w, &w->cell[i]));
        w->alone[r] += w->cell[i].decode_s;
    }
    w->wall[r] = since(t0);
    w->least[r] += w->alone[r];
    return KVL_OK;
}

static int sweep_batch(struct bench_sweep *w, int32_t r)
{
    struct kvl_session *all[SWEEP_MAX];
    int32_t id[SWEEP_MAX], n_vocab = kvl_model_shape(w->b->model)->n_vocab;
    for (int32_t i = 0; i < w->n; i++) {
        all[i] = w->cell[i].s;
        id[i] = w->id[i];
    }
    uint64_t t0 = kvl_now_ns();
    for (int32_t k = 0; k < SWEEP_STEPS; k++) {
        KVL_TRY(kvl_session_decode(all, w->n, id, w->logits, w->b->err));
        for (int32_t i = 0; i < w->n; i++)
            id[i] = kvl_argmax(w->logits + (size_t)i * (size_t)n_vocab, n_vocab);
    }
    w->batch[r] = since(t0);
    return KVL_OK;
}

/* One store, what each policy keeps for itself (once for the budgets that share it) and what forks
 * that evict have copied, against the blocks in use and the memory that the forks took. */
static int sweep_memory(struct bench_sweep *w)
{
    struct kvl_session *context = NULL;
    struct kvl_store_stats before, after;
    int rc = sweep_prefill(w, &context);
    kvl_store_stats(kvl_engine_store(w->engine), &before);
    (void)malloc_trim(0); /* what earlier rounds freed would hide what these forks take */
    size_t rss = bench_rss();
    for (int32_t i = 0; rc == KVL_OK && i < w->n; i++) rc = cell_start(w, context, i);
    if (rc == KVL_OK) {
        struct kvl_store_desc d = *kvl_store_desc(kvl_engine_store(w->engine));
        double slot = (double)kvl_kv_slot_bytes(d.type, d.head_dim, d.raw_keys);
        kvl_store_stats(kvl_engine_store(w->engine), &after);
        w->needed = (double)before.bytes;
        for (int32_t i = 0; i < w->n; i++) {
            const struct sweep_cell *c = &w->cell[i];
            struct kvl_seq_stats st;
            bool shares =
                i > 0 && c[-1].policy == c->policy && (c->policy->caps & KVL_CAP_SHARES_META) != 0;
            kvl_seq_stats(kvl_session_seq(c->s), &st);
            if (!shares) w->needed += (double)kvl_session_meta_bytes(c->s);
            if (c->policy->caps & KVL_CAP_EVICTS) w->needed += slot * (double)st.n_slots;
        }
        w->held = (double)before.bytes + (double)KVL_MAX(bench_rss(), rss) - (double)rss;
        w->held = KVL_MAX(w->held, (double)after.bytes);
    }
    cells_end(w);
    kvl_session_destroy(context);
    return rc;
}

static int sweep_round(struct bench_sweep *w, int32_t r)
{
    struct kvl_session *context = NULL;
    bench_say("sweep of %d cells on %d tokens, %d threads: round %d of %d", w->n, w->n_ctx,
              w->threads, r + 1, w->b->config.rounds);
    int rc = sweep_cells(w, r, &context);
    if (rc == KVL_OK) rc = sweep_batch(w, r);
    cells_end(w);
    kvl_session_destroy(context);
    return rc;
}

static int sweep_emit(struct bench_sweep *w, int32_t rounds)
{
    struct bench *b = w->b;
    struct bench_line line = { .part = "sweep",
                               .what = "sweep wall",
                               .unit = "s",
                               .threads = w->threads,
                               .depth = w->n_ctx,
                               .against = "1 prefill + its decodes",
                               .ratio = bench_ratio(w->wall, w->least, rounds) };
    bench_extra(&line, "cells", w->n);
    bench_extra(&line, "steps", SWEEP_STEPS);
    line.value = bench_spread(w->wall, rounds);
    KVL_TRY(bench_emit(b, &line));
    line.what = "all cells in one batch";
    line.against = "decodes alone";
    line.ratio = bench_ratio(w->batch, w->alone, rounds);
    line.value = bench_spread(w->batch, rounds);
    KVL_TRY(bench_emit(b, &line));
    if (!(w->needed > 0)) return KVL_OK;
    double mib = w->held / (1 << 20), ratio = w->held / w->needed;
    line.what = "memory of all forks";
    line.unit = "MiB";
    line.against = "store + metadata + copies";
    line.value = (struct bench_spread){ mib, mib, mib };
    line.ratio = (struct bench_spread){ ratio, ratio, ratio };
    return bench_emit(b, &line);
}

int bench_sweep(struct bench *b)
{
    struct bench_sweep *w = kvl_alloc(1, sizeof *w);
    if (!w) return kvl_fail(b->err, KVL_ENOMEM, "out of memory");
    int32_t rounds = KVL_MIN(b->config.rounds, SWEEP_ROUNDS);
    w->b = b;
    w->n_ctx = b->config.quick ? SWEEP_CONTEXT_QUICK : SWEEP_CONTEXT;
    w->threads = b->config.threads.v[b->config.threads.n - 1];
    kvl_ops_set_threads(w->threads);
    int rc = sweep_open(w);
    if (rc == KVL_OK && w->n == 0)
        rc = bench_skip(b, "sweep: none of its policies is there");
    else {
        for (int32_t r = 0; rc == KVL_OK && r < rounds; r++) rc = sweep_round(w, r);
        if (rc == KVL_OK) rc = sweep_memory(w);
        if (rc == KVL_OK) rc = sweep_emit(w, rounds);
    }
    sweep_close(w);
    kvl_free(w);
    return rc;
}
