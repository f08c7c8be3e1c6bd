/* What no key of a GGUF file says of its tokenizer: composed text, and the mark of a space that a text spells. */
#include "gguf_writer.h"
#include "tokenizer_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

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

static void expect(const struct kvl_tokenizer *t, const char *text, int32_t n, const int32_t *id)
{
    struct kvl_tokens got = { 0 };
    assert_int_equal(kvl_encode(t, text, strlen(text), KVL_ENCODE_CONTINUE, &got, NULL), KVL_OK);
    for (int32_t i = 0; i < got.n && i < n; i++) assert_int_equal(got.id[i], id[i]);
    assert_int_equal(got.n, n);
    kvl_tokens_free(&got);
}

/* A token per byte, and one for a with two dots (256), of which the two bytes C3 A4 are merged. */
static void test_composed(void **state)
{
    enum { N = 257 };
    static const char *const merge[] = { "\xc3\x83 \xc2\xa4" }; /* as GPT-2 shows these bytes */
    char text[N][16] = { { 0 } };
    const char *token[N];
    (void)state;
    for (int pre = 0; pre < 2; pre++) {
        struct gw w;
        gw_init(&w);
        for (uint32_t i = 0; i < 256; i++) gw_utf8(gw_byte_char(i), text[i]);
        strcpy(text[256], "\xc3\x83\xc2\xa4");
        for (uint32_t i = 0; i < N; i++) token[i] = text[i];
        gw_str(&w, "tokenizer.ggml.model", "gpt2");
        gw_str(&w, "tokenizer.ggml.pre", pre ? "qwen2" : "gpt-2");
        gw_arr_str(&w, "tokenizer.ggml.tokens", N, token);
        gw_arr_str(&w, "tokenizer.ggml.merges", 1, merge);
        struct kvl_tokenizer *t = create(&w);
        expect(t, "\xc3\xa4", 1, (int32_t[]){ 256 });
        if (pre && kvl_tok_nfc_works())
            expect(t, "a\xcc\x88", 1, (int32_t[]){ 256 });
        else
            expect(t, "a\xcc\x88", 3, (int32_t[]){ 'a', 0xcc, 0x88 });
        kvl_tokenizer_destroy(t);
    }
}

/* Gemma's files have runs of spaces as added tokens. */
static void test_marks(void **state)
{
    static const char *const token[] = { "<unk>", "<s>", "</s>", "\xe2\x96\x81", "a", "  ", "   " };
    static const int32_t type[] = { 2, 3, 3, 1, 1, 4, 4 };
    static const float score[7] = { 0 };
    struct gw w;
    (void)state;
    gw_init(&w);
    gw_str(&w, "tokenizer.ggml.model", "llama");
    gw_arr_str(&w, "tokenizer.ggml.tokens", 7, token);
    gw_arr(&w, "tokenizer.ggml.token_type", 5, 7, type, sizeof type);
    gw_arr(&w, "tokenizer.ggml.scores", 6, 7, score, sizeof score);
    gw_bool(&w, "tokenizer.ggml.add_space_prefix", false);
    struct kvl_tokenizer *t = create(&w);
    expect(t, "a  a", 3, (int32_t[]){ 4, 5, 4 });
    expect(t,
           "a\xe2\x96\x81\xe2\x96\x81"
           "a",
           3, (int32_t[]){ 4, 5, 4 });
    expect(t,
           "\xe2\x96\x81 \xe2\x96\x81"
           "a\xe2\x96\x81",
           3, (int32_t[]){ 6, 4, 3 });
    kvl_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_composed),
                                        cmocka_unit_test(test_marks) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
