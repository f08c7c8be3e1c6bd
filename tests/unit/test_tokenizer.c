/* Tokenizers: against published ids, against a naive implementation of merging, round trips. */
#include "gguf_writer.h"
#include "kvl/gguf.h"
#include "kvl/tokenizer.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- helpers ------------------------------------------------------------------------------- */

static struct kvl_tokenizer *from_writer(struct gw *w)
{
    struct kvl_buf file = { 0 };
    struct kvl_err err = { 0 };
    struct kvl_gguf *g = NULL;
    struct kvl_tokenizer *t = NULL;
    gw_finish(w, &file);
    gw_free(w);
    assert_int_equal(kvl_gguf_open_memory(file.data, file.len, &g, &err), KVL_OK);
    if (kvl_tokenizer_create(g, &t, &err) != KVL_OK) fail_msg("%s", err.msg);
    kvl_gguf_close(g); /* a tokenizer does not need its file */
    kvl_buf_free(&file);
    return t;
}

static void expect_refused(struct gw *w, const char *why)
{
    struct kvl_buf file = { 0 };
    struct kvl_err err = { 0 };
    struct kvl_gguf *g = NULL;
    struct kvl_tokenizer *t = NULL;
    gw_finish(w, &file);
    gw_free(w);
    assert_int_equal(kvl_gguf_open_memory(file.data, file.len, &g, &err), KVL_OK);
    int rc = kvl_tokenizer_create(g, &t, &err);
    if (rc != KVL_EMODEL || t) fail_msg("status %d, want refused: %s", rc, why);
    if (!strstr(err.msg, why)) fail_msg("\"%s\" does not say \"%s\"", err.msg, why);
    assert_null(strchr(err.msg, '\n'));
    kvl_gguf_close(g);
    kvl_buf_free(&file);
}

static struct kvl_tokens encode(const struct kvl_tokenizer *t, const char *s, size_t len,
                                uint32_t flags)
{
    struct kvl_tokens out = { 0 };
    struct kvl_err err = { 0 };
    char *exact = malloc(len ? len : 1);
    memcpy(exact, s, len);
    if (kvl_encode(t, exact, len, flags, &out, &err) != KVL_OK) fail_msg("%s", err.msg);
    free(exact);
    return out;
}

static void expect_ids(const struct kvl_tokenizer *t, const char *s, uint32_t flags, int32_t n,
                       const int32_t *want)
{
    struct kvl_tokens out = encode(t, s, strlen(s), flags);
    bool same = out.n == n;
    for (int32_t i = 0; same && i < n; i++) same = out.id[i] == want[i];
    if (!same) {
        for (int32_t i = 0; i < out.n; i++) print_message("%d ", out.id[i]);
        fail_msg("are the ids of \"%s\"", s);
    }
    kvl_tokens_free(&out);
}
#define IDS(...)                                                                                   \
    (int32_t)(sizeof((int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t)), (const int32_t[])             \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* Encodes as a continuation and decodes: must give the text, token by token where it began. */
static void expect_round_trip(const struct kvl_tokenizer *t, const char *s, size_t len)
{
    struct kvl_tokens out = encode(t, s, len, KVL_ENCODE_CONTINUE);
    struct kvl_buf text = { 0 };
    size_t last = 0;
    for (int32_t i = 0; i < out.n; i++) {
        /* A character's byte tokens come one by one, so that the lengths add up here too. */
        if (out.begin[i] != text.len || out.begin[i] < last)
            fail_msg("token %d of \"%.*s\" begins at %zu, want %zu", i, (int)len, s, out.begin[i],
                     text.len);
        last = out.begin[i];
        assert_int_equal(kvl_decode(t, &out.id[i], 1, false, false, &text, NULL), KVL_OK);
    }
    if (text.len != len || (len && memcmp(text.data, s, len) != 0))
        fail_msg("\"%.*s\" became \"%.*s\"", (int)len, s, (int)text.len, text.data);
    kvl_buf_free(&text);
    kvl_tokens_free(&out);
}

static size_t utf8(uint32_t c, char out[4])
{
    if (c < 0x800) return gw_utf8(c, out);
    size_t n = c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}

/* ---- public vectors ------------------------------------------------------------------------ */

/* A tokenizer of the public test data, or NULL where there is none. */
static struct kvl_tokenizer *public_tokenizer(const char *path, char full[512])
{
    const char *root = getenv("KVL_TEST_DATA");
    struct kvl_err err = { 0 };
    struct kvl_gguf *g = NULL;
    struct kvl_tokenizer *t = NULL;
    snprintf(full, 512, "%s/%s", root ? root : KVL_SOURCE_DIR "/../shared/data", path);
    if (access(full, R_OK) != 0) {
        print_message("skipped: no %s (set KVL_TEST_DATA)\n", full);
        return NULL;
    }
    if (kvl_gguf_open(full, &g, &err) != KVL_OK || kvl_tokenizer_create(g, &t, &err) != KVL_OK)
        fail_msg("%s", err.msg);
    kvl_gguf_close(g);
    return t;
}

static bool ids_equal_line(const struct kvl_tokens *got, const char *line, const char *end)
{
    for (int32_t i = 0;; i++) {
        while (line < end && *line == ' ') line++;
        if (line == end) return i == got->n;
        char *next;
        long id = strtol(line, &next, 10);
        if (i == got->n || got->id[i] != id) return false;
        line = next;
    }
}

/* 46 texts between separators, and a line of ids for each. */
static bool check_vectors(const char *name)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char path[512], file[600];
    struct kvl_tokenizer *t = public_tokenizer(name, path);
    struct kvl_buf in = { 0 }, out = { 0 };
    if (!t) return false;
    snprintf(file, sizeof file, "%s.inp", path);
    assert_int_equal(kvl_read_file(file, 1 << 20, &in, NULL), KVL_OK);
    snprintf(file, sizeof file, "%s.out", path);
    assert_int_equal(kvl_read_file(file, 1 << 20, &out, NULL), KVL_OK);
    const char *s = in.data, *line = out.data, *end;
    int n = 0;
    for (; (end = strstr(s, separator)); s = end + sizeof separator - 1, n++) {
        struct kvl_tokens got = encode(t, s, (size_t)(end - s), 0);
        const char *line_end = strchr(line, '\n');
        if (!ids_equal_line(&got, line, line_end))
            fail_msg("%s: text %d \"%.*s\"", name, n, (int)(end - s), s);
        line = line_end + 1;
        kvl_tokens_free(&got);
    }
    assert_int_equal(n, 46);
    kvl_buf_free(&in);
    kvl_buf_free(&out);
    kvl_tokenizer_destroy(t);
    return true;
}

/* Those that are there: llama.cpp's models/ggml-vocab-*.gguf with their .inp and .out. */
static void test_vectors(void **state)
{
    (void)state;
    static const char *const name[] = {
        "llama-spm", "phi-3",        "gpt-2",     "starcoder",      "refact",    "mpt",
        "falcon",    "deepseek-llm", "command-r", "deepseek-coder", "llama-bpe", "qwen2",
    };
    int found = 0;
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        char path[80];
        snprintf(path, sizeof path, "vocab/ggml-vocab-%s.gguf", name[i]);
        found += check_vectors(path);
    }
    if (!found) skip();
}

