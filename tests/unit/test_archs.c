/* What the row of an architecture or of a weight type says is what whole models compute: random models of every
 * architecture against the same in double (arch_forward.h), which elements turn together, biases; every type of
 * weights.
 *
 * With KVL_ARCHS set to a folder of <name>.gguf and <name>.json (ids, rows, hf_f64_logits: logits of rows by an
 * independent implementation in double), these models as a whole. */
#include "arch.h"
#include "arch_forward.h"
#include "conformance/rig.h"
#include "kvl/gguf.h"
#include "registry.h"

#include <jansson.h>

enum { N_TOK = 40, FEW = 8, TAIL = N_TOK - FEW };

/* Logits of every token from FEW - 1 on, [TAIL + 1][n_vocab]: the first of a prefill, then decoded. */
static float *logits_of(struct rig *r, const int32_t *id)
{
    struct kvl_registry *reg;
    const struct kvl_policy *full;
    float *logits = rig_logits(r, TAIL + 1);
    RIG_OK(&r->err, kvl_registry_create(&reg, &r->err));
    RIG_OK(&r->err, kvl_registry_find_policy(reg, "full", &full, &r->err));
    const struct rig_run run = { .policy = full, .options = "", .id = id, .n_ctx = FEW };
    struct kvl_session *s;
    RIG_OK(&r->err, kvl_session_create(r->engine, &s, &r->err));
    RIG_OK(&r->err, kvl_session_prefill(s, id, FEW, logits, true, &r->err));
    kvl_session_destroy(s);
    struct rig_session rs = rig_start(r, &run);
    rig_decode(r, &rs, id + FEW, TAIL, logits + rig_shape(r)->n_vocab);
    rig_end(&rs);
    kvl_registry_destroy(reg);
    return logits;
}

/* A rig around `file`, which it frees; sessions of at most max_tok, 0 = the model's. */
static void open_limited(struct rig *r, struct kvl_buf *file, int32_t max_tok)
{
    char path[] = "/tmp/kvl-archs-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_true(gw_save(file, path));
    kvl_buf_free(file);
    rig_open(r, &(struct rig_desc){ .path = path, .kv_type = KVL_KV_F32, .max_tok = max_tok });
    unlink(path);
}

#ifndef KVL_TEST_CUDA
static void open_file(struct rig *r, struct kvl_buf *file)
{
    open_limited(r, file, 0);
}

/* The bytes of a tensor. */
static float *tensor_of(const struct kvl_buf *file, const char *name)
{
    struct kvl_gguf *g = NULL;
    assert_int_equal(kvl_gguf_open_memory(file->data, file->len, &g, NULL), KVL_OK);
    size_t at = kvl_gguf_tensor(g, name)->offset;
    kvl_gguf_close(g);
    return (float *)(void *)(file->data + at);
}

/* Rows of heads from neighbouring pairs to pairs half a head apart. */
static void move_pairs(float *w, int32_t n_heads, int32_t dim, int32_t n_cols)
{
    size_t head = (size_t)(dim * n_cols);
    float *copy = rig_floats(head);
    for (int32_t h = 0; h < n_heads; h++, w += head) {
        memcpy(copy, w, head * sizeof *w);
        for (int32_t i = 0; i < dim; i++)
            memcpy(w + (size_t)(i % 2 * dim / 2 + i / 2) * (size_t)n_cols,
                   copy + (size_t)i * (size_t)n_cols, (size_t)n_cols * sizeof *w);
    }
    kvl_free(copy);
}

