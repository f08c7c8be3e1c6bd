/* OmniKV: the selectors on a hand-computed example, the layer map of the paper, the choice of filter
 * layers against all sets there are, and what the policy reads against lists worked out from
 * recorded queries.  The file of the method is included, so that its parts can be called one by one. */
#define KVL_PLUGIN
#include "../methods/omnikv.c"

#include "engine_impl.h"
#include "golden/record.h"

/* ---- a context without an engine ------------------------------------------------------------- */

struct bare {
    struct kvl_engine engine;
    struct kvl_session session;
    struct kvl_host host;
    struct kvl_shape shape;
    struct kvl_err err;
    struct omnikv_opts opts;
    struct kvl_pctx ctx;
};

static void bare_open(struct bare *b, int32_t n_layers, int32_t n_heads, const char *options)
{
    *b = (struct bare){ .shape = { .n_layers = n_layers, .n_heads = n_heads, .n_kv_heads = 1 } };
    b->session.engine = &b->engine;
    b->host.session = &b->session;
    b->ctx = (struct kvl_pctx){
        .shape = &b->shape, .ops = &kvl_ops_cpu, .opts = &b->opts, .err = &b->err, .host = &b->host
    };
    RIG_OK(&b->err, kvl_opt_defaults(omnikv_options, &b->opts, &b->err));
    RIG_OK(&b->err, kvl_opt_parse(omnikv_options, &b->opts, options, &b->err));
    size_t bytes = sizeof(struct omnikv_state) + (size_t)n_layers * sizeof(struct kvl_filter_role);
    b->ctx.state = kvl_alloc(bytes, 1);
    assert_non_null(b->ctx.state);
}

static void bare_close(struct bare *b)
{
    kvl_arena_free(&b->engine.scratch);
    kvl_free(b->ctx.state);
}

/* ---- selectors -------------------------------------------------------------------------------- */

enum { G_QUERIES = 3, G_HEADS = 2, G_TOK = 5, G_TAIL = 2, G_ALL = G_TOK + G_TAIL, G_POS = 20 };
/* Five tokens of the context, then two of the tail, which change no score: the heads look at them
 * differently, so that weights over all that is read would rank 1, 2 and 4 otherwise. */
static const float g_logit[G_QUERIES][G_HEADS][G_ALL] = {
    { { 2, 0, 0, 1, 0, 0, 1 }, { 0, .5f, 0, 0, 0, 4, 0 } },
    { { 0, 3, 0, 0, 0, 5, 1 }, { 0, 0, 1, 0, 0, 0, 0 } },
    { { 0, 0, 2, 0, .5f, 0, 0 }, { 0, 0, 0, 0, 2.5f, 3, 3 } },
};

static const struct golden_selector {
    const char *name;
    float score[G_TOK];
    int32_t list[2];
} g_selectors[] = {
    { "last", { 0, 0, 2, 0, 2.5f }, { 2, 4 } },
    { "softmax", { .083072f, .083072f, .613822f, .083072f, .752819f }, { 2, 4 } },
    { "uniform", { .795654f, 1.208872f, 1.195463f, .439306f, 1.078698f }, { 1, 2 } },
    { "exp", { .298429f, .573003f, .860385f, .209342f, .871501f }, { 2, 4 } },
};

static void softmax_of(const float *logit, float *prob, float *lse)
{
    double sum = 0;
    for (int t = 0; t < G_ALL; t++) sum += exp((double)logit[t]);
    for (int t = 0; t < G_ALL; t++) prob[t] = (float)(exp((double)logit[t]) / sum);
    *lse = (float)log(sum);
}

