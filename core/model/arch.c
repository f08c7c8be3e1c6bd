/* The architectures that kvlab computes. */
#include "arch.h"

#include "kvl/gguf.h"

#include <stdio.h>
#include <string.h>

static const struct kvl_arch arch_rows[] = {
    /* Llama 1 to 3, Mistral, Yi, TinyLlama, SmolLM */
    { .name = "llama",
      .hf_name = "LlamaForCausalLM|MistralForCausalLM",
      .rope = KVL_ROPE_NORM,
      .hf_rope = KVL_ROPE_NEOX },
    /* Qwen 2 and 2.5 */
    { .name = "qwen2",
      .hf_name = "Qwen2ForCausalLM",
      .rope = KVL_ROPE_NEOX,
      .hf_rope = KVL_ROPE_NEOX,
      .qkv_bias = true },
    { .name = "qwen3",
      .hf_name = "Qwen3ForCausalLM",
      .rope = KVL_ROPE_NEOX,
      .hf_rope = KVL_ROPE_NEOX,
      .qk_norm = true },
    /* InternLM 2 and 2.5 */
    { .name = "internlm2",
      .hf_name = "InternLM2ForCausalLM",
      .rope = KVL_ROPE_NORM,
      .hf_rope = KVL_ROPE_NEOX,
      .untied = true },
    { .name = "smollm3",
      .hf_name = "SmolLM3ForCausalLM",
      .rope = KVL_ROPE_NORM,
      .hf_rope = KVL_ROPE_NEOX,
      .nope_step = 4 },
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
