/* OmniKV's context bank, executed: the bits of a run without it, what every packed load brings against
 * the lists that layers read, where the bank lies, and that a load is on its way before the wait layer's
 * attention.  With KVL_TEST_CUDA on the (emulated) GPU. */
#include "conformance/rig.h"

extern const struct kvl_policy *const kvl_policy_omnikv;

enum { N_LAYERS = 8, N_KV = 2, DIM = 16, N_CTX = 150, N_STEPS = 12, N_TOK = N_CTX + N_STEPS };
enum { SLOT = 2 * DIM * 4, K = 30, N_FILTERS = 2 };

/* DDSDDSSS */
#define FILTERS "filter_layers=0+3,num_wait_load_layers=1"
#define FIXED   FILTERS ",num_of_selected_tokens=30"
static const int32_t filter_of[N_LAYERS] = { -1, -1, 0, -1, -1, 1, 1, 1 };
static const int32_t filter_layer[N_FILTERS] = { 0, 3 }, n_readers[N_FILTERS] = { 1, 3 };
enum { SPARSE = 4 };

static int32_t id[N_TOK];

static void open_rig(struct rig *r)
{
    rig_open(r, &(struct rig_desc){ .llama = { .n_layers = N_LAYERS, .seed = 5 } });
    assert_int_equal(rig_shape(r)->n_kv_heads, N_KV);
    assert_int_equal(rig_shape(r)->head_dim, DIM);
    rig_tokens(id, N_TOK, 5);
}

static struct rig_session start(struct rig *r, const char *options, int32_t budget, bool offload)
{
    char more[160];
    snprintf(more, sizeof more, "%s,offload=%s", options, offload ? "true" : "false");
    struct rig_run run = {
        .policy = kvl_policy_omnikv, .options = more, .budget = budget, .id = id, .n_ctx = N_CTX
    };
    return rig_start(r, &run);
}

/* ---- answers --------------------------------------------------------------------------------------- */

static void test_answers_do_not_depend_on_it(void **state)
{
    static const char *const options[] = { "dense_layers=3", FILTERS,
                                           FIXED ",selector=exp,window_size=5",
                                           FILTERS ",lazy=true,lazy_overlap=0.1",
                                           "filter_layers=2,num_of_selected_tokens=1.0" };
    struct rig r;
    (void)state;
    open_rig(&r);
    float *logits[2] = { rig_logits(&r, N_STEPS), rig_logits(&r, N_STEPS) };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        for (int on = 0; on < 2; on++) {
            struct rig_session rs = start(&r, options[i], 45, on);
            rig_decode(&r, &rs, id + N_CTX, N_STEPS, logits[on]);
            assert_int_equal(kvl_session_counters(rs.s)->host_bytes > 0, on);
            assert_int_equal(kvl_session_counters(rs.s)->cache_misses, 0);
            rig_end(&rs);
        }
        rig_expect_same(&r, logits[0], logits[1], N_STEPS, options[i]);
    }
    kvl_free(logits[0]);
    kvl_free(logits[1]);
    rig_close(&r);
}

/* ---- traffic --------------------------------------------------------------------------------------- */

/* Tokens of the context that the layers behind a filter read: in the last step, and what is new. */
static struct {
    bool has[N_FILTERS][N_CTX];
    int32_t n_listed[N_FILTERS], n_new[N_FILTERS];
} lists;

static int read_tap(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    int32_t f = filter_of[t->layer];
    bool has[N_CTX] = { false };
    (void)user;
    (void)err;
    if (f < 0 || t->layer != filter_layer[f] + 2) return KVL_OK;
    lists.n_new[f] = lists.n_listed[f] = 0;
    for (int32_t i = 0; i < t->n_read[0]; i++) {
        int32_t pos = t->read[0][i];
        if (pos >= N_CTX) continue;
        has[pos] = true;
        lists.n_listed[f]++;
        lists.n_new[f] += !lists.has[f][pos];
    }
    memcpy(lists.has[f], has, sizeof has);
    return KVL_OK;
}

static void hit_share(void *user, const char *name, double value)
{
    if (strcmp(name, "bank_hit_share") == 0) *(double *)user = value;
}

