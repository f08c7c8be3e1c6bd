/* gguf_writer.h - makes GGUF files for tests: sound ones, and ones with a chosen defect.
 *
 *   struct gw w;
 *   gw_init(&w);
 *   gw_str(&w, "general.architecture", "llama");
 *   gw_tensor(&w, "x.weight", 0, 1, (int64_t[]){ 32 }, data, 128);
 *   gw_finish(&w, &file);          the bytes of the file
 *   gw_free(&w);
 *
 * Defects: set a field of `struct gw` before gw_finish (version, n_keys, ...), give gw_tensor_raw an
 * offset or shape of your own, or append bytes with gw_raw.  gw_llama writes a small random Llama
 * model that loads and runs.  Out of memory aborts: these are tests.
 */
#ifndef KVL_TESTS_GGUF_WRITER_H
#define KVL_TESTS_GGUF_WRITER_H

#include "kvl/base.h"
#include "kvl/ops.h"
#include "kvl/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gw {
    struct kvl_buf keys, infos, data; /* the three parts of the file */
    char magic[4];
    uint32_t version;
    uint64_t n_keys, n_tensors;
    uint32_t alignment; /* of the data; gw_u32 "general.alignment" says so in the file */
    bool no_tail;       /* leave out the padding after the last tensor */
};

static inline void gw_check(bool ok)
{
    if (!ok) abort();
}

static inline void gw_raw(struct kvl_buf *b, const void *data, size_t len)
{
    gw_check(kvl_buf_add(b, data, len) == KVL_OK);
}

static inline void gw_raw_u32(struct kvl_buf *b, uint32_t v)
{
    gw_raw(b, &v, sizeof v);
}

static inline void gw_raw_u64(struct kvl_buf *b, uint64_t v)
{
    gw_raw(b, &v, sizeof v);
}

static inline void gw_raw_str(struct kvl_buf *b, const char *s, size_t len)
{
    gw_raw_u64(b, len);
    gw_raw(b, s, len);
}

static inline void gw_init(struct gw *w)
{
    *w = (struct gw){ .magic = { 'G', 'G', 'U', 'F' }, .version = 3, .alignment = 32 };
}

static inline void gw_free(struct gw *w)
{
    kvl_buf_free(&w->keys);
    kvl_buf_free(&w->infos);
    kvl_buf_free(&w->data);
}

/* ---- keys: `type` numbers are those of GGUF (4 u32, 5 i32, 6 f32, 7 bool, 8 str, 9 arr, ...) -- */

static inline void gw_scalar(struct gw *w, const char *key, uint32_t type, const void *v, size_t n)
{
    gw_raw_str(&w->keys, key, strlen(key));
    gw_raw_u32(&w->keys, type);
    gw_raw(&w->keys, v, n);
    w->n_keys++;
}

static inline void gw_u32(struct gw *w, const char *key, uint32_t v)
{
    gw_scalar(w, key, 4, &v, sizeof v);
}

static inline void gw_f32(struct gw *w, const char *key, float v)
{
    gw_scalar(w, key, 6, &v, sizeof v);
}

static inline void gw_bool(struct gw *w, const char *key, bool v)
{
    uint8_t byte = v;
    gw_scalar(w, key, 7, &byte, sizeof byte);
}

static inline void gw_str(struct gw *w, const char *key, const char *v)
{
    uint64_t len = strlen(v);
    gw_scalar(w, key, 8, &len, sizeof len);
    gw_raw(&w->keys, v, len);
}

/* An array of n scalars of `bytes` in all. */
static inline void gw_arr(struct gw *w, const char *key, uint32_t elem, uint64_t n,
                          const void *data, size_t bytes)
{
    gw_scalar(w, key, 9, &elem, sizeof elem);
    gw_raw_u64(&w->keys, n);
    gw_raw(&w->keys, data, bytes);
}

