/* A token under each policy: where its time goes, and what its bytes would allow. */
#include "bench.h"

#include "policy_spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POLICY_MAX = 16, POLICY_SHALLOW = 16384 };

static const char policy_usual[] = "streaming_llm;h2o;snapkv;quest:dense_layers=0;omnikv;infllm";

struct subject {
    struct kvl_policy_spec spec;
    const char *name;
    bool raw_keys;
    struct kvl_planned *planned[BENCH_MAX_LIST];
    struct kvl_session *at[BENCH_MAX_LIST]; /* attached, as the depths */
};

/* Milliseconds and bytes of a token, per round. */
struct cost {
    double token[BENCH_MAX_ROUNDS], meta[BENCH_MAX_ROUNDS], select[BENCH_MAX_ROUNDS],
        attend[BENCH_MAX_ROUNDS], evict[BENCH_MAX_ROUNDS], rest[BENCH_MAX_ROUNDS],
        stream[BENCH_MAX_ROUNDS]; /* bytes per millisecond */
    double kv_bytes, index_bytes, attended_tok;
};

/* Keys before RoPE lie beside the others and would cost those a third of their bandwidth: who needs
 * them gets an engine of its own. */
struct policies {
    struct bench *b;
    struct bench_list depth;
    struct bench_engine want[2]; /* without and with raw keys */
    struct bench_depths d[2];
    struct subject subject[POLICY_MAX];
    int32_t n;
    struct cost *cost; /* [n + 1][depths], the last row without a policy */
};

static struct cost *cost_at(const struct policies *p, int32_t policy, int32_t depth)
{
    return &p->cost[policy * p->depth.n + depth];
}

/* ---- policies by name ---------------------------------------------------------------------------------- */

static int subjects_add(struct bench *b, const char *word, void *user)
{
    struct policies *p = user;
    if (p->n == POLICY_MAX)
        return kvl_fail(b->err, KVL_EINVAL, "--policies: more than %d", POLICY_MAX);
    struct subject *s = &p->subject[p->n];
    KVL_TRY(kvl_policy_spec_parse(b->registry, word, &s->spec, b->err));
    s->name = s->spec.policy->name;
    p->n++;
    return KVL_OK;
}

/* Between policies stands a semicolon, or, where none of them has options, a comma. */
int bench_policy_words(struct bench *b, const char *text,
                       int (*each)(struct bench *b, const char *word, void *user), void *user)
{
    const char *between = text[kvl_outside(text, ";:=")] ? ";" : ",";
    char word[256];
    bool any = false;
    while (*text) {
        size_t len = kvl_outside(text, between);
        if (len >= sizeof word)
            return kvl_fail(b->err, KVL_EINVAL, "--policies: a word longer than %zu letters",
                            sizeof word - 1);
        snprintf(word, sizeof word, "%.*s", (int)len, text);
        if (len > 0) KVL_TRY(each(b, word, user));
        any |= len > 0;
        text += len + (text[len] != '\0');
    }
    return any ? KVL_OK : kvl_fail(b->err, KVL_EINVAL, "--policies: none given, want a name");
}

static int subjects_parse(struct policies *p)
{
    const char *text = p->b->config.policies ? p->b->config.policies : policy_usual;
    return bench_policy_words(p->b, text, subjects_add, p);
}

static int subject_plan(struct policies *p, struct subject *s, int32_t i)
{
    struct bench *b = p->b;
    int32_t budget = kvl_policy_ignores_budget(s->spec.policy) ? 0 : b->config.budget_tok;
    KVL_TRY(kvl_planned_create(s->spec.policy, kvl_model_shape(b->model),
                               s->spec.options.data ? s->spec.options.data : "", budget,
                               p->depth.v[i], &s->planned[i], b->err));
    s->raw_keys = kvl_planned_raw_keys(s->planned[i]);
    return kvl_observer_set_merge(&p->want[s->raw_keys].observers,
                                  kvl_planned_observers(s->planned[i]), b->err);
}

/* ---- sessions -------------------------------------------------------------------------------------------- */

