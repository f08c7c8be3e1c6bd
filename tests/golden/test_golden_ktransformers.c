/* KTransformers: hand-computed representatives and scores through the policy's own hooks, what runs read
 * against naive choices from their queries and keys, and the corners at which it is another method. */
#include "golden/ktransformers.h"

extern const struct kvl_policy *const kvl_policy_ktransformers, *const kvl_policy_quest,
                                                                    *const kvl_policy_snapkv;

/* ---- one block by hand ----------------------------------------------------------------------------- */

static void test_mean_and_fixed_by_hand(void **state)
{
    struct hand x;
    (void)state;
    for (uint32_t heads = 1; heads <= 2; heads++) { /* sums: the mean times the tokens of a block */
        hand_open(&x, kvl_policy_ktransformers, heads, "representative_type=MEAN");
        EXPECT_ROW(&x, 0, 0, 4 * -1.625f, 4 * -.25f, 4 * -2.75f, 0);
        expect_score(&x, 4 * -2.25);
        hand_close(&x);
        hand_open(&x, kvl_policy_ktransformers, heads, "representative_type=FIXED");
        EXPECT_ROW(&x, 0, 0, -1, 2, -3, 0);
        hand_close(&x);
        hand_open(&x, kvl_policy_ktransformers, heads, "anchor_type=FIXED,anchor_num=2");
        EXPECT_ROW(&x, (int32_t)heads - 1, 0, 2 * -.75f, 2 * -1.f, 2 * -2.5f, 0);
        hand_close(&x);
    }
}

static void test_max_and_quest_by_hand(void **state)
{
    struct hand x;
    (void)state;
    for (uint32_t heads = 1; heads <= 2; heads++) {
        hand_open(&x, kvl_policy_ktransformers, heads, "representative_type=MAX");
        EXPECT_ROW(&x, 0, DIM, -.5f, 2, -1, 0);
        expect_score(&x, -3);
        hand_close(&x);
        hand_open(&x, kvl_policy_ktransformers, heads, "representative_type=QUEST");
        expect_score(&x, 8);
        hand_close(&x);
    }
}

static void test_dynamic_by_hand(void **state)
{
    struct hand x;
    (void)state;
    hand_open(&x, kvl_policy_ktransformers, 1, "representative_type=DYNAMIC"); /* tokens 1 and 3 */
    EXPECT_ROW(&x, 0, 0, -2, 1, -1, 0, -3, 0, -5, 0);
    expect_score(&x, -2 - 1 - .5 + 6 - 5);
    hand_close(&x);
    hand_open(&x, kvl_policy_ktransformers, 1,
              "representative_num=2"); /* means of 1, 2 and of 3, 0 */
    EXPECT_ROW(&x, 0, 0, -2.5f / 2, -3.f / 2, -3.f / 2, 0, -4.f / 2, 2.f / 2, -8.f / 2, 0);
    expect_score(&x, (-2.5 + 3 - 1.5 + 8 - 8) / 2);
    hand_close(&x);
    hand_open(&x, kvl_policy_ktransformers, 2, "representative_num=2");
    EXPECT_ROW(&x, 1, 0, -4.f / 2, 2.f / 2, -8.f / 2, 0);
    hand_close(&x);
}

/* ---- sizes ----------------------------------------------------------------------------------------- */

static void expect_options(const char *options, int32_t budget, const char *const *want)
{
    struct kvl_shape shape = { .n_layers = 32,
                               .n_heads = 32,
                               .n_kv_heads = 8,
                               .head_dim = 128,
                               .n_embd = 4096,
                               .n_vocab = 1000,
                               .n_ctx_train = 131072,
                               .group = 4,
                               .scale = 0.088388f };
    struct kvl_planned *p;
    struct kvl_err err = { 0 };
    RIG_OK(&err,
           kvl_planned_create(kvl_policy_ktransformers, &shape, options, budget, 100000, &p, &err));
    for (; *want; want++)
        if (!strstr(kvl_planned_options(p), *want))
            fail_msg("budget %d, %s: %s", budget, options, kvl_planned_options(p));
    kvl_planned_destroy(p);
}
#define EXPECT_OPTIONS(options, budget, ...)                                                       \
    expect_options(options, budget, (const char *const[]){ __VA_ARGS__, NULL })

