/* words.h - texts as the scorers of benchmarks take them apart: code points, words, numbers.
 *
 * The official scorers are Python, so that what a letter, a space or a lower-case letter is follows
 * Python's str.  Bytes that are no UTF-8 are one code point each, which equals no other.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_WORDS_H
#define KVL_WORDS_H

#include "kvl/base.h"

/* The code points of a text; free with kvl_free. */
struct kvl_letters {
    uint32_t *v;
    int32_t n;
};
int kvl_letters_of(const char *text, size_t len, struct kvl_letters *out);

/* A code point at `s` (of n > 0 bytes), and how many bytes it has. */
uint32_t kvl_letter_at(const char *s, size_t n, size_t *bytes);
int kvl_letter_add(struct kvl_buf *b, uint32_t point);
/* str.isspace; what `\w` matches; what string.punctuation has. */
bool kvl_letter_space(uint32_t point);
bool kvl_letter_word(uint32_t point);
bool kvl_letter_punct(uint32_t point);
/* What int() makes of it where `\d` matches it, else -1; the other case of a code point by itself. */
int kvl_letter_digit(uint32_t point);
uint32_t kvl_letter_lower(uint32_t point);
/* Of two cases, or looked past, where a text says whether a sigma ends a word. */
bool kvl_letter_cased(uint32_t point);
bool kvl_letter_ignorable(uint32_t point);

/* Words, each a range of a text that is kept elsewhere. */
struct kvl_word {
    const char *s;
    size_t n;
};
struct kvl_words {
    struct kvl_word *v; /* kvl_free */
    int32_t n;
};
/* As str.split(). */
int kvl_words_split(const char *text, size_t len, struct kvl_words *out);
/* At every `at`: empty words count, as in str.split(at). */
int kvl_words_cut(const char *text, size_t len, char at, struct kvl_words *out);
/* Each code point is a word. */
int kvl_words_letters(const char *text, size_t len, struct kvl_words *out);
bool kvl_word_same(const struct kvl_word *a, const struct kvl_word *b);
int kvl_word_order(const void *a, const void *b); /* for qsort */

/* str.lower(), str.upper() */
int kvl_text_lower(const char *text, struct kvl_buf *out);
int kvl_text_upper(const char *text, struct kvl_buf *out);
/* Lower case, without ASCII punctuation and the words a, an, the (SQuAD); words joined by a space. */
int kvl_text_squad(const char *text, struct kvl_buf *out);
/* Lower case, without ASCII and Chinese punctuation and without space. */
int kvl_text_chinese(const char *text, struct kvl_buf *out);
/* Without ASCII and Chinese punctuation. */
int kvl_text_bare(const char *text, struct kvl_buf *out);

/* F1 of two multisets of words; 0 when they share none. */
int kvl_words_f1(const struct kvl_words *a, const struct kvl_words *b, double *out);

#endif
