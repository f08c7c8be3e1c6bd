/* What every policy promises, checked for every policy that the build found, or for one plug-in:
 *
 *     test_conformance [plug-in.so]
 *
 * Each check runs on small random models (query groups of 1, 2 and 4; f32 and f16 caches) and on the
 * shipped model where it is there.  Nothing here knows a method: a check asks the policy's own
 * description what applies to it. */
#include "conformance/rig.h"

#include <dlfcn.h>

enum { MAX_TOK = 1024, N_STEPS = 6, N_BLOCK = 12, BLOCK_TOK = 16 };

struct subject {
    const struct kvl_policy *policy;
    const char *stem; /* name of the file it comes from, NULL for a plug-in */
};

#define KVL_POLICY_X(stem) extern const struct kvl_policy *const kvl_policy_##stem;
#include "kvl_policies.def"
#undef KVL_POLICY_X

/* ---- the cases ------------------------------------------------------------------------------------ */

static const struct rig_desc models[] = {
    { .llama = { .n_layers = 3, .n_kv_heads = 4, .seed = 1 }, .kv_type = KVL_KV_F32 },
    { .llama = { .n_layers = 4, .n_kv_heads = 2, .seed = 2 }, .kv_type = KVL_KV_F16 },
    { .llama = { .n_layers = 2, .n_kv_heads = 1, .seed = 3 }, .kv_type = KVL_KV_F32 },
    { .path = KVL_SOURCE_DIR "/datasets/model/kvlab-test.gguf", .kv_type = KVL_KV_F16 },
};
enum { N_MODELS = sizeof models / sizeof models[0] };

struct fixture {
    struct rig r;
    int32_t id[MAX_TOK];
    struct rig_run run; /* context about three budgets long, N_STEPS steps */
};

static bool model_exists(int i)
{
    return !models[i].path || access(models[i].path, R_OK) == 0;
}

static int32_t min_budget(const struct kvl_policy *p, const struct kvl_shape *shape)
{
    if (!p->min_budget) return 1;
    struct kvl_err err = { 0 };
    void *opts = kvl_alloc(1, p->opts_size ? p->opts_size : 1);
    assert_non_null(opts);
    if (p->opts) RIG_OK(&err, kvl_opt_defaults(p->opts, opts, &err));
    int32_t n = p->min_budget(shape, opts);
    kvl_free(opts);
    return n;
}

static void open_desc(struct fixture *f, void **state, const struct rig_desc *desc)
{
    const struct subject *subject = *state;
    rig_open(&f->r, desc);
    int32_t budget = KVL_MAX(48, min_budget(subject->policy, rig_shape(&f->r)) + 16);
    f->run = (struct rig_run){ .policy = subject->policy,
                               .options = "",
                               .budget = budget,
                               .id = f->id,
                               .n_ctx = 3 * budget + 7,
                               .n_steps = N_STEPS,
                               .seed = 99 };
    assert_true(f->run.n_ctx + 3 * N_BLOCK < MAX_TOK);
    rig_tokens(f->id, MAX_TOK, 31);
}

static bool open_model(struct fixture *f, void **state, int i)
{
    if (!model_exists(i)) return false;
    open_desc(f, state, &models[i]);
    return true;
}

/* Nothing stays behind: every block is back in the pool. */
static void close_model(struct fixture *f)
{
    struct kvl_store_stats st;
    struct kvl_store *store = kvl_engine_store(f->r.engine);
    RIG_OK(&f->r.err, kvl_store_check(store, &f->r.err));
    kvl_store_stats(store, &st);
    assert_int_equal(st.n_sequences, 0);
    assert_int_equal(st.n_blocks, 0);
    assert_int_equal(st.n_refs, 0);
    rig_close(&f->r);
}

static bool needs_raw_keys(struct fixture *f)
{
    struct kvl_planned *p;
    RIG_OK(&f->r.err, kvl_planned_create(f->run.policy, rig_shape(&f->r), f->run.options,
                                         f->run.budget, f->run.n_ctx, &p, &f->r.err));
    bool raw = kvl_planned_raw_keys(p);
    kvl_planned_destroy(p);
    return raw;
}

