/* KVCompose: what a second reading looks up, worked out from its queries and from all keys, and what layers and heads keep
 * of it. */
#include "golden/one_shot.h"

extern const struct kvl_policy *const kvl_policy_kvcompose;

enum { LAYERS = 3, HEADS = 4, KV = 2, DIM = 16, N = 44 };

static const struct gw_llama llama = {
    .n_layers = LAYERS, .n_heads = HEADS, .n_kv_heads = KV, .n_embd = 64, .head_dim = DIM, .seed = 8
};
static struct shot shot;
/* Of query heads: the largest weight that the second reading puts on a token; of kv heads: lengths of values. */
static double peak[LAYERS][HEADS][N], length[LAYERS][KV][N];

/* The text twice, one token after the other: queries of the second time, over the keys of both. */
static void read_twice(void)
{
    static float k[2 * N * DIM], v[2 * N * DIM];
    int32_t id[2 * N];
    struct kvl_session *s;
    struct rig *r = &shot.r;
    for (int32_t i = 0; i < 2 * N; i++) id[i] = shot.id[i % N];
    record_run(r, id, N, N, 0);
    RIG_OK(&r->err, kvl_session_create(r->engine, &s, &r->err));
    RIG_OK(&r->err, kvl_session_prefill(s, id, 2 * N, NULL, true, &r->err));
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t h = 0; h < HEADS; h++) {
            const struct kvl_seq *seq = kvl_session_seq(s);
            RIG_OK(&r->err, kvl_seq_read(seq, l, h / 2, KVL_PART_K, 0, 2 * N, k, &r->err));
            RIG_OK(&r->err, kvl_seq_read(seq, l, h / 2, KVL_PART_V, 0, 2 * N, v, &r->err));
            for (int32_t i = 0; i < N; i++) {
                double weight[2 * N], sum = 0;
                record_weights(record.q[i][l] + h * DIM, k, N + i + 1, DIM, weight);
                for (int32_t t = 0; t < N; t++) peak[l][h][t] = fmax(peak[l][h][t], weight[t]);
                for (int c = 0; c < DIM; c++) sum += pow((double)v[i * DIM + c], 2);
                length[l][h / 2][i] = sqrt(sum);
            }
        }
    kvl_session_destroy(s);
}

static int open_shot(void **state)
{
    (void)state;
    shot_open(&shot, &llama, N, 3);
    read_twice();
    return 0;
}

static int close_shot(void **state)
{
    (void)state;
    shot_close(&shot);
    return 0;
}

struct how {
    const char *options;
    bool structured, group_max, heads_max, mean, v_norm;
};

static double joined(double a, double b, bool largest)
{
    return largest ? fmax(a, b) : (a + b) / 2;
}

static void token_scores(const struct how *how, double score[LAYERS][KV][N])
{
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t i = 0; i < N; i++) {
            for (int32_t h = 0; h < KV; h++) {
                score[l][h][i] = joined(peak[l][2 * h][i], peak[l][2 * h + 1][i], how->group_max);
                if (how->v_norm) score[l][h][i] *= length[l][h][i];
            }
            double mean = how->mean ? (score[l][0][i] + score[l][1][i]) / 2 : 0;
            for (int32_t h = 0; h < KV; h++) score[l][h][i] += mean;
        }
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Tokens that each lane keeps. */
static void counts(const struct how *how, int32_t budget, double score[LAYERS][KV][N],
                   int32_t count[LAYERS][KV])
{
    static double all[LAYERS * KV * N];
    static uint8_t mark[LAYERS * KV * N];
    int32_t rows = how->structured ? 1 : KV;
    for (int32_t l = 0; l < LAYERS; l++) {
        double ranked[KV][N];
        memcpy(ranked, score[l], sizeof ranked);
        for (int32_t h = 0; h < KV; h++) qsort(ranked[h], N, sizeof ranked[0][0], descending);
        for (int32_t i = 0; i < N && how->structured; i++)
            all[l * N + i] = joined(ranked[0][i], ranked[1][i], how->heads_max);
        if (!how->structured) memcpy(all + l * KV * N, score[l], sizeof score[l]);
    }
    for (int32_t i = N; how->structured && i < LAYERS * N; i++)
        all[i % N] = fmax(all[i % N], all[i]);
    record_top(all, LAYERS * rows * N, LAYERS * rows * (budget - 1), mark);
    memset(count, 0, LAYERS * sizeof count[0]);
    for (int32_t i = 0; i < LAYERS * rows * N; i++) count[i / N / rows][i / N % rows] += mark[i];
    for (int32_t l = 0; l < LAYERS; l++) {
        if (how->structured) count[l][1] = count[l][0] = KVL_MAX(1, count[l][0]);
    }
}

static void expect_kept(const struct how *how, int32_t budget)
{
    static double score[LAYERS][KV][N];
    int32_t count[LAYERS][KV];
    struct rig_session rs = shot_policy(&shot, kvl_policy_kvcompose, how->options, budget);
    token_scores(how, score);
    counts(how, budget, score, count);
    if (budget == 13) assert_true(count[0][0] != count[1][0] || count[1][0] != count[2][0]);
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t h = 0; h < KV; h++) {
            uint8_t mark[N];
            int32_t want[N], n = 0;
            record_top(score[l][h], N, count[l][h], mark);
            for (int32_t i = 0; i < N; i++)
                if (mark[i]) want[n++] = i;
            rig_expect_kept(&rs, l, h, want, n);
        }
    rig_end(&rs);
}

static void test_layers_share(void **state)
{
    static const struct how ways[] = {
        { "", true, false, false, true, false },
        { "mean=false", true, false, false, false, false },
        { "group=max", true, true, false, true, false },
        { "heads=max", true, false, true, true, false },
        { "v_norm=true", true, false, false, true, true },
        { "structured=false", false, false, false, true, false },
        { "structured=false,mean=false,group=max", false, true, false, false, false },
    };
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        for (int32_t budget = 5; budget < N; budget += 4) expect_kept(&ways[i], budget);
}

/* The observer makes weights of query heads, and a budget that holds the context asks for nothing. */
static void test_room_for_all(void **state)
{
    (void)state;
    for (int32_t more = 0; more < 2; more++) {
        struct rig_session rs = shot_policy(&shot, kvl_policy_kvcompose, "", N + 1 + more);
        for (int32_t l = 0; l < LAYERS; l++)
            assert_int_equal(kvl_seq_len(kvl_session_seq(rs.s), l, 1), N);
        rig_end(&rs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_layers_share),
                                        cmocka_unit_test(test_room_for_all) };
    return cmocka_run_group_tests(tests, open_shot, close_shot);
}
