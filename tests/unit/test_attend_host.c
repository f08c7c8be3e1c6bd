/* Attention where blocks lie: lists cut between a device and its host in every way, against plain loops over
 * lanes that are fetched; what travels, counted by the session and by the device.  With KVL_TEST_CUDA on the
 * (emulated) GPU, else on the CPU in both places. */
#include "conformance/rig.h"
#include "kvl/device.h"

enum { N_LAYERS = 3, N_HEADS = 4, N_KV = 2, DIM = 16, GROUP = N_HEADS / N_KV, BLOCK = 16 };
enum { N_CTX = 150, N_STEPS = 12, N_ALL = N_CTX + N_STEPS + 8 };

#ifdef KVL_TEST_CUDA
static const char hybrid[] = "hybrid";
enum { SEEDS = 1 };
#else
static const char hybrid[] = "cpu-hybrid";
enum { SEEDS = 4 };
#endif

/* ---- a policy of the test's own ----------------------------------------------------------------- */

enum kind {
    EVERYTHING,
    PAGES,
    KV_TOKENS,
    Q_TOKENS,
    RANGES,
    SEGMENTS, /* one of them of the host alone */
    ONE_TOKEN,
    WEIGHTS,
    KEYS,
    IN_CACHE,
    CONSTANT,
    GROUPED,
    PSEUDO,
    RESIDUAL,
    N_KINDS
};

static struct {
    enum kind kind;
    uint64_t seed;
    struct kvl_offload o;
    bool evicts;
} cfg;

static uint64_t draw(int32_t layer, int32_t list, int32_t pos)
{
    return kvl_seed_mix(cfg.seed, (uint64_t)((pos * 8 + list) * 8 + layer));
}

/* Positions from .. end - 1, some in clusters that end in the middle of a block, some alone. */
static int32_t tokens(const struct kvl_pctx *ctx, int32_t layer, int32_t list, int32_t head,
                      int32_t from, int32_t end, int32_t *pos)
{
    const int32_t *live;
    int32_t n_live, n = 0;
    if (kvl_live(ctx, layer, head, &live, &n_live) != KVL_OK) return 0;
    for (int32_t i = 0; i < n_live; i++) {
        if (live[i] < from || live[i] >= end) continue;
        bool cluster = draw(layer, list, live[i] / 11) % 3 == 0;
        if (cluster || draw(layer, list, 4096 + live[i]) % 6 == 0) pos[n++] = live[i];
    }
    return n;
}

static float number(int32_t layer, int32_t list, int32_t i)
{
    return (float)(draw(layer, list, 9000 + i) % 41) * 0.1f - 2.0f;
}

/* Lists of one segment, with what the kind gives them. */
static int lists(struct kvl_pctx *ctx, const struct kvl_step *step, bool split, int32_t from,
                 int32_t end, struct kvl_sel *sel)
{
    enum kvl_scope scope = split ? KVL_SCOPE_Q_HEAD : KVL_SCOPE_KV_HEAD;
    for (int32_t l = 0; l < (split ? N_HEADS : N_KV); l++) {
        int32_t pos[N_ALL], n = tokens(ctx, step->layer, l, split ? l / GROUP : l, from, end, pos);
        float x[N_ALL * DIM];
        KVL_TRY(kvl_sel_tokens(sel, scope, l, pos, n));
        for (int32_t i = 0; i < n * DIM; i++) x[i] = number(step->layer, l, i);
        if (cfg.kind == WEIGHTS) KVL_TRY(kvl_sel_log_weights(sel, scope, l, x, n));
        if (cfg.kind == KEYS) KVL_TRY(kvl_sel_keys(sel, scope, l, x, n));
    }
    return KVL_OK;
}

static int ranges(const struct kvl_step *step, struct kvl_sel *sel)
{
    for (int32_t h = 0; h < N_KV; h++)
        for (int32_t at = 3 + h; at < step->pos; at += 29)
            KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_KV_HEAD, h, at, KVL_MIN(at + 23, step->pos + 1)));
    return KVL_OK;
}

