/* R-KV and TriAttention: what a first cut keeps of a context, against their formulas in double. */
#include "golden/peek.h"

extern const struct kvl_policy *const kvl_policy_rkv, *const kvl_policy_triattention;

enum { N = 100 };

/* ---- R-KV ----------------------------------------------------------------------------------------------- */

static const struct gw_llama llama = {
    .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .n_embd = 64, .head_dim = 16, .seed = 8
};

enum { W = 8, M = N - W };

static double dot(const float *a, const float *b)
{
    double sum = 0;
    for (int c = 0; c < 16; c++) sum += (double)a[c] * (double)b[c];
    return sum;
}

/* The largest logit of the group, softmax over what lies before the window, mean, maximum over 7. */
static void importance(int32_t layer, int32_t kv_head, const float *k, double *out)
{
    double mean[M] = { 0 };
    for (int32_t w = 0; w < W; w++) {
        const float *q = peek.q[layer][w] + kv_head * 32;
        double p[M], sum = 0;
        for (int32_t i = 0; i < M; i++)
            sum += p[i] = exp(fmax(dot(q, k + i * 16), dot(q + 16, k + i * 16)) / 4);
        for (int32_t i = 0; i < M; i++) mean[i] += p[i] / sum / W;
    }
    for (int32_t i = 0; i < M; i++) {
        out[i] = 0;
        for (int32_t j = KVL_MAX(0, i - 3); j <= KVL_MIN(M - 1, i + 3); j++)
            out[i] = fmax(out[i], mean[j]);
    }
}

static void redundancy(const float *k, double *out)
{
    static double cosine[N][N];
    double sum = 0;
    for (int32_t i = 0; i < N; i++) {
        int32_t alike = 0;
        for (int32_t j = 0; j < N; j++) {
            cosine[i][j] = i == j ? 0
                                  : dot(k + i * 16, k + j * 16) / sqrt(dot(k + i * 16, k + i * 16) *
                                                                       dot(k + j * 16, k + j * 16));
            if (cosine[i][j] > .5) alike = j;
        }
        cosine[i][alike] = 0;
    }
    for (int32_t j = 0; j < N; j++) {
        out[j] = 0;
        for (int32_t i = 0; i < N; i++) out[j] += cosine[i][j] / N;
        sum += out[j] = exp(out[j]);
    }
    for (int32_t j = 0; j < N; j++) out[j] /= sum;
}

static void rkv_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                       double *score)
{
    const double *lambda = with;
    double alike[N];
    float *k = shot_read(t, layer, kv_head, KVL_PART_K);
    importance(layer, kv_head, k, score);
    redundancy(k, alike);
    for (int32_t i = 0; i < N; i++)
        score[i] = i >= M ? HUGE_VAL : *lambda * score[i] - (1 - *lambda) * alike[i];
    kvl_free(k);
}

static void test_rkv(void **state)
{
    static const struct {
        const char *options;
        double lambda;
    } cases[] = { { "kept=40,lambda=0.1", .1 },
                  { "kept=40,lambda=1", 1 },
                  { "kept=40,lambda=0", 0 } };
    static struct shot t;
    (void)state;
    shot_open(&t, &llama, N, 3);
    peek_run(&t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig_session rs = shot_policy(&t, kvl_policy_rkv, cases[i].options, 50);
        shot_expect_best(&t, &rs, 40, rkv_scores, &cases[i].lambda);
        rig_end(&rs);
    }
    shot_close(&t);
}

/* ---- TriAttention ----------------------------------------------------------------------------------------- */

/* A query head for each kv head, so that normalising changes no order. */
static const struct gw_llama plain = {
    .n_layers = 2, .n_heads = 2, .n_kv_heads = 2, .n_embd = 32, .head_dim = 16, .seed = 9
};

static double tri_mean(int32_t layer, int32_t head, int32_t c)
{
    return (double)((layer * 5 + head * 3 + c * 7) % 11 - 5) / 4;
}

/* Of the pair (2 f, 2 f + 1), by a table that says more than the mean's own length for odd pairs. */
static double tri_length(int32_t layer, int32_t head, int32_t f)
{
    double a = tri_mean(layer, head, 2 * f), b = tri_mean(layer, head, 2 * f + 1);
    return sqrt(a * a + b * b) + (f % 2 ? .4 : 0);
}

/* Section 3 as written: amplitudes, phases and distances to the offsets 1, 2, 4 ... 65536. */
static void tri_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                       double *score)
{
    float *k = shot_read(t, layer, kv_head, KVL_PART_K_RAW);
    (void)with;
    for (int32_t i = 0; i < N; i++) {
        score[i] = 0;
        for (int32_t f = 0; f < 8; f++) {
            double qa = tri_mean(layer, kv_head, 2 * f), qb = tri_mean(layer, kv_head, 2 * f + 1);
            double ka = (double)k[i * 16 + 2 * f], kb = (double)k[i * 16 + 2 * f + 1];
            double amplitude = sqrt((qa * qa + qb * qb) * (ka * ka + kb * kb));
            double phase = atan2(qb, qa) - atan2(kb, ka), speed = pow(10000, -f / 8.0);
            for (int e = 0; e <= 16; e++)
                score[i] += amplitude * cos(speed * (N + (1 << e) - i) + phase) / 17;
            score[i] +=
                (tri_length(layer, kv_head, f) - sqrt(qa * qa + qb * qb)) * sqrt(ka * ka + kb * kb);
        }
    }
    kvl_free(k);
}

static void test_triattention(void **state)
{
    static struct shot t;
    char path[] = "/tmp/kvl_means_XXXXXX", options[128];
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    for (int32_t l = 0; l < 2; l++)
        for (int32_t h = 0; h < 2; h++) {
            fprintf(f, "%d %d", l, h);
            for (int32_t c = 0; c < 16; c++) fprintf(f, " %.9g", tri_mean(l, h, c));
            for (int32_t c = 0; c < 16; c++)
                fprintf(f, " %.9g", c % 2 ? 0 : tri_length(l, h, c / 2));
            fputc('\n', f);
        }
    fclose(f);
    shot_open(&t, &plain, N, 3);
    snprintf(options, sizeof options, "kept=35,prompt=judge,table=%s", path);
    struct rig_session rs = shot_policy(&t, kvl_policy_triattention, options, 50);
    shot_expect_best(&t, &rs, 35, tri_scores, NULL);
    rig_end(&rs);
    /* A prompt that is kept is not judged. */
    snprintf(options, sizeof options, "kept=35,prompt=keep,table=%s", path);
    rs = shot_policy(&t, kvl_policy_triattention, options, 50);
    assert_int_equal(kvl_seq_len(kvl_session_seq(rs.s), 0, 0), N);
    rig_end(&rs);
    shot_close(&t);
    remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rkv),
        cmocka_unit_test(test_triattention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