/* A vocabulary without byte tokens whose scores are all equal. */
static void test_tiny_stories(void **state)
{
    (void)state;
    char path[512];
    struct kvl_tokenizer *t = public_tokenizer("models/TinyStories-656K-Q8_0.gguf", path);
    struct kvl_buf text = { 0 };
    if (!t) skip();
    expect_ids(t, "Once upon a time", KVL_ENCODE_BOS, IDS(1, 80, 147, 201, 282, 57));
    static const int32_t id[] = { 1, 80, 147, 201, 282, 57, 313, 598 };
    assert_int_equal(kvl_decode(t, id, 8, false, true, &text, NULL), KVL_OK);
    assert_memory_equal(text.data, "Once upon a time, a", 19);
    struct kvl_tokens out = encode(t, "\xf0\x9f\x98\x80", 4, KVL_ENCODE_CONTINUE);
    assert_int_equal(out.n, 1);
    assert_int_equal(out.id[0], 0); /* unknown */
    kvl_tokens_free(&out);
    kvl_buf_free(&text);
    kvl_tokenizer_destroy(t);
}

/* Every token's text comes back from its own encoding. */
static void check_every_token(const char *name)
{
    char path[512];
    struct kvl_tokenizer *t = public_tokenizer(name, path);
    if (!t) skip();
    for (int32_t id = 0; id < kvl_tokenizer_size(t); id++) {
        struct kvl_buf text = { 0 };
        assert_int_equal(kvl_decode(t, &id, 1, false, false, &text, NULL), KVL_OK);
        if (text.len) expect_round_trip(t, text.data, text.len);
        kvl_buf_free(&text);
    }
    kvl_tokenizer_destroy(t);
}

static void test_every_token(void **state)
{
    (void)state;
    check_every_token("vocab/ggml-vocab-llama-spm.gguf");
    check_every_token("vocab/ggml-vocab-gpt-2.gguf");
}

/* Every code point but surrogates, and U+2581, which SentencePiece makes a space. */
static void check_every_code_point(const char *name)
{
    char path[512], c[4];
    struct kvl_tokenizer *t = public_tokenizer(name, path);
    struct kvl_buf text = { 0 };
    if (!t) skip();
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        if ((cp < 0xd800 || cp > 0xdfff) && cp != 0x2581) gw_raw(&text, c, utf8(cp, c));
        if ((cp & 0xfff) != 0xfff) continue;
        if (text.len) expect_round_trip(t, text.data, text.len);
        text.len = 0;
    }
    kvl_buf_free(&text);
    kvl_tokenizer_destroy(t);
}

static void test_every_code_point(void **state)
{
    (void)state;
    check_every_code_point("vocab/ggml-vocab-llama-spm.gguf");
    check_every_code_point("vocab/ggml-vocab-gpt-2.gguf");
}

#define SPACE "\xe2\x96\x81"

/* ---- small vocabularies -------------------------------------------------------------------- */

enum { MAX_VOCAB = 700, MAX_TEXT = 24 };

struct vocab {
    char text[MAX_VOCAB][MAX_TEXT * 2 + 1];
    int32_t type[MAX_VOCAB];
    float score[MAX_VOCAB];
    int32_t n;
};

static int32_t vocab_find(const struct vocab *v, const char *s)
{
    for (int32_t i = 0; i < v->n; i++)
        if (strcmp(v->text[i], s) == 0) return i;
    return -1;
}

static int32_t vocab_add(struct vocab *v, const char *s, int32_t type, float score)
{
    assert_true(v->n < MAX_VOCAB && strlen(s) <= MAX_TEXT * 2);
    strcpy(v->text[v->n], s);
    v->type[v->n] = type;
    v->score[v->n] = score;
    return v->n++;
}

static void vocab_write(const struct vocab *v, struct gw *w)
{
    const char *s[MAX_VOCAB];
    for (int32_t i = 0; i < v->n; i++) s[i] = v->text[i];
    gw_arr_str(w, "tokenizer.ggml.tokens", (uint64_t)v->n, s);
    gw_arr(w, "tokenizer.ggml.token_type", 5, (uint64_t)v->n, v->type,
           (size_t)v->n * sizeof *v->type);
}

/* <unk> <s> </s>, the 256 byte tokens, then `more` in order: scores 0, -1, -2, ... */
static struct vocab spm_vocab(const char *const *more, int32_t n)
{
    struct vocab v = { .n = 0 };
    vocab_add(&v, "<unk>", 2, 0);
    vocab_add(&v, "<s>", 3, 0);
    vocab_add(&v, "</s>", 3, 0);
    for (int b = 0; b < 256; b++) {
        char s[8];
        snprintf(s, sizeof s, "<0x%02X>", b);
        vocab_add(&v, s, 6, 0);
    }
    for (int32_t i = 0; i < n; i++) vocab_add(&v, more[i], 1, (float)-i);
    return v;
}

static void spm_write(const struct vocab *v, struct gw *w)
{
    gw_init(w);
    gw_str(w, "tokenizer.ggml.model", "llama");
    vocab_write(v, w);
    gw_arr(w, "tokenizer.ggml.scores", 6, (uint64_t)v->n, v->score,
           (size_t)v->n * sizeof *v->score);
}

static struct vocab bpe_vocab(void)
{
    struct vocab v = { .n = 0 };
    vocab_add(&v, "<pad>", 3, 0);
    vocab_add(&v, "<bos>", 3, 0);
    vocab_add(&v, "<last>", 3, 0);
    for (uint32_t b = 0; b < 256; b++) {
        char s[5] = { 0 };
        gw_utf8(gw_byte_char(b), s);
        vocab_add(&v, s, 1, 0);
    }
    return v;
}

static void bpe_write(const struct vocab *v, const char *pre, uint64_t n_merges,
                      const char *const *merge, struct gw *w)
{
    gw_init(w);
    gw_str(w, "tokenizer.ggml.model", "gpt2");
    if (pre) gw_str(w, "tokenizer.ggml.pre", pre);
    vocab_write(v, w);
    gw_arr_str(w, "tokenizer.ggml.merges", n_merges, merge);
}

/* ---- merging against a naive implementation ------------------------------------------------ */

enum { JOINED = 4 * MAX_TEXT + 2 };

static void join(char out[JOINED], const char *a, const char *between, const char *b)
{
    const char *part[] = { a, between, b };
    size_t n = 0;
    for (int i = 0; i < 3; i++) {
        size_t len = strlen(part[i]);
        assert_true(n + len < JOINED);
        memcpy(out + n, part[i], len);
        n += len;
    }
    out[n] = '\0';
}

/* One symbol of the naive merger. */
struct naive {
    char s[MAX_TEXT * 2 + 1];
};

/* Looks at all pairs, merges the best, starts again.  score_of returns false when no merge. */
static int32_t naive_merge(struct naive *sym, int32_t n, const void *user,
                           bool (*score_of)(const void *user, const char *a, const char *b,
                                            double *score))
{
    for (;;) {
        int32_t best = -1;
        double top = 0, score;
        for (int32_t i = 0; i + 1 < n; i++)
            if (score_of(user, sym[i].s, sym[i + 1].s, &score) && (best < 0 || score > top)) {
                best = i;
                top = score;
            }
        if (best < 0) return n;
        char both[JOINED];
        join(both, sym[best].s, "", sym[best + 1].s);
        memcpy(sym[best].s, both, sizeof sym[best].s);
        memmove(&sym[best + 1], &sym[best + 2], (size_t)(n - best - 2) * sizeof *sym);
        n--;
    }
}

