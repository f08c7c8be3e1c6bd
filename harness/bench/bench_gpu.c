/* kvlab bench --device cuda (or hybrid): tokens at depths, with and without policies, against what their
 * bytes take at the speed of a streaming read.
 *
 * A GPU runs behind the program's back, so no part of a token can be timed by itself: attention is what a
 * token takes longer than at depth 0. */
#include "bench_gpu.h"

#include "policy_spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GPU_MAX_SUBJECTS = 8, GPU_CHUNK = 2048, GPU_CHUNK_DEPTH = 32768 };

struct gpu_subject {
    const char *name, *word; /* as lines call it; as --policies would */
    struct kvl_policy_spec spec;
    struct kvl_planned *planned[BENCH_MAX_LIST];
    struct kvl_session *at[BENCH_MAX_LIST]; /* attached, as the depths; none at depth 0 */
};

struct gpu_cost {
    double token[BENCH_MAX_ROUNDS]; /* seconds */
    /* Read of the cache and the index; of the host tier, brought or attended there. */
    double bytes, host;
    double waits; /* of the host for the device */
};

struct gpu_run {
    struct bench *b;
    struct bench_gpu gpu;
    struct bench_list depth; /* the first is 0 */
    struct bench_engine want;
    struct bench_depths d;
    struct gpu_subject subject[GPU_MAX_SUBJECTS];
    int32_t n;
    struct gpu_cost *cost; /* [n + 1][depths], the last row without a policy */
    double stream[BENCH_MAX_ROUNDS], pinned[BENCH_MAX_ROUNDS];
};

static const struct {
    const char *name, *word;
} gpu_usual[] = {
    { "quest", "quest:dense_layers=0" },
    { "quest_host", "quest:dense_layers=0,offload=true" },
    { "omnikv", "omnikv" },
    { "omnikv_host", "omnikv:offload=true" },
    { "streaming_llm", "streaming_llm" },
    { "h2o", "h2o" },
    { "snapkv", "snapkv" },
};

static struct gpu_cost *gpu_cost(const struct gpu_run *g, int32_t subject, int32_t depth)
{
    return &g->cost[subject * g->depth.n + depth];
}

/* ---- sessions ------------------------------------------------------------------------------------- */

static int gpu_plan(struct gpu_run *g)
{
    struct bench *b = g->b;
    g->want = (struct bench_engine){ .model = b->model, .kv_type = b->config.kv_type };
    for (int32_t j = 0; j < g->n; j++)
        for (int32_t i = 1; i < g->depth.n; i++) {
            struct gpu_subject *s = &g->subject[j];
            KVL_TRY(kvl_planned_create(s->spec.policy, kvl_model_shape(b->model),
                                       s->spec.options.data ? s->spec.options.data : "",
                                       b->config.budget_tok, g->depth.v[i], &s->planned[i],
                                       b->err));
            g->want.raw_keys |= kvl_planned_raw_keys(s->planned[i]);
            KVL_TRY(kvl_observer_set_merge(&g->want.observers, kvl_planned_observers(s->planned[i]),
                                           b->err));
        }
    return KVL_OK;
}

static int gpu_subjects(struct gpu_run *g)
{
    for (size_t j = 0; j < sizeof gpu_usual / sizeof gpu_usual[0]; j++) {
        struct gpu_subject *s = &g->subject[g->n];
        *s = (struct gpu_subject){ .name = gpu_usual[j].name, .word = gpu_usual[j].word };
        KVL_TRY(kvl_policy_spec_parse(g->b->registry, s->word, &s->spec, g->b->err));
        g->n++;
    }
    return gpu_plan(g);
}

static void gpu_subject_close(struct gpu_subject *s)
{
    for (int32_t i = 0; i < BENCH_MAX_LIST; i++) kvl_session_destroy(s->at[i]);
    for (int32_t i = 0; i < BENCH_MAX_LIST; i++) kvl_planned_destroy(s->planned[i]);
    kvl_policy_spec_free(&s->spec);
    *s = (struct gpu_subject){ 0 };
}