static void expect_same_run(struct fixture *f, const float *want, const struct rig_run *run,
                            const char *what)
{
    float *got = rig_run(&f->r, run);
    rig_expect_same(&f->r, want, got, run->n_steps, what);
    kvl_free(got);
}

/* ---- description and options ---------------------------------------------------------------------- */

static void expect_text(const char *text, const char *what)
{
    if (!text || strlen(text) < 2) fail_msg("%s: missing", what);
}

static void check_description(void **state)
{
    const struct subject *subject = *state;
    const struct kvl_policy *p = subject->policy;
    struct kvl_err err = { 0 };
    RIG_OK(&err, kvl_policy_check(p, &err));
    if (subject->stem) assert_string_equal(p->name, subject->stem);
    expect_text(p->title, "title");
    expect_text(p->paper, "paper");
    expect_text(p->help, "help");
    assert_true(p->version > 0);
    assert_true(p->caps != 0);
    for (const struct kvl_opt *o = p->opts; o && o->name; o++) {
        expect_text(o->help, o->name);
        assert_non_null(o->def);
    }
}

static int plan(struct fixture *f, const char *options, int32_t budget, struct kvl_planned **out,
                struct kvl_err *err)
{
    *err = (struct kvl_err){ 0 };
    return kvl_planned_create(f->run.policy, rig_shape(&f->r), options, budget, f->run.n_ctx, out,
                              err);
}

static void expect_refused(struct fixture *f, const char *options, int32_t budget,
                           const char *needle)
{
    struct kvl_planned *p;
    struct kvl_err err;
    int rc = plan(f, options, budget, &p, &err);
    if (rc != KVL_EINVAL)
        fail_msg("\"%s\", budget %d: %s, want KVL_EINVAL", options, budget, kvl_status_name(rc));
    if (!strstr(err.msg, f->run.policy->name) || !strstr(err.msg, needle))
        fail_msg("\"%s\", budget %d: message \"%s\" lacks the policy's name or \"%s\"", options,
                 budget, err.msg, needle);
}

static void check_limits_of(struct fixture *f, const struct kvl_opt *o)
{
    char text[256];
    bool number = o->type == KVL_OPT_INT || o->type == KVL_OPT_FLOAT;
    snprintf(text, sizeof text, "%s=no-such-value", o->name);
    if (o->type != KVL_OPT_STR) expect_refused(f, text, f->run.budget, o->name);
    if (!number || (o->min >= 0 && o->min <= 0 && o->max >= 0 && o->max <= 0)) return;
    snprintf(text, sizeof text, "%s=%.0f", o->name, o->min - 7);
    expect_refused(f, text, f->run.budget, o->name);
    snprintf(text, sizeof text, "%s=%.0f", o->name, o->max + 7);
    expect_refused(f, text, f->run.budget, o->name);
}

/* Bad options and budgets are refused with a message; what plan resolved can be typed in again. */
static void check_options(void **state)
{
    struct fixture f;
    struct kvl_planned *p, *again;
    struct kvl_err err;
    open_desc(&f, state, &models[1]);
    expect_refused(&f, "no_such_option=1", f.run.budget, "no_such_option");
    for (const struct kvl_opt *o = f.run.policy->opts; o && o->name; o++) check_limits_of(&f, o);
    int32_t least = min_budget(f.run.policy, rig_shape(&f.r));
    if (least > 1) {
        char number[16];
        snprintf(number, sizeof number, "%d", least);
        expect_refused(&f, "", least - 1, number);
    }
    RIG_OK(&err, plan(&f, "", least, &p, &err));
    kvl_planned_destroy(p);
    RIG_OK(&err, plan(&f, "", f.run.budget, &p, &err));
    RIG_OK(&err, plan(&f, kvl_planned_options(p), f.run.budget, &again, &err));
    assert_string_equal(kvl_planned_options(p), kvl_planned_options(again));
    assert_null(strstr(kvl_planned_options(p), "auto"));
    kvl_planned_destroy(again);
    kvl_planned_destroy(p);
    close_model(&f);
}