static int subject_attach(struct policies *p, struct subject *s, int32_t i)
{
    struct bench *b = p->b;
    KVL_TRY(kvl_session_fork(p->d[s->raw_keys].at[i], &s->at[i], b->err));
    KVL_TRY(kvl_session_attach(s->at[i], s->planned[i], 1, KVL_EXEC_REAL, b->err));
    double ms = 1e-6 * (double)kvl_session_counters(s->at[i])->attach_ns;
    struct bench_line line = { .part = "policy",
                               .what = "attach",
                               .unit = "ms",
                               .policy = s->name,
                               .threads = kvl_ops_threads(),
                               .depth = p->depth.v[i],
                               .value = { ms, ms, ms } };
    bench_extra(&line, "metadata_bytes", (double)kvl_session_meta_bytes(s->at[i]));
    KVL_TRY(bench_emit(b, &line));
    return bench_stopped(b);
}

static int policies_plan(struct policies *p)
{
    for (int k = 0; k < 2; k++)
        p->want[k] = (struct bench_engine){ .model = p->b->model,
                                            .kv_type = p->b->config.kv_type,
                                            .raw_keys = k == 1 };
    for (int32_t j = 0; j < p->n; j++)
        for (int32_t i = 0; i < p->depth.n; i++) KVL_TRY(subject_plan(p, &p->subject[j], i));
    return KVL_OK;
}

static int policies_open(struct policies *p)
{
    struct bench *b = p->b;
    bool raw = false;
    KVL_TRY(policies_plan(p));
    for (int32_t j = 0; j < p->n; j++) raw |= p->subject[j].raw_keys;
    for (int k = 0; k < (raw ? 2 : 1); k++)
        KVL_TRY(bench_depths_open(b, &p->want[k], &p->depth, &p->d[k]));
    kvl_ops_set_threads(0);
    for (int32_t j = 0; j < p->n; j++) {
        bench_say("%s: attach at %d depth%s", p->subject[j].name, p->depth.n,
                  p->depth.n > 1 ? "s" : "");
        for (int32_t i = 0; i < p->depth.n; i++) KVL_TRY(subject_attach(p, &p->subject[j], i));
    }
    p->cost = kvl_alloc((size_t)((p->n + 1) * p->depth.n), sizeof *p->cost);
    return p->cost ? KVL_OK : kvl_fail(b->err, KVL_ENOMEM, "out of memory for times");
}

static void policies_close(struct policies *p)
{
    for (int32_t j = 0; j < POLICY_MAX; j++) {
        struct subject *s = &p->subject[j];
        for (int32_t i = 0; i < BENCH_MAX_LIST; i++) kvl_session_destroy(s->at[i]);
        for (int32_t i = 0; i < BENCH_MAX_LIST; i++) kvl_planned_destroy(s->planned[i]);
        kvl_policy_spec_free(&s->spec);
    }
    for (int k = 0; k < 2; k++) bench_depths_close(&p->d[k]);
    kvl_free(p->cost);
}

/* ---- rounds ------------------------------------------------------------------------------------------------ */

static int cost_round(struct policies *p, const struct kvl_session *s, struct cost *c,
                      int32_t threads, int32_t round)
{
    struct bench_window w;
    c->stream[round] = 1e-3 * bench_stream(p->b, threads);
    KVL_TRY(bench_decode(p->b, s, p->d[0].logits, BENCH_STEPS, &w));
    const struct kvl_counters *k = &w.count;
    double per_ms = 1e-6 / w.n;
    c->token[round] = 1e3 * w.token_s;
    c->meta[round] = per_ms * (double)k->meta_ns;
    c->select[round] = per_ms * (double)k->select_ns;
    c->attend[round] = per_ms * (double)k->attend_ns;
    c->evict[round] = per_ms * (double)k->evict_ns;
    c->rest[round] =
        c->token[round] - c->meta[round] - c->select[round] - c->attend[round] - c->evict[round];
    c->kv_bytes = (double)k->kv_read_bytes / w.n;
    c->index_bytes = (double)k->index_read_bytes / w.n;
    double lanes = (double)(k->attended_lanes + k->dense_lanes);
    c->attended_tok = lanes > 0 ? (double)(k->attended_tok + k->dense_tok) / lanes : 0;
    return KVL_OK;
}