static void test_selectors_of_the_example(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof g_selectors / sizeof g_selectors[0]; i++) {
        struct bare b;
        char options[64];
        float prob[G_HEADS][G_ALL], lse[G_HEADS], score[G_TOK], rows[G_TOK * 4] = { 0 };
        const float *probs[G_HEADS] = { prob[0], prob[1] };
        int32_t list[2];
        snprintf(options, sizeof options, "selector=%s,window_size=3", g_selectors[i].name);
        bare_open(&b, 3, G_HEADS, options);
        b.ctx.context_tok = G_TOK;
        omnikv_scores(&b.opts);
        for (int32_t j = 0; j < G_QUERIES; j++) {
            struct kvl_step step = { .pos = G_POS + j };
            struct kvl_bank_list at = {
                .step = &step, .scores = &b.opts.scores, .row = rows, .score = score
            };
            for (int h = 0; h < G_HEADS; h++) softmax_of(g_logit[j][h], prob[h], &lse[h]);
            RIG_OK(&b.err, kvl_bank_score(&b.ctx, &at, probs, lse));
        }
        /* The last query's logits come as exp(logit - top + 60). */
        bool last = b.opts.selector == OMNIKV_LAST;
        float top = KVL_MAX(lse[0], lse[1]);
        for (int t = 0; t < G_TOK; t++) {
            float got = last ? logf(score[t]) - 60.0f + top : score[t];
            assert_true(fabsf(got - g_selectors[i].score[t]) < (last ? 2e-5f : 2e-6f));
        }
        RIG_OK(&b.err, kvl_topk(&b.ctx, score, 1, G_TOK, 2, list));
        assert_memory_equal(list, g_selectors[i].list, sizeof list);
        assert_int_equal(kvl_bank_in_window(&b.ctx, &b.opts.scores, G_POS), 0);
        bare_close(&b);
    }
}

static void test_scores_that_there_are_not(void **state)
{
    static const struct kvl_bank_scores bad[] = { { .window = -1 },
                                                  { .logits = true, .window = 4 } };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvl_bank_scores s = bad[i];
        struct kvl_err err = { 0 };
        assert_int_equal(kvl_plan_bank_scores(&(struct kvl_plan){ .err = &err }, &s, NULL),
                         KVL_EPOLICY);
        assert_string_equal(strstr(err.msg, " of "),
                            i == 0 ? " of a window of -1 queries, want 0 or more"
                                   : " of a window of 4 queries, want 0");
    }
}

/* ---- layers ------------------------------------------------------------------------------------- */

static void test_layer_map_of_the_paper(void **state)
{
    static const char want[] = "DDDDSSSSDDSSSSSSSSDDSSSSSSSSSSSS";
    struct bare b;
    (void)state;
    bare_open(&b, 32, 32, "filter_layers=2+8+18,num_wait_load_layers=1");
    RIG_OK(&b.err, omnikv_open(&b.ctx));
    for (int32_t l = 0; l < 32; l++) {
        int got = omnikv_schedule(&b.ctx, &(struct kvl_step){ .layer = l });
        bool filter = l == 2 || l == 8 || l == 18;
        assert_int_equal(got & ~KVL_UNOBSERVED, want[l] == 'D' ? KVL_DENSE : KVL_SELECT);
        assert_int_equal(!(got & KVL_UNOBSERVED), filter);
    }
    bare_close(&b);
}

/* What a set of filters captures; negative when it is not allowed. */
static double set_value(const float *capture, int32_t n_layers, int32_t wait, int32_t max_dense,
                        uint32_t set)
{
    double sum = 0;
    int32_t n_dense = 0, filter = -1, n_served = 0;
    for (int32_t l = 0; l < n_layers; l++) {
        if (set >> l & 1) {
            if (filter >= 0 && n_served == 0) return -1;
            filter = l;
            n_served = 0;
        }
        bool sparse = filter >= 0 && l > filter + wait;
        n_dense += !sparse;
        n_served += sparse;
        sum += sparse ? (double)capture[filter * n_layers + l] : 1.0;
    }
    return n_dense <= max_dense && n_served > 0 ? sum : -1;
}

static uint32_t best_set(const float *capture, int32_t n_layers, int32_t wait, int32_t max_dense)
{
    uint32_t best = 0;
    double value = -1;
    for (uint32_t set = 1; set < 1u << n_layers; set++) {
        double v = set_value(capture, n_layers, wait, max_dense, set);
        if (v <= value + 1e-9) continue;
        value = v;
        best = set;
    }
    return best;
}

