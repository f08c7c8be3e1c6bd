/* Policies that score a context once, against formulas worked out from stored keys and values and from what each query
 * of the window says. */
#include "golden/peek.h"

extern const struct kvl_policy *const kvl_policy_curdkv,
    *const kvl_policy_qfilters, *const kvl_policy_finch,
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

/* Squared lengths of rows x [N][dim], as parts of the sum over `local` of them; 0: as they are. */
static double part_of(const double *x, int32_t dim, int32_t i, int32_t local)
{
    double sum = 0, own = 0;
    for (int32_t j = local ? i / local * local : i;
         j < (local ? KVL_MIN(N, (i / local + 1) * local) : i + 1); j++) {
        double square = 0;
        for (int32_t c = 0; c < dim; c++) square += pow(x[j * dim + c], 2);
        sum += square;
        if (j == i) own = square;
    }
    return local ? own / sum : own;
}

struct cur {
    const char *options;
    char leverage; /* of: product, key, value, mean */
    int32_t n_sink, local;
    bool projected;
};

/* Rows of a lane; projected to 20 random channels by Box and Muller. */
static int32_t cur_rows(struct shot *t, int32_t layer, int32_t kv_head, enum kvl_kv_part part,
                        bool projected, double *x)
{
    float *row = shot_read(t, layer, kv_head, part);
    uint64_t seed = kvl_seed_mix(kvl_seed_str(0, "curdkv"), (uint64_t)layer);
    for (int32_t i = 0; i < N * 16 && !projected; i++) x[i] = (double)row[i];
    for (int32_t i = 0; i < N * 20 && projected; i++) {
        x[i] = 0;
        for (int32_t c = 0; c < 16; c++) {
            uint64_t at = 2 * ((uint64_t)(i % 20) * 16 + (uint64_t)c);
            double u = ldexp((double)(kvl_seed_mix(seed, at) >> 40), -24),
                   v = ldexp((double)(kvl_seed_mix(seed, at + 1) >> 40), -24);
            x[i] += (double)row[i / 20 * 16 + c] * sqrt(-2 * log(1 - u) / 20) *
                    cos(6.283185307179586 * v);
        }
    }
    kvl_free(row);
    return projected ? 20 : 16;
}

static void curdkv_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                          double *score)
{
    static double k[N * 20], v[N * 20];
    const struct cur *w = with;
    int32_t dim = cur_rows(t, layer, kv_head, KVL_PART_K, w->projected, k);
    cur_rows(t, layer, kv_head, KVL_PART_V, w->projected, v);
    for (int32_t i = 0; i < N; i++) {
        double a = part_of(k, dim, i, w->local), b = part_of(v, dim, i, w->local);
        score[i] = i < w->n_sink        ? HUGE_VAL
                   : w->leverage == 'k' ? a
                   : w->leverage == 'v' ? b
                   : w->leverage == 'm' ? a + b
                                        : a * b;
    }
}

static void test_curdkv(void **state)
{
    static const struct cur ways[] = {
        { "", 'p', 4, 16, false },
        { "leverage=key,n_sink=0", 'k', 0, 16, false },
        { "leverage=value,local=7", 'v', 4, 7, false },
        { "leverage=mean,local=30", 'm', 4, 30, false },
        { "leverage=mean,local=0,n_sink=9", 'm', 9, 0, false },
        { "projected=true", 'p', 4, 16, true },
        { "projected=true,leverage=key,local=0", 'k', 4, 0, true },
    };
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct rig_session rs = shot_policy(&shot, kvl_policy_curdkv, ways[i].options, 31);
        shot_expect_best(&shot, &rs, 30, curdkv_scores, &ways[i]);
        rig_end(&rs);
    }
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

struct finch {
    const char *options;
    int32_t window, budget, chunk;
    bool normalize;
};

