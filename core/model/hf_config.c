/* config.json -> keys of a GGUF file. */
#include "hf_impl.h"

#include <math.h>
#include <string.h>

static const struct hf_class hf_classes[] = {
    { .name = "LlamaForCausalLM", .arch = "llama", .act = "silu" },
    { .name = "MistralForCausalLM", .arch = "llama", .act = "silu" },
    { .name = "Qwen2ForCausalLM", .arch = "qwen2", .act = "silu", .flags = HF_ASKS_WINDOW },
};

enum {
    HF_CLASSES = sizeof hf_classes / sizeof hf_classes[0],
    HF_MAX = 1 << 30,
    HF_MAX_LAYERS = 1024
};

/* ---- values ---------------------------------------------------------------------------------- */

bool kvl_hf_has(const json_t *from, const char *key)
{
    const json_t *v = json_object_get(from, key);
    return v && !json_is_null(v);
}

int kvl_hf_int(struct hf *h, const json_t *from, const char *key, const int32_t *def, int32_t *out)
{
    const json_t *v = json_object_get(from, key);
    if (!kvl_hf_has(from, key) && def) {
        *out = *def;
        return KVL_OK;
    }
    json_int_t n = json_integer_value(v);
    if (json_is_integer(v) && n >= 0 && n <= HF_MAX) {
        *out = (int32_t)n;
        return KVL_OK;
    }
    if (!v) return kvl_fail(h->err, KVL_EMODEL, "config.json: %s is missing", key);
    return kvl_fail(h->err, KVL_EMODEL, "config.json: %s is %lld, want a whole number from 0 to %d",
                    key, (long long)n, HF_MAX);
}

int kvl_hf_num(struct hf *h, const json_t *from, const char *key, const double *def, double *out)
{
    const json_t *v = json_object_get(from, key);
    if (!kvl_hf_has(from, key) && def) {
        *out = *def;
        return KVL_OK;
    }
    if (!json_is_number(v) || !isfinite(json_number_value(v)))
        return kvl_fail(h->err, KVL_EMODEL, "config.json: %s is %s, want a number", key,
                        v ? "none" : "missing");
    *out = json_number_value(v);
    return KVL_OK;
}

static bool hf_true(const json_t *from, const char *key, bool def)
{
    return kvl_hf_has(from, key) ? json_is_true(json_object_get(from, key)) : def;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static int hf_key(struct hf *h, const char *tail, uint32_t type)
{
    const char *before = tail[0] == '.' ? h->is->arch : "";
    uint64_t len = strlen(before) + strlen(tail);
    KVL_TRY(kvl_buf_add(&h->keys, &len, sizeof len));
    KVL_TRY(kvl_buf_adds(&h->keys, before));
    KVL_TRY(kvl_buf_adds(&h->keys, tail));
    h->n_keys++;
    return kvl_buf_add(&h->keys, &type, sizeof type);
}

int kvl_hf_u32(struct hf *h, const char *tail, uint32_t v)
{
    KVL_TRY(hf_key(h, tail, KVL_GGUF_U32));
    return kvl_buf_add(&h->keys, &v, sizeof v);
}

int kvl_hf_f32(struct hf *h, const char *tail, double v)
{
    float f = (float)v;
    KVL_TRY(hf_key(h, tail, KVL_GGUF_F32));
    return kvl_buf_add(&h->keys, &f, sizeof f);
}

int kvl_hf_bool(struct hf *h, const char *tail, bool v)
{
    uint8_t byte = v;
    KVL_TRY(hf_key(h, tail, KVL_GGUF_BOOL));
    return kvl_buf_add(&h->keys, &byte, sizeof byte);
}

int kvl_hf_str(struct hf *h, const char *tail, const char *s, size_t len)
{
    uint64_t n = len;
    KVL_TRY(hf_key(h, tail, KVL_GGUF_STR));
    KVL_TRY(kvl_buf_add(&h->keys, &n, sizeof n));
    return kvl_buf_add(&h->keys, s, len);
}

int kvl_hf_bools(struct hf *h, const char *tail, const uint8_t *v, size_t n)
{
    uint32_t elem = KVL_GGUF_BOOL;
    uint64_t count = n;
    KVL_TRY(hf_key(h, tail, KVL_GGUF_ARR));
    KVL_TRY(kvl_buf_add(&h->keys, &elem, sizeof elem));
    KVL_TRY(kvl_buf_add(&h->keys, &count, sizeof count));
    return kvl_buf_add(&h->keys, v, n);
}

/* ---- the class ------------------------------------------------------------------------------- */

static int hf_refuse_class(struct hf *h, const char *name)
{
    struct kvl_buf names = { 0 };
    char shown[GGUF_SHOWN + 4];
    for (size_t i = 0; i < HF_CLASSES; i++)
        (void)kvl_buf_printf(&names, "%s%s", i ? ", " : "", hf_classes[i].name);
    kvl_fail(h->err, KVL_EMODEL, "config.json: architectures is \"%s\", want one of: %s",
             name ? kvl_gguf_show(name, strlen(name), shown) : "",
             names.data ? names.data : "(no memory)");
    kvl_buf_free(&names);
    return KVL_EMODEL;
}

static int hf_find_class(struct hf *h)
{
    const json_t *all = json_object_get(h->config, "architectures");
    const char *name = json_string_value(json_array_get(all, 0));
    for (size_t i = 0; name && i < HF_CLASSES; i++)
        if (strcmp(hf_classes[i].name, name) == 0) h->is = &hf_classes[i];
    return h->is ? KVL_OK : hf_refuse_class(h, name);
}

/* ---- what must not be ------------------------------------------------------------------------ */

static int hf_check_quantization(struct hf *h)
{
    const json_t *q = json_object_get(h->config, "quantization_config");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    char shown[GGUF_SHOWN + 4];
    if (!kvl_hf_has(h->config, "quantization_config")) return KVL_OK;
    return kvl_fail(h->err, KVL_EMODEL,
                    "config.json: quantization_config (%s): only F32, F16 and BF16 are read; want "
                    "the model that was not quantised, or a GGUF file",
                    method ? kvl_gguf_show(method, strlen(method), shown) : "no quant_method");
}

static int hf_check_act(struct hf *h)
{
    static const char *const key[] = { "hidden_activation", "hidden_act", "activation_function" };
    char shown[GGUF_SHOWN + 4];
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++) {
        const char *act = json_string_value(json_object_get(h->config, key[i]));
        if (!act) continue;
        if (strcmp(act, h->is->act) == 0) return KVL_OK;
        return kvl_fail(h->err, KVL_EMODEL, "config.json: %s is \"%s\", only \"%s\" is supported",
                        key[i], kvl_gguf_show(act, strlen(act), shown), h->is->act);
    }
    return KVL_OK; /* the class's own */
}

