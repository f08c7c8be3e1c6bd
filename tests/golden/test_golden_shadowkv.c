/* ShadowKV: the landmark of a hand-computed example; chunks read in every layer, and the attention over
 * keys rebuilt from low rank, worked out from the stored keys and values. */
#include "golden/clusters.h"

#include "../../methods/shadowkv_landmark.h"

extern const struct kvl_policy *const kvl_policy_shadowkv;

enum { N_CTX = 187, N_STEPS = 20, MAX_WIDTH = 4 * SEEN_DIM };

static void test_landmark(void **state)
{
    static const float key[] = { 1, 0, 0, 1, 1, 1, -1, .5f };
    float mean[2];
    (void)state;
    assert_float_equal((double)shadow_landmark(key, 4, 2, mean), 0.083045, 1e-6);
    assert_float_equal((double)mean[0], .25, 1e-7);
    assert_float_equal((double)mean[1], .625, 1e-7);
    assert_float_equal((double)shadow_landmark(key, 1, 2, mean), 1, 1e-7);
}

struct shadow_case {
    const char *options;
    int32_t budget, rank, chunk, outlier, local; /* rank -2: half the width */
};

/* 128 tokens are 16 chunks: 2 outliers, 2 local; 23 chunks of the context, 3 tokens behind them. */
static const struct shadow_case cases[] = {
    { "", 128, -2, 8, 2, 2 },
    { "rank=6,chunk_size=4,outlier=3,local=5", 100, 6, 4, 3, 5 },
    { "rank=16,outlier=0,local=0", 64, 16, 8, 0, 0 },
    { "rank=1,chunk_size=16,outlier=1,local=1,offload=false", 96, 1, 16, 1, 1 },
};

/* Of one layer: keys before RoPE of the context at low rank, then turned. */
static float rebuilt[4][SEEN_TOK][SEEN_DIM];

static void turn(float *x, int32_t pos)
{
    for (int32_t i = 0; i < SEEN_DIM / 2; i++) {
        double angle = pos * pow(10000.0, -2.0 * i / SEEN_DIM), c = cos(angle), s = sin(angle);
        double a = (double)x[2 * i], b = (double)x[2 * i + 1];
        x[2 * i] = (float)(a * c - b * s);
        x[2 * i + 1] = (float)(a * s + b * c);
    }
}

static void rebuild(struct rig *r, const struct rig_session *rs, int32_t layer, int32_t rank)
{
    static float raw[4][SEEN_TOK][SEEN_DIM];
    static float gram[MAX_WIDTH * MAX_WIDTH], vec[MAX_WIDTH * MAX_WIDTH];
    int32_t width = rig_shape(r)->n_kv_heads * SEEN_DIM;
    for (int32_t h = 0; h < rig_shape(r)->n_kv_heads; h++)
        stored_rows(r, rs, layer, h, KVL_PART_K_RAW, N_CTX, raw[h]);
    for (int32_t a = 0; a < width; a++)
        for (int32_t b = 0; b < width; b++) {
            double sum = 0;
            for (int32_t i = 0; i < N_CTX; i++)
                sum += (double)raw[a / SEEN_DIM][i][a % SEEN_DIM] *
                       (double)raw[b / SEEN_DIM][i][b % SEEN_DIM];
            gram[a * width + b] = (float)sum;
        }
    struct kvl_sym_eig_args eig = { .vec = vec, .a = gram, .n = width };
    assert_int_equal(kvl_ops_ref.sym_eig(&eig), KVL_OK);
    memset(rebuilt, 0, sizeof rebuilt);
    for (int32_t i = 0; i < N_CTX; i++) {
        for (int32_t j = 0; j < rank; j++) {
            double low = 0;
            for (int32_t c = 0; c < width; c++)
                low += (double)raw[c / SEEN_DIM][i][c % SEEN_DIM] * (double)vec[j * width + c];
            for (int32_t c = 0; c < width; c++)
                rebuilt[c / SEEN_DIM][i][c % SEEN_DIM] += (float)(low * (double)vec[j * width + c]);
        }
        for (int32_t h = 0; h < rig_shape(r)->n_kv_heads; h++) turn(rebuilt[h][i], i);
    }
}

