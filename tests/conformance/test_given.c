/* What policies may hand over in place of what is stored: keys for a list, entries that stand for several
 * tokens; and what is refused. */
#include "conformance/rig.h"

enum {
    N_LAYERS = 3,
    N_HEADS = 4,
    N_KV = 2,
    DIM = 16,
    N_CTX = 90,
    N_STEPS = 4,
    N_TOK = N_CTX + N_STEPS
};

static const struct kvl_policy base = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "giver",
    .title = "t",
    .paper = "p",
    .help = "h",
    .version = 1,
    .caps = KVL_CAP_SELECTS,
};

static struct rig rig;
static int32_t id[N_TOK];

/* How the policies below behave; tests only, a real policy keeps no globals. */
static struct {
    enum kvl_scope scope;
    float sign;  /* of given keys */
    float logit; /* of an entry */
    int32_t bad; /* which call is wrong */
} how;

static float *run_as(const struct kvl_policy *p, enum kvl_exec exec, struct kvl_counters *count)
{
    struct rig_run run = { .policy = p, .id = id, .n_ctx = N_CTX, .exec = exec, .budget = 40 };
    struct rig_session rs = rig_start(&rig, &run);
    float *logits = rig_logits(&rig, N_STEPS);
    kvl_session_reset_counters(rs.s);
    rig_decode(&rig, &rs, id + N_CTX, N_STEPS, logits);
    if (count) *count = *kvl_session_counters(rs.s);
    rig_end(&rs);
    return logits;
}

/* Logits of `p`, real and masked, which must agree; near those of `like`. */
static float *agree(const struct kvl_policy *p, const float *like, const char *what)
{
    float *real = run_as(p, KVL_EXEC_REAL, NULL), *masked = run_as(p, KVL_EXEC_MASKED, NULL);
    rig_expect_near(&rig, real, masked, N_STEPS, 2e-4, what);
    if (like) rig_expect_near(&rig, real, like, N_STEPS, 2e-4, what);
    kvl_free(masked);
    return real;
}

/* ---- keys --------------------------------------------------------------------------------------- */

static int32_t lists_of(enum kvl_scope scope)
{
    return scope == KVL_SCOPE_Q_HEAD ? N_HEADS : N_KV;
}

/* The first 8 positions as stored, and every third behind them with the given keys; the current token is
 * left to the engine, which adds it to the first list. */
static int32_t third_positions(int32_t pos, int32_t *out)
{
    int32_t n = 0;
    for (int32_t i = 9; i < pos; i += 3) out[n++] = i;
    return n;
}

static int keys_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_sel *sel)
{
    int32_t pos[N_TOK], first[] = { 0, 1, 2, 3, 4, 5, 6, 7 }, n = third_positions(step->pos, pos);
    float keys[N_TOK][DIM];
    int32_t lists = lists_of(how.scope);
    (void)q;
    for (int32_t l = 0; l < lists; l++) {
        KVL_TRY(kvl_read_keys(ctx, step->layer, l * N_KV / lists, pos, n, false, keys[0]));
        for (int32_t i = 0; i < n; i++)
            for (int32_t c = 0; c < DIM; c++) keys[i][c] *= how.sign;
        KVL_TRY(kvl_sel_tokens(sel, how.scope, l, pos, n));
        if (how.sign != 0) KVL_TRY(kvl_sel_keys(sel, how.scope, l, keys[0], n));
    }
    KVL_TRY(kvl_sel_segment(sel));
    for (int32_t l = 0; l < lists; l++) KVL_TRY(kvl_sel_tokens(sel, how.scope, l, first, 8));
    return KVL_OK;
}

