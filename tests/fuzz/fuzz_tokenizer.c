/* Any bytes as a text, under small vocabularies: encoding never fails where every byte has a token,
 * and decoding gives the text back.  Byte 0 of the input picks the vocabulary, byte 1 the flags. */
#include "../gguf_writer.h"
#include "kvl/gguf.h"
#include "kvl/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SPACE "\xe2\x96\x81"
enum { N_TOKENIZERS = 14, FIRST_SPM = 12, NO_BYTES = 13 };

static void must(bool ok)
{
    if (!ok) abort();
}

static struct kvl_tokenizer *create(struct gw *w)
{
    struct kvl_buf file = { 0 };
    struct kvl_gguf *g = NULL;
    struct kvl_tokenizer *t = NULL;
    gw_finish(w, &file);
    must(kvl_gguf_open_memory(file.data, file.len, &g, NULL) == KVL_OK);
    must(kvl_tokenizer_create(g, &t, NULL) == KVL_OK);
    kvl_gguf_close(g);
    kvl_buf_free(&file);
    gw_free(w);
    return t;
}

/* 256 bytes, merges and special tokens that overlap each other. */
static struct kvl_tokenizer *create_bpe(const char *pre)
{
    static const char *const more[] = { "<s>",
                                        "<s><s>",
                                        "s><",
                                        "[u]",
                                        "ab",
                                        "\xc4\xa0\x61",
                                        "abab",
                                        "\xc3\x83\xc2\xa9",
                                        "\xc4\xa0\xc4\xa0",
                                        "12" };
    static const char *const merge[] = {
        "a b", "\xc4\xa0 a", "ab ab", "\xc3\x83 \xc2\xa9", "\xc4\xa0 \xc4\xa0", "1 2"
    };
    enum { N_MORE = sizeof more / sizeof more[0] };
    static const int32_t more_type[N_MORE] = { 3, 3, 4, 4, 1, 1, 1, 1, 1, 1 };
    char text[256][8] = { { 0 } };
    const char *token[256 + N_MORE];
    int32_t type[256 + N_MORE];
    struct gw w;
    for (uint32_t b = 0; b < 256; b++) {
        gw_utf8(gw_byte_char(b), text[b]);
        token[b] = text[b];
        type[b] = 1;
    }
    memcpy(&token[256], more, sizeof more);
    memcpy(&type[256], more_type, sizeof more_type);
    gw_init(&w);
    gw_str(&w, "tokenizer.ggml.model", "gpt2");
    gw_str(&w, "tokenizer.ggml.pre", pre);
    gw_arr_str(&w, "tokenizer.ggml.tokens", 256 + N_MORE, token);
    gw_arr(&w, "tokenizer.ggml.token_type", 5, 256 + N_MORE, type, sizeof type);
    gw_arr_str(&w, "tokenizer.ggml.merges", sizeof merge / sizeof merge[0], merge);
    return create(&w);
}

static struct kvl_tokenizer *create_spm(bool bytes)
{
    static const char *const more[] = { "<unk>", "<s>",      "</s>",      "a",
                                        "b",     "ab",       SPACE "a",   SPACE,
                                        "abab",  "\xc3\xa9", SPACE SPACE, ("b" SPACE) };
    static const int32_t more_type[] = { 2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    enum { N_MORE = sizeof more / sizeof more[0] };
    char text[256][8];
    const char *token[256 + N_MORE];
    int32_t type[256 + N_MORE];
    float score[256 + N_MORE];
    uint64_t n = bytes ? 256 + N_MORE : N_MORE;
    struct gw w;
    memcpy(token, more, sizeof more);
    memcpy(type, more_type, sizeof more_type);
    for (int b = 0; b < 256; b++) {
        snprintf(text[b], sizeof text[b], "<0x%02X>", (unsigned)b);
        token[N_MORE + b] = text[b];
        type[N_MORE + b] = 6;
    }
    for (int i = 0; i < 256 + N_MORE; i++) score[i] = (float)(-i / 2); /* ties */
    gw_init(&w);
    gw_str(&w, "tokenizer.ggml.model", "llama");
    gw_arr_str(&w, "tokenizer.ggml.tokens", n, token);
    gw_arr(&w, "tokenizer.ggml.token_type", 5, n, type, n * sizeof *type);
    gw_arr(&w, "tokenizer.ggml.scores", 6, n, score, n * sizeof *score);
    return create(&w);
}

static const struct kvl_tokenizer *tokenizer(int which)
{
    static const char *const pre[FIRST_SPM] = { "gpt-2",     "smollm",       "llama-bpe",
                                                "smaug-bpe", "qwen2",        "tekken",
                                                "default",   "deepseek-llm", "deepseek-v3",
                                                "gpt-4o",    "qwen35",       "bailingmoe" };
    static struct kvl_tokenizer *made[N_TOKENIZERS]; /* kept for the whole run */
    if (!made[which])
        made[which] = which < FIRST_SPM ? create_bpe(pre[which]) : create_spm(which != NO_BYTES);
    return made[which];
}

static void check_tokens(const struct kvl_tokenizer *t, const struct kvl_tokens *out, size_t len)
{
    for (int32_t i = 0; i < out->n; i++) {
        must(out->id[i] >= 0 && out->id[i] < kvl_tokenizer_size(t));
        must(out->begin[i] <= len && (i == 0 || out->begin[i] >= out->begin[i - 1]));
    }
}

/* SentencePiece makes U+2581 a space, and puts a space behind every special token. */
static bool comes_back(int which, uint32_t flags, const char *text, size_t len)
{
    if (which < FIRST_SPM) return true;
    return which != NO_BYTES && !(flags & KVL_ENCODE_SPECIAL) && !memmem(text, len, SPACE, 3);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvl_tokens out = { 0 };
    struct kvl_buf back = { 0 };
    if (size < 2) return 0;
    int which = data[0] % N_TOKENIZERS;
    uint32_t flags = data[1] & (KVL_ENCODE_SPECIAL | KVL_ENCODE_CONTINUE);
    const struct kvl_tokenizer *t = tokenizer(which);
    const char *text = (const char *)data + 2;
    size_t len = size - 2;
    must(kvl_encode(t, text, len, flags, &out, NULL) == KVL_OK);
    check_tokens(t, &out, len);
    bool first = !(flags & KVL_ENCODE_CONTINUE);
    must(kvl_decode(t, out.id, out.n, true, first, &back, NULL) == KVL_OK);
    if (comes_back(which, flags, text, len))
        must(back.len == len && (len == 0 || memcmp(back.data, text, len) == 0));
    kvl_buf_free(&back);
    kvl_tokens_free(&out);
    return 0;
}
