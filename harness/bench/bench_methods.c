/* kvlab bench methods: what a token costs under every method, beside full attention. */
#include "bench.h"

#include "policy_spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A context that a method reads itself is computed, not filled: that of more tokens takes minutes. */
enum { METHODS_OWN_PREFILL = 16384, METHODS_STEPS = 16, METHODS_COLUMN = 20 };

/* One method at one depth: an engine with what it asks for, and a session of that depth, empty for a
 * method with its own prefill. */
struct method {
    const struct kvl_policy_spec *spec;
    struct kvl_planned *planned;
    struct bench_depths d;
};

struct methods {
    struct bench *b;
    int32_t threads, depth;
    double full_bytes; /* that full attention reads per token at this depth */
    struct kvl_buf skipped;
};

/* Medians over the rounds, per token. */
struct method_cost {
    double meta_ms, select_ms, attend_ms, evict_ms, fetch_ms;
    struct bench_spread token_ms;
    double kv_bytes, index_bytes, fetch_bytes, attended_tok;
    double attach_ms, table_bytes;
};

/* ---- a method at a depth ---------------------------------------------------------------------------- */

static double median(double *v, int32_t n)
{
    return bench_spread(v, n).mid;
}

static int method_rounds(const struct methods *m, const struct kvl_session *s, float *logits,
                         struct method_cost *out)
{
    enum { META, SELECT, ATTEND, EVICT, FETCH, TOKEN, N_TIMES };
    double ms[N_TIMES][BENCH_MAX_ROUNDS];
    struct bench_window w = { 0 };
    int32_t n = m->b->config.rounds;
    for (int32_t r = 0; r < n; r++) {
        KVL_TRY(bench_decode_steps(m->b, s, logits, METHODS_STEPS, &w));
        const struct kvl_counters *k = &w.count;
        const uint64_t ns[] = {
            [META] = k->meta_ns,   [SELECT] = k->select_ns, [ATTEND] = k->attend_ns,
            [EVICT] = k->evict_ns, [FETCH] = k->fetch_ns,   [TOKEN] = 0
        };
        for (int i = 0; i < TOKEN; i++) ms[i][r] = 1e-6 * (double)ns[i] / w.n;
        ms[TOKEN][r] = 1e3 * w.token_s;
    }
    const struct kvl_counters *k = &w.count;
    double lanes = (double)(k->attended_lanes + k->dense_lanes);
    out->meta_ms = median(ms[META], n);
    out->select_ms = median(ms[SELECT], n);
    out->attend_ms = median(ms[ATTEND], n);
    out->evict_ms = median(ms[EVICT], n);
    out->fetch_ms = median(ms[FETCH], n);
    out->token_ms = bench_spread(ms[TOKEN], n);
    out->kv_bytes = (double)k->kv_read_bytes / w.n;
    out->index_bytes = (double)k->index_read_bytes / w.n;
    out->fetch_bytes = (double)k->h2d_bytes / w.n;
    out->attended_tok = lanes > 0 ? (double)(k->attended_tok + k->dense_tok) / lanes : 0;
    return KVL_OK;
}

static int method_read(struct bench *b, struct kvl_session *s, int32_t n)
{
    struct kvl_rng rng;
    uint32_t n_vocab = (uint32_t)kvl_model_shape(b->model)->n_vocab;
    int32_t *id = kvl_alloc((size_t)n, sizeof *id);
    if (!id) return kvl_fail(b->err, KVL_ENOMEM, "out of memory for %d tokens", n);
    kvl_rng_seed(&rng, 1);
    for (int32_t i = 0; i < n; i++) id[i] = (int32_t)kvl_rng_below(&rng, n_vocab);
    int rc = kvl_session_prefill(s, id, n, NULL, true, b->err);
    kvl_free(id);
    return rc;
}

static int method_plan(const struct methods *m, struct method *x)
{
    struct bench *b = m->b;
    const struct kvl_policy *policy = x->spec->policy;
    int32_t budget = kvl_policy_ignores_budget(policy) ? 0 : b->config.budget_tok;
    return (x->spec->own ? kvl_planned_create_own : kvl_planned_create)(
        policy, kvl_model_shape(b->model), x->spec->options.data ? x->spec->options.data : "",
        budget, m->depth, &x->planned, b->err);
}

