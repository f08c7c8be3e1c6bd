/* Layers of a window, caps of logits and sinks in whole models: the same answers as a model in double
 * (arch_forward.h) whichever way the tokens come; what the store keeps of them; what policies see of them. */
#include "arch_forward.h"
#include "conformance/rig.h"
#include "kvl/gguf.h"
#include "model_impl.h"
#include "registry.h"

/* The emulated GPU takes its time. */
#ifdef KVL_TEST_CUDA
enum { N_TOK = 190, FIRST = 160 };
#else
enum { N_TOK = 320, FIRST = 250 };
#endif
enum { WINDOW = 21, BLOCK = 16, TILE = 128 };

static const uint8_t local_of[] = { 1, 0, 0, 1, 0, 1 };

static const struct gw_llama models[] = {
    { .window = WINDOW, .seed = 3 },
    { .arch = "gemma2", .n_layers = 4, .window = 40, .tied = true },
#ifndef KVL_TEST_CUDA
    { .arch = "gemma3", .n_layers = 7, .window = WINDOW, .tied = true },
#endif
    { .arch = "gpt-oss", .n_ff = 32, .window = WINDOW, .bias = 0.3f },
};
enum { N_MODELS = sizeof models / sizeof *models };

/* ---- the same logits, whichever way ------------------------------------------------------------------------ */

static double *definition(const struct gw_llama *m, const int32_t *id)
{
    struct kvl_buf file = { 0 };
    struct kvl_gguf *g = NULL;
    gw_llama(m, &file);
    uint8_t *copy = kvl_alloc(file.len, 1); /* aligned */
    assert_non_null(copy);
    memcpy(copy, file.data, file.len);
    assert_int_equal(kvl_gguf_open_memory(copy, file.len, &g, NULL), KVL_OK);
    double *y = af_logits(g, id, N_TOK, false);
    kvl_gguf_close(g);
    kvl_free(copy);
    kvl_buf_free(&file);
    return y;
}

static void expect_logits(const char *what, int model, const float *got, const double *want,
                          int32_t first, int32_t n)
{
    for (int32_t i = 0; i < n * GW_VOCAB; i++)
        if (!(fabs((double)got[i] - want[first * GW_VOCAB + i]) <= 2e-4))
            fail_msg("model %d, %s: logit %d of token %d is %g, want %g", model, what, i % GW_VOCAB,
                     first + i / GW_VOCAB, (double)got[i], want[first * GW_VOCAB + i]);
}

static struct kvl_session *prefilled(struct rig *r, const int32_t *id, int32_t n, float *logits)
{
    struct kvl_session *s;
    RIG_OK(&r->err, kvl_session_create(r->engine, &s, &r->err));
    RIG_OK(&r->err, kvl_session_prefill(s, id, n, logits, false, &r->err));
    return s;
}

static void decode_rest(struct rig *r, struct kvl_session *s, const int32_t *id, int32_t first,
                        float *logits)
{
    for (int32_t i = first; i < N_TOK; i++)
        RIG_OK(&r->err,
               kvl_session_decode(&s, 1, id + i, logits + (size_t)(i - first) * GW_VOCAB, &r->err));
}

/* Of the ways but the first the emulated GPU takes one in two, unless KVL_LONG is set. */
static bool left_out(int model, int way)
{
#ifdef KVL_TEST_CUDA
    return (model + way) % 2 != 0 && !getenv("KVL_LONG");
#else
    (void)model, (void)way;
    return false;
#endif
}