static bool spm_score(const void *user, const char *a, const char *b, double *score)
{
    const struct vocab *v = user;
    char both[JOINED];
    join(both, a, "", b);
    int32_t id = vocab_find(v, both);
    if (id < 0 || v->type[id] != 1) return false;
    *score = (double)v->score[id];
    return true;
}

/* Random tokens: concatenations of earlier ones, with few distinct scores so that ties are common. */
static struct vocab random_spm(struct kvl_rng *rng, bool spaces_inside)
{
    static const char *const letter[] = { "a", "b", "c", "\xe2\x96\x81" };
    struct vocab v = spm_vocab(letter, 4);
    while (v.n < 330) {
        char s[JOINED];
        int32_t a = 259 + (int32_t)kvl_rng_below(rng, (uint32_t)v.n - 259);
        int32_t b = 259 + (int32_t)kvl_rng_below(rng, (uint32_t)v.n - 259);
        join(s, v.text[a], "", v.text[b]);
        bool space = strstr(v.text[b], "\xe2\x96\x81") != NULL;
        if (strlen(s) <= 12 && vocab_find(&v, s) < 0 && (spaces_inside || !space))
            vocab_add(&v, s, 1, -(float)kvl_rng_below(rng, 12));
    }
    return v;
}

static void test_spm_merging(void **state)
{
    (void)state;
    struct kvl_rng rng;
    kvl_rng_seed(&rng, 1);
    for (int round = 0; round < 20; round++) {
        struct gw w;
        struct vocab v = random_spm(&rng, round % 2);
        spm_write(&v, &w);
        gw_bool(&w, "tokenizer.ggml.add_space_prefix", false);
        struct kvl_tokenizer *t = from_writer(&w);
        for (int k = 0; k < 100; k++) {
            struct naive sym[MAX_TEXT];
            char text[MAX_TEXT + 1] = { 0 };
            int32_t n = 1 + (int32_t)kvl_rng_below(&rng, MAX_TEXT), want[MAX_TEXT];
            for (int32_t i = 0; i < n; i++) {
                text[i] = "abc "[kvl_rng_below(&rng, 4)];
                char one[2] = { text[i], 0 };
                strcpy(sym[i].s, text[i] == ' ' ? "\xe2\x96\x81" : one);
            }
            n = naive_merge(sym, n, &v, spm_score);
            for (int32_t i = 0; i < n; i++) want[i] = vocab_find(&v, sym[i].s);
            expect_ids(t, text, 0, n, want);
        }
        kvl_tokenizer_destroy(t);
    }
}

struct merges {
    char text[256][2 * MAX_TEXT];
    int32_t n;
};

static bool bpe_score(const void *user, const char *a, const char *b, double *score)
{
    const struct merges *m = user;
    char both[JOINED];
    join(both, a, " ", b);
    for (int32_t i = 0; i < m->n; i++)
        if (strcmp(m->text[i], both) == 0) {
            *score = -i;
            return true;
        }
    return false;
}

static struct kvl_tokenizer *random_bpe(struct kvl_rng *rng, struct vocab *v, struct merges *m)
{
    static const char *const letter[] = { "a", "b", "c", "d" };
    const char *list[256], *part[300];
    int32_t n_parts = 4;
    struct gw w;
    *v = bpe_vocab();
    m->n = 0;
    for (int i = 0; i < 4; i++) part[i] = letter[i];
    while (m->n < 60) {
        char both[JOINED], joined[JOINED];
        double score;
        const char *a = part[kvl_rng_below(rng, (uint32_t)n_parts)];
        const char *b = part[kvl_rng_below(rng, (uint32_t)n_parts)];
        join(both, a, " ", b);
        join(joined, a, "", b);
        if (strlen(joined) > 9 || bpe_score(m, a, b, &score)) continue;
        if (vocab_find(v, joined) < 0) part[n_parts++] = v->text[vocab_add(v, joined, 1, 0)];
        strcpy(m->text[m->n], both);
        list[m->n] = m->text[m->n];
        m->n++;
    }
    bpe_write(v, "gpt-2", (uint64_t)m->n, list, &w);
    return from_writer(&w);
}

static void test_bpe_merging(void **state)
{
    (void)state;
    struct kvl_rng rng;
    static struct vocab v;
    static struct merges m;
    kvl_rng_seed(&rng, 2);
    for (int round = 0; round < 20; round++) {
        struct kvl_tokenizer *t = random_bpe(&rng, &v, &m);
        for (int k = 0; k < 100; k++) {
            struct naive sym[MAX_TEXT];
            char text[MAX_TEXT + 1] = { 0 };
            int32_t n = 1 + (int32_t)kvl_rng_below(&rng, MAX_TEXT), want[MAX_TEXT];
            for (int32_t i = 0; i < n; i++) {
                text[i] = "abcd"[kvl_rng_below(&rng, 4)];
                snprintf(sym[i].s, sizeof sym[i].s, "%c", text[i]);
            }
            n = naive_merge(sym, n, &m, bpe_score);
            for (int32_t i = 0; i < n; i++) want[i] = vocab_find(&v, sym[i].s);
            expect_ids(t, text, 0, n, want);
        }
        kvl_tokenizer_destroy(t);
    }
}

/* ---- pre-tokenizers ------------------------------------------------------------------------ */

/* A vocabulary in which every stretch of `text` is a token and any two neighbours merge: then each
 * piece that the pre-tokenizer makes becomes exactly one token. */
static struct kvl_tokenizer *pieces_tokenizer(const char *pre, const char *text)
{
    static struct vocab v;
    static char merge[4096][2 * MAX_TEXT + 2];
    const char *list[4096];
    uint64_t n = 0;
    struct gw w;
    size_t len = strlen(text);
    char seen[MAX_TEXT + 1][4];
    assert_true(len <= 16);
    v = bpe_vocab();
    for (size_t i = 0; i < len; i++) {
        memset(seen[i], 0, sizeof seen[i]);
        gw_utf8(gw_byte_char((unsigned char)text[i]), seen[i]);
    }
    for (size_t i = 0; i < len; i++)
        for (size_t k = i + 2; k <= len; k++) {
            char whole[2 * MAX_TEXT + 1] = { 0 };
            for (size_t x = i; x < k; x++) strcat(whole, seen[x]);
            if (vocab_find(&v, whole) < 0) vocab_add(&v, whole, 1, 0);
            for (size_t j = i + 1; j < k; j++, n++) {
                merge[n][0] = '\0';
                for (size_t x = i; x < k; x++) {
                    if (x == j) strcat(merge[n], " ");
                    strcat(merge[n], seen[x]);
                }
                list[n] = merge[n];
            }
        }
    bpe_write(&v, pre, n, list, &w);
    return from_writer(&w);
}

struct pieces_case {
    const char *pre, *pieces; /* pieces divided by '|' */
};