/* ---- real execution --------------------------------------------------------------------------------- */

/* A budget that holds everything is full attention: bit for bit where the engine takes the same
 * path, up to rounding where keys are rotated anew. */
static void check_whole_budget_is_full(void **state)
{
    static const struct kvl_policy full = { .abi = KVL_POLICY_ABI,
                                            .size = sizeof full,
                                            .name = "full",
                                            .title = "t",
                                            .paper = "p",
                                            .help = "h",
                                            .caps = KVL_CAP_BOUND };
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        struct rig_run run = f.run;
        run.budget = run.n_ctx + N_STEPS + 256;
        float *got = rig_run(&f.r, &run);
        run.policy = &full;
        float *want = rig_run(&f.r, &run);
        if (needs_raw_keys(&f))
            rig_expect_near(&f.r, want, got, N_STEPS, 1e-3, "full and a budget for everything");
        else
            rig_expect_same(&f.r, want, got, N_STEPS, "full and a budget for everything");
        kvl_free(want);
        kvl_free(got);
        close_model(&f);
    }
}

static void expect_masked_equal(struct fixture *f, const char *options)
{
    struct rig_run run = f->run;
    run.options = options;
    float *real = rig_run(&f->r, &run);
    run.exec = KVL_EXEC_MASKED;
    float *masked = rig_run(&f->r, &run);
    rig_expect_near(&f->r, masked, real, run.n_steps, 5e-4, options);
    kvl_free(masked);
    kvl_free(real);
}

/* What is evicted or not selected has weight zero, and nothing else changes. */
static void check_real_equals_masked(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        expect_masked_equal(&f, "");
        close_model(&f);
    }
}

static void check_choice(struct fixture *f, const char *name, const char *value)
{
    char options[256];
    struct kvl_planned *p;
    struct kvl_err err;
    snprintf(options, sizeof options, "%s=%s", name, value);
    int rc = plan(f, options, f->run.budget, &p, &err);
    if (rc != KVL_OK) {
        assert_int_equal(rc, KVL_EINVAL); /* not with the defaults of the others */
        return;
    }
    kvl_planned_destroy(p);
    expect_masked_equal(f, options);
}

/* Every choice of every option runs, and does what it says. */
static void check_every_choice(void **state)
{
    struct fixture f;
    open_desc(&f, state, &models[1]);
    f.run.n_steps = 3;
    for (const struct kvl_opt *o = f.run.policy->opts; o && o->name; o++) {
        if (o->type == KVL_OPT_BOOL) {
            check_choice(&f, o->name, "true");
            check_choice(&f, o->name, "false");
        }
        for (int i = 0; o->type == KVL_OPT_ENUM && o->choices[i]; i++)
            check_choice(&f, o->name, o->choices[i]);
    }
    close_model(&f);
}

/* Keys before RoPE beside the others change nothing for a policy that does not ask, and a policy
 * that asks is refused by an engine that has none. */
static void check_raw_keys(void **state)
{
    struct rig_desc bare = models[1];
    struct fixture with, without;
    open_desc(&with, state, &models[1]);
    bare.no_raw_keys = true;
    open_desc(&without, state, &bare);
    if (needs_raw_keys(&with)) {
        struct kvl_planned *p;
        struct kvl_session *s;
        struct kvl_err err;
        RIG_OK(&err, plan(&without, "", without.run.budget, &p, &err));
        RIG_OK(&err, kvl_session_create(without.r.engine, &s, &err));
        RIG_OK(&err, kvl_session_prefill(s, without.id, 9, NULL, true, &err));
        assert_int_not_equal(kvl_session_attach(s, p, 1, KVL_EXEC_REAL, &err), KVL_OK);
        assert_true(strlen(err.msg) > 0);
        kvl_session_destroy(s);
        kvl_planned_destroy(p);
    } else {
        float *want = rig_run(&with.r, &with.run);
        expect_same_run(&without, want, &without.run, "with and without raw keys");
        kvl_free(want);
    }
    close_model(&with);
    close_model(&without);
}

/* ---- isolation ------------------------------------------------------------------------------------- */