static int beside(const struct kvl_step *step, struct kvl_sel *sel)
{
    float x[N_HEADS * 8 + N_KV * DIM];
    for (int32_t i = 0; i < (int32_t)(sizeof x / sizeof x[0]); i++)
        x[i] = number(step->layer, 5, i);
    for (int32_t h = 0; cfg.kind == PSEUDO && h < N_KV; h++)
        KVL_TRY(kvl_sel_pseudo(sel, h, x + h * GROUP, x + N_HEADS, 1));
    for (int32_t h = 0; h < N_HEADS; h++) x[h] = 0.3f + 0.1f * (float)h;
    return cfg.kind == RESIDUAL ? kvl_sel_residual(sel, x, x + N_HEADS) : KVL_OK;
}

static int test_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_sel *sel)
{
    int32_t page[N_ALL], n = 0, one = 40, end = step->pos + 1;
    (void)q;
    switch (cfg.kind) {
    case EVERYTHING: return KVL_OK;
    case PAGES:
        for (int32_t p = 0; p <= step->pos / 7; p++)
            if (draw(step->layer, 0, p) % 3 == 0) page[n++] = p;
        return kvl_sel_pages(sel, KVL_SCOPE_LAYER, 0, 7, page, n);
    case RANGES: return ranges(step, sel);
    case ONE_TOKEN: return kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, &one, 1);
    case SEGMENTS:
    case WEIGHTS:
        KVL_TRY(lists(ctx, step, true, 64, end, sel));
        KVL_TRY(kvl_sel_segment(sel));
        return lists(ctx, step, cfg.kind == WEIGHTS, 20, 64, sel);
    case IN_CACHE:
        KVL_TRY(lists(ctx, step, false, 0, end, sel));
        return kvl_sel_positions(sel, KVL_POS_IN_CACHE, 0);
    case CONSTANT:
        KVL_TRY(lists(ctx, step, true, 0, 70, sel));
        KVL_TRY(kvl_sel_positions(sel, KVL_POS_CONSTANT, 9));
        KVL_TRY(kvl_sel_segment(sel));
        return lists(ctx, step, false, 70, end, sel);
    case GROUPED:
        KVL_TRY(lists(ctx, step, false, 0, end, sel));
        KVL_TRY(kvl_sel_positions(sel, KVL_POS_GROUPED, 4));
        return kvl_sel_query_position(sel, step->pos / 4 + 7);
    default: KVL_TRY(lists(ctx, step, cfg.kind == Q_TOKENS, 0, end, sel)); return beside(step, sel);
    }
}

/* Every ninth of the positions goes, from lanes of which blocks are on the host. */
static int test_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    for (int32_t h = 0; cfg.evicts && !step->replay && h < N_KV; h++) {
        const int32_t *live;
        int32_t pos[N_ALL], n, m = 0;
        KVL_TRY(kvl_live(ctx, step->layer, h, &live, &n));
        for (int32_t i = 0; i < n; i++)
            if (i == n - 1 || draw(step->layer, h, live[i] * 64 + step->index) % 9)
                pos[m++] = live[i];
        KVL_TRY(kvl_keep_tokens(keep, h, pos, m));
    }
    return KVL_OK;
}

/* ---- what a run saw ------------------------------------------------------------------------------ */

enum { MAX_SEEN = 1 << 21 };
struct seen {
    float *x; /* what attention gave and what observe got, in order */
    size_t n;
    struct kvl_counters count;
};
static struct seen *seeing;

static void see(const float *x, size_t n)
{
    assert_true(seeing->n + n <= MAX_SEEN);
    memcpy(seeing->x + seeing->n, x, n * sizeof *x);
    seeing->n += n;
}

static int test_observe(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const float *const *probs, const int32_t *n, const float *lse)
{
    (void)ctx;
    (void)step;
    for (int32_t h = 0; h < N_HEADS; h++) see(probs[h], (size_t)n[h]);
    see(lse, N_HEADS);
    return KVL_OK;
}

