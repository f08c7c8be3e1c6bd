/* How far a prefill is, as the engine tells it: every layer of every chunk, whatever way the tokens come, and without
 * a trace in what is computed. */
#include "progress.h"

#include "conformance/rig.h"

enum { N_TOK = 50, CHUNK = 16, N_LAYERS = 3 };

static struct {
    int n;
    int64_t done, all;
} ticks;

static void ticked(int64_t done, int64_t all, void *user)
{
    assert_ptr_equal(user, &ticks);
    assert_true(ticks.n == 0 ? done == 0 : done > ticks.done);
    ticks.n++;
    ticks.done = done;
    ticks.all = all;
}

static void open_rig(struct rig *r, bool host)
{
    const struct rig_desc desc = { .llama = { .n_layers = N_LAYERS, .n_kv_heads = 2, .seed = 8 },
                                   .kv_type = KVL_KV_F16,
                                   .chunk_tok = CHUNK,
                                   .prefill_kv_host = host };
    rig_open(r, &desc);
    ticks.n = 0;
    kvl_engine_set_tick(r->engine, ticked, &ticks);
}

static void expect_all(int32_t n_tok, int n_chunks)
{
    assert_int_equal(ticks.all, (int64_t)n_tok * N_LAYERS);
    assert_int_equal(ticks.done, ticks.all);
    assert_int_equal(ticks.n, 1 + N_LAYERS * n_chunks);
}

static void test_ways(void **state)
{
    int32_t id[N_TOK];
    struct kvl_err err = { 0 };
    (void)state;
    rig_tokens(id, N_TOK, 5);
    for (int host = 0; host < 2; host++) {
        struct rig r;
        struct kvl_session *s;
        open_rig(&r, host);
        float *got = rig_logits(&r, 1), *want = rig_logits(&r, 1);
        RIG_OK(&err, kvl_session_create(r.engine, &s, &err));
        RIG_OK(&err, kvl_session_prefill(s, id, N_TOK, got, true, &err));
        expect_all(N_TOK, 4);
        ticks.n = 0;
        RIG_OK(&err, kvl_session_extend(s, id, 20, &err));
        expect_all(20, 2);
        RIG_OK(&err, kvl_session_decode(&s, 1, id, want, &err));
        expect_all(20, 2); /* a step is no prefill */
        kvl_session_destroy(s);
        kvl_engine_set_tick(r.engine, NULL, NULL);
        RIG_OK(&err, kvl_session_create(r.engine, &s, &err));
        RIG_OK(&err, kvl_session_prefill(s, id, N_TOK, want, true, &err));
        expect_all(20, 2);
        rig_expect_same(&r, want, got, 1, "with somebody who watches and without");
        kvl_session_destroy(s);
        kvl_free(got);
        kvl_free(want);
        rig_close(&r);
    }
}

/* ---- the line -------------------------------------------------------------------------------- */

static char told[16][192];
static int n_told;

static void tell(const char *what, void *user)
{
    struct kvl_progress *p = user;
    if (n_told < 16) snprintf(told[n_told], sizeof told[0], "%s", what);
    n_told++;
    assert_int_equal(p->t_prefill > 0, 1);
}

/* A line that is always due: one for every layer of every chunk. */
static void test_line(void **state)
{
    int32_t id[N_TOK];
    struct rig r;
    struct kvl_session *s;
    struct kvl_err err = { 0 };
    struct kvl_progress p = { .tell = tell };
    (void)state;
    rig_tokens(id, N_TOK, 5);
    open_rig(&r, false);
    p.tell_user = &p;
    kvl_progress_name(&p, "passkey 50");
    kvl_progress_watch(&p, r.engine);
    RIG_OK(&err, kvl_session_create(r.engine, &s, &err));
    RIG_OK(&err, kvl_session_prefill(s, id, N_TOK, NULL, true, &err));
    assert_int_equal(n_told, N_LAYERS * 4);
    for (int i = 0, at = 0; i < n_told; i++) {
        double part, per_s;
        int32_t len = 0, n_tok = i / N_LAYERS < 3 ? CHUNK : N_TOK % CHUNK;
        at += n_tok;
        int got = sscanf(told[i], "passkey 50  prefill %lf %%  %lf tok/s%n", &part, &per_s, &len);
        assert_int_equal(got, 2);
        assert_int_equal(len, strlen(told[i]));
        assert_true(part > 100.0 * at / (N_TOK * N_LAYERS) - 0.6);
        assert_true(part < 100.0 * at / (N_TOK * N_LAYERS) + 0.6);
        assert_true(per_s > 0.0);
    }
    p.quiet = true;
    RIG_OK(&err, kvl_session_extend(s, id, 4, &err));
    assert_int_equal(n_told, N_LAYERS * 4);
    kvl_session_destroy(s);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ways),
        cmocka_unit_test(test_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