static void check_forks(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        const int32_t *id = f.id + f.run.n_ctx, *other = f.id + f.run.n_ctx + 100;
        float *want = rig_run(&f.r, &f.run);
        struct rig_session alone = rig_start(&f.r, &f.run);
        float *want_other = rig_logits(&f.r, N_STEPS), *got = rig_logits(&f.r, N_STEPS);
        rig_decode(&f.r, &alone, id, 2, want_other);
        rig_decode(&f.r, &alone, other, N_STEPS, want_other);
        rig_end(&alone);

        size_t two = 2 * (size_t)rig_shape(&f.r)->n_vocab;
        struct rig_session parent = rig_start(&f.r, &f.run);
        rig_decode(&f.r, &parent, id, 2, got);
        struct rig_session child = rig_fork(&f.r, &parent);
        float *got_child = rig_logits(&f.r, N_STEPS);
        rig_decode(&f.r, &child, other, N_STEPS, got_child);
        rig_decode(&f.r, &parent, id + 2, N_STEPS - 2, got + two);
        rig_expect_same(&f.r, want_other, got_child, N_STEPS, "a fork and a straight run");
        rig_expect_same(&f.r, want, got, N_STEPS, "a parent with and without a fork");
        rig_end(&child);
        rig_end(&parent);
        kvl_free(want);
        kvl_free(want_other);
        kvl_free(got);
        kvl_free(got_child);
        close_model(&f);
    }
}

/* Policies start from forks of one prefill: the prefill is whole afterwards, and a second policy
 * decides as if the first had not been. */
static void check_prefill_serves_many(void **state)
{
    struct fixture f;
    open_desc(&f, state, &models[1]);
    struct rig_run run = f.run;
    float *want = rig_run(&f.r, &run), *got = rig_logits(&f.r, N_STEPS);
    struct kvl_planned *p;
    struct kvl_session *prefill;
    struct kvl_err *err = &f.r.err;
    RIG_OK(err,
           kvl_planned_create(run.policy, rig_shape(&f.r), "", run.budget, run.n_ctx, &p, err));
    RIG_OK(err, kvl_session_create(f.r.engine, &prefill, err));
    RIG_OK(err, kvl_session_prefill(prefill, run.id, run.n_ctx, NULL, true, err));
    for (int turn = 0; turn < 3; turn++) {
        struct rig_session s = { 0 };
        RIG_OK(err, kvl_session_fork(prefill, &s.s, err));
        RIG_OK(err, kvl_session_attach(s.s, p, run.seed, run.exec, err));
        rig_decode(&f.r, &s, run.id + run.n_ctx, N_STEPS, got);
        rig_expect_same(&f.r, want, got, N_STEPS, "straight and from a shared prefill");
        rig_end(&s);
        for (int32_t l = 0; l < rig_shape(&f.r)->n_layers; l++)
            assert_int_equal(kvl_seq_len(kvl_session_seq(prefill), l, 0), run.n_ctx);
    }
    kvl_session_destroy(prefill);
    kvl_planned_destroy(p);
    kvl_free(want);
    kvl_free(got);
    close_model(&f);
}

/* Two sequences, token by token in turn, and A before B: each as if it were alone. */
static void check_sessions_do_not_meet(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        struct rig_run a = f.run, b = f.run;
        b.id = f.id + 50;
        b.n_ctx -= 20;
        b.seed = 5;
        float *want_b = rig_run(&f.r, &b), *want_a = rig_run(&f.r, &a);
        expect_same_run(&f, want_b, &b, "B before and after A");
        struct rig_session sa = rig_start(&f.r, &a), sb = rig_start(&f.r, &b);
        float *got_a = rig_logits(&f.r, N_STEPS), *got_b = rig_logits(&f.r, N_STEPS);
        size_t n_vocab = (size_t)rig_shape(&f.r)->n_vocab;
        for (int32_t t = 0; t < N_STEPS; t++) {
            rig_decode(&f.r, &sa, a.id + a.n_ctx + t, 1, got_a + (size_t)t * n_vocab);
            rig_decode(&f.r, &sb, b.id + b.n_ctx + t, 1, got_b + (size_t)t * n_vocab);
        }
        rig_expect_same(&f.r, want_a, got_a, N_STEPS, "A alone and interleaved");
        rig_expect_same(&f.r, want_b, got_b, N_STEPS, "B alone and interleaved");
        rig_end(&sa);
        rig_end(&sb);
        kvl_free(want_a);
        kvl_free(want_b);
        kvl_free(got_a);
        kvl_free(got_b);
        close_model(&f);
    }
}