static void test_keys(void **state)
{
    struct kvl_policy p = base;
    struct kvl_counters stored, given;
    (void)state;
    p.select = keys_select;
    for (how.scope = KVL_SCOPE_KV_HEAD; how.scope <= KVL_SCOPE_Q_HEAD; how.scope++) {
        how.sign = 0;
        float *own = run_as(&p, KVL_EXEC_REAL, &stored);
        how.sign = 1;
        kvl_free(agree(&p, own, "keys as they are stored"));
        how.sign = -1;
        float *other = agree(&p, NULL, "other keys");
        assert_true(rig_distance(&rig, own, other, N_STEPS) > 1e-2);
        kvl_free(other);
        kvl_free(run_as(&p, KVL_EXEC_REAL, &given));
        int64_t n = 0;
        for (int32_t pos = N_CTX; pos < N_TOK; pos++)
            n += third_positions(pos, (int32_t[N_TOK]){ 0 }) * lists_of(how.scope) * N_LAYERS;
        assert_int_equal(given.attended_tok, stored.attended_tok);
        assert_int_equal(given.given_keys, n);
        assert_int_equal(stored.kv_read_bytes - given.kv_read_bytes, n * DIM * 4);
        kvl_free(own);
    }
}

/* ---- pseudo-entries -------------------------------------------------------------------------------- */

/* Positions 10 .. 69 as entries: what they weigh and give is what they would as tokens. */
static int pseudo_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    enum { FIRST = 10, LAST = 70, N = LAST - FIRST, GROUP = N_HEADS / N_KV };
    int32_t pos[N_TOK], n = 0;
    float key[N][DIM], value[N][DIM], logit[GROUP * N];
    for (int32_t i = 0; i <= step->pos; i++)
        if (i < FIRST || i >= LAST) pos[n++] = i;
    for (int32_t h = 0; h < N_KV; h++) KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, h, pos, n));
    for (int32_t i = 0; i < N; i++) pos[i] = FIRST + i;
    for (int32_t h = 0; h < N_KV; h++) {
        KVL_TRY(kvl_read_keys(ctx, step->layer, h, pos, N, false, key[0]));
        KVL_TRY(kvl_read_values(ctx, step->layer, h, pos, N, value[0]));
        for (int32_t j = 0; j < GROUP * N; j++) {
            const float *own = q->q + (h * GROUP + j / N) * DIM;
            double dot = 0;
            for (int32_t c = 0; c < DIM; c++) dot += (double)own[c] * (double)key[j % N][c];
            logit[j] = (float)(dot / 4);
        }
        KVL_TRY(kvl_sel_pseudo(sel, h, logit, value[0], N));
    }
    return KVL_OK;
}

static void test_pseudo(void **state)
{
    struct kvl_policy p = base;
    struct kvl_counters count;
    (void)state;
    p.caps = 0;
    float *full = run_as(&p, KVL_EXEC_REAL, NULL);
    p.caps = base.caps;
    p.select = pseudo_select;
    float *logits = agree(&p, full, "an entry for every token");
    kvl_free(run_as(&p, KVL_EXEC_REAL, &count));
    int64_t lanes = N_LAYERS * N_KV, n = 0;
    for (int32_t pos = N_CTX; pos < N_TOK; pos++) n += pos + 1 - 60;
    assert_int_equal(count.attended_tok, n * lanes);
    assert_int_equal(count.kv_read_bytes, n * lanes * 2 * DIM * 4);
    /* keys and values that the hook read, and the values of the entries */
    assert_int_equal(count.index_read_bytes, N_STEPS * lanes * 3 * 60 * DIM * 4);
    kvl_free(logits);
    kvl_free(full);
}

/* Beside everything, which is no list: entries that weigh next to nothing change next to nothing.  Such a
 * selection was looked through for positions that it names twice, and names none. */
static int beside_everything(struct kvl_pctx *ctx, const struct kvl_step *step,
                             const struct kvl_query *q, struct kvl_sel *sel)
{
    static const float value[DIM] = { 1 };
    float logit[N_HEADS / N_KV];
    (void)ctx;
    (void)step;
    (void)q;
    for (int32_t j = 0; j < N_HEADS / N_KV; j++) logit[j] = how.logit;
    for (int32_t h = 0; h < N_KV; h++) KVL_TRY(kvl_sel_pseudo(sel, h, logit, value, 1));
    return KVL_OK;
}

