/* A context that goes through the model layer by layer (prefill_kv: host): the same bits as chunk by chunk, of logits,
 * stored keys and values, and observers; what policies of each kind make of it; and, with KVL_TEST_CUDA, where
 * blocks lie and how much of the (emulated) GPU it takes. */
#include "conformance/rig.h"
#include "place.h"

#ifdef KVL_TEST_CUDA
#include "cuda_host_control.h"
#endif

enum { N_CTX = 150, N_STEPS = 4, MAX_TOK = 1024 };

static int32_t id[MAX_TOK];

static struct rig_desc desc_of(bool host, int32_t chunk_tok)
{
    return (struct rig_desc){ .llama = { .n_layers = 3, .n_kv_heads = 2, .seed = 5 },
                              .prefill_kv_host = host,
                              .chunk_tok = chunk_tok };
}

/* Scores of inputs: products with weights that load writes. */
static int products_load(const struct kvl_input_scorer *scorer, const struct kvl_shape *shape,
                         void *memory, struct kvl_err *err)
{
    float *w = memory;
    (void)scorer;
    (void)err;
    for (int32_t i = 0; i < shape->n_kv_heads * shape->n_embd; i++) w[i] = (float)(i % 7 - 3);
    return KVL_OK;
}

static int products_score(const struct kvl_pctx *ctx, const void *memory, int32_t layer,
                          const float *x, int32_t n, float *score)
{
    int32_t heads = ctx->shape->n_kv_heads;
    float *y;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(heads * n), &y));
    KVL_TRY(kvl_product(ctx, x, n, memory, heads, ctx->shape->n_embd, y));
    for (int32_t i = 0; i < heads * n; i++) score[i] = y[i % n * heads + i / n] + (float)layer;
    return KVL_OK;
}

static const struct kvl_input_scorer products = {
    .key = 11, .bytes = 4096 * sizeof(float), .load = products_load, .score = products_score
};

static const struct kvl_observer_set everything = { .window = 40,
                                                    .column = { { KVL_OBS_COLUMNS, 0 },
                                                                { KVL_OBS_COLUMNS, 20 },
                                                                { KVL_OBS_LOGITS, 16 },
                                                                { KVL_OBS_MOMENTS, 4 },
                                                                { KVL_OBS_INPUTS, 11 } },
                                                    .scorer = { [4] = &products },
                                                    .n_columns = 5 };

static bool on_device(const struct rig *r)
{
    return kvl_engine_device(r->engine)->discrete;
}

/* Slots of a session in pinned memory. */
static int64_t host_slots(const struct rig *r, const struct kvl_session *s)
{
    int64_t n = 0;
    for (int32_t l = 0; l < rig_shape(r)->n_layers; l++)
        n += kvl_seq_host_slots(kvl_session_seq(s), l);
    return n;
}

static int64_t full_blocks(const struct rig *r, int32_t n)
{
    return (int64_t)rig_shape(r)->n_layers * rig_shape(r)->n_kv_heads * (n - n % 16);
}

static void close_checked(struct rig *r)
{
    struct kvl_store_stats st;
    RIG_OK(&r->err, kvl_store_check(kvl_engine_store(r->engine), &r->err));
    kvl_store_stats(kvl_engine_store(r->engine), &st);
    assert_int_equal(st.n_blocks, 0);
    rig_close(r);
}

/* ---- the same bits ------------------------------------------------------------------------------ */

/* All that a session holds: its snapshot. */
static struct kvl_buf bytes_of(struct rig *r, struct kvl_session *s)
{
    char path[] = "/tmp/kvl-layers-XXXXXX";
    struct kvl_buf b = { 0 };
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    RIG_OK(&r->err, kvl_session_save(s, path, "key", &r->err));
    RIG_OK(&r->err, kvl_read_file(path, SIZE_MAX, &b, &r->err));
    unlink(path);
    return b;
}