static int gpu_attach_one(struct gpu_run *g, struct gpu_subject *s)
{
    bench_say("%s: attach", s->name);
    for (int32_t i = 1; i < g->depth.n; i++) {
        KVL_TRY(kvl_session_fork(g->d.at[i], &s->at[i], g->b->err));
        KVL_TRY(kvl_session_attach(s->at[i], s->planned[i], 1, KVL_EXEC_REAL, g->b->err));
        KVL_TRY(bench_stopped(g->b));
    }
    return KVL_OK;
}

/* What a device refuses is left out, with its reason. */
static int gpu_attach(struct gpu_run *g)
{
    int32_t n = 0;
    for (int32_t j = 0; j < g->n; j++) {
        struct gpu_subject *s = &g->subject[j];
        int rc = gpu_attach_one(g, s);
        if (rc == KVL_EINVAL) {
            KVL_TRY(bench_skip(g->b, "%s: %s", s->name, g->b->err->msg));
            kvl_err_clear(g->b->err);
            gpu_subject_close(s);
            continue;
        }
        KVL_TRY(rc);
        if (n < j) {
            g->subject[n] = *s;
            *s = (struct gpu_subject){ 0 };
        }
        n++;
    }
    g->n = n;
    return KVL_OK;
}

static void gpu_close(struct gpu_run *g)
{
    for (int32_t j = 0; j < GPU_MAX_SUBJECTS; j++) gpu_subject_close(&g->subject[j]);
    bench_depths_close(&g->d);
    bench_gpu_close(&g->gpu);
    kvl_free(g->cost);
}

/* ---- rounds ----------------------------------------------------------------------------------------- */

static int gpu_token(struct gpu_run *g, int32_t subject, int32_t depth, int32_t round)
{
    const struct kvl_session *s = subject < g->n ? g->subject[subject].at[depth] : g->d.at[depth];
    struct gpu_cost *c = gpu_cost(g, subject, depth);
    struct bench_window w;
    KVL_TRY(bench_decode(g->b, s, g->d.logits, BENCH_STEPS, &w));
    c->token[round] = w.token_s;
    c->waits = w.waits;
    c->bytes = (double)(w.count.kv_read_bytes + w.count.index_read_bytes) / w.n;
    bool attends = g->b->device->attends_host;
    c->host = (double)(attends ? w.count.host_attend_bytes : w.count.h2d_bytes) / w.n;
    return KVL_OK;
}

static int gpu_round(struct gpu_run *g, int32_t r)
{
    KVL_TRY(bench_gpu_stream(&g->gpu, &g->stream[r]));
    KVL_TRY(bench_gpu_pinned(&g->gpu, &g->pinned[r]));
    KVL_TRY(gpu_token(g, g->n, 0, r));
    for (int32_t i = 1; i < g->depth.n; i++)
        for (int32_t j = 0; j <= g->n; j++) KVL_TRY(gpu_token(g, j, i, r));
    return KVL_OK;
}

/* ---- lines ------------------------------------------------------------------------------------------- */

struct gpu_row {
    const char *what, *unit, *policy, *against;
    int32_t depth;       /* index */
    const double *value; /* NULL: the ratio */
    const double *ratio;
};

/* Differences of times can be lost in their noise; such a line is left out, and told. */
static int gpu_emit(struct gpu_run *g, const struct gpu_row *row)
{
    int32_t n = g->b->config.rounds, depth = g->depth.v[row->depth];
    double v[BENCH_MAX_ROUNDS], x[BENCH_MAX_ROUNDS];
    for (int32_t r = 0; r < n; r++) {
        v[r] = row->value ? row->value[r] : row->ratio[r];
        x[r] = row->ratio[r];
        if (isfinite(x[r]) && x[r] > 0) continue;
        return bench_skip(g->b, "%s%s%s at %d: no time that can be told from its noise", row->what,
                          row->policy ? ", " : "", row->policy ? row->policy : "", depth);
    }
    struct bench_line line = { .part = "gpu",
                               .what = row->what,
                               .unit = row->unit,
                               .policy = row->policy,
                               .depth = depth,
                               .value = bench_spread(v, n),
                               .against = row->against,
                               .ratio = bench_spread(x, n) };
    bench_extra(&line, "weight_bytes", (double)kvl_model_token_bytes(g->b->model));
    return bench_emit(g->b, &line);
}

