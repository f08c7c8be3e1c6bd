/* What kind of token an id is: FastGen keeps special tokens and punctuation apart from the rest. */
#include "gguf_writer.h"
#include "kvl/gguf.h"
#include "kvl/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { CONTROL = 3, NORMAL = 1, UNKNOWN = 2, USER = 4 };

static const struct {
    const char *text;
    int32_t type;
    bool special, punct;
} more[] = {
    { "<unk>", UNKNOWN, true, false },
    { "<|user|>", USER, true, false },
    { "--", USER, false, true },
    { "...", NORMAL, false, true },
    { " ,", NORMAL, false, true },
    { ".\n\n", NORMAL, false, true },
    { "  ", NORMAL, false, false }, /* nothing but spaces: indentation carries meaning */
    { "a.", NORMAL, false, false },
    { "12", NORMAL, false, false },
    { "\xe2\x80\x9c", NORMAL, false, true },             /* an opening quotation mark */
    { "\xe3\x80\x82\xef\xbc\x8c", NORMAL, false, true }, /* ideographic stop, wide comma */
    { "\xe2\x80\x94\xc3\xa9", NORMAL, false, false },    /* a dash and a letter */
    { "\xe2\x80", NORMAL, false, false },                /* half a character */
};
enum { N_MORE = sizeof more / sizeof more[0], N_VOCAB = GW_VOCAB + N_MORE };

static void visible(const char *text, char *out)
{
    for (; *text; text++) out += gw_utf8(gw_byte_char((unsigned char)*text), out);
    *out = '\0';
}

/* The byte vocabulary and these. */
static struct kvl_tokenizer *open_tokenizer(void)
{
    static char text[N_VOCAB][32] = { "<pad>", "<bos>", "<eos>" };
    const char *token[N_VOCAB];
    int32_t type[N_VOCAB];
    struct gw w;
    struct kvl_buf file = { 0 };
    struct kvl_err err = { 0 };
    struct kvl_gguf *g = NULL;
    struct kvl_tokenizer *t = NULL;
    for (uint32_t i = 0; i < N_VOCAB; i++) {
        token[i] = text[i];
        type[i] = i < GW_BYTE0 ? CONTROL : NORMAL;
        if (i >= GW_BYTE0 && i < GW_VOCAB) gw_utf8(gw_byte_char(i - GW_BYTE0), text[i]);
        if (i < GW_VOCAB) continue;
        visible(more[i - GW_VOCAB].text, text[i]);
        type[i] = more[i - GW_VOCAB].type;
    }
    gw_init(&w);
    gw_str(&w, "tokenizer.ggml.model", "gpt2");
    gw_str(&w, "tokenizer.ggml.pre", "gpt-2");
    gw_arr_str(&w, "tokenizer.ggml.tokens", N_VOCAB, token);
    gw_arr(&w, "tokenizer.ggml.token_type", 5, N_VOCAB, type, sizeof type);
    gw_arr_str(&w, "tokenizer.ggml.merges", 0, NULL);
    gw_finish(&w, &file);
    gw_free(&w);
    assert_int_equal(kvl_gguf_open_memory(file.data, file.len, &g, &err), KVL_OK);
    if (kvl_tokenizer_create(g, &t, &err) != KVL_OK) fail_msg("%s", err.msg);
    kvl_gguf_close(g);
    kvl_buf_free(&file);
    return t;
}

static void test_kinds(void **state)
{
    struct kvl_tokenizer *t = open_tokenizer();
    (void)state;
    for (int32_t i = 0; i < N_MORE; i++) {
        if (kvl_tokenizer_special(t, GW_VOCAB + i) != more[i].special ||
            kvl_tokenizer_punct(t, GW_VOCAB + i) != more[i].punct)
            fail_msg("\"%s\" is of the wrong kind", more[i].text);
    }
    for (int32_t i = 0; i < GW_BYTE0; i++) {
        assert_true(kvl_tokenizer_special(t, i));
        assert_false(kvl_tokenizer_punct(t, i));
    }
    for (int32_t b = 0; b < 256; b++) {
        bool want = b == '\n' || b == '\r' ||
                    (b && b < 128 && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", b));
        assert_false(kvl_tokenizer_special(t, GW_BYTE0 + b));
        assert_int_equal(kvl_tokenizer_punct(t, GW_BYTE0 + b), want);
    }
    assert_false(kvl_tokenizer_special(t, -1) || kvl_tokenizer_punct(t, N_VOCAB));
    kvl_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_kinds) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
