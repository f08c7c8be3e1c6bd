/* R-KV and TriAttention: what cuts keep of a context, and of an answer, against their formulas in double. */
#include "golden/peek.h"

#include <unistd.h>

extern const struct kvl_policy *const kvl_policy_rkv, *const kvl_policy_triattention;

enum { N = 100 };

/* ---- R-KV ----------------------------------------------------------------------------------------------- */

static const struct gw_llama llama = {
    .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .n_embd = 64, .head_dim = 16, .seed = 8
};

enum { MOST = 24, STEPS = 30, MANY = 300 }; /* queries of a window; steps */

static double dot(const float *a, const float *b)
{
    double sum = 0;
    for (int c = 0; c < 16; c++) sum += (double)a[c] * (double)b[c];
    return sum;
}

struct rkv {
    const char *options;
    double lambda;
    int32_t kept, buffer, window, kernel;
};

/* The largest logit of the group, softmax over the m tokens before the window, mean, maximum over `kernel`.  q: the two
 * query heads of the window's queries. */
static void importance(const struct rkv *w, const float *const *q, const float *k, int32_t m,
                       double *out)
{
    double mean[N + STEPS] = { 0 };
    for (int32_t i = 0; i < w->window; i++) {
        double p[N + STEPS], sum = 0;
        for (int32_t j = 0; j < m; j++)
            sum += p[j] = exp(fmax(dot(q[i], k + j * 16), dot(q[i] + 16, k + j * 16)) / 4);
        for (int32_t j = 0; j < m; j++) mean[j] += p[j] / sum / w->window;
    }
    for (int32_t i = 0; i < m; i++) {
        int32_t side = w->kernel / 2;
        out[i] = 0;
        for (int32_t j = KVL_MAX(0, i - side); j <= KVL_MIN(m - 1, i + side); j++)
            out[i] = fmax(out[i], mean[j]);
    }
}

static void redundancy(const float *k, int32_t n, double *out)
{
    static double cosine[MANY][MANY];
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t alike = 0;
        for (int32_t j = 0; j < n; j++) {
            cosine[i][j] = i == j ? 0
                                  : dot(k + i * 16, k + j * 16) / sqrt(dot(k + i * 16, k + i * 16) *
                                                                       dot(k + j * 16, k + j * 16));
            if (cosine[i][j] > .5) alike = j;
        }
        cosine[i][alike] = 0;
    }
    for (int32_t j = 0; j < n; j++) {
        out[j] = 0;
        for (int32_t i = 0; i < n; i++) out[j] += cosine[i][j] / n;
        sum += out[j] = exp(out[j]);
    }
    for (int32_t j = 0; j < n; j++) out[j] /= sum;
}

/* Scores of n tokens with keys k, of which the window's stay. */
static void rkv_judge(const struct rkv *w, const float *const *q, const float *k, int32_t n,
                      double *score)
{
    double alike[N + STEPS];
    importance(w, q, k, n - w->window, score);
    redundancy(k, n, alike);
    for (int32_t i = 0; i < n; i++)
        score[i] =
            i >= n - w->window ? HUGE_VAL : w->lambda * score[i] - (1 - w->lambda) * alike[i];
}

static void rkv_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                       double *score)
{
    const struct rkv *w = with;
    const float *q[MOST];
    float *k = shot_read(t, layer, kv_head, KVL_PART_K);
    for (int32_t i = 0; i < w->window; i++) q[i] = peek.q[layer][i] + kv_head * 32;
    rkv_judge(w, q, k, N, score);
    kvl_free(k);
}

/* A context cut once: every layer. */
static void test_rkv(void **state)
{
    static const struct rkv ways[] = {
        { "kept=40,lambda=0.1", .1, 40, 0, 8, 7 },
        { "kept=40,lambda=1", 1, 40, 0, 8, 7 },
        { "kept=40,lambda=0", 0, 40, 0, 8, 7 },
        { "kept=60,lambda=0.6,window=3,kernel=1", .6, 60, 0, 3, 1 },
        { "kept=30,lambda=0.97,window=20,kernel=11", .97, 30, 0, 20, 11 },
        { "lambda=0.9", .9, 45, 0, 8, 7 }, /* of 60 three quarters */
    };
    static struct shot t;
    (void)state;
    shot_open(&t, &llama, N, 3);
    peek_run(&t);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct rig_session rs = shot_policy(&t, kvl_policy_rkv, ways[i].options, 60);
        shot_expect_best(&t, &rs, ways[i].kept, rkv_scores, &ways[i]);
        rig_end(&rs);
    }
    shot_close(&t);
}

