/* The weights of a Llama: what is loaded, and every way a file may contradict itself. */
#include "gguf_writer.h"
#include "kvl/gguf.h"
#include "weights.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { U32 = 4, F32 = 6 };

/* ---- helpers ------------------------------------------------------------------------------- */

/* Where `text`, with its length before it as GGUF writes strings, ends in the file. */
static size_t find_text(const struct kvl_buf *file, const char *text)
{
    struct kvl_buf want = { 0 };
    gw_raw_str(&want, text, strlen(text));
    char *p = memmem(file->data, file->len, want.data, want.len);
    size_t n = want.len;
    kvl_buf_free(&want);
    if (!p) fail_msg("no \"%s\" in the file", text);
    return (size_t)(p - file->data) + n;
}

static void set_key(struct kvl_buf *file, const char *key, const void *value, size_t n)
{
    memcpy(file->data + find_text(file, key) + sizeof(uint32_t), value, n);
}

/* Changes the last letter of a key's or tensor's name. */
static void rename_text(struct kvl_buf *file, const char *text)
{
    file->data[find_text(file, text) - 1] = '#';
}

static size_t data_of(const struct kvl_buf *file, const char *tensor)
{
    struct kvl_gguf *g = NULL;
    assert_int_equal(kvl_gguf_open_memory(file->data, file->len, &g, NULL), KVL_OK);
    size_t at = kvl_gguf_tensor(g, tensor)->offset;
    kvl_gguf_close(g);
    return at;
}

static int load(const struct kvl_buf *file, struct kvl_err *err)
{
    struct kvl_weights w = { 0 };
    struct kvl_gguf *g = NULL;
    void *copy = gw_exact(file);
    int rc = kvl_gguf_open_memory(copy, file->len, &g, err);
    if (rc == KVL_OK) rc = kvl_weights_load(g, &w, err);
    kvl_weights_free(&w);
    kvl_gguf_close(g);
    kvl_free(copy);
    return rc;
}

/* Frees the file. */
static void expect_refused(struct kvl_buf *file, const char *what, const char *why)
{
    struct kvl_err err = { 0 };
    int rc = load(file, &err);
    if (rc != KVL_EMODEL) fail_msg("%s: status %d, want refused", what, rc);
    if (!strstr(err.msg, why)) fail_msg("%s: \"%s\" does not say \"%s\"", what, err.msg, why);
    assert_null(strchr(err.msg, '\n'));
    kvl_buf_free(file);
}

static struct kvl_buf model(const struct gw_llama *m)
{
    struct kvl_buf file = { 0 };
    gw_llama(m, &file);
    return file;
}

/* ---- what is loaded ------------------------------------------------------------------------ */

static void check_matrix(const struct kvl_gguf *g, const char *name, const struct kvl_weight *m,
                         int32_t n_rows, int32_t n_cols, size_t row_bytes)
{
    assert_int_equal(m->n_rows, n_rows);
    assert_int_equal(m->n_cols, n_cols);
    assert_int_equal(m->row_bytes, row_bytes);
    assert_ptr_equal(m->data, kvl_gguf_tensor(g, name)->data);
}

