/* What nested sets keep of a context's attention: by column sums and by single queries, against sums of weights written
 * out.  The arithmetic by hand, sizes and the choice are in golden/test_golden_fastgen.c. */
#include "conformance/rig.h"
#include "parts/nested.h"

enum {
    N_LAYERS = 2,
    N_HEADS = 4,
    N_KV = 2,
    GROUP = N_HEADS / N_KV,
    N_CTX = 60,
    WINDOW = 9,
    SETS = 4
};

static struct rig rig;
static int32_t id[N_CTX + 1];
static int n_checked;
static enum { NOTHING, SETS_MANY, TOKENS_FEW, NO_QUERIES, HEAD } wrong;

/* Whether set p has token j for the query at `at`. */
static bool has(const uint8_t *level, int p, int32_t j, int32_t at)
{
    return p == SETS - 1 || level[j] <= KVL_MIN(p, SETS - 3) || (p == SETS - 2 && j > at - WINDOW);
}

/* By the last n_queries queries: mass that is kept, and 1 - |a - kept weights scaled up to 1|. */
static int naive(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, const uint8_t *level,
                 int32_t n_queries, double *mass, double *near)
{
    static float probs[N_HEADS * N_CTX];
    for (int p = 0; p < SETS; p++) mass[p] = near[p] = 0;
    for (int32_t back = 0; back < n_queries; back++) {
        int32_t at = N_CTX - 1 - back;
        double a[N_CTX] = { 0 };
        KVL_TRY(kvl_obs_window_probs(ctx, layer, back, probs, N_CTX));
        for (int32_t i = 0; i < GROUP * N_CTX; i++)
            a[i % N_CTX] += (double)probs[kv_head * GROUP * N_CTX + i] / GROUP;
        for (int p = 0; p < SETS; p++) {
            double kept = 0, off = 0;
            for (int32_t j = 0; j <= at; j++) kept += has(level, p, j, at) ? a[j] : 0;
            for (int32_t j = 0; j <= at; j++)
                off += fabs(a[j] - (has(level, p, j, at) ? a[j] / kept : 0));
            mass[p] += kept / n_queries;
            near[p] += (1 - off) / n_queries;
        }
    }
    return KVL_OK;
}

static void compare(const char *what, const float *got, const double *want)
{
    for (int p = 0; p < SETS; p++, n_checked++)
        if (!(fabs((double)got[p] - want[p]) < 1e-4))
            fail_msg("%s of set %d is %g, want %g", what, p, (double)got[p], want[p]);
}

static int nested_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    uint8_t level[N_CTX];
    float kept[KVL_NESTED_MAX], *room;
    double mass[SETS], near[SETS];
    struct kvl_nested s = { .level = level, .n = N_CTX, .n_sets = SETS, .window = WINDOW };
    KVL_TRY(kvl_scratch_get(ctx, (N_HEADS + 1) * N_CTX, &room));
    for (int32_t j = 0; j < N_CTX; j++) level[j] = (uint8_t)(j == 0 ? 0 : j % 5 == 2 ? 1 : 2);
    if (wrong == SETS_MANY) s.n_sets = KVL_NESTED_MAX + 1;
    if (wrong == TOKENS_FEW) s.n--;
    if (wrong == NO_QUERIES) return kvl_nested_by_window(ctx, layer, 0, &s, 0, room, kept);
    if (wrong == HEAD) return kvl_nested_by_columns(ctx, layer, N_KV, &s, room, kept);
    for (int32_t h = 0; h < N_KV; h++) {
        KVL_TRY(kvl_nested_by_columns(ctx, layer, h, &s, room, kept));
        KVL_TRY(naive(ctx, layer, h, level, N_CTX, mass, near));
        compare("mass", kept, mass);
        KVL_TRY(kvl_nested_by_window(ctx, layer, h, &s, 12, room, kept));
        KVL_TRY(naive(ctx, layer, h, level, 12, mass, near));
        compare("nearness", kept, near);
    }
    return KVL_OK;
}

static int nested_plan(struct kvl_plan *plan)
{
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, N_CTX));
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_COLUMNS, 0));
    return kvl_plan_observe(plan, KVL_OBS_COLUMNS, WINDOW);
}

RIG_POLICY(nested, .caps = KVL_CAP_BOUND, .plan = nested_plan, .prefilled = nested_prefilled);

static void test_kept(void **state)
{
    struct rig_run run = { .policy = &nested, .id = id, .n_ctx = N_CTX };
    (void)state;
    struct rig_session rs = rig_start(&rig, &run);
    assert_int_equal(n_checked, N_LAYERS * N_KV * 2 * SETS);
    rig_end(&rs);
}

static void refused(int what, const char *why)
{
    struct kvl_err err = { 0 };
    struct rig_session rs = { 0 };
    wrong = what;
    RIG_OK(&err, kvl_planned_create(&nested, rig_shape(&rig), "", 0, N_CTX, &rs.planned, &err));
    RIG_OK(&err, kvl_session_create(rig.engine, &rs.s, &err));
    RIG_OK(&err, kvl_session_prefill(rs.s, id, N_CTX, NULL, true, &err));
    assert_int_equal(kvl_session_attach(rs.s, rs.planned, 0, KVL_EXEC_REAL, &err), KVL_EPOLICY);
    if (!strstr(err.msg, why)) fail_msg("message \"%s\" lacks \"%s\"", err.msg, why);
    rig_end(&rs);
}

static void test_refused(void **state)
{
    (void)state;
    refused(SETS_MANY, "6 nested sets of 60 tokens, want 2 to 5");
    refused(TOKENS_FEW, "nested sets of 59 tokens, the context has 60");
    refused(NO_QUERIES, "what 0 queries keep, want 1 or more");
    refused(HEAD, "nested sets of kv head 2, want 0 to 1");
}

static int open_rig(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = N_LAYERS, .seed = 97 } };
    (void)state;
    rig_open(&rig, &desc);
    rig_tokens(id, N_CTX + 1, 98);
    return rig_shape(&rig)->n_heads == N_HEADS && rig_shape(&rig)->n_kv_heads == N_KV ? 0 : 1;
}

static int close_rig(void **state)
{
    (void)state;
    rig_close(&rig);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("nested", tests, open_rig, close_rig);
}
