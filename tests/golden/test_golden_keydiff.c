/* KeyDiff: the worked example, the policy's choice against cosines of the stored keys, in one cut and in
 * blocks, and what the score does not depend on. */
#include "golden/one_shot.h"

extern const struct kvl_policy *const kvl_policy_keydiff;

static const struct kvl_ops *const tables[] = { &kvl_ops_ref, &kvl_ops_cpu };

static void cosines(const struct kvl_ops *ops, const float *k, int32_t n, float *y)
{
    struct kvl_mean_cosine_args a = { .y = y, .x = k, .n = n, .dim = 2 };
    assert_int_equal(ops->mean_cosine(&a), KVL_OK);
}

static void test_worked_example(void **state)
{
    static const float k[5][2] = { { 3, 0 }, { 2, 2 }, { 0, 1 }, { -1, 0 }, { 1, 0 } };
    static const double want[5] = { -.707107, -1, -.707107, .707107, -.707107 };
    (void)state;
    for (int t = 0; t < 2; t++) {
        float y[5];
        cosines(tables[t], &k[0][0], 5, y);
        for (int i = 0; i < 5; i++) assert_float_equal(-(double)y[i], want[i], 2e-6);
    }
}

/* A score does not depend on how long keys are; a key that comes again is less special. */
static void test_lengths_and_duplicates(void **state)
{
    float k[6][2] = { { .3f, 1 }, { -2, 1 }, { 1, .2f }, { .5f, .5f }, { -.4f, 2 }, { -2, 1 } };
    (void)state;
    for (int t = 0; t < 2; t++) {
        float a[6], b[6], twice[6];
        cosines(tables[t], &k[0][0], 5, a);
        for (int c = 0; c < 2; c++) k[2][c] *= 7;
        cosines(tables[t], &k[0][0], 5, b);
        for (int c = 0; c < 2; c++) k[2][c] /= 7;
        for (int i = 0; i < 5; i++) assert_float_equal((double)a[i], (double)b[i], 1e-6);
        cosines(tables[t], &k[0][0], 6, twice); /* row 5 is row 1 */
        assert_true(twice[1] > a[1]);
        assert_float_equal((double)twice[1], (double)twice[5], 1e-6);
    }
}

struct diff {
    int32_t block, recent, keep;
};

/* Scores of the keys `at` [n] among themselves. */
static void naive_round(const float *k, int32_t dim, const int32_t *at, int32_t n, double *score)
{
    double anchor[256] = { 0 }, length = 0;
    for (int32_t i = 0; i < n; i++) {
        double norm = 0;
        for (int32_t c = 0; c < dim; c++) norm += pow((double)k[at[i] * dim + c], 2);
        for (int32_t c = 0; c < dim; c++) anchor[c] += (double)k[at[i] * dim + c] / sqrt(norm);
    }
    for (int32_t c = 0; c < dim; c++) length += anchor[c] * anchor[c];
    for (int32_t i = 0; i < n; i++) {
        double norm = 0, dot = 0;
        for (int32_t c = 0; c < dim; c++) {
            norm += pow((double)k[at[i] * dim + c], 2);
            dot += (double)k[at[i] * dim + c] * anchor[c];
        }
        score[i] = -dot / sqrt(norm * length);
    }
}

/* Position after position goes until the round has what it may keep. */
static int32_t naive_cut(const struct diff *d, double *score, int32_t *at, int32_t n)
{
    while (n > d->keep) {
        int32_t worst = 0;
        for (int32_t i = 1; i < n - d->recent; i++)
            if (score[i] <= score[worst]) worst = i;
        for (int32_t i = worst; i + 1 < n; i++) {
            at[i] = at[i + 1];
            score[i] = score[i + 1];
        }
        n--;
    }
    return n;
}

static void diff_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                        double *score)
{
    const struct diff *d = with;
    int32_t at[SHOT_MAX], n = 0, dim = rig_shape(&t->r)->head_dim;
    float *k = shot_read(t, layer, kv_head, KVL_PART_K);
    for (int32_t next = 0; next < t->n;) {
        int32_t more = d->block == 0 ? t->n : n == 0 ? d->keep + d->block : d->block;
        double round[SHOT_MAX];
        for (; more > 0 && next < t->n; more--) at[n++] = next++;
        naive_round(k, dim, at, n, round);
        n = naive_cut(d, round, at, n);
    }
    for (int32_t i = 0; i < t->n; i++) score[i] = 0;
    for (int32_t i = 0; i < n; i++) score[at[i]] = 1;
    kvl_free(k);
}

static void test_policy_keeps_what_the_formula_says(void **state)
{
    static const struct {
        const char *options;
        int32_t budget;
        struct diff d;
    } cases[] = {
        { "block=0", 41, { 0, 0, 40 } },          { "block=32", 41, { 32, 0, 40 } },
        { "block=1", 33, { 1, 0, 32 } },          { "block=7,recent=9", 50, { 7, 9, 49 } },
        { "block=0,recent=5", 41, { 0, 5, 40 } }, { "", 20, { 128, 0, 19 } },
    };
    static const struct gw_llama llama = { .n_layers = 2, .n_kv_heads = 2, .seed = 5 };
    struct shot t;
    (void)state;
    shot_open(&t, &llama, 190, 8);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig_session rs =
            shot_policy(&t, kvl_policy_keydiff, cases[i].options, cases[i].budget);
        shot_expect_best(&t, &rs, cases[i].budget - 1, diff_scores, &cases[i].d);
        rig_end(&rs);
    }
    shot_close(&t);
}

/* One cut and cuts in blocks are different methods. */
static void test_blocks_matter(void **state)
{
    static const struct gw_llama llama = { .n_layers = 2, .n_kv_heads = 2, .seed = 5 };
    static const char *const options[] = { "block=0", "block=16" };
    int32_t kept[2][40];
    struct shot t;
    (void)state;
    shot_open(&t, &llama, 190, 8);
    for (int i = 0; i < 2; i++) {
        struct rig_session rs = shot_policy(&t, kvl_policy_keydiff, options[i], 41);
        assert_int_equal(rig_kept(&rs, 1, 1, kept[i]), 40);
        rig_end(&rs);
    }
    assert_memory_not_equal(kept[0], kept[1], sizeof kept[0]);
    shot_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worked_example),
        cmocka_unit_test(test_lengths_and_duplicates),
        cmocka_unit_test(test_policy_keeps_what_the_formula_says),
        cmocka_unit_test(test_blocks_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
