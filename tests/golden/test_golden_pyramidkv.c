/* PyramidKV: every published schedule to the integer, the exact one by its properties, and the policy's
 * layers against the schedule and a naive choice of tokens.  The file of the method is included, for its
 * schedules. */
#define KVL_PLUGIN
#include "../methods/pyramidkv.c"

#include "golden/given.h"
#include "golden/record.h"

extern const struct kvl_policy *const kvl_policy_snapkv;

/* ---- schedules --------------------------------------------------------------------------------- */

static int64_t sum_of(const struct pyramid *p)
{
    int64_t sum = 0;
    for (int32_t l = 0; l < p->n_layers; l++) sum += pyramid_keep(p, l);
    return sum;
}

/* The first layers' numbers, the last ones', and the sum (0: not asked). */
static void expect_layers(const struct pyramid *p, const int32_t *first, int32_t n_first,
                          const int32_t *last, int32_t n_last, int64_t sum)
{
    for (int32_t i = 0; i < n_first; i++) assert_int_equal(pyramid_keep(p, i), first[i]);
    for (int32_t i = 0; i < n_last; i++)
        assert_int_equal(pyramid_keep(p, p->n_layers - n_last + i), last[i]);
    if (sum) assert_int_equal(sum_of(p), sum);
}
#define EXPECT_ALL(p, ...)                                                                         \
    expect_layers(p, (const int32_t[]){ __VA_ARGS__ },                                             \
                  (int32_t)(sizeof((int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t)), NULL, 0, 0)

static struct pyramid small(enum pyramid_schedule schedule, int32_t n_tok)
{
    return (struct pyramid){
        .schedule = schedule, .n_layers = 4, .n_tok = n_tok, .capacity = 20, .window = 4, .beta = 20
    };
}

static void test_factory_small(void **state)
{
    struct pyramid p = small(PYRAMID_FACTORY, 100);
    (void)state;
    EXPECT_ALL(&p, 36, 26, 16, 6);
    assert_int_equal(sum_of(&p), 84);
    p.n_tok = 35;
    EXPECT_ALL(&p, 35, 25, 15, 5);
    p.n_tok = 33;
    EXPECT_ALL(&p, 33, 25, 17, 9);
    p.n_tok = 30;
    EXPECT_ALL(&p, 20, 20, 20, 20);
    p.n_tok = 19;
    EXPECT_ALL(&p, 19, 19, 19, 19); /* everything */
}

static void test_factory_models(void **state)
{
    static const struct {
        int32_t capacity, window, first[3], last[3];
        int64_t sum;
    } rows[] = {
        { 128, 8, { 242, 235, 228 }, { 39, 32, 25 }, 4272 },
        { 2048, 8, { 3986, 3861, 3736 }, { 361, 236, 111 }, 65552 },
        { 64, 8, { 118, 115, 112 }, { 31, 28, 25 }, 2288 },
        { 512, 32, { 968, 939, 910 }, { 127, 98, 69 }, 16592 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pyramid p = { .schedule = PYRAMID_FACTORY,
                             .n_layers = 32,
                             .n_tok = 8000,
                             .capacity = rows[i].capacity,
                             .window = rows[i].window,
                             .beta = 20 };
        expect_layers(&p, rows[i].first, 3, rows[i].last, 3, rows[i].sum);
    }
}

static void test_adakv_copy(void **state)
{
    struct pyramid p = small(PYRAMID_ADAKV, 30);
    (void)state;
    EXPECT_ALL(&p, 30, 24, 18, 12);
    p.n_tok = 25;
    EXPECT_ALL(&p, 25, 22, 19, 16);
    p.n_tok = 100;
    EXPECT_ALL(&p, 36, 26, 16, 6);
}

static void test_kvpress(void **state)
{
    struct pyramid p = {
        .schedule = PYRAMID_KVPRESS, .n_layers = 32, .n_tok = 4096, .window = 64, .beta = 20
    };
    (void)state;
    p.capacity = 2048;
    expect_layers(&p, (int32_t[]){ 3994, 3868 }, 2, (int32_t[]){ 228, 102 }, 2, 65536);
    p.capacity = 3072;
    expect_layers(&p, (int32_t[]){ 4032, 3970 }, 2, (int32_t[]){ 2174, 2112 }, 2, 98304);
    p.capacity = 1024;
    expect_layers(&p, (int32_t[]){ 1024, 1024 }, 2, (int32_t[]){ 1024 }, 1, 32 * 1024);
    p.capacity = 410;
    expect_layers(&p, (int32_t[]){ 410, 410 }, 2, (int32_t[]){ 410 }, 1, 32 * 410);
    p.n_tok = 20000;
    p.capacity = 2000;
    expect_layers(&p, (int32_t[]){ 3900, 3777 }, 2, (int32_t[]){ 223, 100 }, 2, 0);
}

/* Halves that are not halves in doubles: theirs has 122.50000000000003 in layer 1 at the ratio 0.7, because
 * 350 (1 - 0.7) is 105.00000000000001, and in the last one at 0.5, because a step is rounded before it is
 * multiplied.  With exact numbers both are 122.5, rounded to 122.  (From Python's doubles.) */
static void test_kvpress_to_the_double(void **state)
{
    struct pyramid p = { .schedule = PYRAMID_KVPRESS,
                         .n_layers = 4,
                         .n_tok = 350,
                         .capacity = 105,
                         .window = 8,
                         .beta = 2 };
    (void)state;
    EXPECT_ALL(&p, 158, 123, 88, 52);
    p.n_layers = 16;
    p.n_tok = 490;
    p.capacity = 245;
    EXPECT_ALL(&p, 368, 351, 335, 318, 302, 286, 270, 253, 237, 220, 204, 188, 172, 155, 139, 123);
}

/* The sum is exact whatever the numbers, no layer keeps more than a lower one, than there is, or less
 * than the window; its ends are the paper's. */
static void test_strict(void **state)
{
    struct kvl_rng rng;
    (void)state;
    kvl_rng_seed(&rng, 3);
    for (int32_t i = 0; i < 2000; i++) {
        struct pyramid p = { .n_layers = 1 + (int32_t)kvl_rng_below(&rng, 40),
                             .window = (int32_t)kvl_rng_below(&rng, 40),
                             .beta = 1 + (int32_t)kvl_rng_below(&rng, 30) };
        p.capacity = p.window + 1 + (int32_t)kvl_rng_below(&rng, 500);
        p.n_tok = p.capacity + 1 + (int32_t)kvl_rng_below(&rng, 2000);
        assert_int_equal(sum_of(&p), (int64_t)p.n_layers * p.capacity);
        for (int32_t l = 0; l < p.n_layers; l++) {
            int32_t keep = pyramid_keep(&p, l);
            assert_true(keep >= p.window && keep <= p.n_tok);
            if (l > 0) assert_true(keep <= pyramid_keep(&p, l - 1));
            if (p.beta == 1 && p.n_tok >= 2 * p.capacity) assert_int_equal(keep, p.capacity);
        }
    }
    struct pyramid p = small(PYRAMID_STRICT, 100); /* 31.2, 21.067, 10.933, 0.8 and the window */
    EXPECT_ALL(&p, 35, 25, 15, 5);
}

static void test_one_layer(void **state)
{
    (void)state;
    for (int s = PYRAMID_STRICT; s <= PYRAMID_KVPRESS; s++) {
        struct pyramid p = small((enum pyramid_schedule)s, 100);
        p.n_layers = 1;
        EXPECT_ALL(&p, 20);
    }
}

/* ---- the policy -------------------------------------------------------------------------------- */

enum { N_CTX = 100 };

/* Scores fall with the position but for some: the best of a layer's number stay, and the window. */
static void test_layers_keep_their_numbers(void **state)
{
    static const struct {
        const char *options;
        int32_t want[4];
    } rows[] = {
        { "", { 35, 25, 15, 5 } },
        { "schedule=factory", { 36, 26, 16, 6 } },
        { "schedule=adakv", { 36, 26, 16, 6 } },
        { "schedule=kvpress",
          { 20, 20, 20, 20 } }, /* the last would keep 1, less than the window */
        { "schedule=kvpress,beta=4", { 35, 25, 15, 5 } },
        { "beta=1", { 20, 20, 20, 20 } },
    };
    struct rig_desc desc = { .llama = { .n_layers = 4, .n_kv_heads = 2, .seed = 4 } };
    struct rig r;
    (void)state;
    given.first = 0;
    given.last = 4;
    for (int32_t i = 0; i < N_CTX; i++) {
        given.score[0][i] = (float)((i * 37) % N_CTX);
        given.score[1][i] = (float)((i * 59) % N_CTX);
    }
    rig_open(&r, &desc);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct kvl_policy *composed;
        struct given_run g = { &pyramidkv, rows[i].options, 21, N_CTX };
        struct rig_session rs = given_start(&r, &g, &composed);
        for (int32_t l = 0; l < 4; l++)
            for (int32_t h = 0; h < 2; h++) {
                double x[N_CTX];
                uint8_t mark[N_CTX];
                int32_t want[N_CTX], n = 0;
                for (int32_t t = 0; t < N_CTX; t++) x[t] = (double)given.score[h][t];
                record_top(x, N_CTX - 4, rows[i].want[l] - 4, mark);
                for (int32_t t = 0; t < N_CTX; t++)
                    if (t >= N_CTX - 4 || mark[t]) want[n++] = t;
                rig_expect_kept(&rs, l, h, want, n);
            }
        rig_end(&rs);
        kvl_policy_decompose(composed);
    }
    rig_close(&r);
}

/* With layers alike it is the policy that it wraps, token for token; its own window is 8. */
static void test_flat_pyramid_is_snapkv(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = 3, .n_kv_heads = 2, .seed = 8 } };
    const struct kvl_policy *composed;
    int32_t id[N_CTX + 4];
    struct rig r;
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_CTX + 4, 6);
    RIG_OK(&r.err, kvl_policy_compose(&pyramidkv, kvl_policy_snapkv, &composed, &r.err));
    assert_string_equal(composed->name, "pyramidkv(snapkv)");
    struct rig_run run = { .policy = composed,
                           .options = "beta=1",
                           .budget = 40,
                           .id = id,
                           .n_ctx = N_CTX,
                           .n_steps = 4 };
    float *a = rig_run(&r, &run);
    run.policy = kvl_policy_snapkv;
    run.options = "window=8";
    float *b = rig_run(&r, &run);
    rig_expect_same(&r, a, b, 4, "a flat pyramid");
    kvl_free(a);
    kvl_free(b);
    kvl_policy_decompose(composed);
    rig_close(&r);
}

static void test_lanes_with_budgets(void **state)
{
    (void)state;
    given_refuses(&pyramidkv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lanes_with_budgets),
        cmocka_unit_test(test_factory_small),
        cmocka_unit_test(test_factory_models),
        cmocka_unit_test(test_adakv_copy),
        cmocka_unit_test(test_kvpress),
        cmocka_unit_test(test_kvpress_to_the_double),
        cmocka_unit_test(test_strict),
        cmocka_unit_test(test_one_layer),
        cmocka_unit_test(test_layers_keep_their_numbers),
        cmocka_unit_test(test_flat_pyramid_is_snapkv),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