/* want[i]: 1 = as stored, 2 = rebuilt. */
static void expected(const struct shadow_case *c, const float *q, int32_t group,
                     float k[][SEEN_DIM], uint8_t *want)
{
    int32_t n = N_CTX / c->chunk - c->local, tail = seen.pos + 1 - n * c->chunk;
    double miss[SEEN_TOK], mark[SEEN_TOK][SEEN_DIM], score[SEEN_TOK] = { 0 }, row[SEEN_TOK];
    uint8_t outlier[SEEN_TOK], best[SEEN_TOK];
    for (int32_t i = 0; i < n; i++) {
        float mean[SEEN_DIM];
        miss[i] = -(double)shadow_landmark(k[i * c->chunk], c->chunk, SEEN_DIM, mean);
        for (int32_t j = 0; j < SEEN_DIM; j++) mark[i][j] = (double)mean[j];
    }
    record_top(miss, n, c->outlier, outlier);
    for (int32_t g = 0; g < group; g++) {
        for (int32_t i = 0; i < n; i++)
            row[i] = outlier[i] ? -HUGE_VAL : scaled_dot(q + g * SEEN_DIM, mark[i]);
        softmax_of(row, n);
        for (int32_t i = 0; i < n; i++) score[i] = fmax(score[i], row[i]);
    }
    for (int32_t i = 0; i < n; i++)
        if (outlier[i]) score[i] = -1;
    record_top(score, n, (c->budget - tail) / c->chunk - c->outlier, best);
    for (int32_t i = 0; i <= seen.pos; i++) {
        bool behind = i >= n * c->chunk;
        want[i] = behind || outlier[i / c->chunk] ? 1 : (uint8_t)(best[i / c->chunk] * 2);
    }
}

static void expect_out(int32_t layer, int32_t q_head, int32_t kv_head, const uint8_t *want,
                       float k[][SEEN_DIM], float v[][SEEN_DIM])
{
    const float *q = seen.q[layer] + q_head * SEEN_DIM, *out = seen.out[layer] + q_head * SEEN_DIM;
    double sum = 0, got[SEEN_DIM] = { 0 };
    for (int32_t i = 0; i <= seen.pos; i++) {
        double key[SEEN_DIM], w;
        if (!want[i]) continue;
        for (int32_t j = 0; j < SEEN_DIM; j++)
            key[j] = (double)(want[i] == 1 ? k[i][j] : rebuilt[kv_head][i][j]);
        sum += w = exp(scaled_dot(q, key));
        for (int32_t j = 0; j < SEEN_DIM; j++) got[j] += w * (double)v[i][j];
    }
    for (int32_t j = 0; j < SEEN_DIM; j++)
        if (fabs(got[j] / sum - (double)out[j]) > 1e-4)
            fail_msg("layer %d, head %d: %g, want %g", layer, q_head, (double)out[j], got[j] / sum);
}

static void check_step(struct rig *r, const struct rig_session *rs, const struct shadow_case *c)
{
    const struct kvl_shape *sh = rig_shape(r);
    int32_t group = sh->n_heads / sh->n_kv_heads, width = sh->n_kv_heads * SEEN_DIM;
    float k[SEEN_TOK][SEEN_DIM], v[SEEN_TOK][SEEN_DIM];
    uint8_t want[SEEN_TOK], read[SEEN_TOK];
    for (int32_t layer = 0; layer < sh->n_layers; layer++) {
        rebuild(r, rs, layer, c->rank < 0 ? width / -c->rank : c->rank);
        for (int32_t h = 0; h < sh->n_kv_heads; h++) {
            stored_rows(r, rs, layer, h, KVL_PART_K, seen.pos + 1, k);
            stored_rows(r, rs, layer, h, KVL_PART_V, seen.pos + 1, v);
            expected(c, seen.q[layer] + h * group * SEEN_DIM, group, k, want);
            for (int32_t i = 0; i <= seen.pos; i++) read[i] = want[i] > 0;
            for (int32_t g = 0; g < group; g++) {
                expect_read(layer, h * group + g, read, c->options);
                expect_out(layer, h * group + g, h, want, k, v);
            }
        }
    }
}

