/* task_maker.h - samples of tasks for tests, under every tokenizer that is at hand: a byte vocabulary,
 * the model that is shipped, and vocabularies in $KVL_TEST_DATA/vocab.
 *
 * A test program passes open_tokenizers and close_tokenizers to cmocka as its group set-up and
 * tear-down.
 */
#ifndef KVL_TESTS_TASK_MAKER_H
#define KVL_TESTS_TASK_MAKER_H

#include "kvl/gguf.h"
#include "kvl/task.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gguf_writer.h"

#define KVL_TASK_X(name) extern const struct kvl_task *const kvl_task_##name;
#include "kvl_tasks.def"
#undef KVL_TASK_X

enum { MOST_TOKENIZERS = 8, UNIT_TOK = 90 }; /* no sentence or item is longer, in bytes */

/* [0] has one token per byte. */
static struct tokenizer {
    const char *name;
    struct kvl_gguf *file;
    struct kvl_tokenizer *t;
} tokenizers[MOST_TOKENIZERS];
static int32_t n_tokenizers;
static void *byte_file;

/* ---- tokenizers ---------------------------------------------------------------------------- */

static inline void add_tokenizer(const char *name, struct kvl_gguf *file)
{
    struct kvl_err err = { 0 };
    struct tokenizer *k = &tokenizers[n_tokenizers++];
    *k = (struct tokenizer){ .name = name, .file = file };
    if (kvl_tokenizer_create(file, &k->t, &err) != KVL_OK) fail_msg("%s: %s", name, err.msg);
}

static inline void add_byte_tokenizer(void)
{
    struct gw w;
    struct kvl_buf bytes = { 0 };
    struct kvl_gguf *file;
    struct kvl_err err = { 0 };
    gw_init(&w);
    gw_byte_vocab(&w);
    gw_finish(&w, &bytes);
    gw_free(&w);
    byte_file = gw_exact(&bytes);
    if (kvl_gguf_open_memory(byte_file, bytes.len, &file, &err) != KVL_OK) fail_msg("%s", err.msg);
    kvl_buf_free(&bytes);
    add_tokenizer("bytes", file);
}

static inline void add_file(const char *name, const char *folder, const char *path)
{
    char full[1024];
    struct kvl_gguf *file;
    struct kvl_err err = { 0 };
    snprintf(full, sizeof full, "%s/%s", folder, path);
    FILE *f = fopen(full, "rb");
    if (!f) {
        print_message("without the tokenizer %s: %s is not there\n", name, path);
        return;
    }
    fclose(f);
    if (kvl_gguf_open(full, &file, &err) != KVL_OK) fail_msg("%s", err.msg);
    add_tokenizer(name, file);
}

static inline int open_tokenizers(void **state)
{
    (void)state;
    const char *data = getenv("KVL_TEST_DATA");
    if (!data) data = KVL_SOURCE_DIR "/../shared/data";
    add_byte_tokenizer();
    add_file("kvlab-tiny", KVL_SOURCE_DIR, "datasets/model/kvlab-tiny.gguf");
    add_file("gpt-2", data, "vocab/ggml-vocab-gpt-2.gguf");
    add_file("llama-spm", data, "vocab/ggml-vocab-llama-spm.gguf");
    add_file("starcoder", data, "vocab/ggml-vocab-starcoder.gguf");
    return 0;
}

static inline int close_tokenizers(void **state)
{
    (void)state;
    for (int32_t i = 0; i < n_tokenizers; i++) {
        kvl_tokenizer_destroy(tokenizers[i].t);
        kvl_gguf_close(tokenizers[i].file);
    }
    kvl_free(byte_file);
    return 0;
}

/* ---- requests ------------------------------------------------------------------------------ */

struct want {
    const struct kvl_task *task;
    const char *options;
    int32_t i_tokenizer, length, n_questions;
    double depth;
    uint64_t seed;
};

static inline int generate(const struct want *w, struct kvl_sample *out, struct kvl_err *err)
{
    double opts[1024] = { 0 };
    struct kvl_err wrong = { 0 };
    if (kvl_opt_defaults(w->task->opts, opts, &wrong) != KVL_OK ||
        kvl_opt_parse(w->task->opts, opts, w->options ? w->options : "", &wrong) != KVL_OK)
        fail_msg("%s", wrong.msg);
    struct kvl_task_request req = { .tokenizer = tokenizers[w->i_tokenizer].t,
                                    .length_tok = w->length,
                                    .depth = w->depth,
                                    .n_questions = w->n_questions ? w->n_questions : 1,
                                    .seed = w->seed,
                                    .opts = opts };
    return w->task->generate(&req, out, err);
}

static inline struct kvl_sample must_generate(const struct want *w)
{
    struct kvl_sample s = { 0 };
    struct kvl_err err = { 0 };
    if (generate(w, &s, &err) != KVL_OK)
        fail_msg("%s %d tokens, seed %d: %s", tokenizers[w->i_tokenizer].name, w->length,
                 (int)w->seed, err.msg);
    return s;
}

static inline struct kvl_tokens encode(const struct want *w, const char *text, uint32_t flags)
{
    struct kvl_tokens t = { 0 };
    struct kvl_err err = { 0 };
    if (kvl_encode(tokenizers[w->i_tokenizer].t, text, strlen(text), flags, &t, &err) != KVL_OK)
        fail_msg("%s", err.msg);
    return t;
}

static inline int32_t count(const char *text, const char *part)
{
    int32_t n = 0;
    for (const char *p = text; (p = strstr(p, part)) != NULL; p++) n++;
    return n;
}