/* Prefilled in any chunks, layer by layer, as a block behind a context, decoded, in a fork, from a snapshot. */
static void test_every_way(void **state)
{
    static const struct rig_desc ways[] = { { .chunk_tok = 512 },
                                            { .chunk_tok = 37 },
#ifndef KVL_TEST_CUDA
                                            { .chunk_tok = 1 },
#endif
                                            { .chunk_tok = 100, .prefill_kv_host = true } };
    static float prefill[2][N_TOK * GW_VOCAB], more[N_TOK * GW_VOCAB], again[N_TOK * GW_VOCAB];
    int32_t id[N_TOK];
    (void)state;
    rig_tokens(id, N_TOK, 8);
    for (int m = 0; m < N_MODELS; m++) {
        double *want = definition(&models[m], id);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            struct rig_desc d = ways[w];
            struct rig r;
            struct kvl_session *s, *fork;
            if (w > 0 && left_out(m, (int)w)) continue;
            d.llama = models[m];
            rig_open(&r, &d);
            kvl_session_destroy(prefilled(&r, id, N_TOK, prefill[w > 0]));
            expect_logits("prefilled", m, prefill[w > 0], want, 0, N_TOK);
            assert_memory_equal(prefill[0], prefill[w > 0], sizeof prefill[0]);
            s = prefilled(&r, id, FIRST, prefill[1]);
            RIG_OK(&r.err, kvl_session_fork(s, &fork, &r.err));
            RIG_OK(&r.err,
                   kvl_session_extend_logits(fork, id + FIRST, N_TOK - FIRST, more, &r.err));
            expect_logits("as a block", m, more, want, FIRST, N_TOK - FIRST);
            kvl_session_destroy(fork);
            RIG_OK(&r.err, kvl_session_fork(s, &fork, &r.err));
            decode_rest(&r, fork, id, FIRST, more);
            expect_logits("decoded", m, more, want, FIRST, N_TOK - FIRST);
            decode_rest(&r, s, id, FIRST, again);
            assert_memory_equal(more, again, sizeof *more * GW_VOCAB * (N_TOK - FIRST));
            kvl_session_destroy(fork);
            kvl_session_destroy(s);
            RIG_OK(&r.err, kvl_store_check(kvl_engine_store(r.engine), &r.err));
            rig_close(&r);
        }
        free(want);
    }
}

static void test_snapshot(void **state)
{
    static float want[N_TOK * GW_VOCAB], got[N_TOK * GW_VOCAB];
    int32_t id[N_TOK];
    (void)state;
    rig_tokens(id, N_TOK, 8);
    for (int m = 0; m < N_MODELS; m++) {
        char path[] = "/tmp/kvl-windows-XXXXXX";
        struct kvl_session *s, *loaded = NULL;
        struct rig r;
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        close(fd);
        rig_open(&r, &(struct rig_desc){ .llama = models[m], .chunk_tok = 64 });
        s = prefilled(&r, id, FIRST, want);
        RIG_OK(&r.err, kvl_session_save(s, path, "key", &r.err));
        RIG_OK(&r.err, kvl_session_load(r.engine, path, "key", &loaded, &r.err));
        unlink(path);
        for (int32_t l = 0; l < rig_shape(&r)->n_layers; l++)
            assert_int_equal(kvl_seq_len(kvl_session_seq(loaded), l, 0),
                             kvl_seq_len(kvl_session_seq(s), l, 0));
        decode_rest(&r, s, id, FIRST, want);
        decode_rest(&r, loaded, id, FIRST, got);
        assert_memory_equal(want, got, sizeof *got * GW_VOCAB * (N_TOK - FIRST));
        kvl_session_destroy(s);
        kvl_session_destroy(loaded);
        rig_close(&r);
    }
}

/* ---- what is kept ------------------------------------------------------------------------------------------ */

/* Slots of every layer; those of a window hold the newest `spare` more than the next token reads, at most. */
static void expect_slots(const struct rig *r, const struct kvl_session *s, int32_t n, int32_t spare)
{
    const struct kvl_seq *seq = kvl_session_seq(s);
    int32_t pos[N_TOK];
    for (int32_t l = 0; l < rig_shape(r)->n_layers; l++) {
        int32_t have = kvl_seq_len(seq, l, 0), least = local_of[l] ? WINDOW - 1 : n;
        assert_true(have >= least && have < least + (local_of[l] ? spare : 1));
        kvl_seq_positions(seq, l, 0, pos);
        for (int32_t i = 0; i < have; i++) assert_int_equal(pos[i], n - have + i);
    }
}

