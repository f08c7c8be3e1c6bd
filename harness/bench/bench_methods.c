/* kvlab bench methods: what a token costs under every method, beside full attention. */
#include "bench.h"

#include "outfile.h"
#include "policy_spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A context that a method reads itself is computed, not filled: that of more tokens takes minutes. */
enum {
    METHODS_OWN_PREFILL = 16384,
    METHODS_STEPS = 16,
    METHODS_FULL_STEPS = 8,
    METHODS_COLUMN = 20
};

/* Contexts that all methods share: without and with keys before RoPE, which cost full attention bandwidth. */
struct methods {
    struct bench *b;
    const struct bench_method_sink *sink;
    int32_t threads, depth;
    bool gathers;                      /* what methods ask for, before any is measured */
    struct kvl_observer_set observers; /* of all methods */
    struct bench_depths ground[2];
    double full_bytes; /* that full attention reads per token at this depth */
};

struct method {
    const struct kvl_policy_spec *spec;
    struct kvl_planned *planned;
    struct bench_depths own; /* of a method with its own prefill */
};

/* ---- a method at a depth ---------------------------------------------------------------------------- */

static double median(double *v, int32_t n)
{
    return bench_spread(v, n).mid;
}

enum { META, SELECT, ATTEND, EVICT, FETCH, TOKEN, FULL, SPEED, BUSY, N_TIMES };

/* Seconds of a token that ratios are made of: other processes take no processor time from one thread. */
static double window_s(const struct methods *m, const struct bench_window *w)
{
    return m->threads == 1 ? w->cpu_s : w->token_s;
}

/* Full attention, then the method. */
static int method_round(struct methods *m, const struct kvl_session *s, float *logits,
                        double ms[N_TIMES], struct bench_window *w)
{
    KVL_TRY(
        bench_decode_steps(m->b, m->ground[0].at[0], m->ground[0].logits, METHODS_FULL_STEPS, w));
    m->full_bytes = (double)w->count.kv_read_bytes / w->n;
    ms[FULL] = 1e3 * window_s(m, w);
    KVL_TRY(bench_decode_steps(m->b, s, logits, METHODS_STEPS, w));
    const struct kvl_counters *k = &w->count;
    const uint64_t ns[TOKEN] = { [META] = k->meta_ns,
                                 [SELECT] = k->select_ns,
                                 [ATTEND] = k->attend_ns,
                                 [EVICT] = k->evict_ns,
                                 [FETCH] = k->fetch_ns };
    for (int i = 0; i < TOKEN; i++) ms[i] = 1e-6 * (double)ns[i] / w->n;
    ms[TOKEN] = 1e3 * w->token_s;
    ms[BUSY] = 1e3 * window_s(m, w);
    ms[SPEED] = ms[FULL] / ms[BUSY];
    return KVL_OK;
}

