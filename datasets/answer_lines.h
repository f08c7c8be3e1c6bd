/* answer_lines.h - answers of many lines, each of which is right or wrong: what running_sums and edited_copy share.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_ANSWER_LINES_H
#define KVL_ANSWER_LINES_H

#include "list.h"

/* Number of an entry of the list. */
KVL_API int32_t kvl_lines_index(const struct kvl_list *l, const struct kvl_list_entry *e);
/* Entry i, modulo their number. */
KVL_API const struct kvl_list_entry *kvl_lines_entry(const struct kvl_list *l, int32_t i);
/* A key of n lower-case letters that is not in the list; out [n + 1]. */
KVL_API int kvl_lines_key(const struct kvl_list *l, struct kvl_rng *rng, size_t n, char *out);
/* official: the share of the gold's lines that stand at their place; strict: all of them, and no more lines; by quarter of
 * the answer: quarter_1 .. quarter_4.  White space at the ends of lines does not count, nor empty lines. */
KVL_API void kvl_lines_score(const struct kvl_question *q, const char *prediction,
                             struct kvl_task_score *out);

#endif
