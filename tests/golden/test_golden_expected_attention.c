/* Expected attention: the worked example through the operators; the moments that the prefill keeps, and the
 * policy's choice, against the queries themselves, turned back to before RoPE. */
#include "golden/one_shot.h"

extern const struct kvl_policy *const kvl_policy_expected_attention;

static const struct kvl_ops *const tables[] = { &kvl_ops_ref, &kvl_ops_cpu };

/* ---- two channels, one frequency, positions 3 and 4 ------------------------------------------------- */

static void times(const struct kvl_ops *ops, float *y, const float *x, const float *m, int32_t n)
{
    struct kvl_weight w = {
        .data = m, .type = KVL_W_F32, .n_rows = 2, .n_cols = 2, .row_bytes = 2 * sizeof *m
    };
    assert_int_equal(ops->gemm(&(struct kvl_gemm_args){ .y = y, .x = x, .w = &w, .n = n }), KVL_OK);
}

static void expect(const float *got, const double *want, int32_t n)
{
    for (int32_t i = 0; i < n; i++) assert_float_equal((double)got[i], want[i], 2e-6);
}

static void mean_rotation(const struct kvl_ops *ops, float *r)
{
    static const double inv_freq[1] = { 1 };
    static const struct kvl_rope rope = { .inv_freq = inv_freq, .n_rot = 2, .mag = 1 };
    for (int32_t p = 3; p <= 4; p++) {
        float unit[4] = { 1, 0, 0, 1 }, turned[4];
        struct kvl_rope_args a = {
            .y = turned, .x = unit, .pos = &p, .rope = &rope, .n = 1, .n_heads = 2, .head_dim = 2
        };
        assert_int_equal(ops->rope(&a), KVL_OK);
        for (int j = 0; j < 2; j++)
            for (int c = 0; c < 2; c++) r[c * 2 + j] += turned[j * 2 + c] / 2;
    }
}

static void test_worked_example(void **state)
{
    static const float mu[2] = { 1, .5f }, sigma[4] = { .2f, .1f, .1f, .3f };
    static const float k[4][2] = { { 1, 0 }, { 0, 1 }, { -1, .5f }, { .5f, -2 } };
    static const double norm[4] = { 1, 2, .5, 1.5 };
    (void)state;
    for (int t = 0; t < 2; t++) {
        const struct kvl_ops *ops = tables[t];
        float r[4] = { 0 }, mean[2], half[4], cov[4], y[4], score[4];
        mean_rotation(ops, r);
        expect(r, (double[]){ -.821818, .307841, -.307841, -.821818 }, 4);
        times(ops, mean, mu, r, 1);
        expect(mean, (double[]){ -.667897, -.71875 }, 2);
        times(ops, half, r, sigma, 2);
        times(ops, cov, half, r, 2);
        expect(cov, (double[]){ .112909, .032763, .032763, .272167 }, 4);
        struct kvl_gauss_logits_args a = { .y = y,
                                           .x = &k[0][0],
                                           .mean = mean,
                                           .cov = cov,
                                           .n = 4,
                                           .n_heads = 1,
                                           .dim = 2,
                                           .scale = sqrtf(.5f) };
        assert_int_equal(ops->gauss_logits(&a), KVL_OK);
        expect(y, (double[]){ -.444048, -.440192, .255205, 1.043171 }, 4);
        struct kvl_softmax_args soft = { .x = y, .stride = 4, .n_rows = 1, .n = 4 };
        assert_int_equal(ops->softmax(&soft), KVL_OK);
        expect(y, (double[]){ .118471, .118929, .238393, .524207 }, 4);
        for (int i = 0; i < 4; i++) score[i] = (float)((double)y[i] * norm[i]);
        expect(score, (double[]){ .118471, .237857, .119197, .786311 }, 4);
    }
}

/* ---- the queries of a whole context ------------------------------------------------------------------- */

enum { LAYERS = 3, HEADS = 4, DIM = 64, N_CTX = 60, PARAM = 4 };

static struct {
    double q[LAYERS][HEADS][N_CTX][DIM]; /* before RoPE */
    float mean[LAYERS][HEADS][DIM], cov[LAYERS][HEADS][DIM][DIM];
    int32_t n, n_heads, dim;
} seen;

static int watcher_plan(struct kvl_plan *plan)
{
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, N_CTX));
    return kvl_plan_observe(plan, KVL_OBS_MOMENTS, PARAM);
}

