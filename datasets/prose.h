/* prose.h - sentences of a text file as filler: what a needle is hidden in that somebody wrote.
 *
 * Line ends and white space count as one space, an empty line ends a paragraph.  A sentence ends with . ! or ?
 * and what closes a quotation behind it, where a space and no small letter follow ("Is it?" asked he.) and the word
 * before is no short capitalised one (Mr. Dr. St.).  Left out: what has a digit (the digits of a task are the only
 * ones in its context), titles and other paragraphs that do not end as sentences do, very short and very long ones.
 *
 * Thread-safe: yes (the state is the caller's).
 */
#ifndef KVL_PROSE_H
#define KVL_PROSE_H

#include "kvl/base.h"
#include "kvl/opt.h"

/* The option of every task that hides its items in filler: member `prose`. */
#define KVL_PROSE_OPTION(tag)                                                                      \
    KVL_ROW_PATH(tag, prose, "",                                                                   \
                 "a text file whose sentences, in their order from a random one on, are the "      \
                 "filler (harness/prose.sh has novels); empty: filler of our own")

struct kvl_prose {
    struct kvl_buf text;  /* the sentences, one behind the other */
    struct kvl_buf begin; /* size_t, of each in the text, and the end of the last */
    size_t n;
};

/* KVL_EIO, KVL_EINVAL: no such file, or too few sentences in it. */
KVL_API int kvl_prose_open(const char *path, struct kvl_prose *out, struct kvl_err *err);
KVL_API void kvl_prose_close(struct kvl_prose *p);

/* Appends sentence i; after the last comes the first. */
KVL_API int kvl_prose_sentence(const struct kvl_prose *p, size_t i, struct kvl_buf *out);

#endif