static void test_chunks_and_attention(void **state)
{
    int32_t id[N_CTX + N_STEPS];
    (void)state;
    for (uint32_t kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
        struct rig_desc desc = { .llama = { .n_layers = 3, .n_kv_heads = kv_heads, .seed = 9 } };
        struct rig r;
        rig_open(&r, &desc);
        rig_tokens(id, N_CTX + N_STEPS, 6);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct rig_run run = { .policy = kvl_policy_shadowkv,
                                   .options = cases[i].options,
                                   .budget = cases[i].budget,
                                   .id = id,
                                   .n_ctx = N_CTX };
            struct rig_session rs = rig_start(&r, &run);
            seen_decode(&r, &rs, id + N_CTX, 1);
            check_step(&r, &rs, &cases[i]);
            seen_decode(&r, &rs, id + N_CTX + 1, N_STEPS - 1);
            check_step(&r, &rs, &cases[i]);
            const struct kvl_counters *n = kvl_session_counters(rs.s);
            assert_true(n->attended_tok <= (int64_t)cases[i].budget * n->attended_lanes);
            rig_end(&rs);
        }
        rig_close(&r);
    }
}

/* At full rank rebuilt keys are the stored ones: attention is that over the same positions. */
static void test_full_rank_is_exact(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = 3, .n_kv_heads = 2, .seed = 5 } };
    struct rig r;
    int32_t id[N_CTX + N_STEPS];
    float k[SEEN_TOK][SEEN_DIM], v[SEEN_TOK][SEEN_DIM];
    uint8_t want[SEEN_TOK];
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_CTX + N_STEPS, 8);
    struct rig_run run = {
        .policy = kvl_policy_shadowkv, .options = "rank=32", .budget = 64, .id = id, .n_ctx = N_CTX
    };
    struct rig_session rs = rig_start(&r, &run);
    seen_decode(&r, &rs, id + N_CTX, N_STEPS);
    for (int32_t layer = 0; layer < 3; layer++)
        for (int32_t h = 0; h < 4; h++) {
            stored_rows(&r, &rs, layer, h / 2, KVL_PART_K, seen.pos + 1, k);
            stored_rows(&r, &rs, layer, h / 2, KVL_PART_V, seen.pos + 1, v);
            for (int32_t i = 0; i <= seen.pos; i++) want[i] = seen.read[layer][h][i];
            expect_out(layer, h, h / 2, want, k, v);
        }
    rig_end(&rs);
    rig_close(&r);
}

/* Bytes of one step and lane with 8 chunks: values of the chosen tokens, keys and values of the others. */
static void test_counts_what_it_reads(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = 2, .n_kv_heads = 2, .seed = 9 } };
    struct rig r;
    int32_t id[N_CTX + 1];
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_CTX + 1, 6);
    struct rig_run run = { .policy = kvl_policy_shadowkv,
                           .options = "rank=10,outlier=2,local=1",
                           .budget = 64,
                           .id = id,
                           .n_ctx = N_CTX };
    struct rig_session rs = rig_start(&r, &run);
    kvl_session_reset_counters(rs.s);
    seen_decode(&r, &rs, id + N_CTX, 1);
    const struct kvl_counters *n = kvl_session_counters(rs.s);
    /* 22 chunks to choose from, 12 tokens behind them: 64 - 12 leaves 6 chunks, 2 are outliers. */
    int64_t row = SEEN_DIM * 4, chosen = 4 * 8, stored = 2 * 8 + 12;
    assert_int_equal(n->kv_read_bytes, 4 * (chosen * row + stored * 2 * row));
    int64_t index = 22 * row + 22 * 4 + (chosen + SEEN_DIM) * 10 * 4;
    assert_int_equal(n->index_read_bytes, 4 * index);
    rig_end(&rs);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_landmark),
        cmocka_unit_test(test_chunks_and_attention),
        cmocka_unit_test(test_full_rank_is_exact),
        cmocka_unit_test(test_counts_what_it_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
