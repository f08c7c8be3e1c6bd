/* What a prefill keeps for policies: column sums, the weights of the last queries.  The oracle is a
 * softmax over T x T logits in double, of keys read back from the store and of queries seen by a tap
 * while another session took the same tokens one by one. */
#include "conformance/rig.h"

enum {
    N_LAYERS = 3,
    N_HEADS = 4,
    N_KV = 2,
    DIM = 16,
    N_CTX = 150,
    N_MORE = 40,
    N_TOK = N_CTX + N_MORE,
    WINDOW = 24,
    N_SETS = 3
};

static const struct kvl_observer_set observed = {
    .window = WINDOW,
    .column = { { KVL_OBS_COLUMNS, 0 }, { KVL_OBS_COLUMNS, 17 }, { KVL_OBS_LOGITS, 9 } },
    .n_columns = N_SETS,
};

/* What the hook of `watcher` saw of the context; tests only, a real policy keeps no globals. */
static struct {
    int32_t n_tok;
    float columns[N_SETS][N_LAYERS][N_HEADS][N_TOK];
    float mass[N_LAYERS][N_HEADS][N_TOK];
    float probs[N_LAYERS][WINDOW][N_HEADS][N_TOK]; /* by distance from the newest */
} seen;

static float queries[N_LAYERS][N_TOK][N_HEADS][DIM];
static int32_t id[N_TOK];

/* ---- a policy that looks and does nothing ----------------------------------------------------- */

static int watch_plan(struct kvl_plan *plan)
{
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, WINDOW));
    for (int32_t i = N_SETS - 1; i >= 0; i--)
        KVL_TRY(kvl_plan_observe(plan, observed.column[i].what, observed.column[i].param));
    return KVL_OK;
}

static void watch_rows(float (*to)[N_TOK], const float *from, int32_t n)
{
    for (int32_t h = 0; h < N_HEADS; h++)
        memcpy(to[h], from + (size_t)h * (size_t)n, (size_t)n * sizeof *from);
}

static int watch_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const float *sums;
    int32_t n = ctx->context_tok, got;
    seen.n_tok = n;
    for (int32_t i = 0; i < N_SETS; i++) {
        KVL_TRY(kvl_obs_columns(ctx, layer, observed.column[i].what, observed.column[i].param,
                                &sums, &got));
        if (got != n) return kvl_fail(ctx->err, KVL_EINTERNAL, "%d sums of %d tokens", got, n);
        watch_rows(seen.columns[i][layer], sums, n);
    }
    KVL_TRY(kvl_obs_window_mass(ctx, layer, WINDOW, &sums, &got));
    watch_rows(seen.mass[layer], sums, n);
    float *probs;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)N_HEADS * (size_t)n, &probs));
    for (int32_t back = 0; back < WINDOW; back++) {
        for (int32_t i = 0; i < N_HEADS * n; i++) probs[i] = NAN;
        KVL_TRY(kvl_obs_window_probs(ctx, layer, back, probs, n));
        watch_rows(seen.probs[layer][back], probs, n);
    }
    return KVL_OK;
}

static const struct kvl_policy watcher = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "watcher",
    .title = "t",
    .paper = "p",
    .help = "h",
    .version = 1,
    .plan = watch_plan,
    .prefilled = watch_prefilled,
};

/* ---- engines and sessions ---------------------------------------------------------------------- */

static void open_chunked(struct rig *r, int32_t chunk_tok)
{
    struct rig_desc desc = { .llama = { .n_layers = N_LAYERS, .seed = 51 },
                             .chunk_tok = chunk_tok };
    rig_open(r, &desc);
    const struct kvl_shape *sh = rig_shape(r);
    assert_int_equal(sh->n_heads, N_HEADS);
    assert_int_equal(sh->n_kv_heads, N_KV);
    assert_int_equal(sh->head_dim, DIM);
    RIG_OK(&r->err, kvl_engine_observe(r->engine, &observed, &r->err));
    rig_tokens(id, N_TOK, 52);
}

static struct kvl_session *prefilled(struct rig *r, int32_t n)
{
    struct kvl_session *s;
    RIG_OK(&r->err, kvl_session_create(r->engine, &s, &r->err));
    RIG_OK(&r->err, kvl_session_prefill(s, id, n, NULL, true, &r->err));
    return s;
}

/* A fork that goes on with other tokens. */
static struct kvl_session *extended(struct rig *r, const struct kvl_session *from,
                                    const int32_t *more, int32_t n)
{
    struct kvl_session *s;
    RIG_OK(&r->err, kvl_session_fork(from, &s, &r->err));
    RIG_OK(&r->err, kvl_session_prefill(s, more, n, NULL, true, &r->err));
    return s;
}

