/* haystack.h - a needle in texts of the user's: the first n tokens of them, the needle at a depth.
 *
 * The texts stand behind each other, from one of them on and then from the first again, until the length is
 * reached.  Everything is done to the text and not to tokens, so that a needle has the tokens that it has
 * there.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_HAYSTACK_H
#define KVL_HAYSTACK_H

#include "rows.h"

struct kvl_haystack {
    struct kvl_task_source base;
    struct kvl_buf text;  /* all texts */
    struct kvl_buf begin; /* size_t, of each */
    int32_t n_texts;
};

/* Texts of all files of a folder whose names end with `tail`, in the order of their names; the hash is of
 * them.  KVL_EIO: no such folder, none of these files. */
int kvl_haystack_folder(const char *dir, const char *tail, struct kvl_haystack *out,
                        struct kvl_err *err);
/* Adds a text. */
int kvl_haystack_add(struct kvl_haystack *h, const char *text, size_t n);
void kvl_haystack_free(struct kvl_haystack *h);

/* What is around the haystack. */
struct kvl_needle {
    const char *name;     /* of the task, for messages */
    const char *before;   /* the haystack */
    const char *text;     /* the needle with what parts it from the haystack */
    const char *answer;   /* evidence: a text of the needle */
    const char *question; /* what follows the haystack */
    double depth;
    int32_t first; /* text */
    bool sentence; /* it goes behind a full stop that stands before its place, as in gkamradt's */
};
/* A sample of at most the request's length with one question, whose evidence is the answer in the needle. */
int kvl_haystack_sample(const struct kvl_haystack *h, const struct kvl_task_request *req,
                        const struct kvl_needle *needle, struct kvl_sample *out,
                        struct kvl_err *err);

#endif