/* A context of `first` tokens, and in a fork of it the rest: logits of all, and what is stored. */
static struct kvl_buf prefilled(const struct rig_desc *d, bool observes, int32_t first,
                                float **logits)
{
    struct rig r;
    struct kvl_session *s, *fork;
    const struct kvl_observer_set nothing = { 0 };
    rig_open(&r, d);
    RIG_OK(&r.err, kvl_engine_observe(r.engine, observes ? &everything : &nothing, &r.err));
    RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
    *logits = rig_logits(&r, N_CTX);
    RIG_OK(&r.err, kvl_session_prefill(s, id, first, *logits, false, &r.err));
    RIG_OK(&r.err, kvl_session_fork(s, &fork, &r.err));
    size_t at = (size_t)first * (size_t)rig_shape(&r)->n_vocab;
    if (first < N_CTX)
        RIG_OK(&r.err,
               kvl_session_prefill(fork, id + first, N_CTX - first, *logits + at, false, &r.err));
    assert_int_equal(kvl_session_len(s), first);
    assert_int_equal(kvl_session_len(fork), N_CTX);
    bool host = d->prefill_kv_host && on_device(&r);
    assert_int_equal(host_slots(&r, s), host ? full_blocks(&r, first) : 0);
    assert_int_equal(host_slots(&r, fork), host ? full_blocks(&r, N_CTX) : 0);
    RIG_OK(&r.err, kvl_store_check(kvl_engine_store(r.engine), &r.err));
    struct kvl_buf bytes = bytes_of(&r, fork);
    kvl_session_destroy(s);
    kvl_session_destroy(fork);
    close_checked(&r);
    return bytes;
}

static void expect_same(const struct rig_desc *want, const struct rig_desc *got, bool observes,
                        int32_t first)
{
    float *a, *b;
    struct rig r;
    struct kvl_buf x = prefilled(want, observes, N_CTX, &a),
                   y = prefilled(got, observes, first, &b);
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
    rig_open(&r, want);
    rig_expect_same(&r, a, b, N_CTX, "layer by layer");
    rig_close(&r);
    kvl_buf_free(&x);
    kvl_buf_free(&y);
    kvl_free(a);
    kvl_free(b);
}

static void test_same_bits(void **state)
{
    static const int32_t chunks[] = { 7, 64, 512 };
    (void)state;
    for (int i = 0; i < 12; i++) {
        struct rig_desc want = desc_of(false, i % 3 == 1 ? 512 : 64),
                        got = desc_of(true, chunks[i % 3]);
        want.bf16 = got.bf16 = i / 3 % 2;
        want.kv_type = got.kv_type = i % 2 ? KVL_KV_BF16 : KVL_KV_F32;
        expect_same(&want, &got, i / 6, i % 3 == 0 ? 70 : N_CTX);
    }
}

/* A cache that pretends to have been prefilled has the same keys. */
static void test_fill(void **state)
{
    struct kvl_buf bytes[2];
    (void)state;
    for (int host = 0; host < 2; host++) {
        struct rig r;
        struct kvl_session *s;
        struct rig_desc d = desc_of(host, 0);
        rig_open(&r, &d);
        RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
        RIG_OK(&r.err, kvl_session_fill(s, 1100, 3, &r.err));
        assert_int_equal(host_slots(&r, s), host && on_device(&r) ? full_blocks(&r, 1100) : 0);
        bytes[host] = bytes_of(&r, s);
        kvl_session_destroy(s);
        close_checked(&r);
    }
    assert_int_equal(bytes[0].len, bytes[1].len);
    assert_memory_equal(bytes[0].data, bytes[1].data, bytes[0].len);
    kvl_buf_free(&bytes[0]);
    kvl_buf_free(&bytes[1]);
}

