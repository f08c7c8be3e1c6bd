/* H2O: hand-computed examples, and random attention against a naive simulation, inside a made-up
 * engine of one layer: its attention is what the test says, and its tables can be looked at.  Ties
 * go to the lower position. */
#include "golden/h2o_naive.h"
#include "policy_impl.h"

/* ---- the made-up engine ---------------------------------------------------------------------------- */

enum { SCRATCH = 1 << 14 };

static struct {
    const struct kvl_policy *policy;
    struct kvl_shape shape;
    struct kvl_pctx ctx;
    struct kvl_err err;
    double opts[128]; /* aligned room for options */
    int32_t n_tok, row_floats;
    bool by_rank; /* a table of live tokens: what fake_table_all showed last lies in `shown` */
    float shown[MAX_HEADS * (MAX_HEADS + 1) * MAX_TOK];
    float sums[MAX_HEADS * MAX_TOK];
    float table[MAX_HEADS][MAX_TOK * (MAX_HEADS + 1)];
    bool live[MAX_HEADS][MAX_TOK], keep[MAX_HEADS][MAX_TOK], named[MAX_HEADS];
    int32_t pos[MAX_HEADS][MAX_TOK]; /* what a kv head reads or has, and how many */
    int32_t n_pos[MAX_HEADS];
    float scratch[SCRATCH];
    size_t n_scratch;
    struct kvl_host host; /* what the plan said of the table */
    struct kvl_session session;
    struct kvl_planned planned;
} fake;

static float *fake_scratch(const struct kvl_pctx *ctx, size_t n)
{
    (void)ctx;
    fake.n_scratch += n;
    return fake.n_scratch <= SCRATCH ? fake.scratch + fake.n_scratch - n : NULL;
}

static int fake_scratch_f32(const struct kvl_pctx *ctx, size_t n, float **out)
{
    *out = fake_scratch(ctx, n);
    return *out ? KVL_OK : KVL_ENOMEM;
}

static int fake_scratch_i32(const struct kvl_pctx *ctx, size_t n, int32_t **out)
{
    *out = (int32_t *)(void *)fake_scratch(ctx, n);
    return *out ? KVL_OK : KVL_ENOMEM;
}

static int fake_plan_observe(struct kvl_plan *plan, enum kvl_observer what, int32_t param)
{
    (void)plan;
    assert_true(what == KVL_OBS_COLUMNS && param == 0);
    return KVL_OK;
}

static int fake_plan_table(struct kvl_plan *plan, const struct kvl_table_desc *desc, int32_t *out)
{
    (void)plan;
    assert_true(desc->unit_tok == 1 && desc->row_elems <= MAX_HEADS + 1);
    assert_true(desc->elem == KVL_ELEM_F32 && !desc->layers && !desc->per_layer);
    fake.by_rank = desc->unit == KVL_UNIT_LIVE;
    fake.row_floats = desc->row_elems;
    *out = 0;
    return KVL_OK;
}

/* Copies rows of live tokens from the table, which is by position, to the columns that a policy sees,
 * or back. */
static void fake_ranks(bool back)
{
    for (int32_t h = 0; fake.by_rank && h < fake.shape.n_kv_heads; h++)
        for (int32_t c = 0; c < fake.row_floats; c++) {
            float *column = fake.shown + (h * fake.row_floats + c) * MAX_TOK;
            for (int32_t i = 0, rank = 0; i < fake.n_tok; i++) {
                float *at = &fake.table[h][i * fake.row_floats + c];
                if (!fake.live[h][i]) continue;
                if (back)
                    *at = column[rank++];
                else
                    column[rank++] = *at;
            }
        }
}

static int fake_table_all(const struct kvl_pctx *ctx, int32_t handle, int32_t layer,
                          struct kvl_rows *out)
{
    (void)ctx;
    (void)layer;
    assert_int_equal(handle, 0);
    *out = (struct kvl_rows){ .row_bytes = (size_t)fake.row_floats * sizeof(float),
                              .elem_bytes = sizeof(float),
                              .n_rows = fake.n_tok,
                              .row_elems = fake.row_floats,
                              .unit = fake.by_rank ? KVL_UNIT_LIVE : KVL_UNIT_PAGE,
                              .unit_tok = 1 };
    out->part[0].n_rows = fake.n_tok;
    out->part[0].data = fake.table[0];
    out->part[0].head_bytes = sizeof fake.table[0];
    if (fake.by_rank) {
        fake_ranks(false);
        out->part[0].data = fake.shown;
        out->column_bytes = MAX_TOK * sizeof(float);
        out->part[0].head_bytes = (size_t)fake.row_floats * MAX_TOK * sizeof(float);
    }
    return KVL_OK;
}