/* Fills `seen` from a session, which ends here. */
static void watch(struct rig *r, struct kvl_session *s)
{
    struct kvl_planned *p;
    memset(&seen, 0, sizeof seen);
    RIG_OK(&r->err,
           kvl_planned_create(&watcher, rig_shape(r), "", 0, kvl_session_len(s), &p, &r->err));
    RIG_OK(&r->err, kvl_session_attach(s, p, 1, KVL_EXEC_REAL, &r->err));
    kvl_session_destroy(s);
    kvl_planned_destroy(p);
}

/* ---- the oracle --------------------------------------------------------------------------------- */

static int take_query(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    (void)user;
    (void)err;
    memcpy(queries[t->layer][t->pos], t->q, sizeof queries[0][0]);
    return KVL_OK;
}

static void take_queries(struct rig *r, int32_t n)
{
    struct kvl_session *s;
    struct kvl_tap tap = { .read = take_query };
    RIG_OK(&r->err, kvl_session_create(r->engine, &s, &r->err));
    kvl_session_tap(s, &tap);
    RIG_OK(&r->err, kvl_session_extend(s, id, n, &r->err));
    kvl_session_destroy(s);
}

/* probs and logits [n][n] of one head: row = query. */
static void naive_head(struct rig *r, const struct kvl_session *s, int32_t layer, int32_t head,
                       int32_t n, double *probs, double *logits)
{
    static float keys[N_TOK * DIM];
    RIG_OK(&r->err, kvl_seq_read(kvl_session_seq(s), layer, head / (N_HEADS / N_KV), KVL_PART_K, 0,
                                 n, keys, &r->err));
    for (int32_t i = 0; i < n; i++) {
        double sum = 0;
        for (int32_t j = 0; j <= i; j++) {
            double dot = 0;
            for (int32_t c = 0; c < DIM; c++)
                dot += (double)queries[layer][i][head][c] * (double)keys[j * DIM + c];
            logits[i * n + j] = dot / sqrt(DIM);
            sum += exp(logits[i * n + j]);
        }
        for (int32_t j = 0; j < n; j++)
            probs[i * n + j] = j <= i ? exp(logits[i * n + j]) / sum : 0;
    }
}

/* What token j receives, by the words of kvl/policy.h. */
static double naive_sum(const double *probs, const double *logits, int32_t n, int32_t j,
                        enum kvl_observer what, int32_t param)
{
    double sum = 0;
    int32_t first = what == KVL_OBS_LOGITS ? j + 1 : j;
    for (int32_t i = first; i < n && (param == 0 || i < first + param); i++)
        sum += what == KVL_OBS_LOGITS ? logits[i * n + j] : probs[i * n + j];
    return sum;
}

static void expect_near(const char *what, int32_t layer, int32_t head, int32_t at, double got,
                        double want)
{
    if (fabs(got - want) <= 1e-4 * (1 + fabs(want))) return;
    fail_msg("%s of token %d, layer %d, head %d: %.7g, want %.7g", what, at, layer, head, got,
             want);
}

static void check_head(int32_t layer, int32_t head, int32_t n, const double *probs,
                       const double *logits)
{
    for (int32_t j = 0; j < n; j++) {
        double mass = 0;
        for (int32_t i = 0; i < N_SETS; i++) {
            enum kvl_observer what = observed.column[i].what;
            double want = naive_sum(probs, logits, n, j, what, observed.column[i].param);
            expect_near(what == KVL_OBS_LOGITS ? "logits" : "columns", layer, head, j,
                        (double)seen.columns[i][layer][head][j], want);
        }
        for (int32_t back = 0; back < WINDOW; back++) {
            double p = (double)seen.probs[layer][back][head][j];
            expect_near("window weight", layer, head, j, p, probs[(n - 1 - back) * n + j]);
            if (j > n - 1 - back) assert_true(p == 0);
            mass += p;
        }
        expect_near("window mass", layer, head, j, (double)seen.mass[layer][head][j], mass);
    }
}

static void test_observers_tell_the_full_softmax(void **state)
{
    struct rig r;
    (void)state;
    open_chunked(&r, 64);
    double *probs = kvl_alloc(2 * N_CTX * N_CTX, sizeof *probs), *logits = probs + N_CTX * N_CTX;
    assert_non_null(probs);
    struct kvl_session *s = prefilled(&r, N_CTX), *fork;
    RIG_OK(&r.err, kvl_session_fork(s, &fork, &r.err));
    take_queries(&r, N_CTX);
    watch(&r, fork);
    for (int32_t l = 0; l < N_LAYERS; l++)
        for (int32_t h = 0; h < N_HEADS; h++) {
            naive_head(&r, s, l, h, N_CTX, probs, logits);
            check_head(l, h, N_CTX, probs, logits);
        }
    kvl_session_destroy(s);
    kvl_free(probs);
    rig_close(&r);
}

