/* Policies that score a context once, against formulas worked out from stored keys and values and from what each query
 * of the window says. */
#include "golden/peek.h"

extern const struct kvl_policy *const kvl_policy_curdkv,
    *const kvl_policy_leverage, *const kvl_policy_noncausal,
                                    *const kvl_policy_compactor,
                                        *const kvl_policy_capkv,
                                            *const kvl_policy_qfilters,
                                                *const kvl_policy_finch,
                                                    *const kvl_policy_simlayerkv,
                                                        *const kvl_policy_defensivekv,
                                                            *const kvl_policy_defensivekv_layer;

enum { N = 110 };
static const struct gw_llama llama = {
    .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .n_embd = 64, .head_dim = 16, .seed = 8
};
static struct shot shot;

static int open_shot(void **state)
{
    (void)state;
    shot_open(&shot, &llama, N, 3);
    peek_run(&shot);
    return 0;
}

static int close_shot(void **state)
{
    (void)state;
    shot_close(&shot);
    return 0;
}

static void expect_best(const struct kvl_policy *policy, const char *options, int32_t budget,
                        shot_scores scores)
{
    struct rig_session rs = shot_policy(&shot, policy, options, budget);
    shot_expect_best(&shot, &rs, budget - 1, scores, NULL);
    rig_end(&rs);
}

/* ---- CurDKV ------------------------------------------------------------------------------------------ */

static double part_of(const float *x, int32_t i, int32_t n, int32_t local)
{
    double sum = 0, own = 0;
    for (int32_t j = i / local * local; j < KVL_MIN(n, (i / local + 1) * local); j++) {
        double square = 0;
        for (int32_t c = 0; c < 16; c++) square += pow((double)x[j * 16 + c], 2);
        sum += square;
        if (j == i) own = square;
    }
    return own / sum;
}

static void curdkv_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                          double *score)
{
    float *k = shot_read(t, layer, kv_head, KVL_PART_K),
          *v = shot_read(t, layer, kv_head, KVL_PART_V);
    (void)with;
    for (int32_t i = 0; i < N; i++)
        score[i] = i < 4 ? 1 : part_of(k, i, N, 16) * part_of(v, i, N, 16);
    kvl_free(k);
    kvl_free(v);
}

static void test_curdkv(void **state)
{
    (void)state;
    expect_best(kvl_policy_curdkv, "", 31, curdkv_scores);
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
    int32_t n = N - first - last;
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
    expect_best(kvl_policy_leverage, "sketch=0", 41, leverage_scores);
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

/* Of the tokens between the ends: unscaled softmax within a block, zeros fill it up and take part.  Queries of the
 * whole context are not at hand: block 0 of a context of the window's length is. */
enum { SHORT = PEEK_WINDOW };

static void noncausal_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                             double *score)
{
    const int32_t *size = with;
    float *k = shot_read(t, layer, kv_head, KVL_PART_K),
          *v = shot_read(t, layer, kv_head, KVL_PART_V);
    double raw[SHORT] = { 0 };
    for (int32_t g = 0; g < 2; g++)
        for (int32_t i = 0; i < *size; i++) {
            double logit[64] = { 0 }, sum = 0;
            const float *q =
                i < SHORT ? peek.q[layer][SHORT - 1 - i] + (kv_head * 2 + g) * 16 : NULL;
            for (int32_t j = 0; q && j < SHORT; j++)
                for (int c = 0; c < 16; c++) logit[j] += (double)q[c] * (double)k[j * 16 + c];
            for (int32_t j = 0; j < *size; j++) sum += exp(logit[j]);
            for (int32_t j = 0; j < SHORT; j++) raw[j] += exp(logit[j]) / sum / 2;
        }
    for (int32_t j = 0; j < SHORT; j++) {
        double square = 0;
        for (int c = 0; c < 16; c++) square += pow((double)v[j * 16 + c], 2);
        raw[j] *= sqrt(square);
    }
    for (int32_t j = 0; j < SHORT; j++)
        score[j] = ((j > 0 ? raw[j - 1] : 0) + raw[j] + (j + 1 < SHORT ? raw[j + 1] : 0)) / 3;
    kvl_free(k);
    kvl_free(v);
}

