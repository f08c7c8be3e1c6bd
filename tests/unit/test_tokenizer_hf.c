/* Tokenizers of Hugging Face folders: against the ids that tests/tokenizers/make.py got from the
 * libraries that such files are written for; what is refused. */
#include "kvl/base.h"
#include "kvl/tokenizer.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define FOLDER KVL_SOURCE_DIR "/tests/tokenizers/"

static json_t *load(const char *path)
{
    json_error_t e;
    json_t *v = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!v) fail_msg("%s: %s", path, e.text);
    return v;
}

static struct kvl_tokenizer *open_folder(const char *name)
{
    struct kvl_tokenizer *t = NULL;
    struct kvl_err err = { 0 };
    char dir[512];
    snprintf(dir, sizeof dir, FOLDER "%s", name);
    if (kvl_tokenizer_from_hf(dir, &t, &err) != KVL_OK) {
        if (!strstr(err.msg, "libutf8proc")) fail_msg("%s", err.msg);
        print_message("skipped: %s\n", err.msg);
        skip();
    }
    return t;
}

/* ---- ids ----------------------------------------------------------------------------------- */

static void expect_ids(const struct kvl_tokenizer *t, const json_t *text, uint32_t flags,
                       const json_t *want, const char *name)
{
    struct kvl_tokens got = { 0 };
    struct kvl_err err = { 0 };
    size_t len = json_string_length(text), n = json_array_size(want), last = 0;
    char *exact = malloc(len + 1);
    memcpy(exact, json_string_value(text), len);
    if (kvl_encode(t, exact, len, flags, &got, &err) != KVL_OK) fail_msg("%s", err.msg);
    bool same = (size_t)got.n == n;
    for (size_t i = 0; same && i < n; i++)
        same = got.id[i] == json_integer_value(json_array_get(want, i));
    if (!same) {
        for (int32_t i = 0; i < got.n; i++) print_message("%d ", got.id[i]);
        fail_msg("are the ids of \"%.*s\" with flags %u in %s", (int)len, exact, flags, name);
    }
    for (int32_t i = 0; i < got.n; last = got.begin[i++])
        assert_true(got.begin[i] >= last && got.begin[i] <= len);
    kvl_tokens_free(&got);
    free(exact);
}

static void check_folder(const char *name)
{
    char path[512];
    size_t i;
    json_t *text;
    struct kvl_tokenizer *t = open_folder(name);
    snprintf(path, sizeof path, FOLDER "%s/cases.json", name);
    json_t *cases = load(path), *texts = load(FOLDER "texts.json");
    assert_true(json_array_size(texts) > 90);
    json_array_foreach(texts, i, text)
    {
        const json_t *plain = json_array_get(json_object_get(cases, "plain"), i);
        const json_t *special = json_array_get(json_object_get(cases, "special"), i);
        const json_t *whole = json_array_get(json_object_get(cases, "whole"), i);
        if (!json_is_array(special)) special = json_object_get(cases, "special") ? plain : NULL;
        if (json_is_array(plain)) expect_ids(t, text, 0, plain, name);
        if (special) expect_ids(t, text, KVL_ENCODE_SPECIAL, special, name);
        if (whole) expect_ids(t, text, KVL_ENCODE_SPECIAL | KVL_ENCODE_BOS, whole, name);
    }
    json_decref(cases);
    json_decref(texts);
    kvl_tokenizer_destroy(t);
}
#define FOLDER_TEST(name)                                                                          \
    static void test_##name(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        check_folder(#name);                                                                       \
    }
FOLDER_TEST(llama3)
FOLDER_TEST(qwen2)
FOLDER_TEST(gpt2)
FOLDER_TEST(opt)
FOLDER_TEST(digits)
FOLDER_TEST(deepseek)
FOLDER_TEST(llama2)
FOLDER_TEST(mistral)
FOLDER_TEST(metaspace)
FOLDER_TEST(gemma)
FOLDER_TEST(spm)