/* Of every chunk before the window the same part, rounded down, stands above all others. */
static void finch_chunks(const struct finch *w, double *score)
{
    int32_t n = N - w->window;
    for (int32_t at = 0; at < n; at += w->chunk) {
        uint8_t mark[N];
        int32_t len = KVL_MIN(w->chunk, n - at);
        record_top(score + at, len, len * (w->budget - 1 - w->window) / n, mark);
        for (int32_t i = 0; i < len; i++) score[at + i] += mark[i] ? 1e6 : 0;
    }
}

static void finch_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                         double *score)
{
    const struct finch *w = with;
    int32_t n = N - w->window;
    (void)t;
    for (int32_t i = 0; i < N; i++) {
        score[i] = i >= n ? HUGE_VAL : 0;
        for (int32_t back = 0; i < n && back < w->window; back++)
            for (int32_t g = 0; g < 2; g++)
                score[i] += (double)peek.probs[layer][back][(kv_head * 2 + g) * N + i] *
                            (w->normalize ? N - 1 - back : 1);
    }
    if (w->chunk > 0) finch_chunks(w, score);
}

static void test_finch(void **state)
{
    static const struct finch ways[] = {
        { "window=12", 12, 36, 0, true },
        { "", 18, 36, 0, true },
        { "", 32, 90, 0, true },
        { "window=5,normalize=false", 5, 36, 0, false },
        { "window=12,chunk=25", 12, 36, 25, true },
        { "window=12,chunk=20,normalize=false", 12, 60, 20, false },
    };
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct rig_session rs =
            shot_policy(&shot, kvl_policy_finch, ways[i].options, ways[i].budget);
        shot_expect_best(&shot, &rs, ways[i].budget - 1, finch_scores, &ways[i]);
        rig_end(&rs);
    }
}

/* ---- SimLayerKV --------------------------------------------------------------------------------------------- */

/* Mean weight that the last queries put on both ends of what lies before them. */
static void lazy_weights(int32_t n_initial, int32_t n_recent, int32_t n_last, double weight[2])
{
    int32_t end = N - n_last;
    for (int32_t l = 0; l < 2; l++) {
        weight[l] = 0;
        for (int32_t h = 0; h < 4; h++)
            for (int32_t w = 0; w < n_last; w++)
                for (int32_t i = 0; i < end; i++)
                    if (i < n_initial || i >= end - n_recent)
                        weight[l] += (double)peek.probs[l][w][h * N + i] / (4 * n_last);
    }
}

static void expect_ends(const struct rig_session *rs, int32_t layer, int32_t first, int32_t last)
{
    int32_t want[N], n = 0;
    for (int32_t i = 0; i < N; i++)
        if (i < first || i >= N - last) want[n++] = i;
    for (int32_t h = 0; h < 2; h++) rig_expect_kept(rs, layer, h, want, n);
}