/* Worked out by hand from the published patterns. */
static const struct pieces_case pieces_cases[] = {
    { "gpt-2", "I|'m|  | fine" },
    { "gpt-2", "DON|'|T| a" },
    { "gpt-2", "a|1|b|22| 33" },
    { "gpt-2", "x|\n\n| y" },
    { "gpt-2", "!?...| ok|.|\n" },
    { "gpt-2", "\xc3\xa9t\xe4\xb8\xad|\xc2\xb2| x" }, /* U+00B2 is a number */
    { "gpt-2", "a|\xe3\x80\x80|\xe3\x80\x80|b" },     /* U+3000 is a space */
    { "gpt-2", "a|\xc2\x85|\xc2\x85|b" },             /* U+0085 too, which \p{Z} lacks */
    { "gpt-2", "a| \xe1\xa0\x8e|b" },                 /* U+180E is none */
    /* Surrogate, overlong forms, beyond U+10FFFF: not UTF-8, so apart from what surrounds them. */
    { "gpt-2", "!|\xed\xa0\x80|!" },
    { "gpt-2", "!|\xc0\x80|!|\xe0\x80\x80|!" },
    { "gpt-2", "!|\xf0\x80\x80\x80|!" },
    { "gpt-2", "!|\xf4\x90\x80\x80|!" },
    { "smollm", "a|1|2| |3" },
    { "starcoder", "x|  | y" },
    { "llama-bpe", "DON|'T| a" },
    { "llama-bpe", "123|456|7" },
    { "llama-bpe", "a|\n\n| | b" },
    { "llama-bpe", "(foo|).\n\n|x" },
    { "llama-bpe", "'\xc5\xbf|a" }, /* U+017F folds to s */
    { "qwen2", "'S|a|1|2" },
    { "qwen2", "a|\r\n|\tb| |1" },
    { "tekken", "Hello|WORLDfoo| A" },
    { "tekken", "ABC| def|/b" },
    { "tekken", "!!\n/|1|2" },
    { "qwen2", "ax|\xcc\x81\xe0\xa4\xbf| c" }, /* combining marks are no letters */
    { "qwen35", "ax\xcc\x81\xe0\xa4\xbf"
                "b| c|." },
    { "qwen35", "'S|a|1|2|  |\t\xcc\x81" },
    { "gpt-4o", "Don't| I'll" },
    { "gpt-4o", "HELLO's| a|'B" },
    { "llama4", "123|4| \xc3\x89t\xc3\xa9| /\n" }, /* not only ASCII letters have a case */
    { "minimax-m2", "a|B| ab|C's" },
    { "glm4", "123|4| a|\n\n|b" },
    { "pixtral", "123|4|'D| b" },
    { "deepseek-v3", "(foo|)| ..\n|x" },
    { "deepseek-v3", "a|123|4|\xe4\xb8\xad\xe3\x81\x82|b" },
    { "deepseek-v3", "e\xcc\x81| +|  | a" },
    { "deepseek-coder", "a|\n|\n| b|1|2| ?!" },
    { "deepseek-coder", "$|a| ?|\xe4\xb8\xad|  " },
    { "deepseek-llm", "a|12" },
    { "deepseek-llm", "a|\xd5\xa1| b| | .|\n" }, /* U+0561 is not among its letters */
    { "deepseek-llm", " \xce\xa9| .|12|\xe4\xb8\xad| " },
    { "falcon", "a|`|b| |123|4" },
    { "bailingmoe", "x|'LL|1|2|\n\n| a" },
    { "seed-coder", "a|!!|\n|1|2" },
    { "bloom", "foo|,| bar1| | b" },
    { "viking", "foo|,| bar|1|2" },
    { "default", "a|+|b| c" },
    { "default", "x|123|45" },
    { NULL, "x|123|45" },
};

static void test_pre_tokenizers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pieces_cases / sizeof pieces_cases[0]; i++) {
        const struct pieces_case *c = &pieces_cases[i];
        char text[MAX_TEXT + 1] = { 0 };
        size_t begin[MAX_TEXT], len = 0;
        int32_t n = 1;
        begin[0] = 0;
        for (const char *s = c->pieces; *s; s++) {
            if (*s == '|')
                begin[n++] = len;
            else
                text[len++] = *s;
        }
        struct kvl_tokenizer *t = pieces_tokenizer(c->pre, text);
        struct kvl_tokens out = encode(t, text, len, 0);
        bool same = out.n == n;
        for (int32_t k = 0; same && k < n; k++) same = out.begin[k] == begin[k];
        if (!same) {
            for (int32_t k = 0; k < out.n; k++) print_message("%zu ", out.begin[k]);
            fail_msg("are the pieces of %s \"%s\"", c->pre ? c->pre : "(none)", c->pieces);
        }
        kvl_tokens_free(&out);
        kvl_tokenizer_destroy(t);
    }
}

/* With ignore_merges a piece that is a token is taken at once; without, merges alone decide. */
static void test_ignore_merges(void **state)
{
    (void)state;
    static const char *const pre[] = { "llama-bpe", "smaug-bpe" };
    for (int i = 0; i < 2; i++) {
        struct vocab v = bpe_vocab();
        struct gw w;
        int32_t whole = vocab_add(&v,
                                  "\xc4\xa0"
                                  "abc",
                                  1, 0),
                a = vocab_find(&v, "a");
        vocab_add(&v,
                  "\xc4\xa0"
                  "ctl",
                  3, 0);
        bpe_write(&v, pre[i], 0, NULL, &w);
        struct kvl_tokenizer *t = from_writer(&w);
        if (i == 0)
            expect_ids(t, " abc", 0, IDS(whole));
        else
            expect_ids(t, " abc", 0, IDS(GW_BYTE0 + ' ', a, a + 1, a + 2));
        struct kvl_tokens out = encode(t, " ctl", 4, 0); /* never a control token */
        assert_int_equal(out.n, 4);
        kvl_tokens_free(&out);
        kvl_tokenizer_destroy(t);
    }
}

/* Whether a piece that is a token is taken at once and whether BOS is added, unless a key says. */
static void expect_defaults(const char *tags, bool yes)
{
    char list[400], *rest = list;
    snprintf(list, sizeof list, "%s", tags);
    for (char *tag; (tag = strsep(&rest, " "));) {
        for (int key = -1; key < 2; key++) {
            struct vocab v = bpe_vocab();
            struct gw w;
            vocab_add(&v,
                      "\xc4\xa0"
                      "abc",
                      1, 0);
            bpe_write(&v, tag, 0, NULL, &w);
            gw_u32(&w, "tokenizer.ggml.bos_token_id", GW_BOS);
            if (key >= 0) gw_bool(&w, "tokenizer.ggml.add_bos_token", key);
            struct kvl_tokenizer *t = from_writer(&w);
            struct kvl_tokens out = encode(t, " abc", 4, KVL_ENCODE_BOS);
            bool bos = out.id[0] == GW_BOS, want = key < 0 ? yes : key;
            if (bos != want || out.n != bos + (yes ? 1 : 4)) fail_msg("defaults of %s", tag);
            kvl_tokens_free(&out);
            kvl_tokenizer_destroy(t);
        }
    }
}

static void test_pre_defaults(void **state)
{
    (void)state;
    expect_defaults("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral lfm2 midm-2.0 tekken",
                    true);
    expect_defaults(
        "default gpt-2 mpt olmo roberta-bpe phi-2 exaone4 jais trillion granite-docling "
        "gigachat a.x-4.0 mellum smollm starcoder refact command-r codeshell exaone",
        false);
    expect_defaults("minerva-7b mellum2 smaug-bpe dbrx chatglm-bpe glm4 qwen2 deepseek-r1-qwen "
                    "megrez stablelm2 kormo hunyuan solar-open grok-2 qwen35 gpt-4o llama4 kanana2 "
                    "minimax-m2 deepseek-llm deepseek-coder deepseek-v3 hunyuan-dense joyai-llm",
                    false);
    expect_defaults("falcon bailingmoe bailingmoe2 llada-moe seed-coder bloom poro-chat "
                    "gpt3-finnish viking",
                    false);
}