static int tap_out(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    (void)user;
    (void)err;
    see(t->out, (size_t)N_HEADS * DIM);
    return KVL_OK;
}

static int test_plan(struct kvl_plan *plan)
{
    plan->raw_keys = cfg.kind == IN_CACHE || cfg.kind == CONSTANT || cfg.kind == GROUPED;
    return kvl_plan_offload(plan, &cfg.o);
}

#define POLICY(id, ...) RIG_POLICY(id, .plan = test_plan, .select = test_select, __VA_ARGS__)

POLICY(plain, .caps = KVL_CAP_SELECTS | KVL_CAP_OFFLOADS);
POLICY(observing, .caps = KVL_CAP_SELECTS | KVL_CAP_OFFLOADS, .observe = test_observe);
POLICY(shrinking, .caps = KVL_CAP_SELECTS | KVL_CAP_OFFLOADS | KVL_CAP_EVICTS,
       .observe = test_observe, .evict = test_evict);

/* ---- rig ---------------------------------------------------------------------------------------------- */

static int32_t ids[N_ALL];

static const struct rig_desc model_of_tests = { .llama = { .n_layers = N_LAYERS, .seed = 5 } };

static void open_on(struct rig *r, const struct kvl_device *device, const struct kvl_ops *ops,
                    enum kvl_kv_type type)
{
    struct rig_desc d = model_of_tests;
    d.device = "cpu";
    rig_open(r, &d);
    kvl_engine_destroy(r->engine);
    struct kvl_engine_desc desc = {
        .model = r->model, .ops = ops, .kv_type = type, .raw_keys = true, .device = device
    };
    desc.observers.window = 64;
    RIG_OK(&r->err, kvl_engine_create(&desc, &r->engine, &r->err));
    rig_tokens(ids, N_ALL, 77);
}

static const struct kvl_device *device_of(const char *name)
{
    const struct kvl_device *device;
    struct kvl_err err = { 0 };
    RIG_OK(&err, kvl_device_open(name, &device, &err));
    return device;
}

/* The context by plain loops, which take their time: runs begin with a fork of it. */
static struct {
    const struct rig *r;
    struct kvl_session *s;
} context;

static struct rig_session start(struct rig *r, const struct kvl_policy *policy)
{
    struct rig_session rs = { 0 };
    if (r != context.r)
        return rig_start(r, &(struct rig_run){ .policy = policy, .id = ids, .n_ctx = N_CTX });
    RIG_OK(&r->err, kvl_planned_create(policy, rig_shape(r), NULL, 0, N_CTX, &rs.planned, &r->err));
    RIG_OK(&r->err, kvl_session_fork(context.s, &rs.s, &r->err));
    RIG_OK(&r->err, kvl_session_attach(rs.s, rs.planned, 0, KVL_EXEC_REAL, &r->err));
    return rs;
}

/* Half the steps one by one, the rest as one block. */
static void run_seen(struct rig *r, const struct kvl_policy *policy, struct seen *out)
{
    struct rig_session rs = start(r, policy);
    float *logits = rig_logits(r, N_STEPS);
    out->n = 0;
    seeing = out;
    kvl_session_tap(rs.s, &(struct kvl_tap){ .read = tap_out });
    rig_decode(r, &rs, ids + N_CTX, N_STEPS / 2, logits);
    RIG_OK(&r->err,
           kvl_session_extend(rs.s, ids + N_CTX + N_STEPS / 2, N_STEPS - N_STEPS / 2, &r->err));
    out->count = *kvl_session_counters(rs.s);
    kvl_free(logits);
    rig_end(&rs);
}

static void expect_near(const struct seen *want, const struct seen *got, double tolerance)
{
    assert_int_equal(want->n, got->n);
    for (size_t i = 0; i < want->n; i++) {
        double a = (double)want->x[i], b = (double)got->x[i];
        if (!(fabs(a - b) <= tolerance * (1 + fabs(a))))
            fail_msg("kind %d, seed %d, units of %d behind %d: number %zu is %.7g, want %.7g",
                     cfg.kind, (int)cfg.seed, cfg.o.unit_tok, cfg.o.origin, i, b, a);
    }
}

