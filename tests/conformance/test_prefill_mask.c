/* The engine's side of a sparse prefill: what the builder refuses, when hooks
 * run, that a mask of everything is the dense prefill bit for bit, that real
 * execution equals the mask oracle, that chunks do not matter, and that a
 * session without its context is refused. */
#include "conformance/rig.h"

enum { N_CTX = 150, N_STEPS = 4 };

enum mask_kind { MASK_NONE, MASK_ALL, MASK_MIXED, MASK_WINDOW, MASK_BAD };
static enum mask_kind kind;
static int bad, n_masks;
static int32_t chunk_tok;
static char log_of[64];

/* ---- a policy that does what a test says ------------------------------------------------------ */

static int32_t every[N_CTX];

static int mask_bad(struct kvl_prefill_mask *m)
{
    static const int32_t one[] = { 1 }, down[] = { 5, 3 }, far[] = { 9999 }, off[] = { 0, 1 },
                         ahead[] = { 40 }, off2[] = { 0, 2 }, touch[] = { 3, 9, 9, 12 },
                         empty[] = { 5, 5 }, beyond[] = { 3, N_CTX + 1 };
    switch (bad) {
    case 0: return kvl_mask_window(m, 99, 1, 1);
    case 1: return kvl_mask_window(m, 0, -1, 1);
    case 2: return kvl_mask_vertical_slash(m, -1, down, 2, NULL, 0);
    case 3: return kvl_mask_vertical_slash(m, -1, NULL, 0, far, 1);
    case 4: return kvl_mask_tokens(m, -1, far, 1);
    case 5: return kvl_mask_blocks(m, -1, 64, off, one, 1);
    case 6: return kvl_mask_blocks(m, -1, 0, off, one, 1);
    case 7: return kvl_mask_blocks(m, -1, N_CTX, off, ahead, 1);
    case 8: return kvl_mask_tokens(m, -1, one, 1); /* not before the chunk */
    case 9: return kvl_mask_ranges(m, -1, N_CTX, off2, touch, 1);
    case 10: return kvl_mask_ranges(m, -1, N_CTX, off, empty, 1);
    case 11: return kvl_mask_ranges(m, -1, N_CTX, off, beyond, 1);
    case 12: return kvl_mask_ranges(m, -1, 64, off, beyond, 1);
    case 13:
        KVL_TRY(kvl_mask_ranges(m, 1, N_CTX, off, touch, 1));
        return kvl_mask_blocks(m, 1, N_CTX, off, off, 1);
    default: return kvl_mask_vertical_slash(m, -1, one, -1, NULL, 0);
    }
}
enum { N_BAD = 15 };
static const char *const bad_why[N_BAD] = {
    "query head 99",         "sink of -1",         "column 3 after 5", "diagonal 9999",
    "before the chunk 9999", "lists for 1 blocks", "of 0 queries",     "block 40",
    "before the chunk 1",    "range from 9 on",    "range 5 .. 5",     "range 3 .. 151",
    "lists for 1 blocks",    "given twice",        "-1 columns",
};

/* Of every block of 16 queries the first 5 positions and, from the second block on, those up to 20 before it. */
static int mask_odd_ranges(const struct kvl_step *step, int32_t h, struct kvl_prefill_mask *m)
{
    int32_t off[N_CTX] = { 0 }, range[4 * N_CTX], n_blocks = (step->n_tok + 15) / 16, n = 0;
    for (int32_t b = 0; b < n_blocks; b++) {
        int32_t start = step->pos + 16 * b;
        range[2 * n] = 0;
        range[2 * n++ + 1] = KVL_MIN(5, step->pos + step->n_tok);
        if (start > 32) {
            range[2 * n] = start - 25;
            range[2 * n++ + 1] = start - 5;
        }
        off[b + 1] = n;
    }
    return kvl_mask_ranges(m, h, 16, off, range, n_blocks);
}

/* Every head something else; a head that nothing is said of is dense. */
static int mask_mixed(const struct kvl_pctx *ctx, const struct kvl_step *step,
                      struct kvl_prefill_mask *m)
{
    int32_t end = step->pos + step->n_tok, n = 0, pairs[N_CTX];
    for (int32_t i = 1; i < end; i += 7) pairs[n++] = i;
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        if (h % 4 == 1) KVL_TRY(kvl_mask_window(m, h, 3, 5));
        if (h % 4 == 1) KVL_TRY(mask_odd_ranges(step, h, m)); /* adds up, as below */
        if (h % 4 == 2) KVL_TRY(kvl_mask_vertical_slash(m, h, pairs, n, pairs, n / 2));
        if (h % 4 == 3) { /* adds up */
            KVL_TRY(kvl_mask_vertical_slash(m, h, pairs, n / 2, NULL, 0));
            KVL_TRY(kvl_mask_vertical_slash(m, h, pairs, n, NULL, 0));
            KVL_TRY(kvl_mask_window(m, h, 0, 2));
        }
    }
    return KVL_OK;
}

