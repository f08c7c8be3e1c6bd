/* fixture.h - what a check of a policy runs on: models, a context, a budget that cuts it.
 *
 * Included once, by test_conformance.c.  Nothing here knows a method. */
#ifndef KVL_TESTS_FIXTURE_H
#define KVL_TESTS_FIXTURE_H

#include "conformance/rig.h"

struct subject {
    const struct kvl_policy *policy;
    const char *stem; /* name of the file it comes from, NULL for a plug-in */
};

enum { MAX_TOK = 1024, N_STEPS = 6, N_BLOCK = 12, BLOCK_TOK = 16 };

/* Global layers, two of which are neighbours, among layers of a window that is shorter than any context. */
static const uint8_t fixture_local[] = { 1, 0, 0, 1, 0, 1 };

static const struct rig_desc models[] = {
    { .llama = { .n_layers = 3, .n_kv_heads = 4, .seed = 1 }, .kv_type = KVL_KV_F32 },
    { .llama = { .n_layers = 4, .n_kv_heads = 2, .seed = 2 }, .kv_type = KVL_KV_F16 },
    { .llama = { .n_layers = 2, .n_kv_heads = 1, .seed = 3 }, .kv_type = KVL_KV_F32 },
    { .path = KVL_SOURCE_DIR "/datasets/model/kvlab-test.gguf", .kv_type = KVL_KV_F16 },
    { .llama = { .n_layers = 6, .seed = 4, .window = 21, .local = fixture_local },
      .kv_type = KVL_KV_F32 },
    /* of other architectures and types: a check takes one of them in its turn, all of them where KVL_LONG is set */
    { .llama = { .arch = "qwen2", .n_layers = 3, .bias = 0.3f, .seed = 4 }, .kv_type = KVL_KV_F16 },
    { .llama = { .arch = "qwen3", .n_layers = 3, .head_dim = 24, .seed = 5 } },
    { .llama = { .arch = "phi3", .n_layers = 3, .seed = 6 } },
    { .llama = { .arch = "internlm2", .n_layers = 2, .seed = 7 } },
    { .llama = { .arch = "smollm3", .n_layers = 5, .seed = 8 } },
    { .llama = { .arch = "gemma3",
                 .n_layers = 6,
                 .local = fixture_local,
                 .tied = true,
                 .seed = 9 } },
    { .llama = { .arch = "glm4", .n_layers = 2, .seed = 10 } },
    { .llama = { .arch = "llama", .n_layers = 2, .n_experts = 4, .seed = 11 } },
    { .llama = { .arch = "gptneox", .n_layers = 2, .n_kv_heads = 4, .bias = 0.3f, .seed = 12 } },
    { .llama = { .arch = "gemma2", .n_layers = 4, .tied = true, .seed = 13 } },
    { .llama = { .arch = "gpt-oss", .n_layers = 4, .bias = 0.3f, .seed = 14 } },
    { .llama = { .arch = "opt", .n_layers = 2, .n_kv_heads = 4, .bias = 0.3f, .seed = 15 } },
    /* and with keys and values that are quantised */
    { .llama = { .n_layers = 3, .n_kv_heads = 2, .head_dim = 32, .seed = 15 },
      .kv_type = KVL_KV_Q8_0 },
    { .llama = { .arch = "qwen2", .n_layers = 3, .head_dim = 64, .bias = 0.3f, .seed = 16 },
      .kv_type = KVL_KV_Q8_0 },
    { .llama = { .n_layers = 6,
                 .n_kv_heads = 4,
                 .head_dim = 32,
                 .seed = 17,
                 .window = 21,
                 .local = fixture_local },
      .kv_type = KVL_KV_Q8_0 },
    { .llama = { .n_layers = 3, .n_kv_heads = 2, .head_dim = 32, .seed = 18 },
      .kv_type = KVL_KV_Q4_0_TURNED },
    { .llama = { .arch = "qwen3", .n_layers = 3, .head_dim = 24, .seed = 19 },
      .kv_type = KVL_KV_FP8_E4M3 },
    { .llama = { .n_layers = 3, .n_kv_heads = 2, .head_dim = 64, .seed = 20 },
      .kv_type = KVL_KV_TURBOQUANT4 },
    { .llama = { .arch = "gemma3",
                 .n_layers = 6,
                 .local = fixture_local,
                 .tied = true,
                 .head_dim = 32,
                 .seed = 21 },
      .kv_type = KVL_KV_Q8_0 | (KVL_KV_Q4_0 + 1) << 8 }, /* kvl_kv_pair */
    { .llama = { .n_layers = 3, .n_kv_heads = 2, .head_dim = 32, .seed = 23 },
      .kv_type = KVL_KV_KIVI4 },
};
enum { N_PLAIN = 5, N_MODELS = sizeof models / sizeof models[0] };