static void test_noncausal(void **state)
{
    struct shot t;
    (void)state;
    shot_open(&t, &llama, SHORT, 5);
    peek_run(&t);
    for (int i = 0; i < 2; i++) {
        int32_t size = i == 0 ? SHORT : 20;
        struct rig_session rs =
            shot_policy(&t, kvl_policy_noncausal, i == 0 ? "chunk=12" : "chunk=20", 6);
        shot_expect_best(&t, &rs, 5, noncausal_scores, &size);
        rig_end(&rs);
    }
    shot_close(&t);
    peek_run(&shot);
}

/* A weight that drowns the attention leaves the leverage of what lies between the ends. */
static void compactor_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                             double *score)
{
    (void)with;
    key_leverage(t, layer, kv_head, 8, 4, score + 8);
    for (int32_t i = 0; i < 8; i++) score[i] = HUGE_VAL;
    for (int32_t i = N - 4; i < N; i++) score[i] = HUGE_VAL;
}

static void test_compactor(void **state)
{
    (void)state;
    expect_best(kvl_policy_compactor, "sketch=0,blending=1000", 40, compactor_scores);
}

/* ---- CAPKV ----------------------------------------------------------------------------------------------- */

/* tau = 0: all weights are 1. */
static void capkv_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                         double *score)
{
    static double x[N][16];
    float *v = shot_read(t, layer, kv_head, KVL_PART_V);
    (void)with;
    for (int32_t i = 0; i < (N - 4) * 16; i++) x[i / 16][i % 16] = (double)v[4 * 16 + i];
    for (int32_t i = 0; i < N; i++)
        score[i] = i < 4 ? HUGE_VAL : leverage_of(x, NULL, N - 4, 1, i - 4);
    kvl_free(v);
}

static void test_capkv(void **state)
{
    (void)state;
    expect_best(kvl_policy_capkv, "tau=0", 36, capkv_scores);
}

/* ---- Q-Filters -------------------------------------------------------------------------------------------- */

static void filter_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                          double *score)
{
    float *k = shot_read(t, layer, kv_head, KVL_PART_K);
    (void)with;
    for (int32_t i = 0; i < N; i++) {
        score[i] = 0;
        for (int c = 0; c < 16; c++) score[i] += (double)k[i * 16 + c] * (c % 3 - kv_head + layer);
    }
    kvl_free(k);
}

static void test_qfilters(void **state)
{
    char path[] = "/tmp/kvl_filters_XXXXXX", options[128];
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    for (int l = 0; l < 2; l++)
        for (int h = 0; h < 2; h++) {
            fprintf(f, "%d %d", l, h);
            for (int c = 0; c < 16; c++) fprintf(f, " %d", c % 3 - h + l);
            fputc('\n', f);
        }
    fclose(f);
    snprintf(options, sizeof options, "table=%s", path);
    expect_best(kvl_policy_qfilters, options, 33, filter_scores);
    remove(path);
}

enum { ODD = 11 }; /* of an even number half may point either way */

/* Measured: the direction in which the queries' products are largest, by many rounds of multiplication. */
static void measured_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                            double *score)
{
    double filter[16] = { 0 };
    float *k = shot_read(t, layer, kv_head, KVL_PART_K);
    (void)with;
    for (int32_t h = 2 * kv_head; h < 2 * kv_head + 2; h++) {
        double v[16], length = 0;
        int along = 0;
        for (int c = 0; c < 16; c++) v[c] = 1 + .1 * c;
        for (int round = 0; round < 3000; round++, length = 0) {
            double next[16] = { 0 };
            for (int w = 0; w < ODD; w++) {
                double dot = 0;
                for (int c = 0; c < 16; c++) dot += (double)peek.q[layer][w][h * 16 + c] * v[c];
                for (int c = 0; c < 16; c++) next[c] += dot * (double)peek.q[layer][w][h * 16 + c];
            }
            for (int c = 0; c < 16; c++) length += next[c] * next[c];
            for (int c = 0; c < 16; c++) v[c] = next[c] / sqrt(length);
        }
        for (int w = 0; w < ODD; w++) {
            double dot = 0;
            for (int c = 0; c < 16; c++) dot += (double)peek.q[layer][w][h * 16 + c] * v[c];
            along += dot > 0;
        }
        for (int c = 0; c < 16; c++) filter[c] += (2 * along > ODD ? .5 : -.5) * v[c];
    }
    for (int32_t i = 0; i < N; i++) {
        score[i] = 0;
        for (int c = 0; c < 16; c++) score[i] += (double)k[i * 16 + c] * filter[c];
    }
    kvl_free(k);
}