static void test_shapes(void **state)
{
    (void)state;
    const struct gw_llama m = { .n_embd = 64,
                                .n_heads = 6,
                                .n_kv_heads = 3,
                                .head_dim = 32,
                                .n_ff = 160,
                                .n_layers = 3,
                                .type = 8,
                                .n_ctx = 777 };
    struct kvl_buf file = model(&m);
    struct kvl_gguf *g = NULL;
    struct kvl_weights w;
    assert_int_equal(kvl_gguf_open_memory(file.data, file.len, &g, NULL), KVL_OK);
    assert_int_equal(kvl_weights_load(g, &w, NULL), KVL_OK);
    const struct kvl_hparams *h = &w.hparams;
    const int32_t got[] = { h->n_layers, h->n_embd, h->n_heads, h->n_kv_heads,
                            h->head_dim, h->n_ff,   h->n_vocab, h->n_ctx_train };
    const int32_t want[] = { 3, 64, 6, 3, 32, 160, GW_VOCAB, 777 };
    assert_memory_equal(got, want, sizeof want);
    check_matrix(g, "token_embd.weight", &w.embed, GW_VOCAB, 64, 68);
    check_matrix(g, "output.weight", &w.output, GW_VOCAB, 64, 68);
    assert_false(w.tied);
    const struct kvl_layer_weights *l = &w.layer[2];
    check_matrix(g, "blk.2.attn_q.weight", &l->attn_q, 192, 64, 68);
    check_matrix(g, "blk.2.attn_k.weight", &l->attn_k, 96, 64, 68);
    check_matrix(g, "blk.2.attn_v.weight", &l->attn_v, 96, 64, 68);
    check_matrix(g, "blk.2.attn_output.weight", &l->attn_output, 64, 192, 204);
    check_matrix(g, "blk.2.ffn_gate.weight", &l->ffn_gate, 160, 64, 68);
    check_matrix(g, "blk.2.ffn_up.weight", &l->ffn_up, 160, 64, 68);
    check_matrix(g, "blk.2.ffn_down.weight", &l->ffn_down, 64, 160, 170);
    assert_ptr_equal(l->attn_norm, kvl_gguf_tensor(g, "blk.2.attn_norm.weight")->data);
    assert_ptr_equal(l->ffn_norm, kvl_gguf_tensor(g, "blk.2.ffn_norm.weight")->data);
    assert_ptr_equal(w.output_norm, kvl_gguf_tensor(g, "output_norm.weight")->data);
    kvl_weights_free(&w);
    kvl_gguf_close(g);
    kvl_buf_free(&file);
}

static void test_types_and_ties(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        size_t row_bytes; /* of 64 columns */
    } row[] = { { 0, 256 }, { 1, 128 }, { 30, 128 }, { 8, 68 }, { 2, 36 } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const struct gw_llama m = { .type = row[i].type, .tied = true };
        struct kvl_buf file = model(&m);
        struct kvl_gguf *g = NULL;
        struct kvl_weights w;
        assert_int_equal(kvl_gguf_open_memory(file.data, file.len, &g, NULL), KVL_OK);
        assert_int_equal(kvl_weights_load(g, &w, NULL), KVL_OK);
        assert_true(w.tied);
        assert_ptr_equal(w.output.data, w.embed.data);
        assert_int_equal(w.embed.type, row[i].type);
        assert_int_equal(w.layer[1].attn_k.row_bytes, row[i].row_bytes);
        kvl_weights_free(&w);
        kvl_gguf_close(g);
        kvl_buf_free(&file);
    }
    int32_t n;
    const struct kvl_wtype_row *t = kvl_wtype_rows(&n);
    for (int32_t i = 0; i < n; i++) { /* and every type that there is, in rows of whole blocks */
        const struct gw_llama m = {
            .type = (uint32_t)t[i].type, .n_embd = 256, .n_ff = 512, .tied = true
        };
        struct kvl_buf file = model(&m);
        struct kvl_gguf *g = NULL;
        struct kvl_weights w;
        assert_int_equal(kvl_gguf_open_memory(file.data, file.len, &g, NULL), KVL_OK);
        assert_string_equal(kvl_gguf_tensor_type_name((uint32_t)t[i].type), t[i].name);
        assert_int_equal(kvl_weights_load(g, &w, NULL), KVL_OK);
        assert_int_equal(w.layer[1].ffn_down.type, t[i].type);
        assert_int_equal(w.layer[1].ffn_down.row_bytes,
                         512 / (size_t)t[i].block * t[i].block_bytes);
        kvl_weights_free(&w);
        kvl_gguf_close(g);
        kvl_buf_free(&file);
    }
}

static void more_linear(struct gw *w)
{
    gw_str(w, "llama.rope.scaling.type", "linear");
    gw_f32(w, "llama.rope.scaling.factor", 4.0f);
}