/* More keys than are compared at a time, by their redundancy alone. */
static void alike_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                         double *score)
{
    float *k = shot_read(t, layer, kv_head, KVL_PART_K);
    (void)with;
    redundancy(k, t->n, score);
    for (int32_t i = 0; i < t->n; i++) score[i] = i >= t->n - 8 ? HUGE_VAL : -score[i];
    kvl_free(k);
}

static void test_rkv_of_many(void **state)
{
    static struct shot t;
    (void)state;
    shot_open(&t, &llama, MANY, 3);
    struct rig_session rs = shot_policy(&t, kvl_policy_rkv, "kept=90,lambda=0", 100);
    shot_expect_best(&t, &rs, 90, alike_scores, NULL);
    rig_end(&rs);
    shot_close(&t);
}

/* Sizes that follow from the budget: a quarter of it between two cuts, 128 at most; a prompt that is half of what stays. */
static void test_sizes(void **state)
{
    static const struct {
        bool tri;
        const char *options;
        int32_t budget;
        const char *resolved;
    } ways[] = {
        { false, "", 60, "kept=45,buffer=15" },
        { false, "", 4000, "kept=3872,buffer=128" },
        { false, "kept=30", 60, "kept=30,buffer=15" },
        { false, "buffer=6", 60, "kept=54,buffer=6" },
        { true, "", 60, "kept=45,buffer=15,prompt=judge" },
        { true, "", 4000, "kept=3872,buffer=128,prompt=keep" },
        { true, "", 4, "kept=3,buffer=1,prompt=judge" },
        { true, "kept=200", 60, "kept=200,buffer=15,prompt=keep" },
        { true, "kept=199", 60, "kept=199,buffer=15,prompt=judge" },
        { true, "buffer=6,prompt=keep", 60, "kept=54,buffer=6,prompt=keep" },
    };
    struct rig r;
    struct kvl_planned *planned;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = llama });
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const struct kvl_policy *p = ways[i].tri ? kvl_policy_triattention : kvl_policy_rkv;
        RIG_OK(&r.err, kvl_planned_create(p, rig_shape(&r), ways[i].options, ways[i].budget, N,
                                          &planned, &r.err));
        if (!strstr(kvl_planned_options(planned), ways[i].resolved))
            fail_msg("%s: %s", ways[i].options, kvl_planned_options(planned));
        kvl_planned_destroy(planned);
    }
    rig_close(&r);
}

/* ---- in the first layer, whose keys and queries no eviction changes ------------------------------------------- */

/* Live tokens of a lane, with their keys. */
struct lane {
    int32_t pos[N + STEPS], n;
    float k[(N + STEPS) * 16];
};

static void lane_add(struct lane *lane, int32_t pos, const float *key)
{
    memcpy(lane->k + lane->n * 16, key, 16 * sizeof *key);
    lane->pos[lane->n++] = pos;
}

static void lane_keep(struct lane *lane, const double *score, int32_t kept)
{
    uint8_t mark[N + STEPS];
    int32_t n = lane->n;
    record_top(score, n, kept, mark);
    lane->n = 0;
    for (int32_t i = 0; i < n; i++)
        if (mark[i]) lane_add(lane, lane->pos[i], lane->k + i * 16);
}

static void rkv_cut(const struct rkv *w, int32_t kv_head, int32_t at, struct lane *lane)
{
    const float *q[MOST];
    double score[N + STEPS];
    for (int32_t i = 0; i < w->window; i++) q[i] = record.q[at - i - (N - MOST)][0] + kv_head * 32;
    if (lane->n <= w->kept) return;
    rkv_judge(w, q, lane->k, lane->n, score);
    lane_keep(lane, score, w->kept);
}

static void test_rkv_while_decoding(void **state)
{
    static const struct rkv ways[] = {
        { "kept=30,buffer=7,lambda=0.9", .9, 30, 7, 8, 7 },
        { "kept=50,buffer=3,lambda=0.5,window=20,kernel=3", .5, 50, 3, 20, 3 },
        { "kept=70,buffer=30,lambda=0", 0, 70, 30, 8, 7 },
        { "kept=110,buffer=10,lambda=0.5", .5, 110, 10, 8, 7 },
    };
    static struct shot t;
    static struct lane lane;
    (void)state;
    shot_open(&t, &llama, N + STEPS, 3);
    record_run(&t.r, t.id, N - MOST, MOST + STEPS, 0);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct rig_run run = { .policy = kvl_policy_rkv,
                               .options = ways[i].options,
                               .budget = 200,
                               .id = t.id,
                               .n_ctx = N };
        struct rig_session rs = rig_start(&t.r, &run);
        float *logits = rig_logits(&t.r, STEPS);
        rig_decode(&t.r, &rs, t.id + N, STEPS, logits);
        for (int32_t h = 0; h < 2; h++) {
            float *k = shot_read(&t, 0, h, KVL_PART_K);
            lane.n = 0;
            for (int32_t at = 0; at < N + STEPS; at++) {
                lane_add(&lane, at, k + at * 16);
                if (at == N - 1 || (at >= N && (at - N + 1) % ways[i].buffer == 0))
                    rkv_cut(&ways[i], h, at, &lane);
            }
            rig_expect_kept(&rs, 0, h, lane.pos, lane.n);
            kvl_free(k);
        }
        kvl_free(logits);
        rig_end(&rs);
    }
    shot_close(&t);
}