/* Decoding gives the text back where nothing was composed. */
static void test_round_trip(void **state)
{
    (void)state;
    static const char *const name[] = { "llama3", "gpt2", "deepseek", "llama2", "gemma", "spm" };
    static const char text[] = "The  café costs 12 € — 日本, [ u ]\n\t\x01 \xff\xc3!";
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        struct kvl_tokenizer *t = open_folder(name[i]);
        struct kvl_tokens ids = { 0 };
        struct kvl_buf back = { 0 };
        assert_int_equal(kvl_encode(t, text, sizeof text - 1, 0, &ids, NULL), KVL_OK);
        assert_int_equal(kvl_decode(t, ids.id, ids.n, false, true, &back, NULL), KVL_OK);
        assert_string_equal(back.data, text);
        kvl_tokens_free(&ids);
        kvl_buf_free(&back);
        kvl_tokenizer_destroy(t);
    }
}

/* Where a composed character comes from; what is not UTF-8 stays. */
static void test_composed_begins(void **state)
{
    (void)state;
    static const char text[] = "xe\xcc\x81\xff \xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab<|im_end|>y";
    struct kvl_tokenizer *t = open_folder("qwen2");
    struct kvl_tokens ids = { 0 };
    struct kvl_buf back = { 0 };
    assert_int_equal(kvl_encode(t, text, sizeof text - 1, KVL_ENCODE_SPECIAL, &ids, NULL), KVL_OK);
    assert_int_equal(kvl_decode(t, ids.id, ids.n, true, true, &back, NULL), KVL_OK);
    assert_string_equal(back.data, "x\xc3\xa9\xff \xed\x95\x9c<|im_end|>y");
    assert_int_equal(ids.begin[0], 0);
    assert_int_equal(ids.begin[1], 1); /* e and its accent are one token */
    assert_int_equal(ids.begin[2], 4);
    assert_int_equal(ids.begin[3], 5);
    assert_int_equal(ids.begin[ids.n - 3], 6); /* the last byte of the syllable */
    assert_int_equal(ids.begin[ids.n - 2], 15);
    assert_int_equal(ids.begin[ids.n - 1], 25);
    kvl_tokens_free(&ids);
    kvl_buf_free(&back);
    kvl_tokenizer_destroy(t);
}

/* ---- what stands beside tokenizer.json ----------------------------------------------------- */

static int32_t id_of(const struct kvl_tokenizer *t, const char *text)
{
    struct kvl_tokens ids = { 0 };
    assert_int_equal(
        kvl_encode(t, text, strlen(text), KVL_ENCODE_SPECIAL | KVL_ENCODE_CONTINUE, &ids, NULL),
        KVL_OK);
    assert_int_equal(ids.n, 1);
    int32_t id = ids.id[0];
    kvl_tokens_free(&ids);
    return id;
}

static void expect_facts(const char *name, const char *model, const char *bos, const char *eos,
                         const char *end)
{
    struct kvl_tokenizer *t = open_folder(name);
    assert_string_equal(kvl_tokenizer_model(t), model);
    assert_int_equal(kvl_tokenizer_bos(t), bos ? id_of(t, bos) : -1);
    assert_int_equal(kvl_tokenizer_eos(t), eos ? id_of(t, eos) : -1);
    if (eos) assert_true(kvl_tokenizer_ends(t, id_of(t, eos)));
    if (end) assert_true(kvl_tokenizer_ends(t, id_of(t, end)));
    kvl_tokenizer_destroy(t);
}

static void test_facts(void **state)
{
    (void)state;
    expect_facts("llama3", "gpt2", "<|begin_of_text|>", "<|end_of_text|>", NULL);
    expect_facts("gpt2", "gpt2", "<|endoftext|>", "<|endoftext|>", NULL);
    expect_facts("opt", "gpt2", "</s>", "</s>", NULL);
    expect_facts("digits", "gpt2", "<|endoftext|>", "<|endoftext|>", NULL);
    expect_facts("llama2", "bpe", "<s>", "</s>", NULL);
    expect_facts("metaspace", "bpe", "<s>", NULL, "</s>"); /* by its name */
    expect_facts("gemma", "bpe", "<bos>", "</s>", NULL);
    expect_facts("spm", "llama", "<s>", "</s>", NULL);
    expect_facts("qwen2", "gpt2", NULL, "<|im_end|>", "<|endoftext|>");
    struct kvl_tokenizer *t = open_folder("llama3");
    assert_string_equal(kvl_tokenizer_template(t), "{{ messages }}");
    kvl_tokenizer_destroy(t);
    t = open_folder("qwen2");
    assert_null(kvl_tokenizer_template(t));
    kvl_tokenizer_destroy(t);
}