static void test_filters_are_the_best_of_all_sets(void **state)
{
    struct kvl_rng rng;
    (void)state;
    kvl_rng_seed(&rng, 4);
    for (int round = 0; round < 300; round++) {
        struct bare b;
        float capture[9 * 9];
        double exact[9 * 9], sparse;
        uint8_t chosen[9] = { 0 };
        int32_t n = 2 + (int32_t)kvl_rng_below(&rng, 8);
        int32_t wait = (int32_t)kvl_rng_below(&rng, (uint32_t)KVL_MIN(3, n - 1));
        int32_t dense = wait + 1 + (int32_t)kvl_rng_below(&rng, (uint32_t)(n - 1 - wait));
        bare_open(&b, n, 1, "");
        for (int32_t i = 0; i < n * n; i++) exact[i] = capture[i] = (float)kvl_rng_f64(&rng);
        RIG_OK(&b.err, kvl_filter_layers(exact, n, dense, wait, chosen, &sparse, &b.err));
        uint32_t got = 0, want = best_set(capture, n, wait, dense);
        for (int32_t l = 0; l < n; l++) got |= (uint32_t)chosen[l] << l;
        if (got != want)
            fail_msg("%d layers, wait %d, %d dense: filters %x, want %x", n, wait, dense, got,
                     want);
        bare_close(&b);
    }
}

/* ---- the policy on a model ------------------------------------------------------------------------ */

extern const struct kvl_policy *const kvl_policy_omnikv;

enum { N_CTX = 150, N_BACK = 32, N_STEPS = 30, N_TOK = N_CTX + N_STEPS, DIM = 16, N_HEADS = 4 };

static struct model_run {
    struct rig r;
    int32_t id[N_TOK];
} model;

/* record.q[i] then holds the queries of position N_CTX - N_BACK + i. */
static void open_model(uint32_t n_layers, uint32_t n_kv_heads, uint64_t seed)
{
    struct rig_desc desc = { .llama = {
                                 .n_layers = n_layers, .n_kv_heads = n_kv_heads, .seed = seed } };
    rig_open(&model.r, &desc);
    assert_int_equal(rig_shape(&model.r)->head_dim, DIM);
    assert_int_equal(rig_shape(&model.r)->n_heads, N_HEADS);
    rig_tokens(model.id, N_TOK, seed);
    record_run(&model.r, model.id, N_CTX - N_BACK, N_BACK + N_STEPS, 0);
}

static const float *query_at(int32_t pos, int32_t layer)
{
    return record.q[pos - (N_CTX - N_BACK)][layer];
}

static int32_t n_planned; /* context that plans are told of; 0 = N_CTX */

static struct rig_session start(const char *options, int32_t budget)
{
    struct rig_run run = { .policy = kvl_policy_omnikv,
                           .options = options,
                           .budget = budget,
                           .id = model.id,
                           .n_ctx = N_CTX,
                           .n_planned = n_planned };
    return rig_start(&model.r, &run);
}

/* Weights of all heads of one query: weight [N_HEADS][pos + 1], logit the same. */
static void weights_at(const struct rig_session *rs, int32_t pos, int32_t layer, double *weight,
                       double *logit)
{
    int32_t group = N_HEADS / rig_shape(&model.r)->n_kv_heads, n = pos + 1;
    float *k = rig_floats((size_t)n * DIM);
    for (int32_t h = 0; h < N_HEADS; h++) {
        const float *q = query_at(pos, layer) + h * DIM;
        record_keys(&model.r, rs, layer, h / group, n, k);
        record_weights(q, k, n, DIM, weight + h * n);
        for (int32_t t = 0; logit && t < n; t++) {
            double *x = &logit[h * n + t];
            *x = 0;
            for (int32_t c = 0; c < DIM; c++) *x += (double)q[c] * (double)k[t * DIM + c];
            *x /= sqrt(DIM);
        }
    }
    kvl_free(k);
}

/* Weights [N_HEADS][n] to those of a softmax over the first n_among tokens. */
static void among(double *weight, int32_t n, int32_t n_among)
{
    for (int32_t h = 0; h < N_HEADS; h++) {
        double sum = 0;
        for (int32_t t = 0; t < n_among; t++) sum += weight[h * n + t];
        for (int32_t t = 0; t < n; t++) weight[h * n + t] /= sum;
    }
}

