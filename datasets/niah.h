/* niah.h - needles with keys and values: what niah_multikey, niah_multivalue and niah_multiquery share.
 *
 *     The magic value of the quiet river is 8046131.
 *
 * Keys and values are words, numbers or uuids, as in RULER.  Uuids stand in quotes.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_NIAH_H
#define KVL_NIAH_H

#include "scatter.h"

/* The choices of `key` and `value`. */
enum kvl_niah_type { KVL_NIAH_WORDS, KVL_NIAH_NUMBERS, KVL_NIAH_UUIDS };
KVL_API extern const char *const kvl_niah_types[];

enum {
    KVL_NIAH_KEYS = 64,       /* in one context between filler */
    KVL_NIAH_FIRST = 1000000, /* numbers have 7 digits */
    KVL_NIAH_NUMBERS_ALL = 9000000,
};

struct kvl_niah {
    const char *task;
    enum kvl_niah_type key, value; /* types */
    int32_t keys, values, queries; /* queries x values <= KVL_PARTS */
    int32_t wording, max_new;
    const char *prose; /* of the filler: kvl_fit */
};

/* What a value looks like: words, digits or a uuid, and a NUL. */
KVL_API void kvl_niah_value(struct kvl_rng *rng, enum kvl_niah_type type, char out[KVL_PART_SIZE]);

/* The needle's wording for keys and values of these types, and a question's. */
KVL_API const char *kvl_niah_item(enum kvl_niah_type key, enum kvl_niah_type value);
KVL_API const char *kvl_niah_question(int32_t wording, bool many);

/* What stands around a value in an answer. */
KVL_API const char *kvl_niah_quote(enum kvl_niah_type type);

/* Needles scattered over filler. */
KVL_API int kvl_niah_generate(const struct kvl_niah *niah, const struct kvl_task_request *req,
                              struct kvl_sample *out, struct kvl_err *err);

/* The chance that a guess of a value is right. */
KVL_API double kvl_niah_chance(enum kvl_niah_type type);

#endif