/* ---- folders made here --------------------------------------------------------------------- */

struct folder {
    char dir[64];
};

static struct folder folder_new(void)
{
    struct folder f = { "/tmp/kvlab-test-XXXXXX" };
    assert_non_null(mkdtemp(f.dir));
    return f;
}

static void folder_write(const struct folder *f, const char *name, const void *data, size_t len)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, len, out), len);
    fclose(out);
}

static void folder_remove(const struct folder *f)
{
    static const char *const name[] = { "tokenizer.json",
                                        "tokenizer_config.json",
                                        "tokenizer.model",
                                        "special_tokens_map.json",
                                        "generation_config.json",
                                        "added_tokens.json",
                                        "chat_template.jinja",
                                        "config.json",
                                        "vocab.json",
                                        "merges.txt" };
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", f->dir, name[i]);
        remove(path);
    }
    assert_int_equal(rmdir(f->dir), 0);
}

/* Puts `value` at a path like model.merges.0 (a copy of the last element behind the end). */
static void set_path(json_t *v, const char *path, json_t *value)
{
    char key[64];
    size_t n = strcspn(path, ".");
    bool last = path[n] == '\0';
    snprintf(key, sizeof key, "%.*s", (int)n, path);
    if (json_is_array(v)) {
        size_t i = strtoul(key, NULL, 10);
        if (last)
            json_array_set_new(v, i, value);
        else
            set_path(json_array_get(v, i), path + n + 1, value);
    } else if (last) {
        json_object_set_new(v, key, value);
    } else {
        if (!json_object_get(v, key)) json_object_set_new(v, key, json_object());
        set_path(json_object_get(v, key), path + n + 1, value);
    }
}

/* A folder with one value of a fixture's tokenizer.json replaced. */
static struct folder changed_folder(const char *fixture, const char *path, const char *value)
{
    char file[512];
    struct folder f = folder_new();
    snprintf(file, sizeof file, FOLDER "%s/tokenizer.json", fixture);
    json_t *v = load(file), *new = json_loads(value, JSON_DECODE_ANY, NULL);
    assert_non_null(new);
    set_path(v, path, new);
    char *text = json_dumps(v, 0);
    folder_write(&f, "tokenizer.json", text, strlen(text));
    free(text);
    json_decref(v);
    return f;
}

static void expect_refused(const struct folder *f, const char *why)
{
    struct kvl_tokenizer *t = NULL;
    struct kvl_err err = { 0 };
    int rc = kvl_tokenizer_from_hf(f->dir, &t, &err);
    if (rc == KVL_OK || t) fail_msg("accepted, want refused: %s", why);
    if (!strstr(err.msg, why)) fail_msg("\"%s\" does not say \"%s\"", err.msg, why);
    assert_null(strchr(err.msg, '\n'));
}

