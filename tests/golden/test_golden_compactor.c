/* leverage, noncausal, compactor and capkv, against what is worked out from stored keys and values, from the queries of
 * the context and from their means. */
#include "golden/peek.h"

extern const struct kvl_policy *const kvl_policy_leverage,
    *const kvl_policy_noncausal, *const kvl_policy_compactor, *const kvl_policy_capkv;

enum { N = 110, SHORT = PEEK_WINDOW };
static const struct gw_llama llama = {
    .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .n_embd = 64, .head_dim = 16, .seed = 8
};
static struct shot shot, brief; /* of the brief one every query is at hand */

static int open_shot(void **state)
{
    (void)state;
    shot_open(&shot, &llama, N, 3);
    shot_open(&brief, &llama, SHORT, 5);
    peek_run(&brief);
    return 0;
}

static int close_shot(void **state)
{
    (void)state;
    shot_close(&shot);
    shot_close(&brief);
    return 0;
}

static void expect_best(struct shot *t, const struct kvl_policy *policy, const char *options,
                        int32_t budget, shot_scores scores, const void *with)
{
    struct rig_session rs = shot_policy(t, policy, options, budget);
    shot_expect_best(t, &rs, budget - 1, scores, with);
    rig_end(&rs);
}

/* ---- leverage ------------------------------------------------------------------------------------------ */

/* y = A^-1 x by Gauss and Jordan, for the A = ridge I + sum of w x x'. */
static void solve(double (*a)[16], double *y)
{
    for (int p = 0; p < 16; p++) {
        double pivot = a[p][p];
        for (int c = 0; c < 16; c++) a[p][c] /= pivot;
        y[p] /= pivot;
        for (int r = 0; r < 16; r++) {
            double f = a[r][p];
            if (r == p) continue;
            for (int c = 0; c < 16; c++) a[r][c] -= f * a[p][c];
            y[r] -= f * y[p];
        }
    }
}

static double leverage_of(double (*x)[16], const double *w, int32_t n, double ridge, int32_t i)
{
    double a[16][16] = { { 0 } }, y[16], sum = 0;
    for (int r = 0; r < 16; r++) {
        a[r][r] = ridge;
        y[r] = x[i][r];
        for (int c = 0; c < 16; c++)
            for (int32_t j = 0; j < n; j++) a[r][c] += (w ? w[j] : 1) * x[j][r] * x[j][c];
    }
    solve(a, y);
    for (int r = 0; r < 16; r++) sum += x[i][r] * y[r];
    return sum;
}

static void key_leverage(struct shot *t, int32_t layer, int32_t kv_head, int32_t first,
                         int32_t last, double *score)
{
    static double x[N][16];
    int32_t n = t->n - first - last;
    float *k = shot_read(t, layer, kv_head, KVL_PART_K_RAW);
    for (int c = 0; c < 16; c++) {
        double mean = 0;
        for (int32_t i = 0; i < n; i++) mean += (double)k[(first + i) * 16 + c] / n;
        for (int32_t i = 0; i < n; i++) x[i][c] = (double)k[(first + i) * 16 + c] - mean;
    }
    for (int32_t i = 0; i < n; i++) score[i] = leverage_of(x, NULL, n, .01, i);
    kvl_free(k);
}

static void leverage_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                            double *score)
{
    (void)with;
    key_leverage(t, layer, kv_head, 0, 0, score);
}

