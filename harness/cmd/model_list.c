/* The list of kvlab models. */
#include "model_list.h"

#include <stddef.h>

/* clang-format off: a table */
static const struct kvl_family families[] = {
    { "Llama 3.1, 3.2, 3.3", "llama", "Llama-3.2-1B-Instruct", 16, 8, 64, .81, "Q4_K_M", 131072,
      NULL },
    { "Llama 2, LongChat, Vicuna", "llama", "Llama-2-7B-Chat", 32, 32, 128, 4.08, "Q4_K_M", 4096,
      NULL },
    { "SmolLM, SmolLM2", "llama", "SmolLM2-135M-Instruct", 30, 3, 64, .11, "Q4_K_M", 8192, NULL },
    { "Yi", "llama", "Yi-6B-200K", 32, 4, 128, 3.67, "Q4_K_M", 200000, NULL },
    { "Mistral, Ministral, Nemo", "llama", "Mistral-7B-Instruct-v0.3", 32, 8, 128, 4.37, "Q4_K_M",
      32768, NULL },
    { "Mixtral", "llama", "Mixtral-8x7B-Instruct-v0.1", 32, 8, 128, 26.4, "Q4_K_M", 32768,
      "experts" },
    { "Qwen 2, 2.5", "qwen2", "Qwen2.5-0.5B-Instruct", 24, 2, 64, .40, "Q4_K_M", 32768, NULL },
    { "Qwen 3", "qwen3", "Qwen3-0.6B", 28, 8, 128, .40, "Q4_K_M", 40960, NULL },
    { "Qwen 3 with experts", "qwen3moe", "Qwen3-30B-A3B", 48, 4, 128, 18.6, "Q4_K_M", 40960,
      "experts" },
    { "Phi-3, 3.5, 4", "phi3", "Phi-3.5-mini-instruct", 32, 32, 96, 2.39, "Q4_K_M", 131072, NULL },
    { "Gemma 2", "gemma2", "gemma-2-2b-it", 26, 4, 256, 1.71, "Q4_K_M", 8192,
      "windows in every other layer" },
    { "Gemma 3", "gemma3", "gemma-3-4b-it", 34, 4, 256, 2.49, "Q4_K_M", 131072,
      "windows in 5 of 6 layers; text only" },
    { "InternLM 2, 2.5", "internlm2", "internlm2_5-7b-chat-1m", 32, 8, 128, 4.71, "Q4_K_M", 1048576,
      NULL },
    { "SmolLM3", "smollm3", "SmolLM3-3B", 36, 4, 128, 1.92, "Q4_K_M", 131072, NULL },
    { "GLM-4 of 2024", "chatglm", "glm-4-9b-chat", 40, 2, 128, 6.25, "Q4_K_M", 131072, NULL },
    { "GLM-4-0414", "glm4", "GLM-4-9B-0414", 40, 2, 128, 6.25, "Q4_K_M", 32768, NULL },
    { "Pythia, GPT-NeoX", "gptneox", "pythia-160m", 12, 12, 64, .32, "F16", 2048, NULL },
    { "OPT but 350M", "opt", "opt-125m", 12, 12, 64, .23, "F16", 2048,
      "folders only; learned positions" },
    { "gpt-oss", "gpt-oss", "gpt-oss-20b", 24, 8, 64, 12.1, "MXFP4", 131072, "experts" },
};

static const struct kvl_refused_family refused[] = {
    { "DeepSeek V2, V3, R1", "deepseek2",
      "MLA: one vector for all heads of a layer, values inside of keys, which no cache here "
      "holds" },
    { "Llama 4", "llama4", "chunked attention, layers that scale with the position" },
    { "Mamba, RWKV, Jamba", "mamba", "no keys and values, or not in every layer" },
    { "T5, BERT and other encoders", "bert", "they do not continue a text" },
    { "models with images or sound", "clip",
      "only the text part runs, where it is of a family above" },
    { "GPTQ, AWQ, FP8, .bin and .pth files", NULL,
      "want *.safetensors in F32, F16 or BF16, or a GGUF file" },
    { "GGUF types IQ1, IQ2, IQ3", NULL,
      "want Q2_K to Q8_0, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, MXFP4 or floats" },
};
/* clang-format on */

const struct kvl_family *kvl_family_at(int32_t i)
{
    return (size_t)i < sizeof families / sizeof families[0] ? &families[i] : NULL;
}

const struct kvl_refused_family *kvl_refused_family_at(int32_t i)
{
    return (size_t)i < sizeof refused / sizeof refused[0] ? &refused[i] : NULL;
}

double kvl_family_kv_gib(const struct kvl_family *f, int32_t n_tok)
{
    return 4.0 * f->n_layers * f->n_kv_heads * f->head_dim * n_tok / 0x1p30;
}