/* The same model with its pairs where the other style has them gives the same logits; unmoved it does not. */
static void test_rope_style(void **state)
{
    enum { LAYERS = 2, HEADS = 4, KV = 2, DIM = 16, EMBD = 64 };
    struct gw_llama m = { .n_layers = LAYERS, .n_embd = EMBD, .n_heads = HEADS, .n_kv_heads = KV };
    int32_t id[N_TOK];
    float *logits[3];
    struct rig r;
    (void)state;
    rig_tokens(id, N_TOK, 3);
    for (int i = 0; i < 3; i++) {
        struct kvl_buf file = { 0 };
        m.arch = i == 0 ? "llama" : "qwen2";
        gw_llama(&m, &file);
        for (int32_t l = 0; i == 1 && l < LAYERS; l++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.attn_q.weight", l);
            move_pairs(tensor_of(&file, name), HEADS, DIM, EMBD);
            snprintf(name, sizeof name, "blk.%d.attn_k.weight", l);
            move_pairs(tensor_of(&file, name), KV, DIM, EMBD);
        }
        open_file(&r, &file);
        logits[i] = logits_of(&r, id);
        if (i == 1) rig_expect_near(&r, logits[1], logits[0], TAIL + 1, 1e-4, "pairs moved");
        if (i == 2) assert_true(rig_distance(&r, logits[2], logits[0], TAIL + 1) > 1e-2);
        rig_close(&r);
    }
    for (int i = 0; i < 3; i++) kvl_free(logits[i]);
}

/* Keys before they turn and values of layer 0 differ from those without biases by the biases, however the tokens
 * came. */
static void test_biases(void **state)
{
    enum { KV = 2, DIM = 16, ROW = KV * DIM };
    static float with[N_TOK][DIM], without[N_TOK][DIM];
    int32_t id[N_TOK];
    (void)state;
    rig_tokens(id, N_TOK, 4);
    for (int part = KVL_PART_K; part <= KVL_PART_K_RAW; part++)
        for (int32_t h = 0; h < KV; h++) {
            float bias[ROW];
            if (part == KVL_PART_K) continue;
            for (int b = 0; b < 2; b++) {
                const struct gw_llama m = { .arch = "qwen2", .bias = b ? 0.3f : 0 };
                struct kvl_buf file = { 0 };
                struct rig r;
                struct kvl_session *s;
                gw_llama(&m, &file);
                memcpy(bias,
                       tensor_of(&file,
                                 part == KVL_PART_V ? "blk.0.attn_v.bias" : "blk.0.attn_k.bias"),
                       sizeof bias);
                open_file(&r, &file);
                RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
                RIG_OK(&r.err, kvl_session_prefill(s, id, N_TOK, NULL, true, &r.err));
                RIG_OK(&r.err, kvl_seq_read(kvl_session_seq(s), 0, h, (enum kvl_kv_part)part, 0,
                                            N_TOK, b ? with[0] : without[0], &r.err));
                kvl_session_destroy(s);
                rig_close(&r);
            }
            for (int32_t i = 0; i < N_TOK; i++)
                for (int32_t c = 0; c < DIM; c++) {
                    assert_true(fabsf(bias[h * DIM + c]) > 0);
                    assert_true(fabsf(with[i][c] - without[i][c] - bias[h * DIM + c]) < 1e-5f);
                }
        }
}

/* Of the queries' biases only the logits tell. */
static void test_query_bias(void **state)
{
    const struct gw_llama m = { .arch = "qwen2", .bias = 0.3f };
    int32_t id[N_TOK];
    float *logits[2];
    struct rig r;
    (void)state;
    rig_tokens(id, N_TOK, 4);
    for (int i = 0; i < 2; i++) {
        struct kvl_buf file = { 0 };
        gw_llama(&m, &file);
        for (int c = 0; i == 1 && c < 64; c++) tensor_of(&file, "blk.1.attn_q.bias")[c] = 0;
        open_file(&r, &file);
        logits[i] = logits_of(&r, id);
        if (i == 1) assert_true(rig_distance(&r, logits[0], logits[1], TAIL + 1) > 1e-3);
        rig_close(&r);
    }
    kvl_free(logits[0]);
    kvl_free(logits[1]);
}
#endif

/* ---- whole models ---------------------------------------------------------------------------- */

static void add_key_text(struct gw *w, const char *arch, const char *tail, const char *text)
{
    const struct gw_llama m = { .arch = arch };
    char key[96];
    gw_str(w, gw_arch_key(&m, tail, key), text);
}