static void test_store_keeps_the_window(void **state)
{
    const struct rig_desc d = { .llama = { .n_layers = 6, .window = WINDOW, .local = local_of },
                                .chunk_tok = 64 };
    static float logits[N_TOK * GW_VOCAB];
    struct kvl_session *s, *fork;
    struct kvl_seq_stats before, after;
    int32_t id[N_TOK];
    struct rig r;
    (void)state;
    rig_tokens(id, N_TOK, 8);
    rig_open(&r, &d);
    for (int32_t l = 0; l < 6; l++)
        assert_int_equal(rig_shape(&r)->window[l], local_of[l] ? WINDOW : 0);
    s = prefilled(&r, id, FIRST, logits);
    expect_slots(&r, s, FIRST, TILE);
    RIG_OK(&r.err, kvl_session_fork(s, &fork, &r.err));
    kvl_seq_stats(kvl_session_seq(s), &before);
    decode_rest(&r, fork, id, FIRST, logits);
    kvl_seq_stats(kvl_session_seq(s), &after); /* the fork forgets for itself */
    assert_int_equal(before.n_slots, after.n_slots);
    expect_slots(&r, fork, N_TOK, BLOCK);
    const struct kvl_counters *c = kvl_session_counters(fork);
    int64_t n = N_TOK - FIRST, heads = rig_shape(&r)->n_kv_heads;
    assert_int_equal(c->window_lanes, n * 3 * heads);
    assert_int_equal(c->window_tok, c->window_lanes * WINDOW);
    assert_int_equal(c->attended_tok, 3 * heads * n * (FIRST + 1 + N_TOK) / 2);
    assert_int_equal(c->kv_read_bytes, (c->window_tok + c->attended_tok) * 2 * 16 * 4);
    kvl_session_destroy(fork);
    kvl_session_destroy(s);
    RIG_OK(&r.err, kvl_store_check(kvl_engine_store(r.engine), &r.err));
    rig_close(&r);
}

/* Full attention as analyses ask for it: nothing before the window. */
static void test_full_attention(void **state)
{
    const struct rig_desc d = { .llama = { .n_layers = 6, .window = WINDOW, .local = local_of } };
    static float logits[N_TOK * GW_VOCAB], q[64], probs[4 * N_TOK], out[64];
    int32_t id[N_TOK];
    struct rig r;
    (void)state;
    rig_tokens(id, N_TOK, 8);
    for (size_t i = 0; i < 64; i++) q[i] = (float)(i % 7) - 3;
    rig_open(&r, &d);
    struct kvl_session *s = prefilled(&r, id, N_TOK, logits);
    for (int32_t l = 0; l < 2; l++) {
        RIG_OK(&r.err, kvl_session_full_attention(s, l, q, N_TOK, probs, out, &r.err));
        for (int32_t h = 0; h < 4; h++) {
            double sum = 0;
            for (int32_t i = 0; i < N_TOK; i++) {
                float p = probs[h * N_TOK + i];
                assert_true((p > 0) == (!local_of[l] || i >= N_TOK - WINDOW));
                sum += (double)p;
            }
            assert_true(fabs(sum - 1) < 1e-5);
        }
    }
    assert_int_equal(kvl_session_full_attention(s, 0, q, 60, probs, out, &r.err), KVL_EINVAL);
    kvl_session_destroy(s);
    rig_close(&r);
}

/* ---- what policies see ------------------------------------------------------------------------------------- */

static int32_t seen_layers[8], n_seen, n_rows_wrong;

static int seen_plan(struct kvl_plan *plan)
{
    assert_int_equal(plan->shape->n_layers, 3);
    assert_null(plan->shape->window);
    return KVL_OK;
}

