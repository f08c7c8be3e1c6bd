/* Quest: the bounds of a hand-computed example through the operators, the bound's promises on random
 * keys, and the pages that the policy reads against pages worked out from recorded queries. */
#include "golden/record.h"

static const struct kvl_ops *const tables[] = { &kvl_ops_ref, &kvl_ops_cpu };
enum { N_TABLES = 2, D = 4, S = 4, N_TOK = 14, N_PAGES = 4 };

static const float keys[N_TOK][D] = {
    { 1, -2, .5f, 3 }, { 0, -1, 2, -1 }, { 2, 1, -1, 0 }, { -1, 0, 1, 1 },  { .5f, .5f, .5f, .5f },
    { -3, 2, 0, 1 },   { 1, 1, 1, 1 },   { 0, 0, 0, 0 },  { 4, -1, -2, 0 }, { -4, 1, 2, 0 },
    { 3, 3, -3, -3 },  { -3, -3, 3, 3 }, { 1, 0, 0, 2 },  { 0, 1, 0, -2 },
};
static const float minmax_want[N_PAGES][2][D] = {
    { { -1, -2, -1, -1 }, { 2, 1, 2, 3 } },
    { { -3, 0, 0, 0 }, { 1, 2, 1, 1 } },
    { { -4, -3, -3, -3 }, { 4, 3, 3, 3 } },
    { { 0, 0, 0, -2 }, { 1, 1, 0, 2 } },
};
static const float q_head0[D] = { 1, -2, .5f, 1 }, q_head1[D] = { -1, 1, 2, 0 };

static void minmax(const struct kvl_ops *ops, float *out, const float *k, int32_t pos0, int32_t n,
                   int32_t page_tok)
{
    assert_int_equal(ops->page_minmax(&(struct kvl_page_minmax_args){ .minmax = out,
                                                                      .k = k,
                                                                      .pos0 = pos0,
                                                                      .n = n,
                                                                      .n_kv_heads = 1,
                                                                      .head_dim = D,
                                                                      .page_tok = page_tok }),
                     KVL_OK);
}

static void bound(const struct kvl_ops *ops, float *out, const float *q, int32_t n_heads,
                  const float *mm, int32_t n_pages, enum kvl_reduce reduce)
{
    assert_int_equal(ops->page_bound(&(struct kvl_page_bound_args){ .bound = out,
                                                                    .q = q,
                                                                    .minmax = mm,
                                                                    .n_pages = n_pages,
                                                                    .n_heads = n_heads,
                                                                    .n_kv_heads = 1,
                                                                    .head_dim = D,
                                                                    .reduce = reduce }),
                     KVL_OK);
}

static void expect_floats(const float *got, const float *want, int32_t n)
{
    for (int32_t i = 0; i < n; i++) assert_float_equal((double)got[i], (double)want[i], 1e-6);
}

/* In one call, token by token, and in chunks that cut pages: the same table, garbage before. */
static void test_minmax_does_not_depend_on_chunks(void **state)
{
    (void)state;
    for (int t = 0; t < N_TABLES; t++)
        for (int32_t chunk = 1; chunk <= N_TOK; chunk++) {
            float mm[N_PAGES * 2 * D];
            for (int i = 0; i < N_PAGES * 2 * D; i++) mm[i] = 1e9f;
            for (int32_t at = 0; at < N_TOK; at += chunk)
                minmax(tables[t], mm, keys[at], at, KVL_MIN(chunk, N_TOK - at), S);
            assert_memory_equal(mm, minmax_want, sizeof minmax_want);
        }
}

static void test_bounds_and_reductions(void **state)
{
    float q[2 * D], got[2 * N_PAGES];
    const float *mm = &minmax_want[0][0][0];
    (void)state;
    memcpy(q, q_head0, sizeof q_head0);
    memcpy(q + D, q_head1, sizeof q_head1);
    for (int t = 0; t < N_TABLES; t++) {
        bound(tables[t], got, q, 2, mm, N_PAGES, KVL_REDUCE_NONE);
        expect_floats(got, (float[]){ 10, 2.5f, 14.5f, 3, 6, 7, 13, 1 }, 8);
        bound(tables[t], got, q, 2, mm, N_PAGES, KVL_REDUCE_SUM);
        expect_floats(got, (float[]){ 16, 9.5f, 27.5f, 4 }, 4);
        bound(tables[t], got, q, 2, mm, N_PAGES, KVL_REDUCE_MAX);
        expect_floats(got, (float[]){ 10, 7, 14.5f, 3 }, 4);
        bound(tables[t], got, q, 2, mm, N_PAGES, KVL_REDUCE_MEAN_Q);
        expect_floats(got, (float[]){ 5, 1.75f, 6.75f, 1 }, 4);
    }
}

