/* Rooms of keys that methods share: in clusters, and channel by channel.  What they answer is worked out here once more,
 * from stored keys and values. */
#include "conformance/rig.h"
#include "engine_impl.h"
#include "parts/channels.h"
#include "parts/clusters.h"

#include <math.h>

enum { N_LAYERS = 2, N_KV = 2, DIM = 16, N_CTX = 50, N_STEPS = 7, N_TOK = N_CTX + N_STEPS };

static struct rig rig;
static int32_t id[N_TOK], n_checked;

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-4 * (1 + fabs(want)))) fail_msg("got %g, want %g", got, want);
}

/* ---- clusters of keys ---------------------------------------------------------------------------------- */

enum { CL_FIRST = 3, CL_SIZE = 4, CL_SEG = 26, CL_REST = N_CTX - CL_FIRST - CL_SEG };

static struct kvl_clusters index_ = { .first = CL_FIRST, .per_cluster = CL_SIZE, .iters = 4 };

static int clusters_plan(struct kvl_plan *plan)
{
    plan->replay = KVL_REPLAY_NONE;
    return kvl_plan_clusters(plan, &index_);
}

static int clusters_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    KVL_TRY(kvl_clusters_add(ctx, &index_, layer, CL_FIRST, CL_SEG, 0));
    return kvl_clusters_add(ctx, &index_, layer, CL_FIRST + CL_SEG, CL_REST,
                            kvl_clusters_of(&index_, CL_SEG));
}

/* The tokens of a cluster are those of its segment, and in no other; it has their mean key and value. */
static void check_cluster(const struct kvl_cluster_rows *rows, const struct kvl_rows *means,
                          int32_t kv_head, int32_t cluster, const float *key, const float *value,
                          bool *seen)
{
    bool second = cluster >= kvl_clusters_of(&index_, CL_SEG);
    int32_t pos[N_CTX], n = kvl_cluster_size(rows, kv_head, cluster);
    assert_in_range(n, 1, CL_SEG);
    kvl_cluster_tokens(rows, kv_head, cluster, pos);
    for (int32_t i = 0; i < n; i++) {
        assert_true(i == 0 || pos[i] > pos[i - 1]);
        assert_int_equal(pos[i] >= CL_FIRST + CL_SEG, second);
        assert_false(seen[pos[i]]);
        seen[pos[i]] = true;
    }
    for (int32_t c = 0; c < DIM; c++) {
        double k = 0, v = 0;
        for (int32_t i = 0; i < n; i++) {
            k += (double)key[pos[i] * DIM + c] / n;
            v += (double)value[pos[i] * DIM + c] / n;
        }
        near((double)((const float *)kvl_table_row(means, kv_head, cluster))[c], k);
        near((double)((const float *)kvl_table_row(&rows->values, kv_head, cluster))[c], v);
    }
}

static int clusters_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t n = kvl_clusters_of(&index_, CL_SEG) + kvl_clusters_of(&index_, CL_REST);
    struct kvl_cluster_rows rows;
    struct kvl_rows means;
    float *key, *value;
    (void)q;
    (void)sel;
    assert_int_equal(n, CL_SEG / CL_SIZE + CL_REST / CL_SIZE);
    KVL_TRY(kvl_scratch_get(ctx, N_CTX * DIM, &key));
    KVL_TRY(kvl_scratch_get(ctx, N_CTX * DIM, &value));
    int64_t before = ctx->host->session->count.index_read_bytes;
    KVL_TRY(kvl_clusters_read(ctx, &index_, step->layer, n, CL_SEG + CL_REST, &rows));
    assert_int_equal(ctx->host->session->count.index_read_bytes - before, n * N_KV * 2 * 4);
    KVL_TRY(kvl_table_peek(ctx, index_.keys, step->layer, n, &means));
    for (int32_t h = 0; h < N_KV; h++) {
        bool seen[N_CTX] = { false };
        KVL_TRY(kvl_read_key_span(ctx, step->layer, h, 0, N_CTX, false, key));
        KVL_TRY(kvl_read_value_span(ctx, step->layer, h, 0, N_CTX, value));
        for (int32_t j = 0; j < n; j++) check_cluster(&rows, &means, h, j, key, value, seen);
        for (int32_t t = 0; t < N_CTX; t++) assert_int_equal(seen[t], t >= CL_FIRST);
    }
    n_checked++;
    return KVL_OK;
}

static const struct kvl_policy clusters = { .abi = KVL_POLICY_ABI,
                                            .size = sizeof(struct kvl_policy),
                                            .name = "clusters",
                                            .title = "t",
                                            .paper = "p",
                                            .help = "h",
                                            .version = 1,
                                            .caps = KVL_CAP_SELECTS,
                                            .plan = clusters_plan,
                                            .prefilled = clusters_prefilled,
                                            .select = clusters_select };