static inline void gw_arr_str(struct gw *w, const char *key, uint64_t n, const char *const *s)
{
    uint32_t elem = 8;
    gw_scalar(w, key, 9, &elem, sizeof elem);
    gw_raw_u64(&w->keys, n);
    for (uint64_t i = 0; i < n; i++) gw_raw_str(&w->keys, s[i], strlen(s[i]));
}

/* ---- tensors ------------------------------------------------------------------------------- */

/* An entry of the table as given, sound or not. */
static inline void gw_tensor_raw(struct gw *w, const char *name, size_t name_len, uint32_t type,
                                 uint32_t n_dims, const int64_t *dims, uint64_t offset)
{
    gw_raw_str(&w->infos, name, name_len);
    gw_raw_u32(&w->infos, n_dims);
    gw_raw(&w->infos, dims, n_dims * sizeof *dims);
    gw_raw_u32(&w->infos, type);
    gw_raw_u64(&w->infos, offset);
    w->n_tensors++;
}

static inline void gw_pad(struct kvl_buf *b, size_t alignment)
{
    while (b->len % alignment) gw_raw(b, "", 1);
}

/* An entry and its data, at the next aligned offset. */
static inline void gw_tensor(struct gw *w, const char *name, uint32_t type, uint32_t n_dims,
                             const int64_t *dims, const void *data, size_t bytes)
{
    gw_pad(&w->data, w->alignment);
    gw_tensor_raw(w, name, strlen(name), type, n_dims, dims, w->data.len);
    gw_raw(&w->data, data, bytes);
}

/* ---- the file ------------------------------------------------------------------------------ */

/* Appends the bytes of the file to `out`; the writer stays as it is. */
static inline void gw_finish(const struct gw *w, struct kvl_buf *out)
{
    gw_raw(out, w->magic, 4);
    gw_raw_u32(out, w->version);
    gw_raw_u64(out, w->n_tensors);
    gw_raw_u64(out, w->n_keys);
    gw_raw(out, w->keys.data, w->keys.len);
    gw_raw(out, w->infos.data, w->infos.len);
    if (w->data.len == 0) return;
    gw_pad(out, w->alignment);
    gw_raw(out, w->data.data, w->data.len);
    if (!w->no_tail) gw_pad(out, w->alignment);
}

/* The file's bytes in a block of exactly their size (kvl_free), so that ASan sees an over-read. */
static inline void *gw_exact(const struct kvl_buf *file)
{
    void *p = NULL;
    gw_check(posix_memalign(&p, 64, file->len ? file->len : 1) == 0);
    if (file->len) memcpy(p, file->data, file->len);
    return p;
}

static inline bool gw_save(const struct kvl_buf *file, const char *path)
{
    FILE *f = fopen(path, "wb");
    if (!f) return false;
    bool ok = fwrite(file->data, 1, file->len, f) == file->len;
    return fclose(f) == 0 && ok;
}

/* ---- numbers ------------------------------------------------------------------------------- */

/* Round to nearest even; finite input within the range of a half. */
static inline uint16_t gw_half(float f)
{
    uint32_t sign = signbit(f) ? 0x8000u : 0u;
    double a = fabs((double)f);
    if (a < 0x1p-14) return (uint16_t)(sign | (uint32_t)nearbyint(a * 0x1p24));
    int e;
    (void)frexp(a, &e);                                 /* a = m * 2^e, m in [0.5, 1) */
    uint32_t m = (uint32_t)nearbyint(ldexp(a, 11 - e)); /* 1024 .. 2048 */
    return (uint16_t)(sign | (((uint32_t)(e + 13) << 10) + m));
}

static inline uint16_t gw_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* 32 values as one block of Q8_0 (type 8, 34 bytes) or Q4_0 (type 2, 18 bytes). */
static inline void gw_block(struct kvl_buf *out, uint32_t type, const float *x)
{
    float top = 0;
    uint8_t q[32];
    for (int j = 0; j < 32; j++) top = fmaxf(top, fabsf(x[j]));
    float d = top / (type == 8 ? 127.0f : 7.0f);
    uint16_t half = gw_half(d);
    for (int j = 0; j < 32; j++) {
        int v = d > 0 ? (int)lrintf(x[j] / d) : 0;
        q[j] = (uint8_t)(type == 8 ? v : v + 8);
    }
    gw_raw(out, &half, sizeof half);
    if (type == 8) {
        gw_raw(out, q, sizeof q);
        return;
    }
    for (int j = 0; j < 16; j++) q[j] = (uint8_t)(q[j] | q[j + 16] << 4);
    gw_raw(out, q, 16);
}