static const struct {
    const char *fixture, *path, *value, *why;
} refused[] = {
    { "llama3", "model.type", "\"WordPiece\"", "/tokenizer.json: model.type is \"WordPiece\"" },
    { "llama3", "model.type", "\"Unigram\"", "model.type is \"Unigram\", want \"BPE\"" },
    { "llama3", "model.dropout", "0.1", "model.dropout is 0.1" },
    { "llama3", "model.end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix is \"</w>\"" },
    { "llama3", "model.unk_token", "\"nope\"", "model.unk_token is \"nope\"" },
    { "llama3", "model.vocab", "{}", "model.vocab is {}" },
    { "llama3", "model.vocab.new", "-1", "an id of model.vocab is -1" },
    { "llama3", "model.vocab.new", "1.5", "an id of model.vocab is 1.5" },
    { "llama3", "model.vocab.new", "16777216", "an id of model.vocab is 16777216" },
    { "llama3", "model.vocab.new", "16777215", "tokens with ids up to 16777215, want ids" },
    { "llama3", "model.vocab.new", "7", "model.vocab gives id 7 to two texts" },
    { "llama3", "model.merges", "{}", "model.merges is {}" },
    { "llama3", "model.merges.3", "[\"a\"]", "model.merges[3] is [\"a\"]" },
    { "gpt2", "model.merges.3", "\"ab\"", "model.merges[3] is \"ab\"" },
    { "gpt2", "model.merges.3", "\"zzz a\"", "merge 3 of model.merges: its left part is not" },
    { "llama3", "added_tokens.0.id", "\"x\"", "added_tokens[0].id is \"x\"" },
    { "llama3", "added_tokens.0.content", "\"\"", "added_tokens[0] is {" },
    { "llama3", "added_tokens.0.single_word", "true", "want \"single_word\" false" },
    { "llama3", "added_tokens.0.content", "\"a\"", "are both \"a\"" },
    { "llama3", "normalizer", "{\"type\":\"NFKC\"}", "normalizer.type is \"NFKC\"" },
    { "llama3", "normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"}]}",
      "normalizer.normalizers[0].type is \"NFD\"" },
    { "llama3", "pre_tokenizer", "null", "pre_tokenizer is null" },
    { "llama3", "pre_tokenizer.pretokenizers.0.type", "\"Whitespace\"",
      "pre_tokenizer.pretokenizers[0].type is \"Whitespace\"" },
    { "llama3", "pre_tokenizer.pretokenizers.0.behavior", "\"MergedWithNext\"",
      "pre_tokenizer.pretokenizers[0].behavior" },
    { "llama3", "pre_tokenizer.pretokenizers.0.invert", "true", "pretokenizers[0].invert is true" },
    { "llama3", "pre_tokenizer.pretokenizers.1.add_prefix_space", "true",
      "pretokenizers[1].add_prefix_space is true" },
    { "llama3", "pre_tokenizer.pretokenizers.0.pattern.Regex", "\"\\\\w+\"",
      "pretokenizers[0]: \"\\w+\" in a pattern is not supported" },
    { "llama3", "pre_tokenizer.pretokenizers.0.pattern.Regex", "\"[a[b]]\"", "\"[b]]\" in a" },
    { "llama3", "pre_tokenizer.pretokenizers.0.pattern.Regex", "\"[a-z&&b]\"", "\"&&b]\" in a" },
    { "llama3", "pre_tokenizer.pretokenizers.0.pattern.Regex", "\"a{1,3}+\"", "\"}+\" in a" },
    { "llama3", "pre_tokenizer.pretokenizers.0.pattern.Regex", "\"(?m:a)\"", "\"(?m:a)\" in a" },
    { "llama3", "pre_tokenizer.pretokenizers.0.pattern.Regex", "\"(a\"",
      "a pattern at \"\": missing" },
    { "llama3", "pre_tokenizer.pretokenizers.0.pattern.Regex", "\"\\\\\\n\"", "\"\\?\" in a" },
    { "llama3", "post_processor", "{\"type\":\"RobertaProcessing\"}",
      "post_processor.type is \"RobertaProcessing\"" },
    { "llama2", "model.byte_fallback", "false", "model.byte_fallback is false" },
    { "llama2", "model.ignore_merges", "true", "model.ignore_merges is true" },
    { "llama2", "normalizer.normalizers.0.prepend", "\"x\"", "normalizers[0].prepend is \"x\"" },
    { "llama2", "normalizer.normalizers.1.content", "\"x\"", "normalizers[1].content is \"x\"" },
    { "llama2", "normalizer", "null", "pre_tokenizer is null" },
    { "mistral", "pre_tokenizer.replacement", "\"_\"", "pre_tokenizer.replacement is \"_\"" },
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct folder f = changed_folder(refused[i].fixture, refused[i].path, refused[i].value);
        expect_refused(&f, refused[i].why);
        folder_remove(&f);
    }
}

static void test_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *why;
    } row[] = {
        { "tokenizer.json", "{\n\"model\": ", "/tokenizer.json: line 2, column " },
        { "tokenizer.json", "[]", "/tokenizer.json: the JSON is no object" },
        { "tokenizer.json", "{}", "/tokenizer.json: model.type is missing, want \"BPE\"" },
        { "tokenizer.model", "IQ== 0\nIg== 1\n", "not a SentencePiece model: a list of tiktoken" },
        { "tokenizer.model", "", "/tokenizer.model: not a SentencePiece model" },
        { "vocab.json", "{}", ": no tokenizer.json, no tokenizer.model, no vocab.json with" },
        { "vocab.json", "{", "/vocab.json: line 1, column " },
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct folder f = folder_new();
        folder_write(&f, row[i].name, row[i].text, strlen(row[i].text));
        expect_refused(&f, row[i].why);
        folder_remove(&f);
    }
}