/* What a token takes longer than without a cache. */
static double gpu_attend(const struct gpu_run *g, int32_t subject, int32_t depth, int32_t r)
{
    return gpu_cost(g, subject, depth)->token[r] - gpu_cost(g, g->n, 0)->token[r];
}

static int gpu_emit_token(struct gpu_run *g, int32_t j, int32_t i)
{
    double ms[BENCH_MAX_ROUNDS], over[BENCH_MAX_ROUNDS];
    const struct gpu_cost *c = gpu_cost(g, j, i);
    double bytes = (double)kvl_model_token_bytes(g->b->model) + c->bytes;
    for (int32_t r = 0; r < g->b->config.rounds; r++) {
        ms[r] = 1e3 * c->token[r];
        over[r] = c->token[r] * g->stream[r] / bytes;
    }
    return gpu_emit(g, &(struct gpu_row){ "token", "ms/token", j < g->n ? g->subject[j].name : NULL,
                                          "its bytes over stream", i, ms, over });
}

/* Beside the speed, for what it costs: each is some 11 us of an idle device.  The token's own, for the logits, is one. */
static int gpu_emit_waits(struct gpu_run *g, int32_t j, int32_t i)
{
    double waits[BENCH_MAX_ROUNDS], a_layer[BENCH_MAX_ROUNDS];
    for (int32_t r = 0; r < g->b->config.rounds; r++) {
        waits[r] = gpu_cost(g, j, i)->waits;
        a_layer[r] = waits[r] / kvl_model_shape(g->b->model)->n_layers;
    }
    return gpu_emit(g,
                    &(struct gpu_row){ "waits", "waits/token", j < g->n ? g->subject[j].name : NULL,
                                       "layers", i, waits, a_layer });
}

static double gpu_peer(const struct bench *b, const char *what, const char *variant, int32_t depth)
{
    return b->peer ? b->peer(b, what, variant, depth) : 0.0;
}

static int gpu_emit_full(struct gpu_run *g, int32_t i)
{
    static const struct {
        const char *variant, *what;
    } peer[] = { { "enable_gqa", "attention against torch" },
                 { "repeat_kv", "attention against torch, repeated" } };
    double gbs[BENCH_MAX_ROUNDS], share[BENCH_MAX_ROUNDS];
    int32_t n = g->b->config.rounds;
    for (int32_t r = 0; r < n; r++) {
        double rate = gpu_cost(g, g->n, i)->bytes / gpu_attend(g, g->n, i, r);
        gbs[r] = 1e-9 * rate;
        share[r] = rate / g->stream[r];
    }
    KVL_TRY(gpu_emit(g, &(struct gpu_row){ "attention", "GB/s", NULL, "stream", i, gbs, share }));
    for (size_t k = 0; k < sizeof peer / sizeof peer[0]; k++) {
        double s = gpu_peer(g->b, "decode attention", peer[k].variant, g->depth.v[i]);
        if (s == 0) continue;
        s *= kvl_model_shape(g->b->model)->n_layers;
        for (int32_t r = 0; r < n; r++) share[r] = s / gpu_attend(g, g->n, i, r);
        KVL_TRY(gpu_emit(g, &(struct gpu_row){ peer[k].what, "ratio", NULL, "torch's best backend",
                                               i, NULL, share }));
    }
    return KVL_OK;
}

/* Attention and tokens under a policy against full attention's; pages from the host against those that
 * are there. */