/* Nothing was fetched, and what was read on the host is a part of what was read. */
static void expect_stayed(const struct seen *s)
{
    const struct kvl_counters *c = &s->count;
    assert_int_equal(c->cache_hits + c->cache_misses + c->prefetch_bytes, 0);
    assert_int_equal(c->fetch_ns, 0);
    assert_true(c->host_attend_tok > 0 && c->host_attend_bytes > 0);
    assert_true(c->host_attend_bytes < c->kv_read_bytes);
}

/* ---- tests --------------------------------------------------------------------------------------------- */

static const struct kvl_offload sizes[] = {
    { .keep_last = 1, .unit_tok = 1 },
    { .keep_first = 5, .keep_last = 17, .unit_tok = 3, .cache_tok = 31 },
    { .keep_last = 30, .unit_tok = 16 },
    { .keep_first = 20, .keep_last = 40, .origin = 9, .unit_tok = 6 },
};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

/* The host's share of one run on one device against the same, fetched, on the CPU by plain loops. */
static void compare(struct rig *ref, struct rig *r, const struct kvl_policy *policy,
                    struct seen pair[2])
{
    run_seen(ref, policy, &pair[0]);
    run_seen(r, policy, &pair[1]);
    expect_near(&pair[0], &pair[1], 1e-4);
    expect_stayed(&pair[1]);
    assert_int_equal(pair[0].count.host_attend_tok, 0);
    assert_int_equal(pair[0].count.kv_read_bytes, pair[1].count.kv_read_bytes);
    assert_int_equal(pair[0].count.attended_tok, pair[1].count.attended_tok);
}

/* Lists that are fetched and attended by plain loops, and lists that are attended where they lie. */
static void pair_open(struct rig *ref, struct rig *r, struct seen pair[2])
{
    for (int i = 0; i < 2; i++) pair[i].x = rig_floats(MAX_SEEN);
    open_on(ref, NULL, &kvl_ops_ref, KVL_KV_F32);
    open_on(r, device_of(hybrid), NULL, KVL_KV_F32);
    context.r = ref;
    RIG_OK(&ref->err, kvl_session_create(ref->engine, &context.s, &ref->err));
    RIG_OK(&ref->err, kvl_session_prefill(context.s, ids, N_CTX, NULL, true, &ref->err));
}

static void pair_close(struct rig *ref, struct rig *r, struct seen pair[2])
{
    kvl_session_destroy(context.s);
    memset(&context, 0, sizeof context);
    rig_close(r);
    rig_close(ref);
    for (int i = 0; i < 2; i++) kvl_free(pair[i].x);
    memset(&cfg, 0, sizeof cfg);
}

static void test_lists_cut_in_every_way(void **state)
{
    struct rig ref, r;
    struct seen pair[2];
    (void)state;
    pair_open(&ref, &r, pair);
    for (int k = 0; k < N_KINDS; k++)
        for (int i = 0; i < N_SIZES * SEEDS; i++) {
            cfg.kind = (enum kind)k;
            cfg.seed = (uint64_t)(17 * k + i);
            cfg.o = sizes[(i + (SEEDS == 1 ? k : 0)) % N_SIZES];
            if (SEEDS == 1 && i > 0) break;
            compare(&ref, &r, &observing, pair);
        }
    pair_close(&ref, &r, pair);
}

/* Slots of blocks on the host move when others go; lanes out of order stay on the device. */
static void test_lanes_that_shrink(void **state)
{
    struct rig ref, r;
    struct seen pair[2];
    (void)state;
    pair_open(&ref, &r, pair);
    cfg.evicts = true;
    for (int i = 0; i < N_SIZES; i++) {
        cfg.kind = i % 2 ? KV_TOKENS : EVERYTHING;
        cfg.seed = (uint64_t)i;
        cfg.o = sizes[i];
        run_seen(&ref, &shrinking, &pair[0]);
        run_seen(&r, &shrinking, &pair[1]);
        expect_near(&pair[0], &pair[1], 1e-4);
    }
    pair_close(&ref, &r, pair);
}

