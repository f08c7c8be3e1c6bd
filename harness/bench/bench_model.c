/* Random models: the shapes of the published measurements, a vocabulary of bytes. */
#include "bench_model.h"

#include "bench_gguf.h"
#include "kvl/rng.h"
#include "kvl/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct bench_shape model_shapes[] = {
    { "tiny", 4, 256, 8, 2, 32, 704 },
    { "small64", 8, 1024, 16, 4, 64, 2816 },
    { "small128", 8, 1024, 16, 4, 128, 2816 },
    { "llama8b", 32, 4096, 32, 8, 128, 14336 },
};

int bench_shape_find(const char *name, const struct bench_shape **out, struct kvl_err *err)
{
    for (size_t i = 0; i < sizeof model_shapes / sizeof model_shapes[0]; i++)
        if (strcmp(model_shapes[i].name, name) == 0) {
            *out = &model_shapes[i];
            return KVL_OK;
        }
    return kvl_fail(err, KVL_EINVAL, "\"%s\" is no shape, want tiny, small64, small128 or llama8b",
                    name);
}

int bench_weights_parse(const char *text, enum kvl_wtype *out, struct kvl_err *err)
{
    static const struct {
        const char *name;
        enum kvl_wtype type;
    } row[] = {
        { "f16", KVL_W_F16 }, { "bf16", KVL_W_BF16 }, { "q8_0", KVL_W_Q8_0 }, { "q4_0", KVL_W_Q4_0 }
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (!text || strcmp(row[i].name, text) == 0) {
            *out = row[i].type;
            return KVL_OK;
        }
    return kvl_fail(err, KVL_EINVAL, "--weights: \"%s\": want f16, bf16, q8_0 or q4_0", text);
}

double bench_model_params(const struct bench_shape *s, const struct kvl_model *model)
{
    if (!s) return (double)kvl_model_token_bytes(model) / 2;
    double d = s->n_embd, q = (double)s->n_heads * s->head_dim,
           kv = (double)s->n_kv_heads * s->head_dim;
    return s->n_layers * (2 * d * q + 2 * d * kv + 3 * d * s->n_ff) + d * BENCH_VOCAB;
}

/* ---- keys ---------------------------------------------------------------------------------------- */

static void model_keys(struct bench_gguf *g, const struct bench_shape *s, enum kvl_wtype type)
{
    char name[64];
    const struct {
        const char *key;
        int32_t value;
    } row[] = {
        { "llama.block_count", s->n_layers },
        { "llama.context_length", BENCH_CONTEXT },
        { "llama.embedding_length", s->n_embd },
        { "llama.feed_forward_length", s->n_ff },
        { "llama.attention.head_count", s->n_heads },
        { "llama.attention.head_count_kv", s->n_kv_heads },
        { "llama.attention.key_length", s->head_dim },
        { "llama.attention.value_length", s->head_dim },
        { "llama.rope.dimension_count", s->head_dim },
        { "llama.vocab_size", BENCH_VOCAB },
        { "general.quantization_version", 2 },
        /* llama.cpp's number of "mostly this type" */
        { "general.file_type", type == KVL_W_F16    ? 1
                               : type == KVL_W_BF16 ? 32
                               : type == KVL_W_Q4_0 ? 2
                                                    : 7 },
    };
    snprintf(name, sizeof name, "kvlab bench %s", s->name);
    bench_gguf_str(g, "general.architecture", "llama");
    bench_gguf_str(g, "general.name", name);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        bench_gguf_u32(g, row[i].key, (uint32_t)row[i].value);
    bench_gguf_f32(g, "llama.rope.freq_base", 500000.0f);
    bench_gguf_f32(g, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

/* ---- vocabulary ---------------------------------------------------------------------------------- */

enum {
    VOCAB_CONTROL = 3,                        /* <pad> <bos> <eos> */
    VOCAB_PAIRS = VOCAB_CONTROL + 256,        /* then the bytes, then pairs of letters */
    VOCAB_MERGES = BENCH_VOCAB - VOCAB_PAIRS, /* aa, ab, ... */
};

/* The character that stands for a byte in GPT-2 vocabularies: itself where it can be seen, else one
 * from 256 on; as UTF-8. */
static void vocab_byte(uint32_t byte, char out[8])
{
    uint32_t c = byte, spare = 256;
    for (uint32_t b = 0; b <= byte; b++) {
        bool seen = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte && !seen) c = spare;
        spare += !seen;
    }
    out[kvl_utf8_put(c, out)] = '\0';
}

static void model_vocab(struct bench_gguf *g)
{
    char text[BENCH_VOCAB][8] = { "<pad>", "<bos>", "<eos>" }, merge[VOCAB_MERGES][8];
    const char *token[BENCH_VOCAB], *merges[VOCAB_MERGES];
    int32_t type[BENCH_VOCAB];
    for (int32_t i = 0; i < BENCH_VOCAB; i++) {
        if (i >= VOCAB_PAIRS) {
            int32_t pair = i - VOCAB_PAIRS;
            char a = (char)('a' + pair / 26), b = (char)('a' + pair % 26);
            snprintf(text[i], sizeof text[i], "%c%c", a, b);
            snprintf(merge[pair], sizeof merge[pair], "%c %c", a, b);
            merges[pair] = merge[pair];
        } else if (i >= VOCAB_CONTROL) {
            vocab_byte((uint32_t)(i - VOCAB_CONTROL), text[i]);
        }
        token[i] = text[i];
        type[i] = i < VOCAB_CONTROL ? 3 : 1; /* control, normal */
    }
    bench_gguf_str(g, "tokenizer.ggml.model", "gpt2");
    bench_gguf_str(g, "tokenizer.ggml.pre", "gpt-2");
    bench_gguf_strs(g, "tokenizer.ggml.tokens", token, BENCH_VOCAB);
    bench_gguf_i32s(g, "tokenizer.ggml.token_type", type, BENCH_VOCAB);
    bench_gguf_strs(g, "tokenizer.ggml.merges", merges, VOCAB_MERGES);
    bench_gguf_u32(g, "tokenizer.ggml.padding_token_id", 0);
    bench_gguf_u32(g, "tokenizer.ggml.bos_token_id", 1);
    bench_gguf_u32(g, "tokenizer.ggml.eos_token_id", 2);
    bench_gguf_bool(g, "tokenizer.ggml.add_bos_token", true);
    bench_gguf_bool(g, "tokenizer.ggml.add_eos_token", false);
    bench_gguf_bool(g, "tokenizer.ggml.add_space_prefix", false);
}

/* ---- tensors ------------------------------------------------------------------------------------- */

/* Calls back for every tensor in the order of the file: once for the table, once for the rows. */
struct walk {
    struct bench_gguf *g;
    void (*tensor)(struct walk *w, const char *name, enum kvl_wtype type, int32_t n_rows,
                   int32_t n_cols);
    float *row; /* [widest] */
};

static void walk_layer(struct walk *w, const struct bench_shape *s, enum kvl_wtype type,
                       int32_t layer)
{
    int32_t d = s->n_embd, q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    const struct {
        const char *name;
        int32_t n_rows, n_cols;
    } row[] = { { "attn_norm", 1, d },      { "attn_q", q, d },       { "attn_k", kv, d },
                { "attn_v", kv, d },        { "attn_output", d, q },  { "ffn_norm", 1, d },
                { "ffn_gate", s->n_ff, d }, { "ffn_up", s->n_ff, d }, { "ffn_down", d, s->n_ff } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, row[i].name);
        w->tensor(w, name, row[i].n_rows == 1 ? KVL_W_F32 : type, row[i].n_rows, row[i].n_cols);
    }
}

static void walk_all(struct walk *w, const struct bench_shape *s, enum kvl_wtype type)
{
    w->tensor(w, "token_embd.weight", type, BENCH_VOCAB, s->n_embd);
    w->tensor(w, "output_norm.weight", KVL_W_F32, 1, s->n_embd);
    w->tensor(w, "output.weight", type, BENCH_VOCAB, s->n_embd);
    for (int32_t i = 0; i < s->n_layers; i++) walk_layer(w, s, type, i);
}

static void tensor_declare(struct walk *w, const char *name, enum kvl_wtype type, int32_t n_rows,
                           int32_t n_cols)
{
    bench_gguf_tensor(w->g, name, type, n_rows, n_cols);
}

/* Uniform numbers of width sqrt(3 / columns) keep the variance of what they are multiplied with, so
 * that activations stay finite through any number of layers; norms are ones. */
static void tensor_write(struct walk *w, const char *name, enum kvl_wtype type, int32_t n_rows,
                         int32_t n_cols)
{
    uint64_t seed = kvl_seed_str(1, name), at = 0;
    float scale = strcmp(name, "token_embd.weight") == 0 ? 1.0f : sqrtf(3.0f / (float)n_cols);
    for (int32_t r = 0; r < n_rows && w->g->rc == KVL_OK; r++) {
        for (int32_t c = 0; c < n_cols; c++) {
            float u = (float)(kvl_seed_mix(seed, at++) >> 40) * 0x1p-23f - 1.0f;
            w->row[c] = n_rows == 1 ? 1.0f : u * scale;
        }
        bench_gguf_row(w->g, type, w->row, n_cols);
    }
    bench_gguf_pad(w->g);
}

static int model_write(const struct bench_shape *shape, enum kvl_wtype type, FILE *file)
{
    struct bench_gguf g = { 0 };
    int32_t widest = KVL_MAX(shape->n_ff, shape->n_heads * shape->head_dim);
    struct walk w = { .g = &g, .tensor = tensor_declare };
    w.row = kvl_alloc((size_t)KVL_MAX(widest, shape->n_embd), sizeof *w.row);
    if (!w.row) return KVL_ENOMEM;
    model_keys(&g, shape, type);
    model_vocab(&g);
    walk_all(&w, shape, type);
    bench_gguf_begin(&g, file);
    w.tensor = tensor_write;
    walk_all(&w, shape, type);
    kvl_free(w.row);
    return bench_gguf_end(&g);
}

int bench_model_write(const struct bench_shape *shape, enum kvl_wtype type, const char *path,
                      struct kvl_err *err)
{
    FILE *file = fopen(path, "wb");
    if (!file) return kvl_fail(err, KVL_EIO, "%s: cannot create: %s", path, strerror(errno));
    int rc = model_write(shape, type, file);
    if (fclose(file) != 0 && rc == KVL_OK) rc = KVL_EIO;
    if (rc == KVL_OK) return KVL_OK;
    const char *why = rc == KVL_EIO ? strerror(errno) : kvl_status_name(rc);
    unlink(path);
    return kvl_fail(err, rc, "%s: cannot write the model: %s", path, why);
}

int bench_model_temp(const struct bench_shape *shape, enum kvl_wtype type, char **path,
                     struct kvl_err *err)
{
    const char *folder = getenv("TMPDIR");
    struct kvl_buf name = { 0 };
    if (kvl_buf_printf(&name, "%s/kvlab-bench-XXXXXX", folder ? folder : "/tmp") != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "out of memory");
    int fd = mkstemp(name.data), rc = KVL_OK;
    if (fd < 0)
        rc = kvl_fail(err, KVL_EIO, "%s: cannot create: %s", name.data, strerror(errno));
    else
        close(fd);
    if (rc == KVL_OK) rc = bench_model_write(shape, type, name.data, err);
    if (rc == KVL_OK && !(*path = strdup(name.data)))
        rc = kvl_fail(err, KVL_ENOMEM, "out of memory");
    if (rc != KVL_OK && fd >= 0) unlink(name.data);
    kvl_buf_free(&name);
    return rc;
}