static void turn_back(const float *q, int32_t pos, int32_t dim, double *out)
{
    for (int32_t i = 0; i < dim / 2; i++) {
        double angle = pos * pow(10000, -2.0 * i / dim), x = (double)q[2 * i],
               y = (double)q[2 * i + 1];
        out[2 * i] = x * cos(angle) + y * sin(angle);
        out[2 * i + 1] = y * cos(angle) - x * sin(angle);
    }
}

static int watcher_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const float *mean, *cov;
    float q[HEADS * DIM];
    int32_t dim = ctx->shape->head_dim, heads = ctx->shape->n_heads;
    scores->keep_tok = scores->n_tok;
    assert_true(dim <= DIM && heads <= HEADS && scores->n_tok == N_CTX);
    KVL_TRY(kvl_obs_moments(ctx, layer, PARAM, &mean, &cov, &seen.n));
    for (int32_t h = 0; h < heads; h++)
        for (int32_t r = 0; r < dim; r++) {
            seen.mean[layer][h][r] = mean[h * dim + r];
            memcpy(seen.cov[layer][h][r], cov + (h * dim + r) * dim, (size_t)dim * sizeof *cov);
        }
    for (int32_t t = 0; t < N_CTX; t++) {
        KVL_TRY(kvl_obs_window_query(ctx, layer, N_CTX - 1 - t, q));
        for (int32_t h = 0; h < heads; h++) turn_back(q + h * dim, t, dim, seen.q[layer][h][t]);
    }
    seen.n_heads = heads;
    seen.dim = dim;
    return KVL_OK;
}

static const struct kvl_policy watcher = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "watcher",
    .title = "Watcher",
    .paper = "none",
    .help = "writes down queries and their moments",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .plan = watcher_plan,
    .score = watcher_score,
};

static void naive_moments(int32_t layer, int32_t head, double *mean, double (*cov)[DIM])
{
    int32_t n = N_CTX - PARAM;
    for (int32_t r = 0; r < seen.dim; r++) {
        mean[r] = 0;
        for (int32_t t = PARAM; t < N_CTX; t++) mean[r] += seen.q[layer][head][t][r] / n;
    }
    for (int32_t r = 0; r < seen.dim; r++)
        for (int32_t c = 0; c < seen.dim; c++) {
            cov[r][c] = 0;
            for (int32_t t = PARAM; t < N_CTX; t++)
                cov[r][c] += (seen.q[layer][head][t][r] - mean[r]) *
                             (seen.q[layer][head][t][c] - mean[c]) / n;
        }
}

static const struct gw_llama llama = { .n_layers = LAYERS, .n_kv_heads = 2, .seed = 4 };

static void watch(struct shot *t)
{
    struct rig_session rs = shot_policy(t, &watcher, "", 0);
    rig_end(&rs);
    assert_int_equal(seen.n, N_CTX - PARAM);
}

static void test_moments_are_those_of_the_queries(void **state)
{
    struct shot t;
    (void)state;
    shot_open(&t, &llama, N_CTX, 3);
    watch(&t);
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t h = 0; h < seen.n_heads; h++) {
            double mean[DIM], cov[DIM][DIM];
            naive_moments(l, h, mean, cov);
            for (int32_t r = 0; r < seen.dim; r++) {
                assert_float_equal((double)seen.mean[l][h][r], mean[r], 1e-5);
                for (int32_t c = 0; c < seen.dim; c++)
                    assert_float_equal((double)seen.cov[l][h][r][c], cov[r][c], 1e-4);
            }
        }
    shot_close(&t);
}

struct expected {
    int32_t n_future, n_sink;
    double epsilon;
    bool covariance, vnorm;
};

/* Turns a vector by the mean rotation of the positions behind the context. */
static void mean_turn(const struct expected *o, const double *x, double *y)
{
    for (int32_t i = 0; i < seen.dim / 2; i++) {
        double c = 0, s = 0, f = pow(10000, -2.0 * i / seen.dim);
        for (int32_t p = N_CTX; p < N_CTX + o->n_future; p++) {
            c += cos(p * f) / o->n_future;
            s += sin(p * f) / o->n_future;
        }
        y[2 * i] = c * x[2 * i] - s * x[2 * i + 1];
        y[2 * i + 1] = s * x[2 * i] + c * x[2 * i + 1];
    }
}

