/* What the row of an architecture or of a weight type says is what whole models compute: which elements turn
 * together, biases; every type of weights.
 *
 * With KVL_ARCHS set to a folder of <name>.gguf and <name>.json (ids, rows, hf_f64_logits: logits of rows by an
 * independent implementation in double), these models as a whole. */
#include "arch.h"
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

/* A rig around `file`, which it frees. */
static void open_file(struct rig *r, struct kvl_buf *file)
{
    char path[] = "/tmp/kvl-archs-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_true(gw_save(file, path));
    kvl_buf_free(file);
    rig_open(r, &(struct rig_desc){ .path = path, .kv_type = KVL_KV_F32 });
    unlink(path);
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

static void widen_all(const struct kvl_weight *w, float *y)
{
    for (int32_t i = 0; i < w->n_rows; i++) {
        struct kvl_embed_args a = {
            .y = y + (size_t)i * (size_t)w->n_cols, .w = w, .id = &i, .n = 1
        };
        assert_int_equal(kvl_ops_ref.embed(&a), KVL_OK);
    }
}

/* A model with weights of each type, prefilled and decoded, against the same weights as floats. */
static void test_weight_types(void **state)
{
    int32_t id[N_TOK], n;
    const struct kvl_wtype_row *t = kvl_wtype_rows(&n);
    (void)state;
    rig_tokens(id, N_TOK, 5);
    for (int32_t i = 0; i < n; i++) {
        float *logits[2];
        for (int wide = 0; wide < 2; wide++) {
            const struct gw_llama m = { .type = (uint32_t)t[i].type,
                                        .n_layers = 1,
                                        .n_embd = 256,
                                        .n_ff = 256,
                                        .widen = wide ? widen_all : NULL };
            struct kvl_buf file = { 0 };
            struct rig r;
            gw_llama(&m, &file);
            open_file(&r, &file);
            logits[wide] = logits_of(&r, id);
            double least = rig_distance(&r, logits[0], logits[0] + GW_VOCAB, 1);
            if (wide) rig_expect_near(&r, logits[0], logits[1], TAIL + 1, 2e-3, t[i].name);
            if (!(least > 0.05))
                fail_msg("%s: logits of two tokens differ by %g", t[i].name, least);
            rig_close(&r);
        }
        kvl_free(logits[0]);
        kvl_free(logits[1]);
    }
}

static double logit_at(const json_t *root, size_t row, int32_t v)
{
    const json_t *rows = json_object_get(root, "hf_f64_logits");
    return json_number_value(json_array_get(json_array_get(rows, row), (size_t)v));
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
        cmocka_unit_test(test_rope_style),   cmocka_unit_test(test_biases),
        cmocka_unit_test(test_query_bias),   cmocka_unit_test(test_weight_types),
        cmocka_unit_test(test_given_models),
    };
    return cmocka_run_group_tests_name("archs", tests, NULL, NULL);
}
