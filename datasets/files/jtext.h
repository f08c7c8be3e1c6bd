/* jtext.h - JSON as it lies in a file: values are ranges of the text, taken apart when they are asked for.
 *
 * Lines of benchmarks have megabytes, of which a reader wants a few strings.  What Python writes is read:
 * NaN and Infinity, surrogates (a lone one becomes U+FFFD, as does \u0000).
 *
 * Thread-safe: yes.
 */
#ifndef KVL_JTEXT_H
#define KVL_JTEXT_H

#include "kvl/base.h"

/* A value: the first byte of n is that of the value, the last one its last.  n = 0: none. */
struct kvl_jtext {
    const char *s;
    size_t n;
};

/* The value that begins at or behind `at` and ends before `end`.  KVL_EINVAL: not JSON; *wrong = the byte where
 * that shows. */
int kvl_jtext_value(const char *at, const char *end, struct kvl_jtext *out, const char **wrong);

/* The first byte of a value that is no UTF-8; n where there is none. */
size_t kvl_jtext_not_utf8(struct kvl_jtext v);

/* The value of a member of an object, n = 0 where there is none or `v` is no object; of valid JSON. */
struct kvl_jtext kvl_jtext_member(struct kvl_jtext v, const char *name);
/* Element i of an array, n = 0 behind the last; and how many it has (-1: no array). */
struct kvl_jtext kvl_jtext_item(struct kvl_jtext v, int32_t i);
int32_t kvl_jtext_items(struct kvl_jtext v);

/* The next element of an array; *at begins as v.s.  false: there are no more. */
bool kvl_jtext_each(struct kvl_jtext v, const char **at, struct kvl_jtext *out);

/* The next member of an object, its name quoted as it stands there; *at begins as v.s. */
bool kvl_jtext_each_member(struct kvl_jtext v, const char **at, struct kvl_jtext *name,
                           struct kvl_jtext *value);

bool kvl_jtext_is_string(struct kvl_jtext v);
bool kvl_jtext_is_array(struct kvl_jtext v);
bool kvl_jtext_is_object(struct kvl_jtext v);
bool kvl_jtext_is_null(struct kvl_jtext v); /* or none */

/* Appends the text of a string, or of any other value as it is written. */
int kvl_jtext_add(struct kvl_jtext v, struct kvl_buf *out);
/* Appends text as a JSON string. */
int kvl_jtext_quote(const char *s, size_t n, struct kvl_buf *out);

#endif
