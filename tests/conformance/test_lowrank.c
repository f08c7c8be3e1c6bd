/* Keys at low rank: as near to the stored ones as that rank can be, by an eigensolver of the test's own. */
#include "conformance/rig.h"
#include "parts/lowrank.h"

enum { N_LAYERS = 2, N_KV = 2, DIM = 16, WIDTH = N_KV * DIM, N_CTX = 90, N_TOK = N_CTX + 1 };

static struct rig rig;
static int32_t id[N_TOK];

/* Tests only, a real policy keeps no globals. */
static struct {
    int32_t rank, position; /* asked for; one that is not of the context: refused */
    struct kvl_lowrank keys;
    double missed[N_LAYERS],
        least[N_LAYERS]; /* squares: of what was rebuilt, of what no rank can do better */
    int64_t read;
} seen;

/* ---- the least error --------------------------------------------------------------------------- */

/* Turns a [WIDTH][WIDTH], symmetric, in the plane of p and q, so that a[p][q] is 0. */
static void turn(double a[WIDTH][WIDTH], int p, int q)
{
    double angle = .5 * atan2(2 * a[p][q], a[q][q] - a[p][p]), c = cos(angle), s = sin(angle);
    for (int i = 0; i < WIDTH; i++) {
        double x = a[i][p], y = a[i][q];
        a[i][p] = c * x - s * y;
        a[i][q] = s * x + c * y;
    }
    for (int i = 0; i < WIDTH; i++) {
        double x = a[p][i], y = a[q][i];
        a[p][i] = c * x - s * y;
        a[q][i] = s * x + c * y;
    }
}

static int descending(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x < *y) - (*x > *y);
}

/* The sum of all eigenvalues of a but the `rank` largest: what the best matrix of that rank leaves. */
static double least_error(double a[WIDTH][WIDTH], int32_t rank)
{
    double value[WIDTH], sum = 0;
    for (int round = 0; round < 30; round++)
        for (int p = 0; p < WIDTH; p++)
            for (int q = p + 1; q < WIDTH; q++) turn(a, p, q);
    for (int i = 0; i < WIDTH; i++) value[i] = a[i][i];
    qsort(value, WIDTH, sizeof *value, descending);
    for (int i = rank; i < WIDTH; i++) sum += value[i];
    return sum;
}

/* ---- what is rebuilt ---------------------------------------------------------------------------- */

static int ask_plan(struct kvl_plan *plan)
{
    return kvl_plan_lowrank(plan, seen.rank, &seen.keys);
}

static int fit(struct kvl_pctx *ctx, int32_t layer)
{
    static double gram[WIDTH][WIDTH];
    float *raw;
    KVL_TRY(kvl_lowrank_fit(ctx, &seen.keys, layer));
    KVL_TRY(kvl_scratch_get(ctx, WIDTH * N_CTX, &raw));
    for (int32_t h = 0; h < N_KV; h++)
        KVL_TRY(kvl_read_key_span(ctx, layer, h, 0, N_CTX, true, raw + h * N_CTX * DIM));
    for (int32_t a = 0; a < WIDTH; a++)
        for (int32_t b = 0; b < WIDTH; b++) {
            const float *x = raw + a / DIM * N_CTX * DIM + a % DIM;
            const float *y = raw + b / DIM * N_CTX * DIM + b % DIM;
            gram[a][b] = 0;
            for (int32_t i = 0; i < N_CTX; i++)
                gram[a][b] += (double)x[i * DIM] * (double)y[i * DIM];
        }
    seen.least[layer] = least_error(gram, seen.rank);
    return KVL_OK;
}

/* Rebuilds all keys of the context, the last first, and compares them with what is stored after RoPE. */
static int rebuild(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                   struct kvl_sel *sel)
{
    int32_t pos[N_CTX];
    float *got, *want;
    (void)q;
    (void)sel;
    KVL_TRY(kvl_scratch_get(ctx, N_CTX * DIM, &got));
    KVL_TRY(kvl_scratch_get(ctx, N_CTX * DIM, &want));
    for (int32_t i = 0; i < N_CTX; i++) pos[i] = N_CTX - 1 - i;
    pos[0] += seen.position;
    seen.missed[step->layer] = 0;
    for (int32_t h = 0; h < N_KV; h++) {
        KVL_TRY(kvl_lowrank_keys(ctx, &seen.keys, step->layer, h, pos, N_CTX, got));
        KVL_TRY(kvl_read_keys(ctx, step->layer, h, pos, N_CTX, false, want));
        for (int32_t i = 0; i < N_CTX * DIM; i++) {
            double d = (double)got[i] - (double)want[i];
            seen.missed[step->layer] += d * d;
        }
    }
    return KVL_OK;
}