/* Models are read-only and shared: a program opens each once. */
static struct kvl_model *opened[N_MODELS];

static int close_opened(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) kvl_model_close(opened[i]);
    return 0;
}

/* Which of the models that is, whatever else a check asks for; -1: none of them. */
static int model_number(const struct rig_desc *d)
{
    for (int i = 0; i < N_MODELS; i++)
        if (d->path == models[i].path && memcmp(&d->llama, &models[i].llama, sizeof d->llama) == 0)
            return i;
    return -1;
}

static void open_rig(struct rig *r, const struct rig_desc *d)
{
    int i = model_number(d);
    *r = (struct rig){ .shared = i >= 0, .model = i >= 0 ? opened[i] : NULL };
    if (!r->model) rig_open_model(r, d);
    if (i >= 0) opened[i] = r->model;
    rig_open_engine(r, d);
}

/* Of the other architectures; the name of the method chooses where it begins. */
static unsigned arch_turn;

struct fixture {
    struct rig r;
    int32_t id[MAX_TOK];
    struct rig_run run; /* context about three budgets long, N_STEPS steps */
};

/* How many of the plain ones a check takes, in turn too, unless KVL_LONG is set. */
#ifdef KVL_TEST_CUDA /* on the emulated GPU, which is slow */
enum { PLAIN_IN_TURN = 2 };
#else
enum { PLAIN_IN_TURN = N_PLAIN };
#endif

/* Asked once for each model in a check, in order. */
static bool model_exists(int i)
{
    arch_turn += i == N_PLAIN;
    if (i >= N_PLAIN && !getenv("KVL_LONG"))
        return (unsigned)(i - N_PLAIN) == arch_turn % (N_MODELS - N_PLAIN);
    if (i < N_PLAIN && ((unsigned)i + arch_turn) % N_PLAIN >= PLAIN_IN_TURN && !getenv("KVL_LONG"))
        return false;
    return !models[i].path || access(models[i].path, R_OK) == 0;
}

/* Of types that seal: evictions at every step, masks and host tiers. */
static bool model_refuses(const struct subject *subject, int i)
{
    const struct kvl_policy *p = subject->policy;
    return kvl_kv_seals(models[i].kv_type) &&
           (p->evict || p->prefill_mask || p->caps & KVL_CAP_OFFLOADS);
}

/* What one eviction quantises twice the mask oracle has quantised once. */
static bool model_seals(const struct subject *subject, int i)
{
    return model_refuses(subject, i) || (kvl_kv_seals(models[i].kv_type) && subject->policy->score);
}

/* Masks of a prefill and attention sinks do not go together, nor do positions alone and a model whose keys do not
 * turn: these are refused. */
static bool model_serves(void **state, int i)
{
    const struct subject *subject = *state;
    const char *arch = models[i].llama.arch;
    bool sinks = arch && strcmp(arch, "gpt-oss") == 0, still = arch && strcmp(arch, "opt") == 0;
    uint32_t reads = subject->policy->caps & (KVL_CAP_EVICTS | KVL_CAP_SELECTS);
    bool moves = subject->policy->caps & KVL_CAP_REPOSITIONS;
    return model_exists(i) && !model_seals(subject, i) &&
           !(sinks && subject->policy->prefill_mask) && !(still && moves && !reads);
}

static int32_t min_budget(const struct kvl_policy *p, const struct kvl_shape *shape)
{
    struct kvl_err err = { 0 };
    void *opts = kvl_alloc(1, p->opts_size ? p->opts_size : 1);
    assert_non_null(opts);
    if (p->opts) RIG_OK(&err, kvl_opt_defaults(p->opts, opts, &err));
    int32_t n = kvl_policy_min_budget(p, shape, opts);
    kvl_free(opts);
    return n;
}

/* Sessions that a check makes itself observe what the policy wants at the usual budget. */
static void observe_default(struct fixture *f)
{
    struct kvl_planned *p;
    RIG_OK(&f->r.err, kvl_planned_create(f->run.policy, rig_shape(&f->r), f->run.options,
                                         f->run.budget, f->run.n_ctx, &p, &f->r.err));
    rig_observe(&f->r, p);
    kvl_planned_destroy(p);
}

