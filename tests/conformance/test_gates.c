/* Gates of kv heads against weights of single queries, and texts that are a share. */
#include "conformance/rig.h"
#include "parts/gates.h"

enum {
    N_LAYERS = 2,
    N_HEADS = 4,
    N_KV = 2,
    GROUP = N_HEADS / N_KV,
    N_CTX = 60,
    SINK = 4,
    WINDOW = 9
};

static struct rig rig;
static int32_t id[N_CTX + 1];
static int n_checked;

/* Of the last n_queries queries, all of which are observed. */
static int naive_gates(const struct kvl_pctx *ctx, int32_t layer, int32_t n_queries, double *gate)
{
    static float probs[N_HEADS * N_CTX];
    for (int32_t h = 0; h < N_KV; h++) gate[h] = 0;
    for (int32_t back = 0; back < n_queries; back++) {
        KVL_TRY(kvl_obs_window_probs(ctx, layer, back, probs, N_CTX));
        for (int32_t h = 0; h < N_HEADS; h++)
            for (int32_t j = SINK; j <= N_CTX - 1 - back - WINDOW; j++)
                gate[h / GROUP] += (double)probs[h * N_CTX + j] / (n_queries * GROUP);
    }
    return KVL_OK;
}

static void compare(const float *got, const double *want)
{
    for (int32_t h = 0; h < N_KV; h++) {
        if (!(fabs((double)got[h] - want[h]) < 1e-5))
            fail_msg("gate %d is %g, want %g", h, (double)got[h], want[h]);
        assert_true(want[h] > .01);
        n_checked++;
    }
}

static int gates_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    double want[N_KV];
    float got[N_KV];
    KVL_TRY(naive_gates(ctx, layer, N_CTX, want));
    KVL_TRY(kvl_gates_by_columns(ctx, layer, SINK, WINDOW, got));
    compare(got, want);
    KVL_TRY(naive_gates(ctx, layer, 10, want));
    KVL_TRY(kvl_gates_by_window(ctx, layer, 10, N_CTX, SINK, WINDOW, got));
    compare(got, want);
    return KVL_OK;
}

static const char *text;
static double share;

static int gates_plan(struct kvl_plan *plan)
{
    if (text) KVL_TRY(kvl_plan_share(plan, "part", text, "auto", &share));
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, N_CTX));
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_COLUMNS, 0));
    return kvl_plan_observe(plan, KVL_OBS_COLUMNS, WINDOW);
}

RIG_POLICY(gates, .caps = KVL_CAP_BOUND, .plan = gates_plan, .prefilled = gates_prefilled);

static void test_measured(void **state)
{
    struct rig_run run = { .policy = &gates, .id = id, .n_ctx = N_CTX };
    (void)state;
    struct rig_session rs = rig_start(&rig, &run);
    assert_int_equal(n_checked, N_LAYERS * 2 * N_KV);
    rig_end(&rs);
}

static void test_share(void **state)
{
    static const struct {
        const char *text;
        double want; /* -2: refused */
    } rows[] = { { "auto", -1 }, { "0", 0 },   { "0.25", .25 }, { "1", 1 },
                 { "1.1", -2 },  { "-1", -2 }, { "Auto", -2 },  { "", -2 } };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kvl_planned *planned = NULL;
        struct kvl_err err = { 0 };
        text = rows[i].text;
        int rc = kvl_planned_create(&gates, rig_shape(&rig), "", 0, N_CTX, &planned, &err);
        assert_int_equal(rc, rows[i].want < -1 ? KVL_EINVAL : KVL_OK);
        if (rc == KVL_OK)
            assert_float_equal(share, rows[i].want, 0);
        else
            assert_non_null(strstr(err.msg, "give auto, or a number from 0 to 1"));
        kvl_planned_destroy(planned);
    }
    text = NULL;
}

static int open_rig(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = N_LAYERS, .seed = 95 } };
    (void)state;
    rig_open(&rig, &desc);
    rig_tokens(id, N_CTX + 1, 96);
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
        cmocka_unit_test(test_measured),
        cmocka_unit_test(test_share),
    };
    return cmocka_run_group_tests_name("gates", tests, open_rig, close_rig);
}
