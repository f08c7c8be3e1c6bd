/* KTransformers: hand-computed representatives and scores through the policy's own hooks, what runs read
 * against naive choices from their queries and keys, and the corners at which it is another method. */
#include "golden/reads.h"

#include "engine_impl.h"

extern const struct kvl_policy *const kvl_policy_ktransformers, *const kvl_policy_quest,
                                                                    *const kvl_policy_snapkv;

/* ---- one block by hand ----------------------------------------------------------------------------- */

enum { DIM = 4, BLOCK = 4, N_HAND = 8 }; /* channel 3 is zero */

static const float hand_keys[BLOCK][DIM] = {
    { -1, 2, -3 }, { -2, 1, -1 }, { -.5f, -4, -2 }, { -3, 0, -5 }
};
static const float hand_q[2][DIM] = { { 1, -1, .5f }, { -2, 0, 1 } };
static const float hand_mass[2][BLOCK] = { { .1f, .4f, .3f, .2f }, { .25f, .05f, .1f, .6f } };

struct hand {
    struct rig r;
    struct rig_session rs;
    struct kvl_err err;
    float score[2];
};

/* A context of two equal blocks, and what its last queries attended to. */
static void hand_context(struct hand *x)
{
    struct kvl_session *s = x->rs.s;
    int32_t heads = rig_shape(&x->r)->n_kv_heads, pos[N_HAND];
    float k[N_HAND * 2 * DIM], v[N_HAND * 2 * DIM] = { 0 };
    for (int32_t i = 0; i < N_HAND; i++) {
        pos[i] = i;
        for (int32_t h = 0; h < heads; h++)
            memcpy(k + (size_t)(i * heads + h) * DIM, hand_keys[i % BLOCK], sizeof hand_keys[0]);
    }
    for (int32_t l = 0; l < 2; l++) {
        struct kvl_mass *m = kvl_alloc(1, sizeof *m);
        *m = (struct kvl_mass){ s->obs->masses, l, N_HAND, N_HAND, rig_floats(2 * N_HAND) };
        for (int32_t i = 0; i < 2 * N_HAND; i++) m->mass[i] = hand_mass[i / N_HAND][i % BLOCK];
        s->obs->masses = m;
        RIG_OK(&x->err, kvl_seq_append(s->seq, l, N_HAND, pos, k, k, v, &x->err));
    }
    s->n_pos = N_HAND;
    s->obs->n_seen = N_HAND;
}

static int hand_score(void *user, const struct kvl_tap_score *t, struct kvl_err *err)
{
    struct hand *x = user;
    (void)err;
    assert_int_equal(t->n, 2);
    memcpy(x->score, t->score, sizeof x->score);
    return KVL_OK;
}

static void hand_open(struct hand *x, uint32_t n_kv_heads, const char *options)
{
    char text[256];
    snprintf(text, sizeof text,
             "block_size=4,init_block_num=0,local_windows_len=0,second_block_count=1,%s", options);
    *x = (struct hand){ 0 };
    struct rig_desc desc = {
        .llama = { .n_layers = 2, .n_heads = 2, .n_kv_heads = n_kv_heads, .head_dim = DIM }
    };
    rig_open(&x->r, &desc);
    RIG_OK(&x->err, kvl_planned_create(kvl_policy_ktransformers, rig_shape(&x->r), text, 64, N_HAND,
                                       &x->rs.planned, &x->err));
    rig_observe(&x->r, x->rs.planned);
    RIG_OK(&x->err, kvl_session_create(x->r.engine, &x->rs.s, &x->err));
    hand_context(x);
    RIG_OK(&x->err, kvl_session_attach(x->rs.s, x->rs.planned, 1, KVL_EXEC_REAL, &x->err));
}

static void hand_close(struct hand *x)
{
    rig_end(&x->rs);
    rig_close(&x->r);
}