static void test_frequencies(void **state)
{
    (void)state;
    static const float freqs[8] = { 1, 1, 1, 2.5f, 8, 8, 1e30f, 1e30f };
    const struct gw_llama m = { .freq_base = 500000.0f, .rope_freqs = freqs, .more = more_linear };
    struct kvl_buf file = model(&m);
    struct kvl_gguf *g = NULL;
    struct kvl_weights w;
    assert_int_equal(kvl_gguf_open_memory(file.data, file.len, &g, NULL), KVL_OK);
    assert_int_equal(kvl_weights_load(g, &w, NULL), KVL_OK);
    long double step = expl(-logl(500000.0L) * 2 / 16), theta = 1;
    for (int i = 0; i < 8; i++, theta *= step) {
        double want = (double)(theta / (long double)freqs[i] / 4);
        assert_true(fabs(w.rope[0].inv_freq[i] - want) <= 1e-13 * want);
    }
    kvl_weights_free(&w);
    kvl_gguf_close(g);
    kvl_buf_free(&file);
}

static int32_t layer_ff[2];

static void more_ff_array(struct gw *w)
{
    gw_arr(w, "llama.feed_forward_length", 5, 2, layer_ff, sizeof layer_ff);
}

/* Per-layer arrays that say the same for every layer are as good as one number. */
static void test_arrays_of_counts(void **state)
{
    (void)state;
    for (int32_t last = 96; last >= 0; last -= 48) {
        struct kvl_err err = { 0 };
        layer_ff[0] = 96;
        layer_ff[1] = last;
        struct kvl_buf file = model(&(struct gw_llama){ .more = more_ff_array });
        rename_text(&file, "llama.feed_forward_length"); /* the first: the number */
        int rc = load(&file, &err);
        assert_int_equal(rc, last == 96 ? KVL_OK : KVL_EMODEL);
        if (rc != KVL_OK) assert_non_null(strstr(err.msg, "differs between layers"));
        kvl_buf_free(&file);
    }
}

/* ---- contradictions ------------------------------------------------------------------------ */

struct number_case {
    const char *key;
    uint32_t type;
    double value;
    const char *why;
};

static const struct number_case number_cases[] = {
    { "llama.block_count", U32, 0, "block_count\" at offset" },
    { "llama.block_count", U32, 0x80000000u, "is 2147483648, want 1 to 1024" },
    { "llama.block_count", U32, 1025, "is 1025, want 1 to 1024" },
    { "llama.block_count", U32, 3, "\"blk.2.attn_norm.weight\" is missing" },
    { "llama.block_count", U32, 1, "\"blk.1.attn_norm.weight\" is not part of" },
    { "llama.context_length", U32, 0, "context_length" },
    { "llama.embedding_length", U32, 32, "\"token_embd.weight\" has shape [64, 259, 1, 1]" },
    { "llama.feed_forward_length", U32, 64, "\"blk.0.ffn_gate.weight\" has shape" },
    { "llama.attention.head_count", U32, 0, "head_count\" at offset" },
    { "llama.attention.head_count", U32, 8, "\"blk.0.attn_q.weight\" has shape" },
    { "llama.attention.head_count_kv", U32, 0, "head_count_kv\" at offset" },
    { "llama.attention.head_count_kv", U32, 3, "want a divisor of head_count 4" },
    { "llama.attention.head_count_kv", U32, 8, "want a divisor of head_count 4" },
    { "llama.attention.head_count_kv", U32, 1, "\"blk.0.attn_k.weight\" has shape" },
    { "llama.attention.key_length", U32, 0, "key_length\" at offset" },
    { "llama.attention.key_length", U32, 15, "head dimension 15 (4 heads), want even" },
    { "llama.attention.key_length", U32, 2048, "want 1 to 1024" },
    { "llama.attention.value_length", U32, 32, "value_length\" is 32, want the head dimension 16" },
    { "llama.rope.dimension_count", U32, 0, "dimension_count\" at offset" },
    { "llama.rope.dimension_count", U32, 7, "dimension_count\" is 7, want an even number, at" },
    { "llama.rope.dimension_count", U32, 18, "is 18, want an even number, at most the head" },
    { "llama.attention.layer_norm_rms_epsilon", F32, 0, "rms_epsilon\" is 0" },
    { "llama.attention.layer_norm_rms_epsilon", F32, -1e-5, "rms_epsilon\" is -1e-05" },
    { "llama.attention.layer_norm_rms_epsilon", F32, (double)NAN, "rms_epsilon\" is nan" },
    { "llama.rope.freq_base", F32, 0, "freq_base\" is 0" },
    { "llama.rope.freq_base", F32, (double)NAN, "freq_base\" is nan" },
    { "llama.rope.freq_base", F32, (double)INFINITY, "freq_base\" is inf" },
    { "llama.vocab_size", U32, 258, "llama.vocab_size 258: want equal" },
    { "general.quantization_version", U32, 1, "quantization_version" },
};

