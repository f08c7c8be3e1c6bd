/* OmniKV's filters in the prefill: sizes from the budget, the layer map, and on
 * a model what a filter selects for a chunk against a softmax computed here,
 * and what is read of it. */
#define KVL_PLUGIN
#include "../methods/omnikv_prefill.c"

#include "conformance/rig.h"

/* ---- sizes
 * ----------------------------------------------------------------------------------------
 */

static const struct kvl_shape shape32 = {
    .n_layers = 32, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .n_embd = 16, .n_vocab = 9
};

static int plan_with(const char *options, int32_t budget, int32_t context, struct okp_opts *o,
                     struct kvl_err *err)
{
    struct kvl_planned *p = NULL;
    *err = (struct kvl_err){ 0 };
    int rc = kvl_planned_create(&omnikv_prefill, &shape32, options, budget, context, &p, err);
    if (rc == KVL_OK) {
        kvl_opt_defaults(okp_options, o, err);
        RIG_OK(err, kvl_opt_parse(okp_options, o, kvl_planned_options(p), err));
        assert_true(kvl_planned_own_prefill(p));
    }
    kvl_planned_destroy(p);
    return rc;
}

static void expect_sizes(const char *options, int32_t budget, int32_t chunk, int32_t k)
{
    struct okp_opts o;
    struct kvl_err err;
    RIG_OK(&err, plan_with(options, budget, 10000, &o, &err));
    assert_int_equal(o.chunk, chunk);
    assert_int_equal(o.num_of_selected_tokens, k);
}

static void test_sizes(void **state)
{
    struct okp_opts o;
    struct kvl_err err;
    (void)state;
    expect_sizes("", 0, 1024, 1024);
    expect_sizes("r=0.5", 0, 1024, 512);
    expect_sizes("", 512, 256, 256);
    expect_sizes("r=3", 512, 128, 384);
    expect_sizes("", 300, 128, 172); /* whole 64s */
    expect_sizes("", 100, 50, 50);
    expect_sizes("chunk=100", 512, 100, 412);
    expect_sizes("num_of_selected_tokens=100", 512, 384, 100);
    RIG_OK(&err, plan_with("", 10000, 10000, &o, &err));
    assert_int_equal(o.chunk, 10000);
    assert_int_equal(plan_with("chunk=600", 512, 10000, &o, &err), KVL_EINVAL);
    assert_int_equal(plan_with("chunk=300,num_of_selected_tokens=300", 512, 10000, &o, &err),
                     KVL_EINVAL);
    assert_int_equal(plan_with("filter_layers=8+2", 512, 10000, &o, &err), KVL_EINVAL);
    assert_int_equal(plan_with("filter_layers=30", 512, 10000, &o, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "leaves none"));
}

/* The paper's map of 32 layers: filters 2, 8, 18, one dense layer behind each.
 */
static void test_layers(void **state)
{
    static const char want[] = "DDDDSSSSDDSSSSSSSSDDSSSSSSSSSSSS";
    struct kvl_filter_role role[32];
    struct kvl_err no;
    (void)state;
    struct kvl_filter_options filters = { .filter_layers = "2+8+18", .num_wait_load_layers = 1 };
    RIG_OK(&no,
           kvl_filter_roles(&(struct kvl_pctx){ .shape = &shape32, .err = &no }, &filters, role));
    for (int l = 0; l < 32; l++)
        assert_int_equal(role[l].filter >= 0 && role[l].filter != l, want[l] == 'S');
    assert_int_equal(role[8].filter, 8);
    assert_int_equal(role[8].first, 10);
    assert_int_equal(role[8].last, 17);
    assert_int_equal(role[9].filter, -1);
    /* The refusal asked for 32 to 31 dense layers. */
    struct okp_opts o;
    struct kvl_err err;
    assert_int_equal(plan_with("num_wait_load_layers=31", 256, 1000, &o, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "num_wait_load_layers=31; behind a filter"));
    assert_non_null(strstr(err.msg, "give 0 to 30"));
}

/* ---- on a model
 * -------------------------------------------------------------------------------------
 */

enum { N_CTX = 170, CHUNK = 48, K = 40, WINDOW = 8 };
static int n_lists;

/* score [step->pos]: what the last WINDOW queries put on the tokens before the
 * chunk, largest of any head. */