/* Elements `at` and up of the row of block 0 in one kv head's table. */
static void expect_row(struct hand *x, int32_t kv_head, int32_t at, const float *want, int32_t n)
{
    struct kvl_meta_view meta;
    kvl_hook_begin(x->rs.s, &x->err);
    RIG_OK(&x->err, kvl_meta(&x->rs.s->ctx, 0, 0, &meta));
    for (int32_t c = 0; c < n; c++)
        assert_float_equal((double)meta.base[(size_t)kv_head * meta.head_stride + (size_t)(at + c)],
                           (double)want[c], 1e-6);
}
#define EXPECT_ROW(x, kv_head, at, ...)                                                            \
    expect_row(x, kv_head, at, (float[]){ __VA_ARGS__ },                                           \
               (int32_t)(sizeof((float[]){ __VA_ARGS__ }) / sizeof(float)))

/* Both blocks score the same; the hook is asked as the engine would. */
static void expect_score(struct hand *x, double want)
{
    struct kvl_session *s = x->rs.s;
    struct kvl_step step = { .layer = 0, .pos = N_HAND, .n_tok = 1 };
    struct kvl_query q = { .q = &hand_q[0][0] };
    struct kvl_tap tap = { .user = x, .score = hand_score };
    struct kvl_sel sel;
    kvl_session_tap(s, &tap);
    kvl_hook_begin(s, &x->err);
    s->host.n_visible = N_HAND + 1;
    kvl_sel_init(&sel, s, 0, N_HAND + 1, &x->err);
    RIG_OK(&x->err, kvl_policy_ktransformers->select(&s->ctx, &step, &q, &sel));
    for (int i = 0; i < 2; i++) {
        if (want > 1e29)
            assert_true((double)x->score[i] > 1e29);
        else
            assert_float_equal((double)x->score[i], want, 1e-5);
    }
}

static void test_mean_and_fixed_by_hand(void **state)
{
    struct hand x;
    (void)state;
    for (uint32_t heads = 1; heads <= 2; heads++) { /* sums: the mean times the tokens of a block */
        hand_open(&x, heads, "representative_type=MEAN");
        EXPECT_ROW(&x, 0, 0, 4 * -1.625f, 4 * -.25f, 4 * -2.75f, 0);
        expect_score(&x, 4 * -2.25);
        hand_close(&x);
        hand_open(&x, heads, "representative_type=FIXED");
        EXPECT_ROW(&x, 0, 0, -1, 2, -3, 0);
        hand_close(&x);
        hand_open(&x, heads, "anchor_type=FIXED,anchor_num=2");
        EXPECT_ROW(&x, (int32_t)heads - 1, 0, 2 * -.75f, 2 * -1.f, 2 * -2.5f, 0);
        hand_close(&x);
    }
}

static void test_max_and_quest_by_hand(void **state)
{
    struct hand x;
    (void)state;
    for (uint32_t heads = 1; heads <= 2; heads++) {
        hand_open(&x, heads, "representative_type=MAX");
        EXPECT_ROW(&x, 0, DIM, -.5f, 2, -1, 0);
        expect_score(&x, -3);
        hand_close(&x);
        hand_open(&x, heads, "representative_type=MAX,compat=true");
        EXPECT_ROW(&x, 0, DIM, 0, 2, 0, 0);
        expect_score(&x, -2);
        hand_close(&x);
        hand_open(&x, heads, "representative_type=QUEST");
        expect_score(&x, 8);
        hand_close(&x);
        /* With one kv head the second query head finds a box that was never filled. */
        hand_open(&x, heads, "representative_type=QUEST,compat=true");
        expect_score(&x, heads == 2 ? 10 : 1e30);
        hand_close(&x);
    }
}

static void test_dynamic_by_hand(void **state)
{
    struct hand x;
    (void)state;
    hand_open(&x, 1, "representative_type=DYNAMIC"); /* tokens 1 and 3 */
    EXPECT_ROW(&x, 0, 0, -2, 1, -1, 0, -3, 0, -5, 0);
    expect_score(&x, -2 - 1 - .5 + 6 - 5);
    hand_close(&x);
    hand_open(&x, 1, "representative_num=2"); /* means of 1, 2 and of 3, 0 */
    EXPECT_ROW(&x, 0, 0, -2.5f / 2, -3.f / 2, -3.f / 2, 0, -4.f / 2, 2.f / 2, -8.f / 2, 0);
    expect_score(&x, (-2.5 + 3 - 1.5 + 8 - 8) / 2);
    hand_close(&x);
    hand_open(&x, 2, "representative_num=2");
    EXPECT_ROW(&x, 1, 0, -4.f / 2, 2.f / 2, -8.f / 2, 0);
    hand_close(&x);
    /* Queries of zeros attend to all alike: tokens 0 and 1, summed; no product here is positive. */
    hand_open(&x, 1, "representative_num=2,compat=true");
    EXPECT_ROW(&x, 0, 0, -3, 0, -4, 0, -3, 0, -4, 0, 0, 3, 0, 0, 0, 3, 0, 0);
    expect_score(&x, 6); /* of the second head: -2 times -3 */
    hand_close(&x);
}