/* The same numbers whoever else is in the batch, and in every run. */
static void test_batches_and_forks(void **state)
{
    struct rig r;
    (void)state;
    open_on(&r, device_of(hybrid), NULL, KVL_KV_BF16);
    cfg.kind = CONSTANT;
    cfg.o = sizes[2];
    float *alone = rig_logits(&r, 4), *again = rig_logits(&r, 4), *both = rig_logits(&r, 2);
    struct rig_session a = start(&r, &plain), b = start(&r, &plain);
    struct rig_session c = rig_fork(&r, &b), d = rig_fork(&r, &b);
    size_t n_vocab = (size_t)rig_shape(&r)->n_vocab;
    rig_decode(&r, &a, ids + N_CTX, 4, alone);
    rig_decode(&r, &b, ids + N_CTX, 4, again);
    rig_expect_same(&r, alone, again, 4, "twice");
    for (int32_t i = 0; i < 4; i++) {
        struct kvl_session *batch[] = { c.s, d.s };
        int32_t id[] = { ids[i], ids[N_CTX + i] };
        RIG_OK(&r.err, kvl_session_decode(batch, 2, id, both, &r.err));
        rig_expect_same(&r, alone + (size_t)i * n_vocab, both + n_vocab, 1, "in a batch or alone");
    }
    assert_int_equal(kvl_session_counters(a.s)->host_attend_bytes,
                     kvl_session_counters(d.s)->host_attend_bytes);
    assert_int_equal(kvl_session_counters(a.s)->h2d_bytes, kvl_session_counters(d.s)->h2d_bytes);
    rig_end(&d);
    rig_end(&c);
    rig_end(&b);
    rig_end(&a);
    kvl_free(alone);
    kvl_free(again);
    kvl_free(both);
    memset(&cfg, 0, sizeof cfg);
    rig_close(&r);
}

/* ---- traffic --------------------------------------------------------------------------------------- */

/* Copies that go through the device's table, told apart by what the device counts. */
static const struct kvl_device *counted;
static struct kvl_device_traffic went;
static int64_t n_gathers;

static int counting_copy(void *to, const void *from, size_t bytes, enum kvl_stream stream)
{
    struct kvl_device_traffic a, b;
    counted->traffic(&a);
    int rc = counted->copy(to, from, bytes, stream);
    counted->traffic(&b);
    went.h2d_bytes += b.h2d_bytes - a.h2d_bytes;
    went.h2d_calls += b.h2d_calls - a.h2d_calls;
    went.d2h_bytes += b.d2h_bytes - a.d2h_bytes;
    went.d2h_calls += b.d2h_calls - a.d2h_calls;
    return rc;
}

static int counting_gather(const struct kvl_kv_move_args *a)
{
    n_gathers++;
    return counted->kv_gather(a);
}