/* Switches that none of the classes has on in a published model, and that would change the result. */
static int hf_check_neutral(struct hf *h)
{
    static const char *const off[] = {
        "attention_sink",
        "clip_qkv",
        "embedding_multiplier",
        "residual_multiplier",
        "attention_multiplier",
        "logits_scaling",
        "logit_scale",
        "use_qk_norm",
        "alibi",
        "position_embedding",
        "use_bidirectional_attention",
        "num_nextn_predict_layers",
    };
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
        const json_t *v = json_object_get(h->config, off[i]);
        bool is_off = !v || json_is_null(v) || json_is_false(v) ||
                      (json_is_number(v) && json_number_value(v) == 0.0);
        if (!is_off)
            return kvl_fail(h->err, KVL_EMODEL, "config.json: %s is set, which is not supported",
                            off[i]);
    }
    return KVL_OK;
}

/* ---- shape ----------------------------------------------------------------------------------- */

static int hf_size(struct hf *h, const char *key, const char *tail, int32_t *out)
{
    KVL_TRY(kvl_hf_int(h, h->config, key, NULL, out));
    return kvl_hf_u32(h, tail, (uint32_t)*out);
}

static int hf_heads(struct hf *h)
{
    KVL_TRY(hf_size(h, "num_attention_heads", ".attention.head_count", &h->n_heads));
    KVL_TRY(kvl_hf_int(h, h->config, "num_key_value_heads", &h->n_heads, &h->n_kv_heads));
    KVL_TRY(kvl_hf_u32(h, ".attention.head_count_kv", (uint32_t)h->n_kv_heads));
    if (h->n_heads == 0 || h->n_kv_heads == 0)
        return kvl_fail(h->err, KVL_EMODEL, "config.json: %d heads, %d key-value heads, want some",
                        h->n_heads, h->n_kv_heads);
    bool given = kvl_hf_has(h->config, "head_dim");
    if (!given && h->n_embd % h->n_heads != 0)
        return kvl_fail(h->err, KVL_EMODEL,
                        "config.json: hidden_size %d is no multiple of num_attention_heads %d",
                        h->n_embd, h->n_heads);
    int32_t def = h->n_embd / h->n_heads;
    KVL_TRY(kvl_hf_int(h, h->config, "head_dim", &def, &h->head_dim));
    KVL_TRY(kvl_hf_u32(h, ".attention.key_length", (uint32_t)h->head_dim));
    return kvl_hf_u32(h, ".attention.value_length", (uint32_t)h->head_dim);
}