/* ---- sizes ----------------------------------------------------------------------------------------- */

static void expect_options(const char *options, int32_t budget, const char *const *want)
{
    struct kvl_shape shape = { 32, 32, 8, 128, 4096, 1000, 131072, 4, NULL, 0.088388f, 0, NULL };
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
    struct kvl_shape shape = { 32, 32, 8, 128, 4096, 1000, 131072, 4, NULL, 0.088388f, 0, NULL };
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

enum { N_CTX = 150, N_STEPS = 20, N_TOK = N_CTX + N_STEPS };

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

enum { HEAD = 16 };

struct naive {
    const char *options;
    int32_t block, init, local, pick; /* in blocks */
    int32_t dense, layer_step, token_step;
    bool separate, compat;
    char type; /* of the representative: x maximum, m mean, q minimum and maximum, d, f */
    int32_t n_rep;
};

struct lane {
    float k[N_TOK][HEAD];
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

#define SIZES(block, init, local, pick)                                                            \
    "importance_window=32,block_size=" #block ",init_block_num=" #init                             \
    ",local_windows_len=" #local ",second_block_count=" #pick ","

static const struct naive naives[] = {
    /* Blocks of the context alone compete: compat has the same scores. */
    { SIZES(4, 1, 32, 5) "representative_type=MEAN,compat=true", 4, 1, 8, 5, 0, 1, 1, false, true,
      'm', 1 },
    { SIZES(4, 1, 8, 5) "representative_type=MEAN", 4, 1, 2, 5, 0, 1, 1, false, false, 'm', 1 },
    { SIZES(4, 2, 6, 5) "representative_type=MAX", 4, 2, 1, 5, 0, 1, 1, false, false, 'x', 1 },
    { SIZES(5, 0, 5, 3) "head_select_mode=SEPARATE,representative_type=MAX", 5, 0, 1, 3, 0, 1, 1,
      true, false, 'x', 1 },
    { SIZES(4, 0, 0, 6) "head_select_mode=SEPARATE,representative_type=QUEST", 4, 0, 0, 6, 0, 1, 1,
      true, false, 'q', 2 },
    { SIZES(4, 1, 4, 6) "representative_type=QUEST,dense_layer_num=1", 4, 1, 1, 6, 1, 1, 1, false,
      false, 'q', 2 },
    { SIZES(8, 1, 8, 4) "representative_type=FIXED,representative_num=4", 8, 1, 1, 4, 0, 1, 1,
      false, false, 'f', 4 },
    { SIZES(4, 1, 0, 5) "representative_num=1", 4, 1, 0, 5, 0, 1, 1, false, false, 'd', 1 },
    { SIZES(4, 0, 0, 5) "head_select_mode=SEPARATE,representative_num=3", 4, 0, 0, 5, 0, 1, 1, true,
      false, 'd', 3 },
    { SIZES(4, 1, 8, 5) "representative_type=MEAN,layer_step=2,token_step=3", 4, 1, 2, 5, 0, 2, 3,
      false, false, 'm', 1 },
    { SIZES(4, 1, 8, 5) "representative_type=QUEST,head_select_mode=SEPARATE,layer_step=3,"
                        "dense_layer_num=1,token_step=7",
      4, 1, 2, 5, 1, 3, 7, true, false, 'q', 2 },
    { SIZES(1, 3, 7, 9) "representative_type=QUEST,head_select_mode=SEPARATE", 1, 3, 7, 9, 0, 1, 1,
      true, false, 'q', 2 },
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

/* The last queries of the context and its keys, to be judged without a causal mask. */
enum { WINDOW = 12 };
static float window_q[READS_LAYERS][WINDOW][READS_Q];

static int window_plan(struct kvl_plan *plan)
{
    return kvl_plan_observe(plan, KVL_OBS_WINDOW, WINDOW);
}

static int window_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    for (int32_t back = 0; back < WINDOW; back++)
        KVL_TRY(kvl_obs_window_query(ctx, layer, back, window_q[layer][back]));
    return KVL_OK;
}

static const struct kvl_policy window_policy = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "window",
    .title = "t",
    .paper = "p",
    .help = "h",
    .version = 1,
    .plan = window_plan,
    .prefilled = window_prefilled,
};

/* Importance of every token for query heads first .. last - 1 of a layer, mean over them. */
static void naive_importance(struct rig *r, const struct rig_session *rs, int32_t layer,
                             int32_t first, int32_t last, bool causal, double *out)
{
    const struct kvl_shape *sh = rig_shape(r);
    double weight[N_CTX];
    memset(out, 0, N_CTX * sizeof *out);
    for (int32_t h = first; h < last; h++) {
        record_keys(r, rs, layer, h / (sh->n_heads / sh->n_kv_heads), N_CTX, &lanes[0].k[0][0]);
        for (int32_t back = 0; back < WINDOW; back++) {
            int32_t n = causal ? N_CTX - back : N_CTX;
            record_weights(window_q[layer][back] + h * HEAD, &lanes[0].k[0][0], n, HEAD, weight);
            for (int32_t i = 0; i < n; i++) out[i] += weight[i] / (last - first);
        }
    }
}

/* Blocks with a quarter of a block on either side: marks those that stay of n_far. */
static void naive_preselect(const double *token, int32_t block, int32_t n_far, int32_t count,
                            uint8_t *mark, double *score)
{
    for (int32_t b = 0; b < n_far; b++) {
        int32_t n = 0;
        score[b] = 0;
        for (int32_t t = b * block - block / 4; t < (b + 1) * block + block / 4; t++) {
            if (t < 0 || t >= N_CTX) continue;
            score[b] += token[t];
            n++;
        }
        score[b] /= n;
    }
    record_top(score, n_far, count, mark);
}

static void check_preselect(struct rig *r, const int32_t *id, bool separate, bool compat)
{
    enum { BLK = 8, LOCAL = 3, COUNT = 5, FAR = N_CTX / BLK - LOCAL };
    const struct kvl_shape *sh = rig_shape(r);
    int32_t group = sh->n_heads / sh->n_kv_heads;
    char options[256];
    snprintf(options, sizeof options,
             "block_size=8,preselect_block=true,preselect_block_count=5,local_windows_len=31,"
             "second_block_count=2,init_block_num=1,importance_window=12,representative_type=MEAN,"
             "head_select_mode=%s,compat=%d",
             separate ? "SEPARATE" : "SHARED", compat);
    struct rig_run look = { .policy = &window_policy, .budget = 1, .id = id, .n_ctx = N_CTX };
    struct rig_run run = look;
    run.policy = kvl_policy_ktransformers;
    run.options = options;
    struct rig_session all = rig_start(r, &look), rs = rig_start(r, &run);
    float *logits = rig_logits(r, 1);
    reads_tap(r, &rs);
    rig_decode(r, &rs, id + N_CTX, 1, logits);
    for (int32_t l = 0; l < sh->n_layers; l++)
        for (int32_t h = 0; h < sh->n_kv_heads; h++) {
            double token[N_CTX], score[FAR];
            uint8_t mark[FAR];
            int32_t want[N_TOK], n = 0, best = 0, lowest = -1;
            naive_importance(r, &all, l, separate ? h * group : 0,
                             separate ? (h + 1) * group : sh->n_heads, !compat, token);
            naive_preselect(token, BLK, FAR, COUNT, mark, score);
            for (int32_t p = 0; p < N_CTX; p++)
                if (p >= FAR * BLK || mark[p / BLK]) want[n++] = p;
            want[n++] = N_CTX;
            rig_expect_kept(&rs, l, h, want, n);
            for (int32_t b = 0; b < FAR; b++) {
                if (score[b] > score[best]) best = b;
                if (mark[b] && lowest < 0) lowest = b;
            }
            /* The first block of those that are left: by position, published: by importance. */
            const uint8_t *read = reads.read[l][h * group];
            int32_t n_read = 0;
            for (int32_t p = 0; p < FAR * BLK; p++) n_read += read[p];
            assert_int_equal(n_read, 3 * BLK);
            assert_true(read[(compat ? best : lowest) * BLK]);
            for (int32_t p = FAR * BLK; p <= N_CTX; p++) assert_true(read[p]);
        }
    kvl_free(logits);
    rig_end(&rs);
    rig_end(&all);
}

static void test_preselect_keeps_important_blocks(void **state)
{
    int32_t id[N_TOK];
    (void)state;
    for (uint32_t kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
        struct rig_desc desc = { .llama = { .n_layers = 3, .n_kv_heads = kv_heads, .seed = 12 } };
        struct rig r;
        rig_open(&r, &desc);
        rig_tokens(id, N_TOK, 3);
        for (int i = 0; i < 4; i++) check_preselect(&r, id, i % 2, i / 2);
        rig_close(&r);
    }
}

/* ---- compat ---------------------------------------------------------------------------------------------- */

/* Unfilled boxes are infinite, ties go to later blocks: what is read is a window. */
static void test_compat_quest_is_a_window(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = 2, .n_kv_heads = 2, .seed = 12 } };
    struct rig r;
    int32_t id[N_TOK];
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_TOK, 3);
    struct rig_run run = { .policy = kvl_policy_ktransformers,
                           .options = SIZES(8, 1, 16, 4) "representative_type=QUEST,compat=true",
                           .budget = 1,
                           .id = id,
                           .n_ctx = N_CTX };
    struct rig_session rs = rig_start(&r, &run);
    float *logits = rig_logits(&r, 1);
    reads_tap(&r, &rs);
    rig_decode(&r, &rs, id + N_CTX, 1, logits);
    for (int32_t p = 0; p <= N_CTX; p++) /* 18 full blocks: the first, and from the 12th on */
        assert_int_equal(reads.read[0][0][p], p < 8 || p >= 12 * 8);
    kvl_free(logits);
    rig_end(&rs);
    rig_close(&r);
}

