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

/* The newest votes with weight 1, the one before with 2, and so on; the first two tokens and the last one stay. */
static int voter_plan(struct kvl_plan *plan)
{
    return kvl_plan_observe(plan, KVL_OBS_WINDOW, VOTES);
}

static int voter_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    int32_t n = scores->n_tok;
    float *k, q[4 * 16];
    scores->keep_tok = ctx->budget_tok - 1;
    scores->protect_first = 2;
    scores->protect_last = 1;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * 16, &k));
    for (int32_t h = 0; h < 2; h++) {
        KVL_TRY(kvl_read_key_span(ctx, layer, h, 0, n, false, k));
        for (int32_t back = 0; back < VOTES; back++) {
            KVL_TRY(kvl_obs_window_query(ctx, layer, back, q));
            for (int32_t i = 0; i < n * 16; i++)
                scores->score[h * n + i / 16] += (float)(back + 1) * k[i] * q[2 * h * 16 + i % 16];
        }
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
    bool votes, cut_context;
    double ratio;
};

/* Scores of all tokens up to `at` for a cut behind it. */
static void cut_scores(bool votes, int32_t kv_head, int32_t at, const float *k, double *score)
{
    for (int32_t i = 0; i <= at; i++) {
        score[i] = 0;
        for (int c = 0; c < 16 && !votes; c++) score[i] -= pow((double)k[i * 16 + c], 2);
        for (int32_t back = 0; back < VOTES && votes; back++) {
            const float *q = record.q[at - back - (N - BEFORE)][0] + 2 * kv_head * 16;
            for (int c = 0; c < 16; c++)
                score[i] += (back + 1) * (double)q[c] * (double)k[i * 16 + c];
        }
    }
}

/* Of the live ones the best stay; where votes count, the first two and the last. */
static void cut(const struct cuts *w, int32_t kv_head, int32_t at, const float *k, uint8_t *live)
{
    double score[N + STEPS];
    uint8_t best[N + STEPS];
    int32_t n = 0, target = w->ratio > 0 ? (int32_t)((at + 1) * (1 - w->ratio)) : w->target;
    cut_scores(w->votes, kv_head, at, k, score);
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
        { "target=30,interval=10", 40, 30, 10, false, true, 0 },
        { "target=30,interval=10,cut_context=false", 40, 30, 10, false, false, 0 },
        { "", 40, 32, 8, false, true, 0 },
        { "target=33", 40, 33, 7, false, true, 0 },
        { "interval=3", 40, 37, 3, false, true, 0 },
        { "ratio=0.6,interval=9", 80, 0, 9, false, true, .6 },
        { "ratio=0.25,interval=4,cut_context=false", 120, 0, 4, false, false, .25 },
        { "target=200,interval=5", 205, 200, 5, false, true, 0 }, /* nothing to cut */
        /* by queries: the ring goes around; those of the context count at first; one, and as many as vote */
        { "target=30,interval=10,buffer=4", 40, 30, 10, true, true, 0 },
        { "target=30,interval=2,buffer=6", 40, 30, 2, true, true, 0 },
        { "target=25,interval=1,buffer=3", 40, 25, 1, true, true, 0 },
        { "target=40,interval=7,cut_context=false", 60, 40, 7, true, false, 0 },
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