static void test_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof number_cases / sizeof number_cases[0]; i++) {
        const struct number_case *c = &number_cases[i];
        struct kvl_buf file = model(&(struct gw_llama){ 0 });
        uint32_t u = c->type == U32 ? (uint32_t)c->value : 0;
        float f = (float)c->value;
        set_key(&file, c->key, c->type == U32 ? (const void *)&u : &f, 4);
        expect_refused(&file, c->key, c->why);
    }
}

/* A key's type is part of its meaning. */
static void test_key_types(void **state)
{
    (void)state;
    struct kvl_buf file = model(&(struct gw_llama){ 0 });
    file.data[find_text(&file, "llama.rope.freq_base")] = U32;
    expect_refused(&file, "freq_base", "has type u32, want f32 or f64");
    file = model(&(struct gw_llama){ 0 });
    file.data[find_text(&file, "llama.attention.head_count")] = F32;
    expect_refused(&file, "head_count", "has type f32, want an integer");
}

static void test_missing(void **state)
{
    (void)state;
    static const char *const name[] = { "general.architecture",
                                        "llama.block_count",
                                        "llama.context_length",
                                        "llama.embedding_length",
                                        "llama.feed_forward_length",
                                        "llama.attention.head_count",
                                        "llama.attention.layer_norm_rms_epsilon",
                                        "token_embd.weight",
                                        "output_norm.weight",
                                        "blk.0.attn_norm.weight",
                                        "blk.1.attn_q.weight",
                                        "blk.1.attn_k.weight",
                                        "blk.1.attn_v.weight",
                                        "blk.1.attn_output.weight",
                                        "blk.0.ffn_norm.weight",
                                        "blk.0.ffn_gate.weight",
                                        "blk.0.ffn_up.weight",
                                        "blk.0.ffn_down.weight" };
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        struct kvl_buf file = model(&(struct gw_llama){ 0 });
        char why[80];
        snprintf(why, sizeof why, "\"%s\" is missing", name[i]);
        rename_text(&file, name[i]);
        expect_refused(&file, name[i], why);
    }
}

/* Without key_length the heads must divide the embedding. */
static void test_default_head_dim(void **state)
{
    (void)state;
    struct kvl_err err = { 0 };
    struct kvl_buf file = model(&(struct gw_llama){ 0 });
    rename_text(&file, "llama.attention.key_length");
    assert_int_equal(load(&file, &err), KVL_OK);
    uint32_t heads = 6;
    set_key(&file, "llama.attention.head_count", &heads, 4);
    expect_refused(&file, "head_count", "want a divisor of embedding_length 64");
}

static void more_experts(struct gw *w)
{
    gw_u32(w, "llama.expert_count", 8);
}
static void more_split(struct gw *w)
{
    gw_u32(w, "split.count", 3);
}
static void more_rope_type(struct gw *w)
{
    gw_str(w, "llama.rope.scaling.type", "spiral");
}
static void more_factor_0(struct gw *w)
{
    gw_f32(w, "llama.rope.scaling.factor", 0.0f);
}
static void more_old_factor_nan(struct gw *w)
{
    gw_f32(w, "llama.rope.scale_linear", NAN);
}
static void more_scale(struct gw *w)
{
    gw_f32(w, "llama.attention.scale", -0.5f);
}
static void more_not_causal(struct gw *w)
{
    gw_bool(w, "llama.attention.causal", false);
}
static void more_norm(struct gw *w)
{
    const int64_t n = 64;
    static const float zero[64];
    gw_tensor(w, "blk.0.attn_q_norm.weight", 0, 1, &n, zero, sizeof zero);
}

