/* RetroInfer: zones of every layer, and the attention over them, worked out from the stored keys and
 * values; clusters of one token; what decoded tokens become. */
#include "golden/clusters.h"

extern const struct kvl_policy *const kvl_policy_retroinfer;
extern const struct kvl_policy *const kvl_policy_full;

enum { N_CTX = 200, N_STEPS = 45, SINK = 4, MAX_CLUSTERS = SEEN_TOK };

struct retro_case {
    const char *options;
    int32_t budget, local, segment, update, per_cluster, iters;
    double retrieve, estimate;
};

/* Of 96: local = 96 / 4, update = 96 / 8 down to whole clusters of 4. */
static const struct retro_case cases[] = {
    { "local=8,update=16,segment=64,per_cluster=8,iters=5", 60, 8, 64, 16, 8, 5, 1, .232 },
    { "per_cluster=4,estimate=1", 96, 24, 8192, 12, 4, 10, 1, 1 },
    { "local=16,update=16,segment=96,per_cluster=16,retrieve=0.1,estimate=0.5", 64, 16, 96, 16, 16,
      10, .1, .5 },
    { "local=8,update=16,per_cluster=8,retrieve=0,offload=false", 40, 8, 8192, 16, 8, 10, 0, .232 },
};

/* Clusters of one kv head. */
static struct {
    int32_t n, end; /* clusters; all tokens from the sink to here are in one */
    double key[MAX_CLUSTERS][SEEN_DIM], value[MAX_CLUSTERS][SEEN_DIM];
    int32_t size[MAX_CLUSTERS], of[SEEN_TOK];
} index_;

static void add_segment(const struct retro_case *c, float k[][SEEN_DIM], float v[][SEEN_DIM],
                        int32_t n)
{
    static struct lloyd l;
    double mean[SEEN_DIM] = { 0 };
    l.n = n;
    l.dim = SEEN_DIM;
    l.k = n < c->per_cluster ? 1 : n / c->per_cluster;
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < SEEN_DIM; j++) mean[j] += (double)k[index_.end + i][j] / n;
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < SEEN_DIM; j++) l.x[i][j] = (double)k[index_.end + i][j] - mean[j];
    lloyd_run(&l, c->iters, true);
    for (int32_t i = 0; i < n; i++) {
        int32_t to = index_.n + l.of[i];
        index_.of[index_.end + i] = to;
        index_.size[to]++;
        for (int32_t j = 0; j < SEEN_DIM; j++) {
            index_.key[to][j] += (double)k[index_.end + i][j];
            index_.value[to][j] += (double)v[index_.end + i][j];
        }
    }
    index_.n += l.k;
    index_.end += n;
}

static void build(const struct retro_case *c, float k[][SEEN_DIM], float v[][SEEN_DIM])
{
    memset(&index_, 0, sizeof index_);
    index_.end = SINK;
    while (index_.end < N_CTX - c->local)
        add_segment(c, k, v, KVL_MIN(c->segment, N_CTX - c->local - index_.end));
    while (seen.pos + 1 - c->local - index_.end >= c->update) add_segment(c, k, v, c->update);
    for (int32_t i = 0; i < index_.n; i++)
        for (int32_t j = 0; j < SEEN_DIM; j++) {
            index_.key[i][j] /= index_.size[i];
            index_.value[i][j] /= index_.size[i];
        }
}

/* zone[i]: 1 = cluster i is read, 2 = it is estimated. */
static void zones(const struct retro_case *c, const float *q, int32_t group, uint8_t *zone)
{
    double score[MAX_CLUSTERS] = { 0 }, row[MAX_CLUSTERS];
    int32_t room = c->budget - SINK - (seen.pos + 1 - index_.end), n = 0, rank = 0;
    int32_t retrieve = (int32_t)ceil(c->retrieve * index_.n);
    int32_t estimate = (int32_t)ceil(c->estimate * index_.n);
    bool full = false;
    memset(zone, 0, (size_t)index_.n);
    for (int32_t g = 0; g < group; g++) {
        for (int32_t i = 0; i < index_.n; i++) row[i] = scaled_dot(q + g * SEEN_DIM, index_.key[i]);
        softmax_of(row, index_.n);
        for (int32_t i = 0; i < index_.n; i++) score[i] += row[i];
    }
    for (; rank < index_.n; rank++) {
        int32_t best = -1;
        for (int32_t i = 0; i < index_.n; i++)
            if (zone[i] == 0 && (best < 0 || score[i] > score[best])) best = i;
        full = full || rank >= retrieve || n + index_.size[best] > room;
        if (full && estimate-- == 0) break;
        zone[best] = full ? 2 : 1;
        if (!full) n += index_.size[best];
    }
}