static int gpu_emit_policy(struct gpu_run *g, int32_t j, int32_t i)
{
    const char *name = g->subject[j].name;
    const struct gpu_cost *c = gpu_cost(g, j, i), *full = gpu_cost(g, g->n, i);
    double attend[BENCH_MAX_ROUNDS], token[BENCH_MAX_ROUNDS], flat[BENCH_MAX_ROUNDS];
    for (int32_t r = 0; r < g->b->config.rounds; r++) {
        attend[r] = gpu_attend(g, g->n, i, r) / gpu_attend(g, j, i, r);
        token[r] = full->token[r] / c->token[r];
        flat[r] = c->token[r] / gpu_cost(g, j, 1)->token[r];
    }
    const struct gpu_row rows[] = {
        { "attention speed-up", "ratio", name, "full attention", i, NULL, attend },
        { "token speed-up", "ratio", name, "full attention", i, NULL, token },
        { "token, deep / shallow", "ratio", name, "its first depth", i, NULL, flat },
    };
    for (int k = 0; k < (i > 1 ? 3 : 2); k++) KVL_TRY(gpu_emit(g, &rows[k]));
    return KVL_OK;
}

/* Of the policy behind another that is the same but for where its keys and values are.  Attended there faster
 * than pinned copies are is faster than any fetch. */
static int gpu_emit_host(struct gpu_run *g, int32_t j, int32_t i)
{
    double gbs[BENCH_MAX_ROUNDS], share[BENCH_MAX_ROUNDS];
    const struct gpu_cost *host = gpu_cost(g, j, i), *device = gpu_cost(g, j - 1, i);
    const char *what = g->b->device->attends_host ? "attention on the host" : "pages from the host";
    if (j == 0 || host->host == 0) return KVL_OK;
    for (int32_t r = 0; r < g->b->config.rounds; r++) {
        double rate = host->host / (host->token[r] - device->token[r]);
        gbs[r] = 1e-9 * rate;
        share[r] = rate / g->pinned[r];
    }
    return gpu_emit(
        g, &(struct gpu_row){ what, "GB/s", g->subject[j].name, "pinned copy", i, gbs, share });
}

/* What tests/bench/bench_cuda_attn found: sessions do not choose where their blocks lie. */
static int gpu_emit_pages(struct gpu_run *g, int32_t i)
{
    double ratio = gpu_peer(g->b, "random pages", NULL, g->depth.v[i]);
    if (ratio == 0) return KVL_OK;
    struct bench_line line = { .part = "gpu",
                               .what = "attention, random pages",
                               .unit = "ratio",
                               .depth = g->depth.v[i],
                               .value = { ratio, ratio, ratio },
                               .against = "blocks in order",
                               .ratio = { ratio, ratio, ratio } };
    return bench_emit(g->b, &line);
}

static int gpu_emit_all(struct gpu_run *g)
{
    KVL_TRY(gpu_emit_token(g, g->n, 0));
    for (int32_t i = 1; i < g->depth.n; i++) {
        KVL_TRY(gpu_emit_token(g, g->n, i));
        KVL_TRY(gpu_emit_waits(g, g->n, i));
        KVL_TRY(gpu_emit_full(g, i));
        KVL_TRY(gpu_emit_pages(g, i));
        for (int32_t j = 0; j < g->n; j++) {
            KVL_TRY(gpu_emit_token(g, j, i));
            KVL_TRY(gpu_emit_waits(g, j, i));
            KVL_TRY(gpu_emit_policy(g, j, i));
            KVL_TRY(gpu_emit_host(g, j, i));
        }
    }
    return KVL_OK;
}

/* ---- prefill ------------------------------------------------------------------------------------------ */

/* Two products of n queries with d more keys, in every head of every layer. */
static double gpu_prefill_flops(const struct kvl_shape *s, double n, double d)
{
    return 4 * n * d * s->head_dim * s->n_heads * s->n_layers;
}