static void test_unsupported(void **state)
{
    (void)state;
    static const struct {
        void (*more)(struct gw *w);
        const char *why;
    } row[] = {
        { more_experts, "\"llama.expert_used_count\" is missing" },
        { more_split, "split.count" },
        { more_rope_type, "is \"spiral\", want \"none\", \"linear\", \"yarn\"" },
        { more_factor_0, "rope.scaling.factor\" is 0" },
        { more_old_factor_nan, "rope.scale_linear\" is nan" },
        { more_scale, "attention.scale\" is -0.5, want above 0" },
        { more_not_causal, "attention.causal\" is false, only true" },
        { more_norm, "\"blk.0.attn_q_norm.weight\" is not part of" },
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct kvl_buf file = model(&(struct gw_llama){ .more = row[i].more });
        expect_refused(&file, row[i].why, row[i].why);
    }
    struct kvl_buf file = model(&(struct gw_llama){ 0 });
    memcpy(file.data + find_text(&file, "llama") - 5, "opera", 5);
    expect_refused(&file, "architecture", "\"opera\" is not supported, want one of: llama, qwen2");
}

/* What a key says of the computation, and the value at which it says nothing. */
static const struct factor {
    const char *key;
    float nothing, something;
} factors[] = {
    { "llama.logit_scale", 1, 16 },
    { "llama.embedding_scale", 1, 12 },
    { "llama.residual_scale", 1, 0.22f },
    { "llama.attn_logit_softcapping", 0, 50 },
    { "llama.final_logit_softcapping", 0, 30 },
    { "llama.attention.clamp_kqv", 0, 8 },
    { "llama.attention.max_alibi_bias", 0, 8 },
};
static const struct factor *factor;
static float factor_value;

static void more_factor(struct gw *w)
{
    gw_f32(w, factor->key, factor_value);
}
static void more_parallel(struct gw *w)
{
    gw_bool(w, "llama.use_parallel_residual", factor_value > 0);
}
static void more_usual_scale(struct gw *w)
{
    gw_f32(w, "llama.attention.scale", factor_value);
}

static void expect_loads(void (*more)(struct gw *w), float value, const char *what)
{
    struct kvl_err err = { 0 };
    factor_value = value;
    struct kvl_buf file = model(&(struct gw_llama){ .more = more });
    if (load(&file, &err) != KVL_OK) fail_msg("%s = %g: %s", what, (double)value, err.msg);
    kvl_buf_free(&file);
}

static void expect_refuses(void (*more)(struct gw *w), float value, const char *why)
{
    factor_value = value;
    struct kvl_buf file = model(&(struct gw_llama){ .more = more });
    expect_refused(&file, why, why);
}

/* These were read by nobody, and the model answered as if they were not there. */
static void test_factors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        char why[96];
        factor = &factors[i];
        expect_loads(more_factor, factor->nothing, factor->key);
        snprintf(why, sizeof why, "key \"%s\" is %g, ", factor->key, (double)factor->something);
        expect_refuses(more_factor, factor->something, why);
        expect_refuses(more_factor, NAN, "is nan");
    }
    expect_loads(more_parallel, 0, "use_parallel_residual");
    expect_refuses(more_parallel, 1, "key \"llama.use_parallel_residual\" is true, only false");
    expect_loads(more_usual_scale, 0.25f, "attention.scale");
}

/* Right bytes, wrong shape: rows and columns exchanged. */
static void test_exchanged_shape(void **state)
{
    (void)state;
    struct kvl_buf file = model(&(struct gw_llama){ 0 });
    const int64_t dims[2] = { 32, 64 };
    memcpy(file.data + find_text(&file, "blk.1.attn_k.weight") + 4, dims, sizeof dims);
    expect_refused(&file, "attn_k",
                   "\"blk.1.attn_k.weight\" has shape [32, 64, 1, 1], want [64, 32]");
}

