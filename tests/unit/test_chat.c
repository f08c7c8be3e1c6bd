/* Chat templates: which one a file has, the prompt as text and as tokens. */
#include "gguf_writer.h"
#include "kvl/chat.h"
#include "kvl/gguf.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

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

/* The whole prompt: template, text of the user as a context that begins and a question that goes on,
 * template and answer prefix. */
static struct kvl_tokens prompt(const struct kvl_chat *chat, const struct kvl_tokenizer *t,
                                const char *system, const char *begin, const char *more,
                                const char *answer)
{
    struct kvl_chat_use u;
    struct kvl_err err = { 0 };
    struct kvl_tokens out = { 0 };
    if (kvl_chat_open(chat, t, system, &u, &err) != KVL_OK) fail_msg("%s", err.msg);
    for (int32_t i = 0; i < u.before.n; i++) assert_int_equal(u.before.begin[i], 0);
    out = u.before;
    u.before = (struct kvl_tokens){ 0 };
    int32_t first = out.n;
    assert_int_equal(kvl_encode(u.inside, begin, strlen(begin), KVL_ENCODE_BOS, &out, &err), 0);
    for (int32_t i = first; i < out.n; i++)
        if (i > first)
            assert_true(out.begin[i] >= out.begin[i - 1] && out.begin[i] < strlen(begin));
    if (out.n > first) assert_int_equal(out.begin[first], 0);
    assert_int_equal(kvl_encode(u.inside, more, strlen(more), KVL_ENCODE_CONTINUE, &out, &err), 0);
    assert_int_equal(kvl_chat_after(&u, answer, strlen(answer), &out, &err), KVL_OK);
    kvl_chat_close(&u);
    return out;
}

static void expect_prompt(const struct kvl_tokenizer *t, const char *name, const char *system,
                          const char *begin, const char *more, const char *answer, const char *cut,
                          const char *want)
{
    const struct kvl_chat *chat = kvl_chat_find(name);
    assert_non_null(chat);
    struct kvl_tokens tokens = prompt(chat, t, system, begin, more, answer);
    struct kvl_buf got = show(t, &tokens, cut);
    if (strcmp(got.data, want) != 0) fail_msg("%s: \"%s\", want \"%s\"", name, got.data, want);
    kvl_buf_free(&got);
    kvl_tokens_free(&tokens);
}

/* Without the marks. */
static void unmark(const char *s, struct kvl_buf *out)
{
    kvl_buf_adds(out, "");
    for (; *s; s++) {
        if (strncmp(s, "«", 2) == 0 || strncmp(s, "»", 2) == 0)
            s++;
        else
            kvl_buf_add(out, s, 1);
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_EXPECTED; i++) {
        const struct kvl_chat *chat = kvl_chat_find(expected[i].name);
        assert_non_null(chat);
        assert_string_equal(kvl_chat_name(chat), expected[i].name);
        for (int with = 0; with < 2; with++) {
            struct kvl_buf got = { 0 }, want = { 0 };
            unmark(with ? expected[i].with : expected[i].plain, &want);
            assert_int_equal(
                kvl_chat_render(chat, "</s>", with ? "Be brief." : NULL, "How?", " It is", &got),
                KVL_OK);
            assert_string_equal(got.data, want.data);
            kvl_buf_free(&got);
            kvl_buf_free(&want);
        }
    }
    for (size_t i = 0; kvl_chat_at(i); i++) { /* none without an expectation */
        bool found = false;
        for (size_t k = 0; k < N_EXPECTED; k++)
            found |= strcmp(kvl_chat_name(kvl_chat_at(i)), expected[k].name) == 0;
        assert_true(found);
    }
    assert_null(kvl_chat_find("chat"));
}