/* Opposite query heads: averaging queries leaves nothing to rank by. */
static void test_opposite_heads_cancel(void **state)
{
    float q[2 * D], got[2 * N_PAGES];
    (void)state;
    for (int c = 0; c < D; c++) {
        q[c] = q_head0[c];
        q[D + c] = -q_head0[c];
    }
    for (int t = 0; t < N_TABLES; t++) {
        const float *mm = &minmax_want[0][0][0];
        bound(tables[t], got, q, 2, mm, N_PAGES, KVL_REDUCE_NONE);
        expect_floats(got, (float[]){ 10, 2.5f, 14.5f, 3, 4.5f, 7, 14.5f, 4 }, 8);
        bound(tables[t], got, q, 2, mm, N_PAGES, KVL_REDUCE_MEAN_Q);
        expect_floats(got, (float[]){ 0, 0, 0, 0 }, 4);
    }
}

/* A page of one token is bounded by its own dot product; a partial page grows token by token. */
static void test_small_pages(void **state)
{
    float mm[2 * D], got;
    (void)state;
    for (int t = 0; t < N_TABLES; t++) {
        minmax(tables[t], mm, keys[0], 0, 1, 1);
        bound(tables[t], &got, q_head0, 1, mm, 1, KVL_REDUCE_SUM);
        expect_floats(&got, (float[]){ 8.25f }, 1);
        minmax(tables[t], mm, keys[12], 0, 1, S);
        bound(tables[t], &got, q_head0, 1, mm, 1, KVL_REDUCE_SUM);
        expect_floats(&got, (float[]){ 3 }, 1);
        minmax(tables[t], mm, keys[13], 1, 1, S);
        bound(tables[t], &got, q_head0, 1, mm, 1, KVL_REDUCE_SUM);
        expect_floats(&got, (float[]){ 3 }, 1);
    }
}

static float random_value(struct kvl_rng *rng)
{
    return (float)(4 * kvl_rng_f64(rng) - 2);
}

static double dot(const float *a, const float *b)
{
    double sum = 0;
    for (int c = 0; c < D; c++) sum += (double)a[c] * (double)b[c];
    return sum;
}

static void test_no_key_exceeds_its_bound(void **state)
{
    enum { N = 64 };
    struct kvl_rng rng;
    float k[N][D], q[D], mm[N * 2 * D], got[N];
    (void)state;
    kvl_rng_seed(&rng, 1);
    for (int round = 0; round < 200; round++) {
        int32_t page = 1 + (int32_t)kvl_rng_below(&rng, 16), n_pages = (N + page - 1) / page;
        for (int i = 0; i < N; i++)
            for (int c = 0; c < D; c++) k[i][c] = random_value(&rng);
        for (int c = 0; c < D; c++) q[c] = random_value(&rng);
        const struct kvl_ops *ops = tables[round % N_TABLES];
        minmax(ops, mm, k[0], 0, N, page);
        bound(ops, got, q, 1, mm, n_pages, KVL_REDUCE_MAX);
        for (int32_t i = 0; i < N; i++) {
            double room = (double)got[i / page] - dot(q, k[i]);
            assert_true(room > -1e-5 && (page > 1 || room < 1e-5));
        }
    }
}

/* ---- the policy ----------------------------------------------------------------------------------- */

extern const struct kvl_policy *const kvl_policy_quest;

enum { N_CTX = 200, N_STEPS = 40, HEAD_DIM = 16, MAX_PAGES = N_CTX + N_STEPS };

struct quest_case {
    const char *options; /* after dense_layers */
    int32_t page, budget;
    enum kvl_reduce reduce;
};