static void expect_refused(const char *options, int32_t budget, const char *needle)
{
    struct kvl_shape shape = { .n_layers = 32,
                               .n_heads = 32,
                               .n_kv_heads = 8,
                               .head_dim = 128,
                               .n_embd = 4096,
                               .n_vocab = 1000,
                               .n_ctx_train = 131072,
                               .group = 4,
                               .scale = 0.088388f };
    struct kvl_planned *p;
    struct kvl_err err = { 0 };
    assert_int_equal(
        kvl_planned_create(kvl_policy_ktransformers, &shape, options, budget, 100000, &p, &err),
        KVL_EINVAL);
    if (!strstr(err.msg, needle)) fail_msg("%s", err.msg);
}

/* 1 + 96 + 32 full blocks of 128 are 16512 tokens; the current block comes on top. */
static void test_budget_becomes_the_published_sizes(void **state)
{
    (void)state;
    EXPECT_OPTIONS("", 16512 + 128, "block_size=128,local_windows_len=4096,second_block_count=96",
                   "init_block_num=1", "preselect_block_count=97", "representative_num=1");
    EXPECT_OPTIONS("", 128, "block_size=4,local_windows_len=28,second_block_count=21",
                   "init_block_num=3");
    EXPECT_OPTIONS("block_size=16", 4096, "init_block_num=4"); /* 64 tokens */
    EXPECT_OPTIONS("block_size=33", 4096, "init_block_num=1");
    EXPECT_OPTIONS("second_select_num=7,anchor_type=QUEST", 4096, "second_block_count=7",
                   "representative_num=2");
    expect_refused("second_select_num=7,second_block_count=8", 4096, "stands twice");
    expect_refused("anchor_type=QUEST,anchor_num=3", 4096, "give 2");
    expect_refused("anchor_type=FIXED,anchor_num=3", 4096, "divisor");
    expect_refused("dense_layer_num=32", 4096, "32 layers");
    expect_refused("local_windows_len=4096", 4096, "budget");
    expect_refused("", 11, "at least 12");
}

/* ---- who selects, when -------------------------------------------------------------------------------- */

static char asked[READS_LAYERS + 1];

static int count_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    asked[step->layer] = 'S';
    return kvl_policy_ktransformers->select(ctx, step, q, sel);
}

static void test_pattern_of_layers_and_steps(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = 8, .seed = 3 } };
    struct kvl_policy policy = *kvl_policy_ktransformers;
    struct rig r;
    int32_t id[N_TOK];
    (void)state;
    policy.select = count_select;
    rig_open(&r, &desc);
    rig_tokens(id, N_TOK, 6);
    struct rig_run run = { .policy = &policy,
                           .options = "dense_layer_num=2,layer_step=3,token_step=2,block_size=4",
                           .budget = 48,
                           .id = id,
                           .n_ctx = N_CTX };
    struct rig_session rs = rig_start(&r, &run);
    float *logits = rig_logits(&r, 1);
    reads_tap(&r, &rs);
    for (int32_t t = 0; t < 4; t++) {
        memset(asked, 'r', READS_LAYERS);
        rig_decode(&r, &rs, id + N_CTX + t, 1, logits);
        for (int32_t l = 0; l < READS_LAYERS; l++)
            if (reads.dense[l]) asked[l] = 'D';
        assert_string_equal(asked, t % 2 == 0 ? "DDSrrSrr" : "DDrrrrrr");
    }
    kvl_free(logits);
    rig_end(&rs);
    rig_close(&r);
}

/* ---- runs against naive choices ------------------------------------------------------------------------ */

struct naive {
    const char *options;
    int32_t block, init, local, pick; /* in blocks */
    int32_t dense, layer_step, token_step;
    bool separate;
    char type; /* of the representative: x maximum, m mean, q minimum and maximum, d, f */
    int32_t n_rep;
};

