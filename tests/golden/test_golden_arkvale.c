/* ArkVale: the digest and score of a hand-computed page, the pages that the policy reads against pages
 * worked out from recorded queries, what it recalls. */
#include "golden/record.h"

extern const struct kvl_policy *const kvl_policy_arkvale;

static const struct kvl_ops *const tables[] = { &kvl_ops_ref, &kvl_ops_cpu };

/* Quest's first page: c = (.5, -.5, .5, 1), r = (1, 1, .875, 1.25); the score is below the largest
 * product, 8.25: no bound. */
static void test_digest_and_score(void **state)
{
    static const float k[4][4] = {
        { 1, -2, .5f, 3 }, { 0, -1, 2, -1 }, { 2, 1, -1, 0 }, { -1, 0, 1, 1 }
    };
    static const float q[] = { 1, -2, .5f, 1 };
    static const float want[] = { -.5f, -1.5f, -.375f, -.25f, 1.5f, .5f, 1.375f, 2.25f };
    (void)state;
    for (int t = 0; t < 2; t++) {
        float digest[8], score = 0;
        assert_int_equal(
            tables[t]->page_digest(&(struct kvl_page_digest_args){
                .digest = digest, .k = k[0], .n_pages = 1, .page_tok = 4, .head_dim = 4 }),
            KVL_OK);
        for (int i = 0; i < 8; i++) assert_float_equal((double)digest[i], (double)want[i], 1e-6);
        assert_int_equal(tables[t]->page_bound(&(struct kvl_page_bound_args){ .bound = &score,
                                                                              .q = q,
                                                                              .minmax = digest,
                                                                              .n_pages = 1,
                                                                              .n_heads = 1,
                                                                              .n_kv_heads = 1,
                                                                              .head_dim = 4 }),
                         KVL_OK);
        assert_float_equal((double)score, 7.4375, 1e-6);
    }
}

/* ---- the policy --------------------------------------------------------------------------------- */

enum { N_CTX = 300, N_STEPS = 40, HEAD_DIM = 16, MAX_PAGES = N_CTX + N_STEPS };

struct arkvale_case {
    const char *options;
    int32_t page, topks, sink, window;
    enum kvl_reduce reduce;
};

static double score_of(const float *q, const float *k, int32_t n)
{
    double sum = 0;
    for (int32_t c = 0; c < HEAD_DIM; c++) {
        double min = HUGE_VAL, max = -HUGE_VAL, radius = 0;
        for (int32_t i = 0; i < n; i++) {
            min = fmin(min, (double)k[i * HEAD_DIM + c]);
            max = fmax(max, (double)k[i * HEAD_DIM + c]);
        }
        double centre = (min + max) / 2;
        for (int32_t i = 0; i < n; i++) radius += fabs((double)k[i * HEAD_DIM + c] - centre) / n;
        double x = (double)q[c];
        sum += fmax(x * (centre + radius), x * (centre - radius));
    }
    return sum;
}

/* Marks what one list reads: sink and window, and the best of the others. */
static void add_pages(const struct arkvale_case *c, double *score, int32_t n_pages, uint8_t *pages)
{
    uint8_t mark[MAX_PAGES];
    for (int32_t p = 0; p < n_pages; p++)
        if (p < c->sink || p >= n_pages - c->window) score[p] = HUGE_VAL;
    record_top(score, n_pages, c->topks, mark);
    for (int32_t p = 0; p < n_pages; p++) pages[p] |= mark[p];
}

static void expected_pages(const float *q, const float *k, int32_t n_tok, int32_t group,
                           const struct arkvale_case *c, uint8_t *pages)
{
    double total[MAX_PAGES] = { 0 };
    int32_t n_pages = KVL_MAX(1, (n_tok + c->page - 1) / c->page);
    memset(pages, 0, (size_t)n_pages);
    for (int32_t g = 0; g < group; g++) {
        double row[MAX_PAGES];
        for (int32_t p = 0; p < n_pages; p++) {
            row[p] = score_of(q + g * HEAD_DIM, k + (size_t)(p * c->page) * HEAD_DIM,
                              KVL_MIN(c->page, n_tok - p * c->page));
            bool larger = c->reduce == KVL_REDUCE_MAX && g > 0;
            total[p] = larger ? fmax(total[p], row[p]) : total[p] + row[p];
        }
        if (c->reduce == KVL_REDUCE_NONE) add_pages(c, row, n_pages, pages);
    }
    if (c->reduce != KVL_REDUCE_NONE) add_pages(c, total, n_pages, pages);
}