/* The second half of a block that has two, in scales, such that random elements are about zero in the mean.  (Of types
 * with one that is what gw_byte sees to.) */
static inline float gw_middle(uint32_t type)
{
    static const float middle[] = {
        [3] = -7.5f, [7] = -15.5f, [10] = 1.5f, [12] = 7.5f, [13] = 15.5f
    };
    return type < sizeof middle / sizeof *middle ? middle[type] : 0;
}

/* The largest element of a random block whose scale is 1, about: every type has one.  (That of MXFP4 is not used.) */
static inline float gw_largest(uint32_t type)
{
    static const float largest[] = {
        [3] = 7.5f,  [6] = 16,   [7] = 15.5f, [10] = 22.5f, [11] = 128, [12] = 472, [13] = 976,
        [14] = 4096, [20] = 127, [23] = 4064, [34] = 1,     [35] = 1,   [39] = 256
    };
    float x = type < sizeof largest / sizeof *largest ? largest[type] : 0;
    if (!(x > 0)) fprintf(stderr, "gguf_writer.h: gw_largest has no type %u\n", (unsigned)type);
    gw_check(x > 0);
    return x;
}

/* A byte of a random block whose elements are about zero in the mean. */
static inline uint8_t gw_byte(const struct kvl_wtype_row *t, uint64_t random)
{
    uint8_t byte = (uint8_t)random;
    if (t->type == KVL_W_TQ2_0)
        byte = (uint8_t)(byte & ~((byte & 0x55) << 1)); /* 3 becomes 1, its zero */
    return byte;
}

/* n elements (whole blocks) of any other type: bytes that x chooses, and scales with which none is above 1/4, about:
 * weights as a model has them. */
static inline void gw_blocks(struct kvl_buf *out, const struct kvl_wtype_row *t, const float *x,
                             size_t n)
{
    for (size_t i = 0; i < n; i += (size_t)t->block) {
        uint8_t block[512];
        float size = 0.25f / gw_largest((uint32_t)t->type);
        uint16_t scale = gw_half(size), least = gw_half(size * gw_middle((uint32_t)t->type));
        gw_check(t->block_bytes <= sizeof block);
        for (size_t b = 0; b < t->block_bytes; b++)
            block[b] = gw_byte(t, kvl_seed_str(b, "gw") ^ (uint64_t)(1e4f * fabsf(x[i + b % 32])));
        if (t->word[1] != t->word[0]) memcpy(block + t->word[1], &least, 2);
        memcpy(block + t->word[0], &scale, 2);
        if (t->exponent == 0x00ff)
            block[t->word[0]] = 122; /* a power of two: 2^-6, of values up to 12 */
        gw_raw(out, block, t->block_bytes);
    }
}

/* n floats in the form of `type`, a number of GGUF, by rounding: 0 F32, 1 F16, 30 BF16, 8 Q8_0, 2 Q4_0; as random
 * blocks: every other of wtypes.def. */
static inline void gw_encode(struct kvl_buf *out, uint32_t type, const float *x, size_t n)
{
    if (type == 0) gw_raw(out, x, n * sizeof *x);
    if (type == 8 || type == 2)
        for (size_t i = 0; i < n; i += 32) gw_block(out, type, x + i);
    const struct kvl_wtype_row *t = kvl_wtype_find(type);
    if (type != 8 && type != 2 && t && t->block > 1) gw_blocks(out, t, x, n);
    if (type != 1 && type != 30) return;
    for (size_t i = 0; i < n; i++) {
        uint16_t h = type == 1 ? gw_half(x[i]) : gw_bf16(x[i]);
        gw_raw(out, &h, sizeof h);
    }
}

