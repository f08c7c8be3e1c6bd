/* scatter.h - items in groups, scattered over filler: what the niah tasks and vt share.
 *
 *     intro \n sentence ... item ... sentence ... item ... sentence \n | question -> " part, part"
 *
 * The items of a group stand in their order (the values of a key, the links of a chain).  A question
 * asks for all items of one group, or of a few.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_SCATTER_H
#define KVL_SCATTER_H

#include "parts.h"

struct kvl_scatter_item {
    struct kvl_buf text;
    size_t begin, end;        /* the evidence in it */
    char part[KVL_PART_SIZE]; /* what an answer says of it */
};

struct kvl_scatter {
    /* by the task */
    const struct kvl_task_request *req;
    struct kvl_err *err;
    const char *intro;
    const char *prose; /* of the filler: kvl_fit */
    int32_t n_groups, per_group;
    int32_t asked;      /* groups that a question asks for; asked x per_group <= KVL_PARTS */
    const char *option; /* that says n_groups */
    const char *quote;  /* around the parts of an answer */
    int32_t max_new;    /* KVL_AUTO: those of the answer and room to end */
    void *of;
    /* Writes all items. */
    int (*draw)(struct kvl_scatter *s);
    /* Appends the text of question i, which asks for the groups from `first` on.  Only memory can
     * fail it. */
    int (*ask)(const struct kvl_scatter *s, int32_t first, struct kvl_buf *text);
    /* by the scatter */
    struct kvl_scatter_item *item; /* [n_groups][per_group] */
};

KVL_API int kvl_scatter_fail_memory(const struct kvl_scatter *s);

/* Question i asks for the groups i x asked and on.  With a depth, the first item of group 0 lies there
 * and the others of its group anywhere behind it. */
KVL_API int kvl_scatter_generate(struct kvl_scatter *s, struct kvl_sample *out);

#endif
