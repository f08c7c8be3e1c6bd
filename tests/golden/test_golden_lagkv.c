/* LagKV: the worked example, the policy's choice against deviations of the stored keys and values, and
 * what is kept whatever the scores. */
#include "golden/one_shot.h"

extern const struct kvl_policy *const kvl_policy_lagkv;

/* Sink 1, blocks of 2: the last block is a reference only. */
static void test_worked_example(void **state)
{
    static const struct kvl_ops *const tables[] = { &kvl_ops_ref, &kvl_ops_cpu };
    static const float k[6][2] = { { 1, 0 }, { 0, 1 }, { 2, 2 }, { 0, 1 }, { 1, 1 }, { 3, 0 } };
    static const double want[4] = { .742817, .257183, .5, .5 };
    (void)state;
    for (int t = 0; t < 2; t++) {
        float y[4];
        struct kvl_lag_spread_args a = { .y = y, .x = &k[0][0], .n_blocks = 2, .lag = 2, .dim = 2 };
        assert_int_equal(tables[t]->lag_spread(&a), KVL_OK);
        for (int i = 0; i < 4; i++) assert_float_equal((double)y[i], want[i], 2e-6);
    }
}

/* All of the next block alike: nothing is divided by zero. */
static void test_blocks_without_spread(void **state)
{
    static const struct kvl_ops *const tables[] = { &kvl_ops_ref, &kvl_ops_cpu };
    static const float k[4][2] = { { 1, 5 }, { 9, 1 }, { 2, 2 }, { 2, 2 } };
    (void)state;
    for (int t = 0; t < 2; t++) {
        float y[2];
        struct kvl_lag_spread_args a = { .y = y, .x = &k[0][0], .n_blocks = 1, .lag = 2, .dim = 2 };
        assert_int_equal(tables[t]->lag_spread(&a), KVL_OK);
        for (int i = 0; i < 2; i++) assert_float_equal((double)y[i], .5, 1e-6);
    }
}

struct lag {
    int32_t n_sink, lag;
    bool cross;
};

/* Softmax over a block of the deviations of its rows; x: the block, then the next. */
static void naive_block(const float *x, int32_t lag, int32_t dim, double *add)
{
    double deviation[SHOT_MAX], sum = 0;
    for (int32_t i = 0; i < lag; i++) {
        double r[256], mean = 0, squares = 0;
        for (int32_t c = 0; c < dim; c++) {
            double lo = HUGE_VAL, hi = -HUGE_VAL;
            for (int32_t j = lag; j < 2 * lag; j++) {
                lo = fmin(lo, (double)x[j * dim + c]);
                hi = fmax(hi, (double)x[j * dim + c]);
            }
            r[c] = hi > lo ? ((double)x[i * dim + c] - lo) / (hi - lo) : 0;
            mean += r[c] / dim;
        }
        for (int32_t c = 0; c < dim; c++) squares += pow(r[c] - mean, 2);
        deviation[i] = sqrt(squares / (dim - 1));
    }
    for (int32_t i = 0; i < lag; i++) sum += exp(deviation[i]);
    for (int32_t i = 0; i < lag; i++) add[i] += exp(deviation[i]) / sum / 2;
}

static void lag_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                       double *score)
{
    static const enum kvl_kv_part parts[] = { KVL_PART_K, KVL_PART_V };
    const struct lag *o = with;
    int32_t dim = rig_shape(&t->r)->head_dim, n_blocks = (t->n - o->n_sink) / o->lag - 1;
    for (int32_t i = 0; i < t->n; i++) score[i] = i < o->n_sink ? 2 : 1;
    for (int32_t i = 0; i < n_blocks * o->lag; i++) score[o->n_sink + i] = 0;
    for (int p = 0; p < 2; p++) {
        float *x = shot_read(t, layer, kv_head, parts[p]);
        for (int32_t b = 0; b < n_blocks; b++)
            naive_block(x + (o->n_sink + b * o->lag) * dim, o->lag, dim,
                        score + o->n_sink + b * o->lag);
        kvl_free(x);
    }
    for (int32_t b = 0; !o->cross && b < n_blocks; b++) {
        double *block = score + o->n_sink + b * o->lag, was[SHOT_MAX];
        memcpy(was, block, (size_t)o->lag * sizeof *was);
        for (int32_t i = 0; i < o->lag; i++) {
            block[i] = 0;
            for (int32_t j = 0; j < o->lag; j++) block[i] += was[j] < was[i];
            block[i] /= o->lag;
        }
    }
}

static void test_policy_keeps_what_the_formula_says(void **state)
{
    static const struct {
        const char *options;
        int32_t budget;
        struct lag o;
    } cases[] = {
        { "lag_size=16", 81, { 4, 16, false } },
        { "", 61, { 4, 15, false } },
        { "lag_size=16,cross_scoring=true", 81, { 4, 16, true } },
        { "lag_size=7,n_sink=0", 50, { 0, 7, false } },
        { "lag_size=64", 101, { 4, 64, false } },
    };
    static const struct gw_llama llama = { .n_layers = 2, .n_kv_heads = 2, .seed = 6 };
    struct shot t;
    (void)state;
    shot_open(&t, &llama, 190, 9);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig_session rs =
            shot_policy(&t, kvl_policy_lagkv, cases[i].options, cases[i].budget);
        shot_expect_best(&t, &rs, cases[i].budget - 1, lag_scores, &cases[i].o);
        rig_end(&rs);
    }
    shot_close(&t);
}

/* Too short for two blocks: sink and the latest. */
static void test_short_contexts_keep_the_latest(void **state)
{
    static const struct gw_llama llama = { .n_layers = 2, .n_kv_heads = 2, .seed = 6 };
    struct shot t;
    int32_t want[40];
    (void)state;
    shot_open(&t, &llama, 190, 9);
    struct rig_session rs = shot_policy(&t, kvl_policy_lagkv, "lag_size=94", 41);
    for (int32_t i = 0; i < 40; i++) want[i] = i < 4 ? i : 150 + i;
    rig_expect_kept(&rs, 1, 1, want, 40);
    rig_end(&rs);
    shot_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worked_example),
        cmocka_unit_test(test_blocks_without_spread),
        cmocka_unit_test(test_policy_keeps_what_the_formula_says),
        cmocka_unit_test(test_short_contexts_keep_the_latest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
