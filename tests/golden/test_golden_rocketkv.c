/* RocketKV: the paper's split of contexts and budgets, and both stages of runs against naive choices from
 * their queries and keys. */
#include "golden/reads.h"

extern const struct kvl_policy *const kvl_policy_rocketkv;

/* ---- the split --------------------------------------------------------------------------------------- */

static void expect_split(int32_t length, int32_t budget, const char *want)
{
    struct kvl_shape shape = { 32, 32, 8, 128, 4096, 1000, 131072, 4, NULL, 0.088388f, 0, NULL };
    struct kvl_planned *p;
    struct kvl_err err = { 0 };
    RIG_OK(&err, kvl_planned_create(kvl_policy_rocketkv, &shape, "", budget / 2, length, &p, &err));
    if (!strstr(kvl_planned_options(p), want))
        fail_msg("%s, want %s", kvl_planned_options(p), want);
    kvl_planned_destroy(p);
}

static void test_split_of_the_paper(void **state)
{
    (void)state;
    expect_split(131072, 256,
                 "token_budget=256,stage1_tok=1296,page=3,channels=76,window=32,kernel=63");
    expect_split(131072, 512, "token_budget=512,stage1_tok=3019,page=3,channels=65");
    expect_split(131072, 1024, "token_budget=1024,stage1_tok=6472,page=3,channels=61");
    expect_split(32768, 1024, "token_budget=1024,stage1_tok=5792,page=3,channels=68");
    expect_split(16384, 2048, "token_budget=2048,stage1_tok=7434,page=2,channels=71");
    expect_split(1000, 2048, "stage1_tok=1000,page=1,channels=128");    /* the budget holds all */
    expect_split(1, 2048, "stage1_tok=2,page=1,channels=128,window=1"); /* was refused: no window */
}

static void expect_refused(const char *options, int32_t budget, const char *needle)
{
    struct kvl_shape shape = { 32, 32, 8, 128, 4096, 1000, 131072, 4, NULL, 0.088388f, 0, NULL };
    struct kvl_planned *p;
    struct kvl_err err = { 0 };
    assert_int_equal(
        kvl_planned_create(kvl_policy_rocketkv, &shape, options, budget, 131072, &p, &err),
        KVL_EINVAL);
    if (!strstr(err.msg, needle)) fail_msg("%s", err.msg);
}

static void test_refusals(void **state)
{
    (void)state;
    expect_refused("kernel=62", 128, "odd");
    expect_refused("channels=129", 128, "has 128");
    expect_refused("token_budget=10,page=3", 128, "6 or more");
    expect_refused("stage1_tok=32,window=32", 128, "less");
    expect_refused("", 7, "8");
}

/* ---- runs ------------------------------------------------------------------------------------------------ */

enum { N_CTX = 180, N_STEPS = 14, N_TOK = N_CTX + N_STEPS, HEAD = 16 };

struct rocket {
    const char *options;
    int32_t kept, page, channels, window, kernel, budget; /* budget: tokens that a step reads */
};

/* Stage 1: positions of a lane that stay, ascending. */
static int32_t naive_stage1(const struct rocket *c, const float *mass, int32_t group, int32_t *pos)
{
    double sum[N_CTX], pooled[N_CTX];
    uint8_t mark[N_CTX];
    int32_t n = N_CTX - c->window, m = 0;
    for (int32_t i = 0; i < n; i++) {
        sum[i] = 0;
        for (int32_t g = 0; g < group; g++) sum[i] += (double)mass[(size_t)g * N_CTX + (size_t)i];
    }
    for (int32_t i = 0; i < n; i++) {
        pooled[i] = 0;
        for (int32_t j = KVL_MAX(0, i - c->kernel / 2); j <= KVL_MIN(n - 1, i + c->kernel / 2); j++)
            pooled[i] = fmax(pooled[i], sum[j]);
    }
    record_top(pooled, n, c->kept - c->window, mark);
    for (int32_t i = 0; i < N_CTX; i++)
        if (i >= n || mark[i]) pos[m++] = i;
    return m;
}