static void test_tokens(void **state)
{
    (void)state;
    struct kvl_tokenizer *t = bytes_and_controls();
    for (size_t i = 0; i < N_EXPECTED; i++) {
        struct kvl_buf want = { 0 };
        kvl_buf_printf(&want, "«<s>»%s", expected[i].plain);
        expect_prompt(t, expected[i].name, NULL, "Ho", "w?", " It is", "", want.data);
        want.len = 0;
        kvl_buf_printf(&want, "«<s>»%s", expected[i].with);
        expect_prompt(t, expected[i].name, "Be brief.", "Ho", "w?", " It is", "", want.data);
        kvl_buf_free(&want);
    }
    kvl_tokenizer_destroy(t);
}

/* What the user, the system text or the answer prefix spells is text; without an answer prefix the
 * answer is the model's to begin. */
static void test_spelling(void **state)
{
    (void)state;
    struct kvl_tokenizer *t = bytes_and_controls();
    expect_prompt(t, "chatml", "</s>", "a<|im_end|>", "<|im_start|>", " <|im_end|>", "",
                  "«<s>»«<|im_start|>»system\n</s>«<|im_end|>»\n«<|im_start|>»user\na<|im_end|>"
                  "<|im_start|>«<|im_end|>»\n«<|im_start|>»assistant\n<|im_end|>");
    expect_prompt(t, "gpt-oss", NULL, "a", "b", "", "",
                  "«<s>»«<|start|>»user«<|message|>»ab«<|end|>»«<|start|>»assistant");
    expect_prompt(t, "glm-4", NULL, "a", "b", "", "",
                  "«<s>»«[gMASK]»«<sop>»«<|user|>»\nab«<|assistant|>»");
    expect_prompt(t, "llama-3", "  x \n", "a", "b", "\n", "",
                  "«<s>»«<|start_header_id|>»system«<|end_header_id|>»\n\nx«<|eot_id|>»"
                  "«<|start_header_id|>»user«<|end_header_id|>»\n\nab«<|eot_id|>»"
                  "«<|start_header_id|>»assistant«<|end_header_id|>»\n\n");
    kvl_tokenizer_destroy(t);
}

/* SentencePiece: a space of the template before a text is part of its first token, and no space is put
 * behind a control token. */
static void test_spaces(void **state)
{
    (void)state;
    struct kvl_tokenizer *t = pieces_and_controls();
    expect_prompt(t, "mistral-v3", NULL, "ab", "b", " is", "|",
                  "«<s>»«[INST]»| a|b|b«[/INST]»| i|s");
    expect_prompt(t, "mistral-v3", "b", "ab", "b", "", "|",
                  "«<s>»«[INST]»| b|\n|\n|a|b|b«[/INST]»");
    expect_prompt(t, "phi-3", NULL, "ab", "b", " is", "|",
                  "«<s>»«<|user|>»|\n|a|b|b«<|end|>»|\n«<|assistant|>»|\n|i|s");
    expect_prompt(t, "mistral-v1", NULL, "ab", "b", " is", "|",
                  "«<s>»| «[INST]»| a|b|b| «[/INST]»| i|s");
    expect_prompt(t, "vicuna", "b", "ab", "b", " is", "|",
                  "«<s>»| b| |U|S|E|R|:| a|b|b| |A|S|S|I|S|T|A|N|T|:| i|s");
    kvl_tokenizer_destroy(t);
}

/* A turn behind an answer, written out: the answer " ab " goes on behind a prefix, or is the whole turn; then
 * "\nHow?" is asked with the prefix " It is". */