static void max_over_heads(const double *x, int32_t n, double *out, double times)
{
    for (int32_t t = 0; t < KVL_MIN(n, N_CTX); t++) {
        double best = x[t];
        for (int32_t h = 1; h < N_HEADS; h++) best = fmax(best, x[h * n + t]);
        out[t] += times * best;
    }
}

/* Scores [N_CTX] of the filter `layer` at `pos`; window tokens of the context are above all. */
static void expected_scores(const struct rig_session *rs, int32_t pos, int32_t layer,
                            const char *selector, int32_t window, double *score)
{
    static double weight[N_HEADS * N_TOK], logit[N_HEADS * N_TOK];
    bool windowed = strcmp(selector, "uniform") == 0 || strcmp(selector, "exp") == 0;
    memset(score, 0, N_CTX * sizeof *score);
    for (int32_t b = 0; b < (windowed ? window : 1); b++) {
        double times = strcmp(selector, "exp") == 0 ? pow(2, -b) : 1;
        weights_at(rs, pos - b, layer, weight, logit);
        among(weight, pos - b + 1, windowed ? KVL_MIN(N_CTX, pos + 1 - window) : N_CTX);
        max_over_heads(strcmp(selector, "last") == 0 ? logit : weight, pos - b + 1, score, times);
    }
    for (int32_t t = 0; windowed && t < N_CTX; t++)
        if (t > pos - window) score[t] = HUGE_VAL;
}

/* Which context tokens it chooses. */
static void expected_list(const struct rig_session *rs, int32_t pos, int32_t layer,
                          const char *selector, int32_t window, int32_t k, uint8_t *mark)
{
    double score[N_CTX];
    expected_scores(rs, pos, layer, selector, window, score);
    record_top(score, N_CTX, k, mark);
}

static void check_read(const uint8_t *hit, int32_t layer, int32_t pos, const uint8_t *mark,
                       const char *what)
{
    int32_t n_kv = rig_shape(&model.r)->n_kv_heads, n = pos + 1;
    for (int32_t h = 0; h < n_kv; h++)
        for (int32_t t = 0; t < n; t++)
            if (hit[(layer * n_kv + h) * n + t] != (t >= N_CTX || mark[t]))
                fail_msg("%s: layer %d head %d position %d of %d", what, layer, h, t, n);
}

static void check_selector(const char *selector, int32_t n_before, int32_t budget)
{
    enum { WINDOW = 6 };
    char options[128];
    uint8_t mark[N_CTX];
    float *logits = rig_logits(&model.r, N_STEPS);
    int32_t pos = N_CTX + n_before, k = budget > 0 ? budget - 1 - n_before : 20;
    snprintf(options, sizeof options,
             "filter_layers=1,num_wait_load_layers=0,selector=%s,window_size=%d%s", selector,
             WINDOW, budget > 0 ? "" : ",num_of_selected_tokens=20");
    struct rig_session rs = start(options, budget);
    rig_decode(&model.r, &rs, model.id + N_CTX, n_before, logits);
    const uint8_t *hit = rig_decode_probed(&model.r, &rs, model.id[pos], logits);
    expected_list(&rs, pos, 1, selector, WINDOW, k, mark);
    check_read(hit, 2, pos, mark, options);
    check_read(hit, 3, pos, mark, options);
    memset(mark, 1, sizeof mark);
    check_read(hit, 0, pos, mark, options);
    check_read(hit, 1, pos, mark, options);
    rig_end(&rs);
    kvl_free(logits);
}

/* When the window is mostly context, when the last candidate has come, and when it is all tail. */
static void test_layers_read_the_list_of_their_filter(void **state)
{
    static const int32_t steps[] = { 0, 1, 3, 5, 6, 7, 13, 21, 28 };
    (void)state;
    for (uint32_t kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
        open_model(4, kv_heads, 11 + kv_heads);
        for (size_t i = 0; i < sizeof g_selectors / sizeof g_selectors[0]; i++)
            for (size_t n = 0; n < sizeof steps / sizeof steps[0]; n++) {
                check_selector(g_selectors[i].name, steps[n], 45);
                check_selector(g_selectors[i].name, steps[n], 0);
            }
        rig_close(&model.r);
    }
}