/* ---- a model ------------------------------------------------------------------------------- */

/* Zero fields take the value in brackets. */
struct gw_llama {
    const char *arch;    /* general.architecture [llama]; one of gw_archs */
    float bias;          /* amplitude of biases, where it has some */
    uint32_t n_experts;  /* [4 where it must have some], of which a token takes two */
    uint32_t n_layers;   /* [2] */
    uint32_t n_embd;     /* [64] */
    uint32_t n_heads;    /* [4] */
    uint32_t n_kv_heads; /* [2] */
    uint32_t head_dim;   /* [n_embd / n_heads] */
    uint32_t n_rot;      /* [what is usual for the architecture] */
    uint32_t n_ff;       /* [96] */
    uint32_t n_ctx;      /* [4096] */
    uint32_t window; /* attention.sliding_window [16 of architectures with one, else no such key] */
    float freq_base; /* [10000] */
    float eps;       /* [1e-5] */
    uint32_t type;   /* of the matrices: F32 [0], or any that gw_encode knows */
    bool tied;       /* no output.weight */
    const float *rope_freqs; /* [head_dim / 2] or NULL: no such tensor */
    uint64_t seed;
    const uint8_t *local; /* [n_layers] 1: a layer has the window; NULL: no such key */
    /* NULL, or makes floats of a matrix: the file has these in its place. */
    void (*widen)(const struct kvl_weight *w, float *y);
    void (*more)(struct gw *w); /* NULL, or adds keys and tensors of its own */
};

/* What a random model has that a Llama has not. */
struct gw_arch {
    const char *name;
    bool qkv_bias, all_bias; /* of q, k, v; of all matrices */
    bool qk_norm, qkv_fused, up_fused, no_gate, layer_norm, post_norms, experts, sinks, windows;
    bool positions;       /* learned; nothing turns */
    uint32_t rot_part;    /* one in so many elements of a head turns; 0 = all */
    bool long_factors;    /* RoPE's factors for short and long contexts */
    const char *ffn_norm; /* its name if it is another */
};

static const struct gw_arch gw_archs[] = {
    { .name = "llama" },
    { .name = "qwen2", .qkv_bias = true },
    { .name = "qwen3", .qk_norm = true },
    { .name = "qwen3moe", .qk_norm = true, .experts = true },
    { .name = "internlm2" },
    { .name = "smollm3" },
    { .name = "phi3", .qkv_fused = true, .up_fused = true, .rot_part = 2, .long_factors = true },
    { .name = "chatglm", .qkv_fused = true, .qkv_bias = true, .up_fused = true, .rot_part = 2 },
    { .name = "glm4", .up_fused = true, .post_norms = true, .rot_part = 2 },
    { .name = "gemma2", .post_norms = true, .windows = true },
    { .name = "gemma3", .post_norms = true, .qk_norm = true, .windows = true },
    { .name = "gptneox",
      .qkv_fused = true,
      .qkv_bias = true,
      .all_bias = true,
      .no_gate = true,
      .layer_norm = true,
      .rot_part = 4 },
    { .name = "opt",
      .qkv_bias = true,
      .all_bias = true,
      .no_gate = true,
      .layer_norm = true,
      .positions = true },
    { .name = "gpt-oss",
      .qkv_bias = true,
      .all_bias = true,
      .experts = true,
      .sinks = true,
      .windows = true,
      .ffn_norm = "post_attention_norm" },
};

enum { GW_ARCHS = sizeof gw_archs / sizeof *gw_archs };

/* An architecture without a row is a Llama of another name. */
static inline const struct gw_arch *gw_arch_of(const struct gw_llama *m)
{
    for (int i = 0; i < GW_ARCHS; i++)
        if (strcmp(gw_archs[i].name, m->arch) == 0) return &gw_archs[i];
    return &gw_archs[0];
}