static int gpu_prefill_rounds(struct gpu_run *g, const struct bench_depths *d, int32_t chunk)
{
    double tflops[BENCH_MAX_ROUNDS], ratio[BENCH_MAX_ROUNDS], shallow, deep, warm;
    const struct kvl_shape *s = kvl_model_shape(g->b->model);
    int32_t n = g->b->config.rounds, depth = d->depth.v[1];
    double flops = gpu_prefill_flops(s, chunk, depth);
    double peer = gpu_peer(g->b, "prefill attention", "enable_gqa", depth);
    KVL_TRY(bench_prefill_time(g->b, d->engine, d->at[0], chunk, &warm));
    for (int32_t r = 0; r < n; r++) {
        KVL_TRY(bench_prefill_time(g->b, d->engine, d->at[0], chunk, &shallow));
        KVL_TRY(bench_prefill_time(g->b, d->engine, d->at[1], chunk, &deep));
        tflops[r] = 1e-12 * flops / (deep - shallow);
        ratio[r] = peer * s->n_layers / (deep - shallow);
        KVL_TRY(bench_stopped(g->b));
    }
    struct bench_line line = { .part = "gpu",
                               .what = "prefill attention, bf16",
                               .unit = "TFLOP/s",
                               .depth = depth,
                               .value = bench_spread(tflops, n) };
    if (!(line.value.lo > 0))
        return bench_skip(g->b, "prefill attention: no time that can be told from its noise");
    if (peer > 0) {
        line.against = "torch's best backend";
        line.ratio = bench_spread(ratio, n);
    }
    return bench_emit(g->b, &line);
}

static int gpu_prefill(struct gpu_run *g)
{
    int32_t deepest = g->depth.v[g->depth.n - 1];
    struct bench_list depth = { { 0, KVL_MIN(deepest, GPU_CHUNK_DEPTH) }, 2 };
    struct bench_engine want = { .model = g->b->model,
                                 .kv_type = g->b->config.kv_type,
                                 .bf16 = true };
    struct bench_depths d;
    bench_say("prefill");
    KVL_TRY(bench_depths_open(g->b, &want, &depth, &d));
    int rc = gpu_prefill_rounds(g, &d, g->b->config.quick ? GPU_CHUNK / 64 : GPU_CHUNK);
    bench_depths_close(&d);
    return rc;
}

/* ---- the part ------------------------------------------------------------------------------------------- */

static int gpu_tokens(struct gpu_run *g)
{
    struct bench *b = g->b;
    bench_say("filling %d depths", g->depth.n);
    KVL_TRY(bench_depths_open(b, &g->want, &g->depth, &g->d));
    KVL_TRY(gpu_attach(g));
    g->cost = kvl_alloc((size_t)((g->n + 1) * g->depth.n), sizeof *g->cost);
    if (!g->cost) return kvl_fail(b->err, KVL_ENOMEM, "out of memory for times");
    for (int32_t r = 0; r < b->config.rounds; r++) {
        bench_say("tokens: round %d of %d", r + 1, b->config.rounds);
        KVL_TRY(gpu_round(g, r));
    }
    return gpu_emit_all(g);
}

static int gpu_all(struct gpu_run *g)
{
    KVL_TRY(gpu_subjects(g));
    KVL_TRY(bench_gpu_open(g->b, &g->gpu));
    KVL_TRY(bench_gpu_machine(&g->gpu));
    KVL_TRY(bench_gpu_products(&g->gpu));
    KVL_TRY(gpu_tokens(g));
    return gpu_prefill(g);
}

int bench_gpu(struct bench *b)
{
    struct gpu_run *g = kvl_alloc(1, sizeof *g);
    const struct bench_list *depths = &b->config.depths;
    if (!g) return kvl_fail(b->err, KVL_ENOMEM, "out of memory");
    g->b = b;
    g->depth.n = 1;
    for (int32_t i = 0; i < depths->n && g->depth.n < BENCH_MAX_LIST; i++)
        if (depths->v[i] > 0) g->depth.v[g->depth.n++] = depths->v[i];
    int rc =
        g->depth.n > 1 ? gpu_all(g) : kvl_fail(b->err, KVL_EINVAL, "--depths: want one above 0");
    gpu_close(g);
    kvl_free(g);
    return rc;
}
