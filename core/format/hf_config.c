/* config.json -> keys of a GGUF file. */
#include "hf_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char hf_gemma3_defaults[] =
    "{\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":256,\"vocab_size\":262208,"
    "\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-6,\"rope_theta\":1e6,"
    "\"query_pre_attn_scalar\":256,\"sliding_window\":4096,\"tie_word_embeddings\":true}";
static const char hf_glm_defaults[] = "{\"partial_rotary_factor\":0.5}";

/* `defaults` are transformers', where published files leave keys out. */
static const struct hf_class hf_classes[] = {
    { .name = "LlamaForCausalLM", .arch = "llama", .act = "silu" },
    { .name = "MistralForCausalLM", .arch = "llama", .act = "silu" },
    { .name = "Qwen2ForCausalLM", .arch = "qwen2", .act = "silu", .flags = HF_ASKS_WINDOW },
    { .name = "Qwen3ForCausalLM", .arch = "qwen3", .act = "silu", .flags = HF_ASKS_WINDOW },
    { .name = "InternLM2ForCausalLM", .arch = "internlm2", .act = "silu" },
    { .name = "SmolLM3ForCausalLM",
      .arch = "smollm3",
      .act = "silu",
      .defaults = "{\"tie_word_embeddings\":true}",
      .flags = HF_ASKS_WINDOW | HF_STILL },
    { .name = "Phi3ForCausalLM", .arch = "phi3", .act = "silu" },
    { .name = "Gemma2ForCausalLM",
      .arch = "gemma2",
      .act = "gelu_pytorch_tanh",
      .defaults = "{\"tie_word_embeddings\":true,\"sliding_window\":4096}",
      .flags = HF_GEMMA },
    { .name = "Gemma3ForCausalLM",
      .arch = "gemma3",
      .act = "gelu_pytorch_tanh",
      .defaults = hf_gemma3_defaults,
      .flags = HF_GEMMA },
    { .name = "Gemma3ForConditionalGeneration",
      .arch = "gemma3",
      .act = "gelu_pytorch_tanh",
      .defaults = hf_gemma3_defaults,
      .flags = HF_GEMMA | HF_TEXT_PART },
    { .name = "GlmForCausalLM", .arch = "chatglm", .act = "silu", .defaults = hf_glm_defaults },
    { .name = "Glm4ForCausalLM", .arch = "glm4", .act = "silu", .defaults = hf_glm_defaults },
    { .name = "ChatGLMModel",
      .arch = "chatglm",
      .act = "silu",
      .defaults = hf_glm_defaults,
      .flags = HF_OLD_GLM },
    { .name = "ChatGLMForConditionalGeneration",
      .arch = "chatglm",
      .act = "silu",
      .defaults = hf_glm_defaults,
      .flags = HF_OLD_GLM },
    { .name = "MixtralForCausalLM", .arch = "llama", .act = "silu", .flags = HF_EXPERTS },
    { .name = "Qwen3MoeForCausalLM",
      .arch = "qwen3moe",
      .act = "silu",
      .flags = HF_EXPERTS | HF_ASKS_WINDOW },
    { .name = "GPTNeoXForCausalLM",
      .arch = "gptneox",
      .act = "gelu",
      .defaults = "{\"rotary_pct\":0.25}",
      .flags = HF_LAYERNORM },
    { .name = "GptOssForCausalLM",
      .arch = "gpt-oss",
      .act = "silu",
      .defaults = "{\"sliding_window\":128,\"head_dim\":64,\"rms_norm_eps\":1e-5,"
                  "\"rope_theta\":150000}",
      .flags = HF_EXPERTS | HF_OSS },
    { .name = "OPTForCausalLM",
      .arch = "opt",
      .act = "relu",
      .defaults = "{\"tie_word_embeddings\":true,\"layer_norm_eps\":1e-5}",
      .flags = HF_LAYERNORM | HF_OPT },
};

enum { HF_CLASSES = sizeof hf_classes / sizeof hf_classes[0], HF_MAX_LAYERS = 1024 };