enum { GW_VOCAB = 259, GW_PAD = 0, GW_BOS = 1, GW_EOS = 2, GW_BYTE0 = 3 };

static inline size_t gw_utf8(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

/* The visible character that stands for a byte in GPT-2 vocabularies. */
static inline uint32_t gw_byte_char(uint32_t byte)
{
    uint32_t spare = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool keep = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte) return keep ? b : spare;
        if (!keep) spare++;
    }
    return 0;
}

/* <pad> <bos> <eos>, then the 256 bytes: token GW_BYTE0 + b is byte b.  No merges. */
static inline void gw_byte_vocab(struct gw *w)
{
    char text[GW_VOCAB][8] = { "<pad>", "<bos>", "<eos>" };
    const char *token[GW_VOCAB];
    int32_t type[GW_VOCAB];
    for (uint32_t i = 0; i < GW_VOCAB; i++) {
        if (i >= GW_BYTE0) gw_utf8(gw_byte_char(i - GW_BYTE0), text[i]);
        token[i] = text[i];
        type[i] = i < GW_BYTE0 ? 3 : 1;
    }
    gw_str(w, "tokenizer.ggml.model", "gpt2");
    gw_str(w, "tokenizer.ggml.pre", "gpt-2");
    gw_arr_str(w, "tokenizer.ggml.tokens", GW_VOCAB, token);
    gw_arr(w, "tokenizer.ggml.token_type", 5, GW_VOCAB, type, sizeof type);
    gw_arr_str(w, "tokenizer.ggml.merges", 0, NULL);
    gw_u32(w, "tokenizer.ggml.bos_token_id", GW_BOS);
    gw_u32(w, "tokenizer.ggml.eos_token_id", GW_EOS);
    gw_u32(w, "tokenizer.ggml.padding_token_id", GW_PAD);
    gw_bool(w, "tokenizer.ggml.add_bos_token", true);
}

/* Matrices, one after the other, of uniform values in [-scale, scale] around `mean`, seeded by the tensor's name. */
static inline void gw_random_parts(struct gw *w, const struct gw_llama *m, const char *name,
                                   uint32_t type, uint32_t n_cols, uint32_t n_rows,
                                   uint32_t n_parts, float mean, float scale)
{
    size_t n = (size_t)n_cols * n_rows * n_parts;
    struct kvl_buf bytes = { 0 };
    struct kvl_rng rng;
    float *x = kvl_alloc(n, sizeof *x);
    gw_check(x != NULL);
    kvl_rng_seed(&rng, kvl_seed_str(m->seed, name));
    for (size_t i = 0; i < n; i++) x[i] = mean + scale * (float)(2 * kvl_rng_f64(&rng) - 1);
    gw_encode(&bytes, type, x, n);
    if (m->widen && n_rows > 1) {
        const struct kvl_weight at = { bytes.data, (enum kvl_wtype)type,
                                       (int32_t)(n_rows * n_parts), (int32_t)n_cols,
                                       bytes.len / n_rows / n_parts };
        m->widen(&at, x);
        kvl_buf_free(&bytes);
        type = 0;
        gw_encode(&bytes, type, x, n);
    }
    int64_t dims[3] = { n_cols, n_rows, n_parts };
    uint32_t n_dims = n_parts > 1 ? 3 : n_rows > 1 ? 2 : 1;
    gw_tensor(w, name, type, n_dims, dims, bytes.data, bytes.len);
    kvl_buf_free(&bytes);
    kvl_free(x);
}

static inline void gw_random(struct gw *w, const struct gw_llama *m, const char *name,
                             uint32_t type, uint32_t n_cols, uint32_t n_rows, float mean,
                             float scale)
{
    gw_random_parts(w, m, name, type, n_cols, n_rows, 1, mean, scale);
}