/* Every step: one call per filter that has something new; its new tokens for every layer and kv head; nothing
 * else, and nothing in vain. */
static void test_packed_loads(void **state)
{
    struct rig r;
    double hits = -1;
    int64_t n_listed = 0, n_new = 0;
    (void)state;
    open_rig(&r);
    memset(&lists, 0, sizeof lists);
    struct rig_session rs = start(&r, FIXED, 0, true);
    const struct kvl_counters *c = kvl_session_counters(rs.s);
    float *logits = rig_logits(&r, 1);
    kvl_session_tap(rs.s, &(struct kvl_tap){ .read = read_tap });
    for (int32_t t = 0; t < N_STEPS; t++) {
        int64_t bytes = c->h2d_bytes, calls = c->h2d_calls, want = 0, loads = 0;
        rig_decode(&r, &rs, id + N_CTX + t, 1, logits);
        for (int f = 0; f < N_FILTERS; f++) {
            assert_int_equal(lists.n_listed[f], K);
            want += (int64_t)lists.n_new[f] * n_readers[f] * N_KV * SLOT;
            loads += lists.n_new[f] > 0;
            n_listed += K;
            n_new += lists.n_new[f];
        }
        assert_int_equal(c->h2d_bytes - bytes, want);
        assert_int_equal(c->h2d_calls - calls, loads);
    }
    assert_true(n_new < n_listed && n_new > N_FILTERS * K);
    assert_int_equal(c->prefetch_bytes, c->h2d_bytes);
    assert_int_equal(c->prefetch_wrong_bytes, 0);
    assert_int_equal(c->cache_misses, 0);
    RIG_OK(&r.err, kvl_session_report(
                       rs.s, &(struct kvl_report_to){ .user = &hits, .num = hit_share }, &r.err));
    assert_true(fabs(hits - (double)(n_listed - n_new) / (double)n_listed) < 1e-9);
    kvl_free(logits);
    rig_end(&rs);
    rig_close(&r);
}

/* The context of the layers that read lists, all of it and nothing that comes behind. */
static void test_what_lies_where(void **state)
{
    const int64_t bank = SPARSE * N_KV * N_CTX * SLOT;
    struct rig r;
    (void)state;
    open_rig(&r);
    struct rig_session rs = start(&r, FIXED, 0, true);
    const struct kvl_counters *c = kvl_session_counters(rs.s);
    float *logits = rig_logits(&r, N_STEPS);
    assert_int_equal(c->host_bytes, bank);
    assert_int_equal(c->d2h_bytes, bank);
    assert_int_equal(c->device_bytes, (N_LAYERS - SPARSE) * N_KV * N_CTX * SLOT);
    rig_decode(&r, &rs, id + N_CTX, N_STEPS, logits);
    assert_int_equal(c->host_bytes, bank);
    assert_int_equal(c->d2h_bytes, bank);
    assert_int_equal(c->device_bytes,
                     (N_LAYERS * N_TOK - SPARSE * N_CTX + SPARSE * K) * N_KV * SLOT);
    assert_int_equal(c->device_peak_bytes, c->device_bytes);
    rig_end(&rs);
    kvl_free(logits);
    rig_close(&r);
}

/* Tokens of a block ask for their lists one by one, before the first of them is read: those that wait would be
 * as many lists. */
static void test_a_block_waits_for_one_list(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r);
    float *one = rig_logits(&r, 1), *all = rig_logits(&r, 1);
    struct rig_session a = start(&r, FIXED, 0, true), b = start(&r, FIXED, 0, true);
    for (int32_t i = N_CTX; i < N_TOK; i++)
        RIG_OK(&r.err, kvl_session_extend(a.s, id + i, 1, &r.err));
    RIG_OK(&r.err, kvl_session_extend(b.s, id + N_CTX, N_STEPS, &r.err));
    const struct kvl_counters *x = kvl_session_counters(a.s), *y = kvl_session_counters(b.s);
    assert_int_equal(x->h2d_bytes, y->h2d_bytes);
    assert_int_equal(x->device_bytes, y->device_bytes);
    assert_int_equal(y->device_peak_bytes, y->device_bytes);
    assert_int_equal(y->prefetch_wrong_bytes, 0);
    rig_decode(&r, &a, id, 1, one);
    rig_decode(&r, &b, id, 1, all);
    rig_expect_same(&r, one, all, 1, "a block and steps");
    kvl_free(one);
    kvl_free(all);
    rig_end(&b);
    rig_end(&a);
    rig_close(&r);
}