static int seen_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                       const float *v)
{
    (void)v;
    float *stored;
    size_t row = (size_t)ctx->shape->n_kv_heads * (size_t)ctx->shape->head_dim;
    KVL_TRY(kvl_scratch_get(ctx, row, &stored));
    KVL_TRY(kvl_read_keys(ctx, step->layer, 0, &step->pos, 1, false, stored));
    n_rows_wrong += memcmp(stored, k, (size_t)ctx->shape->head_dim * sizeof *k) != 0;
    return KVL_OK;
}

static int seen_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_sel *sel)
{
    (void)q;
    assert_int_equal(ctx->shape->n_layers, 3);
    if (n_seen < 8) seen_layers[n_seen++] = step->layer;
    return kvl_sel_recent(sel, KVL_SCOPE_LAYER, KVL_ALL_LISTS, 5);
}

RIG_POLICY(seen, .caps = KVL_CAP_SELECTS, .plan = seen_plan, .append = seen_append,
           .select = seen_select);

static void test_policies_see_global_layers(void **state)
{
    const struct rig_desc d = { .llama = { .n_layers = 6, .window = WINDOW, .local = local_of } };
    static float logits[N_TOK * GW_VOCAB];
    int32_t id[N_TOK];
    struct rig r;
    (void)state;
    rig_tokens(id, N_TOK, 8);
    rig_open(&r, &d);
    const struct rig_run run = { .policy = &seen, .id = id, .n_ctx = FIRST };
    struct rig_session rs = rig_start(&r, &run);
    rig_decode(&r, &rs, id + FIRST, 1, logits);
    const struct kvl_counters *c = kvl_session_counters(rs.s);
    for (int32_t i = 0; i < 3; i++) assert_int_equal(seen_layers[i], i);
    assert_int_equal(n_seen, 3);
    assert_int_equal(n_rows_wrong, 0);
    assert_int_equal(c->n_select, 3);
    assert_int_equal(c->attended_tok, 5 * c->attended_lanes);
    assert_int_equal(c->window_tok, WINDOW * c->window_lanes);
    rig_end(&rs);
    rig_close(&r);
}

/* Scores say which unit leaves a cache of two.  They were looked up by the policy's number of a layer in the model's
 * tier, and lost where that layer has a window: the older unit left instead. */
enum { UNIT = 8 };

static int scored_plan(struct kvl_plan *plan)
{
    const struct kvl_offload o = {
        .keep_last = 16, .unit_tok = UNIT, .cache_tok = 2 * UNIT, .replace = KVL_REPLACE_SCORE
    };
    return kvl_plan_offload(plan, &o);
}

static int scored_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    static const float score[] = { 9, 1, 5 };
    static const int32_t page[] = { 0, 1, 2,
                                    0 }; /* 2 takes the place of 1, so that 0 is still there */
    (void)q;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(kvl_offload_scores(ctx, step->layer, h, score, 3));
    return kvl_sel_pages(sel, KVL_SCOPE_LAYER, 0, UNIT, &page[step->index], 1);
}

RIG_POLICY(scored, .caps = KVL_CAP_SELECTS | KVL_CAP_OFFLOADS, .plan = scored_plan,
           .select = scored_select);

static void test_scores_of_units(void **state)
{
    const struct rig_desc d = { .llama = { .n_layers = 6, .window = WINDOW, .local = local_of } };
    static float logits[4 * GW_VOCAB];
    int32_t id[64];
    struct rig r;
    (void)state;
    rig_tokens(id, 64, 9);
    rig_open(&r, &d);
    struct rig_session rs =
        rig_start(&r, &(struct rig_run){ .policy = &scored, .id = id, .n_ctx = 60 });
    rig_decode(&r, &rs, id + 60, 4, logits);
    const struct kvl_counters *c = kvl_session_counters(rs.s);
    assert_int_equal(c->cache_misses, 3 * 3 * rig_shape(&r)->n_kv_heads);
    assert_int_equal(c->cache_hits, 3 * rig_shape(&r)->n_kv_heads);
    rig_end(&rs);
    rig_close(&r);
}