/* A batch of three sequences of different lengths: each as if it were alone. */
static void check_batch(void **state)
{
    enum { N_BATCH = 3 };
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        struct rig_session rs[N_BATCH];
        struct kvl_session *s[N_BATCH];
        struct rig_run run[N_BATCH];
        float *want[N_BATCH], *logits = rig_logits(&f.r, N_BATCH);
        size_t n_vocab = (size_t)rig_shape(&f.r)->n_vocab;
        for (int b = 0; b < N_BATCH; b++) {
            run[b] = f.run;
            run[b].id = f.id + 30 * b;
            run[b].n_ctx -= 17 * b;
            want[b] = rig_run(&f.r, &run[b]);
            rs[b] = rig_start(&f.r, &run[b]);
            s[b] = rs[b].s;
        }
        for (int32_t t = 0; t < N_STEPS; t++) {
            int32_t id[N_BATCH];
            for (int b = 0; b < N_BATCH; b++) id[b] = run[b].id[run[b].n_ctx + t];
            RIG_OK(&f.r.err, kvl_session_decode(s, N_BATCH, id, logits, &f.r.err));
            for (int b = 0; b < N_BATCH; b++)
                rig_expect_same(&f.r, want[b] + (size_t)t * n_vocab, logits + (size_t)b * n_vocab,
                                1, "alone and in a batch");
        }
        for (int b = 0; b < N_BATCH; b++) {
            rig_end(&rs[b]);
            kvl_free(want[b]);
        }
        kvl_free(logits);
        close_model(&f);
    }
}

/* ---- what must not matter ---------------------------------------------------------------------------- */

static void check_chunks(void **state)
{
    static const int32_t chunks[] = { 1, 7, 64 };
    for (int i = 0; i < 3; i++) {
        struct rig_desc desc = models[i];
        struct fixture whole, cut;
        open_desc(&whole, state, &desc);
        struct rig_session a = rig_start(&whole.r, &whole.run);
        float *want = rig_logits(&whole.r, N_STEPS);
        int32_t pos[MAX_TOK];
        rig_decode(&whole.r, &a, whole.id + whole.run.n_ctx, N_STEPS, want);
        for (int c = 0; c < 3; c++) {
            desc.chunk_tok = chunks[c];
            open_desc(&cut, state, &desc);
            struct rig_session b = rig_start(&cut.r, &cut.run);
            float *got = rig_logits(&cut.r, N_STEPS);
            rig_decode(&cut.r, &b, cut.id + cut.run.n_ctx, N_STEPS, got);
            rig_expect_same(&cut.r, want, got, N_STEPS, "one chunk and several");
            for (int32_t l = 0; l < rig_shape(&cut.r)->n_layers; l++)
                for (int32_t h = 0; h < rig_shape(&cut.r)->n_kv_heads; h++)
                    rig_expect_kept(&b, l, h, pos, rig_kept(&a, l, h, pos));
            kvl_free(got);
            rig_end(&b);
            close_model(&cut);
        }
        kvl_free(want);
        rig_end(&a);
        close_model(&whole);
    }
}

static void check_threads(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        kvl_ops_set_threads(1);
        float *want = rig_run(&f.r, &f.run);
        kvl_ops_set_threads(2);
        expect_same_run(&f, want, &f.run, "one thread and two");
        kvl_ops_set_threads(0);
        kvl_free(want);
        close_model(&f);
    }
}