static inline struct gw_llama gw_llama_defaults(const struct gw_llama *given)
{
    struct gw_llama m = *given;
    if (!m.arch) m.arch = "llama";
    if (!m.n_layers) m.n_layers = 2;
    if (!m.n_embd) m.n_embd = 64;
    if (!m.n_heads) m.n_heads = 4;
    if (!m.n_kv_heads) m.n_kv_heads = 2;
    if (!m.head_dim) m.head_dim = m.n_embd / m.n_heads;
    if (!m.n_ff) m.n_ff = 96;
    if (!m.n_ctx) m.n_ctx = 4096;
    const struct gw_arch *a = gw_arch_of(&m);
    if (!m.n_rot) m.n_rot = m.head_dim / (a->rot_part ? a->rot_part : 1);
    if (!m.n_experts && a->experts) m.n_experts = 4;
    if (!m.window && a->windows) m.window = 16;
    if (!(m.freq_base > 0)) m.freq_base = 10000.0f;
    if (!(m.eps > 0)) m.eps = 1e-5f;
    return m;
}

/* "<architecture>.<tail>" in `key`, of which there is one. */
static inline const char *gw_arch_key(const struct gw_llama *m, const char *tail, char key[96])
{
    snprintf(key, 96, "%s.%s", m->arch, tail);
    return key;
}

static inline void gw_arch_keys(struct gw *w, const struct gw_llama *m)
{
    char key[96];
    const struct gw_arch *a = gw_arch_of(m);
    if (m->n_experts) gw_u32(w, gw_arch_key(m, "expert_count", key), m->n_experts);
    if (m->n_experts) gw_u32(w, gw_arch_key(m, "expert_used_count", key), 2);
    if (m->window) gw_u32(w, gw_arch_key(m, "attention.sliding_window", key), m->window);
    if (a->long_factors) {
        gw_u32(w, gw_arch_key(m, "rope.scaling.original_context_length", key), 512);
        gw_f32(w, gw_arch_key(m, "rope.scaling.attn_factor", key), 1.125f);
    }
    if (strcmp(a->name, "gptneox") == 0)
        gw_bool(w, gw_arch_key(m, "use_parallel_residual", key), true);
}

static inline void gw_llama_keys(struct gw *w, const struct gw_llama *m)
{
    char key[96];
    gw_str(w, "general.architecture", m->arch);
    gw_u32(w, "general.quantization_version", 2);
    gw_u32(w, gw_arch_key(m, "block_count", key), m->n_layers);
    gw_u32(w, gw_arch_key(m, "context_length", key), m->n_ctx);
    gw_u32(w, gw_arch_key(m, "embedding_length", key), m->n_embd);
    gw_u32(w, gw_arch_key(m, "feed_forward_length", key), m->n_ff);
    gw_u32(w, gw_arch_key(m, "attention.head_count", key), m->n_heads);
    gw_u32(w, gw_arch_key(m, "attention.head_count_kv", key), m->n_kv_heads);
    gw_u32(w, gw_arch_key(m, "attention.key_length", key), m->head_dim);
    gw_u32(w, gw_arch_key(m, "attention.value_length", key), m->head_dim);
    if (!gw_arch_of(m)->positions) {
        gw_u32(w, gw_arch_key(m, "rope.dimension_count", key), m->n_rot);
        gw_f32(w, gw_arch_key(m, "rope.freq_base", key), m->freq_base);
    }
    bool ln = gw_arch_of(m)->layer_norm;
    gw_f32(w,
           gw_arch_key(m, ln ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
                       key),
           m->eps);
    gw_u32(w, gw_arch_key(m, "vocab_size", key), GW_VOCAB);
    if (m->local)
        gw_arr(w, gw_arch_key(m, "attention.sliding_window_pattern", key), 7, m->n_layers, m->local,
               m->n_layers);
    gw_arch_keys(w, m);
}

/* A tensor of a layer: norms are near 1, biases of the given amplitude, matrices keep the variance of their
 * input (sqrt(3 / n)), so that attention is neither flat nor hard. */