/* What was saved in one way goes on in the other. */
static void test_snapshots(void **state)
{
    struct rig r[2];
    struct kvl_session *s, *back;
    char path[] = "/tmp/kvl-layers-XXXXXX";
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    for (int i = 0; i < 2; i++) {
        struct rig_desc d = desc_of(i, 64);
        rig_open(&r[i], &d);
    }
    float *want = rig_logits(&r[0], N_STEPS), *got = rig_logits(&r[0], N_STEPS);
    for (int i = 0; i < 4; i++) {
        struct rig *from = &r[i % 2], *to = &r[i / 2];
        RIG_OK(&from->err, kvl_session_create(from->engine, &s, &from->err));
        RIG_OK(&from->err, kvl_session_prefill(s, id, N_CTX, NULL, true, &from->err));
        RIG_OK(&from->err, kvl_session_save(s, path, "key", &from->err));
        RIG_OK(&to->err, kvl_session_load(to->engine, path, "key", &back, &to->err));
        assert_int_equal(host_slots(to, back), i / 2 && on_device(to) ? full_blocks(to, N_CTX) : 0);
        rig_decode(from, &(struct rig_session){ .s = s }, id + N_CTX, N_STEPS, want);
        rig_decode(to, &(struct rig_session){ .s = back }, id + N_CTX, N_STEPS, got);
        rig_expect_same(to, want, got, N_STEPS, "loaded");
        kvl_session_destroy(s);
        kvl_session_destroy(back);
    }
    unlink(path);
    kvl_free(want);
    kvl_free(got);
    close_checked(&r[0]);
    close_checked(&r[1]);
}

/* ---- policies that come after ---------------------------------------------------------------------- */

#define KVL_POLICY_X(stem) extern const struct kvl_policy *const kvl_policy_##stem;
#include "kvl_policies.def"
#undef KVL_POLICY_X

struct outcome {
    float *logits; /* of the session, then of a fork that read other tokens */
    struct kvl_counters count;
    int32_t n_ctx;
    bool moves; /* the counters tell where blocks lie */
};

static struct rig_run run_of(const struct kvl_policy *p, const char *options,
                             const struct kvl_shape *sh)
{
    struct kvl_err err = { 0 };
    void *opts = kvl_alloc(1, p->opts_size + 1);
    assert_non_null(opts);
    if (p->opts) RIG_OK(&err, kvl_opt_defaults(p->opts, opts, &err));
    int32_t budget = KVL_MAX(48, kvl_policy_min_budget(p, sh, opts) + 16);
    kvl_free(opts);
    return (struct rig_run){ .policy = p,
                             .options = options,
                             .budget = budget,
                             .id = id,
                             .n_ctx = 3 * budget + 7,
                             .n_steps = N_STEPS };
}

/* What of the context's slots is on the host: all that an offloading policy names host units, nothing where it
 * evicts, else all full blocks. */
static void expect_places(const struct rig *r, const struct rig_session *rs,
                          const struct rig_run *run, bool offloads)
{
    const struct kvl_policy *p = run->policy;
    int64_t slot = 2 * (int64_t)rig_shape(r)->head_dim * 4;
    int64_t host = kvl_session_counters(rs->s)->host_bytes / slot;
    if (p->score || p->evict) {
        assert_int_equal(host, 0);
        assert_int_equal(host_slots(r, rs->s), 0);
    } else if (offloads) { /* blocks with units of both kinds stay on the device */
        assert_true(host > 0 && host_slots(r, rs->s) <= host);
    } else {
        assert_int_equal(host, full_blocks(r, run->n_ctx));
        assert_int_equal(host_slots(r, rs->s), host);
    }
}

static struct outcome outcome_of(const struct kvl_policy *p, const char *options, bool host)
{
    struct rig r;
    struct rig_desc d = desc_of(host, 37);
    rig_open(&r, &d);
    struct rig_run run = run_of(p, options, rig_shape(&r));
    struct outcome o = { .logits = rig_logits(&r, 2 * N_STEPS), .n_ctx = run.n_ctx };
    bool places = host && on_device(&r), offloads = *options != '\0';
    assert_true(run.n_ctx + 2 * N_STEPS < MAX_TOK);
    struct rig_session rs = rig_start(&r, &run), fork;
    if (places) expect_places(&r, &rs, &run, offloads);
    kvl_session_reset_counters(rs.s);
    fork = rig_fork(&r, &rs);
    size_t half = (size_t)N_STEPS * (size_t)rig_shape(&r)->n_vocab;
    rig_decode(&r, &rs, id + run.n_ctx, N_STEPS, o.logits);
    rig_decode(&r, &fork, id + run.n_ctx + N_STEPS, N_STEPS, o.logits + half);
    if (places) expect_places(&r, &rs, &run, offloads);
    o.count = *kvl_session_counters(rs.s);
    o.moves = places && !offloads && !p->score && !p->evict;
    RIG_OK(&r.err, kvl_store_check(kvl_engine_store(r.engine), &r.err));
    rig_end(&fork);
    rig_end(&rs);
    close_checked(&r);
    return o;
}