static void test_pseudo_beside_everything(void **state)
{
    struct kvl_policy p = base;
    (void)state;
    p.caps = 0;
    float *full = run_as(&p, KVL_EXEC_REAL, NULL);
    p.caps = base.caps;
    p.select = beside_everything;
    how.logit = -60;
    kvl_free(agree(&p, full, "next to nothing"));
    how.logit = 2;
    float *much = agree(&p, NULL, "an entry beside everything");
    assert_true(rig_distance(&rig, full, much, N_STEPS) > 1e-2);
    kvl_free(much);
    kvl_free(full);
}

/* ---- refusals ------------------------------------------------------------------------------------ */

static int bad_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                      struct kvl_sel *sel)
{
    static const int32_t pos[] = { 0, 1 };
    static const float x[4 * DIM] = { 0 }, nan[2 * DIM] = { [3] = NAN };
    enum kvl_scope scope = KVL_SCOPE_KV_HEAD;
    (void)ctx;
    (void)step;
    (void)q;
    if (how.bad == 0) {
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, pos, 2));
        return kvl_sel_keys(sel, KVL_SCOPE_LAYER, 0, x, 2);
    }
    for (int32_t h = 0; h < N_KV; h++) KVL_TRY(kvl_sel_tokens(sel, scope, h, pos, 2));
    switch (how.bad) {
    case 1: return kvl_sel_keys(sel, scope, 0, x, 1);
    case 2: return kvl_sel_keys(sel, scope, 0, nan, 2);
    case 3: KVL_TRY(kvl_sel_keys(sel, scope, 0, x, 2)); return kvl_sel_share(sel, 2, 1);
    case 4: return kvl_sel_pseudo(sel, N_KV, x, x, 1);
    case 5: KVL_TRY(kvl_sel_pseudo(sel, 0, x, x, 1)); return kvl_sel_pseudo(sel, 0, x, x, 1);
    case 6: return kvl_sel_pseudo(sel, 0, nan + 3, x, 1);
    case 7: KVL_TRY(kvl_sel_pseudo(sel, 0, x, x, 1)); return kvl_sel_share(sel, 2, 1);
    default: return kvl_sel_pseudo(sel, 0, x, x, -1);
    }
}

static void test_refusals(void **state)
{
    static const char *const why[] = { "list of the whole layer",
                                       "want a token list of that length",
                                       "finite",
                                       "given keys, which are this layer's",
                                       "want 0 or more of head",
                                       "given twice",
                                       "finite",
                                       "pseudo-entries, which are this",
                                       "want 0 or more of head" };
    struct kvl_policy p = base;
    (void)state;
    p.select = bad_select;
    for (how.bad = 0; how.bad < 9; how.bad++) {
        struct rig_run run = { .policy = &p, .id = id, .n_ctx = N_CTX, .budget = 40 };
        struct rig_session rs = rig_start(&rig, &run);
        struct kvl_err err = { 0 };
        float *logits = rig_logits(&rig, 1);
        assert_int_equal(kvl_session_decode(&rs.s, 1, &id[N_CTX], logits, &err), KVL_EPOLICY);
        if (!strstr(err.msg, why[how.bad])) fail_msg("call %d: %s", how.bad, err.msg);
        kvl_free(logits);
        rig_end(&rs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_pseudo),
        cmocka_unit_test(test_pseudo_beside_everything),
        cmocka_unit_test(test_refusals),
    };
    struct rig_desc desc = {
        .llama = { .n_layers = N_LAYERS, .n_heads = N_HEADS, .n_kv_heads = N_KV, .seed = 4 }
    };
    rig_open(&rig, &desc);
    assert_int_equal(rig_shape(&rig)->head_dim, DIM);
    rig_tokens(id, N_TOK, 3);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_close(&rig);
    return failed;
}
