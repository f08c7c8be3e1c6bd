/* text.h - the languages of the tasks: filler sentences; and wording with fields to fill.
 *
 * Words and sentences are in text/<language>.def.  Filler is drawn sentence by sentence from a seeded
 * grammar: it never repeats in blocks, so that a prefix cache or an eviction method gains nothing from
 * repetition.  The wording of a task is in the task's own file, one KVL_PHRASE for each text; wording
 * that several tasks share is in the file of what they share (niah.c).
 *
 * Thread-safe: yes (the state is the caller's).
 */
#ifndef KVL_TEXT_H
#define KVL_TEXT_H

#include "kvl/base.h"
#include "kvl/rng.h"

/* Wording: a constant text in which {field} stands for what kvl_text_fill puts there.  Stands at the
 * begin of a line, since datasets/model/train reads these lines with a regular expression, so that the
 * model is trained on exactly the wording that the tasks use.  Names are unique in datasets/; one that
 * begins with german_ has the German of the name without it. */
#define KVL_PHRASE(name, text) static const char name[] = text

/* Questions come in so many wordings: x_question, x_question_2, x_question_3. */
enum { KVL_TEXT_WORDINGS = 3 };

/* One language. */
struct kvl_text;
KVL_API extern const struct kvl_text kvl_text_english, kvl_text_german;

/* What stands for {name} in a phrase. */
struct kvl_text_field {
    const char *name, *value;
};

/* Appends the phrase with its fields filled. */
KVL_API int kvl_text_fill(const char *phrase, const struct kvl_text_field *field, size_t n_fields,
                          struct kvl_buf *out);

/* Bytes of a question's answer prefix: what follows its last full stop or question mark. */
KVL_API size_t kvl_text_prefix(const char *question);

/* The words of a class; a pointer into a constant table.  A class that a language lacks is that of
 * English (names). */
KVL_API const char *const *kvl_text_words(const struct kvl_text *t, const char *word_class,
                                          size_t len, int32_t *n);

/* Appends one filler sentence. */
KVL_API int kvl_text_sentence(const struct kvl_text *t, struct kvl_rng *rng, struct kvl_buf *out);

#endif
