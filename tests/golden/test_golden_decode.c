/* decode and random_decode: what cuts leave of context and answer, in the first layer, whose keys and queries are those of
 * the tokens whatever was evicted. */
#include "golden/one_shot.h"

extern const struct kvl_policy *const kvl_policy_decode, *const kvl_policy_knorm,
                                                             *const kvl_policy_random_decode;

enum { N = 100, STEPS = 23, BEFORE = 8, VOTES = 3 };
static const struct gw_llama llama = {
    .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .n_embd = 64, .head_dim = 16, .seed = 8
};
static struct shot shot;

/* Queries of tokens N - BEFORE and on are written down, one by one. */
static int open_shot(void **state)
{
    (void)state;
    shot_open(&shot, &llama, N + STEPS, 3);
    record_run(&shot.r, shot.id, N - BEFORE, BEFORE + STEPS, 0);
    return 0;
}

static int close_shot(void **state)
{
    (void)state;
    shot_close(&shot);
    return 0;
}

static const struct kvl_policy *over(const struct kvl_policy *outer, const struct kvl_policy *inner)
{
    const struct kvl_policy *p;
    struct kvl_err err = { 0 };
    RIG_OK(&err, kvl_policy_compose(outer, inner, &p, &err));
    return p;
}

/* ---- an inner policy that looks at the latest queries -------------------------------------------------------- */

/* PRODUCTS: the newest votes with weight 1, the one before with 2, and so on; the first two tokens and the last one stay.
 * WEIGHTS: the same by attention weights, of which a query puts none on what comes behind it.  MEANS: the mean of all
 * that were kept, before RoPE. */
enum { NORMS = 0, PRODUCTS, WEIGHTS, MEANS };
static int kind; /* of the votes */

static int voter_plan(struct kvl_plan *plan)
{
    if (kind == MEANS) KVL_TRY(kvl_plan_observe(plan, KVL_OBS_MOMENTS, 0));
    return kvl_plan_observe(plan, KVL_OBS_WINDOW, VOTES);
}

/* score [2][n] += factor times products of keys with vectors [4][16], of which the first of a group counts. */
static int voter_products(struct kvl_pctx *ctx, int32_t layer, const float *q, float factor,
                          int32_t n, float *score)
{
    float *k;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * 16, &k));
    for (int32_t h = 0; h < 2; h++) {
        KVL_TRY(kvl_read_key_span(ctx, layer, h, 0, n, false, k));
        for (int32_t i = 0; i < n * 16; i++)
            score[h * n + i / 16] += factor * k[i] * q[2 * h * 16 + i % 16];
    }
    return KVL_OK;
}

static int voter_weights(struct kvl_pctx *ctx, int32_t layer, int32_t back, int32_t n, float *score)
{
    float *probs;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * 4, &probs));
    KVL_TRY(kvl_obs_window_probs(ctx, layer, back, probs, n));
    for (int32_t i = 0; i < 2 * n; i++)
        score[i] += (float)(back + 1) * probs[i / n * 2 * n + i % n];
    return KVL_OK;
}

static int voter_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    int32_t n = scores->n_tok, n_queries;
    const float *mean, *cov;
    float q[4 * 16];
    scores->keep_tok = ctx->budget_tok - 1;
    scores->protect_first = 2;
    scores->protect_last = 1;
    if (kind == MEANS) {
        KVL_TRY(kvl_obs_moments(ctx, layer, 0, &mean, &cov, &n_queries));
        return voter_products(ctx, layer, mean, 1, n, scores->score);
    }
    for (int32_t back = 0; back < VOTES; back++) {
        KVL_TRY(kvl_obs_window_query(ctx, layer, back, q));
        KVL_TRY(kind == WEIGHTS
                    ? voter_weights(ctx, layer, back, n, scores->score)
                    : voter_products(ctx, layer, q, (float)(back + 1), n, scores->score));
    }
    return KVL_OK;
}