static int method_rounds(struct methods *m, const struct kvl_session *s, float *logits,
                         struct bench_method_cost *out)
{
    double ms[N_TIMES][BENCH_MAX_ROUNDS], one[N_TIMES];
    struct bench_window w = { 0 };
    int32_t n = m->b->config.rounds;
    for (int32_t r = 0; r < n; r++) {
        KVL_TRY(method_round(m, s, logits, one, &w));
        for (int i = 0; i < N_TIMES; i++) ms[i][r] = one[i];
    }
    const struct kvl_counters *k = &w.count;
    double lanes = (double)(k->attended_lanes + k->dense_lanes);
    double weights = (double)kvl_model_token_bytes(m->b->model);
    out->meta_ms = median(ms[META], n);
    out->select_ms = median(ms[SELECT], n);
    out->attend_ms = median(ms[ATTEND], n);
    out->evict_ms = median(ms[EVICT], n);
    out->fetch_ms = median(ms[FETCH], n);
    out->token_ms = bench_spread(ms[TOKEN], n);
    out->speed = bench_spread(ms[SPEED], n);
    out->kv_bytes = (double)k->kv_read_bytes / w.n;
    out->index_bytes = (double)k->index_read_bytes / w.n;
    out->fetch_bytes = (double)k->h2d_bytes / w.n;
    out->attended_tok = lanes > 0 ? (double)(k->attended_tok + k->dense_tok) / lanes : 0;
    out->dense_tok = lanes > 0 ? (double)k->dense_tok / lanes : 0;
    out->busy_ms = median(ms[BUSY], n);
    out->full_ms = median(ms[FULL], n);
    out->selects = (double)k->n_select / w.n;
    out->fetches = (double)k->h2d_calls / w.n;
    out->device_bytes = (double)k->device_peak_bytes;
    out->host_bytes = (double)k->host_bytes;
    out->full_bytes = m->full_bytes;
    out->bytes_speed = (weights + m->full_bytes) / (weights + out->kv_bytes + out->index_bytes);
    return KVL_OK;
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

static int method_ground(struct methods *m, int raw)
{
    struct bench_engine want = { .model = m->b->model,
                                 .kv_type = m->b->config.kv_type,
                                 .raw_keys = raw == 1,
                                 .observers = m->observers };
    struct bench_list depth = { { m->depth }, 1 };
    if (m->ground[raw].engine) return KVL_OK;
    bench_say("%d tokens%s", m->depth, raw ? ", with keys before RoPE" : "");
    return bench_depths_open(m->b, &want, &depth, &m->ground[raw]);
}

/* Of a method with its own prefill: an engine that sees what it asks for, and an empty session. */
static int method_own(const struct methods *m, struct method *x)
{
    struct bench *b = m->b;
    struct bench_engine want = { .model = b->model,
                                 .kv_type = b->config.kv_type,
                                 .raw_keys = kvl_planned_raw_keys(x->planned) };
    struct bench_list depth = { { 0 }, 1 };
    int32_t most = b->config.own_tok ? b->config.own_tok : METHODS_OWN_PREFILL;
    if (m->depth > most)
        return kvl_fail(b->err, KVL_EINVAL, "reads its context itself: here %d tokens at most",
                        most);
    KVL_TRY(kvl_observer_set_merge(&want.observers, kvl_planned_observers(x->planned), b->err));
    return bench_depths_open(b, &want, &depth, &x->own);
}

static int method_run(struct methods *m, const struct method *x, const struct bench_depths *d,
                      struct kvl_session *s, struct bench_method_cost *out)
{
    struct bench *b = m->b;
    KVL_TRY(kvl_session_attach(s, x->planned, 1, KVL_EXEC_REAL, b->err));
    if (kvl_planned_own_prefill(x->planned)) KVL_TRY(bench_read_context(b, s, 0, m->depth));
    const struct kvl_counters *k = kvl_session_counters(s);
    out->attach_ms = 1e-6 * (double)(k->attach_ns + k->prefill_ns + k->replay_ns);
    out->table_bytes = (double)kvl_session_meta_bytes(s);
    kvl_ops_set_threads(m->threads);
    return method_rounds(m, s, d->logits, out);
}

/* Contexts are read, and methods attached, by all threads. */
static int method_measure(struct methods *m, struct method *x, struct bench_method_cost *out)
{
    struct kvl_session *s = NULL;
    kvl_ops_set_threads(0);
    KVL_TRY(method_plan(m, x));
    bool own = kvl_planned_own_prefill(x->planned);
    int raw = kvl_planned_raw_keys(x->planned);
    int rc = own ? method_own(m, x) : method_ground(m, raw);
    const struct bench_depths *d = own ? &x->own : &m->ground[raw];
    if (rc == KVL_OK) rc = method_ground(m, 0); /* full attention */
    if (rc == KVL_OK) rc = kvl_session_fork(d->at[0], &s, m->b->err);
    if (rc == KVL_OK) rc = method_run(m, x, d, s, out);
    kvl_session_destroy(s);
    bench_depths_close(&x->own);
    kvl_planned_destroy(x->planned);
    return rc;
}

/* ---- all of them --------------------------------------------------------------------------------------- */

static int methods_add(struct methods *m, const struct kvl_policy_spec *spec, const char *word)
{
    struct method x = { .spec = spec };
    struct bench_method_cost cost = { 0 };
    struct kvl_err *err = m->b->err;
    const struct bench_method_at at = {
        .word = word, .name = spec->policy->name, .threads = m->threads, .depth = m->depth
    };
    int rc = method_measure(m, &x, &cost);
    if (rc == KVL_OK) return m->sink->row(m->sink->user, &at, &cost);
    if (rc == KVL_ESTOP || rc == KVL_ENOMEM) return rc;
    rc = m->sink->left_out(m->sink->user, &at, err->msg[0] ? err->msg : kvl_status_name(rc));
    *err = (struct kvl_err){ 0 };
    return rc == KVL_OK ? KVL_OK : kvl_fail(err, rc, "out of memory for results");
}

/* What cannot be planned is told when it is measured. */
static int methods_gather(struct methods *m, const struct kvl_policy_spec *spec)
{
    struct method x = { .spec = spec };
    struct kvl_err *err = m->b->err;
    int rc = method_plan(m, &x);
    if (rc == KVL_OK && !kvl_planned_own_prefill(x.planned))
        rc = kvl_observer_set_merge(&m->observers, kvl_planned_observers(x.planned), err);
    kvl_planned_destroy(x.planned);
    if (rc == KVL_ENOMEM) return rc;
    *err = (struct kvl_err){ 0 };
    return KVL_OK;
}

static int methods_word(struct bench *b, const char *word, void *user)
{
    struct kvl_policy_spec spec;
    KVL_TRY(kvl_policy_spec_parse(b->registry, word, &spec, b->err));
    struct methods *m = user;
    int rc = KVL_OK;
    if (m) rc = m->gathers ? methods_gather(m, &spec) : methods_add(m, &spec, word);
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

int bench_methods_at(struct bench *b, int32_t threads, int32_t depth,
                     const struct bench_method_sink *sink)
{
    struct methods m = {
        .b = b, .sink = sink, .threads = threads, .depth = depth, .gathers = true
    };
    KVL_TRY(methods_each(b, &m));
    m.gathers = false;
    int rc = methods_each(b, &m);
    for (int k = 0; k < 2; k++) bench_depths_close(&m.ground[k]);
    return rc;
}

int bench_methods_check(struct bench *b)
{
    return methods_each(b, NULL);
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *unit;
    int width;
} methods_column[] = {
    { "metadata", "ms", 8 },  { "select", "ms", 8 },     { "attend", "ms", 8 },
    { "evict", "ms", 8 },     { "fetch", "ms", 8 },      { "token", "ms", 8 },
    { "speed", "x full", 7 }, { "bytes", "x full", 7 },  { "of it", "", 6 },
    { "attended", "tok", 8 }, { "keys/vals", "KiB", 9 }, { "index", "KiB", 9 },
    { "fetched", "KiB", 9 },  { "of full", "%", 7 },     { "attach", "ms", 8 },
    { "tables", "KiB", 9 },
};
enum { METHODS_N_COLUMNS = sizeof methods_column / sizeof methods_column[0] };

static void methods_head(const struct bench *b, int32_t threads, int32_t depth)
{
    printf("\n%d tokens, budget %d, %d thread%s, per decoded token:\n%-*s", depth,
           b->config.budget_tok, threads, threads > 1 ? "s" : "", METHODS_COLUMN, "method");
    for (int i = 0; i < METHODS_N_COLUMNS; i++)
        printf(" %*s", methods_column[i].width, methods_column[i].name);
    printf("\n%-*s", METHODS_COLUMN, "");
    for (int i = 0; i < METHODS_N_COLUMNS; i++)
        printf(" %*s", methods_column[i].width, methods_column[i].unit);
    putchar('\n');
    fflush(stdout);
}

static void methods_row(const char *name, const struct bench_method_cost *c, double share)
{
    const double v[METHODS_N_COLUMNS] = { c->meta_ms,
                                          c->select_ms,
                                          c->attend_ms,
                                          c->evict_ms,
                                          c->fetch_ms,
                                          c->token_ms.mid,
                                          c->speed.mid,
                                          c->bytes_speed,
                                          c->speed.mid / c->bytes_speed,
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

struct methods_table {
    struct bench *b;
    struct kvl_buf skipped;
};

static int methods_emit(void *user, const struct bench_method_at *at,
                        const struct bench_method_cost *c)
{
    struct bench *b = ((struct methods_table *)user)->b;
    double bytes = c->kv_bytes + c->index_bytes, share = bytes / c->full_bytes;
    const struct {
        const char *name;
        double value;
    } extra[] = { { "meta_ms", c->meta_ms },        { "select_ms", c->select_ms },
                  { "attend_ms", c->attend_ms },    { "evict_ms", c->evict_ms },
                  { "fetch_ms", c->fetch_ms },      { "attended_tok", c->attended_tok },
                  { "kv_read_bytes", c->kv_bytes }, { "index_read_bytes", c->index_bytes },
                  { "h2d_bytes", c->fetch_bytes },  { "share_of_full", share },
                  { "attach_ms", c->attach_ms },    { "metadata_bytes", c->table_bytes },
                  { "bytes_speed", c->bytes_speed } };
    struct bench_line line = { .part = "methods",
                               .what = "token",
                               .unit = "ms/token",
                               .policy = at->name,
                               .threads = at->threads,
                               .depth = at->depth,
                               .value = c->token_ms,
                               .against = "full attention's speed",
                               .ratio = c->speed };
    for (size_t i = 0; i < sizeof extra / sizeof extra[0]; i++)
        bench_extra(&line, extra[i].name, extra[i].value);
    methods_row(at->name, c, share);
    return bench_keep(b, &line);
}

/* What cannot run in this setting is told behind the table, with the reason. */
static int methods_left_out(void *user, const struct bench_method_at *at, const char *why)
{
    struct methods_table *t = user;
    return kvl_buf_printf(&t->skipped, "%s at %d tokens: %s\n", at->name, at->depth, why);
}

static int methods_skipped(const struct methods_table *t)
{
    for (char *line = t->skipped.data; line && *line;) {
        char *end = strchr(line, '\n');
        if (end) *end = '\0';
        KVL_TRY(bench_skip(t->b, "%s", line));
        if (!end) break;
        line = end + 1;
    }
    return KVL_OK;
}

static int methods_depth(struct bench *b, int32_t threads, int32_t depth)
{
    struct methods_table t = { .b = b };
    const struct bench_method_sink sink = { methods_emit, methods_left_out, &t };
    methods_head(b, threads, depth);
    int rc = bench_methods_at(b, threads, depth, &sink);
    if (rc == KVL_OK) rc = methods_skipped(&t);
    kvl_buf_free(&t.skipped);
    return rc;
}

/* ---- the report --------------------------------------------------------------------------------------- */

static double line_extra(const struct bench_line *l, const char *name)
{
    for (int32_t i = 0; i < l->n_extra; i++)
        if (strcmp(l->extra[i].name, name) == 0) return l->extra[i].value;
    return 0;
}

static void report_row(const struct bench_line *l, FILE *out)
{
    double bytes = line_extra(l, "bytes_speed");
    const double v[] = { l->value.mid,
                         l->ratio.mid,
                         bytes,
                         l->ratio.mid / bytes,
                         line_extra(l, "select_ms"),
                         line_extra(l, "attend_ms"),
                         line_extra(l, "meta_ms") + line_extra(l, "evict_ms") +
                             line_extra(l, "fetch_ms"),
                         line_extra(l, "kv_read_bytes") / (1 << 20),
                         line_extra(l, "index_read_bytes") / (1 << 20) };
    fprintf(out, "| %s |", l->policy);
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        char digits[BENCH_DIGITS];
        bench_digits(v[i], digits);
        fprintf(out, " %s |", digits);
    }
    fputc('\n', out);
}

static void report_depth(const struct bench *b, int32_t threads, int32_t depth, FILE *out)
{
    const struct bench_origin *o = &b->origin;
    fprintf(
        out,
        "\n### %s, %d tokens, budget %d, %d thread%s\n\n%s, %d cores, %s; kvlab %s (%s, %s); %s; "
        "medians of %d rounds.\n\n",
        o->model, depth, b->config.budget_tok, threads, threads > 1 ? "s" : "", o->machine.cpu,
        o->machine.cores, o->machine.isa, o->version, o->git, o->compiler,
        b->context.n > 0 ? "the context is text" : "random keys and values", b->config.rounds);
    fputs("| method | ms a token | speed | by its bytes | of it | select, ms | attention, ms | "
          "rest of it, ms "
          "| keys and values, MiB | index, MiB |\n|---|---|---|---|---|---|---|---|---|---|\n",
          out);
    for (size_t i = 0; i < b->n_lines; i++)
        if (b->line[i].threads == threads && b->line[i].depth == depth)
            report_row(&b->line[i], out);
}

static int methods_report(const struct bench *b)
{
    struct kvl_outfile o = { 0 };
    const struct bench_config *c = &b->config;
    KVL_TRY(kvl_outfile_open(&o, c->report, b->err));
    fputs("## Methods against their bytes\n\nWritten by `kvlab bench methods --report`. Speed is "
          "that of a "
          "token against one of full attention, by turns (of one\nthread, by processor time); by "
          "its bytes, what "
          "it would be if a token took as long as weights, keys, values and index\ntake to read. "
          "What a method "
          "keeps in the host tier costs no copy here: on the CPU both tiers are the same memory, "
          "and\nwhat a GPU "
          "would fetch is counted, not moved.\n",
          o.f);
    for (int32_t t = 0; t < c->threads.n; t++)
        for (int32_t i = 0; i < c->depths.n; i++)
            if (c->depths.v[i] > 0) report_depth(b, c->threads.v[t], c->depths.v[i], o.f);
    if (b->skipped.data) fprintf(o.f, "\nLeft out:\n\n%s", b->skipped.data);
    return kvl_outfile_close(&o, KVL_OK, b->err);
}

/* ---- the run --------------------------------------------------------------------------------------- */

int bench_methods(struct bench *b)
{
    const struct bench_config *c = &b->config;
    for (int32_t t = 0; t < c->threads.n; t++)
        for (int32_t i = 0; i < c->depths.n; i++)
            if (c->depths.v[i] > 0) KVL_TRY(methods_depth(b, c->threads.v[t], c->depths.v[i]));
    return c->report ? methods_report(b) : KVL_OK;
}