static int test_mask(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                     struct kvl_prefill_mask *m)
{
    (void)q;
    n_masks++;
    assert_int_equal(step->index, -1);
    assert_false(step->replay);
    assert_int_equal(ctx->context_tok, N_CTX);
    assert_true(chunk_tok == 0 || step->n_tok <= chunk_tok);
    if (kind == MASK_BAD) return mask_bad(m);
    if (kind == MASK_WINDOW) return kvl_mask_window(m, -1, 4, 30);
    if (kind == MASK_MIXED) return mask_mixed(ctx, step, m);
    if (kind == MASK_ALL) return kvl_mask_tokens(m, -1, every, step->pos);
    return KVL_OK;
}

/* The order in which hooks came for a layer, as letters. */
static void note(int32_t layer, char what)
{
    size_t n = strlen(log_of);
    if (layer != 0 || (n > 0 && log_of[n - 1] == what) || n + 1 == sizeof log_of) return;
    log_of[n] = what;
    log_of[n + 1] = '\0';
}

static int test_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                       const float *v)
{
    (void)ctx;
    (void)k;
    (void)v;
    note(step->layer, step->replay ? 'r' : 'a');
    return KVL_OK;
}

static int test_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const float *mass;
    int32_t n;
    note(layer, 'p');
    KVL_TRY(kvl_obs_window_mass(ctx, layer, 8, &mass, &n));
    assert_int_equal(n, N_CTX);
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)mass[i];
    assert_true(fabs(sum - 8) < 1e-4);
    return KVL_OK;
}

static int test_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    note(step->layer, step->replay ? 'e' : 'E');
    if (step->replay) assert_int_equal(step->n_tok, N_CTX);
    return kvl_keep_range(keep, 0, ctx->context_tok / 2, step->pos + step->n_tok);
}

static int test_plan(struct kvl_plan *plan)
{
    plan->prefill_chunk_tok = chunk_tok;
    return plan->own_prefill ? kvl_plan_observe(plan, KVL_OBS_WINDOW, 8) : KVL_OK;
}

RIG_POLICY(masker, .prefill = KVL_PREFILL_OWN, .plan = test_plan, .prefill_mask = test_mask);

static const struct kvl_policy *evicting(void)
{
    static struct kvl_policy p;
    p = masker;
    p.caps |= KVL_CAP_EVICTS;
    p.append = test_append;
    p.prefilled = test_prefilled;
    p.evict = test_evict;
    return &p;
}

/* ---- runs ---------------------------------------------------------------------------------------- */

static int32_t id[N_CTX + N_STEPS];
static const struct rig_desc small = { .llama = { .n_layers = 3, .n_kv_heads = 2, .seed = 8 } };

static struct rig_run run_of(const struct kvl_policy *p, enum kvl_exec exec)
{
    for (int32_t i = 0; i < N_CTX; i++) every[i] = i;
    rig_tokens(id, N_CTX + N_STEPS, 3);
    return (struct rig_run){
        .policy = p, .options = "", .id = id, .n_ctx = N_CTX, .n_steps = N_STEPS, .exec = exec
    };
}

static float *logits_of(const struct rig_desc *d, const struct kvl_policy *p, enum kvl_exec exec,
                        struct kvl_counters *count)
{
    struct rig r;
    rig_open(&r, d);
    struct rig_run run = run_of(p, exec);
    struct rig_session rs = rig_start(&r, &run);
    float *logits = rig_logits(&r, N_STEPS);
    rig_decode(&r, &rs, id + N_CTX, N_STEPS, logits);
    if (count) *count = *kvl_session_counters(rs.s);
    rig_end(&rs);
    rig_close(&r);
    return logits;
}

static const struct kvl_policy dense = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "dense",
    .title = "t",
    .paper = "p",
    .help = "h",
    .caps = KVL_CAP_BOUND,
};

static void expect_same(const float *a, const float *b)
{
    struct rig r;
    rig_open(&r, &small);
    rig_expect_same(&r, a, b, N_STEPS, "two runs");
    rig_close(&r);
}

static double distance(const float *a, const float *b)
{
    struct rig r;
    rig_open(&r, &small);
    double d = rig_distance(&r, a, b, N_STEPS);
    rig_close(&r);
    return d;
}

/* Nothing said, and everything said, in one chunk and in several: the dense
 * prefill. */