static float *run_logits(const char *options, int32_t budget)
{
    struct rig_session rs = start(options, budget);
    float *logits = rig_logits(&model.r, N_STEPS);
    rig_decode(&model.r, &rs, model.id + N_CTX, N_STEPS, logits);
    rig_end(&rs);
    return logits;
}

static void expect_same_answers(const char *a, const char *b, bool same)
{
    float *x = run_logits(a, 40), *y = run_logits(b, 40);
    if (same) rig_expect_same(&model.r, x, y, N_STEPS, a);
    if (!same) assert_true(rig_distance(&model.r, x, y, N_STEPS) > 1e-4);
    kvl_free(x);
    kvl_free(y);
}

/* A question that is prefilled with its context makes it longer than was planned: weights of the window's
 * queries were once written behind their table. */
static void test_a_context_longer_than_planned(void **state)
{
    (void)state;
    open_model(4, 2, 19);
    for (int i = 0; i < 2; i++) {
        const char *options = i ? "selector=exp" : "selector=uniform";
        float *want = run_logits(options, 40);
        n_planned = 1;
        float *got = run_logits(options, 40);
        n_planned = 0;
        rig_expect_same(&model.r, want, got, N_STEPS, options);
        kvl_free(want);
        kvl_free(got);
    }
    rig_close(&model.r);
}

static void test_what_is_the_same(void **state)
{
    (void)state;
    open_model(4, 2, 3);
    expect_same_answers("selector=exp,window_size=1", "selector=softmax", true);
    expect_same_answers("selector=uniform,window_size=1", "selector=softmax", true);
    expect_same_answers("selector=exp,window_size=9", "selector=softmax", false);
    expect_same_answers("num_of_selected_tokens=0.2", "num_of_selected_tokens=30", true);
    expect_same_answers("num_of_selected_tokens=0.2", "num_of_selected_tokens=29", false);
    expect_same_answers("lazy=true,lazy_overlap=1", "lazy=false", true);
    float *all = run_logits("num_of_selected_tokens=1.0", 0), *want = rig_logits(&model.r, N_STEPS);
    struct rig_run dense = { .policy = &record_policy, .id = model.id, .n_ctx = N_CTX };
    struct rig_session rs = rig_start(&model.r, &dense);
    rig_decode(&model.r, &rs, model.id + N_CTX, N_STEPS, want);
    rig_expect_same(&model.r, want, all, N_STEPS, "every token selected and full attention");
    rig_end(&rs);
    kvl_free(all);
    kvl_free(want);
    rig_close(&model.r);
}

/* ---- report ----------------------------------------------------------------------------------------- */

struct numbers {
    char name[32][40];
    double value[32];
    int n;
    char notes[400];
};

static void add_number(void *user, const char *name, double value)
{
    struct numbers *all = user;
    assert_true(all->n < 32);
    snprintf(all->name[all->n], sizeof all->name[0], "%s", name);
    all->value[all->n++] = value;
}

static void add_note(void *user, const char *text)
{
    struct numbers *all = user;
    size_t n = strlen(all->notes);
    snprintf(all->notes + n, sizeof all->notes - n, "%s\n", text);
}

static double number(const struct numbers *all, const char *name)
{
    for (int i = 0; i < all->n; i++)
        if (strcmp(all->name[i], name) == 0) return all->value[i];
    fail_msg("%s is not reported", name);
    return 0;
}

static struct numbers report_of(struct rig_session *rs)
{
    struct numbers all = { .n = 0 };
    struct kvl_report_to to = { .user = &all, .num = add_number, .note = add_note };
    RIG_OK(&model.r.err, kvl_session_report(rs->s, &to, &model.r.err));
    return all;
}

static void expect_number(const struct numbers *all, const char *name, double want,
                          double tolerance)
{
    double got = number(all, name);
    if (!(fabs(got - want) <= tolerance)) fail_msg("%s is %.9g, want %.9g", name, got, want);
}

enum { MEASURED = 32 };