static void test_leverage(void **state)
{
    (void)state;
    expect_best(&shot, kvl_policy_leverage, "sketch=0", 41, leverage_scores, NULL);
    struct rig_session rs = shot_policy(&shot, kvl_policy_leverage, "sketch=400", 41);
    uint8_t mark[N];
    double score[N];
    int32_t same = 0;
    key_leverage(&shot, 0, 0, 0, 0, score);
    record_top(score, N, 40, mark);
    int32_t kept[N], n = kvl_seq_len(kvl_session_seq(rs.s), 0, 0);
    assert_int_equal(n, 40);
    assert_int_equal(rig_kept(&rs, 0, 0, kept), 40);
    for (int32_t i = 0; i < 40; i++) same += mark[kept[i]];
    assert_true(same >= 34); /* a wide sketch says nearly the same */
    rig_end(&rs);
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

struct blocks {
    const char *options;
    int32_t first, last, size;
};

static double dot(const float *a, const float *b)
{
    double sum = 0;
    for (int c = 0; c < 16; c++) sum += (double)a[c] * (double)b[c];
    return sum;
}

/* What the tokens of a block, `at` and on of n, receive: unscaled softmax, zeros fill the block up and take part. */
static void block_receives(int32_t layer, int32_t head, const float *k, int32_t first, int32_t at,
                           int32_t n, int32_t size, double *raw)
{
    for (int32_t i = 0; i < size && at + i < n; i++) {
        const float *q = peek.q[layer][SHORT - 1 - (first + at + i)] + head * 16;
        double e[64], sum = 0;
        for (int32_t j = 0; j < size; j++)
            sum += e[j] = at + j < n ? exp(dot(q, k + (first + at + j) * 16)) : 1;
        for (int32_t j = 0; j < size && at + j < n; j++) raw[at + j] += e[j] / sum / 2;
    }
    for (int32_t j = 0; j < size && at + j < n && n - at < size; j++)
        raw[at + j] += (double)(size - (n - at)) / size / 2; /* of queries that are zero */
}

/* score [n] of tokens first .. first + n - 1. */
static void block_scores(struct shot *t, int32_t layer, int32_t kv_head, const struct blocks *b,
                         double *score)
{
    float *k = shot_read(t, layer, kv_head, KVL_PART_K),
          *v = shot_read(t, layer, kv_head, KVL_PART_V);
    int32_t n = t->n - b->first - b->last;
    double raw[SHORT + 2] = { 0 };
    for (int32_t at = 0; at < n; at += b->size)
        for (int32_t g = 0; g < 2; g++)
            block_receives(layer, 2 * kv_head + g, k, b->first, at, n, b->size, raw + 1);
    for (int32_t i = 0; i < n; i++) {
        const float *x = v + (b->first + i) * 16;
        raw[1 + i] *= sqrt(dot(x, x));
    }
    for (int32_t i = 0; i < n; i++) score[i] = (raw[i] + raw[i + 1] + raw[i + 2]) / 3;
    kvl_free(k);
    kvl_free(v);
}

static void noncausal_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                             double *score)
{
    block_scores(t, layer, kv_head, with, score);
}

static void test_noncausal(void **state)
{
    static const struct blocks ways[] = { { "chunk=40", 0, 0, 40 },
                                          { "chunk=50", 0, 0, 50 },
                                          { "chunk=10", 0, 0, 10 },
                                          { "chunk=13", 0, 0, 13 } };
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        expect_best(&brief, kvl_policy_noncausal, ways[i].options, 14, noncausal_scores, &ways[i]);
}

/* ---- both ------------------------------------------------------------------------------------------------ */

/* Less the mean of both kv heads, by their deviation. */
static void z_scores(double (*x)[SHORT], int32_t n)
{
    double sum = 0, squares = 0;
    for (int32_t i = 0; i < 2 * n; i++) sum += x[i / n][i % n];
    for (int32_t i = 0; i < 2 * n; i++) squares += pow(x[i / n][i % n] - sum / (2 * n), 2);
    for (int32_t i = 0; i < 2 * n; i++)
        x[i / n][i % n] = (x[i / n][i % n] - sum / (2 * n)) / sqrt(squares / (2 * n - 1));
}

struct both {
    struct blocks blocks;
    double blending;
};

static void compactor_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                             double *score)
{
    const struct both *w = with;
    static double leverage[2][SHORT], attention[2][SHORT];
    int32_t first = w->blocks.first, last = w->blocks.last, n = t->n - first - last;
    for (int32_t h = 0; h < 2; h++) {
        key_leverage(t, layer, h, first, last, leverage[h]);
        block_scores(t, layer, h, &w->blocks, attention[h]);
    }
    z_scores(leverage, n);
    z_scores(attention, n);
    for (int32_t i = 0; i < t->n; i++)
        score[i] = i < first || i >= t->n - last
                       ? HUGE_VAL
                       : w->blending * leverage[kv_head][i - first] + attention[kv_head][i - first];
}

