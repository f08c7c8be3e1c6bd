/* StreamingLLM: the paper's example of the cache and its positions.
 *
 * In a model of one layer, keys and values of a token depend on that token alone.  A step with
 * in-cache positions then equals, up to rounding, a dense run over just the kept tokens: an oracle
 * that knows nothing of eviction. */
#include "conformance/rig.h"

extern const struct kvl_policy *const kvl_policy_streaming_llm, *const kvl_policy_full;

enum { N_TOK = 40 };

static struct rig one_layer(int32_t *id)
{
    struct rig_desc desc = { .llama = { .n_layers = 1, .seed = 21 } };
    struct rig r;
    rig_open(&r, &desc);
    rig_tokens(id, N_TOK, 4);
    return r;
}

/* Logits of the last of n listed tokens when only these exist. */
static float *dense_over(struct rig *r, const int32_t *id, const int32_t *pos, int32_t n)
{
    int32_t kept[N_TOK];
    for (int32_t i = 0; i < n; i++) kept[i] = id[pos[i]];
    struct rig_run run = { .policy = kvl_policy_full, .id = kept, .n_ctx = n - 1, .n_steps = 1 };
    return rig_run(r, &run);
}

static void expect_all_lanes(const struct rig *r, const struct rig_session *rs, const int32_t *pos,
                             int32_t n)
{
    for (int32_t l = 0; l < rig_shape(r)->n_layers; l++)
        for (int32_t h = 0; h < rig_shape(r)->n_kv_heads; h++) rig_expect_kept(rs, l, h, pos, n);
}

/* S = 4, R = 3; budget 8 = what the step attends to before it evicts. */
static void test_the_papers_example(void **state)
{
    int32_t id[N_TOK];
    struct rig r = one_layer(id);
    struct rig_run run = { .policy = kvl_policy_streaming_llm, .budget = 8, .id = id, .n_ctx = 9 };
    struct rig_session rs = rig_start(&r, &run);
    float *got = rig_logits(&r, 1);
    (void)state;
    expect_all_lanes(&r, &rs, (int32_t[]){ 0, 1, 2, 3, 6, 7, 8 }, 7);
    float *want = dense_over(&r, id, (int32_t[]){ 0, 1, 2, 3, 6, 7, 8, 9 }, 8);
    rig_decode(&r, &rs, id + 9, 1, got);
    rig_expect_near(&r, got, want, 1, 1e-4, "positions 0..7, query at 7");
    expect_all_lanes(&r, &rs, (int32_t[]){ 0, 1, 2, 3, 7, 8, 9 }, 7);
    kvl_free(want);
    want = dense_over(&r, id, (int32_t[]){ 0, 1, 2, 3, 7, 8, 9, 10 }, 8);
    rig_decode(&r, &rs, id + 10, 1, got);
    rig_expect_near(&r, got, want, 1, 1e-4, "the next step");
    kvl_free(want);
    kvl_free(got);
    rig_end(&rs);
    rig_close(&r);
}

/* With the positions of the text the same cache gives another answer. */
static void test_original_positions_differ(void **state)
{
    int32_t id[N_TOK];
    struct rig r = one_layer(id);
    struct rig_run run = { .policy = kvl_policy_streaming_llm,
                           .options = "positions=original",
                           .budget = 8,
                           .id = id,
                           .n_ctx = 30,
                           .n_steps = 4 };
    float *original = rig_run(&r, &run);
    (void)state;
    run.exec = KVL_EXEC_MASKED;
    float *masked = rig_run(&r, &run);
    rig_expect_near(&r, original, masked, 4, 1e-4, "original positions, real and masked");
    run.exec = KVL_EXEC_REAL;
    run.options = "positions=in_cache";
    float *in_cache = rig_run(&r, &run);
    assert_true(rig_distance(&r, original, in_cache, 4) > 1e-2);
    kvl_free(original);
    kvl_free(masked);
    kvl_free(in_cache);
    rig_close(&r);
}

/* After every step exactly {0 .. S-1} and the last R, for many shapes. */
static void test_kept_set_at_every_length(void **state)
{
    static const struct {
        const char *options;
        int32_t budget, sink, recent;
    } cases[] = {
        { "", 8, 4, 3 },       { "sink=0", 8, 0, 7 },           { "sink=1", 12, 1, 10 },
        { "sink=6", 8, 6, 1 }, { "sink=2,recent=5", 64, 2, 5 }, { "", 64, 4, 59 },
    };
    int32_t id[N_TOK], want[N_TOK];
    struct rig r = one_layer(id);
    float *logits = rig_logits(&r, 1);
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct rig_run run = { .policy = kvl_policy_streaming_llm,
                               .options = cases[c].options,
                               .budget = cases[c].budget,
                               .id = id,
                               .n_ctx = 5 };
        struct rig_session rs = rig_start(&r, &run);
        for (int32_t len = 5; len < N_TOK; len++) {
            int32_t n = 0;
            for (int32_t i = 0; i < len; i++)
                if (i < cases[c].sink || i >= len - cases[c].recent) want[n++] = i;
            expect_all_lanes(&r, &rs, want, n);
            rig_decode(&r, &rs, id + len, 1, logits);
        }
        rig_end(&rs);
    }
    kvl_free(logits);
    rig_close(&r);
}

