/* What is said of memory before anything is taken is what is taken.  With KVL_TEST_CUDA on that device. */
#include "conformance/rig.h"
#include "model_fits.h"
#include "registry.h"
#include "session_impl.h"

static const struct gw_llama small = { .n_layers = 3, .n_heads = 6, .head_dim = 24, .n_ff = 160 };

/* Blocks of the store, and rows of the engine, after a prefill. */
static void test_engine(void **state)
{
    static const int32_t length[] = { 1, 15, 16, 17, 100, 600 };
    (void)state;
    for (int raw = 0; raw < 2; raw++)
        for (size_t i = 0; i < sizeof length / sizeof length[0]; i++) {
            struct rig r;
            struct kvl_session *s;
            struct kvl_store_stats stats;
            struct kvl_footprint f;
            int32_t id[600];
            rig_tokens(id, 600, 3);
            rig_open(&r, &(struct rig_desc){ .llama = small,
                                             .kv_type = raw ? KVL_KV_F32 : KVL_KV_F16,
                                             .chunk_tok = 128,
                                             .no_raw_keys = !raw });
            const struct kvl_engine_desc desc = { .model = r.model,
                                                  .kv_type = raw ? KVL_KV_F32 : KVL_KV_F16,
                                                  .chunk_tok = 128,
                                                  .raw_keys = raw };
            RIG_OK(&r.err, kvl_footprint(&desc, length[i], &f, &r.err));
            RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
            RIG_OK(&r.err, kvl_session_prefill(s, id, length[i], NULL, true, &r.err));
            kvl_store_stats(kvl_engine_store(r.engine), &stats);
            assert_int_equal(f.kv_bytes, stats.bytes);
            assert_int_equal(r.engine->cap_rows, KVL_MIN(length[i], 128));
            assert_int_equal(f.weight_bytes, kvl_model_bytes(r.model));
            assert_int_equal(f.work_bytes % (size_t)r.engine->cap_rows, 0);
            /* a token's activations: x, tmp, xn, x_prev; gate, up; q, q_raw, att; k, k_raw, v */
            size_t floats = 4 * 64 + 2 * 160 + 3 * 6 * 24 + 3 * 2 * 24;
            assert_true(f.work_bytes / (size_t)r.engine->cap_rows >= floats * sizeof(float));
            assert_true(f.work_bytes / (size_t)r.engine->cap_rows < floats * sizeof(float) + 1024);
            assert_int_equal(kvl_footprint_fits(&f, (int64_t)f.kv_bytes),
                             (length[i] + 15) / 16 * 16);
            assert_int_equal(kvl_footprint_fits(&f, (int64_t)f.kv_bytes - 1),
                             (length[i] - 1) / 16 * 16);
            kvl_session_destroy(s);
            rig_close(&r);
        }
}

/* Tables: what is said of a plan is what its session has, unless it dropped rows. */
static void test_tables(void **state)
{
    static const struct {
        const char *name;
        int32_t n_tok;
        bool drops;
    } row[] = { { "quest", 100, false },         { "quest", 601, false },
                { "sparq", 333, false },         { "infllm", 700, false },
                { "magicpig", 300, false },      { "ktransformers", 401, false },
                { "streaming_llm", 300, false }, { "h2o", 300, true } };
    struct kvl_registry *reg;
    struct rig r;
    int32_t id[700];
    (void)state;
    rig_tokens(id, 700, 3);
    rig_open(&r, &(struct rig_desc){ .llama = small, .kv_type = KVL_KV_F16 });
    RIG_OK(&r.err, kvl_registry_create(&reg, &r.err));
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct rig_run run = { .budget = 160, .id = id, .n_ctx = row[i].n_tok };
        RIG_OK(&r.err, kvl_registry_find_policy(reg, row[i].name, &run.policy, &r.err));
        struct rig_session rs = rig_start(&r, &run);
        size_t said = kvl_planned_table_bytes(rs.planned, rig_shape(&r)->n_kv_heads, KVL_KV_F16,
                                              row[i].n_tok);
        size_t has = kvl_session_meta_bytes(rs.s);
        if (row[i].drops ? said <= has : said != has)
            fail_msg("%s, %d tokens: %zu bytes of tables, %zu were said", row[i].name, row[i].n_tok,
                     has, said);
        rig_end(&rs);
    }
    kvl_registry_destroy(reg);
    rig_close(&r);
}

/* A model that was only looked at says the same, and nothing of its weights was read. */
static void test_look(void **state)
{
    char path[] = "/tmp/kvl-look-XXXXXX";
    struct kvl_buf file = { 0 };
    struct kvl_model *m[2];
    struct kvl_footprint f[2];
    struct kvl_err err = { 0 };
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    gw_llama(&small, &file);
    assert_true(gw_save(&file, path));
    RIG_OK(&err, kvl_model_open(path, &m[0], &err));
    const float bad = NAN;
    memcpy(file.data + file.len - 64, &bad, sizeof bad);
    assert_true(gw_save(&file, path));
    RIG_OK(&err, kvl_model_look(path, &m[1], &err));
    for (int i = 0; i < 2; i++) {
        const struct kvl_engine_desc desc = { .model = m[i] };
        RIG_OK(&err, kvl_footprint(&desc, 5000, &f[i], &err));
    }
    assert_int_equal(f[0].kv_bytes, f[1].kv_bytes);
    assert_int_equal(f[0].work_bytes, f[1].work_bytes);
    assert_int_equal(f[0].weight_bytes, f[1].weight_bytes);
    assert_false(f[0].weights_cached);
    assert_true(f[1].weights_cached);
    kvl_model_close(m[0]);
    kvl_model_close(m[1]);
    assert_int_equal(kvl_model_open(path, &m[0], &err), KVL_EMODEL);
    unlink(path);
    kvl_buf_free(&file);
}

/* The line names the largest weight type that fits. */
static void test_room(void **state)
{
    char path[] = "/tmp/kvl-room-XXXXXX";
    struct kvl_buf file = { 0 };
    struct kvl_model *m;
    struct kvl_err err = { 0 };
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    gw_llama(&small, &file); /* F32 */
    assert_true(gw_save(&file, path));
    RIG_OK(&err, kvl_model_look(path, &m, &err));
    int64_t bytes = (int64_t)kvl_model_bytes(m);
    kvl_model_close(m);
    assert_int_equal(kvl_model_room(path, bytes, &err), KVL_OK);
    assert_int_equal(kvl_model_room(path, 0, &err), KVL_OK); /* not known */
    static const struct {
        double share; /* of the memory that it wants */
        const char *want;
    } row[] = { { 0.999, "as BF16" },
                { 0.5, "as BF16" },
                { 0.49, "as Q8_0" },
                { 0.2, "as Q5_K_M" },
                { 0.1, "want a smaller model or more memory" } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        kvl_err_clear(&err);
        int64_t free_bytes = (int64_t)ceil((double)bytes * row[i].share);
        assert_int_equal(kvl_model_room(path, free_bytes, &err), KVL_ENOMEM);
        if (!strstr(err.msg, row[i].want)) fail_msg("%g: %s", row[i].share, err.msg);
        assert_null(strchr(err.msg, '\n'));
    }
    unlink(path);
    kvl_buf_free(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_look),
        cmocka_unit_test(test_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