static int fake_table_from(const struct kvl_pctx *ctx, int32_t handle, int32_t layer, int32_t first,
                           struct kvl_rows *out)
{
    assert_int_equal(first, 0);
    return fake_table_all(ctx, handle, layer, out);
}

static int fake_table_count(const struct kvl_pctx *ctx, int32_t handle, int64_t n_elems)
{
    (void)ctx;
    assert_true(handle == 0 && n_elems >= 0);
    return KVL_OK;
}

static int fake_obs_columns(const struct kvl_pctx *ctx, int32_t layer, enum kvl_observer what,
                            int32_t param, const float **sums, int32_t *n_tok)
{
    (void)ctx;
    (void)layer;
    assert_true(what == KVL_OBS_COLUMNS && param == 0);
    *sums = fake.sums;
    *n_tok = fake.n_tok;
    return KVL_OK;
}

static int fake_live(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                     const int32_t **pos, int32_t *n)
{
    (void)ctx;
    (void)layer;
    *pos = fake.pos[kv_head];
    *n = 0;
    for (int32_t i = 0; i < fake.n_tok; i++)
        if (fake.live[kv_head][i]) fake.pos[kv_head][(*n)++] = i;
    fake.n_pos[kv_head] = *n;
    return KVL_OK;
}

/* The best of the first n live tokens: none of the others is better, or as good and before it. */
static int fake_keep_top(struct kvl_keep *keep, int32_t kv_head, const float *score, int32_t n,
                         int32_t k)
{
    int32_t rank = 0;
    (void)keep;
    fake.named[kv_head] = true;
    for (int32_t i = 0; i < fake.n_tok; i++) {
        int32_t better = 0;
        if (!fake.live[kv_head][i]) continue;
        for (int32_t j = 0; j < n; j++)
            better += score[j] > score[rank] || (j < rank && score[j] >= score[rank]);
        if (rank < n && better < k) fake.keep[kv_head][i] = true;
        rank++;
    }
    assert_true(k >= 0 && k <= n && n <= rank);
    return KVL_OK;
}

static int fake_keep_range(struct kvl_keep *keep, int32_t kv_head, int32_t first, int32_t last)
{
    (void)keep;
    fake.named[kv_head] = true;
    assert_true(first >= 0 && first <= last && last <= fake.n_tok);
    for (int32_t i = first; i < last; i++) fake.keep[kv_head][i] = true;
    return KVL_OK;
}

static int fake_sel_tokens(struct kvl_sel *sel, enum kvl_scope scope, int32_t list,
                           const int32_t *pos, int32_t n)
{
    (void)sel;
    assert_int_equal(scope, KVL_SCOPE_KV_HEAD);
    assert_true(n <= MAX_TOK);
    memcpy(fake.pos[list], pos, (size_t)n * sizeof *pos);
    fake.n_pos[list] = n;
    return KVL_OK;
}

static bool fake_tap_listens(const struct kvl_pctx *ctx)
{
    (void)ctx;
    return false;
}

static int fake_tap_room(const struct kvl_pctx *ctx, const struct kvl_step *step,
                         enum kvl_scope scope, float **out)
{
    (void)ctx;
    (void)step;
    (void)scope;
    *out = NULL;
    return KVL_OK;
}

#define kvl_scratch_f32       fake_scratch_f32
#define kvl_scratch_i32       fake_scratch_i32
#define kvl_tap_listens       fake_tap_listens
#define kvl_tap_room          fake_tap_room
#define kvl_plan_observe      fake_plan_observe
#define kvl_plan_table_desc   fake_plan_table
#define kvl_table_all         fake_table_all
#define kvl_table_write       fake_table_from
#define kvl_table_operand_out fake_table_from
#define kvl_table_count       fake_table_count
#define kvl_obs_columns       fake_obs_columns
#define kvl_live              fake_live
#define kvl_keep_top          fake_keep_top
#define kvl_keep_range        fake_keep_range
#define kvl_sel_tokens        fake_sel_tokens
/* What h2o asks of the engine for live tokens, over the same fakes. */
#define kvl_live_begin  fake_live_begin
#define kvl_live_add    fake_live_add
#define kvl_live_scores fake_live_scores
#define kvl_keep_best   fake_keep_best
#include "../../methods/parts/live_scores.c"
#undef KVL_POLICY_EXPORT
#define KVL_POLICY_EXPORT(object)
#include "../../methods/h2o.c"
#include "../../methods/h2o_sim.c"
#undef kvl_plan_observe
#undef kvl_live

