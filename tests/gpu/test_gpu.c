/* The CPU against a GPU, from outside: logits, greedy tokens, what policies read and keep, and the same bits
 * every time.  Exit status 77: there is no GPU here.
 *
 * Everything is small for the GPU that tests/ops/cuda_host plays. */
#include "conformance/rig.h"
#include "policy_spec.h"
#include "registry.h"

enum { MAX_TOK = 640, MAX_LISTS = 1 << 16 };

#ifdef KVL_TEST_CUDA
static const bool small = true;
#else
static const bool small = false;
#endif
static const char tiny_path[] = KVL_SOURCE_DIR "/datasets/model/kvlab-tiny.gguf";

/* ---- two engines -------------------------------------------------------------------------------- */

struct pair {
    struct rig cpu, gpu;
};

static void pair_open(struct pair *p, const struct rig_desc *d)
{
    struct rig_desc on = *d;
    on.device = "cpu";
    rig_open(&p->cpu, &on);
    on.device = "cuda";
    rig_open(&p->gpu, &on);
}

static void pair_close(struct pair *p)
{
    rig_close(&p->cpu);
    rig_close(&p->gpu);
}

/* Largest difference of a row over its largest size; NaN where something is no number. */
static double relative(const float *a, const float *b, int32_t n)
{
    double top = 0, worst = 0;
    for (int32_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        top = fmax(top, fabs((double)b[i]));
        if (!(d <= worst)) worst = d;
    }
    return worst / top;
}

static void expect_rows(const char *what, const struct pair *p, const float *gpu, const float *cpu,
                        int32_t n, double tolerance)
{
    int32_t n_vocab = rig_shape(&p->cpu)->n_vocab;
    double worst = 0;
    for (int32_t i = 0; i < n; i++) {
        size_t at = (size_t)i * (size_t)n_vocab;
        double d = relative(gpu + at, cpu + at, n_vocab);
        if (!(d <= tolerance))
            fail_msg("%s: logits of token %d differ by %g of the largest, want %g", what, i, d,
                     tolerance);
        worst = fmax(worst, d);
    }
    print_message("%s: %g of the largest logit at most, of %d tokens\n", what, worst, n);
}

/* ---- logits --------------------------------------------------------------------------------------- */

/* Prefill of n tokens, then n_more decoded; logits of all. */
static float *logits_of(struct rig *r, const int32_t *id, int32_t n, int32_t n_more)
{
    float *out = rig_logits(r, n + n_more);
    struct rig_session rs = { 0 };
    RIG_OK(&r->err, kvl_session_create(r->engine, &rs.s, &r->err));
    RIG_OK(&r->err, kvl_session_prefill(rs.s, id, n, out, false, &r->err));
    rig_decode(r, &rs, id + n, n_more, out + (size_t)n * (size_t)rig_shape(r)->n_vocab);
    rig_end(&rs);
    return out;
}

static void compare_logits(const char *what, const struct rig_desc *d, double tolerance)
{
    int32_t id[MAX_TOK], n = small ? 40 : 600, n_more = small ? 3 : 24;
    struct pair p;
    pair_open(&p, d);
    rig_tokens(id, n + n_more, 3);
    float *cpu = logits_of(&p.cpu, id, n, n_more), *gpu = logits_of(&p.gpu, id, n, n_more);
    expect_rows(what, &p, gpu, cpu, n + n_more, tolerance);
    kvl_free(cpu);
    kvl_free(gpu);
    pair_close(&p);
}

static void test_logits(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t type;
    } weights[] = { { "F32", 0 }, { "F16", 1 }, { "BF16", 30 }, { "Q8_0", 8 }, { "Q4_0", 2 } };
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) {
        struct rig_desc d = { .llama = { .n_layers = 3, .type = weights[i].type, .seed = i },
                              .kv_type = KVL_KV_F32 };
        compare_logits(weights[i].name, &d, 1e-3);
        d.kv_type = KVL_KV_BF16;
        d.bf16 = true;
        compare_logits(weights[i].name, &d, 2e-2);
    }
    struct rig_desc wide = { .llama = { .n_embd = 256, .head_dim = 128, .type = 30, .seed = 9 },
                             .kv_type = KVL_KV_F16 };
    if (!small) compare_logits("heads of 128", &wide, 1e-3);
}