/* Budget 17: 16 of 40 stay, and 0.6 go. */
static void test_compactor(void **state)
{
    static const struct both ways[] = {
        { { "sketch=0,first=2,last=3,chunk=20", 2, 3, 20 }, .6 },
        { { "sketch=0,first=0,last=1,chunk=10,blending=0.35", 0, 1, 10 }, .35 },
        { { "sketch=0,first=5,last=0,chunk=30,blending=3", 5, 0, 30 }, 3 },
        { { "sketch=0,first=3,last=3,chunk=17,blending=0", 3, 3, 17 }, 0 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        expect_best(&brief, kvl_policy_compactor, ways[i].blocks.options, 17, compactor_scores,
                    &ways[i]);
}

/* Both ends by default, of a context of which the leverage alone is at hand: a weight that drowns the attention. */
static void drowned_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                           double *score)
{
    (void)with;
    key_leverage(t, layer, kv_head, 8, 4, score + 8);
    for (int32_t i = 0; i < 8; i++) score[i] = HUGE_VAL;
    for (int32_t i = N - 4; i < N; i++) score[i] = HUGE_VAL;
}

static void test_ends_of_compactor(void **state)
{
    (void)state;
    expect_best(&shot, kvl_policy_compactor, "sketch=0,blending=1000", 40, drowned_scores, NULL);
}

/* ---- CAPKV ----------------------------------------------------------------------------------------------- */

/* Means of queries before RoPE, from token SINK on, as the observer says. */
enum { SINK = 3 };
static float told[2][4 * 16];

static int told_plan(struct kvl_plan *plan)
{
    return kvl_plan_observe(plan, KVL_OBS_MOMENTS, SINK);
}

static int told_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const float *mean, *cov;
    int32_t n;
    scores->keep_tok = scores->n_tok;
    KVL_TRY(kvl_obs_moments(ctx, layer, SINK, &mean, &cov, &n));
    memcpy(told[layer], mean, sizeof told[layer]);
    return KVL_OK;
}

static const struct kvl_policy told_policy = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "told",
    .title = "Told",
    .paper = "none",
    .help = "writes down means of queries",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .plan = told_plan,
    .score = told_score,
};

struct cap {
    const char *options;
    double tau;
    int32_t n_future, n_sink;
};

/* The mean query of a head, turned to each of the next positions; pairs are neighbours. */
static void anchor_of(int32_t layer, int32_t head, int32_t n_future, double *anchor)
{
    memset(anchor, 0, 16 * sizeof *anchor);
    for (int32_t p = N; p < N + n_future; p++)
        for (int f = 0; f < 8; f++) {
            double angle = p * pow(10000, -f / 8.0), a = (double)told[layer][head * 16 + 2 * f],
                   b = (double)told[layer][head * 16 + 2 * f + 1];
            anchor[2 * f] += (a * cos(angle) - b * sin(angle)) / n_future;
            anchor[2 * f + 1] += (a * sin(angle) + b * cos(angle)) / n_future;
        }
}

static void capkv_weights(const struct cap *w, const float *k, const double *anchor, int32_t n,
                          double *weight)
{
    double length = 0, best = 0;
    for (int c = 0; c < 16; c++) length += anchor[c] * anchor[c];
    for (int32_t i = 0; i < n; i++) {
        double sum = 0;
        for (int c = 0; c < 16; c++) sum += anchor[c] * (double)k[i * 16 + c];
        weight[i] = exp(w->tau * sum / sqrt(length * dot(k + i * 16, k + i * 16)));
        best = fmax(best, weight[i]);
    }
    for (int32_t i = 0; i < n; i++) weight[i] /= best;
}

static void capkv_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                         double *score)
{
    static double x[N][16];
    const struct cap *w = with;
    int32_t n = N - w->n_sink;
    float *k = shot_read(t, layer, kv_head, KVL_PART_K),
          *v = shot_read(t, layer, kv_head, KVL_PART_V);
    for (int32_t i = 0; i < n * 16; i++) x[i / 16][i % 16] = (double)v[w->n_sink * 16 + i];
    for (int32_t i = 0; i < N; i++) score[i] = i < w->n_sink ? HUGE_VAL : 0;
    for (int32_t g = 0; g < 2; g++) {
        double anchor[16], weight[N], more[N];
        anchor_of(layer, 2 * kv_head + g, w->n_future, anchor);
        capkv_weights(w, k + w->n_sink * 16, anchor, n, weight);
        for (int32_t i = 0; i < n; i++) more[i] = weight[i] + 1e-6;
        for (int32_t i = 0; i < n; i++)
            score[w->n_sink + i] += weight[i] * leverage_of(x, more, n, 1, i);
    }
    kvl_free(k);
    kvl_free(v);
}

static void test_capkv(void **state)
{
    static const struct cap ways[] = { { "n_sink=3", 5, 512, 3 },
                                       { "n_sink=3,tau=0", 0, 512, 3 },
                                       { "n_sink=3,tau=1.5,n_future=4", 1.5, 4, 3 },
                                       { "n_sink=3,tau=12,n_future=1", 12, 1, 3 } };
    (void)state;
    struct rig_session rs = shot_policy(&shot, &told_policy, "", 0);
    rig_end(&rs);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        expect_best(&shot, kvl_policy_capkv, ways[i].options, 36, capkv_scores, &ways[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leverage),  cmocka_unit_test(test_noncausal),
        cmocka_unit_test(test_compactor), cmocka_unit_test(test_ends_of_compactor),
        cmocka_unit_test(test_capkv),
    };
    return cmocka_run_group_tests(tests, open_shot, close_shot);
}
