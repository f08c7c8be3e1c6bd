/* bag.h - words that come often or rarely and fill a context: what cwe and fwe share.
 *
 *     intro \n [sentences \n] word word ... word \n | question -> " word, word, word"
 *
 * The text of words is as long as the context allows, and a line of filler sentences before it closes
 * the length.  No place of the text is evidence: all of it has to be counted.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_BAG_H
#define KVL_BAG_H

#include "parts.h"

enum { KVL_BAG_ASKED = 32, KVL_BAG_WORDS = 192 };

struct kvl_bag {
    /* by the task */
    const struct kvl_task_request *req;
    struct kvl_err *err;
    const char *intro, *question;
    int32_t asked;   /* words that the question asks for, at most KVL_BAG_ASKED */
    int32_t least;   /* size of the smallest text */
    int32_t max_new; /* KVL_AUTO: those of the answer and room to end */
    void *of;
    /* Writes the text of a size and the words asked for.  The larger, the longer. */
    int (*write)(struct kvl_bag *b, int32_t size);
    /* by the bag */
    struct kvl_buf text;
    char part[KVL_BAG_ASKED][KVL_PART_SIZE]; /* the words asked for, in the order of the answer */
};

KVL_API int kvl_bag_fail_memory(const struct kvl_bag *b);

/* Word i of the KVL_BAG_WORDS nouns, adjectives, verbs, colors, names and cities. */
KVL_API const char *kvl_bag_word(int32_t i);

/* One question.  The depth has no effect, and none is achieved (NaN).  b->text is left to the task to
 * free. */
KVL_API int kvl_bag_generate(struct kvl_bag *b, struct kvl_sample *out);

#endif
