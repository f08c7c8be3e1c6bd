/* Chat templates: the language, prompts as text and as tokens. */
#include "gguf_writer.h"
#include "kvl/chat.h"
#include "kvl/gguf.h"

#include <dirent.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- what the strings are, written out -------------------------------------------------------- */

/* A question and a system text, and the same where an answer prefix follows.  «» are around what has to
 * be one token in a vocabulary that has it. */
static const struct expected {
    const char *name, *plain, *with;
} expected[] = {
    { "phi-4",
      "«<|im_start|>»user«<|im_sep|>»How?«<|im_end|>»«<|im_start|>»assistant«<|im_sep|>»It is",
      "«<|im_start|>»system«<|im_sep|>»Be brief.«<|im_end|>»«<|im_start|>»user«<|im_sep|>»How?"
      "«<|im_end|>»«<|im_start|>»assistant«<|im_sep|>»It is" },
    { "chatml", "«<|im_start|>»user\nHow?«<|im_end|>»\n«<|im_start|>»assistant\nIt is",
      "«<|im_start|>»system\nBe brief.«<|im_end|>»\n«<|im_start|>»user\nHow?«<|im_end|>»\n"
      "«<|im_start|>»assistant\nIt is" },
    { "chatml-no-think",
      "«<|im_start|>»user\nHow?«<|im_end|>»\n«<|im_start|>»assistant\n"
      "«<think>»\n\n«</think>»\n\nIt is",
      "«<|im_start|>»system\nBe brief.«<|im_end|>»\n«<|im_start|>»user\nHow?«<|im_end|>»\n"
      "«<|im_start|>»assistant\n«<think>»\n\n«</think>»\n\nIt is" },
    { "mistral-v7", "«[INST]» How?«[/INST]» It is",
      "«[SYSTEM_PROMPT]» Be brief.«[/SYSTEM_PROMPT]»«[INST]» How?«[/INST]» It is" },
    { "mistral-v7-tekken", "«[INST]»How?«[/INST]»It is",
      "«[SYSTEM_PROMPT]»Be brief.«[/SYSTEM_PROMPT]»«[INST]»How?«[/INST]»It is" },
    { "mistral-v1", " «[INST]» How? «[/INST]» It is",
      " «[INST]» Be brief.\n\nHow? «[/INST]» It is" },
    { "mistral-v3-tekken", "«[INST]»How?«[/INST]»It is",
      "«[INST]»Be brief.\n\nHow?«[/INST]»It is" },
    { "mistral-v3", "«[INST]» How?«[/INST]» It is", "«[INST]» Be brief.\n\nHow?«[/INST]» It is" },
    { "llama-2", "«[INST]» How? «[/INST]» It is",
      "«[INST]» <<SYS>>\nBe brief.\n<</SYS>>\n\nHow? «[/INST]» It is" },
    { "phi-4-mini", "«<|user|>»How?«<|end|>»«<|assistant|>»It is",
      "«<|system|>»Be brief.«<|end|>»«<|user|>»How?«<|end|>»«<|assistant|>»It is" },
    { "phi-3", "«<|user|>»\nHow?«<|end|>»\n«<|assistant|>»\nIt is",
      "«<|system|>»\nBe brief.«<|end|>»\n«<|user|>»\nHow?«<|end|>»\n«<|assistant|>»\nIt is" },
    { "glm-4", "«[gMASK]»«<sop>»«<|user|>»\nHow?«<|assistant|>»\nIt is",
      "«[gMASK]»«<sop>»«<|system|>»\nBe brief.«<|user|>»\nHow?«<|assistant|>»\nIt is" },
    { "zephyr", "«<|user|>»\nHow?«</s>»\n«<|assistant|>»\nIt is",
      "«<|system|>»\nBe brief.«</s>»\n«<|user|>»\nHow?«</s>»\n«<|assistant|>»\nIt is" },
    { "gemma", "«<start_of_turn>»user\nHow?«<end_of_turn>»\n«<start_of_turn>»model\nIt is",
      "«<start_of_turn>»user\nBe brief.\n\nHow?«<end_of_turn>»\n«<start_of_turn>»model\nIt is" },
    { "vicuna",
      "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
      "helpful, detailed, and polite answers to the user's questions. USER: How? ASSISTANT: It is",
      "Be brief. USER: How? ASSISTANT: It is" },
    { "llama-3",
      "«<|start_header_id|>»user«<|end_header_id|>»\n\nHow?«<|eot_id|>»«<|start_header_id|>»"
      "assistant«<|end_header_id|>»\n\nIt is",
      "«<|start_header_id|>»system«<|end_header_id|>»\n\nBe brief.«<|eot_id|>»"
      "«<|start_header_id|>»user«<|end_header_id|>»\n\nHow?«<|eot_id|>»«<|start_header_id|>»"
      "assistant«<|end_header_id|>»\n\nIt is" },
    { "gpt-oss",
      "«<|start|>»user«<|message|>»How?«<|end|>»«<|start|>»assistant«<|channel|>»final«<|message|>»"
      "It is",
      "«<|start|>»system«<|message|>»Be brief.«<|end|>»«<|start|>»user«<|message|>»How?«<|end|>»"
      "«<|start|>»assistant«<|channel|>»final«<|message|>»It is" },
};
enum { N_EXPECTED = sizeof expected / sizeof expected[0] };