/* Published representatives are not kept up: those of blocks made while decoding stay zero. */
static void test_compat_forgets_new_blocks(void **state)
{
    static const char *const types[] = { "MEAN", "MAX", "QUEST", "FIXED", "DYNAMIC" };
    struct rig_desc desc = { .llama = { .n_layers = 1, .seed = 12 } };
    struct rig r;
    int32_t id[N_TOK];
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_TOK, 3);
    for (int i = 0; i < 10; i++) {
        char options[160];
        struct kvl_meta_view meta;
        snprintf(options, sizeof options, "block_size=8,representative_type=%s,compat=%d",
                 types[i / 2], i % 2);
        struct rig_run run = { .policy = kvl_policy_ktransformers,
                               .options = options,
                               .budget = 64,
                               .id = id,
                               .n_ctx = N_CTX };
        struct rig_session rs = rig_start(&r, &run);
        float *logits = rig_logits(&r, N_STEPS);
        rig_decode(&r, &rs, id + N_CTX, N_STEPS, logits);
        kvl_hook_begin(rs.s, &r.err);
        RIG_OK(&r.err, kvl_meta(&rs.s->ctx, 0, 0, &meta));
        size_t row = (size_t)rs.s->host.table[0]->decl.row_elems;
        bool zero = true; /* block 19 begins at 152 and is full */
        for (size_t c = 0; c < row; c++)
            zero = zero && fabsf(((const float *)meta.data)[19 * row + c]) < 1e-12f;
        assert_int_equal(zero, i % 2);
        kvl_free(logits);
        rig_end(&rs);
    }
    rig_close(&r);
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
        cmocka_unit_test(test_compat_quest_is_a_window),
        cmocka_unit_test(test_compat_forgets_new_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