/* Only a policy that says it samples may care for the seed, and it must. */
static void check_seed(void **state)
{
    struct fixture f;
    open_desc(&f, state, &models[0]);
    float *want = rig_run(&f.r, &f.run);
    expect_same_run(&f, want, &f.run, "the same seed twice");
    struct rig_run run = f.run;
    run.seed++;
    if (run.policy->caps & KVL_CAP_SAMPLES) {
        float *got = rig_run(&f.r, &run);
        assert_true(rig_distance(&f.r, want, got, N_STEPS) > 1e-3);
        kvl_free(got);
    } else {
        expect_same_run(&f, want, &run, "two seeds");
    }
    kvl_free(want);
    close_model(&f);
}

/* ---- budget, memory, bytes ----------------------------------------------------------------------------- */

/* Decides once and lets the cache grow by what comes later. */
static bool grows(const struct kvl_policy *p)
{
    return (p->caps & KVL_CAP_EVICTS) && !(p->caps & KVL_CAP_SELECTS) && !p->evict;
}

static bool saves(const struct kvl_policy *p)
{
    return (p->caps & (KVL_CAP_EVICTS | KVL_CAP_SELECTS)) != 0;
}

/* The largest number of positions that a lane read, dense layers left out; -1 when all are dense. */
static int32_t most_read(const struct rig *r, const struct rig_session *rs, int32_t n_tok)
{
    const struct kvl_shape *sh = rig_shape(r);
    const uint8_t *hit, *dense;
    int32_t most = -1;
    kvl_session_probe_hits(rs->s, &hit, &dense);
    for (int32_t l = 0; l < sh->n_layers; l++)
        for (int32_t h = 0; h < sh->n_kv_heads; h++) {
            const uint8_t *row = hit + (size_t)(l * sh->n_kv_heads + h) * (size_t)n_tok;
            int32_t n = 0;
            for (int32_t i = 0; i < n_tok; i++) n += row[i];
            assert_true(row[n_tok - 1]); /* the current token is always attended */
            if (!dense[l]) most = KVL_MAX(most, n);
        }
    return most;
}

/* What the probe saw is what the counters say, and the bytes are those of the tokens read.  Lists
 * per query head may read a key once per head of the group. */
static void expect_counters(struct fixture *f, const struct rig_session *rs, int32_t n_tok)
{
    const struct kvl_shape *sh = rig_shape(&f->r);
    const struct kvl_counters *c = kvl_session_counters(rs->s);
    const uint8_t *hit, *dense;
    int64_t n_read = 0, n_dense = 0;
    kvl_session_probe_hits(rs->s, &hit, &dense);
    size_t row = (size_t)sh->n_kv_heads * (size_t)n_tok;
    for (int32_t l = 0; l < sh->n_layers; l++)
        for (size_t i = 0; i < row; i++) {
            n_read += !dense[l] && hit[(size_t)l * row + i];
            n_dense += dense[l] && hit[(size_t)l * row + i];
        }
    assert_int_equal(c->attended_tok, n_read);
    assert_int_equal(c->dense_tok, n_dense);
    assert_int_equal(c->attended_lanes + c->dense_lanes, sh->n_layers * sh->n_kv_heads);
    enum kvl_kv_type type = kvl_store_desc(kvl_engine_store(f->r.engine))->type;
    int64_t bytes = (n_read + n_dense) * 2 * sh->head_dim * (type == KVL_KV_F16 ? 2 : 4);
    assert_true(c->kv_read_bytes >= bytes);
    assert_true(c->kv_read_bytes <= bytes * (sh->n_heads / sh->n_kv_heads));
}

static void check_budget_is_kept(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        struct rig_session rs = rig_start(&f.r, &f.run);
        float *logits = rig_logits(&f.r, 1);
        for (int32_t t = 0; t < N_STEPS; t++) {
            int32_t at = f.run.n_ctx + t;
            int32_t limit = f.run.budget + (grows(f.run.policy) ? t : 0);
            kvl_session_reset_counters(rs.s);
            rig_decode_probed(&f.r, &rs, f.id[at], logits);
            int32_t most = most_read(&f.r, &rs, at + 1);
            if (saves(f.run.policy) && (most < 1 || most > limit))
                fail_msg("step %d: a lane reads %d tokens, want 1 to %d", t, most, limit);
            expect_counters(&f, &rs, at + 1);
        }
        kvl_free(logits);
        rig_end(&rs);
        close_model(&f);
    }
}