static void test_bad_config(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *why;
    } row[] = {
        { "tokenizer_config.json", "{\"bos_token\":\"nope\"}",
          "/tokenizer_config.json: bos_token is \"nope\"" },
        { "special_tokens_map.json", "{\"eos_token\":[]}",
          "/special_tokens_map.json: eos_token is []" },
        { "generation_config.json", "{\"eos_token_id\":[0,100000]}",
          "/generation_config.json: eos_token_id is [0,100000], want ids" },
        { "config.json", "{\"bos_token_id\":-1}", "/config.json: bos_token_id is -1, want ids" },
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct folder f = changed_folder("deepseek", "version", "\"1.0\"");
        folder_write(&f, row[i].name, row[i].text, strlen(row[i].text));
        expect_refused(&f, row[i].why);
        folder_remove(&f);
    }
}

/* Ids that the file leaves out are no tokens of any text; a template may be a file or a list. */
static void test_holes_and_templates(void **state)
{
    (void)state;
    static const char list[] = "{\"chat_template\":[{\"name\":\"tool\",\"template\":\"a\"},"
                               "{\"name\":\"default\",\"template\":\"b\"}]}";
    struct folder f = changed_folder("deepseek", "model.vocab.new", "1000");
    struct kvl_tokenizer *t = NULL;
    folder_write(&f, "tokenizer_config.json", list, sizeof list - 1);
    assert_int_equal(kvl_tokenizer_from_hf(f.dir, &t, NULL), KVL_OK);
    assert_int_equal(kvl_tokenizer_size(t), 1001);
    assert_string_equal(kvl_tokenizer_template(t), "b");
    assert_true(kvl_tokenizer_special(t, 999));
    kvl_tokenizer_destroy(t);
    folder_write(&f, "chat_template.jinja", "c", 1);
    assert_int_equal(kvl_tokenizer_from_hf(f.dir, &t, NULL), KVL_OK);
    assert_string_equal(kvl_tokenizer_template(t), "c");
    kvl_tokenizer_destroy(t);
    folder_remove(&f);
}

/* The token that tokenizer.json puts in front is BOS, unless the configuration decides. */
static void test_front_token(void **state)
{
    (void)state;
    static const char *const config[] = {
        "{\"bos_token\":\"<|end_of_text|>\"}",
        "{\"bos_token\":\"<|end_of_text|>\",\"add_bos_token\":true}",
        "{\"bos_token\":null,\"add_bos_token\":false}",
    };
    static const char *const bos[] = { "<|begin_of_text|>", "<|end_of_text|>", NULL };
    for (size_t i = 0; i < 3; i++) {
        struct folder f = changed_folder("llama3", "version", "\"1.0\"");
        struct kvl_tokenizer *t = NULL;
        struct kvl_tokens ids = { 0 };
        folder_write(&f, "tokenizer_config.json", config[i], strlen(config[i]));
        assert_int_equal(kvl_tokenizer_from_hf(f.dir, &t, NULL), KVL_OK);
        assert_int_equal(kvl_tokenizer_bos(t), bos[i] ? id_of(t, bos[i]) : -1);
        assert_int_equal(kvl_encode(t, "", 0, KVL_ENCODE_BOS, &ids, NULL), KVL_OK);
        assert_int_equal(ids.n, bos[i] != NULL);
        kvl_tokens_free(&ids);
        kvl_tokenizer_destroy(t);
        folder_remove(&f);
    }
}

/* What decides ids changes the hash. */
static void test_hash(void **state)
{
    (void)state;
    static const char *const change[][2] = {
        { "version", "\"1.0\"" },
        { "added_tokens.0.rstrip", "true" },
        { "pre_tokenizer.pretokenizers.0.pattern.Regex", "\"a\"" },
        { "model.ignore_merges", "false" },
        { "post_processor", "null" },
    };
    uint64_t hash[5];
    for (size_t i = 0; i < 5; i++) {
        struct folder f = changed_folder("llama3", change[i][0], change[i][1]);
        struct kvl_tokenizer *t = NULL;
        assert_int_equal(kvl_tokenizer_from_hf(f.dir, &t, NULL), KVL_OK);
        hash[i] = kvl_tokenizer_hash(t);
        for (size_t k = 0; k < i; k++) assert_true(hash[i] != hash[k]);
        kvl_tokenizer_destroy(t);
        folder_remove(&f);
    }
}