static void add_key_number(struct gw *w, const char *arch, const char *tail, float v)
{
    const struct gw_llama m = { .arch = arch };
    char key[96];
    gw_f32(w, gw_arch_key(&m, tail, key), v);
}

static void more_yarn(struct gw *w)
{
    add_key_text(w, "llama", "rope.scaling.type", "yarn");
    add_key_number(w, "llama", "rope.scaling.factor", 4);
    gw_u32(w, "llama.rope.scaling.original_context_length", 256);
}

static void more_qwen2_linear(struct gw *w)
{
    add_key_text(w, "qwen2", "rope.scaling.type", "linear");
    add_key_number(w, "qwen2", "rope.scaling.factor", 8);
    add_key_number(w, "qwen2", "attention.scale", 0.2f);
}

static void more_unnormed(struct gw *w)
{
    gw_bool(w, "qwen3moe.expert_weights_norm", false);
}

/* Biases that a Llama may have. */
static void more_biases(struct gw *w)
{
    const struct gw_llama m = { .bias = 0.3f, .seed = 9 };
    gw_layer_tensor(w, &m, 0, "attn_q.bias", 64, 1);
    gw_layer_tensor(w, &m, 0, "attn_k.bias", 32, 1);
    gw_layer_tensor(w, &m, 1, "attn_v.bias", 32, 1);
    gw_layer_tensor(w, &m, 0, "attn_output.bias", 64, 1);
    gw_layer_tensor(w, &m, 1, "ffn_gate.bias", 96, 1);
    gw_layer_tensor(w, &m, 1, "ffn_up.bias", 96, 1);
    gw_layer_tensor(w, &m, 0, "ffn_down.bias", 64, 1);
}

static const struct whole {
    struct gw_llama m;
    int32_t max_tok;
    bool long_factors;
} wholes[] = {
    { .m = { .arch = "llama" } },
    { .m = { .arch = "llama", .n_rot = 6, .n_kv_heads = 1, .tied = true } },
    { .m = { .arch = "llama", .more = more_yarn } },
    { .m = { .arch = "llama", .more = more_biases } },
    { .m = { .arch = "llama", .n_experts = 5 } },
    { .m = { .arch = "qwen2", .more = more_qwen2_linear } },
    { .m = { .arch = "qwen3", .head_dim = 24 } },
    { .m = { .arch = "qwen3moe", .n_ff = 32 } },
    { .m = { .arch = "qwen3moe", .n_ff = 32, .more = more_unnormed } },
    { .m = { .arch = "internlm2" } },
    { .m = { .arch = "smollm3", .n_layers = 5 } },
    { .m = { .arch = "phi3" }, .max_tok = 512 },
    { .m = { .arch = "phi3" }, .max_tok = 513, .long_factors = true },
    { .m = { .arch = "phi3", .n_rot = 16 }, .long_factors = true },
    { .m = { .arch = "chatglm" } },
    { .m = { .arch = "glm4" } },
    { .m = { .arch = "gptneox", .n_kv_heads = 4 } },
    { .m = { .arch = "llama", .window = 16 } },
    { .m = { .arch = "phi3", .window = 9 }, .long_factors = true },
    { .m = { .arch = "gemma2", .tied = true } },
    { .m = { .arch = "gemma3", .n_layers = 7, .tied = true } },
    { .m = { .arch = "gpt-oss", .n_ff = 32 } },
    { .m = { .arch = "opt", .n_kv_heads = 4, .tied = true } },
};