static void test_simlayerkv(void **state)
{
    static const int32_t sizes[][3] = { { 4, 20, 1 }, { 2, 30, 3 }, { 0, 12, 5 } };
    (void)state;
    for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++) {
        int32_t n_initial = sizes[c][0], n_recent = sizes[c][1], n_last = sizes[c][2];
        double weight[2];
        char options[96];
        lazy_weights(n_initial, n_recent, n_last, weight);
        assert_true(fabs(weight[0] - weight[1]) > 1e-4);
        snprintf(options, sizeof options, "n_initial=%d,n_recent=%d,n_last=%d,threshold=%.7f",
                 n_initial, n_recent, n_last, (weight[0] + weight[1]) / 2);
        struct rig_session rs = shot_policy(&shot, kvl_policy_simlayerkv, options, 0);
        for (int32_t l = 0; l < 2; l++)
            expect_ends(&rs, l, n_initial, weight[l] > weight[1 - l] ? n_recent - n_last : N);
        rig_end(&rs);
        /* By the budget: the lazier layer pays for the other, and below that both. */
        snprintf(options, sizeof options, "n_initial=%d,n_recent=%d,n_last=%d", n_initial, n_recent,
                 n_last);
        for (int32_t budget = 41; budget <= 111; budget += 10) {
            int32_t lazy = 2 * (budget - 1) - N, most = n_initial + n_recent - n_last;
            rs = shot_policy(&shot, kvl_policy_simlayerkv, options, budget);
            for (int32_t l = 0; l < 2; l++) {
                int32_t kept = lazy < most ? budget - 1 : weight[l] > weight[1 - l] ? lazy : N;
                expect_ends(&rs, l, KVL_MIN(kept, n_initial), kept - KVL_MIN(kept, n_initial));
            }
            rig_end(&rs);
        }
    }
    /* auto: n_recent is half the budget, less n_initial; context that is no longer than both ends stays. */
    double weight[2];
    lazy_weights(4, 36, 1, weight);
    struct rig_session rs = shot_policy(&shot, kvl_policy_simlayerkv, "", 80);
    for (int32_t l = 0; l < 2; l++)
        expect_ends(&rs, l, 4, weight[l] > weight[1 - l] ? 2 * 79 - N - 4 : N);
    rig_end(&rs);
    /* Both ends are more than the budget: all layers are lazy, and keep what it has. */
    rs = shot_policy(&shot, kvl_policy_simlayerkv, "n_recent=50", 41);
    for (int32_t l = 0; l < 2; l++) expect_ends(&rs, l, 4, 36);
    rig_end(&rs);
    rs = shot_policy(&shot, kvl_policy_simlayerkv, "n_recent=105,threshold=0", 0);
    for (int32_t l = 0; l < 2; l++) expect_ends(&rs, l, 4, N);
    rig_end(&rs);
}

/* ---- DefensiveKV -------------------------------------------------------------------------------------------- */

enum { W = 12, M = N - W };

struct defence {
    double score[2][M], mean[2][M], bias;
};

static struct {
    const char *options;
    int32_t budget, kernel;
    double mass;
} how;

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
                int32_t side = how.kernel / 2;
                for (int32_t j = KVL_MAX(0, i - side); j <= KVL_MIN(M - 1, i + side); j++)
                    pooled[i] += (double)p[j] / how.kernel;
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
            if (sum >= (how.mass - d->bias) * all) break;
        }
        record_top(d->mean[h], M, KVL_MIN(k, most), mark);
        for (int32_t i = 0; i < M; i++)
            if (mark[i]) d->score[h][i] = best;
    }
}

static void expect_defended(const struct kvl_policy *policy, int32_t n_layers)
{
    int32_t budget = how.budget;
    static struct defence d[2];
    static double all[4 * M];
    uint8_t mark[4 * M];
    struct rig_session rs = shot_policy(&shot, policy, how.options, budget);
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

static void expect_all_defended(const struct kvl_policy *policy, int32_t n_layers)
{
    static const struct {
        const char *options;
        int32_t budget, kernel;
        double mass;
    } ways[] = {
        { "window=12", 60, 5, .9 },
        { "window=12", 30, 5, .9 },
        { "", 24, 5, .9 }, /* a window of half the budget */
        { "window=12,kernel=1,mass=0.3", 50, 1, .3 },
        { "window=12,kernel=9,mass=0.6", 40, 9, .6 },
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        how.options = ways[i].options;
        how.budget = ways[i].budget;
        how.kernel = ways[i].kernel;
        how.mass = ways[i].mass;
        expect_defended(policy, n_layers);
    }
}

static void test_defensivekv(void **state)
{
    (void)state;
    expect_all_defended(kvl_policy_defensivekv, 1);
}

static void test_defensivekv_layer(void **state)
{
    (void)state;
    expect_all_defended(kvl_policy_defensivekv_layer, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_curdkv),
        cmocka_unit_test(test_qfilters),
        cmocka_unit_test(test_qfilters_measured),
        cmocka_unit_test(test_finch),
        cmocka_unit_test(test_simlayerkv),
        cmocka_unit_test(test_defensivekv),
        cmocka_unit_test(test_defensivekv_layer),
    };
    return cmocka_run_group_tests(tests, open_shot, close_shot);
}