/* Shares of pages for one kv head: q [group][HEAD], k [n_pages * page][HEAD]. */
static void naive_shares(const struct rocket *c, const float *q, int32_t group, const float *k,
                         int32_t n_pages, double *share)
{
    double size[HEAD], score[N_TOK];
    uint8_t mark[HEAD];
    bool up[HEAD];
    for (int32_t i = 0; i < HEAD; i++) {
        double sum = 0;
        size[i] = 0;
        for (int32_t g = 0; g < group; g++) {
            sum += (double)q[g * HEAD + i];
            size[i] += fabs((double)q[g * HEAD + i]);
        }
        up[i] = sum >= 0;
    }
    record_top(size, HEAD, c->channels, mark);
    memset(share, 0, (size_t)n_pages * sizeof *share);
    for (int32_t g = 0; g < group; g++) {
        double top = -HUGE_VAL, total = 0;
        for (int32_t p = 0; p < n_pages; p++) {
            score[p] = 0;
            for (int32_t i = 0; i < HEAD; i++) {
                const float *x = k + (size_t)(p * c->page) * HEAD + i;
                double bound = (double)*x;
                for (int32_t t = 1; t < c->page; t++)
                    bound =
                        up[i] ? fmax(bound, (double)x[t * HEAD]) : fmin(bound, (double)x[t * HEAD]);
                if (mark[i]) score[p] += (double)q[g * HEAD + i] * bound;
            }
            score[p] /= sqrt((double)HEAD);
            top = fmax(top, score[p]);
        }
        for (int32_t p = 0; p < n_pages; p++) total += score[p] = exp(score[p] - top);
        for (int32_t p = 0; p < n_pages; p++) share[p] += score[p] / total / group;
    }
}

/* Scores that the policy showed, by position. */
static float shown[READS_LAYERS][READS_HEADS][READS_TOK];

static int take_scores(void *user, const struct kvl_tap_score *t, struct kvl_err *err)
{
    (void)user;
    (void)err;
    if (t->index < 0) return KVL_OK; /* stage 1 */
    assert_int_equal(t->scope, KVL_SCOPE_KV_HEAD);
    assert_int_equal(t->n, t->pos + 1);
    for (int32_t h = 0; h < t->n_lists; h++)
        memcpy(shown[t->layer][h], t->score + (size_t)h * (size_t)t->n,
               (size_t)t->n * sizeof *t->score);
    return KVL_OK;
}

static void expect_shown(const float *got, const int32_t *pos, int32_t n, const double *share,
                         const struct rocket *c, int32_t n_pages)
{
    double want[READS_TOK];
    for (int32_t p = 0; p <= reads.pos; p++) want[p] = -HUGE_VAL;
    for (int32_t i = 0; i < n && i < n_pages * c->page; i++) want[pos[i]] = share[i / c->page];
    for (int32_t p = 0; p <= reads.pos; p++)
        if (isfinite(want[p]) ? fabs((double)got[p] - want[p]) > 1e-5 : isfinite(got[p]))
            fail_msg("%s: score of %d is %g, want %g", c->options, p, (double)got[p], want[p]);
}

/* What a lane of a layer should have read in the step just done. */
static void naive_stage2(struct rig *r, const struct rig_session *rs, const struct rocket *c,
                         int32_t layer, int32_t kv_head, uint8_t *want)
{
    int32_t pos[N_TOK], n = rig_kept(rs, layer, kv_head, pos), slot[N_TOK];
    int32_t group = rig_shape(r)->n_heads / rig_shape(r)->n_kv_heads;
    int32_t n_pages = (n - 1) / c->page, k = c->budget / c->page - 1;
    static float keys[N_TOK * HEAD];
    double share[N_TOK];
    uint8_t mark[N_TOK];
    assert_int_equal(kvl_seq_find(kvl_session_seq(rs->s), layer, kv_head, pos, n, slot), n);
    for (int32_t i = 0; i < n; i++)
        RIG_OK(&r->err, kvl_seq_read(kvl_session_seq(rs->s), layer, kv_head, KVL_PART_K, slot[i], 1,
                                     keys + i * HEAD, &r->err));
    naive_shares(c, reads.q[layer] + kv_head * group * HEAD, group, keys, n_pages, share);
    record_top(share, n_pages, KVL_MIN(k, n_pages), mark);
    expect_shown(shown[layer][kv_head], pos, n, share, c, n_pages);
    memset(want, 0, READS_TOK);
    for (int32_t i = 0; i < n; i++)
        if (i / c->page >= n_pages || mark[i / c->page]) want[pos[i]] = 1;
}