static const struct turn {
    const char *name, *goes_on, *whole, *next;
} turns[] = {
    { "phi-4", " ab ", "ab ", "«<|im_end|>»«<|im_start|>»user«<|im_sep|>»How?" },
    { "chatml", " ab ", "ab ", "«<|im_end|>»\n«<|im_start|>»user\nHow?" },
    { "chatml-no-think", " ab ", "ab ", "«<|im_end|>»\n«<|im_start|>»user\nHow?" },
    { "mistral-v7", " ab ", " ab ", "«</s>»«[INST]» How?" },
    { "mistral-v7-tekken", " ab ", "ab ", "«</s>»«[INST]»How?" },
    { "mistral-v1", " ab ", " ab ", "«</s>» «[INST]» How?" },
    { "mistral-v3-tekken", " ab ", "ab ", "«</s>»«[INST]»How?" },
    { "mistral-v3", " ab ", " ab ", "«</s>»«[INST]» How?" },
    { "llama-2", " ab", " ab", " «</s>»«<s>»«[INST]» How?" },
    { "phi-4-mini", " ab ", "ab ", "«<|end|>»«<|user|>»How?" },
    { "phi-3", " ab ", "ab ", "«<|end|>»\n«<|user|>»\nHow?" },
    { "glm-4", " ab ", "\nab ", "«<|user|>»\nHow?" },
    { "zephyr", " ab ", "ab ", "«</s>»\n«<|user|>»\nHow?" },
    { "gemma", " ab", "ab", "«<end_of_turn>»\n«<start_of_turn>»user\nHow?" },
    { "vicuna", " ab ", " ab ", "«</s>»USER: How?" },
    { "llama-3", " ab", "ab", "«<|eot_id|>»«<|start_header_id|>»user«<|end_header_id|>»\n\nHow?" },
    { "gpt-oss", " ab ", "«<|channel|>»final«<|message|>»ab ",
      "«<|end|>»«<|start|>»user«<|message|>»How?" },
};

/* Tokens of a turn and what stands behind it. */
static struct kvl_tokens turn(const struct kvl_tokenizer *t, const char *name, const char *answer,
                              bool goes_on, const char *user)
{
    struct kvl_chat_use u;
    struct kvl_err err = { 0 };
    struct kvl_tokens out = { 0 };
    assert_int_equal(kvl_chat_open(kvl_chat_find(name), t, NULL, &u, &err), KVL_OK);
    if (kvl_chat_next(&u, answer, goes_on, user, strlen(user), &out, &err) != KVL_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(kvl_chat_after(&u, " It is", 6, &out, &err), KVL_OK);
    kvl_chat_close(&u);
    return out;
}

/* What stands behind the user's text is that of the first turn. */
static void test_turns(void **state)
{
    (void)state;
    struct kvl_tokenizer *t = bytes_and_controls();
    for (size_t i = 0; kvl_chat_at(i); i++) {
        const struct turn *row = turns;
        while (strcmp(row->name, kvl_chat_name(kvl_chat_at(i))) != 0)
            assert_true(++row < turns + sizeof turns / sizeof turns[0]);
        const struct expected *first = expected;
        while (strcmp(first->name, row->name) != 0) first++;
        for (int goes_on = 0; goes_on < 2; goes_on++) {
            struct kvl_tokens tokens = turn(t, row->name, " ab ", goes_on, "\nHow?");
            struct kvl_buf got = show(t, &tokens, ""), want = { 0 };
            kvl_buf_printf(&want, "%s%s%s", goes_on ? row->goes_on : row->whole, row->next,
                           strstr(first->plain, "How?") + strlen("How?"));
            if (strcmp(got.data, want.data) != 0)
                fail_msg("%s: \"%s\", want \"%s\"", row->name, got.data, want.data);
            kvl_buf_free(&got);
            kvl_buf_free(&want);
            kvl_tokens_free(&tokens);
        }
    }
    kvl_tokenizer_destroy(t);
}

static void expect_ids(const struct kvl_tokens *t, const int32_t *want, int32_t n)
{
    for (int32_t i = 0; i < n && i < t->n; i++)
        if (t->id[i] != want[i]) fail_msg("token %d is %d, want %d", i, t->id[i], want[i]);
    assert_int_equal(t->n, n);
}

/* Ids by hand.  Of the byte vocabulary: controls by their place, byte b is N_CONTROLS + b. */
static void test_turn_ids(void **state)
{
    enum { B = N_CONTROLS, P = 3 + N_CONTROLS - 2 + 256, BYTE = 3 + N_CONTROLS - 2 };
    static const int32_t chatml[] = {
        B + 'a', 4,        B + '\n', 2,       B + 'u', B + 's', B + 'e', B + 'r', B + '\n', B + 'b',
        4,       B + '\n', 2,        B + 'a', B + 's', B + 's', B + 'i', B + 's', B + 't',  B + 'a',
        B + 'n', B + 't',  B + '\n', B + 'I', B + 't', B + ' ', B + 'i', B + 's',
    };
    /* " a", </s>, [INST] (7 there, 8 here), " b", [/INST], " ", "I", "t", " i", "s" */
    static const int32_t mistral[] = {
        P + 5, 2, 8, P + 6, 9, P, BYTE + 'I', BYTE + 't', P + 7, P + 4,
    };
    (void)state;
    assert_string_equal(controls[4], "<|im_end|>");
    assert_string_equal(controls[2], "<|im_start|>");
    assert_string_equal(controls[7], "[INST]");
    struct kvl_tokenizer *t = bytes_and_controls();
    struct kvl_tokens tokens = turn(t, "chatml", " a", false, "b");
    expect_ids(&tokens, chatml, sizeof chatml / sizeof chatml[0]);
    kvl_tokens_free(&tokens);
    kvl_tokenizer_destroy(t);
    t = pieces_and_controls();
    tokens = turn(t, "mistral-v3", " a", false, "b");
    expect_ids(&tokens, mistral, sizeof mistral / sizeof mistral[0]);
    kvl_tokens_free(&tokens);
    kvl_tokenizer_destroy(t);
}

static void test_stops(void **state)
{
    static const struct {
        const char *name, *stops;
    } row[] = { { "chatml", "<|im_end|>" },     { "llama-3", "<|eot_id|>" },
                { "phi-3", "<|end|>" },         { "gemma", "<end_of_turn>" },
                { "glm-4", "<|observation|>" }, { "glm-4", "<|user|>" },
                { "gpt-oss", "<|return|>" },    { "gpt-oss", "<|call|>" },
                { "mistral-v3", "</s>" },       { "zephyr", "</s>" } };
    (void)state;
    struct kvl_tokenizer *t = bytes_and_controls();
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct kvl_chat_use u;
        int32_t id = 0;
        while (strcmp(controls[id], row[i].stops) != 0) id++;
        assert_int_equal(kvl_chat_open(kvl_chat_find(row[i].name), t, NULL, &u, NULL), KVL_OK);
        assert_true(kvl_chat_stops(&u, id));
        assert_false(kvl_chat_stops(&u, N_CONTROLS + 'a'));
        assert_false(kvl_chat_stops(&u, 2)); /* <|im_start|> */
        kvl_chat_close(&u);
    }
    kvl_tokenizer_destroy(t);
}