static double channel(const struct lane *lane, int32_t first, int32_t n, int32_t c, bool max)
{
    double y = (double)lane->k[first][c];
    for (int32_t i = first; i < first + n; i++)
        y = max ? fmax(y, (double)lane->k[i][c]) : fmin(y, (double)lane->k[i][c]);
    return y;
}

/* Mean over the tokens that stand for a block under this query head. */
static double mean_channel(const struct lane *lane, const struct naive *n, const float *mass,
                           int32_t block, int32_t c)
{
    const int32_t size = KVL_MAX(1, KVL_MIN(n->block, 64)), first = block * size;
    double sum = 0, importance[64];
    uint8_t mark[64];
    int32_t count = 0;
    bool known = n->type == 'd' && first + size <= N_CTX;
    for (int32_t i = 0; i < size; i++) {
        importance[i] = known ? (double)mass[first + i] : 0;
        mark[i] = n->type != 'f' || i % (size / n->n_rep) == 0;
    }
    if (known) record_top(importance, size, n->n_rep, mark);
    for (int32_t i = 0; i < size; i++) {
        count += mark[i];
        if (mark[i]) sum += (double)lane->k[first + i][c];
    }
    return sum / count;
}

static double block_score(const struct lane *lane, const struct naive *n, const float *q,
                          const float *mass, int32_t block)
{
    double sum = 0;
    int32_t first = block * n->block;
    for (int32_t c = 0; c < HEAD; c++) {
        double x = (double)q[c];
        if (n->type == 'x' || n->type == 'q') {
            double max = x * channel(lane, first, n->block, c, true);
            sum += n->type == 'x' ? max : fmax(max, x * channel(lane, first, n->block, c, false));
        } else {
            sum += x * mean_channel(lane, n, mass, block, c);
        }
    }
    return sum;
}

/* Marks the positions that a list of heads first .. last - 1 reads. */
static void naive_list(const struct lane *lanes, int32_t group, const struct naive *n,
                       const float *q, const float *mass, int32_t first, int32_t last,
                       uint8_t *want)
{
    double score[N_TOK];
    uint8_t mark[N_TOK];
    int32_t n_full = reads.pos / n->block, far = n_full - n->local;
    if (far < n->init || far > N_TOK) fail();
    for (int32_t b = n->init; b < far; b++) {
        score[b - n->init] = 0;
        for (int32_t h = first; h < last; h++)
            score[b - n->init] +=
                block_score(&lanes[h / group], n, q + h * HEAD, mass + (size_t)h * N_CTX, b);
    }
    record_top(score, far - n->init, n->pick, mark);
    for (int32_t p = 0; p <= reads.pos; p++) {
        int32_t b = p / n->block;
        want[p] = b < n->init || b >= far || mark[b - n->init];
    }
}

static struct lane lanes[READS_HEADS];
static uint8_t wanted[READS_LAYERS][READS_HEADS][READS_TOK];

/* What this layer's heads should have read in the step just done, into wanted[layer]. */
static void naive_layer(struct rig *r, const struct rig_session *rs, int32_t layer,
                        const struct naive *n)
{
    const struct kvl_shape *sh = rig_shape(r);
    int32_t group = sh->n_heads / sh->n_kv_heads, step = n->separate ? group : sh->n_heads;
    for (int32_t h = 0; h < sh->n_kv_heads; h++)
        record_keys(r, rs, layer, h, reads.pos + 1, &lanes[h].k[0][0]);
    for (int32_t h = 0; h < sh->n_heads; h += step) {
        naive_list(lanes, group, n, reads.q[layer], record.mass[layer], h, h + step,
                   wanted[layer][h]);
        for (int32_t j = h + 1; j < h + step; j++)
            memcpy(wanted[layer][j], wanted[layer][h], sizeof wanted[0][0]);
    }
}