/* Blocks of a sequence: as many as its slots fill, lane by lane, and no more in the store. */
static void expect_compact(struct fixture *f, const struct rig_session *rs)
{
    const struct kvl_shape *sh = rig_shape(&f->r);
    struct kvl_seq_stats seq;
    struct kvl_store_stats store;
    int64_t n_blocks = 0, n_slots = 0;
    for (int32_t l = 0; l < sh->n_layers; l++)
        for (int32_t h = 0; h < sh->n_kv_heads; h++) {
            int32_t n = kvl_seq_len(kvl_session_seq(rs->s), l, h);
            n_slots += n;
            n_blocks += (n + BLOCK_TOK - 1) / BLOCK_TOK;
        }
    kvl_seq_stats(kvl_session_seq(rs->s), &seq);
    kvl_store_stats(kvl_engine_store(f->r.engine), &store);
    assert_int_equal(seq.n_slots, n_slots);
    assert_int_equal(seq.n_blocks, n_blocks);
    assert_int_equal(store.n_blocks, n_blocks);
    assert_int_equal(seq.physical_bytes, (size_t)n_blocks * store.block_bytes);
}

/* An evicting method gives memory back; one that only selects keeps every token. */
static void check_memory(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        const struct kvl_shape *sh = rig_shape(&f.r);
        const struct kvl_policy *p = f.run.policy;
        struct rig_session rs = rig_start(&f.r, &f.run);
        float *logits = rig_logits(&f.r, N_STEPS);
        expect_compact(&f, &rs);
        rig_decode(&f.r, &rs, f.id + f.run.n_ctx, N_STEPS, logits);
        expect_compact(&f, &rs);
        bool evicts = (p->caps & KVL_CAP_EVICTS) && !(p->caps & KVL_CAP_SELECTS);
        int32_t limit = f.run.budget + (grows(p) ? N_STEPS : 0);
        for (int32_t l = 0; l < sh->n_layers; l++) {
            int32_t n = kvl_seq_len(kvl_session_seq(rs.s), l, 0);
            if (evicts) assert_true(n <= limit);
            if (!(p->caps & KVL_CAP_EVICTS)) assert_int_equal(n, f.run.n_ctx + N_STEPS);
        }
        assert_int_equal(kvl_session_counters(rs.s)->n_evicted > 0, evicts);
        kvl_free(logits);
        rig_end(&rs);
        close_model(&f);
    }
}

/* ---- blocks of tokens ------------------------------------------------------------------------------------ */

/* Key of `pos` in the last layer after N_BLOCK tokens as one block: it depends on everything that the
 * token and those before it read.  False when the lane has lost it. */
static bool block_key(struct fixture *f, const int32_t *block, int32_t pos, float *k)
{
    struct rig_session rs = rig_start(&f->r, &f->run);
    int32_t last = rig_shape(&f->r)->n_layers - 1, slot;
    RIG_OK(&f->r.err, kvl_session_extend(rs.s, block, N_BLOCK, &f->r.err));
    bool live = kvl_seq_find(kvl_session_seq(rs.s), last, 0, &pos, 1, &slot) == 1;
    if (live)
        RIG_OK(&f->r.err,
               kvl_seq_read(kvl_session_seq(rs.s), last, 0, KVL_PART_K, slot, 1, k, &f->r.err));
    rig_end(&rs);
    return live;
}

/* Tokens that come later in a block cannot change what an earlier one reads. */
static void check_blocks_are_causal(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        int32_t head_dim = rig_shape(&f.r)->head_dim, other[N_BLOCK];
        float *a = rig_floats((size_t)head_dim), *b = rig_floats((size_t)head_dim);
        const int32_t *block = f.id + f.run.n_ctx;
        for (int32_t cut = 1; cut < N_BLOCK; cut += 5) {
            memcpy(other, block, sizeof other);
            for (int32_t j = cut; j < N_BLOCK; j++) other[j] = block[j] % 200 + 10;
            bool live = block_key(&f, block, f.run.n_ctx + cut - 1, a);
            assert_int_equal(live, block_key(&f, other, f.run.n_ctx + cut - 1, b));
            if (live) assert_memory_equal(a, b, (size_t)head_dim * sizeof *a);
        }
        kvl_free(a);
        kvl_free(b);
        close_model(&f);
    }
}