static void check_whole(const struct whole *c)
{
    struct gw_llama m = c->m;
    struct kvl_buf file = { 0 };
    struct kvl_gguf *g = NULL;
    struct rig r;
    char what[64];
    int32_t id[N_TOK];
    m.bias = m.bias > 0 ? m.bias : 0.3f;
    gw_llama(&m, &file);
    rig_tokens(id, N_TOK, 6);
    void *copy = gw_exact(&file);
    assert_int_equal(kvl_gguf_open_memory(copy, file.len, &g, NULL), KVL_OK);
    double *want = af_logits(g, id, N_TOK, c->long_factors), square = 0;
    open_limited(&r, &file, c->max_tok);
    float *got = logits_of(&r, id);
    snprintf(what, sizeof what, "%s, case %d", m.arch, (int)(c - wholes));
    for (size_t i = 0; i < (TAIL + 1) * GW_VOCAB; i++) {
        double w = want[(FEW - 1) * GW_VOCAB + i];
        if (!(fabs((double)got[i] - w) <= 1e-4))
            fail_msg("%s: logit %zu of token %zu is %g, want %g", what, i % GW_VOCAB,
                     FEW - 1 + i / GW_VOCAB, (double)got[i], w);
        square += w * w / ((TAIL + 1) * GW_VOCAB);
    }
    if (!(square > 0.2 && square < 1000)) fail_msg("%s: logits of size %g", what, sqrt(square));
    kvl_free(got);
    free(want);
    rig_close(&r);
    kvl_gguf_close(g);
    kvl_free(copy);
}

static void test_whole_models(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++) check_whole(&wholes[i]);
}

#ifndef KVL_TEST_CUDA
/* An engine for short contexts ends where their factors do. */
static void test_short_ends(void **state)
{
    enum { SHORT = 512 };
    struct kvl_buf file = { 0 };
    struct kvl_session *s;
    struct rig r;
    int32_t id[SHORT + 1];
    (void)state;
    rig_tokens(id, SHORT + 1, 7);
    gw_llama(&(struct gw_llama){ .arch = "phi3", .n_layers = 1 }, &file);
    open_limited(&r, &file, SHORT);
    RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
    assert_int_equal(kvl_session_prefill(s, id, SHORT + 1, NULL, true, &r.err), KVL_EINVAL);
    assert_non_null(strstr(r.err.msg, "513 tokens, this engine was made for at most 512"));
    kvl_err_clear(&r.err);
    RIG_OK(&r.err, kvl_session_prefill(s, id, SHORT, NULL, true, &r.err));
    kvl_session_destroy(s);
    rig_close(&r);
}

static void more_dynamic(struct gw *w)
{
    add_key_text(w, "internlm2", "rope.scaling.type", "dynamic");
    add_key_number(w, "internlm2", "rope.scaling.factor", 2);
}

static void more_dual_chunks(struct gw *w)
{
    gw_bool(w, "qwen2.attention.dual_chunks", true);
}

static void expect_ends(const struct gw_llama *m, const char *why)
{
    struct kvl_buf file = { 0 };
    struct kvl_engine *e = NULL;
    struct rig r;
    gw_llama(m, &file);
    open_file(&r, &file);
    const struct kvl_engine_desc beyond = { .model = r.model, .allow_overlong = true };
    assert_int_equal(kvl_engine_create(&beyond, &e, &r.err), KVL_EMODEL);
    assert_non_null(strstr(r.err.msg, why));
    rig_close(&r);
}

/* What differs beyond the model's context alone is refused there. */
static void test_ends(void **state)
{
    (void)state;
    expect_ends(&(struct gw_llama){ .arch = "internlm2", .more = more_dynamic }, "dynamic NTK");
    expect_ends(&(struct gw_llama){ .arch = "qwen2", .more = more_dual_chunks }, "dual chunks");
}

/* Where keys do not turn, other positions are the same ones: who changes nothing else is refused, and positions end
 * where the model's table does. */