static void hook_begin(void)
{
    fake.n_scratch = 0;
    memset(fake.keep, 0, sizeof fake.keep);
    memset(fake.named, 0, sizeof fake.named);
}

static void hook_end(void)
{
    for (int32_t h = 0; h < fake.shape.n_kv_heads; h++)
        for (int32_t i = 0; fake.named[h] && i < fake.n_tok; i++)
            fake.live[h][i] = fake.live[h][i] && fake.keep[h][i];
}

static void fake_open(const struct kvl_policy *policy, const char *options, int32_t budget,
                      struct kvl_shape shape)
{
    memset(&fake, 0, sizeof fake);
    fake.policy = policy;
    fake.shape = shape;
    fake.host.session = &fake.session;
    fake.session.planned = &fake.planned;
    assert_true(policy->opts_size <= sizeof fake.opts);
    RIG_OK(&fake.err, kvl_opt_defaults(policy->opts, fake.opts, &fake.err));
    RIG_OK(&fake.err, kvl_opt_parse(policy->opts, fake.opts, options, &fake.err));
    struct kvl_plan plan = {
        .shape = &fake.shape, .opts = fake.opts, .budget_tok = budget, .err = &fake.err
    };
    RIG_OK(&fake.err, policy->plan(&plan));
    fake.ctx = (struct kvl_pctx){ .shape = &fake.shape,
                                  .ops = &kvl_ops_ref,
                                  .host = &fake.host,
                                  .opts = fake.opts,
                                  .budget_tok = budget,
                                  .err = &fake.err };
}

/* What the score hook asks for: protected positions and the best of the others stay. */
static void fake_first_cut(int32_t layer)
{
    float score[MAX_HEADS * MAX_TOK] = { 0 };
    struct kvl_scores sc = { .score = score, .n_tok = fake.n_tok, .keep_tok = -1 };
    RIG_OK(&fake.err, fake.policy->score(&fake.ctx, layer, &sc));
    int32_t middle = KVL_MAX(0, fake.n_tok - sc.protect_last);
    for (int32_t h = 0; sc.keep_tok < fake.n_tok && h < fake.shape.n_kv_heads; h++) {
        double x[MAX_TOK];
        uint8_t mark[MAX_TOK];
        for (int32_t i = 0; i < middle; i++) x[i] = (double)score[h * fake.n_tok + i];
        record_top(x, middle, sc.keep_tok - sc.protect_last, mark);
        for (int32_t i = 0; i < middle; i++) fake.live[h][i] = mark[i];
    }
}

/* The context: sums [n_heads][n]. */
static void fake_prompt(const float *sums, int32_t n, int32_t layer)
{
    fake.n_tok = n;
    memcpy(fake.sums, sums, (size_t)(fake.shape.n_heads * n) * sizeof *sums);
    for (int32_t h = 0; h < fake.shape.n_kv_heads; h++)
        for (int32_t i = 0; i < n; i++) fake.live[h][i] = true;
    hook_begin();
    fake_ranks(false);
    RIG_OK(&fake.err, fake.policy->prefilled(&fake.ctx, layer));
    fake_ranks(true);
    if (fake.policy->score) fake_first_cut(layer);
}

/* A token arrives: pos and n_pos say what it reads. */
static struct kvl_step fake_append(void)
{
    struct kvl_step step = { .pos = fake.n_tok, .n_tok = 1 };
    const int32_t *pos;
    int32_t n;
    for (int32_t h = 0; h < fake.shape.n_kv_heads; h++) {
        fake.live[h][fake.n_tok] = true;
        fake.n_tok++;
        fake_live(&fake.ctx, 0, h, &pos, &n);
        fake.n_tok--;
    }
    fake.n_tok++;
    hook_begin();
    if (fake.policy->caps & KVL_CAP_SELECTS)
        RIG_OK(&fake.err, fake.policy->select(&fake.ctx, &step, NULL, NULL));
    return step;
}