/* Positions that the model's own attention is exact for: dual chunks are not computed. */
static int hf_context(struct hf *h)
{
    const json_t *dual = json_object_get(h->config, "dual_chunk_attention_config");
    KVL_TRY(kvl_hf_int(h, h->config, "max_position_embeddings", NULL, &h->n_ctx));
    int32_t chunk = h->n_ctx;
    if (json_is_object(dual)) KVL_TRY(kvl_hf_int(h, dual, "chunk_size", &chunk, &chunk));
    h->n_ctx = KVL_MIN(h->n_ctx, chunk);
    return kvl_hf_u32(h, ".context_length", (uint32_t)h->n_ctx);
}

static int hf_eps(struct hf *h)
{
    double eps;
    KVL_TRY(kvl_hf_num(h, h->config, "rms_norm_eps", NULL, &eps));
    return kvl_hf_f32(h, ".attention.layer_norm_rms_epsilon", eps);
}

/* ---- windows --------------------------------------------------------------------------------- */

/* layer_types[i] is "sliding_attention" or "full_attention". */
static int hf_layer_types(struct hf *h, uint8_t *local, int32_t *n_local)
{
    const json_t *types = json_object_get(h->config, "layer_types");
    char shown[GGUF_SHOWN + 4];
    *n_local = 0;
    for (int32_t i = 0; i < h->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        bool is_local = type && strcmp(type, "sliding_attention") == 0;
        if (!is_local && (!type || strcmp(type, "full_attention") != 0))
            return kvl_fail(h->err, KVL_EMODEL,
                            "config.json: layer_types[%d] is \"%s\", want full_attention or "
                            "sliding_attention for each of %d layers",
                            i, type ? kvl_gguf_show(type, strlen(type), shown) : "", h->n_layers);
        local[i] = is_local;
        *n_local += is_local;
    }
    return KVL_OK;
}

/* Layers from max_window_layers on, or those that layer_types names. */
static int hf_locals(struct hf *h, uint8_t *local, int32_t *n_local)
{
    int32_t zero = 0, full;
    if (kvl_hf_has(h->config, "layer_types")) return hf_layer_types(h, local, n_local);
    KVL_TRY(kvl_hf_int(h, h->config, "max_window_layers", &zero, &full));
    for (int32_t i = full; i < h->n_layers; i++) local[i] = 1;
    *n_local = KVL_MAX(0, h->n_layers - full);
    return KVL_OK;
}

static int hf_window_layers(struct hf *h, uint8_t *local, int32_t window)
{
    int32_t n_local;
    KVL_TRY(hf_locals(h, local, &n_local));
    if (n_local == 0) return KVL_OK;
    KVL_TRY(kvl_hf_u32(h, ".attention.sliding_window", (uint32_t)window));
    if (n_local == h->n_layers) return KVL_OK;
    return kvl_hf_bools(h, ".attention.sliding_window_pattern", local, (size_t)h->n_layers);
}

/* One that no sequence reaches is none. */
static int hf_window(struct hf *h)
{
    int32_t window = 0, zero = 0;
    bool uses = hf_true(h->config, "use_sliding_window", (h->is->flags & HF_ASKS_WINDOW) == 0);
    if (uses) KVL_TRY(kvl_hf_int(h, h->config, "sliding_window", &zero, &window));
    if (window == 0 || window >= h->n_ctx) return KVL_OK;
    uint8_t *local = kvl_alloc((size_t)h->n_layers, 1);
    int rc = local ? hf_window_layers(h, local, window) : KVL_ENOMEM;
    kvl_free(local);
    return rc;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int hf_shape(struct hf *h)
{
    int32_t n;
    KVL_TRY(kvl_hf_str(h, "general.architecture", h->is->arch, strlen(h->is->arch)));
    KVL_TRY(hf_size(h, "num_hidden_layers", ".block_count", &h->n_layers));
    if (h->n_layers > HF_MAX_LAYERS)
        return kvl_fail(h->err, KVL_EMODEL, "config.json: num_hidden_layers is %d, at most %d",
                        h->n_layers, HF_MAX_LAYERS);
    KVL_TRY(hf_size(h, "hidden_size", ".embedding_length", &h->n_embd));
    KVL_TRY(hf_size(h, "intermediate_size", ".feed_forward_length", &n));
    KVL_TRY(hf_size(h, "vocab_size", ".vocab_size", &n));
    KVL_TRY(hf_context(h));
    KVL_TRY(hf_heads(h));
    KVL_TRY(hf_eps(h));
    h->tied = hf_true(h->config, "tie_word_embeddings", (h->is->flags & HF_TIED) != 0);
    return hf_window(h);
}

int kvl_hf_config(struct hf *h)
{
    KVL_TRY(hf_check_quantization(h));
    KVL_TRY(hf_find_class(h));
    KVL_TRY(hf_check_act(h));
    KVL_TRY(hf_check_neutral(h));
    KVL_TRY(hf_shape(h));
    return kvl_hf_rope(h);
}
