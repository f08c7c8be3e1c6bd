/* The architectures that kvlab computes. */
#include "arch.h"

#include "kvl/gguf.h"

#include <stdio.h>
#include <string.h>

static const struct kvl_arch arch_rows[] = {
    /* Llama 1 to 3, Mistral, Mixtral, Yi, TinyLlama, SmolLM */
    { .name = "llama",
      .rope = KVL_ROPE_NORM,
      .hf_rope = KVL_ROPE_NEOX,
      .window = true,
      .experts = KVL_EXPERTS_MAY },
    /* Qwen 2 and 2.5 */
    { .name = "qwen2",
      .rope = KVL_ROPE_NEOX,
      .hf_rope = KVL_ROPE_NEOX,
      .qkv_bias = true,
      .window = true },
    { .name = "qwen3",
      .rope = KVL_ROPE_NEOX,
      .hf_rope = KVL_ROPE_NEOX,
      .qk_norm = true,
      .window = true },
    /* InternLM 2 and 2.5 */
    { .name = "internlm2", .rope = KVL_ROPE_NORM, .hf_rope = KVL_ROPE_NEOX, .untied = true },
    { .name = "smollm3",
      .rope = KVL_ROPE_NORM,
      .hf_rope = KVL_ROPE_NEOX,
      .window = true,
      .nope_step = 4 },
    /* Phi-3, 3.5, 4 and 4-mini */
    { .name = "phi3",
      .rope = KVL_ROPE_NEOX,
      .hf_rope = KVL_ROPE_NEOX,
      .qkv_fused = true,
      .window = true,
      .up_fused = true },
    /* GLM-4 of 2024 and its long kin */
    { .name = "chatglm",
      .rope = KVL_ROPE_NORM,
      .hf_rope = KVL_ROPE_NORM,
      .qkv_fused = true,
      .qkv_bias = true,
      .up_fused = true },
    /* GLM-4-0414 */
    { .name = "glm4",
      .rope = KVL_ROPE_NORM,
      .hf_rope = KVL_ROPE_NORM,
      .up_fused = true,
      .post_norms = true },
    { .name = "gemma2",
      .rope = KVL_ROPE_NEOX,
      .hf_rope = KVL_ROPE_NEOX,
      .window = true,
      .window_period = 2,
      .window_default = 4096,
      .cap = 50,
      .wide_scale = 46,
      .act = KVL_ACT_GELU_TANH,
      .post_norms = true,
      .embed_scale = true,
      .final_cap = true,
      .final_cap_default = 30 },
    { .name = "gemma3",
      .rope = KVL_ROPE_NEOX,
      .hf_rope = KVL_ROPE_NEOX,
      .qk_norm = true,
      .window = true,
      .window_period = 6,
      .wide_scale = 62,
      .local_base = 10000,
      .act = KVL_ACT_GELU_TANH,
      .post_norms = true,
      .embed_scale = true,
      .final_cap = true },
    { .name = "qwen3moe",
      .rope = KVL_ROPE_NEOX,
      .hf_rope = KVL_ROPE_NEOX,
      .qk_norm = true,
      .experts = KVL_EXPERTS_MUST },
    /* GPT-NeoX, Pythia */
    { .name = "gptneox",
      .rope = KVL_ROPE_NEOX,
      .hf_rope = KVL_ROPE_NEOX,
      .qkv_fused = true,
      .qkv_bias = true,
      .act = KVL_ACT_GELU,
      .no_gate = true,
      .layer_norm = true,
      .parallel = true },
    /* OPT in the sizes whose norms come first; a GGUF file of it has the names of GPT-2's */
    { .name = "opt",
      .qkv_bias = true,
      .nope_step = 1,
      .positions = true,
      .act = KVL_ACT_RELU,
      .no_gate = true,
      .layer_norm = true },
    { .name = "gpt-oss",
      .rope = KVL_ROPE_NEOX,
      .hf_rope = KVL_ROPE_NEOX,
      .qkv_bias = true,
      .sinks = true,
      .window = true,
      .window_period = 2,
      .window_default = 128,
      .exact_yarn = true,
      .act = KVL_ACT_SWISH_CLAMPED,
      .experts = KVL_EXPERTS_MUST,
      .ffn_norm = "post_attention_norm" },
};

enum { ARCH_ROWS = sizeof arch_rows / sizeof *arch_rows };

const struct kvl_arch *kvl_arch_find(const struct kvl_str *name)
{
    for (size_t i = 0; i < ARCH_ROWS; i++)
        if (strlen(arch_rows[i].name) == name->len &&
            memcmp(arch_rows[i].name, name->s, name->len) == 0)
            return &arch_rows[i];
    return NULL;
}

const char *kvl_arch_names(char *out, size_t cap)
{
    size_t len = 0;
    out[0] = 0;
    for (size_t i = 0; i < ARCH_ROWS && len < cap; i++)
        len += (size_t)snprintf(out + len, cap - len, "%s%s", i ? ", " : "", arch_rows[i].name);
    return out;
}