RIG_POLICY(lowrank, .caps = KVL_CAP_SELECTS, .plan = ask_plan, .prefilled = fit, .select = rebuild);

static void run(int32_t rank)
{
    struct rig_run r = { .policy = &lowrank, .id = id, .n_ctx = N_CTX, .n_steps = 1, .budget = 40 };
    float *logits = rig_logits(&rig, 1);
    seen.rank = rank;
    struct rig_session rs = rig_start(&rig, &r);
    int64_t before = kvl_session_counters(rs.s)->index_read_bytes;
    rig_decode(&rig, &rs, id + N_CTX, 1, logits);
    seen.read = kvl_session_counters(rs.s)->index_read_bytes - before;
    rig_end(&rs);
    kvl_free(logits);
}

static void test_no_rank_does_better(void **state)
{
    static const int32_t ranks[] = { 1, 6, 20, WIDTH };
    (void)state;
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        run(ranks[i]);
        for (int32_t l = 0; l < N_LAYERS; l++) {
            double off = fabs(seen.missed[l] - seen.least[l]);
            assert_true(ranks[i] == WIDTH || seen.least[l] > 1e-3);
            if (!(off <= 1e-3 * seen.least[l] + 1e-7))
                fail_msg("rank %d, layer %d: keys are off by %g, want %g", ranks[i], l,
                         seen.missed[l], seen.least[l]);
        }
    }
}

/* Per kv head: rows of A for the context, columns of B for the head, and the keys that the test read. */
static void test_what_is_read(void **state)
{
    const int64_t rank = 6, factors = rank * (N_CTX + DIM), keys = (int64_t)N_CTX * DIM;
    (void)state;
    run((int32_t)rank);
    assert_int_equal(seen.read, N_LAYERS * N_KV * (int64_t)sizeof(float) * (factors + keys));
}

static void refused(int32_t rank, const char *needle)
{
    struct kvl_planned *planned = NULL;
    struct kvl_err err = { 0 };
    seen.rank = rank;
    assert_int_equal(kvl_planned_create(&lowrank, rig_shape(&rig), "", 40, N_CTX, &planned, &err),
                     KVL_EINVAL);
    if (!strstr(err.msg, needle)) fail_msg("message \"%s\" lacks \"%s\"", err.msg, needle);
}

static void test_refusals(void **state)
{
    struct kvl_shape wide = *rig_shape(&rig);
    struct kvl_planned *planned = NULL;
    struct kvl_err err = { 0 };
    struct rig_run r = { .policy = &lowrank, .id = id, .n_ctx = N_CTX, .n_steps = 1, .budget = 40 };
    float *logits = rig_logits(&rig, 1);
    (void)state;
    refused(WIDTH + 1, "rank=33; the keys of a layer are 32 wide");
    wide.head_dim = KVL_SYM_EIG_MAX;
    assert_int_equal(kvl_planned_create(&lowrank, &wide, "", 40, N_CTX, &planned, &err),
                     KVL_EINVAL);
    assert_non_null(strstr(err.msg, "up to"));
    err = (struct kvl_err){ 0 };
    seen.rank = 6;
    seen.position = 1; /* the token behind the context */
    struct rig_session rs = rig_start(&rig, &r);
    assert_int_equal(kvl_session_decode(&rs.s, 1, &id[N_CTX], logits, &err), KVL_EPOLICY);
    if (!strstr(err.msg, "position 90, want 0 to 89")) fail_msg("message \"%s\"", err.msg);
    seen.position = 0;
    rig_end(&rs);
    kvl_free(logits);
}

static int open_rig(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = N_LAYERS, .seed = 71 }, .kv_type = KVL_KV_F32 };
    (void)state;
    rig_open(&rig, &desc);
    rig_tokens(id, N_TOK, 72);
    return rig_shape(&rig)->n_kv_heads == N_KV && rig_shape(&rig)->head_dim == DIM ? 0 : 1;
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
        cmocka_unit_test(test_no_rank_does_better),
        cmocka_unit_test(test_what_is_read),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("lowrank", tests, open_rig, close_rig);
}