static void expect_pre(const char *pre, const char *want)
{
    struct vocab v = bpe_vocab();
    struct gw w;
    struct kvl_buf text = { 0 };
    bpe_write(&v, pre, 0, NULL, &w);
    struct kvl_tokenizer *t = from_writer(&w);
    assert_int_equal(kvl_tokenizer_describe(t, &text), KVL_OK);
    assert_non_null(strstr(text.data, want));
    kvl_buf_free(&text);
    kvl_tokenizer_destroy(t);
}

/* A file that says default once was described as one that says nothing. */
static void test_pre_named(void **state)
{
    (void)state;
    expect_pre("default", "pre-tokenizer default\n");
    expect_pre(NULL, "pre-tokenizer default (the file names none:");
}

/* llama.cpp takes a file without scores: all are 0, and of equal pairs the leftmost is merged first. */
static void test_spm_no_scores(void **state)
{
    (void)state;
    const char *const more[] = { "a", "b", "ab", "ba", "aba" };
    struct vocab v = spm_vocab(more, 5);
    struct gw w;
    gw_init(&w);
    gw_str(&w, "tokenizer.ggml.model", "llama");
    vocab_write(&v, &w);
    gw_bool(&w, "tokenizer.ggml.add_space_prefix", false);
    struct kvl_tokenizer *t = from_writer(&w);
    expect_ids(t, "ba", 0, IDS(262));
    expect_ids(t, "bab", 0, IDS(262, 260));
    expect_ids(t, "aba", 0, IDS(263));
    expect_ids(t, "abab", 0,
               IDS(263, 260)); /* ab, then aba, which begins further left than the second ab */
    kvl_tokenizer_destroy(t);
}

/* ---- special tokens, BOS, spaces ----------------------------------------------------------- */

static void test_special_tokens(void **state)
{
    (void)state;
    struct vocab v = bpe_vocab();
    struct gw w;
    int32_t ab = vocab_add(&v, "<ab>", 3, 0), user = vocab_add(&v, "[user]", 4, 0);
    int32_t left = vocab_add(&v, "xyz", 4, 0), longer = vocab_add(&v, "yzzz", 4, 0);
    vocab_add(&v, "yz", 4, 0);
    vocab_add(&v, "<u>", 4, 0); /* begins as <ab> does */
    bpe_write(&v, "gpt-2", 0, NULL, &w);
    struct kvl_tokenizer *t = from_writer(&w);
    int32_t p = GW_BYTE0 + 'p', x = GW_BYTE0 + 'x';
    expect_ids(t, "p<ab>p", KVL_ENCODE_SPECIAL, IDS(p, ab, p));
    expect_ids(t, "p<ab>", 0,
               IDS(p, GW_BYTE0 + '<', GW_BYTE0 + 'a', GW_BYTE0 + 'b', GW_BYTE0 + '>'));
    expect_ids(t, "[user]p", 0, IDS(user, p)); /* user tokens always */
    expect_ids(t, "<bos><ab", KVL_ENCODE_SPECIAL,
               IDS(GW_BOS, GW_BYTE0 + '<', GW_BYTE0 + 'a', GW_BYTE0 + 'b'));
    /* The longest wins wherever it stands, then the leftmost. */
    expect_ids(t, "xyzzz", 0, IDS(x, longer));
    expect_ids(t, "xyzzxyz", 0, IDS(left, GW_BYTE0 + 'z', left));
    struct kvl_tokens out = encode(t, "pp<ab>p", 7, KVL_ENCODE_SPECIAL);
    const size_t begin[] = { 0, 1, 2, 6 };
    assert_int_equal(out.n, 4);
    assert_memory_equal(out.begin, begin, sizeof begin);
    kvl_tokens_free(&out);
    kvl_tokenizer_destroy(t);
}

static void test_bos_and_eos(void **state)
{
    (void)state;
    struct gw w;
    struct kvl_buf text = { 0 };
    gw_init(&w);
    gw_byte_vocab(&w);
    gw_bool(&w, "tokenizer.ggml.add_eos_token", true);
    struct kvl_tokenizer *t = from_writer(&w);
    int32_t a = GW_BYTE0 + 'a';
    expect_ids(t, "a", KVL_ENCODE_BOS, IDS(GW_BOS, a, GW_EOS));
    expect_ids(t, "", KVL_ENCODE_BOS, IDS(GW_BOS, GW_EOS));
    expect_ids(t, "a", 0, IDS(a));
    expect_ids(t, "", 0, 0, NULL);
    assert_int_equal(kvl_tokenizer_bos(t), GW_BOS);
    assert_int_equal(kvl_tokenizer_eos(t), GW_EOS);
    assert_true(kvl_tokenizer_ends(t, GW_EOS));
    assert_false(kvl_tokenizer_ends(t, GW_BOS));
    assert_false(kvl_tokenizer_ends(t, -1));
    assert_string_equal(kvl_tokenizer_model(t), "gpt2");
    const int32_t id[] = { GW_BOS, a, GW_EOS };
    assert_int_equal(kvl_decode(t, id, 3, false, true, &text, NULL), KVL_OK);
    assert_string_equal(text.data, "a");
    assert_int_equal(kvl_decode(t, id, 3, true, true, &text, NULL), KVL_OK);
    assert_string_equal(text.data, "a<bos>a<eos>");
    const int32_t bad[] = { a, 259 };
    assert_int_equal(kvl_decode(t, bad, 2, true, true, &text, NULL), KVL_EINVAL);
    assert_int_equal(text.len, 12); /* as before */
    kvl_buf_free(&text);
    kvl_tokenizer_destroy(t);
}

/* A vocabulary with these tokens of one type: the texts of those that end a generation, joined. */
static void expect_ends(int32_t type, const char *const *text, int32_t n, const char *want)
{
    struct vocab v = bpe_vocab();
    struct gw w;
    char got[400] = { 0 };
    int32_t first = v.n;
    for (int32_t i = 0; i < n; i++) vocab_add(&v, text[i], type, 0);
    bpe_write(&v, "gpt-2", 0, NULL, &w);
    struct kvl_tokenizer *t = from_writer(&w);
    for (int32_t i = 0; i < kvl_tokenizer_size(t); i++) {
        if (!kvl_tokenizer_ends(t, i)) continue;
        assert_true(i >= first && kvl_tokenizer_special(t, i));
        strcat(strcat(got, text[i - first]), " ");
    }
    assert_string_equal(got, want);
    assert_int_equal(kvl_tokenizer_bos(t), -1);
    kvl_tokenizer_destroy(t);
}
#define ENDS(type, want, ...)                                                                      \
    expect_ends(type, (const char *const[]){ __VA_ARGS__ },                                        \
                (int32_t)(sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(char *)), want)

