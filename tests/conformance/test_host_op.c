/* kvl_host_op: what a loop on the host sees of operators before it, what operators see of the loop, what is
 * counted and reported, what a refusal becomes.  With KVL_TEST_CUDA on the (emulated) GPU, where nothing is there
 * before somebody waits. */
#include "conformance/rig.h"

#ifdef KVL_TEST_CUDA
enum { ON_GPU = 1 };
#else
enum { ON_GPU = 0 };
#endif

enum { N_LAYERS = 2, N_CTX = 96, N_STEPS = 4, N_TOK = N_CTX + N_STEPS };

static struct rig rig;
static int32_t id[N_TOK];

/* How the policy below behaves; tests only, a real policy keeps no globals. */
static int answer; /* of the loop */
static bool by_loop;

/* score = 1 - weight, in place. */
struct turn_args {
    float *score;
    int32_t n;
};

static int turn(const void *args)
{
    const struct turn_args *a = args;
    for (int32_t i = 0; i < a->n; i++) a->score[i] = 1.0f - a->score[i];
    return answer;
}

/* The 32 tokens of largest weight, or those of least weight, which the loop makes the best. */
static int turn_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_sel *sel)
{
    int32_t n = step->pos + 1, n_heads = ctx->shape->n_heads;
    float *score;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_heads * (size_t)n, &score));
    KVL_TRY(kvl_attn_weights(ctx, step, q, score, n));
    if (by_loop)
        KVL_TRY(kvl_host_op(ctx, turn, &(struct turn_args){ .score = score, .n = n_heads * n }));
    return kvl_sel_top_tokens(sel, KVL_SCOPE_Q_HEAD, score, n, 32);
}

static const struct kvl_policy turned = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "turned",
    .title = "t",
    .paper = "p",
    .help = "h",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_ASYNC,
    .select = turn_select,
};

static struct rig_run run_of(enum kvl_exec exec)
{
    return (
        struct rig_run){ .policy = &turned, .id = id, .n_ctx = N_CTX, .exec = exec, .budget = 33 };
}

struct told {
    double calls, seconds, waited;
    int n_notes;
};

static void told_num(void *user, const char *name, double value)
{
    struct told *t = user;
    if (strcmp(name, "host_op_calls") == 0) t->calls = value;
    if (strcmp(name, "host_op_s") == 0) t->seconds = value;
    if (strcmp(name, "host_op_wait_s") == 0) t->waited = value;
}

static void told_note(void *user, const char *text)
{
    struct told *t = user;
    t->n_notes += strstr(text, "{host_op_calls}") != NULL;
}

/* Logits of N_STEPS steps. */
static float *run_once(enum kvl_exec exec, struct told *told)
{
    struct rig_run run = run_of(exec);
    struct rig_session rs = rig_start(&rig, &run);
    float *logits = rig_logits(&rig, N_STEPS);
    rig_decode(&rig, &rs, id + N_CTX, N_STEPS, logits);
    *told = (struct told){ .calls = -1, .seconds = -1, .waited = -1 };
    const struct kvl_report_to to = { .num = told_num, .note = told_note, .user = told };
    RIG_OK(&rig.err, kvl_session_report(rs.s, &to, &rig.err));
    const struct kvl_counters *c = kvl_session_counters(rs.s);
    assert_int_equal(c->host_ops, by_loop ? N_STEPS * N_LAYERS : 0);
    if (by_loop) assert_true(c->host_op_ns > 0);
    if (ON_GPU && by_loop && exec == KVL_EXEC_REAL) assert_true(c->host_wait_ns > 0);
    rig_end(&rs);
    return logits;
}

/* The loop saw the weights and the selection saw what the loop made of them: other tokens than without it. */
static void test_agrees(void **state)
{
    struct told real, masked, none;
    (void)state;
    by_loop = true;
    float *x = run_once(KVL_EXEC_REAL, &real), *y = run_once(KVL_EXEC_MASKED, &masked);
    rig_expect_near(&rig, x, y, N_STEPS, 2e-4, "real and masked");
    assert_true(real.calls == N_STEPS * N_LAYERS && masked.calls == real.calls);
    assert_true(real.seconds > 0 && real.waited >= 0);
    assert_int_equal(real.n_notes, 1);
    by_loop = false;
    float *z = run_once(KVL_EXEC_REAL, &none);
    assert_true(rig_distance(&rig, x, z, N_STEPS) > 1e-3);
    assert_true(none.calls < 0 && none.n_notes == 0);
    kvl_free(x);
    kvl_free(y);
    kvl_free(z);
}

static void expect_refused(int status, int code, const char *text)
{
    struct rig_run run = run_of(KVL_EXEC_REAL);
    struct kvl_err err = { 0 };
    by_loop = true;
    struct rig_session rs = rig_start(&rig, &run);
    float *logits = rig_logits(&rig, 1);
    answer = status;
    assert_int_equal(kvl_session_decode(&rs.s, 1, id + N_CTX, logits, &err), code);
    answer = KVL_OK;
    if (!strstr(err.msg, text) || !strstr(err.msg, "turned: select, layer 0"))
        fail_msg("\"%s\", want \"%s\" and the hook", err.msg, text);
    kvl_free(logits);
    rig_end(&rs);
}

static void test_refuses(void **state)
{
    (void)state;
    expect_refused(KVL_EINVAL, KVL_EINVAL, "the loop on the host refused its arguments");
    expect_refused(7, KVL_EPOLICY, "the loop on the host returned 7");
}

static int open_rig(void **state)
{
    (void)state;
    const struct rig_desc desc = { .llama = { .n_layers = N_LAYERS, .n_kv_heads = 2, .seed = 5 },
                                   .kv_type = KVL_KV_F32 };
    rig_open(&rig, &desc);
    rig_tokens(id, N_TOK, 9);
    return 0;
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
        cmocka_unit_test(test_agrees),
        cmocka_unit_test(test_refuses),
    };
    return cmocka_run_group_tests_name("host_op", tests, open_rig, close_rig);
}