static const char *const controls[] = {
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_sep|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|end|>",
    "[/SYSTEM_PROMPT]",
    "[gMASK]",
    "<sop>",
    "<|observation|>",
    "<|endoftext|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<eos>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|return|>",
    "<|call|>",
};
enum { N_CONTROLS = sizeof controls / sizeof controls[0] };

/* ---- vocabularies ---------------------------------------------------------------------------- */

static struct kvl_tokenizer *create(struct gw *w)
{
    struct kvl_buf file = { 0 };
    struct kvl_err err = { 0 };
    struct kvl_gguf *g = NULL;
    struct kvl_tokenizer *t = NULL;
    gw_finish(w, &file);
    gw_free(w);
    assert_int_equal(kvl_gguf_open_memory(file.data, file.len, &g, &err), KVL_OK);
    if (kvl_tokenizer_create(g, &t, &err) != KVL_OK) fail_msg("%s", err.msg);
    kvl_gguf_close(g);
    kvl_buf_free(&file);
    return t;
}

/* The control tokens, then a token per byte. */
static struct kvl_tokenizer *bytes_and_controls(void)
{
    enum { N = N_CONTROLS + 256 };
    char text[256][8] = { { 0 } };
    const char *token[N];
    int32_t type[N];
    struct gw w;
    gw_init(&w);
    for (uint32_t i = 0; i < N; i++) {
        if (i >= N_CONTROLS) gw_utf8(gw_byte_char(i - N_CONTROLS), text[i - N_CONTROLS]);
        token[i] = i < N_CONTROLS ? controls[i] : text[i - N_CONTROLS];
        type[i] = i < N_CONTROLS ? 3 : 1;
    }
    gw_str(&w, "tokenizer.ggml.model", "gpt2");
    gw_str(&w, "tokenizer.ggml.pre", "gpt-2");
    gw_arr_str(&w, "tokenizer.ggml.tokens", N, token);
    gw_arr(&w, "tokenizer.ggml.token_type", 5, N, type, sizeof type);
    gw_arr_str(&w, "tokenizer.ggml.merges", 0, NULL);
    gw_u32(&w, "tokenizer.ggml.bos_token_id", 0);
    gw_u32(&w, "tokenizer.ggml.eos_token_id", 1);
    gw_bool(&w, "tokenizer.ggml.add_bos_token", true);
    return create(&w);
}