/* C(l, m) of the last MEASURED queries of the context, from recorded queries and stored keys. */
static void expected_capture(const struct rig_session *rs, int32_t n_layers, int32_t k,
                             float *capture)
{
    static double weight[RECORD_LAYERS][N_HEADS * N_TOK];
    double sum[RECORD_LAYERS * RECORD_LAYERS] = { 0 };
    for (int32_t pos = N_CTX - MEASURED; pos < N_CTX; pos++) {
        for (int32_t l = 0; l < n_layers; l++) weights_at(rs, pos, l, weight[l], NULL);
        for (int32_t l = 0; l < n_layers; l++) {
            uint8_t mark[N_CTX];
            double score[N_CTX] = { 0 };
            max_over_heads(weight[l], pos + 1, score, 1);
            record_top(score, pos, k, mark);
            mark[pos] = 1;
            for (int32_t m = l; m < n_layers; m++)
                for (int32_t i = 0; i < N_HEADS * (pos + 1); i++)
                    sum[l * n_layers + m] +=
                        mark[i % (pos + 1)] * weight[m][i] / N_HEADS / MEASURED;
        }
    }
    for (int32_t i = 0; i < n_layers * n_layers; i++) capture[i] = (float)sum[i];
}

static void check_measured(int32_t n_layers, int32_t dense_layers)
{
    char options[64];
    float capture[RECORD_LAYERS * RECORD_LAYERS];
    double least = 1, own = 0;
    int32_t n_sparse = 0, n_filters = 0, filter = -1;
    snprintf(options, sizeof options, "dense_layers=%d", dense_layers);
    struct rig_session rs = start(options, 21);
    struct numbers got = report_of(&rs);
    expected_capture(&rs, n_layers, 20, capture);
    uint32_t set = best_set(capture, n_layers, 0, dense_layers);
    for (int32_t l = 0; l < n_layers; l++) {
        char name[32];
        snprintf(name, sizeof name, "filter_%04d", n_filters);
        if (set >> l & 1) {
            expect_number(&got, name, l, 0);
            filter = l;
            n_filters++;
        } else if (filter >= 0) {
            n_sparse++;
            own += (double)capture[l * n_layers + l];
            least = fmin(least, (double)capture[filter * n_layers + l]);
        }
    }
    double mean =
        (set_value(capture, n_layers, 0, dense_layers, set) - n_layers + n_sparse) / n_sparse;
    expect_number(&got, "filters", n_filters, 0);
    expect_number(&got, "host_share", (double)n_sparse / n_layers, 1e-9);
    expect_number(&got, "capture_mean", mean, 1e-4);
    expect_number(&got, "capture_min", least, 1e-4);
    expect_number(&got, "capture_own", own / n_sparse, 1e-4);
    rig_end(&rs);
}

static void test_filters_are_measured(void **state)
{
    (void)state;
    for (uint64_t seed = 20; seed < 23; seed++) {
        open_model(6, 2, seed);
        for (int32_t dense = 1; dense < 6; dense++) check_measured(6, dense);
        rig_close(&model.r);
    }
}

/* One call per filter and step; bytes of its layers; the second list is in the first but for what
 * changed. */
static void test_bank_is_counted(void **state)
{
    float *logits;
    (void)state;
    open_model(6, 2, 5);
    logits = rig_logits(&model.r, N_STEPS);
    struct rig_session rs =
        start("filter_layers=0+3,num_wait_load_layers=1,num_of_selected_tokens=30", 0);
    rig_decode(&model.r, &rs, model.id + N_CTX, N_STEPS, logits);
    struct numbers got = report_of(&rs);
    /* Layers 2 and 5; keys and values of 2 heads of 16 floats. */
    expect_number(&got, "bank_calls_per_tok", 2, 1e-9);
    expect_number(&got, "bank_bytes_per_tok", 2 * 30 * 2 * 2 * DIM * 4, 1e-6);
    expect_number(&got, "bank_skipped_share", 0, 1e-9);
    double hits = number(&got, "bank_hit_share");
    assert_true(hits > 0 && hits < 1);
    rig_end(&rs);
    rs = start("filter_layers=0,num_of_selected_tokens=30,lazy=true,lazy_overlap=0", 0);
    rig_decode(&model.r, &rs, model.id + N_CTX, N_STEPS, logits);
    got = report_of(&rs);
    expect_number(&got, "bank_calls_per_tok", 1.0 / N_STEPS, 1e-9);
    expect_number(&got, "bank_bytes_per_tok", 5.0 * 30 * 2 * 2 * DIM * 4 / N_STEPS, 1e-6);
    expect_number(&got, "bank_skipped_share", 1 - 1.0 / N_STEPS, 1e-9);
    rig_end(&rs);
    kvl_free(logits);
    rig_close(&model.r);
}

