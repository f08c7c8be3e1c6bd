/* list.h - a list of entries, key and value, that fills a context: what kv_retrieval and
 * two_stage_retr share.
 *
 *     intro \n [sentences \n] entry entry ... entry \n [sentences \n]
 *
 * The task draws entries until there are enough.  With `wanted` = KVL_AUTO the list is as long as the
 * context allows, and sentences before it close the length; otherwise it has just so many entries, and
 * sentences before and after it fill the context.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_LIST_H
#define KVL_LIST_H

#include "fit.h"

/* Bytes of the list. */
struct kvl_list_entry {
    size_t key, n_key, value, n_value, end;
    int64_t tok_before; /* estimated tokens of the list before it */
    int32_t n_tok;
};

/* What a question says.  The list frees nothing of it: the question takes the texts. */
struct kvl_list_words {
    struct kvl_buf text, answer, gold;
    char after[sizeof((struct kvl_evidence *)0)->after]; /* of both groups, see kvl/task.h */
    const struct kvl_list_entry *evidence;               /* NULL: the entry that is asked for */
    int32_t max_new; /* KVL_AUTO: those of the answer and room to end */
};

struct kvl_list {
    /* by the task */
    const struct kvl_task_request *req;
    struct kvl_err *err;
    const char *intro, *item;
    const char *key, *value;                         /* the fields of the item's wording */
    const char *before_first, *before, *after, *end; /* what stands around an entry */
    const char *many;                                /* what entries are called */
    int32_t wanted;                                  /* entries, KVL_AUTO = as many as fit */
    void *task;
    /* Draws the next entry and adds it. */
    int (*next)(struct kvl_list *l);
    /* The question about an entry.  Only memory can fail it; texts made so far stay in *out. */
    int (*ask)(const struct kvl_list *l, const struct kvl_list_entry *e, int32_t i_question,
               struct kvl_list_words *out);
    /* by the list */
    int32_t most;        /* entries at most; known before the first is drawn */
    struct kvl_buf text; /* all entries that were drawn, each with what stands after it */
    int32_t n;           /* entries; of those drawn, the first n are used */
    struct kvl_buf intro_text, closed, entries;
    int64_t n_tok;  /* estimated tokens of `text` */
    int32_t *asked; /* [n_questions] entries */
};

KVL_API int kvl_list_fail_memory(const struct kvl_list *l);

/* Appends an entry, for `next`; its place goes to *out. */
KVL_API int kvl_list_add(struct kvl_list *l, const char *key, const char *value,
                         struct kvl_list_entry *out);

/* Evidence of each question, in order of use: group 0 is the key (to find the entry), group 1 is
 * the value.  Frees what is the list's. */
KVL_API int kvl_list_generate(struct kvl_list *l, struct kvl_sample *out);

#endif