/* SentencePiece: bytes, control tokens, single characters, and a word with a space before it. */
static struct kvl_tokenizer *pieces_and_controls(void)
{
    static const char *const words[] = { "\xe2\x96\x81",
                                         "a",
                                         "b",
                                         "i",
                                         "s",
                                         "\xe2\x96\x81"
                                         "a",
                                         "\xe2\x96\x81"
                                         "b",
                                         "\xe2\x96\x81"
                                         "i" };
    enum { N_WORDS = sizeof words / sizeof words[0], N = 3 + N_CONTROLS - 2 + 256 + N_WORDS };
    const char *token[N] = { "<unk>", "<s>", "</s>" };
    char byte[256][8];
    int32_t type[N] = { 2, 3, 3 }, n = 3;
    float score[N] = { 0 };
    struct gw w;
    for (int32_t i = 2; i < N_CONTROLS; i++) {
        type[n] = 3;
        token[n++] = controls[i];
    }
    for (int b = 0; b < 256; b++) {
        snprintf(byte[b], sizeof byte[b], "<0x%02X>", (unsigned)b);
        type[n] = 6;
        token[n++] = byte[b];
    }
    for (int32_t i = 0; i < N_WORDS; i++) {
        type[n] = 1;
        score[n] = i < 5 ? -10.0f : -1.0f;
        token[n++] = words[i];
    }
    gw_init(&w);
    gw_str(&w, "tokenizer.ggml.model", "llama");
    gw_arr_str(&w, "tokenizer.ggml.tokens", N, token);
    gw_arr(&w, "tokenizer.ggml.token_type", 5, N, type, sizeof type);
    gw_arr(&w, "tokenizer.ggml.scores", 6, N, score, sizeof score);
    return create(&w);
}

/* ---- helpers --------------------------------------------------------------------------------- */

/* Tokens as text, «» around control tokens, `cut` before every other one. */
static struct kvl_buf show(const struct kvl_tokenizer *t, const struct kvl_tokens *tokens,
                           const char *cut)
{
    struct kvl_buf out = { 0 };
    kvl_buf_adds(&out, "");
    for (int32_t i = 0; i < tokens->n; i++) {
        struct kvl_buf with = { 0 }, without = { 0 };
        kvl_buf_adds(&with, "");
        assert_int_equal(kvl_decode(t, &tokens->id[i], 1, true, false, &with, NULL), KVL_OK);
        assert_int_equal(kvl_decode(t, &tokens->id[i], 1, false, false, &without, NULL), KVL_OK);
        kvl_buf_printf(&out, without.len ? "%s%s" : "«%s%s»", without.len ? cut : "", with.data);
        kvl_buf_free(&with);
        kvl_buf_free(&without);
    }
    return out;
}

/* The tokens of a prompt: as one text, and as a sweep makes them, up to the end of `begin` first. */
static struct kvl_tokens prompt(const struct kvl_chat *chat, const char *system, const char *begin,
                                const char *more, const char *answer)
{
    struct kvl_chat_turn turn[3];
    struct kvl_chat_text x = { 0 };
    struct kvl_chat_begin b;
    struct kvl_err err = { 0 };
    struct kvl_tokens out = { 0 }, whole = { 0 };
    struct kvl_buf user = { 0 };
    size_t n = 0;
    kvl_buf_printf(&user, "%s%s", begin, more);
    if (system) turn[n++] = (struct kvl_chat_turn){ "system", system, strlen(system) };
    turn[n++] = (struct kvl_chat_turn){ "user", user.data, user.len };
    if (*answer) turn[n++] = (struct kvl_chat_turn){ "assistant", answer, strlen(answer) };
    if (kvl_chat_render(chat, turn, n, &x, &err) != KVL_OK) fail_msg("%s", err.msg);
    assert_int_equal(kvl_chat_encode(chat, &x, 0, &whole, &err), KVL_OK);
    if (kvl_chat_begin(chat, system, &b, &err) != KVL_OK) fail_msg("%s", err.msg);
    out = b.before;
    b.before = (struct kvl_tokens){ 0 };
    int32_t first = out.n;
    assert_int_equal(kvl_encode(b.inside, begin, strlen(begin), KVL_ENCODE_BOS, &out, &err), 0);
    for (int32_t i = 0; i < out.n; i++) {
        if (i <= first) assert_int_equal(out.begin[i], 0);
        if (i > first)
            assert_true(out.begin[i] >= out.begin[i - 1] && out.begin[i] < strlen(begin) + !*begin);
    }
    assert_memory_equal(x.text.data, b.text.data, b.text.len);
    assert_int_equal(kvl_chat_encode(chat, &x, b.text.len + strlen(begin), &out, &err), KVL_OK);
    assert_int_equal(out.n, whole.n); /* where the parts do not merge */
    assert_memory_equal(out.id, whole.id, (size_t)out.n * sizeof *out.id);
    kvl_chat_begin_free(&b);
    kvl_chat_text_free(&x);
    kvl_tokens_free(&whole);
    kvl_buf_free(&user);
    return out;
}

