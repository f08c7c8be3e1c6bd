/* Bytes that are counted against bytes that a type claims, for every type and for pairs; and what is wrong on one side
 * is seen. */
#include "kv_held.h"

#include "conformance/rig.h"

enum { N_CTX = 70, N_LONG = 270, N_STEPS = 3 };

static const struct gw_llama held_llama = {
    .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 64
};

/* A session of full attention, some steps behind its context. */
static struct kvl_session *held_session(struct rig *r, enum kvl_kv_type type, int32_t n_ctx,
                                        int32_t *id)
{
    struct kvl_session *s;
    rig_tokens(id, n_ctx + N_STEPS, 7);
    rig_open(r, &(struct rig_desc){ .llama = held_llama, .kv_type = type, .no_raw_keys = true });
    float *logits = rig_logits(r, 1);
    RIG_OK(&r->err, kvl_session_create(r->engine, &s, &r->err));
    RIG_OK(&r->err, kvl_session_prefill(s, id, n_ctx, NULL, true, &r->err));
    for (int32_t i = 0; i < N_STEPS; i++)
        RIG_OK(&r->err, kvl_session_decode(&s, 1, &id[n_ctx + i], logits, &r->err));
    kvl_free(logits);
    return s;
}

static void test_types(void **state)
{
    (void)state;
    int32_t id[N_CTX + N_STEPS];
    for (int i = 0; kvl_kv_facts((enum kvl_kv_type)i); i++)
        for (int pair = 0; pair < 2; pair++) {
            enum kvl_kv_type type =
                kvl_kv_pair((enum kvl_kv_type)i, pair ? KVL_KV_Q4_0 : (enum kvl_kv_type)i);
            struct rig r;
            struct kvl_session *s = held_session(&r, type, N_CTX, id);
            const struct kvl_counters *n = kvl_session_counters(s);
            const struct kvl_store_desc *desc = kvl_store_desc(kvl_engine_store(r.engine));
            RIG_OK(&r.err, kvl_kv_held(s, desc, &r.err));
            /* Steps at 71, 72 and 73 tokens in four lanes. */
            int64_t slot = (int64_t)kvl_kv_slot_bytes(kvl_kv_open(type), 64, false);
            assert_int_equal(n->kv_walked_bytes, (71 + 72 + 73) * 4 * slot);
            kvl_session_destroy(s);
            rig_close(&r);
        }
}

/* Types that seal, long enough for four sealed blocks of nine: by hand. */
static void test_sealed(void **state)
{
    static const enum kvl_kv_type types[] = { KVL_KV_KIVI4, KVL_KV_KIVI2 };
    (void)state;
    int32_t id[N_LONG + N_STEPS];
    for (int i = 0; i < 2; i++) {
        struct rig r;
        struct kvl_seq_stats stats;
        struct kvl_session *s = held_session(&r, types[i], N_LONG, id);
        RIG_OK(&r.err, kvl_kv_held(s, kvl_store_desc(kvl_engine_store(r.engine)), &r.err));
        /* A key of 64 in 4 bits: 32 bytes and a 32nd of 64 mins and scales; a value as much. */
        int64_t row = types[i] == KVL_KV_KIVI4 ? 40 : 24, sealed = 128 * 2 * row;
        int64_t steps = 3 * sealed + (271 + 272 + 273 - 3 * 128) * 2 * 128;
        assert_int_equal(kvl_session_counters(s)->kv_walked_bytes, 4 * steps);
        assert_int_equal(kvl_session_counters(s)->kv_read_bytes, 4 * steps);
        kvl_seq_stats(kvl_session_seq(s), &stats);
        assert_int_equal(stats.n_sealed, 4 * 4);
        assert_int_equal(stats.logical_bytes, 4 * (sealed + (273 - 128) * 2 * 128));
        assert_int_equal(stats.physical_bytes,
                         4 * (4 * (64 + 32 * (4 + 2 * row)) + 5 * (64 + 32 * (4 + 2 * 128))));
        kvl_session_destroy(s);
        rig_close(&r);
    }
}

/* Each side a little more than a hundredth off, and a little less. */
static void test_off(void **state)
{
    (void)state;
    struct rig r;
    int32_t id[N_CTX + N_STEPS];
    struct kvl_session *s = held_session(&r, KVL_KV_Q4_0, N_CTX, id);
    struct kvl_counters *n = (struct kvl_counters *)(uintptr_t)kvl_session_counters(s);
    struct kvl_store_desc desc = *kvl_store_desc(kvl_engine_store(r.engine));
    const int64_t read = n->kv_read_bytes;
    n->kv_walked_bytes = read - read / 90;
    assert_int_equal(kvl_kv_held(s, &desc, &r.err), KVL_EINTERNAL);
    assert_non_null(strstr(r.err.msg, "q4_0: keys and values read: counted "));
    assert_non_null(strstr(r.err.msg, "want at most 1 % off"));
    n->kv_walked_bytes = read - read / 110;
    kvl_err_clear(&r.err);
    RIG_OK(&r.err, kvl_kv_held(s, &desc, &r.err));
    /* Stored in another type than the store says. */
    desc.type = KVL_KV_Q8_0;
    assert_int_equal(kvl_kv_held(s, &desc, &r.err), KVL_EINTERNAL);
    assert_non_null(strstr(r.err.msg, "q8_0: keys and values held: counted "));
    kvl_err_clear(&r.err);
    desc.type = KVL_KV_Q4_0;
    desc.block_tok = 32; /* 73 tokens: five blocks of 16 are less than three of 32 */
    assert_int_equal(kvl_kv_held(s, &desc, &r.err), KVL_EINTERNAL);
    assert_non_null(strstr(r.err.msg, "q4_0: blocks held: counted "));
    kvl_session_destroy(s);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_types), cmocka_unit_test(test_sealed),
                                        cmocka_unit_test(test_off) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