static void check_layer(struct rig *r, const int32_t *id, int32_t layer, int32_t n_before,
                        const struct arkvale_case *c)
{
    const struct kvl_shape *sh = rig_shape(r);
    int32_t group = sh->n_heads / sh->n_kv_heads, n_tok = N_CTX + n_before + 1;
    char options[160];
    uint8_t pages[MAX_PAGES];
    float *k = rig_floats((N_CTX + N_STEPS) * HEAD_DIM), *logits = rig_logits(r, N_STEPS);
    snprintf(options, sizeof options, "dense_layers=%d,%s", layer, c->options);
    struct rig_run run = { .policy = kvl_policy_arkvale,
                           .options = options,
                           .budget = c->topks * c->page + c->page - 1,
                           .id = id,
                           .n_ctx = N_CTX };
    struct rig_session rs = rig_start(r, &run);
    rig_decode(r, &rs, id + N_CTX, n_before, logits);
    const uint8_t *hit = rig_decode_probed(r, &rs, id[N_CTX + n_before], logits);
    for (int32_t h = 0; h < sh->n_kv_heads; h++) {
        record_keys(r, &rs, layer, h, n_tok, k);
        expected_pages(record.q[n_before][layer] + h * group * HEAD_DIM, k, n_tok, group, c, pages);
        const uint8_t *row = hit + (size_t)(layer * sh->n_kv_heads + h) * (size_t)n_tok;
        for (int32_t i = 0; i < n_tok; i++)
            if (row[i] != pages[i / c->page])
                fail_msg("%s: layer %d head %d position %d is %sread", options, layer, h, i,
                         row[i] ? "" : "not ");
    }
    const struct kvl_counters *n = kvl_session_counters(rs.s);
    assert_int_equal(n->h2d_bytes,
                     n->cache_misses * c->page * 2 * HEAD_DIM * (int64_t)sizeof(float));
    rig_end(&rs);
    kvl_free(k);
    kvl_free(logits);
}

static const struct arkvale_case cases[] = {
    { "page_size=16", 16, 7, 2, 2, KVL_REDUCE_SUM },
    { "page_size=16,reduce=max", 16, 7, 2, 2, KVL_REDUCE_MAX },
    { "page_size=16,reduce=none,replace=lru", 16, 6, 2, 2, KVL_REDUCE_NONE },
    { "page_size=32", 32, 5, 2, 2, KVL_REDUCE_SUM },
    { "page_size=9,sink=0,window=1,replace=lfu", 9, 4, 0, 1, KVL_REDUCE_SUM },
    { "page_size=1,sink=3,window=5", 1, 20, 3, 5, KVL_REDUCE_SUM },
    { "page_size=7,page_topks=9,page_budgets=9", 7, 9, 2, 2, KVL_REDUCE_SUM },
};

static void test_policy_reads_the_pages_of_largest_score(void **state)
{
    int32_t id[N_CTX + N_STEPS];
    (void)state;
    for (uint32_t kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
        struct rig_desc desc = { .llama = { .n_layers = 3, .n_kv_heads = kv_heads, .seed = 9 } };
        struct rig r;
        rig_open(&r, &desc);
        rig_tokens(id, N_CTX + N_STEPS, 6);
        record_run(&r, id, N_CTX, N_STEPS, 0);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            for (int32_t layer = 0; layer < 3; layer += 2) {
                check_layer(&r, id, layer, 0, &cases[i]);
                check_layer(&r, id, layer, N_STEPS - 1, &cases[i]);
            }
        rig_close(&r);
    }
}

/* How many pages are on the device, and who leaves: answers stay, bytes do not. */
static void test_pages_on_the_device(void **state)
{
    static const char *const options[] = { "page_size=8,page_budgets=200",
                                           "page_size=8,page_budgets=8",
                                           "page_size=8,page_budgets=10,replace=lru",
                                           "page_size=8,page_budgets=10,replace=lfu" };
    int32_t id[N_CTX + N_STEPS];
    struct rig r;
    int64_t least = 0;
    float *want = NULL;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 2, .seed = 9 } });
    rig_tokens(id, N_CTX + N_STEPS, 6);
    for (int i = 0; i < 4; i++) {
        struct rig_run run = { .policy = kvl_policy_arkvale,
                               .options = options[i],
                               .budget = 64,
                               .id = id,
                               .n_ctx = N_CTX };
        struct rig_session rs = rig_start(&r, &run);
        float *got = rig_logits(&r, N_STEPS);
        rig_decode(&r, &rs, id + N_CTX, N_STEPS, got);
        const struct kvl_counters *c = kvl_session_counters(rs.s);
        assert_int_equal(c->cache_hits + c->cache_misses, N_STEPS * 4 * 4); /* of 8, 4 are here */
        assert_true(i == 0 || c->cache_misses > least);
        if (i > 0) rig_expect_same(&r, want, got, N_STEPS, options[i]);
        int64_t pages = i == 0 ? 200 : i == 1 ? 8 : 10;
        assert_true(i == 0 || c->device_peak_bytes <= 4 * pages * 8 * 3 * HEAD_DIM * 4);
        if (i == 0) least = c->cache_misses;
        if (i > 0) kvl_free(got);
        if (i == 0) want = got;
        rig_end(&rs);
    }
    kvl_free(want);
    rig_close(&r);
}

static void expect_refused(const struct rig *r, const char *options, int32_t budget,
                           const char *what)
{
    struct kvl_planned *p = NULL;
    struct kvl_err err = { 0 };
    assert_int_equal(
        kvl_planned_create(kvl_policy_arkvale, rig_shape(r), options, budget, N_CTX, &p, &err),
        KVL_EINVAL);
    if (!strstr(err.msg, what)) fail_msg("\"%s\", want \"%s\" in it", err.msg, what);
}

static void test_refusals(void **state)
{
    struct rig r;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 2, .seed = 9 } });
    expect_refused(&r, "", 159, "at least 160");
    expect_refused(&r, "page_topks=4", 500, "give a budget of 160");
    expect_refused(&r, "page_budgets=5", 500, "page_budgets=5; a step reads 15 pages");
    expect_refused(&r, "dense_layers=2", 500, "dense_layers=2; the model has 2 layers");
    expect_refused(&r, "reduce=none", 500, "replace=lru");
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digest_and_score),
        cmocka_unit_test(test_policy_reads_the_pages_of_largest_score),
        cmocka_unit_test(test_pages_on_the_device),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