static struct kvl_chat *open_chat(const struct kvl_tokenizer *t, const char *name)
{
    struct kvl_chat *chat = NULL;
    struct kvl_err err = { 0 };
    if (kvl_chat_open(t, name, &chat, &err) != KVL_OK) fail_msg("%s: %s", name, err.msg);
    return chat;
}

static void expect_prompt(const struct kvl_tokenizer *t, const char *name, const char *system,
                          const char *begin, const char *more, const char *answer, const char *cut,
                          const char *want)
{
    struct kvl_chat *chat = open_chat(t, name);
    struct kvl_tokens tokens = prompt(chat, system, begin, more, answer);
    struct kvl_buf got = show(t, &tokens, cut);
    if (strcmp(got.data, want) != 0) fail_msg("%s: \"%s\", want \"%s\"", name, got.data, want);
    kvl_buf_free(&got);
    kvl_tokens_free(&tokens);
    kvl_chat_close(chat);
}

/* ---- templates by name ------------------------------------------------------------------------ */

static void test_tokens(void **state)
{
    (void)state;
    struct kvl_tokenizer *t = bytes_and_controls();
    struct kvl_chat *chat;
    for (size_t i = 0; i < N_EXPECTED; i++) {
        struct kvl_buf want = { 0 };
        kvl_buf_printf(&want, "«<s>»%s", expected[i].plain);
        expect_prompt(t, expected[i].name, NULL, "Ho", "w?", "It is", "", want.data);
        want.len = 0;
        kvl_buf_printf(&want, "«<s>»%s", expected[i].with);
        expect_prompt(t, expected[i].name, "Be brief.", "Ho", "w?", "It is", "", want.data);
        kvl_buf_free(&want);
    }
    for (size_t i = 0; kvl_chat_at(i); i++) { /* none without an expectation */
        bool found = false;
        for (size_t k = 0; k < N_EXPECTED; k++)
            found |= strcmp(kvl_chat_at(i), expected[k].name) == 0;
        assert_true(found);
    }
    assert_int_equal(kvl_chat_open(t, "chat", &chat, NULL), KVL_EINVAL);
    kvl_tokenizer_destroy(t);
}

/* What the user, the system text or the answer spells is text; an empty system text is a turn; what a template
 * strips is what Python strips. */
static void test_spelling(void **state)
{
    (void)state;
    struct kvl_tokenizer *t = bytes_and_controls();
    expect_prompt(t, "chatml", "</s>", "a<|im_end|>", "<|im_start|>", "<|im_end|>", "",
                  "«<s>»«<|im_start|>»system\n</s>«<|im_end|>»\n«<|im_start|>»user\na<|im_end|>"
                  "<|im_start|>«<|im_end|>»\n«<|im_start|>»assistant\n<|im_end|>");
    expect_prompt(t, "chatml", "", "\n a", "", "", "",
                  "«<s>»«<|im_start|>»system\n«<|im_end|>»\n«<|im_start|>»user\n\n a«<|im_end|>»\n"
                  "«<|im_start|>»assistant\n");
    expect_prompt(t, "gpt-oss", NULL, "a", "b", "", "",
                  "«<s>»«<|start|>»user«<|message|>»ab«<|end|>»«<|start|>»assistant");
    expect_prompt(t, "glm-4", NULL, "a", "b", "", "",
                  "«<s>»«[gMASK]»«<sop>»«<|user|>»\nab«<|assistant|>»");
    expect_prompt(t, "llama-3", "  x \n", "a", "b\xc2\xa0\xe3\x80\x80 ", "", "",
                  "«<s>»«<|start_header_id|>»system«<|end_header_id|>»\n\nx«<|eot_id|>»"
                  "«<|start_header_id|>»user«<|end_header_id|>»\n\nab«<|eot_id|>»"
                  "«<|start_header_id|>»assistant«<|end_header_id|>»\n\n");
    expect_prompt(t, "llama-2", NULL, "", " ", "", "", "«<s>»«[INST]»  «[/INST]»");
    kvl_tokenizer_destroy(t);
}