/* ---- with its own prefill --------------------------------------------------------------------- */

/* The context under the policy from its first token on; logits [n][n_vocab]. */
static float *stream(struct rig *r, const struct rig_run *run, int32_t n, struct rig_session *rs)
{
    float *logits = rig_logits(r, n);
    *rs = (struct rig_session){ 0 };
    RIG_OK(&r->err, kvl_planned_create_own(run->policy, rig_shape(r), run->options, run->budget, n,
                                           &rs->planned, &r->err));
    RIG_OK(&r->err, kvl_session_create(r->engine, &rs->s, &r->err));
    RIG_OK(&r->err, kvl_session_attach(rs->s, rs->planned, 0, KVL_EXEC_REAL, &r->err));
    RIG_OK(&r->err, kvl_session_extend_logits(rs->s, run->id, n, logits, &r->err));
    return logits;
}

static struct rig layers(uint32_t n_layers, int32_t *id)
{
    struct rig_desc desc = { .llama = { .n_layers = n_layers, .seed = 22 } };
    struct rig r;
    rig_open(&r, &desc);
    rig_tokens(id, N_TOK, 4);
    return r;
}

/* A cache that holds everything is a dense prefill, with either kind of positions. */
static void test_own_prefill_with_room_is_dense(void **state)
{
    int32_t id[N_TOK];
    struct rig r = layers(3, id);
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct rig_run run = { .policy = kvl_policy_streaming_llm,
                               .options = i ? "positions=original" : "",
                               .budget = N_TOK + 1,
                               .id = id };
        struct rig_session rs;
        struct kvl_session *dense;
        float *got = stream(&r, &run, N_TOK, &rs), *want = rig_logits(&r, N_TOK);
        RIG_OK(&r.err, kvl_session_create(r.engine, &dense, &r.err));
        RIG_OK(&r.err, kvl_session_prefill(dense, id, N_TOK, want, false, &r.err));
        rig_expect_near(&r, want, got, N_TOK, 1e-3, "streamed with room for all, and dense");
        kvl_session_destroy(dense);
        kvl_free(got);
        kvl_free(want);
        rig_end(&rs);
    }
    rig_close(&r);
}

/* After the context {0 .. S-1} and the last R, whatever its length. */
static void test_own_prefill_keeps(void **state)
{
    int32_t id[N_TOK], want[N_TOK];
    struct rig r = layers(2, id);
    (void)state;
    for (int32_t len = 1; len <= N_TOK; len += 3) {
        struct rig_run run = {
            .policy = kvl_policy_streaming_llm, .options = "sink=3", .budget = 10, .id = id
        };
        struct rig_session rs;
        float *logits = stream(&r, &run, len, &rs);
        int32_t n = 0;
        for (int32_t i = 0; i < len; i++)
            if (i < 3 || i >= len - 6) want[n++] = i;
        expect_all_lanes(&r, &rs, want, n);
        kvl_free(logits);
        rig_end(&rs);
    }
    rig_close(&r);
}

/* In one layer a token sees itself and the R before it, in two layers the R before those: what lies
 * further back cannot matter, the token at the edge does.  From a shared dense prefill all matter. */
static void test_own_prefill_sees_r_per_layer(void **state)
{
    enum { R = 7 };
    (void)state;
    for (int32_t depth = 1; depth <= 2; depth++) {
        int32_t id[N_TOK], edge = N_TOK - 1 - depth * R;
        struct rig r = layers((uint32_t)depth, id);
        struct rig_run run = { .policy = kvl_policy_streaming_llm,
                               .options = "sink=0,positions=original",
                               .budget = R + 1,
                               .id = id };
        struct rig_session rs;
        size_t last = (size_t)(N_TOK - 1) * (size_t)rig_shape(&r)->n_vocab;
        float *want = stream(&r, &run, N_TOK, &rs);
        rig_end(&rs);
        for (int32_t at = edge - 1; at <= edge; at++) {
            int32_t was = id[at];
            id[at] = was == id[5] ? id[6] : id[5];
            float *got = stream(&r, &run, N_TOK, &rs);
            rig_end(&rs);
            if (at < edge)
                rig_expect_same(&r, want + last, got + last, 1, "a token out of sight");
            else
                assert_true(rig_distance(&r, want + last, got + last, 1) > 1e-5);
            kvl_free(got);
            id[at] = was;
        }
        kvl_free(want);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_papers_example),
        cmocka_unit_test(test_original_positions_differ),
        cmocka_unit_test(test_kept_set_at_every_length),
        cmocka_unit_test(test_own_prefill_with_room_is_dense),
        cmocka_unit_test(test_own_prefill_keeps),
        cmocka_unit_test(test_own_prefill_sees_r_per_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