static void test_learned_positions(void **state)
{
    enum { N = 60, STEPS = 6 };
    static const char *const places[] = { "positions=in_cache", "positions=original" };
    struct kvl_registry *reg;
    struct kvl_planned *planned = NULL;
    struct kvl_engine *e = NULL;
    const struct kvl_policy *p;
    struct kvl_buf file = { 0 };
    struct rig r;
    int32_t id[N + STEPS];
    float *logits[2];
    (void)state;
    rig_tokens(id, N + STEPS, 8);
    gw_llama(&(struct gw_llama){ .arch = "opt", .n_kv_heads = 4, .bias = 0.3f, .n_ctx = 128 },
             &file);
    open_file(&r, &file);
    RIG_OK(&r.err, kvl_registry_create(&reg, &r.err));
    RIG_OK(&r.err, kvl_registry_find_policy(reg, "self_extend", &p, &r.err));
    assert_int_equal(kvl_planned_create(p, rig_shape(&r), "", 0, N, &planned, &r.err), KVL_EINVAL);
    assert_non_null(strstr(r.err.msg, "do not turn with their position"));
    kvl_err_clear(&r.err);
    RIG_OK(&r.err, kvl_registry_find_policy(reg, "streaming_llm", &p, &r.err));
    for (int i = 0; i < 2; i++)
        logits[i] = rig_run(&r, &(struct rig_run){ .policy = p,
                                                   .options = places[i],
                                                   .budget = 24,
                                                   .id = id,
                                                   .n_ctx = N,
                                                   .n_steps = STEPS });
    rig_expect_near(&r, logits[0], logits[1], STEPS, 1e-5, "ranks in the cache");
    const struct kvl_engine_desc beyond = { .model = r.model, .allow_overlong = true };
    assert_int_equal(kvl_engine_create(&beyond, &e, &r.err), KVL_EMODEL);
    assert_non_null(strstr(r.err.msg, "the model learned 128 positions"));
    for (int i = 0; i < 2; i++) kvl_free(logits[i]);
    kvl_registry_destroy(reg);
    rig_close(&r);
}

/* Of four experts a token reads two. */
static void test_expert_bytes(void **state)
{
    size_t bytes[2];
    (void)state;
    for (int experts = 0; experts < 2; experts++) {
        struct kvl_buf file = { 0 };
        struct rig r;
        gw_llama(&(struct gw_llama){ .n_experts = experts ? 4 : 0, .n_layers = 1 }, &file);
        open_file(&r, &file);
        bytes[experts] = kvl_model_token_bytes(r.model);
        rig_close(&r);
    }
    size_t router = 4 * 64, expert = 3 * 64 * 96;
    assert_int_equal(bytes[1] - bytes[0], (router + expert) * sizeof(float));
}

/* ---- types of weights ---------------------------------------------------------------------------- */

static void widen_all(const struct kvl_weight *w, float *y)
{
    for (int32_t i = 0; i < w->n_rows; i++) {
        struct kvl_embed_args a = {
            .y = y + (size_t)i * (size_t)w->n_cols, .w = w, .id = &i, .n = 1
        };
        assert_int_equal(kvl_ops_ref.embed(&a), KVL_OK);
    }
}

/* A model with weights of a type, prefilled and decoded, against the same weights as floats. */
static void check_type(const struct kvl_wtype_row *t, const struct gw_llama *given)
{
    int32_t id[N_TOK];
    float *logits[2];
    rig_tokens(id, N_TOK, 5);
    for (int wide = 0; wide < 2; wide++) {
        struct gw_llama m = *given;
        struct kvl_buf file = { 0 };
        struct rig r;
        m.type = (uint32_t)t->type;
        m.n_layers = 1;
        m.n_embd = m.n_ff = 256;
        m.widen = wide ? widen_all : NULL;
        gw_llama(&m, &file);
        open_file(&r, &file);
        logits[wide] = logits_of(&r, id);
        double least = rig_distance(&r, logits[0], logits[0] + GW_VOCAB, 1);
        /* Relative to how far logits differ.  What is left is the rounding of x, which attention makes larger. */
        if (wide)
            rig_expect_near(&r, logits[0], logits[1], TAIL + 1, 2.5e-3 * fmax(1, least), t->name);
        if (!(least > 0.05)) fail_msg("%s: logits of two tokens differ by %g", t->name, least);
        rig_close(&r);
    }
    kvl_free(logits[0]);
    kvl_free(logits[1]);
}