/* All depths of a policy one after the other: how flat it is over them is the narrowest of the
 * comparisons. */
static int policies_round(struct policies *p, int32_t threads, int32_t r)
{
    for (int32_t j = 0; j <= p->n; j++)
        for (int32_t i = 0; i < p->depth.n; i++) {
            const struct kvl_session *s = j < p->n ? p->subject[j].at[i] : p->d[0].at[i];
            KVL_TRY(cost_round(p, s, cost_at(p, j, i), threads, r));
        }
    return KVL_OK;
}

static int policies_rounds(struct policies *p, int32_t threads)
{
    for (int32_t r = 0; r < p->b->config.rounds; r++) {
        bench_say("policies, %d thread%s: round %d of %d", threads, threads > 1 ? "s" : "", r + 1,
                  p->b->config.rounds);
        KVL_TRY(policies_round(p, threads, r));
    }
    return KVL_OK;
}

/* ---- lines ------------------------------------------------------------------------------------------------- */

struct parts_ms {
    double meta, select, attend, evict, rest;
};

static void emit_parts(const struct parts_ms *ms, const struct cost *c)
{
    const double v[] = { ms->meta,
                         ms->select,
                         ms->attend,
                         ms->evict,
                         ms->rest,
                         c->kv_bytes / (1 << 20),
                         c->index_bytes / (1 << 20) };
    char text[sizeof v / sizeof v[0]][BENCH_DIGITS];
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) bench_digits(v[i], text[i]);
    printf(
        "         metadata %s, score and top-k %s, attention %s, evict %s, rest %s ms; KV %s MiB, "
        "index %s MiB\n",
        text[0], text[1], text[2], text[3], text[4], text[5], text[6]);
    fflush(stdout);
}

static int emit_token(struct policies *p, const char *name, struct cost c, int32_t threads,
                      int32_t depth)
{
    int32_t n = p->b->config.rounds;
    double share[BENCH_MAX_ROUNDS], weights = (double)kvl_model_token_bytes(p->b->model);
    for (int32_t r = 0; r < n; r++)
        share[r] = (weights + c.kv_bytes + c.index_bytes) / c.token[r] / c.stream[r];
    struct bench_line line = { .part = "policy",
                               .what = "token",
                               .unit = "ms/token",
                               .policy = name,
                               .threads = threads,
                               .depth = depth,
                               .against = "stream",
                               .ratio = bench_spread(share, n) };
    line.value = bench_spread(c.token, n);
    const struct parts_ms ms = { bench_spread(c.meta, n).mid, bench_spread(c.select, n).mid,
                                 bench_spread(c.attend, n).mid, bench_spread(c.evict, n).mid,
                                 bench_spread(c.rest, n).mid };
    bench_extra(&line, "meta_ms", ms.meta);
    bench_extra(&line, "select_ms", ms.select);
    bench_extra(&line, "attend_ms", ms.attend);
    bench_extra(&line, "evict_ms", ms.evict);
    bench_extra(&line, "rest_ms", ms.rest);
    bench_extra(&line, "kv_read_bytes", c.kv_bytes);
    bench_extra(&line, "index_read_bytes", c.index_bytes);
    bench_extra(&line, "attended_tok", c.attended_tok);
    KVL_TRY(bench_emit(p->b, &line));
    emit_parts(&ms, &c);
    return KVL_OK;
}

/* What is of attention and its policy: all but products, norms and the head. */
static double cost_own(const struct cost *c, int32_t r)
{
    return c->meta[r] + c->select[r] + c->attend[r] + c->evict[r];
}

enum derived { OWN_BYTES, OVERHEAD, SPEED_UP, FLAT, N_DERIVED };