/* ---- tokens --------------------------------------------------------------------------------------- */

static const char text[] =
    "The pass key is 68314. Remember it. 68314 is the pass key. The grass is green. The sky is "
    "blue. "
    "The sun is yellow. Here we go. There and back again. What is the pass key? The pass key is";

static void greedy(struct rig *r, const struct kvl_tokens *prompt, int32_t n, int32_t *out)
{
    struct rig_session rs = { 0 };
    float *logits = rig_logits(r, 1);
    RIG_OK(&r->err, kvl_session_create(r->engine, &rs.s, &r->err));
    RIG_OK(&r->err, kvl_session_prefill(rs.s, prompt->id, prompt->n, logits, true, &r->err));
    for (int32_t i = 0; i < n; i++) {
        out[i] = kvl_argmax(logits, rig_shape(r)->n_vocab);
        rig_decode(r, &rs, &out[i], 1, logits);
    }
    kvl_free(logits);
    rig_end(&rs);
}

static void test_greedy(void **state)
{
    (void)state;
    const struct rig_desc d = { .path = tiny_path, .kv_type = KVL_KV_F16 };
    int32_t cpu[64], gpu[64], n = small ? 6 : 64;
    struct kvl_tokens prompt = { 0 };
    struct pair p;
    pair_open(&p, &d);
    RIG_OK(&p.cpu.err, kvl_encode(kvl_model_tokenizer(p.cpu.model), text, strlen(text),
                                  KVL_ENCODE_BOS, &prompt, &p.cpu.err));
    greedy(&p.cpu, &prompt, n, cpu);
    greedy(&p.gpu, &prompt, n, gpu);
    for (int32_t i = 0; i < n; i++)
        if (cpu[i] != gpu[i]) fail_msg("token %d is %d, want %d", i, gpu[i], cpu[i]);
    kvl_tokens_free(&prompt);
    pair_close(&p);
}

/* ---- selections ------------------------------------------------------------------------------------ */

/* What a run read and kept, list by list. */
struct lists {
    uint64_t *bits; /* [n][words] */
    int32_t n, words, n_heads;
    int64_t n_items;
};

static void lists_add(struct lists *l, const int32_t *pos, int32_t n)
{
    assert_true(l->n < MAX_LISTS);
    uint64_t *row = l->bits + (size_t)l->n++ * (size_t)l->words;
    for (int32_t i = 0; i < n; i++) row[pos[i] / 64] |= (uint64_t)1 << pos[i] % 64;
    l->n_items += n;
}

static int lists_read(void *user, const struct kvl_tap_read *r, struct kvl_err *err)
{
    struct lists *l = user;
    (void)err;
    for (int32_t h = 0; !r->dense && h < l->n_heads; h++) lists_add(l, r->read[h], r->n_read[h]);
    return KVL_OK;
}

static int lists_keep(void *user, const struct kvl_tap_keep *k, struct kvl_err *err)
{
    (void)err;
    lists_add(user, k->kept, k->n_kept);
    return KVL_OK;
}

static void lists_run(struct rig *r, const struct rig_run *run, struct lists *out)
{
    struct rig_session rs = { 0 };
    struct kvl_tap tap = { .user = out, .read = lists_read, .keep = lists_keep };
    float *logits = rig_logits(r, run->n_steps);
    RIG_OK(&r->err, kvl_planned_create(run->policy, rig_shape(r), run->options, run->budget,
                                       run->n_ctx, &rs.planned, &r->err));
    rig_observe(r, rs.planned);
    RIG_OK(&r->err, kvl_session_create(r->engine, &rs.s, &r->err));
    kvl_session_tap(rs.s, &tap);
    rig_context(r, run, rs.planned, rs.s);
    rig_decode(r, &rs, run->id + run->n_ctx, run->n_steps, logits);
    kvl_free(logits);
    rig_end(&rs);
}