/* SentencePiece: a space is put before the text and behind every control token, as the tokenizers of these models
 * do; one of the template comes besides. */
static void test_spaces(void **state)
{
    (void)state;
    struct kvl_tokenizer *t = pieces_and_controls();
    expect_prompt(t, "mistral-v3", NULL, "ab", "b", "is", "|",
                  "«<s>»«[INST]»| | a|b|b«[/INST]»| | i|s");
    expect_prompt(t, "phi-3", NULL, "ab", "b", "is", "|",
                  "«<s>»«<|user|>»| |\n|a|b|b«<|end|>»| |\n«<|assistant|>»| |\n|i|s");
    expect_prompt(t, "phi-4-mini", NULL, "ab", "b", "", "|",
                  "«<s>»«<|user|>»| a|b|b«<|end|>»«<|assistant|>»");
    expect_prompt(t, "zephyr", NULL, "ab", "b", "", "|",
                  "«<s>»«<|user|>»| |\n|a|b|b«</s>»| |\n«<|assistant|>»| |\n");
    expect_prompt(t, "vicuna", "b", "ab", "b", "is", "|",
                  "«<s>»| b| |U|S|E|R|:| a|b|b| |A|S|S|I|S|T|A|N|T|:| i|s");
    kvl_tokenizer_destroy(t);
}

/* A turn behind an answer, written out. */
static const struct turn {
    const char *name, *answer, *next;
} turns[] = {
    { "phi-4", " ab ", "«<|im_end|>»«<|im_start|>»user«<|im_sep|>»How?" },
    { "chatml", " ab ", "«<|im_end|>»\n«<|im_start|>»user\nHow?" },
    { "chatml-no-think", " ab ", "«<|im_end|>»\n«<|im_start|>»user\nHow?" },
    { "mistral-v7", "  ab ", "«</s>»«[INST]» How?" },
    { "mistral-v7-tekken", " ab ", "«</s>»«[INST]»How?" },
    { "mistral-v1", "  ab ", "«</s>» «[INST]» How?" },
    { "mistral-v3-tekken", " ab ", "«</s>»«[INST]»How?" },
    { "mistral-v3", "  ab ", "«</s>»«[INST]» How?" },
    { "llama-2", " ab", " «</s>»«<s>»«[INST]» How?" },
    { "phi-4-mini", " ab ", "«<|end|>»«<|user|>»How?" },
    { "phi-3", " ab ", "«<|end|>»\n«<|user|>»\nHow?" },
    { "glm-4", "\n ab ", "«<|user|>»\nHow?" },
    { "zephyr", " ab ", "«</s>»\n«<|user|>»\nHow?" },
    { "gemma", "ab", "«<end_of_turn>»\n«<start_of_turn>»user\nHow?" },
    { "vicuna", "  ab ", "«</s>»USER: How?" },
    { "llama-3", "ab", "«<|eot_id|>»«<|start_header_id|>»user«<|end_header_id|>»\n\nHow?" },
    { "gpt-oss", "«<|channel|>»final«<|message|>» ab ",
      "«<|end|>»«<|start|>»user«<|message|>»How?" },
};