/* ---- TriAttention ----------------------------------------------------------------------------------------- */

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

/* Means and lengths of pairs of the query heads of the first layers: of the table, or measured. */
static double tri_means[2][4][16], tri_lengths[2][4][8];

static void tri_from_table(void)
{
    for (int32_t i = 0; i < 2 * 4 * 16; i++)
        tri_means[i / 64][i / 16 % 4][i % 16] = tri_mean(i / 64, i / 16 % 4, i % 16);
    for (int32_t i = 0; i < 2 * 4 * 8; i++)
        tri_lengths[i / 32][i / 8 % 4][i % 8] = tri_length(i / 32, i / 8 % 4, i % 8);
}

/* Section 3 as written: amplitudes, phases and distances to the offsets 1, 2, 4 ... 65536 behind `now`, of a key before
 * RoPE that stands at pos. */
static double tri_score(int32_t layer, int32_t head, const float *k, int32_t pos, int32_t now)
{
    double score = 0;
    for (int32_t f = 0; f < 8; f++) {
        double qa = tri_means[layer][head][2 * f], qb = tri_means[layer][head][2 * f + 1];
        double ka = (double)k[2 * f], kb = (double)k[2 * f + 1];
        double amplitude = sqrt((qa * qa + qb * qb) * (ka * ka + kb * kb));
        double phase = atan2(qb, qa) - atan2(kb, ka), speed = pow(10000, -f / 8.0);
        for (int e = 0; e <= 16; e++)
            score += amplitude * cos(speed * (now + (1 << e) - pos) + phase) / 17;
        score += (tri_lengths[layer][head][f] - sqrt(qa * qa + qb * qb)) * sqrt(ka * ka + kb * kb);
    }
    return score;
}

/* Of the tokens from `first` on; each query head less its mean, by its deviation, and the larger of the two. */
static void tri_judge(int32_t layer, int32_t kv_head, const struct lane *lane, int32_t first,
                      int32_t now, bool normalize, double *score)
{
    int32_t n = lane->n;
    for (int32_t i = 0; i < n; i++) score[i] = i < first ? HUGE_VAL : -HUGE_VAL;
    for (int32_t h = 2 * kv_head; h < 2 * kv_head + 2; h++) {
        double each[N + STEPS], sum = 0, squares = 0;
        for (int32_t i = first; i < n; i++)
            sum += each[i] = tri_score(layer, h, lane->k + i * 16, lane->pos[i], now);
        for (int32_t i = first; i < n; i++) squares += pow(each[i] - sum / (n - first), 2);
        for (int32_t i = first; i < n && normalize; i++)
            each[i] = (each[i] - sum / (n - first)) / sqrt(squares / (n - first));
        for (int32_t i = first; i < n; i++) score[i] = fmax(score[i], each[i]);
    }
}

struct tri {
    const char *options;
    int32_t kept, buffer;
    bool normalize, keep;
};

static void tri_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                       double *score)
{
    static struct lane lane;
    const struct tri *w = with;
    float *k = shot_read(t, layer, kv_head, KVL_PART_K_RAW);
    lane.n = 0;
    for (int32_t i = 0; i < N; i++) lane_add(&lane, i, k + i * 16);
    tri_judge(layer, kv_head, &lane, 0, N, w->normalize, score);
    kvl_free(k);
}

/* The file that kvlab tables would make. */
static void tri_file(const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int32_t l = 0; l < 2; l++)
        for (int32_t h = 0; h < 4; h++) {
            fprintf(f, "%d %d", l, h);
            for (int32_t c = 0; c < 16; c++) fprintf(f, " %.9g", tri_mean(l, h, c));
            for (int32_t c = 0; c < 16; c++)
                fprintf(f, " %.9g", c % 2 ? 0 : tri_length(l, h, c / 2));
            fputc('\n', f);
        }
    fclose(f);
}

