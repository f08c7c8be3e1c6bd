/* Filler and wording from text/english.def. */
#include "text.h"

#include <assert.h>
#include <string.h>

/* Words of one class stand together, so that a class is a range of this table. */
static const char *const text_word[] = {
#define KVL_WORD(class, word) word,
#include "text/english.def"
};

static const char *const text_class[] = {
#define KVL_WORD(class, word) #class,
#include "text/english.def"
};

static const struct text_template {
    uint32_t weight;
    const char *text;
} text_sentence[] = {
#define KVL_SENTENCE(weight, text) { (weight), (text) },
#include "text/english.def"
};

static const char *const text_phrase[] = {
#define KVL_PHRASE(name, text) text,
#include "text/english.def"
};

/* The sum of the weights, at compile time. */
enum {
#define KVL_SENTENCE(weight, text) +(weight)
    TEXT_WEIGHT = 0
#include "text/english.def"
};

enum { N_WORDS = sizeof text_word / sizeof text_word[0] };

static bool text_is(const char *name, const char *s, size_t len)
{
    return strncmp(name, s, len) == 0 && name[len] == '\0';
}

const char *const *kvl_text_words(const char *word_class, size_t len, int32_t *n)
{
    int32_t first = 0, end;
    while (first < N_WORDS && !text_is(text_class[first], word_class, len)) first++;
    for (end = first; end < N_WORDS && text_is(text_class[end], word_class, len);) end++;
    *n = end - first;
    return text_word + first;
}

/* ---- sentences ----------------------------------------------------------------------------- */

static const char *text_draw_template(struct kvl_rng *rng)
{
    uint32_t at = kvl_rng_below(rng, TEXT_WEIGHT);
    size_t i = 0;
    while (at >= text_sentence[i].weight) at -= text_sentence[i++].weight;
    return text_sentence[i].text;
}

/* A word of the class that is not yet in the sentence `used` (the search ends: it goes around once). */
static const char *text_draw_word(struct kvl_rng *rng, const char *word_class, size_t len,
                                  const char *used)
{
    int32_t n;
    const char *const *words = kvl_text_words(word_class, len, &n);
    assert(n > 0);
    uint32_t at = kvl_rng_below(rng, (uint32_t)n);
    for (int32_t tries = 1; tries < n && strstr(used, words[at]); tries++)
        at = (at + 1) % (uint32_t)n;
    return words[at];
}

int kvl_text_sentence(struct kvl_rng *rng, struct kvl_buf *out)
{
    const char *s = text_draw_template(rng);
    size_t begin = out->len;
    for (;;) {
        size_t plain = strcspn(s, "{");
        KVL_TRY(kvl_buf_add(out, s, plain));
        if (!s[plain]) return KVL_OK;
        s += plain + 1;
        size_t len = strcspn(s, "}");
        KVL_TRY(kvl_buf_adds(out, text_draw_word(rng, s, len, out->data + begin)));
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

int kvl_text_fill(enum kvl_text_phrase phrase, const struct kvl_text_field *field, size_t n_fields,
                  struct kvl_buf *out)
{
    for (const char *s = text_phrase[phrase];;) {
        size_t plain = strcspn(s, "{");
        KVL_TRY(kvl_buf_add(out, s, plain));
        if (!s[plain]) return KVL_OK;
        s += plain + 1;
        size_t len = strcspn(s, "}");
        KVL_TRY(kvl_buf_adds(out, text_field(field, n_fields, s, len)));
        s += len + 1;
    }
}