static double page_bound_of(const float *q, const float *k, int32_t first, int32_t n)
{
    double sum = 0;
    for (int32_t c = 0; c < HEAD_DIM; c++) {
        double best = -HUGE_VAL;
        for (int32_t i = first; i < first + n; i++)
            best = fmax(best, (double)q[c] * (double)k[i * HEAD_DIM + c]);
        sum += best;
    }
    return sum;
}

/* Bounds of one query head (or of the group's mean query) for every page. */
static void bounds_of(const float *q, const float *k, int32_t n_tok, int32_t page, double *out)
{
    for (int32_t p = 0; p * page < n_tok; p++)
        out[p] = page_bound_of(q, k, p * page, KVL_MIN(page, n_tok - p * page));
}

static void mean_query(const float *q, int32_t group, float *out)
{
    for (int32_t c = 0; c < HEAD_DIM; c++) {
        out[c] = 0;
        for (int32_t g = 0; g < group; g++) out[c] += q[g * HEAD_DIM + c];
        out[c] /= (float)group;
    }
}

/* The chosen pages of one score row: the newest, and the best of the others. */
static void add_pages(double *score, int32_t n_pages, int32_t k, uint8_t *pages)
{
    uint8_t mark[MAX_PAGES];
    score[n_pages - 1] = HUGE_VAL;
    record_top(score, n_pages, KVL_MIN(k, n_pages), mark);
    for (int32_t p = 0; p < n_pages; p++) pages[p] |= mark[p];
}

static void expected_pages(const float *q, const float *k, int32_t n_tok, int32_t group,
                           const struct quest_case *c, uint8_t *pages)
{
    double row[MAX_PAGES], total[MAX_PAGES];
    float mean[HEAD_DIM];
    int32_t n_pages = (n_tok + c->page - 1) / c->page, n_keep = c->budget / c->page;
    memset(pages, 0, (size_t)n_pages);
    if (c->reduce == KVL_REDUCE_MEAN_Q) {
        mean_query(q, group, mean);
        q = mean;
        group = 1;
    }
    for (int32_t g = 0; g < group; g++) {
        bounds_of(q + g * HEAD_DIM, k, n_tok, c->page, row);
        if (c->reduce == KVL_REDUCE_NONE) add_pages(row, n_pages, n_keep, pages);
        for (int32_t p = 0; p < n_pages; p++) {
            double other = g == 0 ? 0 : total[p];
            bool larger = c->reduce == KVL_REDUCE_MAX && g > 0;
            total[p] = larger ? fmax(other, row[p]) : other + row[p];
        }
    }
    if (c->reduce != KVL_REDUCE_NONE) add_pages(total, n_pages, n_keep, pages);
}

/* The first selecting layer sees the same queries and keys as a dense run, in the first step and
 * after `n_before` others. */
static void check_layer(struct rig *r, const int32_t *id, int32_t layer, int32_t n_before,
                        const struct quest_case *c)
{
    const struct kvl_shape *sh = rig_shape(r);
    int32_t group = sh->n_heads / sh->n_kv_heads;
    char options[128];
    uint8_t pages[MAX_PAGES];
    float *k = rig_floats((N_CTX + N_STEPS) * HEAD_DIM), *logits = rig_logits(r, N_STEPS);
    int32_t n_tok = N_CTX + n_before + 1;
    snprintf(options, sizeof options, "dense_layers=%d,%s", layer, c->options);
    struct rig_run run = { .policy = kvl_policy_quest,
                           .options = options,
                           .budget = c->budget,
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
    rig_end(&rs);
    kvl_free(k);
    kvl_free(logits);
}

static const struct quest_case cases[] = {
    { "reduce=sum", 16, 64, KVL_REDUCE_SUM },       { "reduce=max", 16, 64, KVL_REDUCE_MAX },
    { "reduce=mean_q", 16, 64, KVL_REDUCE_MEAN_Q }, { "reduce=none", 16, 64, KVL_REDUCE_NONE },
    { "page=8,reduce=sum", 8, 47, KVL_REDUCE_SUM }, /* 5 pages: the budget is rounded down */
    { "page=5,reduce=max", 5, 10, KVL_REDUCE_MAX }, /* pages across the store's blocks */
    { "page=1,reduce=sum", 1, 20, KVL_REDUCE_SUM },
};

static void test_policy_reads_the_pages_of_largest_bound(void **state)
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
            for (int32_t layer = 0; layer < 3; layer++) {
                check_layer(&r, id, layer, 0, &cases[i]);
                check_layer(&r, id, layer, N_STEPS - 1, &cases[i]);
            }
        rig_close(&r);
    }
}