/* Near-ties may fall the other way, and a token more in one list is one less there: one entry in fifty. */
static void lists_close(const char *name, const struct lists *a, const struct lists *b)
{
    int64_t differ = 0;
    if (a->n != b->n) fail_msg("%s: %d lists, want %d", name, a->n, b->n);
    for (size_t i = 0; i < (size_t)a->n * (size_t)a->words; i++)
        differ += __builtin_popcountll(a->bits[i] ^ b->bits[i]);
    print_message("%s: %lld of %lld entries of %d lists differ\n", name, (long long)differ,
                  (long long)(a->n_items + b->n_items), a->n);
    if (differ * 50 > a->n_items + b->n_items)
        fail_msg("%s: %lld of %lld entries differ", name, (long long)differ,
                 (long long)(a->n_items + b->n_items));
}

/* Whether the policy takes this budget. */
static bool lists_possible(struct pair *p, const struct rig_run *run)
{
    struct kvl_planned *planned;
    struct kvl_err err = { 0 };
    int rc = kvl_planned_create(run->policy, rig_shape(&p->cpu), run->options, run->budget,
                                run->n_ctx, &planned, &err);
    if (rc == KVL_OK) kvl_planned_destroy(planned);
    if (rc != KVL_OK) print_message("left out: %s\n", err.msg);
    return rc == KVL_OK;
}

static bool compare_lists(struct pair *p, const struct kvl_policy *policy, const int32_t *id,
                          int32_t n_ctx, int32_t n_steps)
{
    const struct rig_run run = { .policy = policy,
                                 .options = "",
                                 .budget = kvl_policy_ignores_budget(policy) ? 0 : n_ctx / 3,
                                 .id = id,
                                 .n_ctx = n_ctx,
                                 .n_steps = n_steps };
    struct lists l[2];
    if (!lists_possible(p, &run)) return false;
    for (int k = 0; k < 2; k++) {
        l[k] = (struct lists){ .words = MAX_TOK / 64, .n_heads = rig_shape(&p->cpu)->n_heads };
        l[k].bits = kvl_alloc((size_t)MAX_LISTS * (size_t)l[k].words, sizeof *l[k].bits);
        assert_non_null(l[k].bits);
        lists_run(k ? &p->gpu : &p->cpu, &run, &l[k]);
    }
    lists_close(policy->name, &l[1], &l[0]);
    for (int k = 0; k < 2; k++) kvl_free(l[k].bits);
    return true;
}

static bool wanted(const struct kvl_policy *policy)
{
    static const char *const few[] = {
        "quest", "snapkv", "h2o", "omnikv", "infllm", "streaming_llm"
    };
    if (policy->inner || policy->prefill == KVL_PREFILL_OWN) return false;
    for (size_t i = 0; i < sizeof few / sizeof few[0]; i++)
        if (strcmp(policy->name, few[i]) == 0) return true;
    return !small;
}

static void test_selections(void **state)
{
    (void)state;
    const struct rig_desc d = { .llama = { .n_layers = 4, .seed = 5 }, .kv_type = KVL_KV_F32 };
    int32_t id[MAX_TOK], n_ctx = small ? 96 : 512, n_steps = small ? 2 : 12;
    struct kvl_registry *all;
    struct pair p;
    int n = 0;
    pair_open(&p, &d);
    rig_tokens(id, n_ctx + n_steps, 7);
    RIG_OK(&p.cpu.err, kvl_registry_create(&all, &p.cpu.err));
    for (size_t i = 0; i < kvl_registry_n_policies(all); i++) {
        const struct kvl_policy *policy = kvl_registry_policy(all, i);
        if (wanted(policy)) n += compare_lists(&p, policy, id, n_ctx, n_steps);
    }
    assert_true(n >= 5);
    kvl_registry_destroy(all);
    pair_close(&p);
}

