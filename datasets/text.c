/* Filler from text/english.def and text/german.def, and wording with its fields filled. */
#include "text.h"

#include <assert.h>
#include <string.h>

struct text_template {
    uint32_t weight;
    const char *text;
};

struct kvl_text {
    /* [n_words]; words of one class stand together, so that a class is a range */
    const char *const *word, *const *word_class;
    int32_t n_words;
    const struct text_template *sentence; /* [n_sentences] */
    int32_t n_sentences;
    const struct kvl_text *base; /* has the classes that are not here; NULL = none */
};

/* ---- english ------------------------------------------------------------------------------ */

static const char *const english_word[] = {
#define KVL_WORD(class, word) word,
#include "text/english.def"
};

static const char *const english_class[] = {
#define KVL_WORD(class, word) #class,
#include "text/english.def"
};

static const struct text_template english_sentence[] = {
#define KVL_SENTENCE(weight, text) { (weight), (text) },
#include "text/english.def"
};

const struct kvl_text kvl_text_english = {
    .word = english_word,
    .word_class = english_class,
    .n_words = sizeof english_word / sizeof english_word[0],
    .sentence = english_sentence,
    .n_sentences = sizeof english_sentence / sizeof english_sentence[0],
};

/* ---- german ------------------------------------------------------------------------------- */

static const char *const german_word[] = {
#define KVL_WORD(class, word) word,
#include "text/german.def"
};

static const char *const german_class[] = {
#define KVL_WORD(class, word) #class,
#include "text/german.def"
};

static const struct text_template german_sentence[] = {
#define KVL_SENTENCE(weight, text) { (weight), (text) },
#include "text/german.def"
};

const struct kvl_text kvl_text_german = {
    .word = german_word,
    .word_class = german_class,
    .n_words = sizeof german_word / sizeof german_word[0],
    .sentence = german_sentence,
    .n_sentences = sizeof german_sentence / sizeof german_sentence[0],
    .base = &kvl_text_english,
};

/* ---- words --------------------------------------------------------------------------------- */

static bool text_is(const char *name, const char *s, size_t len)
{
    return strncmp(name, s, len) == 0 && name[len] == '\0';
}

const char *const *kvl_text_words(const struct kvl_text *t, const char *word_class, size_t len,
                                  int32_t *n)
{
    int32_t first = 0, end;
    while (first < t->n_words && !text_is(t->word_class[first], word_class, len)) first++;
    if (first == t->n_words && t->base) return kvl_text_words(t->base, word_class, len, n);
    for (end = first; end < t->n_words && text_is(t->word_class[end], word_class, len);) end++;
    *n = end - first;
    return t->word + first;
}

/* ---- sentences ----------------------------------------------------------------------------- */

static const char *text_draw_template(const struct kvl_text *t, struct kvl_rng *rng)
{
    uint32_t sum = 0;
    int32_t i = 0;
    for (int32_t k = 0; k < t->n_sentences; k++) sum += t->sentence[k].weight;
    uint32_t at = kvl_rng_below(rng, sum);
    while (at >= t->sentence[i].weight) at -= t->sentence[i++].weight;
    return t->sentence[i].text;
}

/* A word of the class that is not yet in the sentence `used` (the search ends: it goes around once). */
static const char *text_draw_word(const struct kvl_text *t, struct kvl_rng *rng,
                                  const char *word_class, size_t len, const char *used)
{
    int32_t n;
    const char *const *words = kvl_text_words(t, word_class, len, &n);
    assert(n > 0);
    uint32_t at = kvl_rng_below(rng, (uint32_t)n);
    for (int32_t tries = 1; tries < n && strstr(used, words[at]); tries++)
        at = (at + 1) % (uint32_t)n;
    return words[at];
}

int kvl_text_sentence(const struct kvl_text *t, struct kvl_rng *rng, struct kvl_buf *out)
{
    const char *s = text_draw_template(t, rng);
    size_t begin = out->len;
    for (;;) {
        size_t plain = strcspn(s, "{");
        KVL_TRY(kvl_buf_add(out, s, plain));
        if (!s[plain]) return KVL_OK;
        s += plain + 1;
        size_t len = strcspn(s, "}");
        KVL_TRY(kvl_buf_adds(out, text_draw_word(t, rng, s, len, out->data + begin)));
        s += len + 1;
    }
}

/* ---- wording ------------------------------------------------------------------------------- */

static const char *text_field(const struct kvl_text_field *field, size_t n_fields, const char *s,
                              size_t len)
{
    size_t i = 0;
    while (i < n_fields && !text_is(field[i].name, s, len)) i++;
    assert(i < n_fields); /* the caller fills every field of the wording */
    return field[i].value;
}

int kvl_text_fill(const char *phrase, const struct kvl_text_field *field, size_t n_fields,
                  struct kvl_buf *out)
{
    for (const char *s = phrase;;) {
        size_t plain = strcspn(s, "{");
        KVL_TRY(kvl_buf_add(out, s, plain));
        if (!s[plain]) return KVL_OK;
        s += plain + 1;
        size_t len = strcspn(s, "}");
        KVL_TRY(kvl_buf_adds(out, text_field(field, n_fields, s, len)));
        s += len + 1;
    }
}

size_t kvl_text_prefix(const char *question)
{
    size_t len = strlen(question);
    for (size_t i = len; i-- > 1;)
        if (question[i] == ' ' && (question[i - 1] == '?' || question[i - 1] == '.'))
            return len - i;
    return 0;
}
