/* hf_writer.h - a model of gguf_writer.h as a folder of Hugging Face's form, for tests.
 *
 *   struct hw w;
 *   hw_open(&w, &gguf);         a folder of its own under /tmp; tensors under the names of a Llama, rows of q and k
 *   hw_save(&w, parts);         where they belong; then files are written: one, or shards with an index
 *   hw_close(&w);               folder and memory
 *
 * Between them, fields can be changed.  Out of memory aborts: these are tests.
 */
#ifndef KVL_TESTS_HF_WRITER_H
#define KVL_TESTS_HF_WRITER_H

#include "gguf_writer.h"
#include "kvl/gguf.h"

#include <jansson.h>
#include <unistd.h>

enum { HW_MAX = 256 };

struct hw_tensor {
    char name[128];
    const char *dtype;
    int32_t n_dims;
    int64_t shape[2];
    struct kvl_buf data;
};

struct hw {
    char dir[32];
    json_t *config;
    struct hw_tensor t[HW_MAX];
    int32_t n;
    char head[256]; /* after the header's '{', as it is */
    int32_t pad;    /* spaces behind the header */
};

/* ---- a file ---------------------------------------------------------------------------------- */

/* Tensors [from, to) as the bytes of a file. */
static inline void hw_bytes(const struct hw *w, int32_t from, int32_t to, struct kvl_buf *out)
{
    struct kvl_buf head = { 0 };
    size_t at = 0;
    gw_check(kvl_buf_printf(&head, "{%s", w->head) == KVL_OK);
    for (int32_t i = from; i < to; i++) {
        const struct hw_tensor *t = &w->t[i];
        gw_check(kvl_buf_printf(&head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                                i > from ? "," : "", t->name, t->dtype) == KVL_OK);
        for (int32_t d = 0; d < t->n_dims; d++)
            gw_check(kvl_buf_printf(&head, "%s%lld", d ? "," : "", (long long)t->shape[d]) ==
                     KVL_OK);
        gw_check(kvl_buf_printf(&head, "],\"data_offsets\":[%zu,%zu]}", at, at + t->data.len) ==
                 KVL_OK);
        at += t->data.len;
    }
    gw_raw(&head, "}", 1);
    for (int32_t i = 0; i < w->pad; i++) gw_raw(&head, " ", 1);
    gw_raw_u64(out, head.len);
    gw_raw(out, head.data, head.len);
    for (int32_t i = from; i < to; i++)
        if (w->t[i].data.len) gw_raw(out, w->t[i].data.data, w->t[i].data.len);
    kvl_buf_free(&head);
}

static inline const char *hw_path(const struct hw *w, const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", w->dir, name);
    return path;
}

static inline void hw_write(const struct hw *w, const char *name, const void *data, size_t n)
{
    struct kvl_buf b = { 0 };
    gw_raw(&b, data, n);
    gw_check(gw_save(&b, hw_path(w, name)));
    kvl_buf_free(&b);
}

static inline const char *hw_shard(int32_t i, int32_t parts)
{
    static char name[64];
    snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", i + 1, parts);
    return parts == 1 ? "model.safetensors" : name;
}

static inline void hw_json(const struct hw *w, const char *name, const json_t *v)
{
    gw_check(json_dump_file(v, hw_path(w, name), JSON_INDENT(1) | JSON_PRESERVE_ORDER) == 0);
}

/* The vocabulary of gw_byte_vocab. */
static inline void hw_tokenizer(const struct hw *w)
{
    static const char *const special[] = { "<pad>", "<bos>", "<eos>" };
    json_t *vocab = json_object(), *added = json_array();
    for (uint32_t b = 0; b < 256; b++) {
        char text[8] = "";
        gw_utf8(gw_byte_char(b), text);
        gw_check(json_object_set_new(vocab, text, json_integer(GW_BYTE0 + b)) == 0);
    }
    for (int i = 0; i < 3; i++)
        gw_check(json_array_append_new(added,
                                       json_pack("{si ss sb sb sb sb sb}", "id", i, "content",
                                                 special[i], "single_word", 0, "lstrip", 0,
                                                 "rstrip", 0, "normalized", 0, "special", 1)) == 0);
    json_t *v =
        json_pack("{so sn s{ss sb sb sb} s{ss} s{ss so s[] sb sb}}", "added_tokens", added,
                  "normalizer", "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0,
                  "trim_offsets", 1, "use_regex", 1, "decoder", "type", "ByteLevel", "model",
                  "type", "BPE", "vocab", vocab, "merges", "byte_fallback", 0, "ignore_merges", 0);
    gw_check(v != NULL);
    hw_json(w, "tokenizer.json", v);
    json_decref(v);
    v = json_pack("{ss ss sb}", "bos_token", "<bos>", "eos_token", "<eos>", "add_bos_token", 1);
    hw_json(w, "tokenizer_config.json", v);
    json_decref(v);
}

static inline void hw_save(const struct hw *w, int32_t parts)
{
    json_t *map = json_object();
    for (int32_t p = 0; p < parts; p++) {
        struct kvl_buf b = { 0 };
        int32_t from = w->n * p / parts, to = w->n * (p + 1) / parts;
        hw_bytes(w, from, to, &b);
        gw_check(gw_save(&b, hw_path(w, hw_shard(p, parts))));
        kvl_buf_free(&b);
        for (int32_t i = from; i < to; i++)
            gw_check(json_object_set_new(map, w->t[i].name, json_string(hw_shard(p, parts))) == 0);
    }
    json_t *index = json_pack("{s{si}so}", "metadata", "total_size", 0, "weight_map", map);
    if (parts > 1) hw_json(w, "model.safetensors.index.json", index);
    json_decref(index);
    hw_json(w, "config.json", w->config);
    hw_tokenizer(w);
}