static void open_desc(struct fixture *f, void **state, const struct rig_desc *desc)
{
    const struct subject *subject = *state;
    open_rig(&f->r, desc);
    int32_t budget = KVL_MAX(48, min_budget(subject->policy, rig_shape(&f->r)) + 16);
    f->run =
        (struct rig_run){ .policy = subject->policy,
                          .options = "",
                          .budget = budget,
                          .id = f->id,
                          .n_ctx = KVL_MAX(3 * budget + 7, kvl_kv_seals(desc->kv_type) ? 250 : 0),
                          .n_steps = N_STEPS,
                          .seed = 99 };
    assert_true(f->run.n_ctx + 3 * N_BLOCK < MAX_TOK);
    rig_tokens(f->id, MAX_TOK, 31);
    observe_default(f);
}

static bool open_model(struct fixture *f, void **state, int i)
{
    if (!model_serves(state, i)) return false;
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

static enum kvl_kv_type kv_type(const struct fixture *f)
{
    return kvl_store_desc(kvl_engine_store(f->r.engine))->type;
}

static bool quantised(const struct fixture *f)
{
    enum kvl_kv_type type = kv_type(f);
    return type != KVL_KV_F32 && type != KVL_KV_F16 && type != KVL_KV_BF16;
}

/* How far logits of two ways may be apart that add in another order: a number on the edge between two moves by
 * 1/127 of the largest of its block in q8_0, by up to 1/7 where it has four bits or three, by at most 1/1024 of itself
 * in f16. */
static double logits_apart(const struct fixture *f, double most, double most_q8)
{
    if (!quantised(f)) return most;
    return kv_type(f) == KVL_KV_Q8_0 ? most_q8 : most_q8 * 127 / 7;
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

/* A fork, which has its parent's errors; with KVL_LONG a session of its own. */
static struct rig_session fork_or_own(struct fixture *f, const struct rig_run *run,
                                      const struct rig_session *parent)
{
    return getenv("KVL_LONG") ? rig_start(&f->r, run) : rig_fork(&f->r, parent);
}

static void expect_same_run(struct fixture *f, const float *want, const struct rig_run *run,
                            const char *what)
{
    float *got = rig_run(&f->r, run);
    rig_expect_same(&f->r, want, got, run->n_steps, what);
    kvl_free(got);
}

/* A key or a value of a lane. */
static int64_t part_bytes(enum kvl_kv_type type, int32_t head_dim)
{
    switch (type) {
    case KVL_KV_F32: return 4 * head_dim;
    case KVL_KV_F16: return 2 * head_dim;
    case KVL_KV_Q8_0: return head_dim / 32 * 34;
    case KVL_KV_Q4_0:
    case KVL_KV_Q4_0_TURNED: return head_dim / 32 * 18;
    case KVL_KV_FP8_E4M3: return head_dim + 2;
    case KVL_KV_TURBOQUANT4: return head_dim / 2 + 2;
    default: fail_msg("type %d: no bytes", (int)type); return 0;
    }
}

/* What the probe saw is what the counters say, and the bytes are those of the tokens read.  Lists
 * per query head may read a key once per head of the group. */
static void expect_counters(struct fixture *f, const struct rig_session *rs, int32_t n_tok)
{
    const struct kvl_shape *sh = rig_shape(&f->r);
    const struct kvl_counters *c = kvl_session_counters(rs->s);
    const uint8_t *hit, *dense;
    int64_t n_read = 0, n_dense = 0, n_local = 0;
    kvl_session_probe_hits(rs->s, &hit, &dense);
    size_t row = (size_t)sh->n_kv_heads * (size_t)n_tok;
    for (int32_t l = 0; l < sh->n_layers; l++)
        for (size_t i = 0; i < row; i++) {
            bool local = sh->window && sh->window[l];
            n_read += !dense[l] && hit[(size_t)l * row + i];
            n_dense += dense[l] && !local && hit[(size_t)l * row + i];
            n_local += local && hit[(size_t)l * row + i];
        }
    assert_int_equal(c->attended_tok, n_read);
    assert_int_equal(c->dense_tok, n_dense);
    assert_int_equal(c->window_tok, n_local);
    n_dense += n_local;
    assert_int_equal(c->attended_lanes + c->dense_lanes + c->window_lanes,
                     sh->n_layers * sh->n_kv_heads);
    if (f->run.exec == KVL_EXEC_REAL) assert_int_equal(c->kv_walked_bytes, c->kv_read_bytes);
    if (kvl_kv_seals(kv_type(f))) return; /* by hand in test_kv_held */
    int64_t key = part_bytes(kvl_kv_keys(kv_type(f)), sh->head_dim);
    int64_t value = part_bytes(kvl_kv_values(kv_type(f)), sh->head_dim);
    int64_t bytes = (n_read + n_dense) * (key + value);
    assert_true(c->kv_read_bytes >= bytes - c->given_keys * key);
    assert_true(c->kv_read_bytes <= bytes * (sh->n_heads / sh->n_kv_heads));
}

#endif