/* What window queries gave is read at every step of a filter, and their weights as long as the
 * candidates change; `last` has its weights at hand. */
static void test_bytes_read_to_choose(void **state)
{
    static const struct {
        const char *options;
        int64_t floats; /* of a context token, in filters 0 and 3 */
        int64_t first;  /* and in the first steps together */
    } cases[] = {
        { "filter_layers=0+3", 0, 0 },
        { "filter_layers=0+3,selector=softmax", 0, 0 },
        { "filter_layers=0+3,selector=uniform,window_size=7", 2 * (1 + 7), 2 * 7 * 6 * N_HEADS },
        { "filter_layers=0+3,selector=exp,window_size=3", 2 * (1 + 3), 2 * 3 * 2 * N_HEADS },
    };
    (void)state;
    open_model(6, 2, 5);
    float *logits = rig_logits(&model.r, N_STEPS);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig_session rs = start(cases[i].options, 40);
        rig_decode(&model.r, &rs, model.id + N_CTX, N_STEPS, logits);
        assert_int_equal(kvl_session_counters(rs.s)->index_read_bytes,
                         (N_STEPS * cases[i].floats + cases[i].first) * N_CTX * 4);
        rig_end(&rs);
    }
    kvl_free(logits);
    rig_close(&model.r);
}

/* What came after the context is read whatever the budget: the report says when that was more. */
static void test_a_tail_over_the_budget_is_told(void **state)
{
    struct numbers got;
    (void)state;
    open_model(3, 2, 5);
    float *logits = rig_logits(&model.r, N_STEPS);
    for (int32_t budget = N_STEPS - 6; budget <= N_STEPS; budget += 6) {
        struct rig_session rs = start("filter_layers=0", budget);
        rig_decode(&model.r, &rs, model.id + N_CTX, N_STEPS, logits);
        got = report_of(&rs);
        bool over = budget < N_STEPS; /* in step t the tail is t tokens and the current one */
        assert_true((strstr(got.notes, "{tail_over_share%}") != NULL) == over);
        if (over) expect_number(&got, "tail_over_share", 6.0 / N_STEPS, 1e-9);
        rig_end(&rs);
    }
    struct rig_session rs = start("filter_layers=0,num_of_selected_tokens=3", 4);
    rig_decode(&model.r, &rs, model.id + N_CTX, N_STEPS, logits);
    got = report_of(&rs); /* as published: the budget decides nothing */
    assert_null(strstr(got.notes, "tail"));
    rig_end(&rs);
    kvl_free(logits);
    rig_close(&model.r);
}

/* The old list stays while it overlaps the new one enough; which happens both ways here. */
static void test_lazy_list_goes_by_overlap(void **state)
{
    enum { K = 30 };
    uint8_t list[N_CTX] = { 0 }, fresh[N_CTX];
    int32_t n_kept = 0;
    (void)state;
    open_model(3, 2, 6);
    float *logits = rig_logits(&model.r, N_STEPS);
    struct rig_session rs =
        start("filter_layers=1,num_of_selected_tokens=30,lazy=true,lazy_overlap=0.12", 0);
    for (int32_t t = 0; t < N_STEPS; t++) {
        int32_t both = 0;
        const uint8_t *hit = rig_decode_probed(&model.r, &rs, model.id[N_CTX + t], logits);
        expected_list(&rs, N_CTX + t, 1, "last", 0, K, fresh);
        for (int32_t i = 0; i < N_CTX; i++) both += list[i] && fresh[i];
        if (t > 0 && both > 0.12 * (2 * K - both))
            n_kept++;
        else
            memcpy(list, fresh, sizeof list);
        check_read(hit, 2, N_CTX + t, list, "lazy");
    }
    assert_true(n_kept > 3 && n_kept < N_STEPS - 3);
    rig_end(&rs);
    kvl_free(logits);
    rig_close(&model.r);
}