/* ---- the model ------------------------------------------------------------------------------- */

static inline void hw_name(const char *gguf, char out[128])
{
    static const char *const row[][2] = {
        { "token_embd.weight", "model.embed_tokens.weight" },
        { "position_embd.weight", "model.decoder.embed_positions.weight" },
        { "output_norm.weight", "model.norm.weight" },
        { "output_norm.bias", "model.norm.bias" },
        { "output.weight", "lm_head.weight" },
        { "attn_norm", "input_layernorm" },
        { "attn_q", "self_attn.q_proj" },
        { "attn_k", "self_attn.k_proj" },
        { "attn_v", "self_attn.v_proj" },
        { "attn_output", "self_attn.o_proj" },
        { "ffn_norm", "post_attention_layernorm" },
        { "ffn_gate", "mlp.gate_proj" },
        { "ffn_up", "mlp.up_proj" },
        { "ffn_down", "mlp.down_proj" },
    };
    int layer = -1, at = 0;
    out[0] = '\0';
    if (sscanf(gguf, "blk.%d.%n", &layer, &at) != 1) at = 0;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        size_t n = strlen(row[i][0]);
        if (strncmp(gguf + at, row[i][0], n) != 0) continue;
        if (at == 0 && !gguf[n]) snprintf(out, 128, "%s", row[i][1]);
        if (at > 0 && gguf[(size_t)at + n] == '.')
            snprintf(out, 128, "model.layers.%d.%s%s", layer, row[i][1], gguf + at + n);
    }
}

/* Rows of heads whose pairs are neighbours -> pairs half a head apart. */
static inline void hw_unpermute(struct hw_tensor *t, int64_t n_heads)
{
    size_t row = t->data.len / (size_t)t->shape[0];
    int64_t dim = t->shape[0] / n_heads;
    char *to = malloc(t->data.len);
    gw_check(to != NULL);
    for (int64_t r = 0; r < t->shape[0]; r++) {
        int64_t i = r % dim, at = r - i + i % 2 * (dim / 2) + i / 2;
        memcpy(to + (size_t)at * row, t->data.data + (size_t)r * row, row);
    }
    memcpy(t->data.data, to, t->data.len);
    free(to);
}

static inline void hw_config(struct hw *w, const struct gw_llama *m)
{
    bool qwen = strcmp(m->arch, "qwen2") == 0;
    w->config =
        json_pack("{s[s] ss si si si si si si si si sf sf sb sn}", "architectures",
                  qwen ? "Qwen2ForCausalLM" : "LlamaForCausalLM", "hidden_act", "silu",
                  "hidden_size", m->n_embd, "intermediate_size", m->n_ff, "num_hidden_layers",
                  m->n_layers, "num_attention_heads", m->n_heads, "num_key_value_heads",
                  m->n_kv_heads, "head_dim", m->head_dim, "vocab_size", GW_VOCAB,
                  "max_position_embeddings", m->n_ctx, "rope_theta", (double)m->freq_base,
                  "rms_norm_eps", (double)m->eps, "tie_word_embeddings", m->tied, "rope_scaling");
    gw_check(w->config != NULL);
}

/* The folder of the model that gw_llama writes for `given`. */
static inline void hw_open(struct hw *w, const struct gw_llama *given)
{
    static const char *const type[] = { [0] = "F32", [1] = "F16", [30] = "BF16" };
    const struct gw_llama m = gw_llama_defaults(given);
    struct kvl_buf file = { 0 };
    struct kvl_gguf *g = NULL;
    memset(w, 0, sizeof *w);
    memcpy(w->dir, "/tmp/kvl-hf-XXXXXX", sizeof "/tmp/kvl-hf-XXXXXX");
    gw_check(mkdtemp(w->dir) != NULL);
    gw_llama(given, &file);
    gw_check(kvl_gguf_open_memory(file.data, file.len, &g, NULL) == KVL_OK);
    for (int64_t i = 0; i < kvl_gguf_n_tensors(g); i++) {
        const struct kvl_gguf_tensor *t = kvl_gguf_tensor_at(g, i);
        struct hw_tensor *y = &w->t[w->n];
        hw_name(t->name, y->name);
        if (!y->name[0]) continue;
        w->n++;
        y->dtype = type[t->type];
        y->n_dims = (int32_t)t->n_dims;
        for (uint32_t d = 0; d < t->n_dims; d++) y->shape[d] = t->dims[t->n_dims - 1 - d];
        gw_raw(&y->data, t->data, t->bytes);
        bool q = strstr(y->name, "q_proj.weight"), k = strstr(y->name, "k_proj.weight");
        if (strcmp(m.arch, "llama") == 0 && (q || k)) hw_unpermute(y, q ? m.n_heads : m.n_kv_heads);
    }
    kvl_gguf_close(g);
    kvl_buf_free(&file);
    hw_config(w, &m);
}

static inline struct hw_tensor *hw_tensor(struct hw *w, const char *name)
{
    for (int32_t i = 0; i < w->n; i++)
        if (strcmp(w->t[i].name, name) == 0) return &w->t[i];
    abort();
}

static inline void hw_close(struct hw *w)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf '%s'", w->dir);
    gw_check(system(command) == 0);
    for (int32_t i = 0; i < w->n; i++) kvl_buf_free(&w->t[i].data);
    json_decref(w->config);
}

#endif