static void test_qfilters_measured(void **state)
{
    (void)state;
    expect_best(kvl_policy_qfilters, "samples=11", 33, measured_scores);
}

/* ---- FINCH ------------------------------------------------------------------------------------------------- */

static void finch_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                         double *score)
{
    (void)t;
    (void)with;
    for (int32_t i = 0; i < N; i++) {
        score[i] = i >= N - 12 ? HUGE_VAL : 0;
        for (int32_t back = 0; i < N - 12 && back < 12; back++)
            for (int32_t g = 0; g < 2; g++)
                score[i] +=
                    (double)peek.probs[layer][back][(kv_head * 2 + g) * N + i] * (N - 1 - back);
    }
}

static void test_finch(void **state)
{
    (void)state;
    expect_best(kvl_policy_finch, "window=12", 36, finch_scores);
}

/* ---- SimLayerKV --------------------------------------------------------------------------------------------- */

static void test_simlayerkv(void **state)
{
    double weight[2] = { 0 };
    char options[64];
    (void)state;
    for (int32_t l = 0; l < 2; l++)
        for (int32_t h = 0; h < 4; h++)
            for (int32_t i = 0; i < N - 1; i++)
                if (i < 4 || i >= N - 1 - 20) weight[l] += (double)peek.probs[l][0][h * N + i] / 4;
    assert_true(fabs(weight[0] - weight[1]) > 1e-3);
    snprintf(options, sizeof options, "n_recent=20,threshold=%.6f", (weight[0] + weight[1]) / 2);
    struct rig_session rs = shot_policy(&shot, kvl_policy_simlayerkv, options, 0);
    for (int32_t l = 0; l < 2; l++) {
        int32_t want[N], n = 0;
        bool lazy = weight[l] > weight[1 - l];
        for (int32_t i = 0; i < N; i++)
            if (!lazy || i < 4 || i >= N - 19) want[n++] = i;
        for (int32_t h = 0; h < 2; h++) rig_expect_kept(&rs, l, h, want, n);
    }
    rig_end(&rs);
    /* By the budget: the lazier layer pays for the other. */
    rs = shot_policy(&shot, kvl_policy_simlayerkv, "n_recent=20", 71);
    for (int32_t l = 0; l < 2; l++)
        assert_int_equal(kvl_seq_len(kvl_session_seq(rs.s), l, 0),
                         weight[l] > weight[1 - l] ? 2 * 70 - N : N);
    rig_end(&rs);
}

/* ---- DefensiveKV -------------------------------------------------------------------------------------------- */

enum { W = PEEK_WINDOW, M = N - W };

struct defence {
    double score[2][M], mean[2][M], bias;
};