static inline void gw_layer_tensor(struct gw *w, const struct gw_llama *m, uint32_t layer,
                                   const char *part, uint32_t n_cols, uint32_t n_rows)
{
    char name[96];
    bool bias = strstr(part, ".bias"), norm = !bias && strstr(part, "norm");
    bool vector = bias || norm || strstr(part, "sinks");
    float scale = norm ? 0.1f : bias ? m->bias : vector ? 1.0f : sqrtf(3.0f / (float)n_cols);
    snprintf(name, sizeof name, "blk.%u.%s", layer, part);
    gw_random(w, m, name, vector ? 0 : m->type, n_cols, n_rows, norm ? 1.0f : 0.0f, scale);
}

/* As many matrices, or biases, as there are experts. */
static inline void gw_expert_tensor(struct gw *w, const struct gw_llama *m, uint32_t layer,
                                    const char *part, uint32_t n_cols, uint32_t n_rows)
{
    char name[96];
    snprintf(name, sizeof name, "blk.%u.%s", layer, part);
    if (strstr(part, ".bias"))
        gw_random(w, m, name, 0, n_cols, m->n_experts, 0, m->bias);
    else
        gw_random_parts(w, m, name, m->type, n_cols, n_rows, m->n_experts, 0,
                        sqrtf(3.0f / (float)n_cols));
}

static inline void gw_layer_attention(struct gw *w, const struct gw_llama *m, uint32_t layer)
{
    const struct gw_arch *a = gw_arch_of(m);
    uint32_t q = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim, d = m->n_embd;
    gw_layer_tensor(w, m, layer, "attn_norm.weight", d, 1);
    if (a->layer_norm) gw_layer_tensor(w, m, layer, "attn_norm.bias", d, 1);
    if (a->qkv_fused) {
        gw_layer_tensor(w, m, layer, "attn_qkv.weight", d, q + 2 * kv);
        if (a->qkv_bias) gw_layer_tensor(w, m, layer, "attn_qkv.bias", q + 2 * kv, 1);
    } else {
        gw_layer_tensor(w, m, layer, "attn_q.weight", d, q);
        gw_layer_tensor(w, m, layer, "attn_k.weight", d, kv);
        gw_layer_tensor(w, m, layer, "attn_v.weight", d, kv);
        if (a->qkv_bias) gw_layer_tensor(w, m, layer, "attn_q.bias", q, 1);
        if (a->qkv_bias) gw_layer_tensor(w, m, layer, "attn_k.bias", kv, 1);
        if (a->qkv_bias) gw_layer_tensor(w, m, layer, "attn_v.bias", kv, 1);
    }
    if (a->qk_norm) gw_layer_tensor(w, m, layer, "attn_q_norm.weight", m->head_dim, 1);
    if (a->qk_norm) gw_layer_tensor(w, m, layer, "attn_k_norm.weight", m->head_dim, 1);
    if (a->sinks) gw_layer_tensor(w, m, layer, "attn_sinks.weight", m->n_heads, 1);
    gw_layer_tensor(w, m, layer, "attn_output.weight", q, d);
    if (a->all_bias) gw_layer_tensor(w, m, layer, "attn_output.bias", d, 1);
}

static inline void gw_layer_experts(struct gw *w, const struct gw_llama *m, uint32_t layer)
{
    uint32_t d = m->n_embd, ff = m->n_ff;
    gw_layer_tensor(w, m, layer, "ffn_gate_inp.weight", d, m->n_experts);
    gw_expert_tensor(w, m, layer, "ffn_gate_exps.weight", d, ff);
    gw_expert_tensor(w, m, layer, "ffn_up_exps.weight", d, ff);
    gw_expert_tensor(w, m, layer, "ffn_down_exps.weight", ff, d);
    if (!gw_arch_of(m)->all_bias) return;
    gw_layer_tensor(w, m, layer, "ffn_gate_inp.bias", m->n_experts, 1);
    gw_expert_tensor(w, m, layer, "ffn_gate_exps.bias", ff, 1);
    gw_expert_tensor(w, m, layer, "ffn_up_exps.bias", ff, 1);
    gw_expert_tensor(w, m, layer, "ffn_down_exps.bias", d, 1);
}