static void check_naive_step(struct rig *r, const struct rig_session *rs, const struct naive *n,
                             int32_t t)
{
    const struct kvl_shape *sh = rig_shape(r);
    for (int32_t l = 0; l < sh->n_layers; l++) {
        int32_t from = l < n->dense ? l : l - (l - n->dense) % n->layer_step;
        if (from == l && t % n->token_step == 0 && l >= n->dense) naive_layer(r, rs, l, n);
        if (from == l && t % n->token_step != 0)
            for (int32_t h = 0; h < sh->n_heads; h++) wanted[l][h][reads.pos] = 1;
        for (int32_t h = 0; h < sh->n_heads; h++)
            for (int32_t p = 0; p <= reads.pos; p++) {
                bool want = l < n->dense || wanted[from][h][p];
                if (reads.read[l][h][p] != want)
                    fail_msg("%s: step %d layer %d head %d position %d is %sread", n->options, t, l,
                             h, p, want ? "not " : "");
            }
    }
}

static void check_naive(struct rig *r, const int32_t *id, const struct naive *n)
{
    struct rig_run run = { .policy = kvl_policy_ktransformers,
                           .options = n->options,
                           .budget = 1,
                           .id = id,
                           .n_ctx = N_CTX };
    struct rig_session rs = rig_start(r, &run);
    float *logits = rig_logits(r, 1);
    reads_tap(r, &rs);
    for (int32_t t = 0; t < N_STEPS; t++) {
        rig_decode(r, &rs, id + N_CTX + t, 1, logits);
        check_naive_step(r, &rs, n, t);
    }
    kvl_free(logits);
    rig_end(&rs);
}

static const struct naive naives[] = {
    { SIZES(4, 1, 32, 5) "representative_type=MEAN", 4, 1, 8, 5, 0, 1, 1, false, 'm', 1 },
    { SIZES(4, 1, 8, 5) "representative_type=MEAN", 4, 1, 2, 5, 0, 1, 1, false, 'm', 1 },
    { SIZES(4, 2, 6, 5) "representative_type=MAX", 4, 2, 1, 5, 0, 1, 1, false, 'x', 1 },
    { SIZES(5, 0, 5, 3) "head_select_mode=SEPARATE,representative_type=MAX", 5, 0, 1, 3, 0, 1, 1,
      true, 'x', 1 },
    { SIZES(4, 0, 0, 6) "head_select_mode=SEPARATE,representative_type=QUEST", 4, 0, 0, 6, 0, 1, 1,
      true, 'q', 2 },
    { SIZES(4, 1, 4, 6) "representative_type=QUEST,dense_layer_num=1", 4, 1, 1, 6, 1, 1, 1, false,
      'q', 2 },
    { SIZES(8, 1, 8, 4) "representative_type=FIXED,representative_num=4", 8, 1, 1, 4, 0, 1, 1,
      false, 'f', 4 },
    { SIZES(4, 1, 0, 5) "representative_num=1", 4, 1, 0, 5, 0, 1, 1, false, 'd', 1 },
    { SIZES(4, 0, 0, 5) "head_select_mode=SEPARATE,representative_num=3", 4, 0, 0, 5, 0, 1, 1, true,
      'd', 3 },
    { SIZES(4, 1, 8, 5) "representative_type=MEAN,layer_step=2,token_step=3", 4, 1, 2, 5, 0, 2, 3,
      false, 'm', 1 },
    { SIZES(4, 1, 8, 5) "representative_type=QUEST,head_select_mode=SEPARATE,layer_step=3,"
                        "dense_layer_num=1,token_step=7",
      4, 1, 2, 5, 1, 3, 7, true, 'q', 2 },
    { SIZES(1, 3, 7, 9) "representative_type=QUEST,head_select_mode=SEPARATE", 1, 3, 7, 9, 0, 1, 1,
      true, 'q', 2 },
};

static void test_runs_read_what_the_formula_says(void **state)
{
    int32_t id[N_TOK];
    (void)state;
    for (uint32_t kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
        struct rig_desc desc = { .llama = { .n_layers = 4, .n_kv_heads = kv_heads, .seed = 9 },
                                 .kv_type = kv_heads == 2 ? KVL_KV_F16 : KVL_KV_F32 };
        struct rig r;
        rig_open(&r, &desc);
        rig_tokens(id, N_TOK, 6);
        record_run(&r, id, N_CTX, 0, 32);
        for (size_t i = 0; i < sizeof naives / sizeof naives[0]; i++)
            check_naive(&r, id, &naives[i]);
        rig_close(&r);
    }
}