/* Its weights: per query head, over what its kv head reads. */
static void fake_attend(const struct kvl_step *step, const float *const *probs)
{
    int32_t n[MAX_HEADS], group = fake.shape.n_heads / fake.shape.n_kv_heads;
    float lse[MAX_HEADS] = { 0 };
    for (int32_t h = 0; h < fake.shape.n_heads; h++) n[h] = fake.n_pos[h / group];
    hook_begin();
    fake_ranks(false);
    RIG_OK(&fake.err, fake.policy->observe(&fake.ctx, step, probs, n, lse));
    fake_ranks(true);
    hook_begin();
    if (fake.policy->evict) RIG_OK(&fake.err, fake.policy->evict(&fake.ctx, step, NULL));
    hook_end();
}

static float fake_score(int32_t head, int32_t pos)
{
    int32_t group = fake.shape.n_heads / fake.shape.n_kv_heads;
    return fake.table[head / group][pos * fake.row_floats + head % group];
}

/* ---- the examples ---------------------------------------------------------------------------------- */

static const struct kvl_shape one_head = {
    .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .group = 1
};

/* A prompt of six tokens, one head. */
static const float prompt_rows[6][6] = { { 1 },
                                         { .6f, .4f },
                                         { .5f, .1f, .4f },
                                         { .4f, .1f, .3f, .2f },
                                         { .3f, .1f, .1f, .4f, .1f },
                                         { .2f, .05f, .05f, .4f, .1f, .2f } };
/* Their column sums, and those of a second head of the group. */
static const float prompt_sums[12] = { 3.0f, .75f, .85f, 1.0f, .2f,  .2f,
                                       1.0f, 2.0f, .5f,  .6f,  1.2f, .7f };