/* ---- when ------------------------------------------------------------------------------------------ */

static const struct kvl_device *watched;
static const struct kvl_counters *counters;
/* Layer by layer of a step: bytes that had come, gathers that were given and waits of MAIN, at its
 * attention. */
static struct {
    int32_t layer, n_gathers, n_waits;
    int64_t moved;
    struct {
        int32_t n_gathers, n_waits;
        int64_t bytes, moved;
    } at[N_LAYERS];
} step;

static int watching_attn(const struct kvl_attn_decode_args *a)
{
    assert_true(step.layer < N_LAYERS);
    step.at[step.layer].n_gathers = step.n_gathers;
    step.at[step.layer].n_waits = step.n_waits;
    step.at[step.layer].moved = step.moved;
    step.at[step.layer++].bytes = counters->h2d_bytes;
    return watched->ops->attn_decode(a);
}

static int watching_gather(const struct kvl_kv_move_args *a)
{
    step.n_gathers++;
    for (int32_t i = 0; i < a->n_moves; i++) step.moved += a->move[i].n * (int64_t)SLOT;
    return watched->kv_gather(a);
}

static int watching_order(enum kvl_stream earlier, enum kvl_stream later)
{
    step.n_waits += earlier == KVL_STREAM_COPY && later == KVL_STREAM_MAIN;
    return watched->order(earlier, later);
}

/* What a filter's list brings has come, or is one gather on its way, when the wait layer attends; MAIN waits
 * for it when the first layer that reads it does. */
static void expect_order(int64_t before)
{
    bool gathers = watched->discrete;
    assert_int_equal(step.layer, N_LAYERS);
    assert_int_equal(step.at[0].bytes, before);
    for (int32_t l = 1, n = 0; l < N_LAYERS; l++) {
        bool loads = l == 1 || l == 4;
        n += loads;
        assert_int_equal(step.at[l].bytes > step.at[l - 1].bytes, loads);
        if (gathers) assert_int_equal(step.at[l].n_gathers, n);
        if (gathers) assert_int_equal(step.at[l].n_waits, (l > 1) + (l > 4));
        if (gathers) assert_int_equal(step.at[l].moved, step.at[l].bytes - before);
    }
}

static void test_loads_beside_the_wait_layer(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r);
    watched = rig_device(&(struct rig_desc){ 0 }, &r.err);
    if (!watched) watched = kvl_device_cpu();
    struct kvl_device device = *watched;
    struct kvl_ops ops = *watched->ops;
    ops.attn_decode = watching_attn;
    device.ops = &ops;
    if (!watched->discrete) device.ops_now = &ops;
    if (watched->kv_gather) device.kv_gather = watching_gather;
    device.order = watching_order;
    kvl_engine_destroy(r.engine);
    struct kvl_engine_desc desc = { .model = r.model, .device = &device };
    desc.observers.window = 64;
    RIG_OK(&r.err, kvl_engine_create(&desc, &r.engine, &r.err));
    struct rig_session rs = start(&r, FIXED, 0, true);
    float *logits = rig_logits(&r, 1);
    counters = kvl_session_counters(rs.s);
    for (int32_t t = 0; t < 3; t++) {
        int64_t before = counters->h2d_bytes;
        memset(&step, 0, sizeof step);
        rig_decode(&r, &rs, id + N_CTX + t, 1, logits);
        expect_order(before);
    }
    kvl_free(logits);
    rig_end(&rs);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_do_not_depend_on_it),
        cmocka_unit_test(test_packed_loads),
        cmocka_unit_test(test_what_lies_where),
        cmocka_unit_test(test_a_block_waits_for_one_list),
        cmocka_unit_test(test_loads_beside_the_wait_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