/* ---- the same bits every time ------------------------------------------------------------------------ */

static void test_repeats(void **state)
{
    (void)state;
    static const char *const names[] = { "full", "quest", "h2o" };
    const struct rig_desc d = { .llama = { .n_layers = 3, .type = 1, .seed = 6 },
                                .kv_type = KVL_KV_F16,
                                .device = "cuda" };
    int32_t id[MAX_TOK], n_ctx = small ? 64 : 500, n_steps = small ? 2 : 8,
                         n_runs = small ? 3 : 100;
    struct kvl_registry *all;
    struct rig r;
    rig_open(&r, &d);
    rig_tokens(id, n_ctx + n_steps, 8);
    RIG_OK(&r.err, kvl_registry_create(&all, &r.err));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct rig_run run = {
            .options = "", .budget = 0, .id = id, .n_ctx = n_ctx, .n_steps = n_steps
        };
        RIG_OK(&r.err, kvl_registry_find_policy(all, names[i], &run.policy, &r.err));
        if (!kvl_policy_ignores_budget(run.policy)) run.budget = n_ctx / 2;
        float *first = rig_run(&r, &run);
        for (int32_t k = 1; k < n_runs; k++) {
            float *again = rig_run(&r, &run);
            rig_expect_same(&r, again, first, n_steps, names[i]);
            kvl_free(again);
        }
        kvl_free(first);
    }
    kvl_registry_destroy(all);
    rig_close(&r);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static size_t device_bytes(const struct kvl_device *dev)
{
    struct kvl_device_memory m;
    size_t sum = 0;
    dev->memory(&m);
    for (int i = 0; i < KVL_PLACES; i++) sum += m.place_bytes[i];
    return sum;
}

/* What an engine took is given back: the second one leaves no more behind than the first. */
static void test_memory(void **state)
{
    const struct kvl_device *dev = *(const struct kvl_device **)*state;
    const struct rig_desc d = { .llama = { .seed = 2 }, .device = "cuda" };
    int32_t id[64];
    size_t after[2];
    rig_tokens(id, 64, 1);
    for (int i = 0; i < 2; i++) {
        struct rig r;
        rig_open(&r, &d);
        kvl_free(logits_of(&r, id, 60, 2));
        rig_close(&r);
        assert_int_equal(dev->sync(), KVL_OK);
        after[i] = device_bytes(dev);
    }
    if (after[1] > after[0]) fail_msg("%zu bytes are left, were %zu", after[1], after[0]);
}

/* ---- failures ------------------------------------------------------------------------------------------ */

/* Infinities of a call that ended before it looked for them are not the next call's. */
static void test_marks(void **state)
{
    const struct kvl_device *dev = *(const struct kvl_device **)*state;
    const struct rig_desc d = { .llama = { .seed = 2 }, .device = "cuda" };
    struct rig_session rs = { 0 };
    struct rig r;
    volatile int stop = 1;
    int32_t id[32];
    rig_open(&r, &d);
    rig_tokens(id, 32, 1);
    float *layer = dev->alloc(KVL_PLACE_SHARED, 1, sizeof *layer);
    assert_non_null(layer);
    *layer = NAN;
    assert_int_equal(dev->check_finite(layer, 1), KVL_OK);
    kvl_engine_set_stop(r.engine, &stop);
    RIG_OK(&r.err, kvl_session_create(r.engine, &rs.s, &r.err));
    assert_int_equal(kvl_session_prefill(rs.s, id, 32, NULL, true, &r.err), KVL_ESTOP);
    rig_end(&rs);
    kvl_err_clear(&r.err);
    kvl_engine_set_stop(r.engine, NULL);
    kvl_free(logits_of(&r, id, 30, 2));
    dev->free(KVL_PLACE_SHARED, layer);
    rig_close(&r);
}

/* ---- what it does not run --------------------------------------------------------------------------- */