static void expect_list(int32_t kv_head, const int32_t *want, int32_t n)
{
    if (fake.n_pos[kv_head] != n) fail_msg("%d positions, want %d", fake.n_pos[kv_head], n);
    for (int32_t i = 0; i < n; i++)
        if (fake.pos[kv_head][i] != want[i])
            fail_msg("position %d is number %d, want %d", fake.pos[kv_head][i], i, want[i]);
}
#define LIST(...)                                                                                  \
    (int32_t[]){ __VA_ARGS__ }, (int32_t)(sizeof((int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t))

static void expect_live(const int32_t *want, int32_t n)
{
    const int32_t *pos;
    int32_t count;
    fake_live(&fake.ctx, 0, 0, &pos, &count);
    expect_list(0, want, n);
}

static void expect_scores(const int32_t *pos, int32_t n, const double *want)
{
    for (int32_t i = 0; i < n; i++)
        assert_float_equal((double)fake_score(0, pos[i]), want[i], 1e-6);
}

static void step_of_one_head(const float *probs)
{
    struct kvl_step step = fake_append();
    fake_attend(&step, (const float *const[]){ probs });
}

static void test_column_sums_of_the_example(void **state)
{
    (void)state;
    for (int j = 0; j < 6; j++) {
        double sum = 0;
        for (int i = j; i < 6; i++) sum += (double)prompt_rows[i][j];
        assert_float_equal(sum, (double)prompt_sums[j], 1e-6);
    }
}

static void test_real_dropping(void **state)
{
    (void)state;
    fake_open(&h2o, "heavy=2,recent=2", 0, one_head);
    fake_prompt(prompt_sums, 6, 0);
    expect_live(LIST(0, 3, 4, 5));
    step_of_one_head((float[]){ .2f, .1f, .4f, .2f, .1f });
    expect_live(LIST(0, 3, 5, 6));
    expect_scores(LIST(0, 3, 5, 6), (double[]){ 3.2, 1.1, .4, .1 });
    step_of_one_head((float[]){ .1f, 0, .8f, .05f, .05f });
    expect_live(LIST(0, 5, 6, 7));
    expect_scores(LIST(0, 5, 6, 7), (double[]){ 3.3, 1.2, .15, .05 });
    step_of_one_head((float[]){ .05f, .35f, .1f, .4f, .1f });
    expect_live(LIST(0, 5, 7, 8));
    expect_scores(LIST(0, 5, 7, 8), (double[]){ 3.35, 1.55, .45, .1 });
}

static void test_observed_attention(void **state)
{
    (void)state;
    fake_open(&h2o, "variant=observed_attention", 5, one_head);
    fake_prompt(prompt_sums, 6, 0);
    expect_live(LIST(0, 2, 3, 5));
    step_of_one_head((float[]){ 0, 0, 0, 0, 1 }); /* and then the cache grows */
    expect_live(LIST(0, 2, 3, 5, 6));
}

static void test_prefill_only(void **state)
{
    (void)state;
    fake_open(&h2o, "variant=prefill_only,recent=1", 4, one_head);
    fake_prompt(prompt_sums, 6, 0);
    expect_live(LIST(0, 3, 5));
    step_of_one_head((float[]){ 0, 0, 0, 1 });
    step_of_one_head((float[]){ 0, 0, 0, 0, 1 });
    expect_live(LIST(0, 3, 5, 6, 7));
}

/* K = 2: the token that leaves the ring takes the place of the lightest heavy one, although it is
 * lighter still; real dropping with the same sizes keeps 3. */
static void test_flexgen(void **state)
{
    (void)state;
    fake_open(&h2o, "variant=flexgen", 4, one_head);
    fake_prompt(prompt_sums, 6, 0);
    expect_live(LIST(0, 3, 5));
    step_of_one_head((float[]){ .2f, .1f, .4f, .3f });
    expect_live(LIST(0, 5, 6));
    step_of_one_head((float[]){ .1f, .1f, .1f, .7f });
    expect_live(LIST(0, 6, 7));
    fake_open(&h2o, "heavy=2,recent=1", 4, one_head);
    fake_prompt(prompt_sums, 6, 0);
    step_of_one_head((float[]){ .2f, .1f, .4f, .3f });
    expect_live(LIST(0, 3, 6));
}

static void test_query_groups(void **state)
{
    struct kvl_shape group = { .n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .group = 2 };
    (void)state;
    fake_open(&h2o, "heavy=2,recent=2,reduce=first", 0, group);
    fake_prompt(prompt_sums, 6, 0);
    expect_live(LIST(0, 3, 4, 5));
    fake_open(&h2o, "heavy=2,recent=2,variant=llama_recipes", 0, group);
    fake_prompt(prompt_sums, 6, 0);
    expect_live(LIST(0, 3, 4, 5));
    fake_open(&h2o, "heavy=2,recent=2", 0, group); /* 2.0, 1.375, .675, .8 */
    fake_prompt(prompt_sums, 6, 0);
    expect_live(LIST(0, 1, 4, 5));
    fake_open(&h2o, "heavy=2,recent=2,reduce=max", 0, group); /* 3, 2, .85, 1 */
    fake_prompt(prompt_sums, 6, 0);
    expect_live(LIST(0, 1, 4, 5));
}

/* Token 0 has 1.4 in the first head, token 1 has 1.3 there; adding up maxima would give it 1.7. */
static void test_the_maximum_is_that_of_the_sums(void **state)
{
    struct kvl_shape group = { .n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .group = 2 };
    static const float sums[6] = { 1.0f, 1.3f, .7f, 1.0f, .2f, 1.8f };
    static const float a[4] = { .4f, 0, 0, .6f }, b[4] = { 0, .4f, 0, .6f };
    (void)state;
    fake_open(&h2o, "heavy=1,recent=2,reduce=max", 0, group);
    fake_prompt(sums, 3, 0);
    expect_live(LIST(0, 1, 2));
    struct kvl_step step = fake_append();
    fake_attend(&step, (const float *const[]){ a, b });
    expect_live(LIST(0, 2, 3));
}

static void test_mask_simulation(void **state)
{
    (void)state;
    fake_open(&h2o_sim, "", 4, one_head);
    fake_prompt(prompt_sums, 6, 0);
    expect_scores(LIST(0, 1, 2, 3, 4, 5), (double[]){ 3, 0, 0, 1, .2, .2 });
    struct kvl_step step = fake_append();
    expect_list(0, LIST(0, 3, 5, 6)); /* 4 has just left the window */
    fake_attend(&step, (const float *const[]){ (float[]){ .4f, .1f, .3f, .2f } });
    expect_scores(LIST(0, 1, 2, 3, 4, 5, 6), (double[]){ 3.4, 0, 0, 1.1, 0, .5, .2 });
    step = fake_append();
    expect_list(0, LIST(0, 3, 6, 7));
}

/* What real dropping cannot do: 5 is masked in one step, and read in the next. */
static void test_a_masked_token_comes_back(void **state)
{
    (void)state;
    fake_open(&h2o_sim, "", 4, one_head);
    fake_prompt(prompt_sums, 6, 0);
    struct kvl_step step = fake_append();
    fake_attend(&step, (const float *const[]){ (float[]){ .05f, 0, .9f, .05f } });
    step = fake_append();
    expect_list(0, LIST(0, 3, 6, 7));
    fake_attend(&step, (const float *const[]){ (float[]){ .5f, 0, .2f, .3f } });
    fake_append();
    expect_list(0, LIST(0, 5, 7, 8));
    expect_live(LIST(0, 1, 2, 3, 4, 5, 6, 7, 8)); /* nothing is gone */
}

static void test_static_set(void **state)
{
    (void)state;
    fake_open(&h2o_sim, "variant=lm_eval,heavy=2,recent=1", 4, one_head);
    fake_prompt(prompt_sums, 6, 0);
    struct kvl_step step = fake_append();
    expect_list(0, LIST(0, 3, 5, 6));
    fake_attend(&step, (const float *const[]){ (float[]){ 0, 0, 1, 0 } });
    fake_append();
    expect_list(0, LIST(0, 3, 6, 7)); /* 5 is not in it, whatever it receives */
}

/* ---- in the made-up engine, on random attention ---------------------------------------------------- */

enum { N_STEPS = 30 };

static double random_logit[MAX_HEADS][MAX_TOK][MAX_TOK];

static void random_weigh(int32_t head, int32_t query, const int32_t *pos, int32_t n, double *w)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += w[i] = exp(random_logit[head][query][pos[i]]);
    for (int32_t i = 0; i < n; i++) w[i] /= sum;
}

