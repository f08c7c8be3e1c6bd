/* ChunkKV: a worked example, and a naive one on random scores. */
#include "golden/given.h"
#include "golden/record.h"

extern const struct kvl_policy *const kvl_policy_chunkkv, *const kvl_policy_snapkv;

enum { N = 107, HEADS = 2 };

static struct rig rig;

static int open_rig(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = 2, .n_kv_heads = HEADS, .seed = 4 } };
    (void)state;
    rig_open(&rig, &desc);
    return 0;
}

static int close_rig(void **state)
{
    (void)state;
    rig_close(&rig);
    return 0;
}

static void expect_all_keep(const char *options, int32_t budget, int32_t n_ctx, const int32_t *want,
                            int32_t n)
{
    const struct kvl_policy *composed;
    struct given_run g = { kvl_policy_chunkkv, options, budget, n_ctx };
    struct rig_session rs = given_start(&rig, &g, &composed);
    for (int32_t l = 0; l < 2; l++)
        for (int32_t h = 0; h < HEADS; h++) rig_expect_kept(&rs, l, h, want, n);
    rig_end(&rs);
    kvl_policy_decompose(composed);
}
#define EXPECT_ALL(options, budget, n_ctx, ...)                                                    \
    expect_all_keep(options, budget, n_ctx, (const int32_t[]){ __VA_ARGS__ },                      \
                    (int32_t)(sizeof((int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t)))

/* Scores of ten tokens for the two heads, nothing protected. */
static void give_ten(const float a[10], const float b[10])
{
    memset(&given, 0, sizeof given);
    memcpy(given.score[0], a, 10 * sizeof *a);
    memcpy(given.score[1], b, 10 * sizeof *b);
}

/* Sums over the heads 3 2 3 | 1 8 0 | 4 4 4 | 5: means 2.667, 3, 4, 5.  The last chunk has one token.
 * By the sum of a chunk instead of its mean the last one would be the worst. */
static void test_worked_example(void **state)
{
    static const float a[] = { 1, 1, 1, 1, 4, 0, 0, 0, 4, 2 },
                       b[] = { 2, 1, 2, 0, 4, 0, 4, 4, 0, 3 };
    (void)state;
    give_ten(a, b);
    EXPECT_ALL("chunk=3", 4, 10, 9);          /* 3 tokens: one chunk */
    EXPECT_ALL("chunk=3", 7, 10, 6, 7, 8, 9); /* 6: two */
    EXPECT_ALL("chunk=3", 9, 10, 6, 7, 8, 9); /* 8: two, and nothing of a third */
    EXPECT_ALL("chunk=3", 10, 10, 3, 4, 5, 6, 7, 8, 9);
    EXPECT_ALL("chunk=3", 11, 10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    EXPECT_ALL("chunk=5", 3, 10, 0, 1); /* less than a chunk: the beginning of the best */
    given.first =
        1; /* chunks begin behind: 2 3 1 | 8 0 4 | 4 4 and 5: 2, 4 (tie: the earlier), 4 */
    given.last = 1;
    EXPECT_ALL("chunk=3", 6, 10, 0, 4, 5, 6, 9);
    EXPECT_ALL("chunk=3", 9, 10, 0, 4, 5, 6, 7, 8, 9);
}

/* protected=scored on the same scores, positions 0 and 9 protected: both have 5, one above the best of any
 * head, in each head.  Sums 10 2 3 | 1 8 0 | 4 4 4 | 10: means 5, 3, 4, 10.  Of 4 chunks floor(4 C / 10) stay. */
static void test_protected_tokens_are_scored(void **state)
{
    static const float a[] = { 1, 1, 1, 1, 4, 0, 0, 0, 4, 2 },
                       b[] = { 2, 1, 2, 0, 4, 0, 4, 4, 0, 3 };
    (void)state;
    give_ten(a, b);
    given.first = given.last = 1;
    EXPECT_ALL("chunk=3,protected=beside", 6, 10, 0, 4, 5, 6, 9);
    EXPECT_ALL("chunk=3,protected=scored", 6, 10, 0, 1, 2, 9);
    EXPECT_ALL("chunk=3,protected=scored", 9, 10, 0, 1, 2, 6, 7, 8, 9);
    EXPECT_ALL("chunk=3,protected=scored", 4, 10, 9); /* 1.2 chunks */
    /* Means 4, 4 and 7: the earlier chunk.  With the best score itself 0 would lose: 3.5, 4, 6. */
    EXPECT_ALL("chunk=4,protected=scored", 9, 10, 0, 1, 2, 3, 8, 9);
    /* Sums 24 and 22; 0.8 chunks are one, more than the 4 tokens of the budget, and 9 goes. */
    EXPECT_ALL("chunk=5,protected=scored", 5, 10, 0, 1, 2, 3, 4);
}

/* Scores of a window of two queries are sums over it, so that one above the best mean is two above the best: both protected
 * tokens have 6 in each head: means 0, 11/3, 4 and 12.  Where they are means it is one, 5 in each head, which leaves 10/3 to the third. */
static void test_protected_windows_score_as_means(void **state)
{
    static const float a[] = { 0, 0, 0, 4, 4, 0, 0, 0, 9, 9 },
                       b[] = { 0, 0, 0, 0, 3, 0, 0, 0, 9, 9 };
    (void)state;
    give_ten(a, b);
    given.last = given.n_summed = 2;
    EXPECT_ALL("chunk=3,protected=scored", 6, 10, 6, 7, 8, 9);
    given.n_summed = 0;
    EXPECT_ALL("chunk=3,protected=scored", 6, 10, 3, 4, 5, 9);
}

/* Chunks longer than the context: what the inner policy keeps, head by head. */
static void test_short_context_is_the_inner_policys(void **state)
{
    static const int32_t want[HEADS][5] = { { 0, 1, 4, 8, 9 }, { 0, 4, 6, 7, 9 } };
    const struct kvl_policy *composed;
    struct given_run g = { kvl_policy_chunkkv, "chunk=11,protected=scored", 6, 10 };
    (void)state; /* scores of the test before */
    struct rig_session rs = given_start(&rig, &g, &composed);
    for (int32_t l = 0; l < 2; l++)
        for (int32_t h = 0; h < HEADS; h++) rig_expect_kept(&rs, l, h, want[h], 5);
    rig_end(&rs);
    kvl_policy_decompose(composed);
}

/* Chunk by chunk, in double. */
static int32_t naive_kept(int32_t chunk, int32_t first, int32_t last, int32_t keep, int32_t *pos)
{
    int32_t m = N - first - last, n_chunks = (m + chunk - 1) / chunk, n = 0;
    double mean[N];
    uint8_t mark[N];
    for (int32_t c = 0; c < n_chunks; c++) {
        int32_t len = 0;
        mean[c] = 0;
        for (int32_t i = c * chunk; i < m && i < (c + 1) * chunk; i++, len++)
            for (int32_t h = 0; h < HEADS; h++) mean[c] += (double)given.score[h][first + i];
        mean[c] /= len;
    }
    record_top(mean, n_chunks, KVL_MIN(n_chunks, (keep - first - last) / chunk), mark);
    for (int32_t i = 0; i < N; i++)
        if (i < first || i >= N - last || mark[(i - first) / chunk]) pos[n++] = i;
    return n;
}

static void test_random_scores(void **state)
{
    struct kvl_rng rng;
    (void)state;
    kvl_rng_seed(&rng, 12);
    for (int32_t round = 0; round < 30; round++) {
        int32_t chunk = 1 + (int32_t)kvl_rng_below(&rng, 24), pos[N];
        char options[32];
        given.first = (int32_t)kvl_rng_below(&rng, 5);
        given.last = (int32_t)kvl_rng_below(&rng, 20);
        int32_t keep =
            given.first + given.last + chunk +
            (int32_t)kvl_rng_below(&rng, (uint32_t)(N - chunk - given.first - given.last));
        for (int32_t i = 0; i < HEADS * N; i++)
            given.score[i / N][i % N] = (float)kvl_rng_below(&rng, 1 << 20);
        snprintf(options, sizeof options, "chunk=%d", chunk);
        int32_t n = naive_kept(chunk, given.first, given.last, keep, pos);
        expect_all_keep(options, keep + 1, N, pos, n);
    }
}

/* Chunks of one token over one head: the inner policy. */
static void test_chunks_of_one_are_snapkv(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = 2, .n_kv_heads = 1, .seed = 8 } };
    const struct kvl_policy *composed;
    int32_t id[N + 4];
    struct rig r;
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N + 4, 6);
    RIG_OK(&r.err, kvl_policy_compose(kvl_policy_chunkkv, kvl_policy_snapkv, &composed, &r.err));
    struct rig_run run = {
        .policy = composed, .options = "chunk=1", .budget = 40, .id = id, .n_ctx = N, .n_steps = 4
    };
    float *a = rig_run(&r, &run);
    run.policy = kvl_policy_snapkv;
    run.options = "";
    float *b = rig_run(&r, &run);
    rig_expect_same(&r, a, b, 4, "chunks of one token");
    kvl_free(a);
    kvl_free(b);
    kvl_policy_decompose(composed);
    rig_close(&r);
}

static void test_lanes_with_budgets(void **state)
{
    (void)state;
    given_refuses(kvl_policy_chunkkv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lanes_with_budgets),
        cmocka_unit_test(test_worked_example),
        cmocka_unit_test(test_protected_tokens_are_scored),
        cmocka_unit_test(test_short_context_is_the_inner_policys),
        cmocka_unit_test(test_protected_windows_score_as_means),
        cmocka_unit_test(test_random_scores),
        cmocka_unit_test(test_chunks_of_one_are_snapkv),
    };
    return cmocka_run_group_tests(tests, open_rig, close_rig);
}
