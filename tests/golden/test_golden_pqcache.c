/* PQCache: the tokens that the policy reads against codes and scores worked out from the stored keys and
 * the query of every layer. */
#include "golden/clusters.h"

extern const struct kvl_policy *const kvl_policy_pqcache;

enum { N_CTX = 150, N_STEPS = 30, MAX_CODES = 64 };

struct pq_case {
    const char *options;
    int32_t budget, n_sub, n_codes, iters, sink, recent, topk;
    bool softmax;
};

/* Sizes by hand: 40 = 10 + 14 + 15 + current; 100 = 25 + 37 + 37 + current. */
static const struct pq_case cases[] = {
    { "", 40, 2, 64, 10, 10, 14, 15, true },
    { "n_subbits=4,max_iter=3", 40, 2, 16, 3, 10, 14, 15, true },
    { "n_subvec=4,n_subbits=3,group=sum", 40, 4, 8, 10, 10, 14, 15, false },
    { "n_subvec=1,sink_size=0", 33, 1, 64, 10, 0, 16, 16, true },
    { "sink_size=40,topk_size=20,n_subbits=5", 100, 2, 32, 10, 40, 39, 20, true },
    { "recent_size=5,n_subbits=3", 40, 2, 8, 10, 10, 5, 24, true },
    /* A sink that leaves the others what they were given: it took a quarter of the budget. */
    { "recent_size=10,topk_size=20,n_subbits=3", 33, 2, 8, 10, 2, 10, 20, true },
    { "topk_size=30,n_subbits=3", 36, 2, 8, 10, 4, 1, 30, true },
    { "offload=false,n_subbits=4", 100, 2, 16, 10, 25, 37, 37, true },
};

/* Codes of all keys: clusters are those of positions 32 .. N_CTX - 1. */
static void approximate(const struct pq_case *c, float k[][SEEN_DIM], int32_t n_tok,
                        double approx[][SEEN_DIM])
{
    static struct lloyd l;
    int32_t dim = SEEN_DIM / c->n_sub;
    for (int32_t s = 0; s < c->n_sub; s++) {
        l.n = N_CTX - 32;
        l.dim = dim;
        l.k = c->n_codes;
        for (int32_t i = 0; i < l.n; i++)
            for (int32_t j = 0; j < dim; j++) l.x[i][j] = (double)k[32 + i][s * dim + j];
        lloyd_run(&l, c->iters, false);
        for (int32_t i = 0; i < n_tok; i++) {
            double x[SEEN_DIM];
            for (int32_t j = 0; j < dim; j++) x[j] = (double)k[i][s * dim + j];
            memcpy(approx[i] + s * dim, l.mean[lloyd_nearest(&l, x, false)],
                   (size_t)dim * sizeof approx[i][0]);
        }
    }
}

static void expected(const struct pq_case *c, const float *q, int32_t group,
                     double approx[][SEEN_DIM], uint8_t *want)
{
    double sum[SEEN_TOK] = { 0 }, row[SEEN_TOK];
    uint8_t mark[SEEN_TOK];
    int32_t n = seen.pos - c->recent - c->sink;
    for (int32_t g = 0; g < group; g++) {
        for (int32_t i = 0; i < n; i++) row[i] = scaled_dot(q + g * SEEN_DIM, approx[c->sink + i]);
        if (c->softmax) softmax_of(row, n);
        for (int32_t i = 0; i < n; i++) sum[i] += row[i];
    }
    record_top(sum, n, c->topk, mark);
    for (int32_t i = 0; i <= seen.pos; i++)
        want[i] = i < c->sink || i >= c->sink + n || mark[i - c->sink];
}

static void check_step(struct rig *r, const struct rig_session *rs, const struct pq_case *c)
{
    const struct kvl_shape *sh = rig_shape(r);
    int32_t group = sh->n_heads / sh->n_kv_heads;
    float k[SEEN_TOK][SEEN_DIM];
    double approx[SEEN_TOK][SEEN_DIM];
    uint8_t want[SEEN_TOK];
    for (int32_t layer = 0; layer < sh->n_layers; layer++)
        for (int32_t h = 0; h < sh->n_kv_heads; h++) {
            stored_rows(r, rs, layer, h, KVL_PART_K, seen.pos + 1, k);
            approximate(c, k, seen.pos + 1, approx);
            expected(c, seen.q[layer] + h * group * SEEN_DIM, group, approx, want);
            for (int32_t g = 0; g < group; g++) expect_read(layer, h * group + g, want, c->options);
        }
}

static void test_reads_the_best_of_the_codes(void **state)
{
    int32_t id[N_CTX + N_STEPS];
    (void)state;
    for (uint32_t kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
        struct rig_desc desc = { .llama = { .n_layers = 3, .n_kv_heads = kv_heads, .seed = 9 } };
        struct rig r;
        rig_open(&r, &desc);
        rig_tokens(id, N_CTX + N_STEPS, 6);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct rig_run run = { .policy = kvl_policy_pqcache,
                                   .options = cases[i].options,
                                   .budget = cases[i].budget,
                                   .id = id,
                                   .n_ctx = N_CTX };
            struct rig_session rs = rig_start(&r, &run);
            seen_decode(&r, &rs, id + N_CTX, 1);
            check_step(&r, &rs, &cases[i]);
            seen_decode(&r, &rs, id + N_CTX + 1, N_STEPS - 1);
            check_step(&r, &rs, &cases[i]);
            const struct kvl_counters *n = kvl_session_counters(rs.s);
            assert_int_equal(n->attended_tok, (int64_t)cases[i].budget * n->attended_lanes);
            rig_end(&rs);
        }
        rig_close(&r);
    }
}

/* Codes and centroids that a step reads: 2 bytes for each token before the recent ones, and 64 centroids,
 * for each of 2 kv heads. */
static void test_counts_what_it_reads(void **state)
{
    int32_t id[N_CTX + 2];
    struct rig_desc desc = { .llama = { .n_layers = 2, .n_kv_heads = 2, .seed = 9 } };
    struct rig r;
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_CTX + 2, 6);
    struct rig_run run = { .policy = kvl_policy_pqcache, .budget = 40, .id = id, .n_ctx = N_CTX };
    struct rig_session rs = rig_start(&r, &run);
    kvl_session_reset_counters(rs.s);
    seen_decode(&r, &rs, id + N_CTX, 1);
    int64_t codes = 2 * (N_CTX - 14), centroids = 64 * 16 * 4;
    assert_int_equal(kvl_session_counters(rs.s)->index_read_bytes, 2 * 2 * (codes + centroids));
    rig_end(&rs);
    rig_close(&r);
}

static void test_refuses_what_cannot_be(void **state)
{
    static const struct {
        const char *options, *why;
        int32_t budget;
    } bad[] = { { "n_subvec=3", "divisor of the head dimension, 16", 64 },
                { "sink_size=60,recent_size=10", "at least 72", 64 },
                { "offload=false", "no budget with these options", 0 } };
    struct kvl_shape shape = { 2, 4, 2, 16, 64, 99, 0, 2, NULL, 0.25f, 0, NULL };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvl_planned *p = NULL;
        struct kvl_err err = { 0 };
        assert_int_equal(kvl_planned_create(kvl_policy_pqcache, &shape, bad[i].options,
                                            bad[i].budget, 1000, &p, &err),
                         KVL_EINVAL);
        if (!strstr(err.msg, bad[i].why)) fail_msg("%s", err.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_the_best_of_the_codes),
        cmocka_unit_test(test_counts_what_it_reads),
        cmocka_unit_test(test_refuses_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