static void test_turns(void **state)
{
    static const struct kvl_chat_turn turn[] = { { "user", "Why?", 4 },
                                                 { "assistant", " ab ", 4 },
                                                 { "user", "How?", 4 } };
    (void)state;
    struct kvl_tokenizer *t = bytes_and_controls();
    for (size_t i = 0; kvl_chat_at(i); i++) {
        const struct turn *row = turns;
        while (strcmp(row->name, kvl_chat_at(i)) != 0)
            assert_true(++row < turns + sizeof turns / sizeof turns[0]);
        struct kvl_chat *chat = open_chat(t, row->name);
        struct kvl_chat_text first = { 0 }, all = { 0 };
        struct kvl_tokens tokens = { 0 };
        assert_int_equal(kvl_chat_render(chat, turn, 1, &first, NULL), KVL_OK);
        assert_int_equal(kvl_chat_render(chat, turn, 3, &all, NULL), KVL_OK);
        size_t from = first.text.len;
        if (strcmp(row->name, "chatml-no-think") == 0) from -= strlen("<think>\n\n</think>\n\n");
        assert_memory_equal(first.text.data, all.text.data, from);
        assert_int_equal(kvl_chat_encode(chat, &all, from, &tokens, NULL), KVL_OK);
        struct kvl_buf got = show(t, &tokens, ""), want = { 0 };
        kvl_buf_printf(&want, "%s%s", row->answer, row->next);
        if (strncmp(got.data, want.data, want.len) != 0)
            fail_msg("%s: \"%s\", want \"%s\"", row->name, got.data, want.data);
        kvl_buf_free(&got);
        kvl_buf_free(&want);
        kvl_tokens_free(&tokens);
        kvl_chat_text_free(&first);
        kvl_chat_text_free(&all);
        kvl_chat_close(chat);
    }
    kvl_tokenizer_destroy(t);
}

static void test_stops(void **state)
{
    static const struct {
        const char *name, *stops;
    } row[] = { { "chatml", "<|im_end|>" },   { "llama-3", "<|eot_id|>" }, { "phi-3", "<|end|>" },
                { "gemma", "<end_of_turn>" }, { "glm-4", "<|user|>" },     { "mistral-v3", "</s>" },
                { "zephyr", "</s>" } };
    (void)state;
    struct kvl_tokenizer *t = bytes_and_controls();
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct kvl_chat *chat = open_chat(t, row[i].name);
        int32_t id = 0;
        while (strcmp(controls[id], row[i].stops) != 0) id++;
        assert_true(kvl_chat_stops(chat, id));
        assert_false(kvl_chat_stops(chat, N_CONTROLS + 'a'));
        assert_false(kvl_chat_stops(chat, 2)); /* <|im_start|> */
        kvl_chat_close(chat);
    }
    kvl_tokenizer_destroy(t);
}

/* What cannot be run as it is meant is refused, with what and where. */
static void test_refused(void **state)
{
    static const struct {
        const char *text, *why;
    } row[] = {
        { "{% include 'x' %}", "{% include %} is not known here" },
        { "a\n{{ messages | shout }}", "line 2: no filter \"shout\" is known here" },
        { "{{ messages[0].content is loud }}", "no test \"loud\"" },
        { "{{ messages[0].content.zfill(3) }}", "method zfill of a text is not known here" },
        { "{% for m in messages %}x", "want {% endfor %}" },
        { "{{ 'a", "a text that does not end" },
        { "{{ raise_exception('Only tools') }}", "the template says \"Only tools\"" },
        { "{{ bos_token }}", "does not show what the user says" },
        { "{{ messages[0].content + messages[0].content }}", "does not show what the user says" },
        { "{{ messages[0].content | upper }}", "does not show what the user says" },
        { "{{ messages[0].content[1:] }}", "does not show what the user says" },
        { "{% for i in range(100000) %}{% for k in range(100000) %}{{ k }}{% endfor %}{% endfor "
          "%}",
          "more than" },
        { "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply" },
        { "{{ 'abcdefgh' * 1000000000 }}", "of more than" },
    };
    (void)state;
    struct kvl_tokenizer *t = bytes_and_controls();
    struct kvl_chat *chat;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct kvl_err err = { 0 };
        assert_int_equal(kvl_chat_of(t, row[i].text, NULL, &chat, &err), KVL_EINVAL);
        if (!strstr(err.msg, row[i].why)) fail_msg("\"%s\", want \"%s\"", err.msg, row[i].why);
        assert_memory_equal(err.msg, "chat template own-", 18);
    }
    kvl_tokenizer_destroy(t);
}