static void test_rope_freqs(void **state)
{
    (void)state;
    static const float zero[8] = { 1, 1, 1, 0, 1, 1, 1, 1 };
    static const float nan[8] = { 1, 1, 1, 1, 1, 1, 1, NAN };
    static const float tiny[8] = { 1e-45f, 1, 1, 1, 1, 1, 1, 1 };
    struct kvl_err err = { 0 };
    struct kvl_buf file = model(&(struct gw_llama){ .rope_freqs = zero });
    expect_refused(&file, "zero", "element 3 is 0, want above 0");
    file = model(&(struct gw_llama){ .rope_freqs = nan });
    expect_refused(&file, "nan", "\"rope_freqs.weight\" element 7 is nan");
    file = model(&(struct gw_llama){ .rope_freqs = tiny });
    assert_int_equal(load(&file, &err), KVL_OK); /* 1e45 is a finite double */
    int64_t short_row = 7;
    memcpy(file.data + find_text(&file, "rope_freqs.weight") + 4, &short_row, 8);
    expect_refused(&file, "shape", "\"rope_freqs.weight\" has shape [7, 1, 1, 1], want [8, 1]");
}

/* A half, a bfloat or a block scale with all exponent bits set; in F32 the upper half word. */
static void test_not_finite(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        size_t skip; /* bytes to an element or scale that is not the first */
        uint16_t bits;
    } row[] = { { 0, 4 * 64 + 2, 0x7f80 }, { 1, 2 * 64, 0x7c00 }, { 1, 2 * 64, 0xfe00 },
                { 30, 2 * 64, 0xff81 },    { 8, 34 * 3, 0x7c00 }, { 2, 18 * 3, 0x7e01 } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct kvl_buf file = model(&(struct gw_llama){ .type = row[i].type });
        size_t at = data_of(&file, "blk.1.ffn_up.weight") + row[i].skip;
        memcpy(file.data + at, &row[i].bits, 2);
        expect_refused(&file, "not finite",
                       "\"blk.1.ffn_up.weight\" holds NaN or infinity in row 1");
    }
    struct kvl_buf file = model(&(struct gw_llama){ 0 });
    const float nan = NAN;
    memcpy(file.data + data_of(&file, "output_norm.weight") + 12, &nan, 4);
    expect_refused(&file, "norm", "\"output_norm.weight\" holds NaN");
}

/* The halves of every block, by the published layouts, in the last block of row 3. */
static void test_blocks_not_finite(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t at;
        uint16_t bits;
    } row[] = { { "Q4_0", 0, 0x7c00 },   { "Q4_1", 0, 0x7c00 },   { "Q4_1", 2, 0xfc00 },
                { "Q5_0", 0, 0x7e00 },   { "Q5_1", 0, 0x7c01 },   { "Q5_1", 2, 0x7c00 },
                { "Q8_0", 0, 0x7c00 },   { "Q2_K", 80, 0x7c00 },  { "Q2_K", 82, 0x7c00 },
                { "Q3_K", 108, 0x7c00 }, { "Q4_K", 0, 0x7c00 },   { "Q4_K", 2, 0x7c00 },
                { "Q5_K", 0, 0x7c00 },   { "Q5_K", 2, 0xfe01 },   { "Q6_K", 208, 0x7c00 },
                { "IQ4_NL", 0, 0x7c00 }, { "IQ4_XS", 0, 0x7c00 }, { "TQ1_0", 52, 0x7c00 },
                { "TQ2_0", 64, 0xfc00 }, { "MXFP4", 0, 0x12ff } };
    int32_t n;
    const struct kvl_wtype_row *t = kvl_wtype_rows(&n);
    for (int32_t i = 0; i < n; i++) {
        int32_t seen = 0;
        for (size_t k = 0; k < sizeof row / sizeof row[0]; k++) {
            if (strcmp(row[k].name, t[i].name) != 0) continue;
            struct kvl_buf file = model(
                &(struct gw_llama){ .type = (uint32_t)t[i].type, .n_embd = 256, .n_ff = 512 });
            size_t bytes = 256 / (size_t)t[i].block * t[i].block_bytes;
            char *at = file.data + data_of(&file, "blk.1.ffn_up.weight") + 4 * bytes;
            memcpy(at - t[i].block_bytes + row[k].at, &row[k].bits, 2);
            expect_refused(&file, t[i].name,
                           "\"blk.1.ffn_up.weight\" holds NaN or infinity in row 3");
            seen++;
        }
        if (!seen && t[i].block > 1) fail_msg("no row here for type %s", t[i].name);
    }
}

