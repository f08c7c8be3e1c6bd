/* What policies see of attention on models that do more than a softmax: weights with a soft cap of logits (Gemma 2)
 * and with attention sinks (gpt-oss), against the same models in double (arch_forward.h). */
#include "arch_forward.h"
#include "conformance/rig.h"
#include "registry.h"

enum { N_CTX = 45, N_TOK = 48, WINDOW = 5, LAYERS = 4, HEADS = 4 };

/* What the hooks of `watcher` saw; tests only, a real policy keeps no globals. */
static struct {
    float columns[LAYERS][HEADS][N_CTX], mass[LAYERS][HEADS][N_CTX];
    float probs[LAYERS][WINDOW][HEADS][N_CTX];                     /* by distance from the newest */
    float asked[LAYERS][HEADS][N_TOK], read[LAYERS][HEADS][N_TOK]; /* of the last token */
    float capped[3];
} seen;

static int watch_plan(struct kvl_plan *plan)
{
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, WINDOW));
    return kvl_plan_observe(plan, KVL_OBS_COLUMNS, 0);
}

static int watch_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const float *sums;
    int32_t n;
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, 0, &sums, &n));
    memcpy(seen.columns[layer], sums, sizeof seen.columns[layer]);
    KVL_TRY(kvl_obs_window_mass(ctx, layer, WINDOW, &sums, &n));
    memcpy(seen.mass[layer], sums, sizeof seen.mass[layer]);
    for (int32_t back = 0; back < WINDOW; back++) {
        float *probs;
        KVL_TRY(kvl_scratch_get(ctx, sizeof seen.probs[0][0] / sizeof(float), &probs));
        KVL_TRY(kvl_obs_window_probs(ctx, layer, back, probs, N_CTX));
        memcpy(seen.probs[layer][back], probs, sizeof seen.probs[0][0]);
    }
    return KVL_OK;
}

static int watch_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    float *probs, *x;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)HEADS * N_TOK, &probs));
    KVL_TRY(kvl_scratch_get(ctx, 3, &x));
    KVL_TRY(kvl_attn_weights(ctx, step, q, probs, step->pos + 1));
    if (step->pos == N_TOK - 1) memcpy(seen.asked[step->layer], probs, sizeof seen.asked[0]);
    for (int i = 0; i < 3; i++) x[i] = 4.0f * (float)i - 3;
    KVL_TRY(kvl_cap(ctx, x, 3));
    memcpy(seen.capped, x, sizeof seen.capped);
    return kvl_sel_first(sel, KVL_SCOPE_LAYER, 0, step->pos + 1);
}

static int watch_observe(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const float *const *probs, const int32_t *n, const float *lse)
{
    (void)ctx;
    (void)lse;
    for (int32_t h = 0; h < HEADS && step->pos == N_TOK - 1; h++) {
        assert_int_equal(n[h], N_TOK);
        memcpy(seen.read[step->layer][h], probs[h], sizeof seen.read[0][0]);
    }
    return KVL_OK;
}

RIG_POLICY(watcher, .plan = watch_plan, .prefilled = watch_prefilled, .select = watch_select,
           .observe = watch_observe, .caps = KVL_CAP_SELECTS);

/* ---- the same in double --------------------------------------------------------------------- */

static double weights[LAYERS][HEADS][N_TOK][N_TOK];

static void keep_weight(int layer, int head, int pos, int key, double weight)
{
    weights[layer][head][pos][key] = weight;
}

static void expect(const char *what, int layer, int key, float got, double want)
{
    if (!(fabs((double)got - want) <= 2e-5))
        fail_msg("%s of layer %d: key %d has %g, want %g", what, layer, key, (double)got, want);
}

/* Sums of weights of the newest `window` queries of the context. */
static double received(int layer, int h, int key, int window)
{
    double sum = 0;
    for (int pos = N_CTX - window; pos < N_CTX; pos++) sum += weights[layer][h][pos][key];
    return sum;
}

/* `layer` is as the policy numbers it, `at` as the model does. */
static void check_layer(int layer, int at)
{
    for (int h = 0; h < HEADS; h++) {
        for (int key = 0; key < N_CTX; key++) {
            expect("column sum", at, key, seen.columns[layer][h][key], received(at, h, key, N_CTX));
            expect("window's mass", at, key, seen.mass[layer][h][key],
                   received(at, h, key, WINDOW));
            for (int back = 0; back < WINDOW; back++)
                expect("window's weight", at, key, seen.probs[layer][back][h][key],
                       weights[at][h][N_CTX - 1 - back][key]);
        }
        for (int key = 0; key < N_TOK; key++) {
            expect("weight asked for", at, key, seen.asked[layer][h][key],
                   weights[at][h][N_TOK - 1][key]);
            expect("weight read with", at, key, seen.read[layer][h][key],
                   weights[at][h][N_TOK - 1][key]);
        }
    }
}