/* ---- white space and empty texts by name ------------------------------------------------------- */

/* "«" and "»" where the user's text begins and ends. */
static void expect_text(const struct kvl_tokenizer *t, const char *name, const char *system,
                        const char *said, const char *want)
{
    struct kvl_chat *chat = open_chat(t, name);
    struct kvl_chat_turn turn[2] = { { "system", system, system ? strlen(system) : 0 },
                                     { "user", said, strlen(said) } };
    struct kvl_chat_text x = { 0 };
    struct kvl_err err = { 0 };
    int rc = kvl_chat_render(chat, turn + !system, 1 + (system != NULL), &x, &err);
    if (rc != KVL_OK) fail_msg("%s: %s", name, err.msg);
    if (!strstr(x.text.data, want)) fail_msg("%s: \"%s\", want \"%s\"", name, x.text.data, want);
    kvl_chat_text_free(&x);
    kvl_chat_close(chat);
}

/* Templates that trim do so at both ends, others at none; an empty system text is a turn. */
static void test_ends(void **state)
{
    struct kvl_tokenizer *t = bytes_and_controls();
    (void)state;
    expect_text(t, "gemma", NULL, " \nHello   ", "user\nHello<end_of_turn>");
    expect_text(t, "llama-2", NULL, "\n Hello  ", "[INST] Hello [/INST]");
    expect_text(t, "llama-3", NULL, "  Hello \n", "\n\nHello<|eot_id|>");
    expect_text(t, "chatml", NULL, "\nHi ", "user\n\nHi <|im_end|>");
    expect_text(t, "chatml", NULL, "", "user\n<|im_end|>");
    expect_text(t, "chatml", "", "Hi", "system\n<|im_end|>\n<|im_start|>user\nHi");
    expect_text(t, "llama-3", "", "Hi", "system<|end_header_id|>\n\n<|eot_id|>");
    kvl_tokenizer_destroy(t);
}

/* ---- what jinja2 and tokenizers make ---------------------------------------------------------- */

#define FOLDER KVL_SOURCE_DIR "/tests/tokenizers/"

static json_t *load_json(const char *path)
{
    json_error_t e;
    json_t *v = json_load_file(path, 0, &e);
    if (!v) fail_msg("%s: %s", path, e.text);
    return v;
}

static size_t turns_of(const json_t *conversation, struct kvl_chat_turn turn[16])
{
    size_t i;
    const json_t *m;
    json_array_foreach(conversation, i, m)
    {
        const json_t *text = json_object_get(m, "content");
        assert_true(i < 16);
        turn[i] = (struct kvl_chat_turn){ json_string_value(json_object_get(m, "role")),
                                          json_string_value(text), json_string_length(text) };
    }
    return json_array_size(conversation);
}

static void check_ids(const struct kvl_chat *chat, const json_t *conversation, const json_t *want,
                      const char *folder, const char *name)
{
    struct kvl_chat_turn turn[16];
    struct kvl_chat_text x = { 0 };
    struct kvl_tokens got = { 0 };
    struct kvl_err err = { 0 };
    size_t n = turns_of(conversation, turn);
    int rc = kvl_chat_render(chat, turn, n, &x, &err);
    if (rc == KVL_OK) rc = kvl_chat_encode(chat, &x, 0, &got, &err);
    bool same = json_is_null(want) ? rc == KVL_EINVAL
                                   : rc == KVL_OK && (size_t)got.n == json_array_size(want);
    for (int32_t i = 0; same && i < got.n; i++)
        same = got.id[i] == json_integer_value(json_array_get(want, (size_t)i));
    if (!same) {
        char *said = json_dumps(conversation, 0), *ids = json_dumps(want, JSON_ENCODE_ANY);
        for (int32_t i = 0; i < got.n; i++) fprintf(stderr, "%d ", got.id[i]);
        fail_msg("%s, %s: %s %s, want %s", folder, name, said, err.msg, ids);
    }
    kvl_tokens_free(&got);
    kvl_chat_text_free(&x);
}