static const struct kvl_policy voter = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "voter",
    .title = "Voter",
    .paper = "none",
    .help = "scores by the latest queries",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .plan = voter_plan,
    .score = voter_score,
};

/* ---- what cuts leave ------------------------------------------------------------------------------------------ */

struct cuts {
    const char *options;
    int32_t budget, target, interval;
    int votes; /* NORMS: knorm */
    bool cut_context;
    double ratio;
    int32_t n_means; /* queries of which MEANS has the mean, at most */
};

static const float *query(int32_t pos, int32_t kv_head)
{
    return record.q[pos - (N - BEFORE)][0] + 2 * kv_head * 16;
}

/* Turned back from its position: pairs are neighbours. */
static void raw_query(int32_t pos, int32_t kv_head, double *raw)
{
    const float *q = query(pos, kv_head);
    for (int f = 0; f < 8; f++) {
        double angle = pos * pow(10000, -f / 8.0), a = (double)q[2 * f], b = (double)q[2 * f + 1];
        raw[2 * f] = a * cos(angle) + b * sin(angle);
        raw[2 * f + 1] = b * cos(angle) - a * sin(angle);
    }
}

/* Weights of a query over the live tokens that it sees. */
static void add_weights(int32_t pos, int32_t kv_head, double factor, const float *k,
                        const uint8_t *live, double *score)
{
    double e[N + STEPS], sum = 0;
    for (int32_t i = 0; i <= pos; i++) {
        double dot = 0;
        for (int c = 0; c < 16; c++) dot += (double)query(pos, kv_head)[c] * (double)k[i * 16 + c];
        sum += e[i] = live[i] ? exp(dot / 4) : 0;
    }
    for (int32_t i = 0; i <= pos; i++) score[i] += factor * e[i] / sum;
}

/* Scores of all tokens up to `at` for a cut behind it. */
static void cut_scores(const struct cuts *w, int32_t kv_head, int32_t at, const float *k,
                       const uint8_t *live, double *score)
{
    double mean[16] = { 0 }, raw[16];
    int32_t n = KVL_MIN(w->n_means, at - N + 1);
    for (int32_t j = 0; j < n && w->votes == MEANS; j++) {
        raw_query(at - j, kv_head, raw);
        for (int c = 0; c < 16; c++) mean[c] += raw[c] / n;
    }
    for (int32_t i = 0; i <= at; i++) {
        score[i] = 0;
        for (int c = 0; c < 16 && w->votes == NORMS; c++) score[i] -= pow((double)k[i * 16 + c], 2);
        for (int c = 0; c < 16; c++) score[i] += mean[c] * (double)k[i * 16 + c];
        for (int32_t back = 0; back < VOTES && w->votes == PRODUCTS; back++)
            for (int c = 0; c < 16; c++)
                score[i] +=
                    (back + 1) * (double)query(at - back, kv_head)[c] * (double)k[i * 16 + c];
    }
    for (int32_t back = 0; back < VOTES && w->votes == WEIGHTS; back++)
        add_weights(at - back, kv_head, back + 1, k, live, score);
}

/* Of the live ones the best stay; where votes count, the first two and the last. */
static void cut(const struct cuts *w, int32_t kv_head, int32_t at, const float *k, uint8_t *live)
{
    double score[N + STEPS];
    uint8_t best[N + STEPS];
    int32_t n = 0, target = w->ratio > 0 ? (int32_t)((at + 1) * (1 - w->ratio)) : w->target;
    cut_scores(w, kv_head, at, k, live, score);
    for (int32_t i = 0; i <= at; i++) {
        if (!live[i]) score[i] = -HUGE_VAL;
        if (live[i] && w->votes && (n < 2 || i == at)) score[i] = HUGE_VAL;
        n += live[i];
    }
    if (n <= target) return;
    record_top(score, at + 1, target, best);
    memcpy(live, best, (size_t)at + 1);
}