/* Kernel path: T = 64 is the newest page and 3 more, T = 32 the newest and 1; attended at most T. */
static void test_budget_counts_the_newest_page(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = 2, .seed = 9 } };
    struct rig r;
    int32_t id[N_CTX + 24];
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_CTX + 24, 6);
    for (int32_t budget = 32; budget <= 64; budget += 32) {
        struct rig_run run = { .policy = kvl_policy_quest,
                               .options = "dense_layers=1",
                               .budget = budget,
                               .id = id,
                               .n_ctx = N_CTX };
        struct rig_session rs = rig_start(&r, &run);
        float *logits = rig_logits(&r, 1);
        for (int32_t i = 0; i < 24; i++) {
            kvl_session_reset_counters(rs.s);
            rig_decode(&r, &rs, id + N_CTX + i, 1, logits);
            const struct kvl_counters *n = kvl_session_counters(rs.s);
            int32_t in_last = (N_CTX + i) % 16 + 1;
            assert_int_equal(n->attended_lanes, 2);
            assert_int_equal(n->attended_tok, 2 * (budget - 16 + in_last));
            assert_int_equal(n->dense_tok, 2 * (N_CTX + i + 1));
        }
        kvl_free(logits);
        rig_end(&rs);
    }
    rig_close(&r);
}

/* One query head per kv head: all reductions are the same method. */
static void test_reductions_agree_without_groups(void **state)
{
    static const char *const options[] = { "reduce=none", "reduce=sum", "reduce=max",
                                           "reduce=mean_q" };
    struct rig_desc desc = { .llama = { .n_layers = 3, .n_kv_heads = 4, .seed = 5 } };
    struct rig r;
    int32_t id[N_CTX + N_STEPS];
    float *first = NULL;
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_CTX + N_STEPS, 8);
    for (int i = 0; i < 4; i++) {
        struct rig_run run = { .policy = kvl_policy_quest,
                               .options = options[i],
                               .budget = 48,
                               .id = id,
                               .n_ctx = N_CTX,
                               .n_steps = N_STEPS };
        float *logits = rig_run(&r, &run);
        if (first) rig_expect_near(&r, first, logits, N_STEPS, 1e-5, options[i]);
        if (first) kvl_free(logits);
        if (!first) first = logits;
    }
    kvl_free(first);
    rig_close(&r);
}

/* dense_layers=auto: 2 of 8 layers and more, a quarter below. */
static void test_dense_layers_follow_the_depth(void **state)
{
    static const struct {
        int32_t n_layers;
        const char *want;
    } cases_auto[] = {
        { 2, "dense_layers=0" }, { 4, "dense_layers=1" },  { 7, "dense_layers=1" },
        { 8, "dense_layers=2" }, { 32, "dense_layers=2" }, { 80, "dense_layers=2" }
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases_auto / sizeof cases_auto[0]; i++) {
        struct kvl_shape shape = { .n_layers = cases_auto[i].n_layers,
                                   .n_heads = 4,
                                   .n_kv_heads = 2,
                                   .head_dim = 16,
                                   .group = 2,
                                   .n_embd = 64,
                                   .n_vocab = 99 };
        struct kvl_planned *p;
        struct kvl_err err = { 0 };
        RIG_OK(&err, kvl_planned_create(kvl_policy_quest, &shape, "", 64, 1000, &p, &err));
        if (!strstr(kvl_planned_options(p), cases_auto[i].want))
            fail_msg("%d layers: %s", cases_auto[i].n_layers, kvl_planned_options(p));
        kvl_planned_destroy(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_minmax_does_not_depend_on_chunks),
        cmocka_unit_test(test_bounds_and_reductions),
        cmocka_unit_test(test_opposite_heads_cancel),
        cmocka_unit_test(test_small_pages),
        cmocka_unit_test(test_no_key_exceeds_its_bound),
        cmocka_unit_test(test_policy_reads_the_pages_of_largest_bound),
        cmocka_unit_test(test_budget_counts_the_newest_page),
        cmocka_unit_test(test_reductions_agree_without_groups),
        cmocka_unit_test(test_dense_layers_follow_the_depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