/* With options that make it offload, where it can. */
static void expect_same_policy(const struct kvl_policy *p, const char *options)
{
    struct outcome a = outcome_of(p, options, false), b = outcome_of(p, options, true);
    struct rig r;
    struct rig_desc d = desc_of(false, 0);
    rig_open(&r, &d);
    rig_expect_same(&r, a.logits, b.logits, 2 * N_STEPS, p->name);
    rig_close(&r);
    assert_int_equal(a.count.h2d_bytes, b.count.h2d_bytes);
    assert_int_equal(a.count.d2h_bytes, b.count.d2h_bytes);
    assert_int_equal(a.count.cache_misses, b.count.cache_misses);
    assert_int_equal(a.count.kv_read_bytes, b.count.kv_read_bytes);
    assert_int_equal(a.count.n_evicted, b.count.n_evicted);
    if (!b.moves) assert_int_equal(a.count.device_bytes, b.count.device_bytes);
    if (!b.moves) assert_int_equal(a.count.host_bytes, b.count.host_bytes);
    kvl_free(a.logits);
    kvl_free(b.logits);
}

static void test_policies(void **state)
{
    (void)state;
    expect_same_policy(kvl_policy_full, "");
    expect_same_policy(kvl_policy_quest, "");
    expect_same_policy(kvl_policy_omnikv, "");
    expect_same_policy(kvl_policy_snapkv, "");
    expect_same_policy(kvl_policy_h2o, "");
    expect_same_policy(kvl_policy_quest, "offload=true");
    expect_same_policy(kvl_policy_infllm, "offload=true,cache=lru");
}

/* ---- policies that read the context themselves ------------------------------------------------------- */

static bool looks_across;

static int window_mask(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_prefill_mask *mask)
{
    const float *mass;
    int32_t n;
    (void)q;
    if (looks_across && step->pos > 0)
        return kvl_obs_window_mass(ctx, (step->layer + 1) % ctx->shape->n_layers, 8, &mass, &n);
    if (step->pos > 0) KVL_TRY(kvl_obs_window_mass(ctx, step->layer, 8, &mass, &n));
    return kvl_mask_window(mask, -1, 4, 20 + 10 * step->layer);
}

static int layerwise_plan(struct kvl_plan *plan)
{
    plan->prefill_layerwise = true;
    return kvl_plan_observe(plan, KVL_OBS_WINDOW, 8);
}

static int chunkwise_plan(struct kvl_plan *plan)
{
    return kvl_plan_observe(plan, KVL_OBS_WINDOW, 8);
}

static struct kvl_policy masker_of(int (*plan)(struct kvl_plan *plan))
{
    return (struct kvl_policy){ .abi = KVL_POLICY_ABI,
                                .size = sizeof(struct kvl_policy),
                                .name = "masker",
                                .title = "t",
                                .paper = "p",
                                .help = "h",
                                .prefill = KVL_PREFILL_OWN,
                                .plan = plan,
                                .prefill_mask = window_mask };
}

/* The error of an own prefill, "" where there is none. */
static void own_prefill(const struct kvl_policy *p, bool host, int32_t chunk_tok, char *why,
                        size_t size)
{
    struct rig r;
    struct kvl_planned *planned;
    struct kvl_session *s;
    struct kvl_err err = { 0 };
    struct rig_desc d = desc_of(host, chunk_tok);
    rig_open(&r, &d);
    RIG_OK(&r.err, kvl_planned_create_own(p, rig_shape(&r), "", 64, N_CTX, &planned, &r.err));
    rig_observe(&r, planned);
    RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
    int rc = kvl_session_attach(s, planned, 1, KVL_EXEC_REAL, &err);
    if (rc == KVL_OK) rc = kvl_session_prefill(s, id, N_CTX, NULL, true, &err);
    assert_int_equal(rc == KVL_OK, err.msg[0] == '\0');
    snprintf(why, size, "%s", err.msg);
    kvl_session_destroy(s);
    kvl_planned_destroy(planned);
    close_checked(&r);
}

