/* brute_offload: the bits of full attention, and bytes in closed form. */
#include "conformance/rig.h"

extern const struct kvl_policy *const kvl_policy_brute_offload, *const kvl_policy_full;

enum { N_CTX = 230, N_STEPS = 20 };

static void expect_bytes(const struct rig *r, const struct kvl_counters *c, int32_t keep_last,
                         int32_t block)
{
    const struct kvl_shape *sh = rig_shape(r);
    int64_t lanes = (int64_t)sh->n_layers * sh->n_kv_heads, slot = 2 * sh->head_dim * 2, want = 0;
    for (int32_t n = N_CTX + 1; n <= N_CTX + N_STEPS; n++) want += (n - keep_last) / block * block;
    assert_int_equal(c->h2d_bytes, lanes * slot * want);
    assert_int_equal(c->h2d_calls, N_STEPS * sh->n_layers);
    assert_int_equal(c->cache_hits, 0);
    int64_t host = (N_CTX + N_STEPS - keep_last) / block * block;
    assert_int_equal(c->host_bytes, lanes * slot * host);
    assert_int_equal(c->d2h_bytes, lanes * slot * host);
    assert_int_equal(c->device_bytes, lanes * slot * (N_CTX + N_STEPS - host));
    /* One layer in full at a time. */
    assert_true(c->device_peak_bytes <= c->device_bytes + slot * (lanes * block + 2 * host));
    assert_int_equal(c->attended_tok, lanes * N_STEPS * (2 * N_CTX + N_STEPS + 1) / 2);
}

static void test_full_attention_from_the_host(void **state)
{
    static const struct {
        const char *options;
        int32_t keep_last, block;
    } cases[] = { { "", 64, 64 },
                  { "keep_last=1,block=1", 1, 1 },
                  { "keep_last=30,block=50", 30, 50 },
                  { "keep_last=17,block=16", 17, 16 } };
    int32_t id[N_CTX + N_STEPS];
    struct rig r;
    (void)state;
    rig_open(&r,
             &(struct rig_desc){ .llama = { .n_layers = 3, .seed = 8 }, .kv_type = KVL_KV_F16 });
    rig_tokens(id, N_CTX + N_STEPS, 12);
    struct rig_run run = {
        .policy = kvl_policy_full, .id = id, .n_ctx = N_CTX, .n_steps = N_STEPS
    };
    float *want = rig_run(&r, &run), *got = rig_logits(&r, N_STEPS);
    run.policy = kvl_policy_brute_offload;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run.options = cases[i].options;
        struct rig_session rs = rig_start(&r, &run);
        rig_decode(&r, &rs, id + N_CTX, N_STEPS, got);
        rig_expect_same(&r, want, got, N_STEPS, cases[i].options);
        expect_bytes(&r, kvl_session_counters(rs.s), cases[i].keep_last, cases[i].block);
        rig_end(&rs);
    }
    kvl_free(want);
    kvl_free(got);
    rig_close(&r);
}

/* A cache that holds all fetches every block once. */
static void test_cache(void **state)
{
    int32_t id[N_CTX + N_STEPS];
    struct rig r;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 2, .seed = 8 } });
    rig_tokens(id, N_CTX + N_STEPS, 12);
    struct rig_run run = { .policy = kvl_policy_brute_offload,
                           .options = "keep_last=10,block=10,cache_tok=1000",
                           .id = id,
                           .n_ctx = N_CTX };
    struct rig_session rs = rig_start(&r, &run);
    float *logits = rig_logits(&r, N_STEPS);
    rig_decode(&r, &rs, id + N_CTX, N_STEPS, logits);
    const struct kvl_counters *c = kvl_session_counters(rs.s);
    assert_int_equal(c->h2d_bytes, c->host_bytes);
    assert_int_equal(c->cache_misses, 4 * 24);
    rig_end(&rs);
    kvl_free(logits);
    struct kvl_planned *p = NULL;
    assert_int_equal(kvl_planned_create(kvl_policy_brute_offload, rig_shape(&r),
                                        "block=64,cache_tok=63", 0, 100, &p, &r.err),
                     KVL_EINVAL);
    assert_non_null(strstr(r.err.msg, "cache_tok=63 holds no block of 64 tokens"));
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_attention_from_the_host),
        cmocka_unit_test(test_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