static void check_run(struct rig *r, const int32_t *id, const struct rocket *c)
{
    const struct kvl_shape *sh = rig_shape(r);
    int32_t group = sh->n_heads / sh->n_kv_heads, pos[N_TOK];
    record_run(r, id, N_CTX, 0, c->window);
    struct rig_run run = { .policy = kvl_policy_rocketkv,
                           .options = c->options,
                           .budget = c->budget,
                           .id = id,
                           .n_ctx = N_CTX };
    struct rig_session rs = rig_start(r, &run);
    float *logits = rig_logits(r, 1);
    for (int32_t l = 0; l < sh->n_layers; l++)
        for (int32_t h = 0; h < sh->n_kv_heads; h++) {
            int32_t n = naive_stage1(c, record.mass[l] + (size_t)(h * group) * N_CTX, group, pos);
            rig_expect_kept(&rs, l, h, pos, n);
        }
    struct kvl_tap tap = { .user = (void *)(uintptr_t)sh,
                           .read = reads_take,
                           .score = take_scores };
    kvl_session_tap(rs.s, &tap);
    for (int32_t t = 0; t < N_STEPS; t++) {
        rig_decode(r, &rs, id + N_CTX + t, 1, logits);
        for (int32_t l = 0; l < sh->n_layers; l++)
            for (int32_t h = 0; h < sh->n_heads; h++) {
                uint8_t want[READS_TOK];
                naive_stage2(r, &rs, c, l, h / group, want);
                for (int32_t p = 0; p <= reads.pos; p++)
                    if (reads.read[l][h][p] != want[p])
                        fail_msg("%s: step %d layer %d head %d position %d is %sread", c->options,
                                 t, l, h, p, want[p] ? "not " : "");
            }
    }
    kvl_free(logits);
    rig_end(&rs);
}

static const struct rocket cases[] = {
    /* c = 180 / 48, alpha .314: 118 tokens; c2 2.46: pages of 2, 13 channels */
    { "kernel=5", 118, 2, 13, 32, 5, 24 },
    { "kernel=63", 118, 2, 13, 32, 63, 24 },
    { "stage1_tok=90,page=3,channels=4,window=8,kernel=1", 90, 3, 4, 8, 1, 20 },
    { "stage1_tok=61,page=1,channels=16,window=1,kernel=3", 61, 1, 16, 1, 3, 10 },
    { "stage1_tok=100,page=5,channels=1,window=8,kernel=7", 100, 5, 1, 8, 7, 23 },
};

static void test_runs_keep_and_read_what_the_formulas_say(void **state)
{
    int32_t id[N_TOK];
    (void)state;
    for (uint32_t kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
        struct rig_desc desc = { .llama = { .n_layers = 3, .n_kv_heads = kv_heads, .seed = 31 },
                                 .kv_type = kv_heads == 2 ? KVL_KV_F16 : KVL_KV_F32 };
        struct rig r;
        rig_open(&r, &desc);
        rig_tokens(id, N_TOK, 9);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_run(&r, id, &cases[i]);
        rig_close(&r);
    }
}

/* The multi-turn variant chooses among the same tokens, and keeps all. */
static void test_multi_turn_reads_the_same(void **state)
{
    static const char *const options[] = { "kernel=5", "kernel=5,multi_turn=true" };
    struct rig_desc desc = { .llama = { .n_layers = 3, .seed = 31 } };
    struct rig r;
    int32_t id[N_TOK];
    float *logits[2];
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_TOK, 9);
    for (int32_t budget = 24; budget < 200;
         budget += 100) { /* and one that holds all that is kept */
        for (int i = 0; i < 2; i++) {
            struct rig_run run = { .policy = kvl_policy_rocketkv,
                                   .options = options[i],
                                   .budget = budget,
                                   .id = id,
                                   .n_ctx = N_CTX };
            struct rig_session rs = rig_start(&r, &run);
            logits[i] = rig_logits(&r, N_STEPS);
            rig_decode(&r, &rs, id + N_CTX, N_STEPS, logits[i]);
            int32_t n = kvl_seq_len(kvl_session_seq(rs.s), 1, 0);
            if (budget == 24) assert_int_equal(n, i ? N_TOK : 118 + N_STEPS);
            rig_end(&rs);
        }
        rig_expect_near(&r, logits[0], logits[1], N_STEPS, 1e-4, "single and multi turn");
        kvl_free(logits[0]);
        kvl_free(logits[1]);
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_of_the_paper),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_runs_keep_and_read_what_the_formulas_say),
        cmocka_unit_test(test_multi_turn_reads_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