static void test_nothing_to_choose(void **state)
{
    struct rig r;
    struct kvl_planned *p = NULL;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = { .window = WINDOW } });
    assert_int_equal(kvl_planned_create(&seen, rig_shape(&r), "", 0, 100, &p, &r.err), KVL_EINVAL);
    assert_non_null(strstr(r.err.msg, "all 2 layers of the model have a window (21 tokens"));
    rig_close(&r);
}

/* ---- files --------------------------------------------------------------------------------------------------- */

static int open_model(const struct gw_llama *m, bool off, struct kvl_model **out,
                      struct kvl_err *err)
{
    char path[] = "/tmp/kvl-windows-XXXXXX";
    struct kvl_buf file = { 0 };
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    gw_llama(m, &file);
    assert_true(gw_save(&file, path));
    kvl_buf_free(&file);
    const struct kvl_model_desc d = { .path = path, .windows_off = off };
    int rc = kvl_model_open_desc(&d, out, err);
    unlink(path);
    return rc;
}

static void expect_refused(const struct gw_llama *m, bool off, int rc, const char *why)
{
    struct kvl_model *model = NULL;
    struct kvl_err err = { 0 };
    assert_int_equal(open_model(m, off, &model, &err), rc);
    if (!strstr(err.msg, why)) fail_msg("\"%s\" does not say \"%s\"", err.msg, why);
}

static void more_period(struct gw *w)
{
    gw_u32(w, "llama.attention.sliding_window_pattern", 3);
}
static void more_short_pattern(struct gw *w)
{
    static const uint8_t two[] = { 1, 0 };
    gw_arr(w, "llama.attention.sliding_window_pattern", 7, 2, two, sizeof two);
}
static void more_window(struct gw *w)
{
    gw_u32(w, "internlm2.attention.sliding_window", 9);
}

static void test_files(void **state)
{
    struct kvl_model *model = NULL;
    struct kvl_err err = { 0 };
    (void)state;
    RIG_OK(&err, open_model(&(struct gw_llama){ .n_layers = 7, .window = 9, .more = more_period },
                            false, &model, &err));
    for (int32_t l = 0; l < 7; l++)
        assert_int_equal(kvl_model_shape(model)->window[l], l % 3 < 2 ? 9 : 0);
    kvl_model_close(model);
    RIG_OK(&err, open_model(&(struct gw_llama){ .window = 9 }, true, &model, &err));
    assert_null(kvl_model_shape(model)->window);
    kvl_model_close(model);
    RIG_OK(&err, open_model(&(struct gw_llama){ 0 }, true, &model, &err));
    kvl_model_close(model);
    expect_refused(&(struct gw_llama){ .n_layers = 3, .window = 9, .more = more_short_pattern },
                   false, KVL_EMODEL, "has 2 elements of type");
    expect_refused(&(struct gw_llama){ .arch = "internlm2", .more = more_window }, false,
                   KVL_EMODEL,
                   "\"internlm2.attention.sliding_window\" is 9, a internlm2 model has no window");
    expect_refused(&(struct gw_llama){ .arch = "gemma2", .window = 9 }, true, KVL_EINVAL,
                   "window off: a gemma2 model has windows in some layers");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_way),
        cmocka_unit_test(test_snapshot),
        cmocka_unit_test(test_store_keeps_the_window),
        cmocka_unit_test(test_full_attention),
        cmocka_unit_test(test_policies_see_global_layers),
        cmocka_unit_test(test_scores_of_units),
        cmocka_unit_test(test_nothing_to_choose),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests_name("windows", tests, NULL, NULL);
}