/* One line, and no attempt. */
static void test_wide_heads(void **state)
{
    const struct kvl_device *dev = *(const struct kvl_device **)*state;
    const struct rig_desc d = {
        .llama = { .n_embd = 32, .n_heads = 2, .n_kv_heads = 1, .head_dim = 258 }, .device = "cpu"
    };
    struct kvl_engine *engine = NULL;
    struct rig r;
    rig_open(&r, &d);
    struct kvl_engine_desc desc = { .model = r.model, .device = dev };
    assert_int_equal(kvl_engine_create(&desc, &engine, &r.err), KVL_EMODEL);
    assert_non_null(strstr(r.err.msg, "258 channels"));
    assert_null(engine);
    assert_string_equal(dev->error(), "");
    kvl_err_clear(&r.err);
    rig_close(&r);
}

/* ---- snapshots ------------------------------------------------------------------------------------------ */

static void code_line(struct rig *r, char out[64])
{
    struct kvl_buf key = { 0 };
    const int32_t id[] = { GW_BOS };
    RIG_OK(&r->err, kvl_snapshot_key(r->engine, id, 1, &key, &r->err));
    const char *line = strstr(key.data, "\ncode ");
    assert_non_null(line);
    assert_int_equal(sscanf(line, " code %63s", out), 1);
    kvl_buf_free(&key);
}

/* What a GPU computed is used while its kernels are the same; the CPU's whatever they are. */
static void test_snapshot_code(void **state)
{
    (void)state;
    const struct rig_desc d = { .llama = { .seed = 2 } };
    char cpu[64], gpu[64];
    struct pair p;
    pair_open(&p, &d);
    code_line(&p.cpu, cpu);
    code_line(&p.gpu, gpu);
    assert_int_equal(strlen(cpu), 16);
    assert_int_equal(strlen(gpu), 33);
    assert_int_equal(strncmp(gpu, cpu, 16), 0);
    pair_close(&p);
}

/* A token works in the memory of the one before.  Its embedding was given before the workspace was emptied, which
 * then had something under way and stayed as it was: up to 64 MiB of pages that both sides touched anew. */
static void test_workspace(void **state)
{
    enum { N_CTX = 90, N_WARM = 4, N = 60 };
    const struct kvl_device *dev = *(const struct kvl_device **)*state;
    const struct rig_desc d = { .llama = { .n_layers = 6, .seed = 4 }, .device = "cuda" };
    struct kvl_device_memory before, after;
    int32_t id[N_CTX + N_WARM + N];
    struct rig_session rs = { 0 };
    struct rig r;
    rig_open(&r, &d);
    rig_tokens(id, N_CTX + N_WARM + N, 7);
    float *logits = rig_logits(&r, N);
    RIG_OK(&r.err, kvl_session_create(r.engine, &rs.s, &r.err));
    RIG_OK(&r.err, kvl_session_prefill(rs.s, id, N_CTX, NULL, true, &r.err));
    rig_decode(&r, &rs, id + N_CTX, N_WARM, logits);
    dev->memory(&before);
    rig_decode(&r, &rs, id + N_CTX + N_WARM, N, logits);
    dev->memory(&after);
    assert_int_equal(after.place_bytes[KVL_PLACE_SHARED], before.place_bytes[KVL_PLACE_SHARED]);
    kvl_free(logits);
    kvl_session_destroy(rs.s);
    rig_close(&r);
}

int main(void)
{
    struct kvl_err err = { 0 };
    static const struct kvl_device *dev;
    if (kvl_device_open("cuda", &dev, &err) != KVL_OK) {
        fprintf(stderr, "test_gpu: skipped: %s\n", err.msg);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_selections),
        cmocka_unit_test(test_repeats),
        cmocka_unit_test_prestate(test_memory, &dev),
        cmocka_unit_test_prestate(test_marks, &dev),
        cmocka_unit_test_prestate(test_wide_heads, &dev),
        cmocka_unit_test(test_snapshot_code),
        cmocka_unit_test_prestate(test_workspace, &dev),
    };
    return cmocka_run_group_tests_name("gpu", tests, NULL, NULL);
}