static void test_everything_is_dense(void **state)
{
    static const int32_t chunks[] = { 0, 64, 17 };
    float *want = logits_of(&small, &dense, KVL_EXEC_REAL, NULL);
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct kvl_counters c;
        chunk_tok = chunks[i / 2];
        kind = i % 2 ? MASK_ALL : MASK_NONE;
        n_masks = 0;
        float *got = logits_of(&small, &masker, KVL_EXEC_REAL, &c);
        expect_same(want, got);
        assert_int_equal(n_masks, 3 * (chunk_tok ? (N_CTX + chunk_tok - 1) / chunk_tok : 1));
        assert_int_equal(c.prefill_pairs, c.prefill_dense_pairs);
        assert_int_equal(c.prefill_dense_pairs, (int64_t)3 * 4 * N_CTX * (N_CTX + 1) / 2);
        kvl_free(got);
    }
    kvl_free(want);
}

/* Whether query i of a chunk that ends at `end` reads key j, as the test's masks say it. */
static bool reads(int32_t h, int32_t end, int32_t i, int32_t j)
{
    int32_t n_listed = (end - 1 + 6) / 7; /* 1, 8, 15, ... below end */
    bool column = j % 7 == 1, diagonal = (i - j) % 7 == 1 && (i - j) / 7 < n_listed / 2;
    if (i == j) return true;
    if (kind == MASK_WINDOW) return j < 4 || i - j < 30;
    if (h % 4 == 0) return true;
    if (h % 4 == 1) {
        int32_t chunk = chunk_tok ? chunk_tok : N_CTX, in_chunk = i % chunk;
        int32_t start = i - in_chunk + in_chunk / 16 * 16;
        return j < 5 || i - j < 5 || (start > 32 && j >= start - 25 && j < start - 5);
    }
    if (h % 4 == 2) return column || diagonal;
    return column || i - j < 2;
}

static int64_t naive_pairs(const struct kvl_shape *sh)
{
    int64_t n = 0;
    int32_t chunk = chunk_tok ? chunk_tok : N_CTX;
    for (int32_t h = 0; h < sh->n_heads; h++)
        for (int32_t i = 0; i < N_CTX; i++)
            for (int32_t j = 0; j <= i; j++)
                n += reads(h, KVL_MIN(N_CTX, (i / chunk + 1) * chunk), i, j);
    return n * sh->n_layers;
}

static void test_real_equals_masked(void **state)
{
    (void)state;
    for (kind = MASK_MIXED; kind <= MASK_WINDOW; kind++)
        for (chunk_tok = 0; chunk_tok <= 40; chunk_tok += 40) {
            struct kvl_counters a, b;
            float *real = logits_of(&small, &masker, KVL_EXEC_REAL, &a);
            float *masked = logits_of(&small, &masker, KVL_EXEC_MASKED, &b);
            float *full = logits_of(&small, &dense, KVL_EXEC_REAL, NULL);
            assert_true(distance(real, masked) < 5e-4);
            assert_true(distance(real, full) > 1e-2); /* the mask does something */
            assert_int_equal(a.prefill_pairs, b.prefill_pairs);
            assert_int_equal(a.prefill_pairs,
                             naive_pairs(&(struct kvl_shape){ .n_layers = 3, .n_heads = 4 }));
            assert_true(a.prefill_pairs < a.prefill_dense_pairs);
            assert_true(a.prefill_read_bytes > 0);
            kvl_free(real);
            kvl_free(masked);
            kvl_free(full);
        }
}

/* A window is the same whatever the chunk, the policy's or the engine's, and
 * whatever the threads. */
static void test_chunks(void **state)
{
    static const int32_t chunks[] = { 1, 7, 64, 100 };
    struct rig_desc d = small;
    (void)state;
    kind = MASK_WINDOW;
    chunk_tok = 0;
    float *want = logits_of(&small, &masker, KVL_EXEC_REAL, NULL);
    for (int i = 0; i < 8; i++) {
        chunk_tok = i % 2 ? chunks[i / 2] : 0;
        d.chunk_tok = i % 2 ? 0 : chunks[i / 2];
        kvl_ops_set_threads(1 + i % 3);
        float *got = logits_of(&d, &masker, KVL_EXEC_REAL, NULL);
        expect_same(want, got);
        kvl_free(got);
    }
    kvl_ops_set_threads(0);
    kvl_free(want);
}