static void test_prompts(void **state)
{
    json_t *all = load_json(FOLDER "chats.json"), *templates, *row;
    const char *folder;
    size_t i;
    (void)state;
    json_object_foreach(json_object_get(all, "prompts"), folder, templates)
    {
        char path[4096];
        struct kvl_tokenizer *t;
        struct kvl_err err = { 0 };
        snprintf(path, sizeof path, FOLDER "%s", folder);
        if (kvl_tokenizer_from_hf(path, &t, &err) != KVL_OK) fail_msg("%s", err.msg);
        json_array_foreach(templates, i, row)
        {
            const char *name = json_string_value(json_object_get(row, "name"));
            const json_t *ids = json_object_get(row, "ids"),
                         *said = json_object_get(all, "conversations");
            const char *text = json_string_value(json_object_get(row, "template"));
            struct kvl_chat *chat = NULL;
            int rc = kvl_chat_of(t, text, NULL, &chat, &err);
            if (rc != KVL_OK && !json_is_null(json_array_get(ids, 0)))
                fail_msg("%s, %s: %s", folder, name, err.msg);
            for (size_t k = 0; rc == KVL_OK && k < json_array_size(said); k++)
                check_ids(chat, json_array_get(said, k), json_array_get(ids, k), folder, name);
            kvl_err_clear(&err);
            kvl_chat_close(chat);
        }
        kvl_tokenizer_destroy(t);
    }
    json_decref(all);
}

/* KVL_CHATS: a folder of templates, x.jinja, each with x.json beside it, which tests/tokenizers/chats.py FOLDER
 * writes. */
static void test_given_templates(void **state)
{
    const char *dir = getenv("KVL_CHATS");
    DIR *folder = dir ? opendir(dir) : NULL;
    struct dirent *e;
    int n = 0, refused = 0, wrong = 0;
    (void)state;
    if (!folder) skip();
    struct kvl_tokenizer *t = bytes_and_controls();
    while ((e = readdir(folder))) {
        char path[4096], *dot = strrchr(e->d_name, '.');
        struct kvl_buf text = { 0 };
        struct kvl_err err = { 0 };
        struct kvl_chat *chat = NULL;
        if (!dot || strcmp(dot, ".jinja") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        assert_int_equal(kvl_read_file(path, 1 << 20, &text, &err), KVL_OK);
        strcpy(strrchr(path, '.'), ".json");
        json_t *cases = load_json(path);
        if (kvl_chat_of(t, text.data, NULL, &chat, &err) != KVL_OK)
            print_message("%s: %s\n", e->d_name, err.msg);
        refused += !chat;
        for (size_t i = 0; chat && i < json_array_size(cases); i++) {
            struct kvl_chat_turn turn[16];
            struct kvl_chat_text x = { 0 };
            const json_t *want = json_array_get(json_array_get(cases, i), 1);
            size_t turned = turns_of(json_array_get(json_array_get(cases, i), 0), turn);
            int rc = kvl_chat_render(chat, turn, turned, &x, NULL);
            const char *whole =
                json_string_value(json_is_array(want) ? json_array_get(want, 0) : want);
            bool same = rc == KVL_OK && whole && strncmp(x.text.data, whole, x.text.len) == 0 &&
                        (json_is_array(want) || strlen(whole) == x.text.len);
            if (rc == KVL_OK && !same) {
                print_message("%s, %zu: \"%s\", want \"%s\"\n", e->d_name, i, x.text.data,
                              whole ? whole : "an error");
                wrong++;
            }
            n += same;
            kvl_chat_text_free(&x);
        }
        kvl_chat_close(chat);
        json_decref(cases);
        kvl_buf_free(&text);
    }
    closedir(folder);
    kvl_tokenizer_destroy(t);
    print_message("%d prompts, %d wrong, %d templates refused\n", n, wrong, refused);
    assert_true(n > 0 && wrong == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_spelling),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_spaces),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_given_templates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