/* vocab.json and merges.txt, and a configuration. */
static void test_gpt2_files(void **state)
{
    (void)state;
    static const struct {
        const char *config, *merges, *why;
    } row[] = {
        { "{\"tokenizer_class\":\"Qwen2Tokenizer\"}", "a b\n", "do not say how text is cut" },
        { "{}", "a b\n", "do not say how text is cut" },
        { "{\"tokenizer_class\":\"GPT2Tokenizer\",\"add_prefix_space\":true}", "a b\n",
          "/tokenizer_config.json: add_prefix_space is true" },
        { "{\"tokenizer_class\":\"GPT2Tokenizer\"}", "a b\nc\n", "/vocab.json: model.merges[1]" },
        { "{\"tokenizer_class\":\"GPT2Tokenizer\"}", "\xff b\n", "/merges.txt is no UTF-8" },
        { "{\"tokenizer_class\":\"GPT2Tokenizer\"}", "#version: 0.2\r\na b\r\n", NULL },
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        static const char vocab[] = "{\"a\":0,\"b\":1,\"ab\":2}";
        struct folder f = folder_new();
        folder_write(&f, "vocab.json", vocab, sizeof vocab - 1);
        folder_write(&f, "merges.txt", row[i].merges, strlen(row[i].merges));
        folder_write(&f, "tokenizer_config.json", row[i].config, strlen(row[i].config));
        if (row[i].why) {
            expect_refused(&f, row[i].why);
        } else {
            struct kvl_tokenizer *t = NULL;
            assert_int_equal(kvl_tokenizer_from_hf(f.dir, &t, NULL), KVL_OK);
            assert_int_equal(id_of(t, "ab"), 2);
            kvl_tokenizer_destroy(t);
        }
        folder_remove(&f);
    }
}

/* ---- tokenizer.model ----------------------------------------------------------------------- */

static void proto_bytes(struct kvl_buf *b, uint8_t tag, const void *data, size_t len)
{
    const uint8_t head[] = { tag, (uint8_t)len };
    assert_true(len < 128);
    assert_int_equal(kvl_buf_add(b, head, 2), KVL_OK);
    assert_int_equal(kvl_buf_add(b, data, len), KVL_OK);
}

/* <unk>, <s>, </s>, "a", U+2581: type 2 (BPE) and a normalizer that keeps spaces, then `more`. */
static struct folder proto_folder(const void *more, size_t len)
{
    static const char *const text[] = { "<unk>", "<s>", "</s>", "a", "\xe2\x96\x81" };
    static const uint8_t type[] = { 2, 3, 3, 1, 1 };
    struct kvl_buf file = { 0 };
    for (size_t i = 0; i < 5; i++) {
        struct kvl_buf piece = { 0 };
        proto_bytes(&piece, 0x0a, text[i], strlen(text[i]));
        assert_int_equal(kvl_buf_add(&piece, "\x15\0\0\0\0", 5), KVL_OK);
        assert_int_equal(kvl_buf_add(&piece, "\x18", 1), KVL_OK);
        assert_int_equal(kvl_buf_add(&piece, &type[i], 1), KVL_OK);
        proto_bytes(&file, 0x0a, piece.data, piece.len);
        kvl_buf_free(&piece);
    }
    proto_bytes(&file, 0x12, "\x18\x02", 2);
    proto_bytes(&file, 0x1a, "\x20\x00", 2);
    assert_int_equal(kvl_buf_add(&file, more, len), KVL_OK);
    struct folder f = folder_new();
    folder_write(&f, "tokenizer.model", file.data, file.len);
    kvl_buf_free(&file);
    return f;
}

