/* record_method.h - what methods count and say of themselves: `method` and `notes` of records.
 *
 * Beside what the harness measures and never instead of it.  Whatever a method says is bounded: at
 * most KVL_METHOD_NAMES finite numbers under names of their own and KVL_METHOD_NOTES lines; what does
 * not fit is left out, and one more line says so.
 *
 * Thread-safe: no.
 */
#ifndef KVL_RECORD_METHOD_H
#define KVL_RECORD_METHOD_H

#include "kvl/model.h"

#include <jansson.h>

enum { KVL_METHOD_NAMES = 64, KVL_METHOD_NAME = 40, KVL_METHOD_NOTES = 8, KVL_METHOD_NOTE = 200 };

/* Owned; NULL where there are none. */
struct kvl_method {
    json_t *numbers; /* name -> number */
    json_t *notes;   /* lines */
};

/* Asks the policy of a session that has done its work.  A report that fails is a line of `notes`: it
 * costs no answer.  The session can only be destroyed then.  KVL_ENOMEM. */
int kvl_method_take(struct kvl_session *s, struct kvl_method *out, struct kvl_err *err);
/* The same back from a record; `out` is replaced. */
void kvl_method_of(const json_t *record, struct kvl_method *out);
void kvl_method_free(struct kvl_method *m);
/* { method, notes } of one session; NULL: out of memory. */
json_t *kvl_record_method(const struct kvl_method *m);

/* Means over sessions: of every number over those that have it; notes with how many had them. */
struct kvl_method_sum {
    json_t *sum, *n; /* name -> sum, name -> sessions that have it */
    json_t *notes;   /* line -> sessions that have it */
    bool no_memory;
};
/* Adds one; memory that runs out is remembered and told by kvl_record_method_sum. */
void kvl_method_add(struct kvl_method_sum *all, const struct kvl_method *m);
/* { method, notes } of all; frees them.  NULL: out of memory. */
json_t *kvl_record_method_sum(struct kvl_method_sum *all);

#endif