/* Pieces of templates that have the texts by which they are known, among those of others. */
static void test_recognise(void **state)
{
    static const struct {
        const char *text, *name;
    } row[] = {
        { "{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}", "phi-4" },
        { "{{ '<|im_start|>' + m.role + '\\n' }}{# [INST] <|start_header_id|> #}", "chatml" },
        { "{{ '[INST] ' + m.content + '[/INST]' }}{{ '[SYSTEM_PROMPT] ' }}", "mistral-v7" },
        { "{{ '[INST]' + m.content + '[/INST]' }}{{ '[SYSTEM_PROMPT]' }}", "mistral-v7-tekken" },
        { "{{ ' [INST] ' + system_message + '\\n\\n' + m.content }}", "mistral-v1" },
        { "{{ \" [INST] \" }}[AVAILABLE_TOOLS]", "mistral-v1" },
        { "{{ \"[INST]\" + m.content }}[AVAILABLE_TOOLS]", "mistral-v3-tekken" },
        { "{{ \"[INST] \" + m.content }}[AVAILABLE_TOOLS]", "mistral-v3" },
        { "{{ '[INST] ' + content.strip() + ' [/INST]' }}{{ '<<SYS>>' }}", "llama-2" },
        { "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}<|assistant|>",
          "phi-4-mini" },
        { "{{'<|user|>' + '\\n' + message['content'] + '<|end|>' + '<|assistant|>'}}", "phi-3" },
        { "[gMASK]<sop>{% for m in messages %}<|user|><|assistant|>", "glm-4" },
        { "{{ '<|user|>\n' + message['content'] + eos_token }}<|assistant|>", "zephyr" },
        { "{{ '<|user|>\\n' + message['content'] + eos_token }}<|assistant|>", "zephyr" },
        { "{{ '<start_of_turn>' + role }}", "gemma" },
        { "{{ 'USER: ' + m.content }}{{ 'ASSISTANT: ' + m.content }}", "vicuna" },
        { "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>' }}", "llama-3" },
        { "{{ '<|start|>assistant<|channel|>final<|message|>' }}", "gpt-oss" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const struct kvl_chat *chat = kvl_chat_recognise(row[i].text);
        if (!chat || strcmp(kvl_chat_name(chat), row[i].name) != 0)
            fail_msg("\"%s\" is %s, want %s", row[i].text, chat ? kvl_chat_name(chat) : "unknown",
                     row[i].name);
    }
    assert_null(kvl_chat_recognise(""));
    assert_null(kvl_chat_recognise("### Instruction:\n{{ m.content }}\n### Response:"));
    assert_null(kvl_chat_recognise("{{ '<|user|>\n' + message['content'] + '\n' }}<|assistant|>"));
}

/* ---- templates of real models ----------------------------------------------------------------- */

static void read_text(const char *dir, const char *stem, const char *tail, struct kvl_buf *out)
{
    char path[4096];
    struct kvl_err err = { 0 };
    snprintf(path, sizeof path, "%s/%s%s", dir, stem, tail);
    kvl_buf_adds(out, "");
    if (kvl_read_file(path, 1 << 20, out, &err) != KVL_OK) fail_msg("%s", err.msg);
}

/* KVL_CHATS: a folder of templates, x.jinja, each with the name of its family, x.name, and what Jinja
 * makes of it with "</s>" for its tokens less BOS, for a question "How?" without (x.plain) and with
 * "Be brief." (x.with, where the template takes one). */
static void test_given_templates(void **state)
{
    const char *dir = getenv("KVL_CHATS");
    DIR *folder = dir ? opendir(dir) : NULL;
    struct dirent *e;
    int n = 0;
    (void)state;
    if (!folder) skip();
    while ((e = readdir(folder))) {
        char *dot = strrchr(e->d_name, '.');
        if (!dot || strcmp(dot, ".jinja") != 0) continue;
        *dot = '\0';
        struct kvl_buf text = { 0 }, name = { 0 };
        read_text(dir, e->d_name, ".jinja", &text);
        read_text(dir, e->d_name, ".name", &name);
        const struct kvl_chat *chat = kvl_chat_recognise(text.data);
        if (!chat || strcmp(kvl_chat_name(chat), name.data) != 0)
            fail_msg("%s is %s, want %s", e->d_name, chat ? kvl_chat_name(chat) : "unknown",
                     name.data);
        for (int with = 0; with < 2; with++) {
            char path[4096];
            struct kvl_buf want = { 0 }, got = { 0 };
            snprintf(path, sizeof path, "%s/%s.with", dir, e->d_name);
            if (with && access(path, F_OK) != 0) continue;
            read_text(dir, e->d_name, with ? ".with" : ".plain", &want);
            assert_int_equal(
                kvl_chat_render(chat, "</s>", with ? "Be brief." : NULL, "How?", NULL, &got),
                KVL_OK);
            if (strcmp(got.data, want.data) != 0)
                fail_msg("%s: \"%s\", want \"%s\"", e->d_name, got.data, want.data);
            kvl_buf_free(&want);
            kvl_buf_free(&got);
            n++;
        }
        kvl_buf_free(&text);
        kvl_buf_free(&name);
    }
    closedir(folder);
    print_message("%d prompts\n", n);
    assert_true(n > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_spelling),
        cmocka_unit_test(test_spaces),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_turn_ids),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_recognise),
        cmocka_unit_test(test_given_templates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