static void random_attention(uint64_t seed)
{
    struct kvl_rng rng;
    kvl_rng_seed(&rng, seed);
    for (int h = 0; h < MAX_HEADS; h++)
        for (int i = 0; i < MAX_TOK; i++)
            for (int j = 0; j < MAX_TOK; j++) random_logit[h][i][j] = 6 * kvl_rng_f64(&rng);
}

static void fake_random_prompt(void)
{
    float sums[MAX_HEADS * N_PROMPT] = { 0 };
    int32_t pos[N_PROMPT];
    double w[N_PROMPT];
    for (int32_t i = 0; i < N_PROMPT; i++) pos[i] = i;
    for (int32_t h = 0; h < fake.shape.n_heads; h++)
        for (int32_t i = 0; i < N_PROMPT; i++) {
            random_weigh(h, i, pos, i + 1, w);
            for (int32_t j = 0; j <= i; j++) sums[h * N_PROMPT + j] += (float)w[j];
        }
    fake_prompt(sums, N_PROMPT, 0);
}

static void fake_random_step(void)
{
    static float probs[MAX_HEADS][MAX_TOK];
    const float *rows[MAX_HEADS];
    double w[MAX_TOK];
    int32_t group = fake.shape.n_heads / fake.shape.n_kv_heads;
    struct kvl_step step = fake_append();
    for (int32_t h = 0; h < fake.shape.n_heads; h++) {
        int32_t n = fake.n_pos[h / group];
        random_weigh(h, step.pos, fake.pos[h / group], n, w);
        for (int32_t i = 0; i < n; i++) probs[h][i] = (float)w[i];
        rows[h] = probs[h];
    }
    fake_attend(&step, rows);
}

/* The same tokens live, with the same scores, and nothing got lost on the way: what all tokens of a
 * query head ever received is one per query. */
static void expect_naive(const char *options)
{
    for (int32_t h = 0; h < naive.n_heads; h++) {
        int32_t kv = h / naive.group;
        double total = naive.dropped[h];
        for (int32_t i = 0; i < naive.n_tok; i++) {
            if (fake.live[kv][i] != naive.live[kv][i])
                fail_msg("%s, %d tokens: position %d of head %d %s", options, naive.n_tok, i, kv,
                         fake.live[kv][i] ? "stays" : "is gone");
            if (!naive.live[kv][i] || naive.rule->once) continue;
            assert_float_equal((double)fake_score(h, i), naive.score[h][i], 1e-5);
            total += (double)fake_score(h, i);
        }
        if (naive.rule->decay >= 1 && !naive.rule->once)
            assert_float_equal(total, (double)naive.n_tok, 1e-4);
    }
}