/* ---- corners ------------------------------------------------------------------------------------------ */

/* The newest page and K - 1 others are Quest's K pages. */
static void test_quest_is_a_corner(void **state)
{
    int32_t id[N_TOK];
    (void)state;
    for (uint32_t kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
        struct rig_desc desc = { .llama = { .n_layers = 3, .n_kv_heads = kv_heads, .seed = 4 },
                                 .kv_type = KVL_KV_F16 };
        struct rig r;
        rig_open(&r, &desc);
        rig_tokens(id, N_TOK, 8);
        struct rig_run run = { .policy = kvl_policy_quest,
                               .options = "dense_layers=1,page=16,reduce=sum",
                               .budget = 64,
                               .id = id,
                               .n_ctx = N_CTX,
                               .n_steps = N_STEPS };
        float *want = rig_run(&r, &run);
        run.policy = kvl_policy_ktransformers;
        run.options = "dense_layer_num=1,block_size=16,init_block_num=0,local_windows_len=0,"
                      "representative_type=QUEST,head_select_mode=SEPARATE";
        float *got = rig_run(&r, &run);
        rig_expect_same(&r, want, got, N_STEPS, "quest with sums, and its corner");
        kvl_free(want);
        kvl_free(got);
        rig_close(&r);
    }
}

/* Blocks of one token, chosen by what the last 8 queries attend to: SnapKV without pooling. */
static void test_snapkv_is_a_corner(void **state)
{
    int32_t id[N_TOK], want[N_TOK];
    (void)state;
    for (uint32_t kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
        struct rig_desc desc = { .llama = { .n_layers = 3, .n_kv_heads = kv_heads, .seed = 5 } };
        struct rig r;
        rig_open(&r, &desc);
        rig_tokens(id, N_TOK, 8);
        struct rig_run snap = { .policy = kvl_policy_snapkv,
                                .options = "window=8,kernel=1",
                                .budget = 40,
                                .id = id,
                                .n_ctx = N_CTX,
                                .n_steps = N_STEPS };
        struct rig_run run = snap;
        run.policy = kvl_policy_ktransformers;
        run.options = "block_size=1,preselect_block=true,preselect_block_count=31,"
                      "local_windows_len=8,importance_window=8,head_select_mode=SEPARATE,"
                      "second_block_count=32";
        struct rig_session a = rig_start(&r, &snap), b = rig_start(&r, &run);
        for (int32_t l = 0; l < 3; l++)
            for (int32_t h = 0; h < rig_shape(&r)->n_kv_heads; h++) {
                int32_t n = rig_kept(&a, l, h, want);
                assert_int_equal(n, 39);
                rig_expect_kept(&b, l, h, want, n);
            }
        rig_end(&a);
        rig_end(&b);
        float *x = rig_run(&r, &snap), *y = rig_run(&r, &run);
        rig_expect_same(&r, x, y, N_STEPS, "snapkv without pooling, and its corner");
        kvl_free(x);
        kvl_free(y);
        rig_close(&r);
    }
}

/* ---- preselect ------------------------------------------------------------------------------------------ */

static void test_preselect_keeps_important_blocks(void **state)
{
    (void)state;
    check_preselects(kvl_policy_ktransformers, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mean_and_fixed_by_hand),
        cmocka_unit_test(test_max_and_quest_by_hand),
        cmocka_unit_test(test_dynamic_by_hand),
        cmocka_unit_test(test_budget_becomes_the_published_sizes),
        cmocka_unit_test(test_pattern_of_layers_and_steps),
        cmocka_unit_test(test_runs_read_what_the_formula_says),
        cmocka_unit_test(test_quest_is_a_corner),
        cmocka_unit_test(test_snapkv_is_a_corner),
        cmocka_unit_test(test_preselect_keeps_important_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