static int method_open(const struct methods *m, struct method *x)
{
    struct bench *b = m->b;
    struct bench_engine want = { .model = b->model, .kv_type = b->config.kv_type };
    struct bench_list depth = { { m->depth }, 1 };
    KVL_TRY(method_plan(m, x));
    want.raw_keys = kvl_planned_raw_keys(x->planned);
    KVL_TRY(kvl_observer_set_merge(&want.observers, kvl_planned_observers(x->planned), b->err));
    if (kvl_planned_own_prefill(x->planned)) {
        depth.v[0] = 0;
        if (m->depth > METHODS_OWN_PREFILL)
            return kvl_fail(b->err, KVL_EINVAL, "reads its context itself: here %d tokens at most",
                            METHODS_OWN_PREFILL);
    }
    return bench_depths_open(b, &want, &depth, &x->d);
}

static int method_run(const struct methods *m, const struct method *x, struct kvl_session *s,
                      struct method_cost *out)
{
    KVL_TRY(kvl_session_attach(s, x->planned, 1, KVL_EXEC_REAL, m->b->err));
    if (kvl_planned_own_prefill(x->planned)) KVL_TRY(method_read(m->b, s, m->depth));
    const struct kvl_counters *k = kvl_session_counters(s);
    out->attach_ms = 1e-6 * (double)(k->attach_ns + k->prefill_ns + k->replay_ns);
    out->table_bytes = (double)kvl_session_meta_bytes(s);
    return method_rounds(m, s, x->d.logits, out);
}

static int method_measure(const struct methods *m, struct method *x, struct method_cost *out)
{
    struct kvl_session *s = NULL;
    int rc = method_open(m, x);
    if (rc == KVL_OK) rc = kvl_session_fork(x->d.at[0], &s, m->b->err);
    if (rc == KVL_OK) rc = method_run(m, x, s, out);
    kvl_session_destroy(s);
    bench_depths_close(&x->d);
    kvl_planned_destroy(x->planned);
    return rc;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *unit;
    int width;
} methods_column[] = {
    { "metadata", "ms", 8 },  { "select", "ms", 8 },     { "attend", "ms", 8 },
    { "evict", "ms", 8 },     { "fetch", "ms", 8 },      { "token", "ms", 8 },
    { "attended", "tok", 8 }, { "keys/vals", "KiB", 9 }, { "index", "KiB", 9 },
    { "fetched", "KiB", 9 },  { "of full", "%", 7 },     { "attach", "ms", 8 },
    { "tables", "KiB", 9 },
};
enum { METHODS_N_COLUMNS = sizeof methods_column / sizeof methods_column[0] };

static void methods_head(const struct methods *m)
{
    printf("\n%d tokens, budget %d, %d thread%s, per decoded token:\n%-*s", m->depth,
           m->b->config.budget_tok, m->threads, m->threads > 1 ? "s" : "", METHODS_COLUMN,
           "method");
    for (int i = 0; i < METHODS_N_COLUMNS; i++)
        printf(" %*s", methods_column[i].width, methods_column[i].name);
    printf("\n%-*s", METHODS_COLUMN, "");
    for (int i = 0; i < METHODS_N_COLUMNS; i++)
        printf(" %*s", methods_column[i].width, methods_column[i].unit);
    putchar('\n');
    fflush(stdout);
}

static void methods_row(const char *name, const struct method_cost *c, double share)
{
    const double v[METHODS_N_COLUMNS] = { c->meta_ms,
                                          c->select_ms,
                                          c->attend_ms,
                                          c->evict_ms,
                                          c->fetch_ms,
                                          c->token_ms.mid,
                                          c->attended_tok,
                                          c->kv_bytes / 1024,
                                          c->index_bytes / 1024,
                                          c->fetch_bytes / 1024,
                                          100 * share,
                                          c->attach_ms,
                                          c->table_bytes / 1024 };
    printf("%-*s", METHODS_COLUMN, name);
    for (int i = 0; i < METHODS_N_COLUMNS; i++) {
        char text[BENCH_DIGITS];
        bench_digits(v[i], text);
        printf(" %*s", methods_column[i].width, strcmp(text, "0") != 0 ? text : "-");
    }
    putchar('\n');
    fflush(stdout);
}