/* A prefill in bf16 rounds queries and keys, and its observers round as it did: with its own
 * log-sum-exp every query gives one, to all tokens together. */
static void test_prefills_in_bf16_give_ones(void **state)
{
    struct rig r;
    (void)state;
    open_chunked(&r, 64);
    struct kvl_engine_desc d = {
        .model = r.model, .chunk_tok = 64, .observers = observed, .prefill_type = KVL_PREFILL_BF16
    };
    kvl_engine_destroy(r.engine);
    RIG_OK(&r.err, kvl_engine_create(&d, &r.engine, &r.err));
    watch(&r, prefilled(&r, N_CTX));
    for (int32_t l = 0; l < N_LAYERS; l++)
        for (int32_t h = 0; h < N_HEADS; h++) {
            double all = 0, last = 0;
            for (int32_t t = 0; t < N_CTX; t++) {
                all += (double)seen.columns[0][l][h][t];
                last += (double)seen.mass[l][h][t];
            }
            if (fabs(all - N_CTX) > 1e-5 * N_CTX || fabs(last - WINDOW) > 1e-5 * WINDOW)
                fail_msg("layer %d, head %d: %d queries gave %.6f, the last %d gave %.6f", l, h,
                         N_CTX, all, WINDOW, last);
        }
    rig_close(&r);
}

/* ---- chunks, forks, questions --------------------------------------------------------------------- */

static void expect_columns(const void *want, const char *what)
{
    if (memcmp(want, seen.columns, sizeof seen.columns) != 0) fail_msg("%s: other sums", what);
}

static void test_chunks_give_the_same_sums(void **state)
{
    static const int32_t chunks[] = { 1, 7, 64, 512 };
    static float want[sizeof seen.columns / sizeof(float)];
    (void)state;
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        struct rig r;
        open_chunked(&r, chunks[i]);
        watch(&r, prefilled(&r, N_CTX));
        if (i == 0) memcpy(want, seen.columns, sizeof want);
        expect_columns(want, "another chunk");
        rig_close(&r);
    }
}

/* A context extended by its question is as if it had come at once; relatives do not notice. */
static void test_forks_extend_their_own(void **state)
{
    static float want[sizeof seen.columns / sizeof(float)];
    int32_t other[N_MORE];
    struct rig r;
    (void)state;
    open_chunked(&r, 64);
    rig_tokens(other, N_MORE, 53);
    watch(&r, prefilled(&r, N_CTX));
    memcpy(want, seen.columns, sizeof want);
    struct kvl_session *context = prefilled(&r, N_CTX);
    struct kvl_session *a = extended(&r, context, other, N_MORE);
    struct kvl_session *b = extended(&r, context, id + N_CTX, N_MORE);
    watch(&r, a);
    assert_int_equal(seen.n_tok, N_TOK);
    watch(&r, context);
    expect_columns(want, "the context after forks of it went on");
    watch(&r, prefilled(&r, N_TOK));
    memcpy(want, seen.columns, sizeof want);
    watch(&r, b);
    assert_int_equal(seen.n_tok, N_TOK);
    expect_columns(want, "a context extended by its question");
    rig_close(&r);
}

/* ---- refusals --------------------------------------------------------------------------------------- */

typedef int (*prefilled_hook)(struct kvl_pctx *ctx, int32_t layer);

static void expect_attach(struct rig *r, struct kvl_session *s, prefilled_hook hook, int want,
                          const char *needle)
{
    struct kvl_policy p = watcher;
    struct kvl_planned *planned;
    struct kvl_err err = { 0 };
    if (hook) p.prefilled = hook;
    RIG_OK(&r->err, kvl_planned_create(&p, rig_shape(r), "", 0, N_CTX, &planned, &r->err));
    assert_int_equal(kvl_session_attach(s, planned, 1, KVL_EXEC_REAL, &err), want);
    if (!strstr(err.msg, needle)) fail_msg("message \"%s\" lacks \"%s\"", err.msg, needle);
    kvl_session_destroy(s);
    kvl_planned_destroy(planned);
}

static int ask_unplanned(struct kvl_pctx *ctx, int32_t layer)
{
    const float *sums;
    int32_t n;
    return kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, 18, &sums, &n);
}

static int ask_layer(struct kvl_pctx *ctx, int32_t layer)
{
    const float *sums;
    int32_t n;
    (void)layer;
    return kvl_obs_columns(ctx, N_LAYERS, KVL_OBS_COLUMNS, 0, &sums, &n);
}