static void test_ends(void **state)
{
    (void)state;
    ENDS(3, "<|eot_id|> <|im_end|> <|eom_id|> <end_of_turn> <EOT> _<EOT> <|endoftext|> </s> ",
         "<|eot_id|>", "<|im_end|>", "<|eom_id|>", "<end_of_turn>", "<EOT>", "_<EOT>",
         "<|endoftext|>", "</s>", "<s>", "<|im_start|>");
    ENDS(3, "<|end_of_text|> <eos> [EOS] [EOT] <end_of_utterance> <｜end▁of▁sentence｜> ",
         "<|end_of_text|>", "[INST]", "<eos>", "[EOS]", "[EOT]", "<end_of_utterance>",
         "<｜end▁of▁sentence｜>");
    ENDS(3, "<|fim_pad|> <|repo_name|> <|file_sep|> <|end|> <|return|> ", "<|fim_pad|>",
         "<|repo_name|>", "<|file_sep|>", "<|end|>", "<|return|>");
    /* Of type text in some files: the plain ones stay text. */
    for (int32_t type = 1; type <= 4; type += 3)
        ENDS(type, "<|im_end|> <|endoftext|> ", "<|im_end|>", "</s>", "[EOT]", "<|endoftext|>");
    /* gpt-oss and Solar: <|end|> ends a message, not the turn. */
    ENDS(3, "<|return|> <|call|> ", "<|return|>", "<|end|>", "<|call|>");
    ENDS(3, "<|flush|> <|calls|> ", "<|end|>", "<|flush|>", "<|calls|>");
}

/* Ids that keys name. */
static void test_end_keys(void **state)
{
    (void)state;
    static const char *const key[] = { "eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep" };
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++) {
        struct vocab v = bpe_vocab();
        struct gw w;
        char name[64];
        int32_t stop = vocab_add(&v, "<stop>", 3, 0);
        snprintf(name, sizeof name, "tokenizer.ggml.%s_token_id", key[i]);
        bpe_write(&v, "gpt-2", 0, NULL, &w);
        gw_u32(&w, name, (uint32_t)stop);
        struct kvl_tokenizer *t = from_writer(&w);
        for (int32_t k = 0; k < kvl_tokenizer_size(t); k++)
            assert_int_equal(kvl_tokenizer_ends(t, k), k == stop);
        kvl_tokenizer_destroy(t);
    }
}

/* A token that a file calls text and whose name ends a generation: plain text never becomes it. */
static void test_end_is_control(void **state)
{
    (void)state;
    struct vocab v = bpe_vocab();
    struct gw w;
    int32_t end = vocab_add(&v, "<|im_end|>", 4, 0);
    bpe_write(&v, "gpt-2", 0, NULL, &w);
    struct kvl_tokenizer *t = from_writer(&w);
    struct kvl_tokens out = encode(t, "<|im_end|>", 10, 0);
    assert_int_equal(out.n, 10);
    kvl_tokens_free(&out);
    expect_ids(t, "<|im_end|>", KVL_ENCODE_SPECIAL, IDS(end));
    kvl_tokenizer_destroy(t);
}

static void test_spm_spaces(void **state)
{
    (void)state;
    static const char *const more[] = { SPACE "a", SPACE, "a", "aa" };
    struct vocab v = spm_vocab(more, 4);
    struct gw w;
    struct kvl_buf text = { 0 };
    int32_t _a = 259, space = 260, a = 261, user = vocab_add(&v, "[u]", 4, 0);
    spm_write(&v, &w);
    struct kvl_tokenizer *t = from_writer(&w);
    expect_ids(t, "a", KVL_ENCODE_BOS, IDS(1, _a));
    expect_ids(t, " a", 0, IDS(space, _a));
    expect_ids(t, "a", KVL_ENCODE_CONTINUE | KVL_ENCODE_BOS, IDS(a));
    expect_ids(t, "a[u]a", 0, IDS(_a, user, _a)); /* a space after every special token */
    expect_ids(t, "a[u]a", KVL_ENCODE_CONTINUE, IDS(a, user, _a));
    expect_ids(t, "<s>a", KVL_ENCODE_SPECIAL, IDS(1, _a));
    expect_ids(t, "", 0, 0, NULL);
    struct kvl_tokens out = encode(t, "a\xc3\xa9", 3, KVL_ENCODE_BOS);
    const size_t begin[] = { 0, 0, 1, 2 }; /* BOS, prefix and a, two bytes */
    assert_int_equal(out.n, 4);
    assert_memory_equal(out.begin, begin, sizeof begin);
    assert_int_equal(out.id[2], 3 + 0xc3);
    assert_int_equal(kvl_decode(t, out.id, out.n, false, true, &text, NULL), KVL_OK);
    assert_string_equal(text.data, "a\xc3\xa9");
    text.len = 0;
    assert_int_equal(kvl_decode(t, out.id, out.n, false, false, &text, NULL), KVL_OK);
    assert_string_equal(text.data, " a\xc3\xa9");
    kvl_tokens_free(&out);
    kvl_buf_free(&text);
    kvl_tokenizer_destroy(t);
}

/* Phi-3's tokens take the white space behind them, but for those of Llama 2. */
static void test_phi3_strips(void **state)
{
    (void)state;
    static const char *const more[] = { SPACE "a", SPACE, "a" };
    int32_t _a = 259, user, end;
    for (int phi3 = 0; phi3 < 2; phi3++) {
        struct vocab v = spm_vocab(more, 3);
        struct gw w;
        end = vocab_add(&v, "<|end|>", 3, 0);
        user = vocab_add(&v, "<|user|>", 3, 0);
        spm_write(&v, &w);
        gw_str(&w, "general.architecture", phi3 ? "phi3" : "llama");
        struct kvl_tokenizer *t = from_writer(&w);
        if (phi3)
            expect_ids(t, "<s>\n<|user|> \t\na<|end|>\n<|end|> ", KVL_ENCODE_SPECIAL,
                       IDS(1, 260, 13, user, _a, end, end));
        else
            expect_ids(t, "<|user|>\na", KVL_ENCODE_SPECIAL, IDS(user, 260, 13, 261));
        kvl_tokenizer_destroy(t);
    }
}

/* Without U+2581 in the vocabulary a space is the byte 0x20, and comes back as one. */
static void test_spm_no_space_token(void **state)
{
    (void)state;
    static const char *const more[] = { "a" };
    struct vocab v = spm_vocab(more, 1);
    struct gw w;
    struct kvl_buf text = { 0 };
    spm_write(&v, &w);
    struct kvl_tokenizer *t = from_writer(&w);
    const int32_t want[] = { 3 + ' ', 259, 3 + ' ', 259 };
    expect_ids(t, "a a", 0, 4, want);
    assert_int_equal(kvl_decode(t, want, 4, false, true, &text, NULL), KVL_OK);
    assert_string_equal(text.data, "a a");
    kvl_buf_free(&text);
    kvl_tokenizer_destroy(t);
}

/* Of two equal merges the first counts. */
static void test_merge_twice(void **state)
{
    (void)state;
    static const char *const merge[] = { "a b", "b c", "a b" };
    struct vocab v = bpe_vocab();
    struct gw w;
    int32_t ab = vocab_add(&v, "ab", 1, 0);
    vocab_add(&v, "bc", 1, 0);
    bpe_write(&v, "gpt-2", 3, merge, &w);
    struct kvl_tokenizer *t = from_writer(&w);
    expect_ids(t, "abc", 0, IDS(ab, GW_BYTE0 + 'c'));
    kvl_tokenizer_destroy(t);
}