static void naive_score(const struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, double *score)
{
    const struct kvl_shape *sh = ctx->shape;
    int32_t d = sh->head_dim, end = step->pos + step->n_tok, pos[N_CTX];
    float *k = rig_floats((size_t)(end * d));
    for (int32_t j = 0; j < end; j++) pos[j] = j;
    for (int32_t i = step->n_tok - WINDOW; i < step->n_tok; i++) {
        double most[N_CTX] = { 0 };
        for (int32_t h = 0; h < sh->n_heads; h++) {
            double p[N_CTX], sum = 0;
            int32_t kv = h / (sh->n_heads / sh->n_kv_heads), n = step->pos + i + 1;
            assert_int_equal(kvl_read_keys(ctx, step->layer, kv, pos, end, false, k), KVL_OK);
            for (int32_t j = 0; j < n; j++) {
                p[j] = 0;
                for (int32_t c = 0; c < d; c++)
                    p[j] += (double)q->q[(i * sh->n_heads + h) * d + c] * (double)k[j * d + c];
                sum += p[j] = exp(p[j] / sqrt(d));
            }
            for (int32_t j = 0; j < step->pos; j++) most[j] = fmax(most[j], p[j] / sum);
        }
        for (int32_t j = 0; j < step->pos; j++) score[j] += most[j];
    }
    kvl_free(k);
}

static int checked_mask(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_prefill_mask *mask)
{
    const struct okp_state *s = ctx->state;
    double score[N_CTX] = { 0 }, least = HUGE_VAL;
    bool in[N_CTX] = { false };
    KVL_TRY(okp_prefill_mask(ctx, step, q, mask));
    if (step->layer != 1 || step->pos == 0) return KVL_OK;
    int32_t n = KVL_MIN(K, step->pos), searched = step->pos - WINDOW;
    assert_int_equal(s->n_list, n);
    naive_score(ctx, step, q, score);
    for (int32_t i = 0; i < n; i++) {
        assert_true(i == 0 || s->list[i] > s->list[i - 1]);
        in[s->list[i]] = true;
        if (s->list[i] < searched) least = fmin(least, score[s->list[i]]);
    }
    for (int32_t j = 0; j < step->pos; j++) {
        if (j >= searched) assert_true(in[j]);
        if (!in[j] && score[j] > least + 1e-5)
            fail_msg("token %d of score %g is left out, one of %g is in", j, score[j], least);
    }
    n_lists++;
    return KVL_OK;
}

static void test_model(void **state)
{
    struct kvl_policy checked = omnikv_prefill;
    struct rig r;
    int32_t id[N_CTX];
    (void)state;
    checked.prefill_mask = checked_mask;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 4, .n_kv_heads = 2, .seed = 4 } });
    rig_tokens(id, N_CTX, 5);
    struct rig_run run = { .policy = &checked,
                           .options =
                               "filter_layers=1,chunk=48,num_of_selected_tokens=40,window_size=8",
                           .id = id,
                           .n_ctx = N_CTX };
    struct rig_session rs = rig_start(&r, &run);
    assert_int_equal(n_lists, 3); /* chunks behind the first */
    int64_t heads = rig_shape(&r)->n_heads, want = 2 * heads * N_CTX * (N_CTX + 1) / 2;
    for (int32_t i = 0; i < N_CTX; i++) {
        int32_t past = i / CHUNK * CHUNK;
        want += 2 * heads * (KVL_MIN(K, past) + i - past + 1); /* layers 2 and 3 */
    }
    assert_int_equal(kvl_session_counters(rs.s)->prefill_pairs, want);
    rig_end(&rs);
    rig_close(&r);
}

/* ---- filters by measurement -------------------------------------------------------------------------- */

enum { M_LAYERS = 5, M_CHUNK = 64, M_K = M_CHUNK / 4 };
static bool was_measured;

/* C(l, m) of the first chunk: per query the M_K largest weights of any head of layer l, and what of layer
 * m's mean weight falls on them and on the query's own token. */
static void naive_capture(const struct kvl_pctx *ctx, double c[M_LAYERS][M_LAYERS])
{
    const struct kvl_shape *sh = ctx->shape;
    static float p[M_LAYERS][16][M_CHUNK];
    memset(c, 0, sizeof(double[M_LAYERS][M_LAYERS]));
    for (int32_t b = 0; b < 32; b++) {
        int32_t own = M_CHUNK - 1 - b;
        bool in[M_LAYERS][M_CHUNK] = { { false } };
        for (int32_t l = 0; l < M_LAYERS; l++) {
            assert_int_equal(kvl_obs_window_probs(ctx, l, b, &p[l][0][0], M_CHUNK), KVL_OK);
            for (int32_t n = 0; n < M_K; n++) {
                int32_t best = -1;
                float most = -1;
                for (int32_t j = 0; j < own; j++)
                    for (int32_t h = 0; h < sh->n_heads; h++)
                        if (!in[l][j] && p[l][h][j] > most) {
                            most = p[l][h][j];
                            best = j;
                        }
                in[l][best] = true;
            }
        }
        for (int32_t l = 0; l < M_LAYERS; l++)
            for (int32_t m = l; m < M_LAYERS; m++)
                for (int32_t h = 0; h < sh->n_heads; h++)
                    for (int32_t j = 0; j <= own; j++)
                        if (in[l][j] || j == own)
                            c[l][m] += (double)p[m][h][j] / (32.0 * sh->n_heads);
    }
}