static inline void gw_layer_mlp(struct gw *w, const struct gw_llama *m, uint32_t layer)
{
    const struct gw_arch *a = gw_arch_of(m);
    uint32_t d = m->n_embd, ff = m->n_ff;
    if (!a->up_fused && !a->no_gate) gw_layer_tensor(w, m, layer, "ffn_gate.weight", d, ff);
    gw_layer_tensor(w, m, layer, "ffn_up.weight", d, a->up_fused ? 2 * ff : ff);
    gw_layer_tensor(w, m, layer, "ffn_down.weight", ff, d);
    if (a->all_bias) gw_layer_tensor(w, m, layer, "ffn_up.bias", ff, 1);
    if (a->all_bias) gw_layer_tensor(w, m, layer, "ffn_down.bias", d, 1);
}

static inline void gw_llama_layer(struct gw *w, const struct gw_llama *m, uint32_t layer)
{
    const struct gw_arch *a = gw_arch_of(m);
    char norm[64];
    snprintf(norm, sizeof norm, "%s.weight", a->ffn_norm ? a->ffn_norm : "ffn_norm");
    gw_layer_attention(w, m, layer);
    if (a->post_norms) gw_layer_tensor(w, m, layer, "post_attention_norm.weight", m->n_embd, 1);
    if (a->post_norms) gw_layer_tensor(w, m, layer, "post_ffw_norm.weight", m->n_embd, 1);
    gw_layer_tensor(w, m, layer, norm, m->n_embd, 1);
    if (a->layer_norm) gw_layer_tensor(w, m, layer, "ffn_norm.bias", m->n_embd, 1);
    if (m->n_experts)
        gw_layer_experts(w, m, layer);
    else
        gw_layer_mlp(w, m, layer);
}

/* Factors of the frequencies, between 1 and 3. */
static inline void gw_rope_factors(struct gw *w, const struct gw_llama *m)
{
    uint32_t n = m->n_rot / 2;
    gw_random(w, m, "rope_factors_short.weight", 0, n, 1, 1.1f, 0.1f);
    gw_random(w, m, "rope_factors_long.weight", 0, n, 1, 2.0f, 1.0f);
}

static inline void gw_llama_tensors(struct gw *w, const struct gw_llama *m)
{
    int64_t half = m->n_rot / 2;
    gw_random(w, m, "token_embd.weight", m->type, m->n_embd, GW_VOCAB, 0.0f, 1.0f);
    if (gw_arch_of(m)->positions)
        gw_random(w, m, "position_embd.weight", m->type, m->n_embd, m->n_ctx, 0.0f, 0.5f);
    gw_random(w, m, "output_norm.weight", 0, m->n_embd, 1, 1.0f, 0.1f);
    if (gw_arch_of(m)->layer_norm) gw_random(w, m, "output_norm.bias", 0, m->n_embd, 1, 0, 0.1f);
    if (gw_arch_of(m)->long_factors) gw_rope_factors(w, m);
    if (!m->tied)
        gw_random(w, m, "output.weight", m->type, m->n_embd, GW_VOCAB, 0.0f,
                  sqrtf(3.0f / (float)m->n_embd));
    if (m->rope_freqs)
        gw_tensor(w, "rope_freqs.weight", 0, 1, &half, m->rope_freqs, (size_t)half * sizeof(float));
    for (uint32_t i = 0; i < m->n_layers; i++) gw_llama_layer(w, m, i);
}

/* The whole file of a random Llama with the byte vocabulary.  Equal arguments give equal bytes. */
static inline void gw_llama(const struct gw_llama *given, struct kvl_buf *out)
{
    struct gw_llama m = gw_llama_defaults(given);
    struct gw w;
    gw_init(&w);
    gw_llama_keys(&w, &m);
    gw_byte_vocab(&w);
    gw_llama_tensors(&w, &m);
    if (m.more) m.more(&w);
    gw_finish(&w, out);
    gw_free(&w);
}

#endif