static void test_clusters_of_keys(void **state)
{
    struct rig_run run = { .policy = &clusters, .id = id, .n_ctx = N_CTX, .budget = 40 };
    float *logits = rig_logits(&rig, N_STEPS);
    struct kvl_err err = { 0 };
    (void)state;
    n_checked = 0;
    struct rig_session rs = rig_start(&rig, &run);
    rig_decode(&rig, &rs, id + N_CTX, N_STEPS, logits);
    assert_int_equal(n_checked, N_LAYERS * N_STEPS);
    kvl_hook_begin(rs.s, &err);
    assert_int_equal(kvl_clusters_add(&rs.s->ctx, &index_, 0, CL_FIRST - 1, 4, 0), KVL_EPOLICY);
    assert_non_null(strstr(err.msg, "want 1 or more from 3 on"));
    kvl_err_clear(&err);
    int32_t n_rows = (N_TOK + CL_SIZE - 1) / CL_SIZE; /* of mean keys */
    assert_int_equal(kvl_clusters_add(&rs.s->ctx, &index_, 0, CL_FIRST, 2 * CL_SIZE, n_rows - 1),
                     KVL_EPOLICY);
    assert_non_null(strstr(err.msg, "2 clusters of 8 tokens, room is left for 1 of"));
    kvl_free(logits);
    rig_end(&rs);
}

/* ---- keys channel by channel --------------------------------------------------------------------------- */

enum { LONG_CTX = 300, LONG_TOK = LONG_CTX + N_STEPS, CHANNELS = 4 };

static int channels_plan(struct kvl_plan *plan)
{
    int32_t table;
    plan->replay = KVL_REPLAY_KEYS;
    return kvl_plan_channels(plan, &table);
}

static int channels_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                           const float *v)
{
    (void)v;
    return kvl_channels_put(ctx, 0, step, k);
}

static int channels_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_sel *sel)
{
    static const int32_t channel[N_KV][CHANNELS] = { { 0, 3, 7, 15 }, { 1, 2, 8, 9 } };
    const struct kvl_shape *sh = ctx->shape;
    int32_t n = step->pos + 1;
    float *score, *key, max[16], sum[16], factor[16];
    struct kvl_channel_scores s = { .layer = step->layer,
                                    .n = n,
                                    .n_channels = CHANNELS,
                                    .q = q->q,
                                    .factor = factor,
                                    .channel = channel[0],
                                    .max = max,
                                    .sum = sum };
    (void)sel;
    assert_true(sh->n_heads <= 16);
    for (int32_t h = 0; h < sh->n_heads; h++) factor[h] = (float)(h + 1) / 2;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(sh->n_heads * n), &score));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(n * DIM), &key));
    s.score = score;
    int64_t before = ctx->host->session->count.index_read_bytes;
    KVL_TRY(kvl_channel_scores(ctx, &s));
    assert_int_equal(ctx->host->session->count.index_read_bytes - before, n * CHANNELS * N_KV * 4);
    for (int32_t h = 0; h < sh->n_heads; h++) {
        double most = -HUGE_VAL, all = 0;
        KVL_TRY(kvl_read_key_span(ctx, step->layer, h / sh->group, 0, n, false, key));
        for (int32_t t = 0; t < n; t++) {
            double want = 0;
            for (int32_t i = 0; i < CHANNELS; i++) {
                int32_t c = channel[h / sh->group][i];
                want += (double)q->q[h * DIM + c] * (double)key[t * DIM + c];
            }
            near((double)score[h * n + t], want * (double)factor[h]);
            most = fmax(most, (double)score[h * n + t]);
        }
        for (int32_t t = 0; t < n; t++) all += exp((double)score[h * n + t] - most);
        near((double)max[h], most);
        near((double)sum[h], all);
    }
    n_checked++;
    return KVL_OK;
}

static const struct kvl_policy channels = { .abi = KVL_POLICY_ABI,
                                            .size = sizeof(struct kvl_policy),
                                            .name = "channels",
                                            .title = "t",
                                            .paper = "p",
                                            .help = "h",
                                            .version = 1,
                                            .caps = KVL_CAP_SELECTS,
                                            .plan = channels_plan,
                                            .append = channels_append,
                                            .select = channels_select };

/* A fork gives its rows to a base: pages lie in two pieces. */
static void test_keys_by_channel(void **state)
{
    static int32_t tokens[LONG_TOK];
    struct rig_run run = { .policy = &channels, .id = tokens, .n_ctx = LONG_CTX, .budget = 40 };
    float *logits = rig_logits(&rig, N_STEPS);
    (void)state;
    n_checked = 0;
    rig_tokens(tokens, LONG_TOK, 63);
    struct rig_session a = rig_start(&rig, &run), b = rig_fork(&rig, &a);
    rig_decode(&rig, &b, tokens + LONG_CTX, N_STEPS, logits);
    rig_decode(&rig, &a, tokens + LONG_CTX, N_STEPS, logits);
    assert_int_equal(n_checked, 2 * N_LAYERS * N_STEPS);
    kvl_free(logits);
    rig_end(&b);
    rig_end(&a);
}

static int open_rig(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = N_LAYERS, .seed = 61 } };
    (void)state;
    rig_open(&rig, &desc);
    rig_tokens(id, N_TOK, 62);
    return rig_shape(&rig)->n_kv_heads == N_KV && rig_shape(&rig)->head_dim == DIM ? 0 : 1;
}

static int close_rig(void **state)
{
    (void)state;
    rig_close(&rig);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_clusters_of_keys),
                                        cmocka_unit_test(test_keys_by_channel) };
    return cmocka_run_group_tests_name("key_rooms", tests, open_rig, close_rig);
}