static void expect_cuts(const struct cuts *w)
{
    const struct kvl_policy *p = over(kvl_policy_decode, w->votes ? &voter : kvl_policy_knorm);
    kind = w->votes;
    struct rig_run run = {
        .policy = p, .options = w->options, .budget = w->budget, .id = shot.id, .n_ctx = N
    };
    struct rig_session rs = rig_start(&shot.r, &run);
    float *logits = rig_logits(&shot.r, STEPS);
    rig_decode(&shot.r, &rs, shot.id + N, STEPS, logits);
    for (int32_t h = 0; h < 2; h++) {
        uint8_t live[N + STEPS];
        int32_t want[N + STEPS], n = 0;
        float *k = shot_read(&shot, 0, h, KVL_PART_K);
        memset(live, 1, sizeof live);
        if (w->cut_context) cut(w, h, N - 1, k, live);
        for (int32_t at = N; at < N + STEPS; at++)
            if ((at - N + 1) % w->interval == 0) cut(w, h, at, k, live);
        for (int32_t i = 0; i < N + STEPS; i++)
            if (live[i]) want[n++] = i;
        rig_expect_kept(&rs, 0, h, want, n);
        kvl_free(k);
    }
    kvl_free(logits);
    rig_end(&rs);
    kvl_policy_decompose(p);
}

static void test_cuts(void **state)
{
    static const struct cuts ways[] = {
        { "target=30,interval=10", 40, 30, 10, NORMS, true, 0, 0 },
        { "target=30,interval=10,cut_context=false", 40, 30, 10, NORMS, false, 0, 0 },
        { "", 40, 32, 8, NORMS, true, 0, 0 },
        { "target=33", 40, 33, 7, NORMS, true, 0, 0 },
        { "interval=3", 40, 37, 3, NORMS, true, 0, 0 },
        { "ratio=0.6,interval=9", 80, 0, 9, NORMS, true, .6, 0 },
        { "ratio=0.25,interval=4,cut_context=false", 120, 0, 4, NORMS, false, .25, 0 },
        { "target=200,interval=5", 205, 200, 5, NORMS, true, 0, 0 }, /* nothing to cut */
        /* by queries: the ring goes around; those of the context count at first; one, and as many as vote */
        { "target=30,interval=10,buffer=4", 40, 30, 10, PRODUCTS, true, 0, 0 },
        { "target=30,interval=2,buffer=6", 40, 30, 2, PRODUCTS, true, 0, 0 },
        { "target=25,interval=1,buffer=3", 40, 25, 1, PRODUCTS, true, 0, 0 },
        { "target=40,interval=7,cut_context=false", 60, 40, 7, PRODUCTS, false, 0, 0 },
        { "target=30,interval=1,buffer=5", 40, 30, 1, WEIGHTS, true, 0, 0 },
        { "target=50,interval=6,buffer=4", 60, 50, 6, WEIGHTS, true, 0, 0 },
        { "target=40,interval=3,buffer=5,cut_context=false", 60, 40, 3, MEANS, false, 0, 5 },
        { "target=60,interval=11,buffer=64,cut_context=false", 80, 60, 11, MEANS, false, 0, 64 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) expect_cuts(&ways[i]);
}

/* Sizes that follow from the budget: a fifth of it between two cuts, 512 at most; an eighth of it, 64 at most. */
static void test_sizes(void **state)
{
    const struct kvl_policy *p = over(kvl_policy_decode, kvl_policy_knorm),
                            *r = kvl_policy_random_decode;
    const struct {
        const struct kvl_policy *policy;
        const char *options;
        int32_t budget;
        const char *resolved;
    } ways[] = {
        { p, "", 2560, "target=2048,interval=512,buffer=256" },
        { p, "", 8000, "target=7488,interval=512,buffer=256" },
        { p, "", 1000, "target=800,interval=200,buffer=200" },
        { p, "", 8, "target=7,interval=1,buffer=64" },
        { p, "target=90", 100, "target=90,interval=10,buffer=64" },
        { p, "interval=300,buffer=7", 1000, "target=700,interval=300,buffer=7" },
        { r, "", 42, "kept=32,buffer=5,prompt=sample" },
        { r, "", 8, "kept=6,buffer=1,prompt=sample" },
        { r, "", 1000, "kept=872,buffer=64,prompt=keep" },
        { r, "buffer=10", 120, "kept=100,buffer=10,prompt=keep" },
        { r, "buffer=10", 119, "kept=99,buffer=10,prompt=sample" },
        { r, "kept=50,prompt=keep", 119, "kept=50,buffer=14,prompt=keep" },
    };
    static const struct {
        bool random;
        const char *options, *said;
    } wrong[] = { { false, "target=40", "target=40 and interval=0 of a budget of 40" },
                  { true, "buffer=20", "buffer=20 of a budget of 40" } };
    struct kvl_planned *planned;
    struct kvl_err err = { 0 };
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        RIG_OK(&err, kvl_planned_create(ways[i].policy, rig_shape(&shot.r), ways[i].options,
                                        ways[i].budget, N, &planned, &err));
        if (!strstr(kvl_planned_options(planned), ways[i].resolved))
            fail_msg("%s: %s", ways[i].options, kvl_planned_options(planned));
        kvl_planned_destroy(planned);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        err = (struct kvl_err){ 0 };
        assert_int_equal(kvl_planned_create(wrong[i].random ? r : p, rig_shape(&shot.r),
                                            wrong[i].options, 40, N, &planned, &err),
                         KVL_EINVAL);
        if (!strstr(err.msg, wrong[i].said)) fail_msg("%s", err.msg);
    }
    kvl_policy_decompose(p);
}