/* In the first layer, cut by cut. */
static void tri_expect_answer(struct shot *t, const struct tri *w, const char *options)
{
    static struct lane lane;
    struct rig_run run = { .policy = kvl_policy_triattention,
                           .options = options,
                           .budget = 200,
                           .id = t->id,
                           .n_ctx = N };
    struct rig_session rs = rig_start(&t->r, &run);
    float *logits = rig_logits(&t->r, STEPS);
    rig_decode(&t->r, &rs, t->id + N, STEPS, logits);
    for (int32_t h = 0; h < 2; h++) {
        float *k = shot_read(t, 0, h, KVL_PART_K_RAW);
        int32_t first = w->keep ? N : 0, stay = KVL_MAX(first, w->kept);
        lane.n = 0;
        for (int32_t at = 0; at < N + STEPS; at++) {
            double score[N + STEPS];
            lane_add(&lane, at, k + at * 16);
            if (at < N - 1 || (at - N + 1) % w->buffer != 0 || lane.n <= stay) continue;
            tri_judge(0, h, &lane, first, at + 1, w->normalize, score);
            lane_keep(&lane, score, stay);
        }
        rig_expect_kept(&rs, 0, h, lane.pos, lane.n);
        kvl_free(k);
    }
    kvl_free(logits);
    rig_end(&rs);
}

static void test_triattention(void **state)
{
    static const struct tri ways[] = {
        { "kept=35,buffer=9,prompt=judge", 35, 9, true, false },
        { "kept=50,buffer=4,prompt=judge,normalize=false", 50, 4, false, false },
        { "kept=110,buffer=6,prompt=keep", 110, 6, true, true },
        { "kept=60,buffer=5,prompt=keep", 60, 5, true, true }, /* nothing of the answer stays */
        { "kept=120,buffer=10", 120, 10, true, false },        /* auto: the prompt is judged */
    };
    static struct shot t, all;
    char path[] = "/tmp/kvl_means_XXXXXX", options[192];
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    tri_file(path);
    tri_from_table();
    shot_open(&t, &llama, N, 3);
    shot_open(&all, &llama, N + STEPS, 3);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        snprintf(options, sizeof options, "%s,table=%s", ways[i].options, path);
        struct rig_session rs = shot_policy(&t, kvl_policy_triattention, options, 200);
        if (ways[i].keep || ways[i].kept >= N)
            assert_int_equal(kvl_seq_len(kvl_session_seq(rs.s), 0, 0), N);
        else
            shot_expect_best(&t, &rs, ways[i].kept, tri_scores, &ways[i]);
        rig_end(&rs);
        tri_expect_answer(&all, &ways[i], options);
    }
    shot_close(&t);
    shot_close(&all);
    remove(path);
}

/* ---- measured on the context --------------------------------------------------------------------------------- */

static int told_plan(struct kvl_plan *plan)
{
    return kvl_plan_observe(plan, KVL_OBS_MOMENTS, 0);
}

static int told_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const float *mean, *cov;
    int32_t n;
    scores->keep_tok = scores->n_tok;
    KVL_TRY(kvl_obs_moments(ctx, layer, 0, &mean, &cov, &n));
    for (int32_t i = 0; i < 64; i++) tri_means[layer][i / 16][i % 16] = (double)mean[i];
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

/* Means of all queries before RoPE, lengths of the last eleven, which no turn changes. */
static void test_triattention_measured(void **state)
{
    enum { SAMPLES = 11 };
    static const struct tri way = { "kept=45,samples=11,prompt=judge", 45, 0, true, false };
    static struct shot t;
    (void)state;
    shot_open(&t, &llama, N, 3);
    peek_run(&t);
    struct rig_session rs = shot_policy(&t, &told_policy, "", 0);
    rig_end(&rs);
    memset(tri_lengths, 0, sizeof tri_lengths);
    for (int32_t i = 0; i < 2 * 4 * 8; i++)
        for (int32_t back = 0; back < SAMPLES; back++) {
            const float *q = peek.q[i / 32][back] + i / 8 % 4 * 16 + i % 8 * 2;
            tri_lengths[i / 32][i / 8 % 4][i % 8] += hypot((double)q[0], (double)q[1]) / SAMPLES;
        }
    rs = shot_policy(&t, kvl_policy_triattention, way.options, 60);
    shot_expect_best(&t, &rs, way.kept, tri_scores, &way);
    rig_end(&rs);
    shot_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rkv),          cmocka_unit_test(test_rkv_of_many),
        cmocka_unit_test(test_sizes),        cmocka_unit_test(test_rkv_while_decoding),
        cmocka_unit_test(test_triattention), cmocka_unit_test(test_triattention_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