static void add_head(const struct expected *o, int32_t layer, int32_t head, const float *k,
                     double *score)
{
    double mean[DIM], turned[DIM], cov[DIM][DIM], half[DIM][DIM], column[DIM], p[N_CTX], sum = 0;
    naive_moments(layer, head, mean, cov);
    mean_turn(o, mean, turned);
    for (int32_t r = 0; r < seen.dim; r++) mean_turn(o, cov[r], half[r]); /* S R^T */
    for (int32_t c = 0; c < seen.dim; c++) {
        double x[DIM];
        for (int32_t r = 0; r < seen.dim; r++) x[r] = half[r][c];
        mean_turn(o, x, column);
        for (int32_t r = 0; r < seen.dim; r++) cov[r][c] = column[r];
    }
    for (int32_t t = o->n_sink; t < N_CTX; t++) {
        double linear = 0, square = 0;
        for (int32_t r = 0; r < seen.dim; r++) {
            linear += (double)k[t * seen.dim + r] * turned[r];
            for (int32_t c = 0; c < seen.dim; c++)
                square += (double)k[t * seen.dim + r] * cov[r][c] * (double)k[t * seen.dim + c];
        }
        p[t] = exp(linear / sqrt(seen.dim) + (o->covariance ? square / (2 * seen.dim) : 0));
        sum += p[t];
    }
    for (int32_t t = o->n_sink; t < N_CTX; t++) score[t] += p[t] / sum;
}

static void expected_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                            double *score)
{
    const struct expected *o = with;
    int32_t group = seen.n_heads / rig_shape(&t->r)->n_kv_heads;
    float *k = shot_read(t, layer, kv_head, KVL_PART_K),
          *v = shot_read(t, layer, kv_head, KVL_PART_V);
    for (int32_t i = 0; i < N_CTX; i++) score[i] = i < o->n_sink ? 1e9 : 0;
    for (int32_t g = 0; g < group; g++) add_head(o, layer, kv_head * group + g, k, score);
    for (int32_t i = o->n_sink; i < N_CTX; i++) {
        double norm = 0;
        for (int32_t c = 0; c < seen.dim; c++) norm += pow((double)v[i * seen.dim + c], 2);
        score[i] = (score[i] / group + o->epsilon) * (o->vnorm ? sqrt(norm) : 1);
    }
    kvl_free(k);
    kvl_free(v);
}

static void test_policy_keeps_what_the_formula_says(void **state)
{
    static const struct {
        const char *options;
        int32_t budget;
        struct expected o;
    } cases[] = {
        { "", 25, { 512, 4, 0, true, true } },
        { "n_future=3", 16, { 3, 4, 0, true, true } },
        { "epsilon=0.02,n_future=40", 25, { 40, 4, .02, true, true } },
        { "use_covariance=false", 25, { 512, 4, 0, false, true } },
        { "use_vnorm=false", 33, { 512, 4, 0, true, false } },
        { "use_vnorm=false,use_covariance=false,n_future=1", 20, { 1, 4, 0, false, false } },
    };
    struct shot t;
    (void)state;
    shot_open(&t, &llama, N_CTX, 3);
    watch(&t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig_session rs =
            shot_policy(&t, kvl_policy_expected_attention, cases[i].options, cases[i].budget);
        shot_expect_best(&t, &rs, cases[i].budget - 1, expected_scores, &cases[i].o);
        rig_end(&rs);
    }
    shot_close(&t);
}

/* The sums of a prefill in one chunk and in many are the same, bit for bit. */
static void test_chunks_do_not_matter(void **state)
{
    static float mean[2][LAYERS][HEADS][DIM], cov[2][LAYERS][HEADS][DIM][DIM];
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct rig_desc desc = { .llama = llama, .chunk_tok = i ? 7 : 512 };
        struct rig r;
        int32_t id[N_CTX];
        rig_open(&r, &desc);
        rig_tokens(id, N_CTX, 3);
        struct rig_run run = { .policy = &watcher, .id = id, .n_ctx = N_CTX };
        struct rig_session rs = rig_start(&r, &run);
        rig_end(&rs);
        rig_close(&r);
        memcpy(mean[i], seen.mean, sizeof seen.mean);
        memcpy(cov[i], seen.cov, sizeof seen.cov);
    }
    assert_memory_equal(mean[0], mean[1], sizeof mean[0]);
    assert_memory_equal(cov[0], cov[1], sizeof cov[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worked_example),
        cmocka_unit_test(test_moments_are_those_of_the_queries),
        cmocka_unit_test(test_policy_keeps_what_the_formula_says),
        cmocka_unit_test(test_chunks_do_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