/* ---- random_decode ---------------------------------------------------------------------------------------------- */

/* The prompt and the latest 5 stay, and 12 of what lies between, not the same in both heads. */
static void test_random_decode(void **state)
{
    static struct shot t;
    int32_t kept[2][2 * N], same = 0;
    (void)state;
    shot_open(&t, &llama, 20 + 60, 3);
    struct rig_run run = { .policy = kvl_policy_random_decode,
                           .options = "kept=32,buffer=5",
                           .budget = 42,
                           .id = t.id,
                           .n_ctx = 20 };
    struct rig_session rs = rig_start(&t.r, &run);
    float *logits = rig_logits(&t.r, 60);
    rig_decode(&t.r, &rs, t.id + 20, 60, logits);
    /* More than 37 are there from the 18th step on, and a cut comes every 5: the last at the 58th. */
    for (int32_t h = 0; h < 2; h++) {
        assert_int_equal(rig_kept(&rs, 1, h, kept[h]), 37 + 2);
        for (int32_t i = 0; i < 20; i++) assert_int_equal(kept[h][i], i);
        for (int32_t i = 32; i < 39; i++) assert_int_equal(kept[h][i], 41 + i);
    }
    for (int32_t i = 20; i < 32; i++) same += kept[0][i] == kept[1][i];
    /* Of 41 tokens between prompt and buffer old and new ones. */
    for (int32_t h = 0; h < 2; h++) assert_true(kept[h][20] < 40 && kept[h][31] > 50);
    assert_true(same < 12);
    kvl_free(logits);
    rig_end(&rs);
    /* A prompt that does not fit is cut to 32 and 5; prompt=keep leaves it. */
    run.options = "kept=15,buffer=3";
    rs = rig_start(&t.r, &run);
    assert_int_equal(kvl_seq_len(kvl_session_seq(rs.s), 0, 0), 18);
    rig_end(&rs);
    run.options = "kept=15,buffer=3,prompt=keep";
    rs = rig_start(&t.r, &run);
    assert_int_equal(kvl_seq_len(kvl_session_seq(rs.s), 0, 0), 20);
    rig_end(&rs);
    shot_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_cuts), cmocka_unit_test(test_sizes),
                                        cmocka_unit_test(test_random_decode) };
    return cmocka_run_group_tests(tests, open_shot, close_shot);
}
