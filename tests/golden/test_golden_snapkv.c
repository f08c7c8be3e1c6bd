/* SnapKV: hand-computed selections through the operators, and the policy's choice against one worked
 * out from the recorded window mass.  Ties go to the lower position. */
#include "golden/record.h"

#include "lane.h"

static const struct kvl_ops *const tables[] = { &kvl_ops_ref, &kvl_ops_cpu };
enum { N_TABLES = 2, N_PREFIX = 8 };

/* Window rows of two queries, summed over the queries, on the 8 positions before the window. */
static const float sum_head0[N_PREFIX] = { .15f, .04f, .28f, .23f, .03f, .03f, .07f, .20f };
static const float sum_head1[N_PREFIX] = { .30f, .02f, .02f, .02f, .02f, .02f, .45f, .02f };

static void expect_row(const float *got, const double *want, int32_t n)
{
    for (int32_t i = 0; i < n; i++) assert_float_equal((double)got[i], want[i], 2e-6);
}

static void pool(const struct kvl_ops *ops, float *y, const float *x, int32_t n_rows, int32_t n,
                 bool average)
{
    assert_int_equal(ops->pool1d(&(struct kvl_pool1d_args){ .y = y,
                                                            .x = x,
                                                            .x_stride = (size_t)n,
                                                            .n_rows = n_rows,
                                                            .n = n,
                                                            .kernel = 3,
                                                            .average = average }),
                     KVL_OK);
}