/* Types: norms must be F32, matrices of a type that kvlab computes with. */
static void test_tensor_types(void **state)
{
    (void)state;
    struct kvl_buf file = { 0 };
    struct gw w;
    static const uint16_t half[64];
    const struct gw_llama given = { 0 };
    struct gw_llama m = gw_llama_defaults(&given);
    const int64_t n = 64, matrix[2] = { 256, GW_VOCAB };
    gw_init(&w);
    gw_llama_keys(&w, &m);
    gw_random(&w, &m, "token_embd.weight", 0, 64, GW_VOCAB, 0, 1);
    gw_tensor(&w, "output_norm.weight", 1, 1, &n, half, sizeof half);
    gw_finish(&w, &file);
    expect_refused(&file, "norm", "\"output_norm.weight\" has type F16, want F32");
    gw_free(&w);

    static const uint8_t iq2[66 * GW_VOCAB];
    uint32_t width = 256;
    gw_init(&w);
    gw_llama_keys(&w, &m);
    gw_tensor(&w, "token_embd.weight", 16, 2, matrix, iq2, sizeof iq2);
    gw_finish(&w, &file);
    set_key(&file, "llama.embedding_length", &width, 4);
    expect_refused(&file, "IQ2",
                   "\"token_embd.weight\" has type IQ2_XXS, want F32, F16, Q4_0, Q4_1,");
    gw_free(&w);
}

/* ---- damage -------------------------------------------------------------------------------- */

static const struct gw_llama small = {
    .n_layers = 1, .n_embd = 32, .n_heads = 2, .n_kv_heads = 1, .n_ff = 32, .type = 8
};

/* Every prefix of a file is refused, but that without the padding at its end. */
static void test_truncation(void **state)
{
    (void)state;
    struct kvl_buf file = model(&small), cut = { 0 };
    size_t last = data_of(&file, "blk.0.ffn_down.weight") + 32 * 34;
    for (size_t n = 0; n < file.len; n++) {
        cut = (struct kvl_buf){ .data = file.data, .len = n };
        int rc = load(&cut, NULL);
        if (rc != (n >= last ? KVL_OK : KVL_EMODEL)) fail_msg("%zu bytes: status %d", n, rc);
    }
    kvl_buf_free(&file);
}

/* One bit flipped anywhere: loads or is refused, nothing else. */
static void test_bit_flips(void **state)
{
    (void)state;
    struct kvl_buf file = model(&small);
    size_t head = data_of(&file, "token_embd.weight"), n_bits = head * 8;
    for (size_t i = 0; i < n_bits; i += n_bits / 20000 + 1) {
        file.data[i / 8] = (char)(file.data[i / 8] ^ 1 << i % 8);
        int rc = load(&file, NULL);
        if (rc != KVL_OK && rc != KVL_EMODEL) fail_msg("bit %zu: status %d", i, rc);
        file.data[i / 8] = (char)(file.data[i / 8] ^ 1 << i % 8);
    }
    kvl_buf_free(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_types_and_ties),
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_arrays_of_counts),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_key_types),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_default_head_dim),
        cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_exchanged_shape),
        cmocka_unit_test(test_rope_freqs),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_tensor_types),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_bit_flips),
        cmocka_unit_test(test_factors),
        cmocka_unit_test(test_blocks_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