/* By the fork's lines: rows pooled and brought back to their sum, the largest, not below the mean; norms as parts. */
static void defend(int32_t layer, struct defence *d)
{
    memset(d, 0, sizeof *d);
    for (int32_t h = 0; h < 4; h++)
        for (int32_t w = 0; w < W; w++) {
            const float *p = peek.probs[layer][w] + h * N;
            double pooled[M], sum = 0, base = 0;
            for (int32_t i = 0; i < M; i++) {
                pooled[i] = 0;
                for (int32_t j = KVL_MAX(0, i - 2); j <= KVL_MIN(M - 1, i + 2); j++)
                    pooled[i] += (double)p[j] / 5;
                sum += pooled[i];
                base += (double)p[i];
                d->mean[h / 2][i] += (double)p[i] / (2 * W);
                if (i >= M - W) d->bias += (double)p[i] / (4 * W);
            }
            for (int32_t i = 0; i < M; i++)
                d->score[h / 2][i] = fmax(d->score[h / 2][i], pooled[i] * base / sum);
        }
    for (int32_t h = 0; h < 2; h++) {
        double mean = 0;
        for (int32_t i = 0; i < M; i++) mean += d->score[h][i] / M;
        for (int32_t i = 0; i < M; i++)
            d->score[h][i] = fmax(d->score[h][i], mean) * peek_norm(layer, h, 2, i) /
                             (peek_norm(layer, 0, 2, i) + peek_norm(layer, 1, 2, i));
    }
}

/* Tokens that carry the most go first, `most` of a lane at most. */
static void defend_first(struct defence *d, int32_t most)
{
    double best = 0;
    for (int32_t i = 0; i < 2 * M; i++) best = fmax(best, d->score[i / M][i % M]);
    for (int32_t h = 0; h < 2; h++) {
        double all = 0, sum = 0;
        uint8_t mark[M];
        int32_t k = 0;
        for (int32_t i = 0; i < M; i++) all += d->mean[h][i];
        for (; k < M; k++) {
            record_top(d->mean[h], M, k + 1, mark);
            sum = 0;
            for (int32_t i = 0; i < M; i++) sum += mark[i] ? d->mean[h][i] : 0;
            if (sum >= (.9 - d->bias) * all) break;
        }
        record_top(d->mean[h], M, KVL_MIN(k, most), mark);
        for (int32_t i = 0; i < M; i++)
            if (mark[i]) d->score[h][i] = best;
    }
}

static void expect_defended(const struct kvl_policy *policy, int32_t n_layers, int32_t budget)
{
    static struct defence d[2];
    static double all[4 * M];
    uint8_t mark[4 * M];
    struct rig_session rs = shot_policy(&shot, policy, "window=12", budget);
    for (int32_t l = 0; l < 2; l++) {
        defend(l, &d[l]);
        defend_first(&d[l], budget - 1 - W);
    }
    for (int32_t l = 0; l < 2; l += n_layers) {
        int32_t n = n_layers * 2 * M;
        for (int32_t i = 0; i < n; i++) all[i] = d[l + i / (2 * M)].score[i / M % 2][i % M];
        record_top(all, n, n_layers * 2 * (budget - 1 - W), mark);
        for (int32_t lane = 0; lane < n_layers * 2; lane++) {
            int32_t want[N], kept = 0;
            for (int32_t i = 0; i < N; i++)
                if (i >= M || mark[lane * M + i]) want[kept++] = i;
            rig_expect_kept(&rs, l + lane / 2, lane % 2, want, kept);
        }
    }
    rig_end(&rs);
}

static void test_defensivekv(void **state)
{
    (void)state;
    expect_defended(kvl_policy_defensivekv, 1, 60);
    expect_defended(kvl_policy_defensivekv, 1, 30);
}

static void test_defensivekv_layer(void **state)
{
    (void)state;
    expect_defended(kvl_policy_defensivekv_layer, 2, 60);
    expect_defended(kvl_policy_defensivekv_layer, 2, 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_curdkv),
        cmocka_unit_test(test_leverage),
        cmocka_unit_test(test_noncausal),
        cmocka_unit_test(test_compactor),
        cmocka_unit_test(test_capkv),
        cmocka_unit_test(test_qfilters),
        cmocka_unit_test(test_qfilters_measured),
        cmocka_unit_test(test_finch),
        cmocka_unit_test(test_simlayerkv),
        cmocka_unit_test(test_defensivekv),
        cmocka_unit_test(test_defensivekv_layer),
    };
    return cmocka_run_group_tests(tests, open_shot, close_shot);
}