/* What a set of filters captures, or -1: each serves a layer, at most 2 layers are dense. */
static double set_value(double c[M_LAYERS][M_LAYERS], unsigned set, double *sparse)
{
    double sum = 0;
    int filter = -1, dense = 0;
    bool serves = true;
    *sparse = 0;
    for (int l = 0; l < M_LAYERS; l++) {
        if (set >> l & 1) {
            if (!serves) return -1;
            filter = l;
            serves = false;
            dense++;
            sum++;
        } else if (filter < 0) {
            dense++;
            sum++;
        } else {
            serves = true;
            sum += c[filter][l];
            *sparse += c[filter][l];
        }
    }
    return serves && filter >= 0 && dense <= 2 ? sum : -1;
}

static int measured_mask(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_prefill_mask *mask)
{
    const struct okp_state *s = ctx->state;
    double c[M_LAYERS][M_LAYERS], best = -1, sparse = 0, own = 0, of_best = 0;
    unsigned set = 0;
    bool first = step->pos == M_CHUNK && step->layer == 0;
    if (first) naive_capture(ctx, c);
    KVL_TRY(okp_prefill_mask(ctx, step, q, mask));
    if (!first) return KVL_OK;
    for (int l = 0; l < M_LAYERS; l++) {
        set |= s->role[l].filter == l ? 1u << l : 0;
        if (s->role[l].filter >= 0 && s->role[l].filter != l) own += c[l][l];
    }
    for (unsigned other = 1; other < 1u << M_LAYERS; other++)
        best = fmax(best, set_value(c, other, &sparse));
    double got = set_value(c, set, &of_best);
    if (got < best - 1e-4) fail_msg("filters %x capture %g, the best %g", set, got, best);
    assert_true(fabs(kvl_filter_sum(ctx, s->role).capture - of_best) < 1e-4);
    assert_true(fabs(kvl_filter_sum(ctx, s->role).own - own) < 1e-4);
    was_measured = true;
    return KVL_OK;
}

static void test_measured(void **state)
{
    struct kvl_policy checked = omnikv_prefill;
    struct rig r;
    int32_t id[N_CTX];
    (void)state;
    checked.prefill_mask = measured_mask;
    for (uint64_t seed = 1; seed < 5; seed++) {
        was_measured = false;
        rig_open(&r, &(struct rig_desc){
                         .llama = { .n_layers = M_LAYERS, .n_kv_heads = 2, .seed = seed } });
        rig_tokens(id, N_CTX, 5);
        struct rig_run run = {
            .policy = &checked, .options = "chunk=64", .budget = 128, .id = id, .n_ctx = N_CTX
        };
        struct rig_session rs = rig_start(&r, &run);
        assert_true(was_measured);
        rig_end(&rs);
        rig_close(&r);
    }
}

/* A context that turns out longer than was planned: lists were written beyond the state, which has room
 * for as many tokens as were planned. */
enum { PLANNED = 60 };
static int32_t longest;

static int listing_mask(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_prefill_mask *mask)
{
    const struct okp_state *s = ctx->state;
    KVL_TRY(okp_prefill_mask(ctx, step, q, mask));
    longest = KVL_MAX(longest, s->n_list);
    return KVL_OK;
}

static void test_longer_than_planned(void **state)
{
    struct kvl_policy listing = omnikv_prefill;
    struct rig_session rs = { 0 };
    struct rig r;
    int32_t id[N_CTX];
    (void)state;
    listing.prefill_mask = listing_mask;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = M_LAYERS, .seed = 3 } });
    rig_tokens(id, N_CTX, 5);
    RIG_OK(&r.err, kvl_planned_create(&listing, rig_shape(&r), "chunk=16,filter_layers=0", 400,
                                      PLANNED, &rs.planned, &r.err));
    RIG_OK(&r.err, kvl_session_create(r.engine, &rs.s, &r.err));
    RIG_OK(&r.err, kvl_session_attach(rs.s, rs.planned, 1, KVL_EXEC_REAL, &r.err));
    RIG_OK(&r.err, kvl_session_prefill(rs.s, id, N_CTX, NULL, true, &r.err));
    assert_int_equal(longest, PLANNED);
    rig_end(&rs);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_measured),
        cmocka_unit_test(test_longer_than_planned),
    };
    return cmocka_run_group_tests_name("omnikv_prefill", tests, NULL, NULL);
}