static void expect_refused(const struct kvl_policy *p, const char *needle)
{
    char why[sizeof(((struct kvl_err *)0)->msg)];
    own_prefill(p, false, 64, why, sizeof why);
    assert_string_equal(why, "");
    own_prefill(p, true, 64, why, sizeof why);
    if (!strstr(why, needle) || strchr(why, '\n'))
        fail_msg("\"%s\", want a line with \"%s\"", why, needle);
}

static void test_own_prefill(void **state)
{
    struct kvl_policy p = masker_of(layerwise_plan), chunkwise = masker_of(chunkwise_plan);
    char why[sizeof(((struct kvl_err *)0)->msg)];
    (void)state;
    looks_across = false;
    expect_same_policy(&p, "");
    expect_refused(&chunkwise, "chunk by chunk through all layers");
    own_prefill(&chunkwise, true, 512, why, sizeof why);
    assert_string_equal(why, ""); /* one chunk */
    expect_refused(kvl_policy_streaming_llm, "token by token");
    looks_across = true;
    own_prefill(&p, true, 64, why, sizeof why);
    assert_non_null(strstr(why, "observers of layer 1 in the mask of layer 0"));
}

/* ---- memory of a device ------------------------------------------------------------------------------- */

#ifdef KVL_TEST_CUDA

enum { WIDE_TOK = 64 };

/* Layers of 3 MiB of keys and values, of which a slab holds ten. */
static struct rig_desc wide_desc(uint32_t n_layers, bool host)
{
    return (struct rig_desc){
        .llama = { .n_layers = n_layers, .n_heads = 16, .n_kv_heads = 16, .head_dim = 256 },
        .prefill_kv_host = host,
        .chunk_tok = 24
    };
}

/* Prefills with so much memory of the device left once the weights are there. */
static int prefill_in(const struct rig_desc *d, size_t room, struct kvl_err *err)
{
    struct rig r;
    struct kvl_session *s;
    struct kvl_emu_counts c;
    rig_open(&r, d);
    assert_int_equal(kvl_engine_device(r.engine)->sync(), KVL_OK); /* what was freed is gone */
    kvl_emu_counts(&c);
    kvl_emu_memory_limit((size_t)c.device_bytes + room);
    *err = (struct kvl_err){ 0 };
    RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
    int rc = kvl_session_prefill(s, id, WIDE_TOK, NULL, true, err);
    kvl_session_destroy(s);
    kvl_emu_memory_limit(0);
    rig_close(&r);
    return rc;
}

static void test_memory(void **state)
{
    const size_t room = (size_t)52 << 20; /* a slab, and what a chunk and a session need */
    struct kvl_err err;
    (void)state;
    for (uint32_t n_layers = 8; n_layers <= 16; n_layers *= 2) {
        struct rig_desc d = wide_desc(n_layers, true);
        RIG_OK(&err, prefill_in(&d, room, &err));
    }
    struct rig_desc d = wide_desc(16, false);
    assert_int_equal(prefill_in(&d, room, &err), KVL_ENOMEM);
    assert_non_null(strstr(err.msg, "wanted: weights"));
    assert_null(strchr(err.msg, '\n'));
}

/* Memory that runs short at any point ends the session, and nothing else. */
static void test_short_memory(void **state)
{
    static const enum kvl_emu_call calls[] = { KVL_EMU_MALLOC, KVL_EMU_HOST_ALLOC };
    enum { OUT_OF_MEMORY = 2 }; /* cudaErrorMemoryAllocation */
    struct rig_desc d = desc_of(true, 40);
    float *want, *got;
    struct kvl_buf bytes = prefilled(&d, false, N_CTX, &want);
    int n_refused[2] = { 0 }, n_host = 0;
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int64_t n = 1; n <= 12; n++) {
            struct rig r;
            struct kvl_session *s;
            struct kvl_err err = { 0 };
            rig_open(&r, &d);
            got = rig_logits(&r, N_CTX);
            RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
            /* Where something waits to be freed, a second try succeeds. */
            assert_int_equal(kvl_engine_device(r.engine)->sync(), KVL_OK);
            kvl_emu_fail(calls[i], n, OUT_OF_MEMORY);
            int rc = kvl_session_prefill(s, id, N_CTX, got, false, &err);
            kvl_emu_fail(calls[i], 0, 0);
            kvl_session_destroy(s);
            if (rc != KVL_OK) assert_int_equal(rc, KVL_ENOMEM);
            n_refused[i] += rc != KVL_OK;
            n_host += strstr(err.msg, "host memory") != NULL;
            /* The engine goes on. */
            RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
            RIG_OK(&r.err, kvl_session_prefill(s, id, N_CTX, got, false, &r.err));
            rig_expect_same(&r, want, got, N_CTX, "after a refusal");
            kvl_session_destroy(s);
            kvl_free(got);
            close_checked(&r);
        }

    assert_true(n_refused[0] > 5 && n_refused[1] > 1 && n_host > 1);
    kvl_buf_free(&bytes);
    kvl_free(want);
}