static void test_proto(void **state)
{
    (void)state;
    static const char added[] = "{\"<|x|>\":6}";
    static const char config[] = "{\"add_bos_token\":false,\"eos_token\":\"<|x|>\","
                                 "\"added_tokens_decoder\":{\"7\":{\"content\":\"[u]\"}}}";
    struct folder f = proto_folder("", 0);
    struct kvl_tokenizer *t = NULL;
    struct kvl_tokens ids = { 0 };
    folder_write(&f, "added_tokens.json", added, sizeof added - 1);
    folder_write(&f, "tokenizer_config.json", config, sizeof config - 1);
    assert_int_equal(kvl_tokenizer_from_hf(f.dir, &t, NULL), KVL_OK);
    assert_int_equal(kvl_tokenizer_size(t), 8);
    assert_int_equal(kvl_tokenizer_eos(t), 6);
    assert_int_equal(
        kvl_encode(t, "a<|x|>a[u]", 10, KVL_ENCODE_BOS | KVL_ENCODE_SPECIAL, &ids, NULL), KVL_OK);
    static const int32_t want[] = { 4, 3, 6, 4, 3, 7 };
    assert_int_equal(ids.n, 6);
    assert_memory_equal(ids.id, want, sizeof want);
    kvl_tokens_free(&ids);
    kvl_tokenizer_destroy(t);
    folder_remove(&f);
}

static void test_bad_proto(void **state)
{
    (void)state;
    static const struct {
        const char *more;
        size_t len;
        const char *why;
    } row[] = {
        { "\x12\x02\x18\x01", 4, "model_type is 1 (Unigram), want 2 (BPE)" },
        { "\x1a\x03\x12\x01x", 5, "its normalizer maps characters (a map of 1 bytes)" },
        { "\x1a\x02\x20\x01", 4, "its normalizer removes extra spaces" },
        { "\x1a\x02\x28\x00", 4, "does not escape spaces" },
        { "\x12\x03\xc0\x01\x01", 5, "puts spaces behind words" },
        { "\x0a\x05\x0a\x01"
          "b\x18\x07",
          7, "piece 5 has type 7" },
        { "\x0a\x07", 2, "no protobuf message" },
        { "\x12\x02\x18\x80", 4, "no protobuf message" },
        { "\x0b", 1, "no protobuf message" },
        { "\x80", 1, "no protobuf message" },
        { "\x0a\x03\x0a\x01"
          "a",
          5, "are both \"a\"" },
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct folder f = proto_folder(row[i].more, row[i].len);
        expect_refused(&f, row[i].why);
        folder_remove(&f);
    }
}

/* Two ways to match each letter are 2^63 ways to match them all: refused after so many steps, not after so many years. */
static void test_endless_pattern(void **state)
{
    (void)state;
    static const char *const regex[] = { "\"(?:a|a)+$\"", "\"(?:a+)+$\"", "\"(?:a|aa)+$\"" };
    char text[64];
    memset(text, 'a', sizeof text);
    text[63] = 'b';
    for (size_t i = 0; i < sizeof regex / sizeof regex[0]; i++) {
        struct folder f =
            changed_folder("llama3", "pre_tokenizer.pretokenizers.0.pattern.Regex", regex[i]);
        struct kvl_tokenizer *t = NULL;
        struct kvl_tokens ids = { 0 };
        struct kvl_err err = { 0 };
        assert_int_equal(kvl_tokenizer_from_hf(f.dir, &t, NULL), KVL_OK);
        clock_t start = clock();
        int rc = kvl_encode(t, text, sizeof text, 0, &ids, &err);
        assert_true(clock() - start < CLOCKS_PER_SEC);
        assert_int_equal(rc, KVL_EMODEL);
        assert_string_equal(err.msg,
                            "the tokenizer's pattern takes too many steps at byte 0 of the text, "
                            "want one that goes through it a few times");
        kvl_tokens_free(&ids);
        kvl_tokenizer_destroy(t);
        folder_remove(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_opt),
        cmocka_unit_test(test_digits),
        cmocka_unit_test(test_deepseek),
        cmocka_unit_test(test_llama2),
        cmocka_unit_test(test_mistral),
        cmocka_unit_test(test_metaspace),
        cmocka_unit_test(test_gemma),
        cmocka_unit_test(test_spm),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_composed_begins),
        cmocka_unit_test(test_facts),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_bad_config),
        cmocka_unit_test(test_holes_and_templates),
        cmocka_unit_test(test_front_token),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_endless_pattern),
        cmocka_unit_test(test_gpt2_files),
        cmocka_unit_test(test_proto),
        cmocka_unit_test(test_bad_proto),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