/* Under a policy that leaves the context to it: the same chunks, of the size that it asked for. */
static void test_wrapped(void **state)
{
    static const struct kvl_policy outer = {
        .abi = KVL_POLICY_ABI,
        .size = sizeof(struct kvl_policy),
        .name = "outer",
        .title = "t",
        .paper = "p",
        .help = "h",
        .prefill = KVL_PREFILL_EITHER,
        .inner = "masker",
    };
    const struct kvl_policy *both;
    struct kvl_err err = { 0 };
    (void)state;
    kind = MASK_MIXED;
    chunk_tok = 40;
    n_masks = 0;
    RIG_OK(&err, kvl_policy_compose(&outer, &masker, &both, &err));
    float *want = logits_of(&small, &masker, KVL_EXEC_REAL, NULL);
    int alone = n_masks;
    float *got = logits_of(&small, both, KVL_EXEC_REAL, NULL);
    expect_same(want, got);
    assert_int_equal(n_masks, 2 * alone);
    kvl_free(want);
    kvl_free(got);
    kvl_policy_decompose(both);
}

/* Replay, prefilled with its observer, eviction of the whole context; then per
 * token. */
static void test_order(void **state)
{
    struct rig r;
    (void)state;
    kind = MASK_WINDOW;
    chunk_tok = 40;
    log_of[0] = '\0';
    rig_open(&r, &small);
    struct rig_run run = run_of(evicting(), KVL_EXEC_REAL);
    struct rig_session rs = rig_start(&r, &run);
    assert_string_equal(log_of, "rpe");
    assert_int_equal(kvl_seq_len(kvl_session_seq(rs.s), 0, 0), N_CTX - N_CTX / 2);
    assert_int_equal(kvl_seq_len(kvl_session_seq(rs.s), 0, 1), N_CTX);
    struct kvl_counters before = *kvl_session_counters(rs.s);
    kvl_session_reset_counters(rs.s);
    assert_int_equal(kvl_session_counters(rs.s)->prefill_pairs, before.prefill_pairs);
    assert_int_equal(kvl_session_counters(rs.s)->n_evicted, 0);
    float *logits = rig_logits(&r, 1);
    rig_decode(&r, &rs, id + N_CTX, 1, logits);
    assert_string_equal(log_of, "rpeaE");
    kvl_free(logits);
    rig_end(&rs);
    rig_close(&r);
}

static void test_refusals(void **state)
{
    struct rig r;
    struct kvl_planned *p;
    struct kvl_session *s;
    struct kvl_err err;
    (void)state;
    rig_open(&r, &small);
    run_of(&masker, KVL_EXEC_REAL);
    chunk_tok = 0;
    kind = MASK_BAD;
    float *logits = rig_logits(&r, 1);
    RIG_OK(&r.err, kvl_planned_create(&masker, rig_shape(&r), "", 0, N_CTX, &p, &r.err));
    for (bad = 0; bad < N_BAD; bad++) {
        err = (struct kvl_err){ 0 };
        RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
        RIG_OK(&r.err, kvl_session_attach(s, p, 1, KVL_EXEC_REAL, &r.err));
        assert_int_equal(kvl_session_prefill(s, id, N_CTX, NULL, false, &err), KVL_EPOLICY);
        if (!strstr(err.msg, bad_why[bad]) || !strstr(err.msg, "prefill_mask"))
            fail_msg("%d: \"%s\", want \"%s\"", bad, err.msg, bad_why[bad]);
        kvl_session_destroy(s);
    }
    err = (struct kvl_err){ 0 };
    RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
    RIG_OK(&r.err, kvl_session_attach(s, p, 1, KVL_EXEC_REAL, &r.err));
    assert_int_equal(kvl_session_decode(&s, 1, id, logits, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "prefills itself"));
    err = (struct kvl_err){ 0 };
    assert_int_equal(kvl_session_extend(s, id, 3, &err), KVL_EINVAL);
    kvl_session_destroy(s);
    kvl_planned_destroy(p);
    kvl_free(logits);
    rig_close(&r);
}

static int column_plan(struct kvl_plan *plan)
{
    return kvl_plan_observe(plan, KVL_OBS_COLUMNS, 0);
}

/* What an object must have. */
static void test_object(void **state)
{
    struct kvl_policy p = masker;
    struct kvl_planned *planned;
    struct kvl_err err = { 0 };
    struct rig r;
    (void)state;
    rig_open(&r, &small);
    p.prefill = KVL_PREFILL_SHARED;
    assert_int_equal(kvl_policy_check(&p, &err), KVL_EPOLICY);
    p.prefill = KVL_PREFILL_OWN;
    p.prefill_mask = NULL;
    err = (struct kvl_err){ 0 };
    assert_int_equal(kvl_policy_check(&p, &err), KVL_EPOLICY);
    p = masker;
    p.plan = column_plan; /* no column sums under a mask */
    err = (struct kvl_err){ 0 };
    assert_int_not_equal(kvl_planned_create(&p, rig_shape(&r), "", 0, 9, &planned, &err), KVL_OK);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_is_dense),
        cmocka_unit_test(test_real_equals_masked),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_wrapped),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_object),
    };
    return cmocka_run_group_tests_name("prefill_mask", tests, NULL, NULL);
}