/* A stream of copies that lags behind: chunks wait for their hidden states. */
static const struct kvl_device *fast;
static void *spot;

static int slow_copy(void *to, const void *from, size_t bytes, enum kvl_stream stream)
{
    for (int i = 0; stream == KVL_STREAM_COPY && i < 400; i++)
        KVL_TRY(fast->fill(spot, (uint8_t)i, 64, stream));
    return fast->copy(to, from, bytes, stream);
}

static void test_slow_copies(void **state)
{
    struct rig r;
    struct kvl_session *s;
    float *logits[2];
    struct rig_desc d = desc_of(false, 0);
    (void)state;
    rig_open(&r, &d);
    fast = kvl_engine_device(r.engine);
    spot = fast->alloc(KVL_PLACE_DEVICE, 64, 1);
    struct kvl_device slow = *fast;
    slow.copy = slow_copy;
    for (int host = 0; host < 2; host++) {
        const struct kvl_engine_desc e = {
            .model = r.model, .device = &slow, .chunk_tok = 40, .prefill_kv_host = host
        };
        kvl_engine_destroy(r.engine);
        RIG_OK(&r.err, kvl_engine_create(&e, &r.engine, &r.err));
        logits[host] = rig_logits(&r, N_CTX);
        RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
        RIG_OK(&r.err, kvl_session_prefill(s, id, N_CTX, logits[host], false, &r.err));
        kvl_session_destroy(s);
    }
    rig_expect_same(&r, logits[0], logits[1], N_CTX, "slow copies");
    kvl_free(logits[0]);
    kvl_free(logits[1]);
    fast->free(KVL_PLACE_DEVICE, spot);
    rig_close(&r);
}

/* The limit of the cache is the device's. */
static void test_limit(void **state)
{
    enum { TOK = 160 };
    struct rig r;
    struct kvl_session *s;
    struct kvl_store_stats st;
    (void)state;
    struct rig_desc d = desc_of(true, 64);
    rig_open(&r, &d);
    kvl_store_stats(kvl_engine_store(r.engine), &st);
    rig_close(&r);
    for (int host = 0; host < 2; host++) {
        d.prefill_kv_host = host;
        d.kv_limit_bytes = (size_t)(2 * TOK / 16 + 2) * st.block_bytes;
        rig_open(&r, &d);
        RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
        int rc = kvl_session_prefill(s, id, TOK, NULL, true, &r.err);
        assert_int_equal(rc, host ? KVL_OK : KVL_ENOMEM);
        if (!host) assert_non_null(strstr(r.err.msg, "pass the limit"));
        kvl_store_stats(kvl_engine_store(r.engine), &st);
        if (host) assert_int_equal(st.n_blocks, 3 * 2 * TOK / 16);
        if (host) assert_int_equal(st.peak_bytes, st.bytes);
        kvl_session_destroy(s);
        close_checked(&r);
    }
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),    cmocka_unit_test(test_fill),
        cmocka_unit_test(test_snapshots),    cmocka_unit_test(test_policies),
        cmocka_unit_test(test_own_prefill),
#ifdef KVL_TEST_CUDA
        cmocka_unit_test(test_memory),       cmocka_unit_test(test_slow_copies),
        cmocka_unit_test(test_short_memory), cmocka_unit_test(test_limit),
#endif
    };
    rig_tokens(id, MAX_TOK, 3);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