static double derive(const struct policies *p, enum derived what, int32_t policy, int32_t depth,
                     int32_t first, int32_t r)
{
    const struct cost *c = cost_at(p, policy, depth), *full = cost_at(p, p->n, depth);
    switch (what) {
    case OWN_BYTES: return cost_own(c, r) / ((c->kv_bytes + c->index_bytes) / c->stream[r]);
    case OVERHEAD:
        return (c->meta[r] + c->select[r] + c->evict[r]) /
               (c->index_bytes / c->stream[r] + c->attend[r]);
    case SPEED_UP: return full->attend[r] / cost_own(c, r);
    default: return c->token[r] / cost_at(p, policy, first)->token[r];
    }
}

static int emit_derived(struct policies *p, int32_t policy, int32_t depth, int32_t first,
                        int32_t threads)
{
    static const struct {
        const char *what, *against;
    } row[N_DERIVED] = {
        [OWN_BYTES] = { "attention time / bytes", "its bytes over stream" },
        [OVERHEAD] = { "policy overhead", "its bytes over stream + attention" },
        [SPEED_UP] = { "attention speed-up", "full attention" },
        [FLAT] = { "token, deep / shallow", "its first depth" },
    };
    const struct subject *s = &p->subject[policy];
    int32_t n = p->b->config.rounds;
    for (int d = 0; d < N_DERIVED; d++) {
        double v[BENCH_MAX_ROUNDS];
        if (d == FLAT && depth == first) continue;
        for (int32_t r = 0; r < n; r++) v[r] = derive(p, (enum derived)d, policy, depth, first, r);
        struct bench_line line = { .part = "policy",
                                   .what = row[d].what,
                                   .unit = "ratio",
                                   .policy = s->name,
                                   .threads = threads,
                                   .depth = p->depth.v[depth],
                                   .value = bench_spread(v, n) };
        line.against = row[d].against;
        line.ratio = line.value;
        KVL_TRY(bench_emit(p->b, &line));
    }
    return KVL_OK;
}

static int policies_emit(struct policies *p, int32_t threads)
{
    for (int32_t j = 0; j <= p->n; j++)
        for (int32_t i = 0; i < p->depth.n; i++) {
            const char *name = j < p->n ? p->subject[j].name : "none";
            KVL_TRY(emit_token(p, name, *cost_at(p, j, i), threads, p->depth.v[i]));
            if (j < p->n) KVL_TRY(emit_derived(p, j, i, 0, threads));
        }
    return KVL_OK;
}

/* Depths from 16K on, or whatever there is below; the shallowest of them is what "flat" is measured
 * against. */
static struct bench_list policies_depths(const struct bench_config *c)
{
    struct bench_list out = { 0 };
    for (int32_t i = 0; i < c->depths.n; i++)
        if (c->depths.v[i] >= POLICY_SHALLOW) out.v[out.n++] = c->depths.v[i];
    if (out.n == 0 && c->depths.v[c->depths.n - 1] > 0)
        out.v[out.n++] = c->depths.v[c->depths.n - 1];
    return out;
}

static int policies_run(struct policies *p)
{
    KVL_TRY(subjects_parse(p));
    KVL_TRY(policies_open(p));
    for (int32_t t = 0; t < p->b->config.threads.n; t++) {
        int32_t threads = p->b->config.threads.v[t];
        KVL_TRY(policies_rounds(p, threads));
        KVL_TRY(policies_emit(p, threads));
    }
    return KVL_OK;
}

static int policies_check(struct policies *p)
{
    KVL_TRY(subjects_parse(p));
    return p->b->model ? policies_plan(p) : KVL_OK;
}

static int policies_with(struct bench *b, int (*run)(struct policies *p))
{
    struct policies *p = kvl_alloc(1, sizeof *p);
    if (!p) return kvl_fail(b->err, KVL_ENOMEM, "out of memory");
    p->b = b;
    p->depth = policies_depths(&b->config);
    int rc = run(p);
    policies_close(p);
    kvl_free(p);
    return rc;
}

int bench_policy_check(struct bench *b)
{
    return policies_with(b, policies_check);
}

int bench_policy(struct bench *b)
{
    if (policies_depths(&b->config).n == 0)
        return bench_skip(b, "policies: no depth above 0 (--depths)");
    return policies_with(b, policies_run);
}