/* Text that merges into the spelling of a control or byte token stays text. */
static void test_no_control_by_merging(void **state)
{
    (void)state;
    static const char *const more[] = { "<", "s", ">", "<s", "x" };
    struct vocab v = spm_vocab(more, 5);
    struct gw w;
    spm_write(&v, &w);
    gw_bool(&w, "tokenizer.ggml.add_space_prefix", false);
    struct kvl_tokenizer *t = from_writer(&w);
    expect_ids(t, "<s>", 0, IDS(262, 261));
    kvl_tokenizer_destroy(t);
}

/* ---- bytes --------------------------------------------------------------------------------- */

static void check_random_bytes(const struct kvl_tokenizer *t, uint64_t seed)
{
    static const char *const part[] = { "\xe2\x96", "\xf0\x9f\x98\x80", "\xed\xa0\x80",
                                        "\xc0\x80", "\xf4\x90\x80",     "  ",
                                        "abc",      "\xc3\xa9" };
    struct kvl_rng rng;
    kvl_rng_seed(&rng, seed);
    for (int i = 0; i < 3000; i++) {
        struct kvl_buf s = { 0 };
        uint32_t n = kvl_rng_below(&rng, 40);
        for (uint32_t k = 0; k < n; k++) {
            char c = (char)kvl_rng_below(&rng, 256);
            const char *p = part[kvl_rng_below(&rng, 8)];
            if (kvl_rng_below(&rng, 2))
                gw_raw(&s, &c, 1);
            else
                gw_raw(&s, p, strlen(p));
        }
        if (s.len && !memmem(s.data, s.len, "\xe2\x96\x81", 3)) expect_round_trip(t, s.data, s.len);
        kvl_buf_free(&s);
    }
}

static void test_random_bytes(void **state)
{
    (void)state;
    static const char *const more[] = { "a", "b", "ab", "\xe2\x96\x81", "\xc3\xa9" };
    struct vocab v = spm_vocab(more, 5);
    struct gw w;
    spm_write(&v, &w);
    struct kvl_tokenizer *t = from_writer(&w);
    check_random_bytes(t, 3);
    kvl_tokenizer_destroy(t);
    gw_init(&w);
    gw_byte_vocab(&w);
    t = from_writer(&w);
    check_random_bytes(t, 4);
    kvl_tokenizer_destroy(t);
    t = pieces_tokenizer("llama-bpe", "a bc \xc3\xa9"
                                      "ab");
    check_random_bytes(t, 5);
    kvl_tokenizer_destroy(t);
}

/* A byte that no token is for is left out, as llama.cpp does: bytes around it do not become another token, and the
 * key of the unknown token is of other kinds of vocabularies. */
static void test_no_token_for_byte(void **state)
{
    (void)state;
    struct vocab v = bpe_vocab();
    struct gw w;
    struct kvl_err err = { 0 };
    struct kvl_tokens out = { 0 };
    strcpy(v.text[GW_BYTE0 + 0xff], "instead");
    bpe_write(&v, "gpt-2", 0, NULL, &w);
    gw_u32(&w, "tokenizer.ggml.unknown_token_id", 1);
    struct kvl_tokenizer *t = from_writer(&w);
    assert_int_equal(kvl_encode(t, "ab", 2, 0, &out, &err), KVL_OK);
    assert_int_equal(kvl_encode(t,
                                "a\xff"
                                "b",
                                3, 0, &out, &err),
                     KVL_OK);
    assert_int_equal(out.n, 4);
    assert_int_equal(out.id[2], out.id[0]);
    assert_int_equal(out.id[3], out.id[1]);
    assert_int_equal(out.begin[3], 2);
    kvl_tokens_free(&out);
    kvl_tokenizer_destroy(t);
}

/* ---- refused vocabularies ------------------------------------------------------------------ */

static struct gw bad_arrays(const char *key, uint32_t elem, uint64_t n, size_t bytes)
{
    static const uint8_t zero[8 * MAX_VOCAB];
    struct vocab v = spm_vocab(NULL, 0);
    struct gw w;
    bool scores = strcmp(key, "tokenizer.ggml.scores") == 0;
    const char *s[MAX_VOCAB];
    gw_init(&w);
    gw_str(&w, "tokenizer.ggml.model", "llama");
    for (int32_t i = 0; i < v.n; i++) s[i] = v.text[i];
    gw_arr_str(&w, "tokenizer.ggml.tokens", (uint64_t)v.n, s);
    if (scores)
        gw_arr(&w, "tokenizer.ggml.token_type", 5, (uint64_t)v.n, v.type, (size_t)v.n * 4);
    else
        gw_arr(&w, "tokenizer.ggml.scores", 6, (uint64_t)v.n, v.score, (size_t)v.n * 4);
    gw_arr(&w, key, elem, n, zero, bytes);
    return w;
}

/* Narrower elements or fewer of them once made a reader run past the array. */
static void test_bad_arrays(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t elem;
        uint64_t n;
        size_t item;
    } row[] = {
        { "tokenizer.ggml.scores", 0, 259, 1 },     { "tokenizer.ggml.scores", 12, 259, 8 },
        { "tokenizer.ggml.scores", 6, 258, 4 },     { "tokenizer.ggml.scores", 6, 260, 4 },
        { "tokenizer.ggml.token_type", 0, 259, 1 }, { "tokenizer.ggml.token_type", 3, 259, 2 },
        { "tokenizer.ggml.token_type", 5, 1, 4 },   { "tokenizer.ggml.token_type", 6, 259, 4 }
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct gw w = bad_arrays(row[i].key, row[i].elem, row[i].n, row[i].n * row[i].item);
        char why[80];
        snprintf(why, sizeof why, "\"%s\" has %d elements of type %u", row[i].key, (int)row[i].n,
                 row[i].elem);
        expect_refused(&w, why);
    }
}

static void refuse_spm(struct vocab v, const char *why)
{
    struct gw w;
    spm_write(&v, &w);
    expect_refused(&w, why);
}

static void test_bad_tokens(void **state)
{
    (void)state;
    struct vocab v = spm_vocab(NULL, 0);
    strcpy(v.text[100], "<0x-1>");
    refuse_spm(v, "byte token 100 is \"<0x-1>\", want <0x00> to <0xFF>");
    strcpy(v.text[100], "<0x1->");
    refuse_spm(v, "byte token 100 is \"<0x1->\"");
    strcpy(v.text[100], "<0x1>");
    refuse_spm(v, "byte token 100 is \"<0x1>\"");
    strcpy(v.text[100], "<0x6b>");
    refuse_spm(v, "tokens 100 and 110 are both byte 0x6b");
    strcpy(v.text[100], "");
    refuse_spm(v, "token 100 is empty");
    strcpy(v.text[100], "</s>");
    refuse_spm(v, "tokens 2 and 100 are both \"</s>\"");
    v = spm_vocab(NULL, 0);
    v.score[7] = NAN;
    refuse_spm(v, "element 7 is not finite");
    v = spm_vocab(NULL, 0);
    v.type[7] = 7;
    refuse_spm(v, "element 7 is 7, want 0 to 6");
}

static void test_bad_ids(void **state)
{
    (void)state;
    static const char *const key[] = { "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.unknown_token_id",
                                       "tokenizer.ggml.eot_token_id" };
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++) {
        struct vocab v = spm_vocab(NULL, 0);
        struct gw w;
        spm_write(&v, &w);
        gw_u32(&w, key[i], 259);
        expect_refused(&w, "is 259, want 0 to 258");
    }
}