static void expect_top(const struct kvl_ops *ops, const float *x, int32_t n, int32_t k,
                       const int32_t *want)
{
    int32_t index[N_PREFIX];
    assert_int_equal(
        ops->topk(&(struct kvl_topk_args){
            .index = index, .x = x, .x_stride = (size_t)n, .n_rows = 1, .n = n, .k = k }),
        KVL_OK);
    for (int32_t i = 0; i < k; i++) assert_int_equal(index[i], want[i]);
}
#define EXPECT_TOP(ops, x, n, ...)                                                                 \
    expect_top(ops, x, n, (int32_t)(sizeof((int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t)),         \
               (int32_t[]){ __VA_ARGS__ })

static void test_pooling_decides_what_stays(void **state)
{
    (void)state;
    for (int t = 0; t < N_TABLES; t++) {
        float y[N_PREFIX];
        pool(tables[t], y, sum_head0, 1, N_PREFIX, false);
        expect_row(y, (double[]){ .15, .28, .28, .28, .23, .07, .20, .20 }, N_PREFIX);
        EXPECT_TOP(tables[t], y, N_PREFIX, 1, 2, 3, 4);
        pool(tables[t], y, sum_head0, 1, N_PREFIX, true);
        expect_row(y, (double[]){ .063333, .156667, .183333, .18, .096667, .043333, .10, .09 },
                   N_PREFIX);
        EXPECT_TOP(tables[t], y, N_PREFIX, 1, 2, 3, 6);
        EXPECT_TOP(tables[t], sum_head0, N_PREFIX, 0, 2, 3, 7);
    }
}

static void reduce(const struct kvl_ops *ops, float *y, const float *x, enum kvl_reduce how)
{
    assert_int_equal(ops->group_reduce(&(struct kvl_group_reduce_args){ .y = y,
                                                                        .x = x,
                                                                        .x_stride = N_PREFIX,
                                                                        .n = N_PREFIX,
                                                                        .n_heads = 2,
                                                                        .n_kv_heads = 1,
                                                                        .reduce = how }),
                     KVL_OK);
}

static void test_the_order_of_pooling_and_group_mean(void **state)
{
    float both[2 * N_PREFIX], pooled[2 * N_PREFIX], y[N_PREFIX], z[N_PREFIX];
    (void)state;
    memcpy(both, sum_head0, sizeof sum_head0);
    memcpy(both + N_PREFIX, sum_head1, sizeof sum_head1);
    for (int t = 0; t < N_TABLES; t++) {
        const struct kvl_ops *ops = tables[t];
        pool(ops, pooled, both, 2, N_PREFIX, false);
        reduce(ops, y, pooled, KVL_REDUCE_MEAN);
        expect_row(y, (double[]){ .225, .29, .15, .15, .125, .26, .325, .325 }, N_PREFIX);
        EXPECT_TOP(ops, y, N_PREFIX, 1, 5, 6, 7);
        EXPECT_TOP(ops, y, N_PREFIX, 1, 6, 7);
        reduce(ops, z, both, KVL_REDUCE_MEAN);
        pool(ops, y, z, 1, N_PREFIX, false);
        expect_row(y, (double[]){ .225, .225, .15, .15, .125, .26, .26, .26 }, N_PREFIX);
        EXPECT_TOP(ops, y, N_PREFIX, 0, 5, 6, 7);
        EXPECT_TOP(ops, y, N_PREFIX, 5, 6, 7);
        pool(ops, y, z, 1, N_PREFIX, true);
        EXPECT_TOP(ops, y, N_PREFIX, 1, 5, 6, 7);
    }
}

/* ---- from keys and queries, head_dim 2, no rotation --------------------------------------------- */

enum { N_TOY = 6 };

static struct kvl_seq *toy_sequence(struct kvl_store *store, struct kvl_err *err)
{
    static const float k[N_TOY][2] = { { 1, 0 },  { 0, 1 }, { .5f, .5f },
                                       { -1, 0 }, { 0, 2 }, { 1, 1 } };
    static const float v[N_TOY][2] = { { 0 } };
    static const int32_t pos[N_TOY] = { 0, 1, 2, 3, 4, 5 };
    struct kvl_seq *seq;
    RIG_OK(err, kvl_seq_create(store, &seq, err));
    RIG_OK(err, kvl_seq_append(seq, 0, N_TOY, pos, &k[0][0], NULL, &v[0][0], err));
    return seq;
}

static void window_mass(const struct kvl_ops *ops, const struct kvl_seq *seq, const float *q,
                        int32_t n_window, int32_t n_slots, float *mass)
{
    struct kvl_lane lane = kvl_seq_lane(seq, 0, 0);
    lane.n_slots = n_slots;
    assert_int_equal(ops->attn_window(&(struct kvl_attn_window_args){ .mass = mass,
                                                                      .q = q,
                                                                      .lanes = &lane,
                                                                      .n_window = n_window,
                                                                      .n_slots = n_slots,
                                                                      .n_heads = 1,
                                                                      .n_kv_heads = 1,
                                                                      .head_dim = 2,
                                                                      .scale = sqrtf(.5f) }),
                     KVL_OK);
}

/* The row of query 4 must not see key 5: checks the corner, the scale and the denominator. */
static void test_window_mass_of_two_queries(void **state)
{
    static const float q[2][2] = { { 1, 0 }, { 0, 1 } };
    struct kvl_store_desc desc = { .n_layers = 1, .n_kv_heads = 1, .head_dim = 2 };
    struct kvl_store *store;
    struct kvl_err err = { 0 };
    (void)state;
    RIG_OK(&err, kvl_store_create(&desc, &store, &err));
    struct kvl_seq *seq = toy_sequence(store, &err);
    for (int t = 0; t < N_TABLES; t++) {
        float mass[N_TOY], y[4];
        window_mass(tables[t], seq, q[1], 1, N_TOY, mass);
        expect_row(mass, (double[]){ .086254, .174934, .122837, .086254, .354786, .174934 }, N_TOY);
        window_mass(tables[t], seq, q[0], 1, N_TOY - 1, mass);
        expect_row(mass, (double[]){ .341129, .1682, .239537, .082934, .1682 }, N_TOY - 1);
        window_mass(tables[t], seq, q[0], 2, N_TOY, mass);
        expect_row(mass, (double[]){ .427383, .343134, .362373, .169189 }, 4);
        EXPECT_TOP(tables[t], mass, 4, 0, 2);
        pool(tables[t], y, mass, 1, 4, false);
        EXPECT_TOP(tables[t], y, 4, 0, 1);
        pool(tables[t], y, mass, 1, 4, true);
        expect_row(y, (double[]){ .256839, .37763, .291565, .177187 }, 4);
        EXPECT_TOP(tables[t], y, 4, 1, 2);
    }
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

/* ---- the policy ------------------------------------------------------------------------------------ */

extern const struct kvl_policy *const kvl_policy_snapkv;

enum { N_CTX = 90, N_MORE = 6 };

struct snap {
    const char *options;
    int32_t budget, window, kernel;
    bool average, pool_first;
    enum kvl_reduce reduce;
};

static double pooled_at(const double *x, int32_t n, int32_t i, const struct snap *c)
{
    double top = -HUGE_VAL, sum = 0;
    for (int32_t j = i - c->kernel / 2; j <= i + c->kernel / 2; j++) {
        if (j < 0 || j >= n) continue;
        top = fmax(top, x[j]);
        sum += x[j];
    }
    return c->average ? sum / c->kernel : top;
}

static double reduced(const double *x, int32_t group, enum kvl_reduce how)
{
    double y = x[0];
    for (int32_t g = 1; g < group; g++) {
        if (how == KVL_REDUCE_MAX) y = fmax(y, x[g]);
        if (how == KVL_REDUCE_SUM || how == KVL_REDUCE_MEAN) y += x[g];
    }
    return how == KVL_REDUCE_MEAN ? y / group : y;
}

/* Scores of one kv head from the mass of its query heads: [group][N_CTX]. */
static void expected_scores(const float *mass, int32_t group, const struct snap *c, double *score)
{
    double row[8][N_CTX], column[8];
    int32_t n = N_CTX - c->window;
    for (int32_t g = 0; g < group; g++)
        for (int32_t i = 0; i < n; i++) row[g][i] = (double)mass[(size_t)g * N_CTX + (size_t)i];
    for (int32_t i = 0; i < n; i++) {
        for (int32_t g = 0; g < group; g++)
            column[g] = c->pool_first ? pooled_at(row[g], n, i, c) : row[g][i];
        score[i] = reduced(column, group, c->reduce);
    }
    if (c->pool_first) return;
    memcpy(row[0], score, (size_t)n * sizeof *score);
    for (int32_t i = 0; i < n; i++) score[i] = pooled_at(row[0], n, i, c);
}

static int32_t expected_kept(const float *mass, int32_t group, const struct snap *c, int32_t *pos)
{
    double score[N_CTX];
    uint8_t mark[N_CTX];
    int32_t n = N_CTX - c->window, n_kept = 0;
    expected_scores(mass, group, c, score);
    record_top(score, n, c->budget - 1 - c->window, mark);
    for (int32_t i = 0; i < N_CTX; i++)
        if (i >= n || mark[i]) pos[n_kept++] = i;
    return n_kept;
}

static void check_policy(struct rig *r, const int32_t *id, const struct snap *c)
{
    const struct kvl_shape *sh = rig_shape(r);
    int32_t group = sh->n_heads / sh->n_kv_heads, want[N_CTX + N_MORE];
    record_run(r, id, N_CTX, 0, c->window);
    struct rig_run run = { .policy = kvl_policy_snapkv,
                           .options = c->options,
                           .budget = c->budget,
                           .id = id,
                           .n_ctx = N_CTX };
    struct rig_session rs = rig_start(r, &run);
    float *logits = rig_logits(r, N_MORE);
    for (int pass = 0; pass < 2; pass++) { /* nothing more goes while decoding */
        for (int32_t l = 0; l < sh->n_layers; l++)
            for (int32_t h = 0; h < sh->n_kv_heads; h++) {
                const float *mass = record.mass[l] + (size_t)(h * group) * N_CTX;
                int32_t n = expected_kept(mass, group, c, want);
                for (int32_t i = 0; pass == 1 && i < N_MORE; i++) want[n++] = N_CTX + i;
                rig_expect_kept(&rs, l, h, want, n);
            }
        if (pass == 0) rig_decode(r, &rs, id + N_CTX, N_MORE, logits);
    }
    kvl_free(logits);
    rig_end(&rs);
}

static const struct snap cases[] = {
    { "", 60, 30, 7, false, false, KVL_REDUCE_MEAN }, /* window=auto: half the budget */
    { "", 80, 32, 7, false, false, KVL_REDUCE_MEAN }, /* window=auto: the paper's */
    { "window=8,kernel=5", 40, 8, 5, false, false, KVL_REDUCE_MEAN },
    { "window=8,kernel=1,reduce=max", 40, 8, 1, false, false, KVL_REDUCE_MAX },
    { "window=8,kernel=7,reduce=first", 40, 8, 7, false, false, KVL_REDUCE_FIRST },
    { "window=8,kernel=5,pool=avg,reduce=sum", 40, 8, 5, true, false, KVL_REDUCE_SUM },
    { "window=8,kernel=5,pool=avg,pool_first=true", 40, 8, 5, true, true, KVL_REDUCE_MEAN },
    { "window=8,kernel=7,pool_first=true", 40, 8, 7, false, true, KVL_REDUCE_MEAN },
    { "window=1,kernel=3", 4, 1, 3, false, false, KVL_REDUCE_MEAN },
};

static void test_policy_keeps_what_the_formula_says(void **state)
{
    int32_t id[N_CTX + N_MORE];
    (void)state;
    for (uint32_t kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
        struct rig_desc desc = { .llama = { .n_layers = 2, .n_kv_heads = kv_heads, .seed = 7 } };
        struct rig r;
        rig_open(&r, &desc);
        rig_tokens(id, N_CTX + N_MORE, 11);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_policy(&r, id, &cases[i]);
        rig_close(&r);
    }
}

/* The observers hold the last W queries of the whole context, whatever the chunks.  Their mass is
 * worked out from the queries of single decode steps and the stored keys. */
static void test_mass_is_that_of_the_last_queries(void **state)
{
    enum { W = 8, N = 40 };
    struct rig_desc desc = { .llama = { .n_layers = 2, .seed = 3 }, .chunk_tok = 5 };
    static float steps[W][RECORD_LAYERS][RECORD_QUERY];
    struct rig r;
    int32_t id[N];
    float k[N * 16];
    double weight[N];
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N, 5);
    record_run(&r, id, N - W, W, 0);
    memcpy(steps, record.q, sizeof steps);
    record_run(&r, id, N, 0, W);
    struct rig_run run = { .policy = &record_policy, .id = id, .n_ctx = N };
    struct rig_session rs = rig_start(&r, &run);
    for (int32_t l = 0; l < 2; l++)
        for (int32_t h = 0; h < 4; h++) {
            double mass[N] = { 0 };
            record_keys(&r, &rs, l, h / 2, N, k);
            for (int32_t w = 0; w < W; w++) {
                int32_t n_seen = N - W + w + 1;
                record_weights(&steps[w][l][h * 16], k, n_seen, 16, weight);
                for (int32_t i = 0; i < n_seen; i++) mass[i] += weight[i];
            }
            expect_row(record.mass[l] + h * N, mass, N - W);
        }
    rig_end(&rs);
    rig_close(&r);
}

/* A context that fits is left alone: C = B - 1 context tokens and the current one. */
static void test_no_eviction_when_the_context_fits(void **state)
{
    struct rig_desc desc = { .llama = { .seed = 1 } };
    struct rig r;
    int32_t id[40], all[40];
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, 40, 2);
    for (int32_t i = 0; i < 40; i++) all[i] = i;
    struct rig_run run = { .policy = kvl_policy_snapkv, .budget = 41, .id = id, .n_ctx = 40 };
    struct rig_session rs = rig_start(&r, &run);
    rig_expect_kept(&rs, 1, 1, all, 40);
    rig_end(&rs);
    run.budget = 40;
    rs = rig_start(&r, &run);
    assert_int_equal(kvl_seq_len(kvl_session_seq(rs.s), 1, 1), 39);
    rig_end(&rs);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pooling_decides_what_stays),
        cmocka_unit_test(test_the_order_of_pooling_and_group_mean),
        cmocka_unit_test(test_window_mass_of_two_queries),
        cmocka_unit_test(test_policy_keeps_what_the_formula_says),
        cmocka_unit_test(test_mass_is_that_of_the_last_queries),
        cmocka_unit_test(test_no_eviction_when_the_context_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