/* Attention to the tokens of `want`, and to estimated clusters by their size and means. */
static void expect_out(int32_t layer, int32_t q_head, const uint8_t *want, const uint8_t *zone,
                       float k[][SEEN_DIM], float v[][SEEN_DIM])
{
    const float *q = seen.q[layer] + q_head * SEEN_DIM, *out = seen.out[layer] + q_head * SEEN_DIM;
    double sum = 0, got[SEEN_DIM] = { 0 };
    for (int32_t i = 0; i <= seen.pos; i++) {
        double key[SEEN_DIM], w;
        for (int32_t j = 0; j < SEEN_DIM; j++) key[j] = (double)k[i][j];
        sum += w = want[i] ? exp(scaled_dot(q, key)) : 0;
        for (int32_t j = 0; j < SEEN_DIM; j++) got[j] += w * (double)v[i][j];
    }
    for (int32_t i = 0; i < index_.n; i++) {
        double w = zone[i] == 2 ? index_.size[i] * exp(scaled_dot(q, index_.key[i])) : 0;
        sum += w;
        for (int32_t j = 0; j < SEEN_DIM; j++) got[j] += w * index_.value[i][j];
    }
    for (int32_t j = 0; j < SEEN_DIM; j++)
        if (fabs(got[j] / sum - (double)out[j]) > 1e-4)
            fail_msg("layer %d, head %d: %g, want %g", layer, q_head, (double)out[j], got[j] / sum);
}

static void check_step(struct rig *r, const struct rig_session *rs, const struct retro_case *c)
{
    const struct kvl_shape *sh = rig_shape(r);
    int32_t group = sh->n_heads / sh->n_kv_heads;
    float k[SEEN_TOK][SEEN_DIM], v[SEEN_TOK][SEEN_DIM];
    uint8_t want[SEEN_TOK], zone[MAX_CLUSTERS];
    for (int32_t layer = 0; layer < sh->n_layers; layer++)
        for (int32_t h = 0; h < sh->n_kv_heads; h++) {
            stored_rows(r, rs, layer, h, KVL_PART_K, seen.pos + 1, k);
            stored_rows(r, rs, layer, h, KVL_PART_V, seen.pos + 1, v);
            build(c, k, v);
            zones(c, seen.q[layer] + h * group * SEEN_DIM, group, zone);
            for (int32_t i = 0; i <= seen.pos; i++)
                want[i] = i < SINK || i >= index_.end || zone[index_.of[i]] == 1;
            for (int32_t g = 0; g < group; g++) {
                expect_read(layer, h * group + g, want, c->options);
                expect_out(layer, h * group + g, want, zone, k, v);
            }
        }
}

static void test_zones_and_attention(void **state)
{
    int32_t id[N_CTX + N_STEPS];
    (void)state;
    for (uint32_t kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
        struct rig_desc desc = { .llama = { .n_layers = 3, .n_kv_heads = kv_heads, .seed = 9 } };
        struct rig r;
        rig_open(&r, &desc);
        rig_tokens(id, N_CTX + N_STEPS, 6);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct rig_run run = { .policy = kvl_policy_retroinfer,
                                   .options = cases[i].options,
                                   .budget = cases[i].budget,
                                   .id = id,
                                   .n_ctx = N_CTX };
            struct rig_session rs = rig_start(&r, &run);
            for (int32_t at = 0; at < N_STEPS; at += 11) { /* between and behind updates */
                seen_decode(&r, &rs, id + N_CTX + at, KVL_MIN(11, N_STEPS - at));
                check_step(&r, &rs, &cases[i]);
            }
            const struct kvl_counters *n = kvl_session_counters(rs.s);
            assert_true(n->attended_tok <= (int64_t)cases[i].budget * n->attended_lanes);
            rig_end(&rs);
        }
        rig_close(&r);
    }
}

/* A cluster of one token is that token, whether it is read or estimated. */
static void test_clusters_of_one_are_exact(void **state)
{
    static const char *const options[] = {
        "per_cluster=1,retrieve=0,estimate=1",
        "per_cluster=1,retrieve=0.3,estimate=1,local=5,update=7"
    };
    struct rig_desc desc = { .llama = { .n_layers = 3, .n_kv_heads = 2, .seed = 5 } };
    struct rig r;
    int32_t id[N_CTX + N_STEPS];
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_CTX + N_STEPS, 8);
    struct rig_run run = {
        .policy = kvl_policy_full, .budget = 40, .id = id, .n_ctx = N_CTX, .n_steps = N_STEPS
    };
    float *full = rig_run(&r, &run);
    for (int i = 0; i < 4; i++) {
        run.policy = kvl_policy_retroinfer;
        run.options = options[i / 2];
        run.exec = i % 2 ? KVL_EXEC_MASKED : KVL_EXEC_REAL;
        float *logits = rig_run(&r, &run);
        rig_expect_near(&r, logits, full, N_STEPS, 1e-4, run.options);
        kvl_free(logits);
    }
    kvl_free(full);
    rig_close(&r);
}

static void test_refuses_what_cannot_be(void **state)
{
    static const struct {
        const char *options, *why;
    } bad[] = { { "update=10", "multiples of per_cluster, 16" },
                { "segment=100", "multiples of per_cluster, 16" },
                { "local=64,update=64", "at least 133" } };
    struct kvl_shape shape = { 2, 4, 2, 16, 64, 99, 0, 2, NULL, 0.25f, 0, NULL };
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct kvl_planned *p = NULL;
        struct kvl_err err = { 0 };
        assert_int_equal(
            kvl_planned_create(kvl_policy_retroinfer, &shape, bad[i].options, 100, 1000, &p, &err),
            KVL_EINVAL);
        if (!strstr(err.msg, bad[i].why)) fail_msg("%s", err.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zones_and_attention),
        cmocka_unit_test(test_clusters_of_one_are_exact),
        cmocka_unit_test(test_refuses_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
