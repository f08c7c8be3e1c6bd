/* Templates of known families, in our own words, for models whose files have none.
 *
 * Each says what the published one says for a system text and turns of user and assistant; sentences about the model
 * that some put in where no system text is given are left out.  BOS is the tokenizer's. */
#include "chat_impl.h"

#include <string.h>

#define EACH "{% for m in messages %}"
#define DONE "{% endfor %}"
#define ASK  "{% if add_generation_prompt %}"
#define FI   "{% endif %}"

/* Role after role, each with something around it. */
#define ROLES(open, between, close, ask)                                                           \
    EACH open "{{ m.role }}" between "{{ m.content }}" close DONE ASK ask FI

/* The system text goes before what the user says first. */
#define SYSTEM_FIRST "{% set ns = namespace(s='') %}" EACH "{% if m.role == 'system' %}"

#define CHATML(ask) ROLES("<|im_start|>", "\n", "<|im_end|>\n", ask)

/* Mistral's: `space` stands around what is said. */
#define MISTRAL(open, system, close, answer)                                                       \
    SYSTEM_FIRST system "{% elif m.role == 'user' %}" open "{{ ns.s + m.content }}" close          \
                        "{% set ns.s = '' %}{% else %}" answer                                     \
                        "{{ m.content + eos_token }}" FI DONE

static const struct chat_named {
    const char *name, *text;
} chats[] = {
    { "phi-4",
      ROLES("<|im_start|>", "<|im_sep|>", "<|im_end|>", "<|im_start|>assistant<|im_sep|>") },
    { "chatml", CHATML("<|im_start|>assistant\n") },
    /* Qwen3 told not to think first. */
    { "chatml-no-think", EACH "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last "
                              "%}<think>\n\n</think>\n\n{% endif %}"
                              "{{ m.content }}<|im_end|>\n" DONE ASK
                              "<|im_start|>assistant\n<think>\n\n</think>\n\n" FI },
    { "mistral-v7",
      EACH "{% if m.role == 'system' %}[SYSTEM_PROMPT] {{ m.content }}[/SYSTEM_PROMPT]"
           "{% elif m.role == 'user' %}[INST] {{ m.content }}[/INST]{% else %} {{ m.content + "
           "eos_token }}" FI DONE },
    { "mistral-v7-tekken",
      EACH "{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
           "{% elif m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{{ m.content + "
           "eos_token }}" FI DONE },
    { "mistral-v1", MISTRAL(" [INST] ", "{% set ns.s = m.content + '\\n\\n' %}", " [/INST]", " ") },
    { "mistral-v3-tekken",
      MISTRAL("[INST]", "{% set ns.s = m.content + '\\n\\n' %}", "[/INST]", "") },
    { "mistral-v3", MISTRAL("[INST] ", "{% set ns.s = m.content + '\\n\\n' %}", "[/INST]", " ") },
    { "llama-2", SYSTEM_FIRST
      "{% set ns.s = '<<SYS>>\\n' + m.content.strip() + '\\n<</SYS>>\\n\\n' %}"
      "{% elif m.role == 'user' %}{% if not loop.first and loop.previtem.role == 'assistant' %}{{ "
      "bos_token }}"
      "{% endif %}[INST] {{ (ns.s + m.content).strip() }} [/INST]{% set ns.s = '' %}{% else %} "
      "{{ m.content.strip() }} {{ eos_token }}" FI DONE },
    { "phi-4-mini", EACH "<|{{ m.role }}|>{{ m.content }}<|end|>" DONE ASK "<|assistant|>" FI },
    { "phi-3", EACH "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n" DONE ASK "<|assistant|>\n" FI },
    { "glm-4",
      "[gMASK]<sop>" EACH "<|{{ m.role }}|>\n{{ m.content }}" DONE ASK "<|assistant|>" FI },
    { "zephyr",
      EACH "<|{{ m.role }}|>\n{{ m.content + eos_token }}\n" DONE ASK "<|assistant|>\n" FI },
    { "gemma", SYSTEM_FIRST "{% set ns.s = m.content + '\\n\\n' %}{% else %}<start_of_turn>"
                            "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ ns.s + "
                            "m.content.strip() }}<end_of_turn>\n"
                            "{% set ns.s = '' %}" FI DONE ASK "<start_of_turn>model\n" FI },
    { "vicuna", "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}A chat "
                "between a curious user and an "
                "artificial intelligence assistant. The assistant gives helpful, detailed, and "
                "polite answers to the user's "
                "questions.{% endif %}" EACH "{% if m.role == 'user' %}{{ ' ' if loop.first or "
                "loop.previtem.role == 'system' }}USER: {{ m.content }} ASSISTANT:{% elif m.role "
                "== 'assistant' %} {{ m.content + eos_token }}" FI DONE },
    { "llama-3", EACH
      "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>" DONE
          ASK "<|start_header_id|>assistant<|end_header_id|>\n\n" FI },
    /* The model names a channel before it writes; an answer stands in the one that is shown. */
    { "gpt-oss", EACH
      "<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>"
      "{{ m.content }}<|end|>" DONE ASK "<|start|>assistant" FI },
};

const char *kvl_chat_at(size_t i)
{
    return i < sizeof chats / sizeof chats[0] ? chats[i].name : NULL;
}

const char *kvl_chat_source(const char *name)
{
    for (size_t i = 0; i < sizeof chats / sizeof chats[0]; i++)
        if (strcmp(chats[i].name, name) == 0) return chats[i].text;
    return NULL;
}