static int methods_emit(struct methods *m, const char *name, const struct method_cost *c)
{
    double bytes = c->kv_bytes + c->index_bytes, share = bytes / m->full_bytes;
    const struct {
        const char *name;
        double value;
    } extra[] = { { "meta_ms", c->meta_ms },        { "select_ms", c->select_ms },
                  { "attend_ms", c->attend_ms },    { "evict_ms", c->evict_ms },
                  { "fetch_ms", c->fetch_ms },      { "attended_tok", c->attended_tok },
                  { "kv_read_bytes", c->kv_bytes }, { "index_read_bytes", c->index_bytes },
                  { "h2d_bytes", c->fetch_bytes },  { "share_of_full", share },
                  { "attach_ms", c->attach_ms },    { "metadata_bytes", c->table_bytes } };
    struct bench_line line = { .part = "methods",
                               .what = "token",
                               .unit = "ms/token",
                               .policy = name,
                               .threads = m->threads,
                               .depth = m->depth,
                               .value = c->token_ms };
    for (size_t i = 0; i < sizeof extra / sizeof extra[0]; i++)
        bench_extra(&line, extra[i].name, extra[i].value);
    methods_row(name, c, share);
    return bench_keep(m->b, &line);
}

/* ---- all of them --------------------------------------------------------------------------------------- */

/* What cannot run in this setting is told behind the table, with the reason. */
static int methods_add(struct methods *m, const struct kvl_policy_spec *spec)
{
    struct method x = { .spec = spec };
    struct method_cost cost = { 0 };
    struct kvl_err *err = m->b->err;
    const char *name = spec->policy->name;
    int rc = method_measure(m, &x, &cost);
    if (rc == KVL_OK && strcmp(name, "full") == 0) m->full_bytes = cost.kv_bytes;
    if (rc == KVL_OK) return methods_emit(m, name, &cost);
    if (rc == KVL_ESTOP || rc == KVL_ENOMEM) return rc;
    rc = kvl_buf_printf(&m->skipped, "%s at %d tokens: %s\n", name, m->depth,
                        err->msg[0] ? err->msg : kvl_status_name(rc));
    *err = (struct kvl_err){ 0 };
    return rc == KVL_OK ? KVL_OK : kvl_fail(err, rc, "out of memory for results");
}

static int methods_word(struct bench *b, const char *word, void *user)
{
    struct kvl_policy_spec spec;
    KVL_TRY(kvl_policy_spec_parse(b->registry, word, &spec, b->err));
    int rc = user ? methods_add(user, &spec) : KVL_OK;
    kvl_policy_spec_free(&spec);
    return rc == KVL_OK ? bench_stopped(b) : rc;
}

/* Full attention first, since the others are shares of it. */
static int methods_each(struct bench *b, struct methods *m)
{
    if (m) KVL_TRY(methods_word(b, "full", m));
    if (b->config.policies) return bench_policy_words(b, b->config.policies, methods_word, m);
    for (size_t i = 0; i < kvl_registry_n_policies(b->registry); i++) {
        const char *name = kvl_registry_policy(b->registry, i)->name;
        if (strcmp(name, "full") != 0) KVL_TRY(methods_word(b, name, m));
    }
    return KVL_OK;
}

static int methods_skipped(struct methods *m)
{
    for (char *line = m->skipped.data; line && *line;) {
        char *end = strchr(line, '\n');
        if (end) *end = '\0';
        KVL_TRY(bench_skip(m->b, "%s", line));
        if (!end) break;
        line = end + 1;
    }
    return KVL_OK;
}

static int methods_depth(struct bench *b, int32_t threads, int32_t depth)
{
    struct methods m = { .b = b, .threads = threads, .depth = depth };
    kvl_ops_set_threads(threads);
    methods_head(&m);
    int rc = methods_each(b, &m);
    if (rc == KVL_OK) rc = methods_skipped(&m);
    kvl_buf_free(&m.skipped);
    return rc;
}

int bench_methods_check(struct bench *b)
{
    return methods_each(b, NULL);
}

int bench_methods(struct bench *b)
{
    const struct bench_config *c = &b->config;
    for (int32_t t = 0; t < c->threads.n; t++)
        for (int32_t i = 0; i < c->depths.n; i++)
            if (c->depths.v[i] > 0) KVL_TRY(methods_depth(b, c->threads.v[t], c->depths.v[i]));
    return KVL_OK;
}
