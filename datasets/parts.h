/* parts.h - answers of several parts, " 8046131, 1265088, 7793212": evidence, scores, options.
 *
 * Parts are joined by a comma and a space; no part has a comma or the word "and" in it.  `gold` has
 * them plain; `answer` has them as the context shows them (uuids in quotes).
 *
 * Thread-safe: yes.
 */
#ifndef KVL_PARTS_H
#define KVL_PARTS_H

#include "fit.h"

enum {
    KVL_PARTS = 16,     /* that evidence can be told of */
    KVL_PART_SIZE = 64, /* bytes of a part and a NUL */
    KVL_PARTS_MAX_NEW = 4096,
};

/* The last options of every task whose answers have parts: members `wording` and `max_new`. */
#define KVL_PARTS_OPTIONS(opts_struct)                                                             \
    { .name = "wording",                                                                           \
      .type = KVL_OPT_INT,                                                                         \
      .off = offsetof(opts_struct, wording),                                                       \
      .def = "1",                                                                                  \
      .min = 1,                                                                                    \
      .max = KVL_TEXT_WORDINGS,                                                                    \
      .help = "which wording of the question" },                                                   \
    {                                                                                              \
        .name = "max_new", .type = KVL_OPT_INT, .off = offsetof(opts_struct, max_new),             \
        .def = "auto", .min = 1, .max = KVL_PARTS_MAX_NEW,                                         \
        .help = "tokens that an answer may take; auto: the expected answer and 2; models that "    \
                "answer in their own words need more (RULER: 30 to 128)"                           \
    }

struct kvl_part {
    const char *text; /* borrowed */
    struct kvl_span span;
};

/* Writes answer, gold and max_new_tok.  `quote` stands around each part of the answer; max_new may be
 * KVL_AUTO. */
KVL_API int kvl_parts_say(const struct kvl_task_request *req, const struct kvl_part *part,
                          int32_t n, const char *quote, int32_t max_new, struct kvl_question *q,
                          struct kvl_err *err);

/* The spans of n <= KVL_PARTS parts in order of use: a group for each part, or for a few neighbours
 * where there are more parts than groups.  All spans of a group are needed, from the step on at which
 * the answer holds the part before the group. */
KVL_API void kvl_parts_evidence(const struct kvl_part *part, int32_t n, struct kvl_question *q);

/* RULER's string_match_all: the share of the parts that are a substring, whatever the case. */
KVL_API double kvl_parts_official(const char *gold, const char *prediction);
/* The prediction begins with a list of just these parts: up to the first full stop or line end, split
 * at commas and "and".  `ordered`: in this order. */
KVL_API bool kvl_parts_strict(const char *gold, const char *prediction, bool ordered);

#endif