/* A block is its tokens one after the other, up to rounding; a policy that evicts after every step
 * does so once per block, and may differ. */
static void check_block_equals_steps(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        const int32_t *block = f.id + f.run.n_ctx;
        struct rig_session a = rig_start(&f.r, &f.run), b = rig_start(&f.r, &f.run);
        float *logits = rig_logits(&f.r, N_BLOCK), *want = rig_logits(&f.r, 1);
        float *got = rig_logits(&f.r, 1);
        RIG_OK(&f.r.err, kvl_session_extend(a.s, block, N_BLOCK, &f.r.err));
        assert_int_equal(kvl_session_len(a.s), f.run.n_ctx + N_BLOCK);
        rig_decode(&f.r, &b, block, N_BLOCK, logits);
        rig_decode(&f.r, &a, block + N_BLOCK, 1, got);
        rig_decode(&f.r, &b, block + N_BLOCK, 1, want);
        if (!f.run.policy->evict) rig_expect_near(&f.r, want, got, 1, 5e-3, "a block and steps");
        assert_int_equal(kvl_session_counters(a.s)->n_tokens, N_BLOCK + 1);
        kvl_free(logits);
        kvl_free(want);
        kvl_free(got);
        rig_end(&a);
        rig_end(&b);
        close_model(&f);
    }
}

/* ---- all checks of all policies ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    CMUnitTestFunction run;
} checks[] = {
    { "description is complete", check_description },
    { "bad options and budgets are refused", check_options },
    { "budget for everything equals full", check_whole_budget_is_full },
    { "real equals masked", check_real_equals_masked },
    { "every choice runs", check_every_choice },
    { "raw keys", check_raw_keys },
    { "forks", check_forks },
    { "one prefill serves many", check_prefill_serves_many },
    { "sessions do not meet", check_sessions_do_not_meet },
    { "batch equals alone", check_batch },
    { "chunks of the prefill do not matter", check_chunks },
    { "threads do not matter", check_threads },
    { "seed", check_seed },
    { "budget is kept, bytes are counted", check_budget_is_kept },
    { "memory", check_memory },
    { "blocks are causal", check_blocks_are_causal },
    { "block equals steps", check_block_equals_steps },
};
enum { N_CHECKS = sizeof checks / sizeof checks[0], MAX_SUBJECTS = 256 };

static struct subject subjects[MAX_SUBJECTS];
static struct CMUnitTest tests[MAX_SUBJECTS * N_CHECKS];
static char names[MAX_SUBJECTS * N_CHECKS][96];

static int built_in(void)
{
    int n = 0;
#define KVL_POLICY_X(stem) subjects[n++] = (struct subject){ kvl_policy_##stem, #stem };
#include "kvl_policies.def"
#undef KVL_POLICY_X
    return n;
}

static int plug_in(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct kvl_policy *const *p = library ? dlsym(library, "kvl_plugin_policy") : NULL;
    if (!p) {
        print_error("%s: %s\n", path, dlerror());
        return 0;
    }
    subjects[0] = (struct subject){ .policy = *p };
    return 1;
}

int main(int argc, char **argv)
{
    int n_subjects = argc > 1 ? plug_in(argv[1]) : built_in();
    size_t n = 0;
    if (n_subjects == 0) return 1;
    for (int i = 0; i < n_subjects; i++)
        for (int c = 0; c < N_CHECKS; c++, n++) {
            snprintf(names[n], sizeof names[n], "%s: %s", subjects[i].policy->name, checks[c].name);
            tests[n] = (struct CMUnitTest){ .name = names[n],
                                            .test_func = checks[c].run,
                                            .initial_state = &subjects[i] };
        }
    return _cmocka_run_group_tests("conformance", tests, n, NULL, NULL);
}