/* The ids are those of the whole text, just as many as asked for, and the text comes back. */
static inline void check_tokens(const struct want *w, const struct kvl_sample *s)
{
    struct kvl_tokens again = encode(w, s->context, KVL_ENCODE_BOS);
    struct kvl_buf text = { 0 };
    assert_int_equal(s->tokens.n, w->length);
    assert_int_equal(again.n, w->length);
    assert_memory_equal(again.id, s->tokens.id, (size_t)again.n * sizeof *again.id);
    assert_memory_equal(again.begin, s->tokens.begin, (size_t)again.n * sizeof *again.begin);
    assert_int_equal(kvl_decode(tokenizers[w->i_tokenizer].t, s->tokens.id, s->tokens.n, false,
                                true, &text, NULL),
                     KVL_OK);
    assert_string_equal(text.data, s->context);
    kvl_buf_free(&text);
    kvl_tokens_free(&again);
}

/* Whether a combination of tokenizer and task, by its number, takes depth i_depth / 10: both ends, and by turns the even
 * and the odd ones between; with KVL_LONG all. */
static inline bool depth_turn(int32_t i, int32_t i_depth)
{
    return i_depth == 0 || i_depth == 10 || (i + i_depth) % 2 == 0 || getenv("KVL_LONG");
}

/* ---- what holds for every sample ----------------------------------------------------------- */

static inline void check_span(const struct kvl_sample *s, struct kvl_span span, const char *text)
{
    assert_true(span.begin < span.end && span.end <= strlen(s->context));
    assert_int_equal(span.end - span.begin, strlen(text));
    assert_memory_equal(s->context + span.begin, text, strlen(text));
}

/* A text that is tokenised on its own and the whole give the same ids: the engine feeds the parts. */
static inline void check_joint(const struct want *w, const struct kvl_sample *s,
                               const struct kvl_question *q)
{
    struct kvl_buf text = { 0 };
    struct kvl_tokens question = encode(w, q->text, KVL_ENCODE_CONTINUE);
    struct kvl_tokens answer = encode(w, q->answer, KVL_ENCODE_CONTINUE);
    assert_int_equal(kvl_buf_printf(&text, "%s%s%s", s->context, q->text, q->answer), KVL_OK);
    struct kvl_tokens all = encode(w, text.data, KVL_ENCODE_BOS);
    assert_int_equal(all.n, s->tokens.n + question.n + answer.n);
    assert_memory_equal(all.id, s->tokens.id, (size_t)s->tokens.n * sizeof *all.id);
    assert_memory_equal(all.id + s->tokens.n, question.id, (size_t)question.n * sizeof *all.id);
    assert_memory_equal(all.id + s->tokens.n + question.n, answer.id,
                        (size_t)answer.n * sizeof *all.id);
    kvl_tokens_free(&question);
    kvl_tokens_free(&answer);
    kvl_tokens_free(&all);
    kvl_buf_free(&text);
}

/* The answer fits into max_new_tok with room to end, and both scorers take it. */
static inline void check_question(const struct want *w, const struct kvl_sample *s,
                                  const struct kvl_question *q)
{
    struct kvl_task_score score;
    struct kvl_tokens answer = encode(w, q->answer, KVL_ENCODE_CONTINUE);
    assert_in_range(q->max_new_tok, answer.n + 1, answer.n + 4);
    kvl_tokens_free(&answer);
    check_joint(w, s, q);
    w->task->score(q, q->answer, &score);
    assert_true(score.official == 1.0 && score.strict == 1.0);

    /* Depth: the first token that ends after the begin of the evidence, counted from the end. */
    size_t begin = q->evidence[0].span[0].begin;
    int32_t token = s->tokens.n - 1;
    while (token > 0 && s->tokens.begin[token] > begin) token--;
    assert_true(fabs(q->depth - (double)token / w->length) < 1e-12);
}

/* Bytes of a character that belongs in a text: a line end, ASCII, a German letter; 0 = none. */
static inline int32_t letter_length(const char *p)
{
    static const char *const german[] = { "ä", "ö", "ü", "Ä", "Ö", "Ü", "ß" };
    if (*p == '\n' || (*p >= ' ' && *p <= '~')) return 1;
    for (size_t i = 0; i < sizeof german / sizeof german[0]; i++)
        if (strncmp(p, german[i], 2) == 0) return 2;
    return 0;
}

/* Lines and spaces: one space between units, no empty line, a line end at the end. */
static inline void check_layout(const struct kvl_sample *s, const char *intro)
{
    size_t n = strlen(s->context);
    assert_memory_equal(s->context, intro, strlen(intro));
    assert_int_equal(s->context[strlen(intro)], '\n');
    assert_int_equal(s->context[n - 1], '\n');
    assert_null(strstr(s->context, "\n\n"));
    assert_null(strstr(s->context, "  "));
    assert_null(strstr(s->context, " \n"));
    for (const char *p = s->context; *p;) {
        int32_t len = letter_length(p);
        if (len == 0) fail_msg("not a letter of a language: \"%.20s\"", p);
        p += len;
    }
}

/* ---- goldens -------------------------------------------------------------------------------- */

static inline uint64_t hash_text(uint64_t h, const char *s)
{
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return (h ^ 0xff) * 0x100000001b3u;
}

/* FNV-1a of all text of a sample. */
static inline uint64_t hash_sample(const struct want *w)
{
    struct kvl_sample s = must_generate(w);
    uint64_t h = hash_text(0xcbf29ce484222325u, s.context);
    for (int32_t i = 0; i < s.n_questions; i++) {
        h = hash_text(h, s.question[i].text);
        h = hash_text(h, s.question[i].answer);
    }
    kvl_sample_free(&s);
    return h;
}

#endif