static void test_weight_types(void **state)
{
    const uint64_t seeds = getenv("KVL_LONG") ? 41 : 4;
    int32_t n;
    const struct kvl_wtype_row *t = kvl_wtype_rows(&n);
    (void)state;
    for (int32_t i = 0; i < n; i++)
        for (uint64_t seed = 0; seed < seeds; seed++)
            check_type(&t[i], &(struct gw_llama){ .seed = seed });
}

static void open_act(struct rig *r, struct kvl_buf *file, enum kvl_decode_act act)
{
    open_file(r, file);
    kvl_engine_destroy(r->engine);
    RIG_OK(&r->err, kvl_engine_create(&(struct kvl_engine_desc){ .model = r->model,
                                                                 .kv_type = KVL_KV_F32,
                                                                 .max_tok = N_TOK,
                                                                 .decode_act = act },
                                      &r->engine, &r->err));
}

/* Activations in 8 bits are those of decoded tokens alone, in every projection of them: logits of the prefill keep their
 * bits, those behind it change, but little. */
static void test_decode_act(void **state)
{
    static const enum kvl_wtype types[] = { KVL_W_Q4_1, KVL_W_Q6_K, KVL_W_F16 };
    int32_t id[N_TOK];
    (void)state;
    rig_tokens(id, N_TOK, 5);
    for (int i = 0; i < 3; i++) {
        float *logits[2];
        for (int q8 = 0; q8 < 2; q8++) {
            struct gw_llama m = {
                .type = (uint32_t)types[i], .n_layers = 1, .n_embd = 256, .n_ff = 256
            };
            struct kvl_buf file = { 0 };
            struct rig r;
            gw_llama(&m, &file);
            open_act(&r, &file, q8 ? KVL_DECODE_Q8 : KVL_DECODE_Q16);
            logits[q8] = logits_of(&r, id);
            if (q8) rig_expect_near(&r, logits[0], logits[1], TAIL + 1, 0.3, "q8");
            rig_close(&r);
        }
        const char *name = kvl_wtype_name(types[i]);
        bool same = memcmp(logits[0], logits[1], GW_VOCAB * sizeof(float)) == 0;
        if (!same) fail_msg("%s: the prefill's logits changed", name);
        same = memcmp(logits[0] + GW_VOCAB, logits[1] + GW_VOCAB, GW_VOCAB * sizeof(float)) == 0;
        if (same != (types[i] == KVL_W_F16))
            fail_msg("%s: decoded logits are the same: %d", name, same);
        kvl_free(logits[0]);
        kvl_free(logits[1]);
    }
}

/* Rows of a fused matrix, and experts, are parts of a tensor of blocks. */
static void test_types_of_parts(void **state)
{
    static const enum kvl_wtype types[] = { KVL_W_Q8_0, KVL_W_Q4_K, KVL_W_MXFP4 };
    (void)state;
    for (int i = 0; i < 3; i++) {
        const struct kvl_wtype_row *t = kvl_wtype_find((uint32_t)types[i]);
        check_type(t, &(struct gw_llama){ .arch = "phi3" });
        check_type(t, &(struct gw_llama){ .n_experts = 3 });
    }
}
#endif

static double logit_at(const json_t *root, size_t row, int32_t v)
{
    const json_t *rows = json_object_get(root, "hf_f64_logits");
    return json_number_value(json_array_get(json_array_get(rows, row), (size_t)v));
}