static void open_model(struct rig *r, const struct gw_llama *m, bool definition)
{
    char path[] = "/tmp/kvl-weights-XXXXXX";
    struct kvl_buf file = { 0 };
    struct kvl_gguf *g = NULL;
    int32_t id[N_TOK];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    gw_llama(m, &file);
    assert_true(gw_save(&file, path));
    rig_open(r, &(struct rig_desc){ .path = path, .kv_type = KVL_KV_F32 });
    unlink(path);
    void *copy = gw_exact(&file);
    rig_tokens(id, N_TOK, 5);
    if (definition) {
        assert_int_equal(kvl_gguf_open_memory(copy, file.len, &g, NULL), KVL_OK);
        af_keep = keep_weight;
        free(af_logits(g, id, N_TOK, false));
        af_keep = NULL;
        kvl_gguf_close(g);
    }
    kvl_free(copy);
    kvl_buf_free(&file);
}

static void check_model(const struct gw_llama *m)
{
    struct rig r;
    int32_t id[N_TOK];
    rig_tokens(id, N_TOK, 5);
    open_model(&r, m, true);
    kvl_free(rig_run(&r, &(struct rig_run){ .policy = &watcher,
                                            .options = "",
                                            .id = id,
                                            .n_ctx = N_CTX,
                                            .n_steps = N_TOK - N_CTX }));
    int layer = 0;
    const struct kvl_shape *sh = rig_shape(&r);
    for (int32_t l = 0; l < sh->n_layers; l++)
        if (!sh->window || !sh->window[l]) check_layer(layer++, l);
    assert_true(layer >= 2);
    for (int i = 0; i < 3; i++) {
        double x = 4.0 * i - 3, cap = (double)sh->cap;
        expect("estimate", 0, i, seen.capped[i], cap > 0 ? cap * tanh(x / cap) : x);
    }
    rig_close(&r);
}

static void more_cap(struct gw *w)
{
    gw_f32(w, "gemma2.attn_logit_softcapping", 0.75f);
}

static const struct gw_llama capped = { .arch = "gemma2", .n_layers = LAYERS, .more = more_cap };

static void test_capped(void **state)
{
    (void)state;
    check_model(&capped);
}

static void test_sinks(void **state)
{
    (void)state;
    check_model(
        &(struct gw_llama){ .arch = "gpt-oss", .n_layers = LAYERS, .bias = 0.3f, .n_ff = 32 });
}

static void test_plain(void **state)
{
    (void)state;
    check_model(&(struct gw_llama){ .arch = "qwen3", .n_layers = 2 });
}

/* A cluster of one token is estimated by the token: what comes out is full attention, if both cap logits. */
static void test_estimates(void **state)
{
    enum { STEPS = 3, N = 200 };
    static const char *const name[] = { "full", "retroinfer" };
    static const char *const options[] = { "", "per_cluster=1,estimate=1,sink=2" };
    struct kvl_registry *reg;
    struct rig r;
    int32_t id[N + STEPS];
    float *logits[2];
    (void)state;
    rig_tokens(id, N + STEPS, 6);
    open_model(&r, &capped, false);
    RIG_OK(&r.err, kvl_registry_create(&reg, &r.err));
    for (int i = 0; i < 2; i++) {
        const struct kvl_policy *p;
        RIG_OK(&r.err, kvl_registry_find_policy(reg, name[i], &p, &r.err));
        logits[i] = rig_run(&r, &(struct rig_run){ .policy = p,
                                                   .options = options[i],
                                                   .budget = i ? 64 : 0,
                                                   .id = id,
                                                   .n_ctx = N,
                                                   .n_steps = STEPS });
    }
    rig_expect_near(&r, logits[1], logits[0], STEPS, 1e-4, "clusters of one token");
    for (int i = 0; i < 2; i++) kvl_free(logits[i]);
    kvl_registry_destroy(reg);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_capped),
        cmocka_unit_test(test_sinks),
        cmocka_unit_test(test_estimates),
    };
    return cmocka_run_group_tests_name("arch_weights", tests, NULL, NULL);
}