static void test_random_attention_equals_the_simulation(void **state)
{
    (void)state;
    for (int32_t group = 1; group <= MAX_HEADS; group *= 2)
        for (int i = 0; i < N_RULES; i++) {
            const struct rule *r = &rules[i];
            random_attention((uint64_t)(100 * group + i));
            struct kvl_shape shape = {
                .n_layers = 1, .n_heads = MAX_HEADS, .n_kv_heads = MAX_HEADS / group, .group = group
            };
            fake_open(&h2o, r->options, r->budget, shape);
            naive_open(r, MAX_HEADS, group);
            fake_random_prompt();
            naive_prompt(random_weigh, N_PROMPT);
            expect_naive(r->options);
            for (int t = 0; t < N_STEPS; t++) {
                fake_random_step();
                naive_step(random_weigh);
                expect_naive(r->options);
            }
        }
}

/* Masks: what a step of one kv head may read, from the scores so far; forgets the others. */
static int32_t naive_mask(int32_t kv_head, int32_t *pos)
{
    double x[MAX_TOK];
    uint8_t mark[MAX_TOK];
    const struct rule *r = naive.rule;
    int32_t old = KVL_MAX(0, naive.n_tok - r->recent), n = 0;
    if (naive.n_tok > r->heavy + r->recent) {
        for (int32_t i = 0; i < old; i++) x[i] = naive_lane_score(kv_head, i);
        record_top(x, old, r->heavy, mark);
        for (int32_t i = 0; i < old; i++)
            for (int32_t g = 0; !mark[i] && g < naive.group; g++)
                naive.score[kv_head * naive.group + g][i] = 0;
        for (int32_t i = 0; i < old; i++)
            if (mark[i]) pos[n++] = i;
        old++; /* the one that leaves the window */
    } else {
        old = 0;
    }
    for (int32_t i = old; i <= naive.n_tok; i++) pos[n++] = i;
    return n;
}

static void naive_sim_step(weigh_fn weigh)
{
    int32_t pos[MAX_TOK];
    double w[MAX_TOK];
    for (int32_t kv = 0; kv < naive.n_heads / naive.group; kv++) {
        int32_t n = naive_mask(kv, pos);
        expect_list(kv, pos, n);
        for (int32_t h = kv * naive.group; h < (kv + 1) * naive.group; h++) {
            weigh(h, naive.n_tok, pos, n, w);
            for (int32_t i = 0; i < n; i++) naive.score[h][pos[i]] += w[i];
        }
    }
    naive.n_tok++;
}

static void test_random_masks_equal_the_simulation(void **state)
{
    static const struct rule masks[] = {
        { "", 12, 6, 6, 1, 1, KVL_REDUCE_MEAN, 0, 0, 0 },
        { "reduce=max", 13, 6, 7, 1, 1, KVL_REDUCE_MAX, 0, 0, 0 },
        { "heavy=0,reduce=first", 5, 0, 5, 1, 1, KVL_REDUCE_FIRST, 0, 0, 0 },
        { "recent=1", 5, 4, 1, 1, 1, KVL_REDUCE_MEAN, 0, 0, 0 },
        { "", 36, 18, 18, 1, 1, KVL_REDUCE_MEAN, 0, 0, 0 }, /* everything, then masks */
    };
    (void)state;
    for (int32_t group = 1; group <= MAX_HEADS; group *= 2)
        for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
            random_attention(7 * (uint64_t)group + i);
            struct kvl_shape shape = {
                .n_layers = 1, .n_heads = MAX_HEADS, .n_kv_heads = MAX_HEADS / group, .group = group
            };
            fake_open(&h2o_sim, masks[i].options, masks[i].budget, shape);
            naive_open(&masks[i], MAX_HEADS, group);
            fake_random_prompt();
            for (int t = 0; t < N_PROMPT; t++) naive_query(random_weigh, 1);
            for (int t = 0; t < N_STEPS; t++) {
                fake_append();
                naive_sim_step(random_weigh);
                fake.n_tok--;
                fake_random_step();
            }
        }
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_column_sums_of_the_example),
        cmocka_unit_test(test_real_dropping),
        cmocka_unit_test(test_observed_attention),
        cmocka_unit_test(test_prefill_only),
        cmocka_unit_test(test_flexgen),
        cmocka_unit_test(test_query_groups),
        cmocka_unit_test(test_the_maximum_is_that_of_the_sums),
        cmocka_unit_test(test_mask_simulation),
        cmocka_unit_test(test_a_masked_token_comes_back),
        cmocka_unit_test(test_static_set),
        cmocka_unit_test(test_random_attention_equals_the_simulation),
        cmocka_unit_test(test_random_masks_equal_the_simulation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
