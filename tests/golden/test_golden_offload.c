/* Methods whose cache lies on the host when asked to: the same bits, and what they fetch. */
#include "conformance/rig.h"

extern const struct kvl_policy *const kvl_policy_quest, *const kvl_policy_infllm,
                                                            *const kvl_policy_ktransformers;

enum { N_CTX = 300, N_STEPS = 40, HEAD_DIM = 16 };

static int32_t id[N_CTX + N_STEPS];

static void open_rig(struct rig *r)
{
    rig_open(r, &(struct rig_desc){ .llama = { .n_layers = 3, .seed = 9 } });
    rig_tokens(id, N_CTX + N_STEPS, 6);
}

/* Runs `options`, then with offload=true added; the second session goes on. */
static struct rig_session both(struct rig *r, const struct kvl_policy *policy, const char *options)
{
    char more[160];
    snprintf(more, sizeof more, "%s,offload=true", options);
    struct rig_run run = { .policy = policy,
                           .options = options,
                           .budget = 96,
                           .id = id,
                           .n_ctx = N_CTX,
                           .n_steps = N_STEPS };
    float *want = rig_run(r, &run), *got = rig_logits(r, N_STEPS);
    run.options = more;
    struct rig_session rs = rig_start(r, &run);
    rig_decode(r, &rs, id + N_CTX, N_STEPS, got);
    rig_expect_same(r, want, got, N_STEPS, more);
    kvl_free(want);
    kvl_free(got);
    return rs;
}

static void test_quest(void **state)
{
    static const char *const options[] = { "page=16", "page=7,dense_layers=2", "reduce=none" };
    struct rig r;
    (void)state;
    open_rig(&r);
    for (int i = 0; i < 3; i++) {
        int32_t page = i == 1 ? 7 : 16, dense = i == 1 ? 2 : 0, layers = 3 - dense;
        struct rig_session rs = both(&r, kvl_policy_quest, options[i]);
        const struct kvl_counters *c = kvl_session_counters(rs.s);
        int64_t slot = 2 * HEAD_DIM * 4, full = (N_CTX + N_STEPS - 1) / page * page;
        assert_int_equal(c->host_bytes, 2 * layers * slot * full);
        assert_int_equal(c->h2d_bytes, c->cache_misses * page * slot);
        /* Every step reads K - 1 pages of the host, a list per kv head; the newest page, once full, is
         * one of them until the next token comes. */
        int64_t most = (int64_t)2 * layers * (96 / page) * N_STEPS;
        if (i < 2) assert_true(c->cache_hits + c->cache_misses <= most);
        if (i < 2) assert_true(c->cache_hits + c->cache_misses >= most - 2 * layers * N_STEPS);
        rig_end(&rs);
    }
    rig_close(&r);
}

static double reported[2];

static void collect(void *user, const char *name, double value)
{
    (void)user;
    if (strcmp(name, "cache_hits") == 0) reported[0] = value;
    if (strcmp(name, "cache_misses") == 0) reported[1] = value;
}

/* The cache that is executed is the one that is counted. */
static void test_infllm(void **state)
{
    static const char *const options[] = { "block_size=8,n_init=5,topk=4,max_cached_block=4",
                                           "block_size=8,n_init=5,topk=4,max_cached_block=9",
                                           "block_size=5,n_init=7,position=original" };
    struct rig r;
    (void)state;
    open_rig(&r);
    for (int i = 0; i < 3; i++) {
        struct rig_session rs = both(&r, kvl_policy_infllm, options[i]);
        const struct kvl_counters *c = kvl_session_counters(rs.s);
        RIG_OK(&r.err, kvl_session_report(rs.s, &(struct kvl_report_to){ .num = collect }, &r.err));
        assert_true(reported[1] > 0);
        assert_true((double)c->cache_hits == 2 * reported[0]); /* both kv heads read the list */
        assert_true((double)c->cache_misses == 2 * reported[1]);
        assert_int_equal(c->h2d_bytes,
                         c->cache_misses * (i == 2 ? 5 : 8) * 2 * HEAD_DIM * (int64_t)4);
        rig_end(&rs);
    }
    struct kvl_planned *p = NULL;
    assert_int_equal(kvl_planned_create(kvl_policy_infllm, rig_shape(&r),
                                        "cache=lru_s,offload=true", 96, N_CTX, &p, &r.err),
                     KVL_EINVAL);
    assert_non_null(strstr(r.err.msg, "give cache=lru"));
    rig_close(&r);
}

/* Blocks that are neither the first ones nor local, and not the current one's, live on the host. */
static void test_ktransformers(void **state)
{
    static const char *const options[] = {
        "block_size=8,init_block_num=2,local_windows_len=20,second_block_count=3",
        "block_size=16,init_block_num=0,local_windows_len=0,second_block_count=2,dense_layer_num=1,"
        "head_select_mode=SEPARATE"
    };
    struct rig r;
    (void)state;
    open_rig(&r);
    for (int i = 0; i < 2; i++) {
        int32_t size = i ? 16 : 8, first = i ? 0 : 2, local = i ? 0 : 2, picked = i ? 2 : 3;
        int64_t lanes = 2 * (i ? 2 : 3), slot = 2 * HEAD_DIM * 4;
        struct rig_session rs = both(&r, kvl_policy_ktransformers, options[i]);
        const struct kvl_counters *c = kvl_session_counters(rs.s);
        int64_t on_host = (N_CTX + N_STEPS - (local + 1) * size) / size - first;
        assert_int_equal(c->host_bytes, lanes * on_host * size * slot);
        assert_int_equal(c->h2d_bytes, c->cache_misses * size * slot);
        /* The picked ones are read from there, but for those that are not local any more and whose age
         * is that of the current block. */
        assert_in_range(c->cache_misses, lanes * (picked - 1) * N_STEPS, lanes * picked * N_STEPS);
        assert_int_equal(c->cache_hits, 0);
        rig_end(&rs);
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quest),
        cmocka_unit_test(test_infllm),
        cmocka_unit_test(test_ktransformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