/* The definition of this test against the same logits. */
static void check_definition(const char *path, const int32_t *id, const json_t *root, bool longs)
{
    struct kvl_gguf *g = NULL;
    const json_t *rows = json_object_get(root, "rows");
    assert_int_equal(kvl_gguf_open(path, &g, NULL), KVL_OK);
    double *y = af_logits(g, id, N_TOK, longs);
    size_t n_vocab = (size_t)kvl_gguf_tensor(g, "token_embd.weight")->dims[1];
    for (size_t i = 0; i < json_array_size(rows); i++) {
        size_t row = (size_t)json_integer_value(json_array_get(rows, i));
        for (size_t v = 0; v < n_vocab; v++) {
            double got = y[row * n_vocab + v], want = logit_at(root, i, (int32_t)v);
            if (!(fabs(got - want) <= 2e-5))
                fail_msg("%s by definition: logit %zu of token %zu is %g, want %g", path, v, row,
                         got, want);
        }
    }
    free(y);
    kvl_gguf_close(g);
}

static void check_model(const char *folder, const char *name)
{
    char path[2][1024];
    int32_t id[N_TOK];
    struct rig r;
    json_error_t where;
    snprintf(path[0], sizeof path[0], "%s/%s.json", folder, name);
    snprintf(path[1], sizeof path[1], "%s/%s.gguf", folder, name);
    json_t *root = json_load_file(path[0], 0, &where);
    if (!root) fail_msg("%s: %s", path[0], where.text);
    for (size_t i = 0; i < N_TOK; i++)
        id[i] = (int32_t)json_integer_value(json_array_get(json_object_get(root, "ids"), i));
    check_definition(path[1], id, root, strstr(name, "phi3") && !strstr(name, "short"));
    rig_open(&r, &(struct rig_desc){ .path = path[1], .kv_type = KVL_KV_F32, .max_tok = N_TOK });
    float *logits = logits_of(&r, id);
    int32_t n_vocab = rig_shape(&r)->n_vocab, n_rows = 0;
    const json_t *rows = json_object_get(root, "rows");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        int32_t row = (int32_t)json_integer_value(json_array_get(rows, i)) - (FEW - 1);
        for (int32_t v = 0; row >= 0 && v < n_vocab; v++) {
            double got = (double)logits[row * n_vocab + v], want = logit_at(root, i, v);
            if (!(fabs(got - want) <= 1e-4))
                fail_msg("%s: logit %d of token %d is %g, want %g", name, v, row + FEW - 1, got,
                         want);
        }
        n_rows += row >= 0;
    }
    assert_true(n_rows >= 3);
    kvl_free(logits);
    rig_close(&r);
    json_decref(root);
}

static void test_given_models(void **state)
{
    static const char *const name[] = { "llama",
                                        "llama-llama3-scaling",
                                        "llama-yarn-4x-of-16",
                                        "llama-head-dim-24--linear-8--tied--biases",
                                        "qwen2",
                                        "qwen3-head-dim-24",
                                        "internlm2--weights-of-a-llama",
                                        "smollm3",
                                        "phi3-longrope-long",
                                        "phi3-longrope-short",
                                        "phi3-partial-0-75--phi-4-mini",
                                        "glm4",
                                        "glm--glm-4-9b-chat-hf",
                                        "mixtral",
                                        "qwen3moe",
                                        "mistral-window-8",
                                        "gemma2-window-8",
                                        "gemma3-text-window-8",
                                        "gpt-oss-window-8",
                                        "gpt-neox-parallel-True",
                                        "gpt-neox-parallel-False" };
    const char *folder = getenv("KVL_ARCHS");
    (void)state;
    if (!folder) skip();
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) check_model(folder, name[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_models), cmocka_unit_test(test_given_models),
#ifndef KVL_TEST_CUDA /* the emulated GPU computes whole models */
        cmocka_unit_test(test_rope_style),   cmocka_unit_test(test_biases),
        cmocka_unit_test(test_query_bias),   cmocka_unit_test(test_weight_types),
        cmocka_unit_test(test_decode_act),   cmocka_unit_test(test_types_of_parts),
        cmocka_unit_test(test_short_ends),   cmocka_unit_test(test_ends),
        cmocka_unit_test(test_expert_bytes), cmocka_unit_test(test_learned_positions),
#endif
    };
    return cmocka_run_group_tests_name("archs", tests, NULL, NULL);
}
