/* head_lists.h - what one kv head reads of a selection; core/policy and resolve.c.
 *
 * Everything lies in the engine's step arena. */
#ifndef KVL_HEAD_LISTS_H
#define KVL_HEAD_LISTS_H

#include "policy_impl.h"

/* One list of one head: runs in a whole lane, else positions; `everything` has neither until they are
 * needed. */
struct kvl_head_list {
    bool everything;
    const struct kvl_run *run; /* ascending, apart from each other */
    int32_t n_runs;
    int32_t shift; /* from the slots of runs to positions: a layer of a window has no early ones */
    const int32_t *pos;  /* ascending */
    const int32_t *slot; /* of each, where known */
    const int32_t *page; /* in place of both, on the device: see kvl_attn_job */
    int32_t n_pages, page_tok, tail;
    int32_t n;               /* positions */
    const float *log_weight; /* [n] or NULL */
    float *keys;             /* [n][head_dim] or NULL; n_keys of them are set */
    int32_t n_keys;
};

/* What stays the same while one kv head is resolved. */
struct kvl_head {
    const struct kvl_resolve *r;
    struct kvl_engine *e;
    struct kvl_session *s;
    int32_t layer, kv_head;
    bool whole;   /* slot == position, nothing evicted */
    int32_t live; /* slots of the lane */
    /* For each segment one list, or one per query head of the group. */
    struct kvl_head_list *lists[KVL_MAX_SEGMENTS];
};

/* Index of the first of n ascending values that is not below x. */
int32_t kvl_lower_bound(const int32_t *v, int32_t n, int32_t x);
int kvl_head_list_no_memory(const struct kvl_head *h);
/* A segment has a list per query head, not one for the group. */
bool kvl_head_list_split(const struct kvl_segment *g);
/* Fills h->lists; takes those of `before`, another head of the layer (or NULL), where they are the
 * same. */
int kvl_head_list_get(struct kvl_head *h, const struct kvl_head *before);
/* One list of a segment as it was given, without the current token. */
int kvl_head_list_named(const struct kvl_head *h, int32_t i_seg, int32_t q_head,
                        struct kvl_head_list *out);
bool kvl_head_list_have(const struct kvl_head *h, const struct kvl_head_list *it, int32_t pos);
/* Positions of a list, ascending. */
int kvl_head_list_expand(const struct kvl_head *h, const struct kvl_head_list *it,
                         const int32_t **pos, int32_t *n);

/* Positions in at least one of several lists, and one that is in two of them (-1: there is none). */
struct kvl_overlap {
    int32_t n, twice;
};

/* given_entries.c: gives the current token's key to a list with keys that the engine added it to. */
int kvl_keys_complete(const struct kvl_head *h, const struct kvl_head_list *it);
/* Attention to the pseudo-entries of a head: out [group][head_dim], lse [group]. */
int kvl_pseudo_attend(const struct kvl_head *h, float *out, float *lse);

int kvl_head_list_overlap(const struct kvl_head *h, const struct kvl_head_list *const *lists,
                          int32_t n_lists, struct kvl_overlap *out);

#endif