/* Steps in which no token ages and no block is new: all that goes is queries and results. */
static void test_what_travels(void **state)
{
    enum { STEPS = 3 };
    struct rig r;
    (void)state;
    counted = device_of(hybrid);
    struct kvl_device counting = *counted;
    counting.copy = counting_copy;
    if (counted->kv_gather) counting.kv_gather = counting_gather;
    open_on(&r, &counting, NULL, KVL_KV_F16);
    cfg.kind = EVERYTHING;
    cfg.o = (struct kvl_offload){ .keep_first = 3, .keep_last = 22, .unit_tok = 64 };
    struct rig_session rs = start(&r, &plain);
    const struct kvl_counters *c = kvl_session_counters(rs.s);
    float *logits = rig_logits(&r, STEPS + 1);
    int64_t slot = 2 * DIM * 2, lanes = N_LAYERS * N_KV;
    assert_int_equal(c->d2h_calls, N_LAYERS);
    assert_int_equal(c->d2h_bytes, lanes * 64 * slot); /* positions 64 to 127 */
    assert_int_equal(c->host_bytes, c->d2h_bytes);
    rig_decode(&r, &rs, ids + N_CTX, 1, logits);
    kvl_session_reset_counters(rs.s);
    went = (struct kvl_device_traffic){ 0 };
    n_gathers = 0;
    rig_decode(&r, &rs, ids + N_CTX + 1, STEPS, logits);
    assert_int_equal(c->host_attend_tok, STEPS * lanes * 64);
    assert_int_equal(c->host_attend_bytes, STEPS * lanes * 64 * slot);
    assert_int_equal(c->d2h_calls, STEPS * N_LAYERS);
    assert_int_equal(c->d2h_bytes, STEPS * N_LAYERS * N_HEADS * DIM * 4);
    assert_int_equal(c->h2d_calls, STEPS * N_LAYERS);
    assert_int_equal(c->h2d_bytes, STEPS * N_LAYERS * N_HEADS * (DIM + 1) * 4);
    assert_int_equal(n_gathers, 0);
    if (counted->discrete) {
        assert_int_equal(went.d2h_bytes, c->d2h_bytes);
        assert_int_equal(went.d2h_calls, c->d2h_calls);
        /* And the token with its position; a step that is gathered makes no call of it. */
        assert_int_equal(went.h2d_bytes, c->h2d_bytes + STEPS * 2 * (int)sizeof(int32_t));
        assert_in_range(went.h2d_calls, c->h2d_calls, c->h2d_calls + STEPS);
    }
    kvl_free(logits);
    rig_end(&rs);
    memset(&cfg, 0, sizeof cfg);
    rig_close(&r);
}

/* Guesses bring nothing, and scores of units are nobody's. */
static int guessing_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_sel *sel)
{
    const int32_t guess[] = { 1, 2, 70 };
    const float score[] = { 1, 2, 3 };
    (void)q;
    (void)sel;
    KVL_TRY(kvl_offload_scores(ctx, step->layer, 0, score, 3));
    return kvl_prefetch(ctx, (step->layer + 1) % N_LAYERS, 1, guess, 3);
}

static void test_guesses_bring_nothing(void **state)
{
    struct rig r;
    struct kvl_policy guessing = plain;
    (void)state;
    guessing.select = guessing_select;
    open_on(&r, device_of(hybrid), NULL, KVL_KV_F32);
    cfg.o = (struct kvl_offload){
        .keep_last = 9, .unit_tok = 16, .cache_tok = 64, .replace = KVL_REPLACE_SCORE
    };
    struct rig_session rs = start(&r, &guessing);
    const struct kvl_counters *c = kvl_session_counters(rs.s);
    float *logits = rig_logits(&r, 2);
    int64_t resident = c->device_bytes;
    rig_decode(&r, &rs, ids + N_CTX, 2, logits);
    assert_int_equal(c->prefetch_bytes, 0);
    assert_int_equal(c->device_bytes, resident + 2 * N_LAYERS * N_KV * 2 * DIM * 4);
    kvl_free(logits);
    rig_end(&rs);
    memset(&cfg, 0, sizeof cfg);
    rig_close(&r);
}

static void test_names(void **state)
{
    const struct kvl_device *device;
    struct kvl_err err = { 0 };
    (void)state;
    assert_true(device_of(hybrid)->attends_host);
    assert_false(kvl_device_cpu()->attends_host);
    assert_string_equal(device_of(hybrid)->name, hybrid);
    assert_int_equal(kvl_device_open("hybrids", &device, &err), KVL_EINVAL);
}

int main(void)
{
#ifdef KVL_TEST_CUDA
    struct kvl_err err = { 0 };
    const struct kvl_device *device;
    if (kvl_device_open(hybrid, &device, &err) != KVL_OK) {
        print_message("%s\n", err.msg);
        return 77;
    }
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists_cut_in_every_way), cmocka_unit_test(test_lanes_that_shrink),
        cmocka_unit_test(test_batches_and_forks),      cmocka_unit_test(test_what_travels),
        cmocka_unit_test(test_guesses_bring_nothing),  cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