static int ask_too_far_back(struct kvl_pctx *ctx, int32_t layer)
{
    float *probs;
    KVL_TRY(kvl_scratch_get(ctx, N_HEADS * N_CTX, &probs));
    return kvl_obs_window_probs(ctx, layer, WINDOW, probs, N_CTX);
}

static int ask_other_length(struct kvl_pctx *ctx, int32_t layer)
{
    float *probs;
    KVL_TRY(kvl_scratch_get(ctx, N_HEADS * N_CTX, &probs));
    return kvl_obs_window_probs(ctx, layer, 0, probs, N_CTX - 1);
}

static void test_refusals(void **state)
{
    struct kvl_observer_set less = observed;
    struct rig r;
    (void)state;
    open_chunked(&r, 0);
    expect_attach(&r, prefilled(&r, N_CTX), ask_unplanned, KVL_EPOLICY,
                  "18 queries were not asked");
    expect_attach(&r, prefilled(&r, N_CTX), ask_layer, KVL_EPOLICY, "layer 3, want 0 to 2");
    expect_attach(&r, prefilled(&r, N_CTX), ask_too_far_back, KVL_EPOLICY, "window of 25 queries");
    expect_attach(&r, prefilled(&r, N_CTX), ask_other_length, KVL_EPOLICY, "149 tokens, want 150");
    struct kvl_session *s = prefilled(&r, N_CTX - 1);
    RIG_OK(&r.err, kvl_session_extend(s, id, 1, &r.err));
    expect_attach(&r, s, NULL, KVL_EPOLICY, "149 of 150 tokens");
    less.n_columns = 2;
    RIG_OK(&r.err, kvl_engine_observe(r.engine, &less, &r.err));
    expect_attach(&r, prefilled(&r, N_CTX), NULL, KVL_EINVAL,
                  "watcher observes column sums of logits of 9 queries");
    less = (struct kvl_observer_set){ .window = WINDOW - 1 };
    RIG_OK(&r.err, kvl_engine_observe(r.engine, &less, &r.err));
    expect_attach(&r, prefilled(&r, N_CTX), NULL, KVL_EINVAL, "observes 24 queries");
    less.n_columns = KVL_MAX_COLUMNS + 1;
    assert_int_equal(kvl_engine_observe(r.engine, &less, &r.err), KVL_EINVAL);
    rig_close(&r);
}

/* ---- what several policies ask for together ------------------------------------------------------- */

static void test_sets_merge(void **state)
{
    struct kvl_err err = { 0 };
    struct kvl_observer_set all = { 0 };
    static const struct kvl_observer_set a = { .window = 5,
                                               .column = { { KVL_OBS_LOGITS, 7 } },
                                               .n_columns = 1 };
    static const struct kvl_observer_set b = {
        .window = 3,
        .column = { { KVL_OBS_COLUMNS, 0 }, { KVL_OBS_COLUMNS, 9 }, { KVL_OBS_LOGITS, 7 } },
        .n_columns = 3
    };
    static const struct kvl_observer_set c = { .column = { { KVL_OBS_COLUMNS, 4 } },
                                               .n_columns = 1 };
    static const struct kvl_observer_set d = { .column = { { KVL_OBS_LOGITS, 1 } },
                                               .n_columns = 1 };
    static const int32_t want[] = { 0, 4, 9, 7 };
    (void)state;
    RIG_OK(&err, kvl_observer_set_merge(&all, &a, &err));
    RIG_OK(&err, kvl_observer_set_merge(&all, &b, &err));
    RIG_OK(&err, kvl_observer_set_merge(&all, &c, &err));
    RIG_OK(&err, kvl_observer_set_merge(&all, &b, &err));
    assert_int_equal(all.window, 5);
    assert_int_equal(all.n_columns, 4);
    for (int32_t i = 0; i < 4; i++) {
        assert_int_equal(all.column[i].what, i < 3 ? KVL_OBS_COLUMNS : KVL_OBS_LOGITS);
        assert_int_equal(all.column[i].param, want[i]);
    }
    for (int32_t i = 4; i < KVL_MAX_COLUMNS; i++) {
        const struct kvl_observer_set more = { .column = { { KVL_OBS_COLUMNS, 100 + i } },
                                               .n_columns = 1 };
        RIG_OK(&err, kvl_observer_set_merge(&all, &more, &err));
    }
    assert_int_equal(kvl_observer_set_merge(&all, &d, &err), KVL_EINVAL);
    assert_int_equal(all.n_columns, KVL_MAX_COLUMNS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_observers_tell_the_full_softmax),
        cmocka_unit_test(test_prefills_in_bf16_give_ones),
        cmocka_unit_test(test_chunks_give_the_same_sums),
        cmocka_unit_test(test_forks_extend_their_own),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_sets_merge),
    };
    return cmocka_run_group_tests_name("observers", tests, NULL, NULL);
}