const struct hf_class *kvl_hf_class_at(size_t i)
{
    return i < HF_CLASSES ? &hf_classes[i] : NULL;
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool hf_true(const json_t *from, const char *key, bool def)
{
    return kvl_hf_has(from, key) ? json_is_true(json_object_get(from, key)) : def;
}

/* ---- the class ------------------------------------------------------------------------------- */

static int hf_refuse_class(struct hf *h, const char *name)
{
    struct kvl_buf names = { 0 };
    char shown[GGUF_SHOWN + 4];
    for (size_t i = 0; i < HF_CLASSES; i++)
        (void)kvl_buf_printf(&names, "%s%s", names.len ? ", " : "", hf_classes[i].name);
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
    if ((h->is->flags & HF_OSS) && method && strcmp(method, "mxfp4") == 0) return KVL_OK;
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

/* The first of several names for one thing that is there; the first, if none is. */
struct hf_names {
    const char *name[3];
};

static const char *hf_first(const struct hf *h, const struct hf_names *names)
{
    for (size_t i = 0; i < 3 && names->name[i]; i++)
        if (kvl_hf_has(h->config, names->name[i])) return names->name[i];
    return names->name[0];
}

static int hf_size(struct hf *h, struct hf_names names, const char *tail, int32_t *out)
{
    KVL_TRY(kvl_hf_int(h, h->config, hf_first(h, &names), NULL, out));
    return kvl_hf_u32(h, tail, (uint32_t)*out);
}
#define HF_NAMES(...) ((struct hf_names){ { __VA_ARGS__ } })

static int hf_kv_heads(struct hf *h)
{
    const struct hf_names names = HF_NAMES("num_key_value_heads", "multi_query_group_num");
    bool old = h->is->flags & HF_OLD_GLM, ungrouped = h->is->flags & HF_LAYERNORM;
    bool groups = hf_true(h->config, "multi_query_attention", !old && !ungrouped);
    h->n_kv_heads = h->n_heads;
    if (groups) KVL_TRY(kvl_hf_int(h, h->config, hf_first(h, &names), &h->n_heads, &h->n_kv_heads));
    return kvl_hf_u32(h, ".attention.head_count_kv", (uint32_t)h->n_kv_heads);
}

static int hf_heads(struct hf *h)
{
    const struct hf_names dims = HF_NAMES("head_dim", "kv_channels");
    KVL_TRY(hf_size(h, HF_NAMES("num_attention_heads"), ".attention.head_count", &h->n_heads));
    KVL_TRY(hf_kv_heads(h));
    if (h->n_heads == 0 || h->n_kv_heads == 0)
        return kvl_fail(h->err, KVL_EMODEL, "config.json: %d heads, %d key-value heads, want some",
                        h->n_heads, h->n_kv_heads);
    bool given = kvl_hf_has(h->config, hf_first(h, &dims));
    if (!given && h->n_embd % h->n_heads != 0)
        return kvl_fail(h->err, KVL_EMODEL,
                        "config.json: hidden_size %d is no multiple of num_attention_heads %d",
                        h->n_embd, h->n_heads);
    int32_t def = h->n_embd / h->n_heads;
    KVL_TRY(kvl_hf_int(h, h->config, hf_first(h, &dims), &def, &h->head_dim));
    KVL_TRY(kvl_hf_u32(h, ".attention.key_length", (uint32_t)h->head_dim));
    return kvl_hf_u32(h, ".attention.value_length", (uint32_t)h->head_dim);
}

/* Positions that the model's own attention is exact for: dual chunks are not computed. */
static int hf_context(struct hf *h)
{
    const struct hf_names names = HF_NAMES("max_position_embeddings", "seq_length");
    const json_t *dual = json_object_get(h->config, "dual_chunk_attention_config");
    KVL_TRY(kvl_hf_int(h, h->config, hf_first(h, &names), NULL, &h->n_ctx));
    int32_t chunk = h->n_ctx;
    if (json_is_object(dual)) {
        KVL_TRY(kvl_hf_int(h, dual, "chunk_size", &chunk, &chunk));
        KVL_TRY(kvl_hf_bool(h, ".attention.dual_chunks", true));
    }
    h->n_ctx = KVL_MIN(h->n_ctx, chunk);
    return kvl_hf_u32(h, ".context_length", (uint32_t)h->n_ctx);
}

static int hf_eps(struct hf *h)
{
    const struct hf_names names = HF_NAMES("rms_norm_eps", "layer_norm_eps", "layernorm_epsilon");
    bool layernorm = h->is->flags & HF_LAYERNORM;
    double eps;
    KVL_TRY(kvl_hf_num(h, h->config, hf_first(h, &names), NULL, &eps));
    if (!(eps > 0 && eps <= 1))
        return kvl_hf_refuse(h, hf_first(h, &names),
                             json_object_get(h->config, hf_first(h, &names)),
                             "a number above 0 and at most 1");
    return kvl_hf_f32(
        h, layernorm ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon", eps);
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

/* SmolLM3: those that do not turn. */
static int hf_still_layers(struct hf *h, uint8_t *local, int32_t *n_local)
{
    *n_local = 0;
    for (int32_t i = 0; i < h->n_layers; i++) {
        bool turns;
        KVL_TRY(kvl_hf_turns(h, i, &turns));
        local[i] = !turns;
        *n_local += !turns;
    }
    return KVL_OK;
}

/* Layers from max_window_layers on, or those that layer_types names. */
static int hf_locals(struct hf *h, uint8_t *local, int32_t *n_local)
{
    int32_t zero = 0, full;
    if (kvl_hf_has(h->config, "layer_types")) return hf_layer_types(h, local, n_local);
    if (h->is->flags & HF_STILL) return hf_still_layers(h, local, n_local);
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

/* One that no sequence reaches is none, unless its layers turn in a way of their own (Gemma 3), or the architecture has
 * a short one where no key says (gpt-oss). */
static int hf_window(struct hf *h)
{
    int32_t window = 0, zero = 0;
    bool uses = hf_true(h->config, "use_sliding_window", (h->is->flags & HF_ASKS_WINDOW) == 0);
    if (uses) KVL_TRY(kvl_hf_int(h, h->config, "sliding_window", &zero, &window));
    bool turns = strcmp(h->is->arch, "gemma3") == 0 || (h->is->flags & HF_OSS);
    if (window == 0 || (window >= h->n_ctx && !turns)) return KVL_OK;
    uint8_t *local = kvl_alloc((size_t)h->n_layers, 1);
    int rc = local ? hf_window_layers(h, local, window) : KVL_ENOMEM;
    kvl_free(local);
    return rc;
}

/* ---- what single families say ---------------------------------------------------------------- */

static int hf_gemma(struct hf *h)
{
    static const struct {
        const char *key, *tail;
    } cap[] = { { "attn_logit_softcapping", ".attn_logit_softcapping" },
                { "final_logit_softcapping", ".final_logit_softcapping" } };
    const double usual = h->head_dim;
    double scalar, v, none = 0;
    int32_t period;
    for (size_t i = 0; i < sizeof cap / sizeof cap[0]; i++) {
        KVL_TRY(kvl_hf_num(h, h->config, cap[i].key, &none, &v));
        KVL_TRY(kvl_hf_f32(h, cap[i].tail, v));
    }
    KVL_TRY(kvl_hf_num(h, h->config, "query_pre_attn_scalar", &usual, &scalar));
    if (!(scalar > 0))
        return kvl_fail(h->err, KVL_EMODEL, "config.json: query_pre_attn_scalar is %g", scalar);
    KVL_TRY(kvl_hf_f32(h, ".attention.scale", 1 / sqrt(scalar)));
    if (kvl_hf_has(h->config, "layer_types") || !kvl_hf_has(h->config, "sliding_window_pattern"))
        return KVL_OK;
    KVL_TRY(kvl_hf_int(h, h->config, "sliding_window_pattern", NULL, &period));
    return kvl_hf_u32(h, ".attention.sliding_window_pattern", (uint32_t)period);
}

static int hf_experts(struct hf *h)
{
    int32_t n, used, one = 1, step;
    const json_t *dense = json_object_get(h->config, "mlp_only_layers");
    bool qwen = strcmp(h->is->arch, "qwen3moe") == 0;
    KVL_TRY(
        hf_size(h, HF_NAMES("num_local_experts", "num_experts"), ".expert_count", &h->n_experts));
    KVL_TRY(hf_size(h, HF_NAMES("num_experts_per_tok"), ".expert_used_count", &used));
    if (qwen)
        KVL_TRY(hf_size(h, HF_NAMES("moe_intermediate_size"), ".expert_feed_forward_length", &n));
    KVL_TRY(kvl_hf_int(h, h->config, "decoder_sparse_step", &one, &step));
    if (step != 1 || json_array_size(dense) > 0)
        return kvl_fail(h->err, KVL_EMODEL,
                        "config.json: decoder_sparse_step %d, %zu mlp_only_layers: layers without "
                        "experts are not supported",
                        step, json_array_size(dense));
    return kvl_hf_bool(h, ".expert_weights_norm", hf_true(h->config, "norm_topk_prob", !qwen));
}

static int hf_opt(struct hf *h)
{
    static const char *const on[] = { "do_layer_norm_before", "enable_bias",
                                      "layer_norm_elementwise_affine" };
    int32_t width = h->n_embd;
    for (size_t i = 0; i < sizeof on / sizeof on[0]; i++)
        if (!hf_true(h->config, on[i], true))
            return kvl_fail(h->err, KVL_EMODEL,
                            "config.json: %s is not true, which is not supported", on[i]);
    KVL_TRY(kvl_hf_int(h, h->config, "word_embed_proj_dim", &width, &width));
    if (width != h->n_embd)
        return kvl_fail(h->err, KVL_EMODEL,
                        "config.json: word_embed_proj_dim %d, want hidden_size %d", width,
                        h->n_embd);
    return KVL_OK;
}

static int hf_oss(struct hf *h)
{
    const double usual = 7;
    double limit;
    KVL_TRY(kvl_hf_num(h, h->config, "swiglu_limit", &usual, &limit));
    if (limit < usual || limit > usual)
        return kvl_fail(h->err, KVL_EMODEL, "config.json: swiglu_limit is %g, only 7 is supported",
                        limit);
    return KVL_OK;
}

static int hf_family(struct hf *h)
{
    if (h->is->flags & HF_OSS) KVL_TRY(hf_oss(h));
    if (h->is->flags & HF_GEMMA) KVL_TRY(hf_gemma(h));
    if (h->is->flags & HF_EXPERTS) KVL_TRY(hf_experts(h));
    if (h->is->flags & HF_OPT) KVL_TRY(hf_opt(h));
    if (strcmp(h->is->arch, "gptneox") == 0)
        KVL_TRY(kvl_hf_bool(h, ".use_parallel_residual",
                            hf_true(h->config, "use_parallel_residual", true)));
    return KVL_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int hf_shape(struct hf *h)
{
    int32_t n;
    KVL_TRY(kvl_hf_str(h, "general.architecture", h->is->arch, strlen(h->is->arch)));
    KVL_TRY(hf_size(h, HF_NAMES("num_hidden_layers", "num_layers"), ".block_count", &h->n_layers));
    if (h->n_layers > HF_MAX_LAYERS)
        return kvl_fail(h->err, KVL_EMODEL, "config.json: num_hidden_layers is %d, at most %d",
                        h->n_layers, HF_MAX_LAYERS);
    KVL_TRY(hf_size(h, HF_NAMES("hidden_size"), ".embedding_length", &h->n_embd));
    KVL_TRY(hf_size(h, HF_NAMES("intermediate_size", "ffn_dim", "ffn_hidden_size"),
                    ".feed_forward_length", &n));
    KVL_TRY(hf_size(h, HF_NAMES("vocab_size", "padded_vocab_size"), ".vocab_size", &n));
    KVL_TRY(hf_context(h));
    KVL_TRY(hf_heads(h));
    KVL_TRY(hf_eps(h));
    h->tied = hf_true(h->config, "tie_word_embeddings", false);
    KVL_TRY(hf_window(h));
    return hf_family(h);
}

/* The words of the text part, where there are others, and what the class means by those that are not there. */
static int hf_complete(struct hf *h)
{
    json_t *text = json_object_get(h->config, "text_config");
    if (h->is->flags & HF_TEXT_PART) {
        if (!json_is_object(text))
            return kvl_fail(h->err, KVL_EMODEL, "config.json: text_config is missing");
        json_incref(text);
        json_decref(h->config);
        h->config = text;
    }
    if (!h->is->defaults) return KVL_OK;
    json_t *defaults = json_loads(h->is->defaults, 0, NULL);
    int rc = defaults && json_object_update_missing(h->config, defaults) == 0 ? KVL_OK : KVL_ENOMEM;
    json_decref(defaults);
    return rc;
}

int kvl_hf_config(struct hf *h)
{
    KVL_TRY(hf_find_class(h));
    KVL_TRY(hf_complete(h));
    KVL_TRY(hf_check_quantization(h));
    KVL_TRY(hf_check_act(h));
    KVL_TRY(hf_check_neutral(h));
    KVL_TRY(hf_shape(h));
    return kvl_hf_rope(h);
}
