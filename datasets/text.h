/* text.h - the languages of the tasks: filler sentences, and wording with fields to fill.
 *
 * Words, sentences and wording are in text/<language>.def, the wording of the tasks that are like
 * RULER's in text/ruler.def.  Filler is drawn sentence by sentence from a seeded grammar: it never
 * repeats in blocks, so that a prefix cache or an eviction method gains nothing from repetition.
 *
 * English has the wording of every task, the other languages that of some (text/<language>.def).
 *
 * Thread-safe: yes (the state is the caller's).
 */
#ifndef KVL_TEXT_H
#define KVL_TEXT_H

#include "kvl/base.h"
#include "kvl/rng.h"

/* Wording: KVL_TEXT_passkey_intro, ... */
enum kvl_text_phrase {
#define KVL_PHRASE(name, text) KVL_TEXT_##name,
#include "text/english.def"
#define KVL_PHRASE(name, text) KVL_TEXT_##name,
#include "text/ruler.def"
    KVL_TEXT_PHRASES
};

/* Questions come in so many wordings: x_question, x_question_2, x_question_3. */
enum { KVL_TEXT_WORDINGS = 3 };

/* One language. */
struct kvl_text;
extern const struct kvl_text kvl_text_english, kvl_text_german;

/* What stands for {name} in a phrase. */
struct kvl_text_field {
    const char *name, *value;
};

/* Appends the phrase with its fields filled. */
int kvl_text_fill(const struct kvl_text *t, enum kvl_text_phrase phrase,
                  const struct kvl_text_field *field, size_t n_fields, struct kvl_buf *out);

/* The words of a class; a pointer into a constant table.  A class that a language lacks is that of
 * English (names). */
const char *const *kvl_text_words(const struct kvl_text *t, const char *word_class, size_t len,
                                  int32_t *n);

/* Appends one filler sentence. */
int kvl_text_sentence(const struct kvl_text *t, struct kvl_rng *rng, struct kvl_buf *out);

#endif