static void test_bad_merges(void **state)
{
    (void)state;
    static const struct {
        const char *merge, *why;
    } row[] = { { "a zz", "merge 0 of tokenizer.ggml.merges: its right part is not" },
                { "zz a", "its left part is not" },
                { "a b", "its result is not" },
                { "ab", "is not two texts" },
                { "a ", "is not two texts" },
                { " a", "is not two texts" },
                { "", "is not two texts" } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct vocab v = bpe_vocab();
        struct gw w;
        bpe_write(&v, "gpt-2", 1, &row[i].merge, &w);
        expect_refused(&w, row[i].why);
    }
}

static void test_bad_models(void **state)
{
    (void)state;
    struct vocab v = bpe_vocab();
    struct gw w;
    bpe_write(&v, "lama-bpe", 0, NULL, &w);
    expect_refused(&w,
                   "\"lama-bpe\", which is not known; the nearest is llama-bpe; if the model's");
    bpe_write(&v, "kimi-k2", 0, NULL, &w);
    expect_refused(&w, "says so: default gpt-2 mpt");
    gw_init(&w);
    gw_str(&w, "tokenizer.ggml.model", "t5");
    expect_refused(&w, "tokenizer.ggml.model is \"t5\", want llama or gpt2");
    gw_init(&w);
    expect_refused(&w, "\"tokenizer.ggml.model\" is missing");
    gw_init(&w);
    gw_str(&w, "tokenizer.ggml.model", "llama");
    expect_refused(&w, "\"tokenizer.ggml.tokens\" is missing");
    gw_init(&w);
    gw_arr_str(&w, "tokenizer.ggml.tokens", 0, NULL);
    gw_str(&w, "tokenizer.ggml.model", "llama");
    expect_refused(&w, "has 0 elements");
}

/* ---- identity, threads, time --------------------------------------------------------------- */

static uint64_t hash_of(const struct vocab *v, const char *pre, const char *merge)
{
    struct gw w;
    bpe_write(v, pre, merge ? 1 : 0, &merge, &w);
    struct kvl_tokenizer *t = from_writer(&w);
    uint64_t h = kvl_tokenizer_hash(t);
    kvl_tokenizer_destroy(t);
    return h;
}

static void test_hash(void **state)
{
    (void)state;
    struct vocab v = bpe_vocab(), other;
    vocab_add(&v, "ab", 1, 0);
    uint64_t h = hash_of(&v, "gpt-2", NULL);
    assert_true(h == hash_of(&v, "gpt-2", NULL));
    assert_true(h != hash_of(&v, "qwen2", NULL));
    assert_true(h != hash_of(&v, "gpt-2", "a b"));
    other = v;
    other.type[50] = 4;
    assert_true(h != hash_of(&other, "gpt-2", NULL));
    other = v;
    strcpy(other.text[259], "ac");
    assert_true(h != hash_of(&other, "gpt-2", NULL));
}

struct job {
    const struct kvl_tokenizer *t;
    const char *text;
    struct kvl_tokens out;
};

static void *run_job(void *arg)
{
    struct job *j = arg;
    for (int i = 0; i < 50; i++) {
        j->out.n = 0;
        if (kvl_encode(j->t, j->text, strlen(j->text), 0, &j->out, NULL) != KVL_OK) return arg;
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    static const char text[] = "a bc ab c\xc3\xa9 a  bc 12 ab'S abc a bc\n\n ab c";
    struct kvl_tokenizer *t = pieces_tokenizer("llama-bpe", "a bc ab c\xc3\xa9 a");
    struct kvl_tokens want = encode(t, text, strlen(text), 0);
    pthread_t id[4];
    struct job job[4];
    for (int i = 0; i < 4; i++) {
        job[i] = (struct job){ .t = t, .text = text };
        assert_int_equal(pthread_create(&id[i], NULL, run_job, &job[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed;
        assert_int_equal(pthread_join(id[i], &failed), 0);
        assert_null(failed);
        assert_int_equal(job[i].out.n, want.n);
        assert_memory_equal(job[i].out.id, want.id, (size_t)want.n * sizeof *want.id);
        kvl_tokens_free(&job[i].out);
    }
    kvl_tokens_free(&want);
    kvl_tokenizer_destroy(t);
}

/* Long texts that are one word, one run of spaces, or one run of bad bytes: half a megabyte of the first (with KVL_LONG
 * all of it), for which anything quadratic would take hours, and an eighth of it of the others. */
static void check_long(const struct kvl_tokenizer *t)
{
    static const char *const unit[] = { "a",    "ab", " ", "\n",       " \n",
                                        "\xff", "A",  "1", "\xcc\x81", "'s" };
    size_t most = getenv("KVL_LONG") ? 1u << 20 : 1u << 19;
    for (size_t i = 0; i < sizeof unit / sizeof unit[0]; i++) {
        struct kvl_buf s = { 0 };
        while (s.len < (i == 0 ? most : most / 8)) gw_raw(&s, unit[i], strlen(unit[i]));
        clock_t start = clock();
        expect_round_trip(t, s.data, s.len);
        assert_true(clock() - start < 60 * CLOCKS_PER_SEC);
        kvl_buf_free(&s);
    }
}

static void test_long_words(void **state)
{
    (void)state;
    static const char *const more[] = { "a",    "b",       "aa",  "ab",       "abab",
                                        "aaaa", "b" SPACE, SPACE, SPACE SPACE };
    struct vocab v = spm_vocab(more, 9);
    struct gw w;
    spm_write(&v, &w);
    struct kvl_tokenizer *t = from_writer(&w);
    check_long(t);
    kvl_tokenizer_destroy(t);
    static const char *const pre[] = { "gpt-2",   "llama-bpe",    "tekken",
                                       "default", "deepseek-llm", "deepseek-v3" };
    for (size_t p = 0; p < sizeof pre / sizeof pre[0]; p++) {
        t = pieces_tokenizer(pre[p], "aaaabab  \n ");
        check_long(t);
        kvl_tokenizer_destroy(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_tiny_stories),
        cmocka_unit_test(test_every_token),
        cmocka_unit_test(test_every_code_point),
        cmocka_unit_test(test_spm_merging),
        cmocka_unit_test(test_bpe_merging),
        cmocka_unit_test(test_pre_tokenizers),
        cmocka_unit_test(test_ignore_merges),
        cmocka_unit_test(test_pre_defaults),
        cmocka_unit_test(test_pre_named),
        cmocka_unit_test(test_spm_no_scores),
        cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_bos_and_eos),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_end_keys),
        cmocka_unit_test(test_end_is_control),
        cmocka_unit_test(test_spm_spaces),
        cmocka_unit_test(test_phi3_strips),
        cmocka_unit_test(test_spm_no_space_token),
        cmocka_unit_test(test_merge_twice),
        cmocka_unit_test(test_no_control_by_merging),
        cmocka_unit_test(test_random_bytes),
        cmocka_unit_test(test_no_token_for_byte),
        cmocka_unit_test(test_bad_arrays),
        cmocka_unit_test(test_bad_tokens),
        cmocka_unit_test(test_bad_ids),
        cmocka_unit_test(test_bad_merges),
        cmocka_unit_test(test_bad_models),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_long_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