/* With k from the budget, which shrinks as the tail grows, an old list loses its worst. */
static void test_lazy_list_fits_the_budget(void **state)
{
    uint8_t list[N_CTX];
    double score[N_CTX];
    (void)state;
    open_model(3, 2, 6);
    float *logits = rig_logits(&model.r, N_STEPS);
    struct rig_session rs = start("filter_layers=1,lazy=true,lazy_overlap=0", 40);
    memset(list, 1, sizeof list);
    for (int32_t t = 0; t < N_STEPS / 2; t++) {
        const uint8_t *hit = rig_decode_probed(&model.r, &rs, model.id[N_CTX + t], logits);
        expected_scores(&rs, N_CTX + t, 1, "last", 0, score);
        for (int32_t i = 0; i < N_CTX; i++)
            if (!list[i]) score[i] = -HUGE_VAL;
        record_top(score, N_CTX, 39 - t, list);
        check_read(hit, 2, N_CTX + t, list, "lazy");
    }
    rig_end(&rs);
    kvl_free(logits);
    rig_close(&model.r);
}

/* ---- options ------------------------------------------------------------------------------------------ */

static int plan_with(const char *options, int32_t budget, int32_t n_layers, struct kvl_err *err)
{
    struct kvl_shape shape = { .n_layers = n_layers,
                               .n_heads = 4,
                               .n_kv_heads = 2,
                               .head_dim = 16,
                               .n_embd = 64,
                               .group = 2 };
    struct kvl_planned *p = NULL;
    *err = (struct kvl_err){ 0 };
    int rc = kvl_planned_create(kvl_policy_omnikv, &shape, options, budget, 100, &p, err);
    kvl_planned_destroy(p);
    return rc;
}

static void test_bad_options_are_refused(void **state)
{
    static const char *const bad[] = {
        "filter_layers=3+1",
        "filter_layers=1+1",
        "filter_layers=7", /* the last of 8 has nobody behind it */
        "filter_layers=",
        "filter_layers=1+",
        "filter_layers=a",
        "filter_layers=11111111111111111111",
        "filter_layers=5,num_wait_load_layers=2",
        "dense_layers=8",
        "dense_layers=2,num_wait_load_layers=2",
        "num_of_selected_tokens=0",
        "num_of_selected_tokens=-3",
        "num_of_selected_tokens=1.5",
        "num_of_selected_tokens=many",
    };
    struct kvl_err err;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (plan_with(bad[i], 64, 8, &err) != KVL_EINVAL || !err.msg[0])
            fail_msg("%s: %s", bad[i], err.msg);
    assert_int_equal(plan_with("", 0, 8, &err), KVL_EINVAL);
    assert_int_equal(plan_with("num_of_selected_tokens=10", 0, 8, &err), KVL_OK);
    /* Said "give 2 to 1". */
    assert_int_equal(plan_with("num_wait_load_layers=1", 64, 2, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "give 0 to 0"));
    assert_int_equal(plan_with("", 64, 1, &err), KVL_EINVAL);
    assert_int_equal(plan_with("", 64, 2, &err), KVL_OK);
    assert_int_equal(plan_with("", 64, 80, &err), KVL_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_selectors_of_the_example),
        cmocka_unit_test(test_scores_that_there_are_not),
        cmocka_unit_test(test_layer_map_of_the_paper),
        cmocka_unit_test(test_filters_are_the_best_of_all_sets),
        cmocka_unit_test(test_layers_read_the_list_of_their_filter),
        cmocka_unit_test(test_a_context_longer_than_planned),
        cmocka_unit_test(test_what_is_the_same),
        cmocka_unit_test(test_filters_are_measured),
        cmocka_unit_test(test_bank_is_counted),
        cmocka_unit_test(test_bytes_read_to_choose),
        cmocka_unit_test(test_a_tail_over_the_budget_is_told),
        cmocka_unit_test(test_lazy_list_goes_by_overlap),
        cmocka_unit_test(test_lazy_list_fits_the_budget),
        cmocka_unit_test(test_bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
